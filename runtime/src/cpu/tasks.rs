//! Splitting work over threads.
//!
//! What a task computes never depends on which thread runs it or in which company, and how a sum is cut
//! into tasks follows from shapes alone, so that the number of threads changes speed and nothing else.

use super::address::{Dst, Src};
use crate::workers;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// Work, in elements touched, below which threads cost more than they save: some microseconds, what it
/// takes to give work to a thread that waits for it. A step in rounds has many operators of little more.
const SMALL: usize = 1 << 14;

/// Elements of one task where an element costs about as much as its memory traffic.
pub(super) const CHEAP: usize = 8 << 10;

/// Elements of one task where an element costs several nanoseconds.
pub(super) const DEAR: usize = 2 << 10;

/// Bytes of one task that only copies.
const COPY_BYTES: usize = 64 << 10;

/// Runs `f` for every index below `n`. `work` is the effort of all of them, in elements
/// touched. Each index must write results of its own: which thread runs it, and with
/// which neighbours, is open.
#[inline]
pub(super) fn for_each(n: usize, work: usize, f: impl Fn(usize) + Sync) {
    if work <= SMALL || n <= 1 || workers::count() == 1 {
        (0..n).for_each(f);
    } else {
        let least = (SMALL / 2).div_ceil((work / n).max(1));
        in_parallel(n, least, &|indices: Range<usize>| indices.for_each(&f));
    }
}

/// As [`for_each`], for tasks of which the first are the largest: each thread takes the next one when it has
/// done its last.
pub(super) fn for_each_in_order(n: usize, work: usize, f: impl Fn(usize) + Sync) {
    let tasks = Queue::new(n);
    for_each(workers::count(), work, |_| tasks.rest().for_each(&f));
}

/// Indices that threads take in order. None has a share of its own, which it could still be at while others
/// wait.
pub(super) struct Queue {
    len: usize,
    taken: AtomicUsize,
}

impl Queue {
    /// The indices below `len`.
    pub(super) fn new(len: usize) -> Self {
        Queue { len, taken: AtomicUsize::new(0) }
    }

    /// What no thread has taken yet.
    pub(super) fn rest(&self) -> impl Iterator<Item = usize> {
        std::iter::from_fn(|| Some(self.taken.fetch_add(1, Relaxed)).filter(|&i| i < self.len))
    }
}

/// Covers `0..n` with ranges of `least` indices, on all threads. Not generic: it is compiled once and not for
/// every kernel and type.
fn in_parallel(n: usize, least: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    workers::enter(|| {
        let least = least.max(n.div_ceil(u32::MAX as usize));
        let shares = Shares::new(n.div_ceil(least), workers::count());
        let work = || shares.work(|i| f(i * least..((i + 1) * least).min(n)));
        rayon::scope(|scope| {
            for _ in 1..shares.of.len() {
                scope.spawn(|_| work());
            }
            work();
        });
    });
}

/// How long a thread that has nothing to do waits for the tasks of others by yielding the core: a few times as
/// long as it takes to wake a thread that sleeps.
const PATIENCE: Duration = Duration::from_micros(200);

/// Tasks in contiguous shares, one for each thread, which finds in its caches what it had there in the kernel
/// before. A thread that has done its share takes the last tasks of others.
struct Shares {
    of: Vec<Share>,
    /// Tasks that are not done.
    left: AtomicUsize,
}

/// The tasks of a share that nobody has taken: the first, and above it the end. It has its own cache lines.
#[repr(align(128))]
struct Share(AtomicU64);

impl Share {
    fn new(tasks: Range<u32>) -> Share {
        Share(AtomicU64::new(Share::packed(tasks)))
    }

    fn packed(tasks: Range<u32>) -> u64 {
        u64::from(tasks.end) << 32 | u64::from(tasks.start)
    }

    /// Takes the first task or, for another thread than that of the share, the last.
    fn take(&self, first: bool) -> Option<usize> {
        let tasks = |packed: u64| packed as u32..(packed >> 32) as u32;
        let rest = |tasks: Range<u32>| match first {
            true => tasks.start + 1..tasks.end,
            false => tasks.start..tasks.end - 1,
        };
        let without = |now: u64| {
            let tasks = tasks(now);
            (!tasks.is_empty()).then(|| Share::packed(rest(tasks)))
        };
        let before = tasks(self.0.fetch_update(Relaxed, Relaxed, without).ok()?);
        Some(if first { before.start } else { before.end - 1 } as usize)
    }
}

impl Shares {
    /// So many tasks, for so many threads.
    fn new(tasks: usize, threads: usize) -> Shares {
        let n = threads.clamp(1, tasks.max(1));
        let end = |i: usize| (tasks as u64 * i as u64 / n as u64) as u32;
        let of = (0..n).map(|i| Share::new(end(i)..end(i + 1))).collect();
        Shares { of, left: AtomicUsize::new(tasks) }
    }

