//! A step with repeats as a sequence of runs, and the memory that it takes.
//!
//! A run reads what the last run of each operand's producer made, so every sequence in which
//! all operators run first in the plan's order is a step, whatever is repeated and wherever:
//! where nothing makes a tensor again, it stays for its next reader. An operator that only
//! tensors tie to others may also run first at another place, as long as it runs after those that
//! make what it reads and before those that read what it makes.

use super::step::RecomputeStep;
use crate::Search;

/// Operators in the order in which they run; one that comes again is repeated.
pub type Runs = Vec<u32>;

/// What a sequence takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// The most bytes at any time.
    pub peak: u64,
    /// The run at which that is.
    pub(super) at: usize,
    /// Bytes above the limit, summed over runs.
    pub(super) over: u64,
    /// Seconds of all runs.
    pub seconds: f64,
}

impl Load {
    /// Less above the limit, then faster.
    pub(super) fn is_better_than(&self, other: &Load) -> bool {
        (self.over, self.seconds) < (other.over, other.seconds)
    }

    /// More above the limit, or slower.
    pub(super) fn is_worse_than(&self, other: &Load) -> bool {
        other.is_better_than(self)
    }
}

/// A sequence with what it takes.
#[derive(Clone, Debug, Default)]
pub(super) struct RepeatCandidate {
    pub(super) runs: Runs,
    pub(super) load: Load,
}

/// A tensor from the run that makes it to the last one that reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub(super) tensor: u32,
    /// The run that makes it; 0 for an input.
    pub(super) made: u32,
    /// The last run that reads it, or that makes it; the number of runs where it is there
    /// when the step ends.
    pub(super) last: u32,
}

/// No copy yet.
const NONE: u32 = u32::MAX;

/// Measures sequences; its tables are kept between them.
pub struct Meter<'a> {
    pub(super) step: &'a RecomputeStep<'a>,
    search: Search<'a>,
    /// Every copy of the sequence measured last, by the run that makes it.
    pub(super) copies: Vec<Copy>,
    /// Bytes while each run runs.
    pub live: Vec<u64>,
    /// The copies that runs read, and where those of each run begin.
    read: Vec<u32>,
    first_read: Vec<u32>,
    current: Vec<u32>,
    /// Runs measured so far.
    pub(super) measured: u64,
    needed: Vec<bool>,
    left: Vec<u32>,
}

impl<'a> Meter<'a> {
    /// Measures sequences of a step.
    pub fn new(step: &'a RecomputeStep<'a>, search: Search<'a>) -> Self {
        Meter {
            step,
            search,
            copies: Vec::new(),
            live: Vec::new(),
            read: Vec::new(),
            first_read: Vec::new(),
            current: Vec::new(),
            measured: 0,
            needed: Vec::new(),
            left: Vec::new(),
        }
    }

    /// True where someone asked to stop: what measures sequences ends then.
    pub(super) fn is_stopped(&self) -> bool {
        self.search.is_stopped()
    }

    /// What a sequence takes under a limit.
    pub fn measure(&mut self, runs: &[u32], limit: u64) -> Load {
        self.measured += runs.len() as u64;
        self.follow(runs);
        let step = self.step;
        let mut live = step.resident;
        let mut load = Load::default();
        let inputs = self.copies.iter().take_while(|c| step.producer[c.tensor as usize].is_none());
        live += inputs.map(|c| step.bytes[c.tensor as usize]).sum::<u64>();
        load.peak = live;
        let mut next = step.inputs.len();
        self.live.clear();
        for (i, &op) in runs.iter().enumerate() {
            let first = next;
            while let Some(copy) = self.copies.get(next).filter(|c| c.made == i as u32) {
                live += step.bytes[copy.tensor as usize];
                next += 1;
            }
            let now = live - self.shared(i, op);
            self.live.push(now);
            load.over += now.saturating_sub(limit);
            if now > load.peak {
                (load.peak, load.at) = (now, i);
            }
            load.seconds += step.seconds[op as usize];
            let read =
                self.read[self.first_read[i] as usize..self.first_read[i + 1] as usize].iter();
            for c in read.copied().chain(first as u32..next as u32) {
                let copy = self.copies[c as usize];
                if copy.last == i as u32 {
                    live -= step.bytes[copy.tensor as usize];
                }
            }
        }
        load
    }

