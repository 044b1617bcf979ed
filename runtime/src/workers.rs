//! The threads that share kernels' work.
//!
//! To hand a step to a thread that sleeps and to be woken at its end takes longer than a small step. A
//! step therefore begins on the thread that asks for it. A kernel that has enough work for several
//! threads enters the pool from there; from the next step on the pool runs the whole step. Where several
//! streams have kernels, each kernel enters the pool by itself: a stream that waited on a thread of the pool
//! might hold the one that another stream needs.

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

thread_local! {
    /// The workers of the step that this thread runs, where it is none of them.
    static AT_HAND: RefCell<Option<Arc<Workers>>> = const { RefCell::new(None) };
}

/// A pool of threads for kernels.
pub(crate) struct Workers {
    pool: ThreadPool,
    /// A kernel had work for several threads.
    wanted: AtomicBool,
}

impl Workers {
    /// A pool of `threads`; 0 is one for each core.
    pub(crate) fn new(threads: usize) -> Result<Arc<Self>, ThreadPoolBuildError> {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build()?;
        Ok(Arc::new(Workers { pool, wanted: AtomicBool::new(false) }))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs the kernels of a step, one after the other: on this thread, with the workers at hand, or in
    /// the pool if a kernel wanted several threads before.
    pub(crate) fn step<R: Send>(self: &Arc<Self>, step: impl FnOnce() -> R + Send) -> R {
        if self.wanted.load(Relaxed) {
            return self.pool.install(step);
        }
        let _before = Before(AT_HAND.replace(Some(Arc::clone(self))));
        step()
    }

    /// Runs one kernel, in the pool unless a step on this thread has the workers at hand.
    pub(crate) fn kernel<R: Send>(&self, kernel: impl FnOnce() -> R + Send) -> R {
        if AT_HAND.with_borrow(Option::is_some) { kernel() } else { self.pool.install(kernel) }
    }
}

/// What a thread had at hand before a step, to be put back when the step ends, by a panic, too.
struct Before(Option<Arc<Workers>>);

impl Drop for Before {
    fn drop(&mut self) {
        AT_HAND.set(self.0.take());
    }
}

/// Threads that a kernel on this thread may use.
pub(crate) fn count() -> usize {
    let at_hand = AT_HAND.with_borrow(|workers| workers.as_ref().map(|workers| workers.count()));
    at_hand.unwrap_or_else(rayon::current_num_threads)
}

/// Runs `work`, which has enough for several threads, on a thread of the pool.
pub(crate) fn enter(work: impl FnOnce() + Send) {
    match AT_HAND.with_borrow(Clone::clone) {
        Some(workers) => {
            workers.wanted.store(true, Relaxed);
            workers.pool.install(work);
        }
        None => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::thread::current;

    #[test]
    fn a_step_stays_on_its_thread_until_a_kernel_wants_several() {
        let workers = Workers::new(2).unwrap();
        let here = current().id();
        assert_eq!(workers.step(|| (count(), current().id())), (2, here));
        let inside = Mutex::new(here);
        workers.step(|| enter(|| *inside.lock().unwrap() = current().id()));
        assert_ne!(*inside.lock().unwrap(), here);
        assert_ne!(workers.step(|| current().id()), here);
        // Other workers' steps are not theirs.
        assert_eq!(Workers::new(1).unwrap().step(|| (count(), current().id())), (1, here));
    }

    #[test]
    fn a_kernel_outside_of_a_step_runs_in_the_pool() {
        let workers = Workers::new(1).unwrap();
        let here = current().id();
        assert_ne!(workers.kernel(|| current().id()), here);
        assert_eq!(workers.step(|| workers.kernel(|| current().id())), here);
    }

    #[test]
    fn a_step_that_panics_leaves_nothing_at_hand() {
        let workers = Workers::new(1).unwrap();
        let step = || workers.step(|| panic!("a kernel"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(step)).unwrap_err();
        assert!(AT_HAND.with_borrow(Option::is_none));
    }
}
