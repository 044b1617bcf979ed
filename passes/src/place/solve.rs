//! From a problem to the best placement found: one-pass heuristics, then the exact search
//! at the lower bound (or a capacity), then searches between that and the best.
//!
//! Parts of time that no lifetime connects are placed apart.

use super::noise::mix;
use super::one_pass::{Fit, Placed, Sequence, one_pass};
use super::problem::{Buffer, Problem};
use super::pyramid::pyramid;
use super::search::{End, ExactSearch, Preference};
use super::skyline::{ValleyChoice, skyline};
use crate::search::Deadline;

/// What to look for, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Stop as soon as the placement is not higher than this, in bytes.
    pub capacity: Option<u64>,
    /// Steps of all searches. With 0 only heuristics run.
    pub work: u64,
    /// Where heuristics end less than so many bytes above the goal, a small part of the steps goes on
    /// looking.
    pub near: u64,
    /// What ends it before.
    pub deadline: Deadline<'a>,
    /// Seed of the searches that stir their preferences.
    pub seed: u64,
}

/// The effort where none is given, in seconds of the reference core.
pub const DEFAULT_EFFORT: f64 = 10.0;

/// Steps for each second of effort.
const WORK_PER_SECOND: f64 = 8e7;

impl<'a> Limits<'a> {
    /// Limits of a search with some effort, in seconds of the reference core.
    pub fn new(effort: f64, capacity: Option<u64>, deadline: Deadline<'a>) -> Limits<'a> {
        Limits { capacity, work: (effort * WORK_PER_SECOND) as u64, near: 0, deadline, seed: 0 }
    }
}

/// A placement with what is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// First byte of each buffer.
    pub offsets: Vec<u64>,
    /// What the placement takes, in bytes.
    pub height: u64,
    /// No placement is lower.
    pub optimal: bool,
    /// No placement is within the capacity.
    pub impossible: bool,
    /// What found it.
    pub method: &'static str,
}

impl Solution {
    /// The placement by one method, with what the bound says about it and, if there is one, about the
    /// capacity, in bytes.
    pub fn of(
        p: &Problem,
        offsets: Vec<u64>,
        method: &'static str,
        capacity: Option<u64>,
    ) -> Solution {
        let height = p.height(&offsets);
        let impossible = capacity.is_some_and(|c| c < p.bound());
        Solution { offsets, height, optimal: height == p.bound(), impossible, method }
    }
}

/// The best placement within the limits. Some heuristics always run.
///
/// Hints are followed together where no higher arena follows from that.
pub fn solve(p: &Problem, limits: &Limits) -> Solution {
    let Some(hinted) = with_hints(p) else { return solve_free(p, limits) };
    let half = Limits { work: limits.work / 2, ..*limits };
    let followed = solve_free(&hinted, &half);
    let goal = limits.capacity.unwrap_or(0).max(p.bound());
    if followed.height <= goal {
        return Solution { optimal: followed.height == p.bound(), ..followed };
    }
    let free = solve_free(p, &half);
    if followed.height > free.height {
        return free;
    }
    Solution { optimal: free.optimal, impossible: free.impossible, ..followed }
}

/// The problem with every hint fixed that fits with those before it.
fn with_hints(p: &Problem) -> Option<Problem> {
    let mut buffers = p.buffers().to_vec();
    let hinted = |b: &Buffer| b.hint.filter(|_| b.offset.is_none() && b.size > 0);
    let wishes: Vec<usize> =
        (0..buffers.len()).filter(|&i| hinted(&buffers[i]).is_some()).collect();
    if wishes.is_empty() {
        return None;
    }
    for &i in &wishes {
        buffers[i].offset = buffers[i].hint;
    }
    // Mostly all hints fit together, and one look is enough.
    if let Ok(all) = Problem::new(buffers.clone()) {
        return Some(all);
    }
    for &i in &wishes {
        buffers[i].offset = None;
    }
    let mut placed = Placed::new(p, u64::MAX);
    for (i, b) in buffers.iter().enumerate() {
        if let Some(at) = b.offset {
            placed.put(i, at);
        }
    }
    for &i in &wishes {
        let at = buffers[i].hint.unwrap_or(0);
        if at.is_multiple_of(buffers[i].alignment) && placed.is_free(i, at) {
            buffers[i].offset = Some(at);
            placed.put(i, at);
        }
    }
    Problem::new(buffers).ok()
}

