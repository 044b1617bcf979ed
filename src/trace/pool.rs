//! The pool that a plan would give: the blocks of one iteration as buffers to place, with
//! lifetimes that go around its end.
//!
//! A block of the pool serves a malloc in every iteration, at the same address. Where its
//! bytes are freed in the next iteration only, it is in use from the iteration's beginning
//! to that free and again from its malloc on, with a gap between. Where they live longer
//! than an iteration, several blocks take turns, each of them in use all the time. What
//! was allocated before the repetition and is not freed within it persists.

use super::{Block, By, Iterations, Kind, Trace};
use arenic_passes::place::{Buffer, Gap, Invalid, Problem, Solution};
use std::ops::Range;

/// A block of the pool.
#[derive(Clone, Debug)]
pub struct Slot {
    /// `NAME@EVENT` of the recorded block that it first serves, or `NAME@startN` of one that
    /// was there before the recording; then `.K`, where K others take turns with it.
    pub id: String,
    /// Its size and its lifetime, in events from the beginning of the first iteration.
    pub buffer: Buffer,
}

/// What has to be placed.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// The blocks.
    pub slots: Vec<Slot>,
    /// Bytes of blocks that persist, rounded up to the alignment.
    pub persistent: u64,
    /// Bytes of small blocks that differ from iteration to iteration, at most alive at once.
    /// They are left to an ordinary allocator.
    pub unplanned: u64,
    /// Bytes that each iteration allocates and leaves for good.
    pub leaked: u64,
    /// Events of an iteration.
    length: i64,
}

/// A placement of all blocks.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The blocks in order; height in bytes. What it says is about all of them.
    pub solution: Solution,
    /// What no placement is lower than: the largest sum of bytes alive at once.
    pub bound: u64,
    /// The problem.
    pub problem: Problem,
}

impl Needs {
    /// What an iteration needs; offsets are multiples of `alignment`.
    pub fn of_iteration(trace: &Trace, iterations: &Iterations, alignment: u64) -> Needs {
        let length = iterations.at.events as i64;
        let mut needs = Needs { length, ..Needs::default() };
        let time = |slot: usize| iterations.time(slot) as i64;
        let mallocs = iterations.mallocs();
        for (i, &life) in iterations.lives.iter().enumerate() {
            let block = iterations.block(trace, i);
            let id = id(block, i);
            if iterations.kept[i] {
                needs.leaked = needs.leaked.saturating_add(rounded(block, alignment));
            }
            let turns = life.div_ceil(mallocs);
            if turns > 1 {
                for turn in 0..turns {
                    needs.push(format!("{id}.{turn}"), block.size, 0..length, alignment);
                }
            } else if i + life <= mallocs {
                needs.push(id, block.size, time(i)..time(i + life), alignment);
            } else {
                needs.push(id, block.size, 0..length, alignment);
                let gap = time(i + life - mallocs)..time(i);
                let buffer = needs.slots.last_mut().map(|s| &mut s.buffer);
                buffer.into_iter().filter(|_| !gap.is_empty()).for_each(|b| {
                    b.gaps.push(Gap { lower: gap.start, upper: gap.end, window: None });
                });
            }
        }
        let run = &iterations.run;
        for (i, block) in trace.blocks.iter().enumerate() {
            let before = block.malloc.is_none_or(|at| (at as usize) < run.start);
            let after = block.free.is_none_or(|at| at as usize >= run.end);
            if before && after {
                needs.persistent = needs.persistent.saturating_add(rounded(block, alignment));
                needs.push(id(block, i), block.size, 0..length, alignment);
            }
        }
        if let By::Mallocs { least } = iterations.by {
            needs.unplanned = small_peak(trace, run.clone(), least, alignment);
        }
        needs
    }

    /// What the whole trace needs, as if it were one iteration.
    pub fn of_all(trace: &Trace, alignment: u64) -> Needs {
        let length = trace.events.len() as i64;
        let mut needs = Needs { length, ..Needs::default() };
        for (i, block) in trace.blocks.iter().enumerate() {
            let lower = block.malloc.map_or(0, i64::from);
            let upper = block.free.map_or(length, i64::from);
            // Freed by the first event, it was there together with no other.
            if lower < upper {
                needs.push(id(block, i), block.size, lower..upper, alignment);
            }
            if block.malloc.is_none() && block.free.is_none() {
                needs.persistent = needs.persistent.saturating_add(rounded(block, alignment));
            }
        }
        needs
    }

    fn push(&mut self, id: String, size: u64, life: Range<i64>, alignment: u64) {
        let (lower, upper) = (life.start, life.end);
        let buffer = Buffer { lower, upper, size, alignment, ..Buffer::default() };
        self.slots.push(Slot { id, buffer });
    }

    /// Places all blocks: those in use all the time on top of each other, the others by
    /// `place` above them.
    ///
    /// # Errors
    /// The blocks together are beyond 2^60 bytes, or the alignment is none.
    pub fn plan(&self, place: impl FnOnce(&Problem) -> Solution) -> Result<Plan, Invalid> {
        let buffer = |&i: &usize| self.slots[i].buffer.clone();
        let all: Vec<usize> = (0..self.slots.len()).collect();
        let problem = Problem::new(all.iter().map(buffer).collect())?;
        let resident = |b: &Buffer| (b.lower, b.upper) == (0, self.length) && b.gaps.is_empty();
        let (low, high): (Vec<usize>, Vec<usize>) =
            all.into_iter().partition(|&i| resident(&self.slots[i].buffer));
        let mut offsets = vec![0; self.slots.len()];
        let mut top = 0;
        for i in low {
            offsets[i] = top;
            top += self.slots[i].buffer.rounded();
        }
        let rest = Problem::new(high.iter().map(buffer).collect())?;
        let solution = place(&rest);
        for (i, at) in high.into_iter().zip(&solution.offsets) {
            offsets[i] = top + at;
        }
        let height = top + solution.height;
        let bound = problem.bound();
        Ok(Plan { solution: Solution { offsets, height, ..solution }, bound, problem })
    }
}

fn rounded(block: &Block, alignment: u64) -> u64 {
    block.size.next_multiple_of(alignment)
}

fn id(block: &Block, index: usize) -> String {
    match block.malloc {
        Some(event) => format!("{}@{event}", block.name),
        None => format!("{}@start{index}", block.name),
    }
}

/// The most bytes alive at once of blocks below `least` bytes that these events allocate.
fn small_peak(trace: &Trace, events: Range<usize>, least: u64, alignment: u64) -> u64 {
    let (mut live, mut peak) = (0u64, 0u64);
    for i in events.clone() {
        let block = trace.block(i);
        let inside = block.malloc.is_some_and(|at| events.contains(&(at as usize)));
        if !inside || block.size >= least {
            continue;
        }
        match trace.events[i].kind {
            Kind::Malloc => live = live.saturating_add(rounded(block, alignment)),
            Kind::Free => live = live.saturating_sub(rounded(block, alignment)),
            Kind::Read | Kind::Write => {}
        }
        peak = peak.max(live);
    }
    peak
}
