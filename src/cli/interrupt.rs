//! Ctrl-C, SIGTERM and SIGHUP end a search and keep the best plan so far, and end a run with the
//! step that it is at; a second one ends the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

static STOP: AtomicBool = AtomicBool::new(false);

/// Exit code of a program that was interrupted, as shells have it for Ctrl-C.
pub(super) const INTERRUPTED: u8 = 130;

/// Signals that follow one another sooner than this are one: where a terminal is closed, both
/// the system and the shell hang up, and what was trained is to be saved first.
const APART: Duration = Duration::from_secs(1);

/// The flag that the first signal sets, which ends a search.
pub(super) fn flag() -> &'static AtomicBool {
    flag_that("the best plan so far is kept")
}

/// The flag that the first signal sets; it says `what` comes of that.
pub(super) fn flag_that(what: &'static str) -> &'static AtomicBool {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| handle(what));
    &STOP
}

fn handle(what: &'static str) {
    let first = Mutex::new(None::<Instant>);
    let handler = move || {
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        match *first {
            None => {
                *first = Some(Instant::now());
                STOP.store(true, Ordering::Relaxed);
                tell!("stopping; {what} (Ctrl-C again to quit)");
            }
            Some(then) if then.elapsed() > APART => std::process::exit(INTERRUPTED.into()),
            Some(_) => {}
        }
    };
    let ignores_hangups = is_hangup_ignored();
    // Where no handler can be set, a signal ends the program as it always does.
    let _ = ctrlc::set_handler(handler);
    if ignores_hangups {
        ignore_hangups();
    }
    stop_on_request();
}

/// Under SIGUSR1, which launchers pass on to all ranks, a run ends with its step, too.
#[cfg(unix)]
fn stop_on_request() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    extern "C" fn stop(_: i32) {
        STOP.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler stores to an atomic and does nothing else.
    let _ = unsafe { signal(Signal::SIGUSR1, SigHandler::Handler(stop)) };
}

#[cfg(not(unix))]
fn stop_on_request() {}

/// True under `nohup`, whose programs go on when the terminal is closed. Hangups are ignored
/// from here on, whatever they were before.
#[cfg(unix)]
fn is_hangup_ignored() -> bool {
    matches!(ignore_hangups(), Some(nix::sys::signal::SigHandler::SigIgn))
}

#[cfg(not(unix))]
fn is_hangup_ignored() -> bool {
    false
}

/// Ignores hangups; gives what was done with them before.
#[cfg(unix)]
fn ignore_hangups() -> Option<nix::sys::signal::SigHandler> {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: no handler is set that could run at a bad time.
    unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) }.ok()
}

#[cfg(not(unix))]
fn ignore_hangups() {}