fn solve_free(p: &Problem, limits: &Limits) -> Solution {
    let goal = limits.capacity.unwrap_or(0).max(p.bound());
    let beyond = limits.capacity.is_some_and(|c| c < p.bound());
    let mut parts: Vec<Part> = p.parts().into_iter().map(Part::new).collect();
    for part in &mut parts {
        part.portfolio(goal);
    }
    // The highest part decides; the others need not be lower than the goal.
    let Limits { work, deadline, seed, .. } = *limits;
    let near = if limits.capacity.is_some() { 0 } else { limits.near };
    let mut clock = Clock { work: if beyond { 0 } else { work }, near, deadline, seed };
    let mut open: Vec<&mut Part> = parts.iter_mut().filter(|part| part.height > goal).collect();
    open.sort_by_key(|part| part.problem.buffers().len());
    let mut left = open.len() as u64;
    for part in open {
        let mut share = Clock { work: clock.work / left, ..clock };
        clock.work -= share.work;
        part.improve(goal, &mut share);
        clock.work += share.work;
        left -= 1;
        if part.least > goal && limits.capacity.is_some() {
            break; // no part can mend that
        }
    }
    let mut offsets: Vec<u64> = p.buffers().iter().map(|b| b.offset.unwrap_or(0)).collect();
    for part in &parts {
        for (&i, &at) in part.buffers.iter().zip(&part.offsets) {
            offsets[i as usize] = at;
        }
    }
    let height = p.height(&offsets);
    let least = parts.iter().map(|part| part.least).max().unwrap_or(0).max(p.bound());
    let highest = parts.iter().max_by_key(|part| part.height);
    Solution {
        offsets,
        height,
        optimal: height == least,
        impossible: limits.capacity.is_some_and(|c| c < least),
        method: highest.map_or("nothing", |part| part.method),
    }
}

/// What is left of the limits.
#[derive(Clone, Copy)]
struct Clock<'a> {
    work: u64,
    near: u64,
    deadline: Deadline<'a>,
    seed: u64,
}

impl Clock<'_> {
    fn spent(&self) -> bool {
        self.work == 0 || self.deadline.is_over()
    }
}

/// Neighbours that the one-pass heuristics may look at in all, per buffer and at least;
/// the ones on a skyline are cheap and always run.
const ONE_PASS_WORK: (u64, u64) = (300, 30_000_000);

/// Neighbours that the portfolio may look at for so many buffers.
pub(crate) fn one_pass_work(buffers: usize) -> u64 {
    ONE_PASS_WORK.1.max(ONE_PASS_WORK.0 * buffers as u64)
}

/// What the portfolio tries with neighbours, the most promising first.
pub(crate) const ONE_PASS: [(&str, (Sequence, Fit)); 10] = [
    ("best_fit_by_lifetime", (Sequence::Lifetime, Fit::Best)),
    ("best_fit_by_size", (Sequence::Size, Fit::Best)),
    ("first_fit_by_size", (Sequence::Size, Fit::First)),
    ("first_fit_by_area", (Sequence::Area, Fit::First)),
    ("best_fit_by_area", (Sequence::Area, Fit::Best)),
    ("first_fit_by_lifetime", (Sequence::Lifetime, Fit::First)),
    ("best_fit_by_start", (Sequence::Start, Fit::Best)),
    ("best_fit_by_end", (Sequence::End, Fit::Best)),
    ("first_fit_by_start", (Sequence::Start, Fit::First)),
    ("first_fit_by_end", (Sequence::End, Fit::First)),
];

const SKYLINES: [(&str, ValleyChoice); 3] = [
    ("skyline_by_area", ValleyChoice::Area),
    ("skyline_by_lifetime", ValleyChoice::Lifetime),
    ("skyline_by_size", ValleyChoice::Size),
];

/// Stirred skylines that are tried, and what one counts for per buffer.
const STIRRED: (u64, u64) = (100, 100);

