//! The threads that streams run on, and the events that order them.
//!
//! The first stream runs on the thread that steps. Every other has a thread of its own,
//! which lives as long as the executor and sleeps between steps.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, panicking};

/// How often a condition is looked at before its thread goes to sleep: some microseconds,
/// about what going to sleep and waking up take.
const LOOKS: usize = 128;

/// Where threads wait for a condition that others make true.
#[derive(Default)]
struct Gate {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    /// Waits until `ready`, which loads what others have stored before they called
    /// [`Gate::wake`], both `SeqCst`.
    fn wait(&self, ready: impl Fn() -> bool) {
        for _ in 0..LOOKS {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.lock);
        // Either this thread sees the store or whoever stored sees the sleeper, and then
        // takes the lock, so that it cannot wake between the look and the sleep.
        self.sleepers.fetch_add(1, SeqCst);
        while !ready() {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }

    fn wake(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.lock));
            self.changed.notify_all();
        }
    }
}

/// No lock here guards anything that a panic could leave half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The events of a program.
pub(super) struct Events {
    /// The step that runs, from 1.
    step: AtomicU64,
    /// The step will not be finished: nobody waits any more.
    ended: AtomicBool,
    events: Vec<Event>,
}

#[derive(Default)]
struct Event {
    /// The last step that recorded it; so no event needs to be reset between steps.
    recorded: AtomicU64,
    gate: Gate,
}

/// A stream waited in vain: another one ended the step.
pub(super) struct Ended;

impl Events {
    pub(super) fn new(count: usize) -> Events {
        let events = std::iter::repeat_with(Event::default).take(count).collect();
        Events { step: AtomicU64::new(0), ended: AtomicBool::new(false), events }
    }

    /// Begins a step. No stream may be running.
    pub(super) fn begin(&self) {
        self.ended.store(false, SeqCst);
        self.step.fetch_add(1, SeqCst);
    }

    /// What the stream did before comes before what any stream does after a wait.
    pub(super) fn record(&self, event: usize) {
        let event = &self.events[event];
        event.recorded.store(self.step.load(SeqCst), SeqCst);
        event.gate.wake();
    }

    pub(super) fn wait(&self, event: usize) -> Result<(), Ended> {
        let event = &self.events[event];
        let step = self.step.load(SeqCst);
        let recorded = || event.recorded.load(SeqCst) == step;
        event.gate.wait(|| recorded() || self.ended.load(SeqCst));
        if recorded() { Ok(()) } else { Err(Ended) }
    }

    /// Ends the step early: waits for events that are not recorded return.
    pub(super) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.events.iter().for_each(|event| event.gate.wake());
    }
}

/// What a stream, by its index, does in a step.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The threads of all streams but the first.
pub(super) struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// The work of the present step.
    work: Mutex<Option<&'static Work<'static>>>,
    /// How many steps have begun, and whether the threads are to end.
    steps: AtomicU64,
    closed: AtomicBool,
    begun: Gate,
    /// Streams that are at work.
    running: AtomicUsize,
    finished: Gate,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Threads {
    /// Starts a thread for each of `streams` streams but the first.
    pub(super) fn start(streams: usize) -> std::io::Result<Threads> {
        let mut threads = Threads { shared: Arc::default(), handles: Vec::new() };
        for stream in 1..streams {
            let shared = Arc::clone(&threads.shared);
            let name = format!("stream {stream}");
            threads.handles.push(Builder::new().name(name).spawn(move || shared.serve(stream))?);
        }
        Ok(threads)
    }

    /// Does `work(0)` here and `work(i)` on the thread of stream `i`, and returns when all
    /// of them have. `work` must see to it that where one stream panics the others return.
    ///
    /// # Panics
    /// Where `work` does.
    pub(super) fn run(&mut self, work: &Work) {
        if self.handles.is_empty() {
            return work(0);
        }
        // SAFETY: only the lifetime changes. `Finished` keeps this call from returning or
        // unwinding before every thread has returned from `work`, and `serve` calls it no
        // more until the next step has stored its own; `&mut self` makes this the only step.
        let work_of_step =
            unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        let shared = &*self.shared;
        *lock(&shared.work) = Some(work_of_step);
        *lock(&shared.panic) = None;
        shared.running.store(self.handles.len(), SeqCst);
        let finished = Finished(shared);
        shared.steps.fetch_add(1, SeqCst);
        shared.begun.wake();
        work(0);
        drop(finished);
        if let Some(panic) = lock(&shared.panic).take() {
            resume_unwind(panic);
        }
    }
}

/// Waits, when it is dropped, until no thread is at work.
struct Finished<'a>(&'a Shared);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.finished.wait(|| self.0.running.load(SeqCst) == 0);
        *lock(&self.0.work) = None;
    }
}

impl Shared {
    fn serve(&self, stream: usize) {
        for step in 1.. {
            let closed = || self.closed.load(SeqCst);
            self.begun.wait(|| self.steps.load(SeqCst) >= step || closed());
            if closed() {
                return;
            }
            let work = *lock(&self.work);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work.map(|work| work(stream)))) {
                lock(&self.panic).get_or_insert(panic);
            }
            self.running.fetch_sub(1, SeqCst);
            self.finished.wake();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.closed.store(true, SeqCst);
        self.shared.begun.wake();
        for handle in self.handles.drain(..) {
            // A thread catches the panics of its work, so it ends without one.
            let _ = handle.join();
        }
    }
}

/// Ends the step where the stream that holds it panics, so that no other waits for ever.
pub(super) struct EndOnPanic<'a>(pub(super) &'a Events);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if panicking() {
            self.0.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_stream_runs_once_a_step_and_waits_for_what_it_must() {
        let (mut threads, events) = (Threads::start(3).unwrap(), Events::new(2));
        let log = Mutex::new(Vec::new());
        for step in 0..200 {
            events.begin();
            threads.run(&|stream| {
                // Stream 2 goes first, then 1, then 0.
                if let Some(event) = [Some(0), Some(1), None][stream] {
                    assert!(events.wait(event).is_ok());
                } else if step % 16 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                lock(&log).push(stream);
                if let Some(event) = [None, Some(0), Some(1)][stream] {
                    events.record(event);
                }
            });
            assert_eq!(std::mem::take(&mut *lock(&log)), [2, 1, 0]);
        }
    }

    #[test]
    fn a_panic_on_any_stream_ends_the_step_and_comes_out_of_it() {
        let (mut threads, events) = (Threads::start(3).unwrap(), Events::new(1));
        for culprit in 0..3 {
            events.begin();
            let work = |stream| {
                let _end = EndOnPanic(&events);
                assert!(stream != culprit, "stream {stream}");
                assert!(events.wait(0).is_err());
            };
            let panic = catch_unwind(AssertUnwindSafe(|| threads.run(&work))).unwrap_err();
            let said = panic.downcast_ref::<String>().unwrap();
            assert_eq!(said, &format!("stream {culprit}"));
        }
        events.begin();
        threads.run(&|_| ());
    }
}