    /// Does tasks until all are taken, and waits for those of others, but not for long.
    fn work(&self, f: impl Fn(usize)) {
        let own = rayon::current_thread_index().unwrap_or(0) % self.of.len();
        let take = || {
            let others = (own + 1..self.of.len()).chain(0..own);
            let of_others = || others.clone().find_map(|i| self.of[i].take(false));
            self.of[own].take(true).or_else(of_others)
        };
        while let Some(i) = take() {
            f(i);
            self.left.fetch_sub(1, Release);
        }
        let mut idle = Instant::now();
        while self.left.load(Acquire) > 0 && idle.elapsed() < PATIENCE {
            // A task may have tasks of its own, in which this thread can help.
            match rayon::yield_now() {
                Some(rayon::Yield::Executed) => idle = Instant::now(),
                _ => std::thread::yield_now(),
            }
        }
    }
}

/// As [`for_each`], for tasks that are each worth a thread.
pub(super) fn for_tasks(n: usize, task: &(dyn Fn(usize) + Sync)) {
    for_each(n, n.saturating_mul(SMALL), task);
}

/// Does two things, each with tasks of its own, at once. `work` is the effort of both, as for [`for_each`].
pub(super) fn both(work: usize, one: impl Fn() + Sync, other: impl Fn() + Sync) {
    for_each(2, work, |i| if i == 0 { one() } else { other() });
}

/// Covers `0..n` with ranges of `grain` (the last may be shorter).
pub(super) fn for_ranges(n: usize, grain: usize, task: &(dyn Fn(Range<usize>) + Sync)) {
    for_tasks(n.div_ceil(grain), &|i| task(i * grain..((i + 1) * grain).min(n)));
}

/// Copies `n` bytes. The ranges are equal (nothing is copied then) or disjoint.
///
/// # Safety
/// `x` is valid for `n` bytes of reads, `y` for writes.
pub(super) unsafe fn copy(x: Src, y: Dst, n: usize) {
    if x.0 == y.0.cast_const() {
        return;
    }
    for_ranges(n, COPY_BYTES, &|r| {
        // SAFETY: inside both ranges, which are disjoint.
        unsafe { y.at(r.start).0.copy_from_nonoverlapping(x.at(r.start).0, r.len()) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::ThreadPoolBuilder;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn on(threads: usize, f: impl FnOnce() + Send) {
        ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f);
    }

    /// Runs tasks that cost a thread each and checks that each of them runs once.
    fn each_once(n: usize, within: &(dyn Fn(usize) + Sync)) {
        let counts: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
        for_tasks(n, &|i| {
            within(i);
            counts[i].fetch_add(1, Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Relaxed) == 1), "{n}: {counts:?}");
    }

    #[test]
    fn each_task_runs_once() {
        for threads in [1, 2, 3, 8] {
            on(threads, || [0, 1, 2, 7, 8, 9, 1000].iter().for_each(|&n| each_once(n, &|_| ())));
        }
    }

    #[test]
    fn so_does_each_task_of_a_task() {
        for threads in [2, 5] {
            on(threads, || each_once(20, &|i| each_once(i * 3, &|_| ())));
        }
    }

    #[test]
    fn neighbours_go_together() {
        let sums = std::sync::Mutex::new(Vec::new());
        let of = |r: Range<usize>| sums.lock().unwrap().push(r);
        on(3, || in_parallel(1000, 300, &of));
        let mut sums = sums.into_inner().unwrap();
        sums.sort_by_key(|r| r.start);
        assert_eq!(sums, [0..300, 300..600, 600..900, 900..1000]);
    }

    #[test]
    fn a_share_is_taken_from_both_ends() {
        let share = Share::new(3..6);
        let taken = [true, false, true, true].map(|first| share.take(first));
        assert_eq!(taken, [Some(3), Some(5), Some(4), None]);
        assert_eq!(share.take(false), None);
        let shares = Shares::new(10, 4).of;
        let first = |share: &Share| share.take(true).unwrap();
        assert_eq!(shares.iter().map(first).collect::<Vec<_>>(), [0, 2, 5, 7]);
    }

    #[test]
    fn tasks_go_at_once() {
        // Neither ends before the other has begun.
        let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        on(2, || {
            for_tasks(2, &|_| {
                begun.fetch_add(1, Release);
                while begun.load(Acquire) < 2 {
                    std::thread::yield_now();
                }
                done.fetch_add(1, Relaxed);
            });
        });
        assert_eq!(done.into_inner(), 2);
    }

    #[test]
    fn a_panic_of_a_task_reaches_the_caller() {
        for task in [0, 9] {
            let run = || for_tasks(10, &|i| assert_ne!(i, task, "a kernel"));
            on(3, || {
                catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            });
        }
    }
}
