//! A schedule of copies improved by integer programs over some tensors at a time.

use super::program::{Copies, Leaves, Swap, solve};
use super::windows::windows;
use arenic_passes::residency::{
    Fetch, Gap, Prediction, ResidencyChoice, Room, Script, Store, Timeline, Walker,
};
use arenic_passes::search::Budget;
use arenic_passes::{Problem, mip};

/// The most effort of one program, in seconds of the reference core.
const PROGRAM_EFFORT: f64 = 4.0;

/// Programs decide on tensors of at least one part in so many of the largest.
const SMALLEST: u64 = 500;

/// A choice with when its copies are issued.
#[derive(Clone)]
pub(super) struct Schedule {
    pub(super) choice: ResidencyChoice,
    pub(super) script: Script,
    pub(super) promise: Prediction,
}

/// A tensor's gap.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Site {
    x: usize,
    gap: usize,
    after: u32,
    before: u32,
}

/// Improves schedules of a problem.
pub(super) struct Swaps<'a> {
    p: &'a Problem<'a>,
    /// Tensors of a program.
    size: usize,
    budget: Budget<'a>,
    walker: Walker<'a>,
    room: Room,
    /// How many there were, and how many of them had no answer.
    pub(super) programs: u64,
    pub(super) unanswered: u64,
}

impl<'a> Swaps<'a> {
    pub(super) fn new(p: &'a Problem<'a>, size: usize, budget: Budget<'a>) -> Self {
        let (walker, room) = (Walker::new(&p.t), Room::new(&p.t, p.device));
        Swaps { p, size, budget, walker, room, programs: 0, unanswered: 0 }
    }

    /// The best of some choices, scheduled as `Room` does.
    pub(super) fn best(
        &mut self,
        choices: impl Iterator<Item = ResidencyChoice>,
        limit: u64,
    ) -> Option<Schedule> {
        let schedules = choices.filter_map(|choice| self.scheduled(choice, limit));
        schedules.reduce(|a, b| if b.promise.is_better_than(&a.promise) { b } else { a })
    }

    fn scheduled(&mut self, choice: ResidencyChoice, limit: u64) -> Option<Schedule> {
        let script = self.walker.walk(&choice)?;
        self.room.schedule(script, limit);
        let promise = self.room.predict(script, limit);
        Some(Schedule { choice, script: script.clone(), promise })
    }

    /// A schedule that is no worse.
    pub(super) fn improve(&mut self, start: Schedule, limit: u64) -> Schedule {
        let kernels = self.p.t.start.last().copied().unwrap_or(0.0);
        let mut schedule = start;
        let windows = windows(&sites(&self.p.t, &schedule.choice), self.size);
        // Windows in a row that brought nothing.
        let mut vain = 0;
        for window in windows.iter().cycle() {
            let hidden = schedule.promise.seconds <= kernels * (1.0 + 1e-6);
            let best = schedule.promise.over == 0 && hidden;
            if best || vain == windows.len() || self.budget.is_over() {
                break;
            }
            vain += 1;
            for new in self.solve(&schedule, window, limit) {
                if is_better(&new.promise, &schedule.promise) {
                    (schedule, vain) = (new, 0);
                }
            }
        }
        schedule
    }

    /// What a window's program proposes, with its times and with those that `Room` gives.
    fn solve(&mut self, now: &Schedule, window: &[Site], limit: u64) -> Vec<Schedule> {
        let Some((swaps, copies)) = self.window(now, window) else { return Vec::new() };
        let most = PROGRAM_EFFORT;
        let limits = mip::Limits { most, ..mip::Limits::new(&self.budget, self.p.cx.search.seed) };
        self.programs += 1;
        let Ok(found) = solve(&swaps, &copies, limit, &limits) else {
            // The schedule stays as it is.
            self.unanswered += 1;
            return Vec::new();
        };
        let mut choice = now.choice.clone();
        for (site, leaves) in window.iter().zip(&found) {
            let swap = Gap::Swap { hold: false };
            choice.gaps[site.gap] = if leaves.is_some() { swap } else { Gap::Keep };
        }
        let by_room = self.scheduled(choice.clone(), limit);
        let Some(script) = self.walker.walk(&choice) else { return Vec::new() };
        keep_times(script, &now.script);
        for (swap, leaves) in swaps.iter().zip(&found) {
            if let Some(leaves) = leaves {
                set_times(script, swap, leaves);
            }
        }
        let promise = self.room.predict(script, limit);
        let as_proposed = Schedule { choice, script: script.clone(), promise };
        by_room.into_iter().chain([as_proposed]).collect()
    }