/// Buffers whose lifetimes hang together, with their best placement.
struct Part {
    /// Their indices in the whole.
    buffers: Vec<u32>,
    problem: Problem,
    offsets: Vec<u64>,
    height: u64,
    /// No placement is lower, as far as is proved.
    least: u64,
    method: &'static str,
}

impl Part {
    fn new((buffers, problem): (Vec<u32>, Problem)) -> Part {
        let least = problem.bound();
        Part { buffers, problem, offsets: Vec::new(), height: u64::MAX, least, method: "nothing" }
    }

    /// Keeps a placement that is lower; true once the goal is met.
    fn keep(&mut self, offsets: Vec<u64>, method: &'static str, goal: u64) -> bool {
        let height = self.problem.height(&offsets);
        if height < self.height {
            (self.offsets, self.height, self.method) = (offsets, height, method);
        }
        self.height <= goal
    }

    fn portfolio(&mut self, goal: u64) {
        for (method, choice) in SKYLINES {
            if self.keep(skyline(&self.problem, choice, 0), method, goal) {
                return;
            }
        }
        let mut work = one_pass_work(self.buffers.len());
        let pyramid = pyramid(&self.problem);
        let size = (Sequence::Size, Fit::Best);
        let all = ONE_PASS.into_iter().map(|(method, pass)| (method, pass, &[][..]));
        for (method, pass, base) in all.chain([("pyramid", size, &pyramid[..])]) {
            let Some(offsets) = one_pass(&self.problem, pass, base, &mut work) else { return };
            if self.keep(offsets, method, goal) {
                return;
            }
        }
    }

    /// Brings the part down to the goal, or as far as the clock allows.
    fn improve(&mut self, goal: u64, clock: &mut Clock) {
        let n = self.buffers.len() as u64;
        for seed in 1..=STIRRED.0 {
            let cost = STIRRED.1 * n;
            if clock.work < 2 * cost || clock.spent() {
                break;
            }
            clock.work -= cost;
            let (method, choice) = SKYLINES[(seed % 3) as usize];
            if self.keep(skyline(&self.problem, choice, seed), method, goal) {
                return;
            }
        }
        if self.height - goal < clock.near {
            clock.work /= NEAR_SHARE;
        }
        let mut search = ExactSearch::new(&self.problem);
        if search.dive() > clock.work {
            return;
        }
        // Most of the time at the goal, the rest between it and the best.
        let rest = clock.work / 4;
        clock.work -= rest;
        self.attempt(&mut search, goal, clock);
        clock.work += rest;
        let mut capacity = goal.saturating_add(1).max(self.least);
        while self.height > goal && capacity < self.height && !clock.spent() {
            let middle = capacity + (self.height - 1 - capacity) / 2;
            let mut share = Clock { work: clock.work.div_ceil(4), ..*clock };
            clock.work -= share.work;
            if !self.attempt(&mut search, middle, &mut share) {
                capacity = middle + 1;
            }
            clock.work += share.work;
        }
    }

    /// Searches for a placement within the capacity, with short dives in many preferences.
    fn attempt(&mut self, search: &mut ExactSearch, capacity: u64, clock: &mut Clock) -> bool {
        let mut limit = FIRST_DIVES * search.dive();
        for round in 0.. {
            // The preferences as they are, then stirred anew in each round.
            let seed = if round == 0 { 0 } else { mix(clock.seed).wrapping_add(round).max(1) };
            for preference in Preference::ALL {
                if clock.spent() {
                    return false;
                }
                let work = limit.min(clock.work);
                let (end, spent) = search.run(capacity, preference, seed, work, &clock.deadline);
                clock.work = clock.work.saturating_sub(spent);
                match end {
                    End::Placed(offsets) => return self.keep(offsets, "search", capacity),
                    End::Impossible => {
                        // Gaps might have helped.
                        if self.problem.buffers().iter().all(|b| b.gaps.is_empty()) {
                            self.least = self.least.max(capacity + 1);
                        }
                        return false;
                    }
                    End::Undecided => {}
                }
            }
            limit += limit / 50;
        }
        false
    }
}

/// One in so many steps is for bytes that hardly anybody sees ([`Limits::near`]).
const NEAR_SHARE: u64 = 20;

/// The work of the first searches, in that of going down once without turning back.
const FIRST_DIVES: u64 = 4;