    /// Finds the copies of a sequence.
    fn follow(&mut self, runs: &[u32]) {
        let step = self.step;
        self.copies.clear();
        self.read.clear();
        self.first_read.clear();
        self.current.clear();
        self.current.resize(step.tensors(), NONE);
        for &x in &step.inputs {
            self.current[x as usize] = self.copies.len() as u32;
            self.copies.push(Copy { tensor: x, made: 0, last: 0 });
        }
        for (i, &op) in runs.iter().enumerate() {
            self.first_read.push(self.read.len() as u32);
            for &x in step.reads.row(op as usize) {
                let c = self.current[x as usize];
                if let Some(copy) = self.copies.get_mut(c as usize) {
                    copy.last = copy.last.max(i as u32);
                    self.read.push(c);
                }
            }
            for &x in step.writes.row(op as usize) {
                let kept = step.pinned[x as usize];
                let last = if kept && self.current[x as usize] == NONE { runs.len() } else { i };
                if !kept || last > i {
                    self.current[x as usize] = self.copies.len() as u32;
                }
                self.copies.push(Copy { tensor: x, made: i as u32, last: last as u32 });
            }
        }
        self.first_read.push(self.read.len() as u32);
    }

    /// Bytes that results of a run take over from operands that die in it.
    fn shared(&self, i: usize, op: u32) -> u64 {
        let (mut bytes, mut taken) = (0, [NONE; 4]);
        let mut used = 0;
        let read = &self.read[self.first_read[i] as usize..self.first_read[i + 1] as usize];
        for &(x, y) in self.step.pairs.row(op as usize) {
            let dies = |&&c: &&u32| {
                let copy = self.copies[c as usize];
                copy.tensor == x && copy.last == i as u32
            };
            if used + 2 <= taken.len()
                && !taken.contains(&x)
                && !taken.contains(&y)
                && read.iter().any(|c| dies(&c))
            {
                (taken[used], taken[used + 1]) = (x, y);
                used += 2;
                bytes += self.step.bytes[x as usize].min(self.step.bytes[y as usize]);
            }
        }
        bytes
    }

    /// The copies that a run reads, of the sequence measured last.
    pub(super) fn read_by(&self, i: usize) -> &[u32] {
        &self.read[self.first_read[i] as usize..self.first_read[i + 1] as usize]
    }

    /// Leaves out runs that nothing needs, but for one of each operator.
    pub fn drop_dead(&mut self, runs: &mut Runs) {
        let step = self.step;
        self.needed.clear();
        self.needed.resize(step.tensors(), false);
        self.left.clear();
        self.left.resize(step.operators(), 0);
        runs.iter().for_each(|&op| self.left[op as usize] += 1);
        let mut kept = vec![false; step.operators()];
        let mut end = runs.len();
        for i in (0..runs.len()).rev() {
            let o = runs[i] as usize;
            self.left[o] -= 1;
            let first = self.left[o] == 0;
            let made = |x: &&u32| first || !step.pinned[**x as usize];
            let writes = || step.writes.row(o).iter().filter(made);
            let wanted = writes().any(|&x| self.needed[x as usize]);
            if wanted || first && !(step.moves[o] && kept[o]) {
                kept[o] = true;
                writes().for_each(|&x| self.needed[x as usize] = false);
                step.reads.row(o).iter().for_each(|&x| self.needed[x as usize] = true);
                end -= 1;
                runs[end] = runs[i];
            }
        }
        runs.drain(..end);
    }
}