    /// A window's gaps as they are now, and all other copies with the live bytes that they
    /// leave; `None` where a state's value would be lost.
    fn window(&mut self, now: &Schedule, window: &[Site]) -> Option<(Vec<Swap>, Copies)> {
        let t = &self.p.t;
        let mut kept = now.choice.clone();
        window.iter().for_each(|s| kept.gaps[s.gap] = Gap::Keep);
        let script = self.walker.walk(&kept)?;
        keep_times(script, &now.script);
        let positions: Vec<u32> = script.steps.iter().map(|s| t.position[s.task]).collect();
        let step = |p: u32| positions.partition_point(|&q| q < p);
        let swaps = window.iter().map(|site| {
            let (first, end) = (step(site.after + 1), step(site.before));
            let leaves = (now.choice.gaps[site.gap] != Gap::Keep).then(|| {
                let store =
                    now.script.stores.iter().find(|s| s.tensor == site.x && s.left == first);
                let fetch =
                    now.script.fetches.iter().find(|f| f.tensor == site.x && f.before == end);
                Leaves {
                    release: store.map_or(first, |s| s.release),
                    issue: fetch.map_or(end, |f| f.from),
                }
            });
            // An earlier copy in host memory is as good.
            let stored = t.tensors[site.x].homed
                || script.stores.iter().any(|s| s.tensor == site.x && s.before <= first);
            let (out, back) = self.room.copy_seconds(site.x);
            let out = if stored { 0.0 } else { out };
            Swap { x: site.x, bytes: t.tensors[site.x].bytes, first, end, out, back, now: leaves }
        });
        let stores =
            script.stores.iter().map(|s| (s.before, s.release, self.room.copy_seconds(s.tensor).0));
        let fetches =
            script.fetches.iter().map(|f| (f.from, f.before, self.room.copy_seconds(f.tensor).1));
        let copies = Copies {
            live: self.room.live_with_copies(script),
            seconds: script.steps.iter().map(|s| s.seconds).collect(),
            out: stores.collect(),
            back: fetches.collect(),
        };
        Some((swaps.collect(), copies))
    }
}

/// Gaps whose tensor is large and may leave, the longest of each, by their beginning.
fn sites(t: &Timeline, choice: &ResidencyChoice) -> Vec<Site> {
    let largest = t.tensors.iter().map(|x| x.bytes).max().unwrap_or(0);
    let mut sites = Vec::new();
    for (x, tensor) in t.tensors.iter().enumerate() {
        if tensor.bytes < (largest / SMALLEST).max(1) || tensor.homed && !choice.host_home[x] {
            continue;
        }
        let site = |k: usize| {
            let (after, before) = (tensor.accesses[k], tensor.accesses[k + 1]);
            Site { x, gap: t.gap(x, k), after, before }
        };
        let gaps = (0..tensor.gaps()).filter(|&k| t.may_leave(x, k)).map(site);
        let seconds = |s: &Site| t.start[s.before as usize] - t.start[s.after as usize + 1];
        sites.extend(gaps.max_by(|a, b| seconds(a).total_cmp(&seconds(b))));
    }
    sites.sort_by_key(|s| s.after);
    sites
}

/// Copies that another script has as well are issued when it says.
fn keep_times(script: &mut Script, known: &Script) {
    for store in &mut script.stores {
        let same = |s: &&Store| s.tensor == store.tensor && s.left == store.left;
        store.release = known.stores.iter().find(same).map_or(store.left, |s| s.release);
    }
    for fetch in &mut script.fetches {
        let same = |f: &&Fetch| {
            f.tensor == fetch.tensor && f.before == fetch.before && f.from >= fetch.away
        };
        fetch.from = known.fetches.iter().find(same).map_or(fetch.before, |f| f.from);
    }
}

/// Copies of a swap are issued when a program says.
fn set_times(script: &mut Script, swap: &Swap, leaves: &Leaves) {
    for store in script.stores.iter_mut().filter(|s| s.tensor == swap.x && s.left == swap.first) {
        store.release = leaves.release.max(store.left);
    }
    for fetch in script.fetches.iter_mut().filter(|f| f.tensor == swap.x && f.before == swap.end) {
        fetch.from = leaves.issue.clamp(fetch.away, fetch.before);
    }
}

/// Better by more than rounding.
fn is_better(new: &Prediction, old: &Prediction) -> bool {
    new.over < old.over || new.over == old.over && new.seconds < old.seconds * (1.0 - 1e-9)
}
