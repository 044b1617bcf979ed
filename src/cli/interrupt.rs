//! Ctrl-C ends a search and keeps the best plan so far, and ends a run with the step that it is
//! at; a second one ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// Exit code of a program that was interrupted, as shells have it.
pub(super) const INTERRUPTED: u8 = 130;

/// The flag that the first Ctrl-C sets, which ends a search.
pub(super) fn flag() -> &'static AtomicBool {
    flag_that("the best plan so far is kept")
}

/// The flag that the first Ctrl-C sets; it says `what` comes of that.
pub(super) fn flag_that(what: &'static str) -> &'static AtomicBool {
    // Where no handler can be set, Ctrl-C ends the program as it always does.
    let _ = ctrlc::set_handler(move || {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED.into());
        }
        eprintln!("stopping; {what} (Ctrl-C again to quit)");
    });
    &STOP
}
