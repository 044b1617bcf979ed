//! Ctrl-C ends a search and keeps the best plan so far; a second one ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// Exit code of a program that was interrupted, as shells have it.
const INTERRUPTED: i32 = 130;

/// The flag that the first Ctrl-C sets.
pub(super) fn flag() -> &'static AtomicBool {
    // Where no handler can be set, Ctrl-C ends the program as it always does.
    let _ = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
        eprintln!("stopping; the best plan so far is kept (Ctrl-C again to quit)");
    });
    &STOP
}
