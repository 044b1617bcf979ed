//! Consecutive operators as one node of the program, so that there are as many nodes as it can have.

use arenic_passes::Search;
use arenic_passes::recompute::{Meter, RecomputeStep};
use std::ops::Range;

/// Consecutive operators, which run together.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Operators, by position.
    pub(super) ops: Range<usize>,
    /// All of it may run again: what other blocks read of it can be computed again.
    pub(super) again: bool,
    /// The first block that overwrites a state that this one reads: it does not run after that.
    pub(super) until: usize,
    /// Earlier blocks that make what it reads, increasing.
    pub(super) reads: Vec<usize>,
    /// What it makes for later blocks, but for what is there until the step ends.
    pub(super) tensors: Vec<Made>,
    /// Bytes while it runs beyond those that the program counts; less than none where results
    /// take over an operand's bytes.
    pub(super) beside: f64,
    /// Seconds of its operators that may run again.
    pub(super) seconds: f64,
}

/// A tensor that later blocks read.
#[derive(Clone, Debug)]
pub(super) struct Made {
    bytes: u64,
    /// Blocks, increasing.
    readers: Vec<usize>,
}

impl Made {
    fn is_read_from(&self, stage: usize) -> bool {
        self.readers.last().is_some_and(|&last| last >= stage)
    }
}

impl Block {
    /// Bytes that it makes for later blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|x| x.bytes).sum()
    }

    /// Bytes that are kept of it as a stage begins: what first runs still read, else what repeats do.
    pub(super) fn kept(&self, stage: usize) -> u64 {
        let read = self.tensors.iter().filter(|x| x.is_read_from(stage));
        match read.map(|x| x.bytes).sum() {
            0 => self.bytes(),
            bytes => bytes,
        }
    }
}

/// The step in at most so many blocks, and the bytes that are there as each one runs whatever is dropped.
pub(super) fn blocks(step: &RecomputeStep, most: usize) -> (Vec<Block>, Vec<f64>) {
    let cut = merged(step, most);
    let mut block_of = vec![0; step.operators()];
    for (b, ops) in cut.iter().enumerate() {
        block_of[ops.clone()].fill(b);
    }
    let readers = readers(step);
    let mut blocks: Vec<Block> =
        cut.into_iter().map(|ops| block(step, &block_of, &readers, ops)).collect();
    let always = always(step, &block_of, &readers, blocks.len());
    let beside = beside(step, &blocks, &always);
    blocks.iter_mut().zip(beside).for_each(|(block, beside)| block.beside = beside);
    (blocks, always)
}

/// Neighbours that make the fewest bytes are merged first; what may run again and what may not counts double.
fn merged(step: &RecomputeStep, most: usize) -> Vec<Range<usize>> {
    let made = |ops: &Range<usize>| -> u64 {
        let made = ops.clone().flat_map(|op| step.writes.row(op));
        made.filter(|&&x| !step.pinned[x as usize]).map(|&x| step.bytes[x as usize]).sum()
    };
    let again = |ops: &Range<usize>| ops.clone().all(|op| step.may_repeat(op as u32));
    let mut cut: Vec<Range<usize>> = (0..step.operators()).map(|op| op..op + 1).collect();
    while cut.len() > most.max(1) {
        let price = |&i: &usize| {
            let (a, b) = (&cut[i], &cut[i + 1]);
            let times = if again(a) == again(b) { 1 } else { 2 };
            times * (made(a) + made(b))
        };
        let Some(i) = (0..cut.len() - 1).min_by_key(price) else { break };
        cut[i].end = cut[i + 1].end;
        cut.remove(i + 1);
    }
    cut
}

/// The operators that read each tensor.
fn readers(step: &RecomputeStep) -> Vec<Vec<usize>> {
    let mut readers = vec![Vec::new(); step.tensors()];
    for op in 0..step.operators() {
        step.reads.row(op).iter().for_each(|&x| readers[x as usize].push(op));
    }
    readers
}

fn block(
    step: &RecomputeStep,
    block_of: &[usize],
    readers: &[Vec<usize>],
    ops: Range<usize>,
) -> Block {
    let own = |op: &usize| ops.contains(op);
    let rows = || ops.clone().flat_map(|op| step.reads.row(op));
    let producers = rows().filter_map(|&x| step.producer[x as usize]).map(|op| op as usize);
    let mut reads: Vec<usize> = producers.filter(|op| !own(op)).map(|op| block_of[op]).collect();
    reads.sort_unstable();
    reads.dedup();
    let made = ops.clone().flat_map(|op| step.writes.row(op));
    let tensors = made.filter(|&&x| !step.pinned[x as usize]).map(|&x| {
        let others = readers[x as usize].iter().filter(|op| !own(op));
        let mut readers: Vec<usize> = others.map(|&op| block_of[op]).collect();
        readers.dedup();
        Made { bytes: step.bytes[x as usize], readers }
    });
    let tensors = tensors.filter(|x| !x.readers.is_empty()).collect();
    let repeated = || ops.clone().filter(|&op| step.may_repeat(op as u32));
    let until = repeated().filter_map(|op| step.overwritten_by(op as u32)).min();
    Block {
        again: repeated().count() == ops.len(),
        until: until.map_or(usize::MAX, |op| block_of[op as usize]),
        reads,
        tensors,
        beside: 0.0,
        seconds: repeated().map(|op| step.seconds[op]).sum(),
        ops,
    }
}

/// Bytes that no block makes again: what is resident, inputs until their last reader, or until the step ends where one of
/// those may run again, and results that stay.
fn always(
    step: &RecomputeStep,
    block_of: &[usize],
    readers: &[Vec<usize>],
    blocks: usize,
) -> Vec<f64> {
    let mut always = vec![step.resident as f64; blocks];
    let mut add = |from: usize, to: usize, x: u32| {
        let span = always.iter_mut().take(to).skip(from);
        span.for_each(|bytes| *bytes += step.bytes[x as usize] as f64);
    };
    for &x in &step.inputs {
        let again = readers[x as usize].iter().any(|&op| step.may_repeat(op as u32));
        let last = readers[x as usize].iter().map(|&op| block_of[op] + 1).max();
        add(0, if again { blocks } else { last.unwrap_or(0) }, x);
    }
    for (op, &block) in block_of.iter().enumerate() {
        let pinned = step.writes.row(op).iter().filter(|&&x| step.pinned[x as usize]);
        pinned.for_each(|&x| add(block + 1, blocks, x));
    }
    always
}

/// What each block takes beyond what the program counts while nothing is dropped.
fn beside(step: &RecomputeStep, blocks: &[Block], always: &[f64]) -> Vec<f64> {
    let whole: Vec<u32> = (0..step.operators() as u32).collect();
    let mut meter = Meter::new(step, Search::default());
    meter.measure(&whole, u64::MAX);
    let beside = |(k, block): (usize, &Block)| {
        let most = meter.live[block.ops.clone()].iter().copied().max().unwrap_or(0);
        let earlier = blocks[..k].iter().flat_map(|b| &b.tensors);
        let held: u64 = earlier.filter(|x| x.is_read_from(k)).map(|x| x.bytes).sum();
        most as f64 - always[k] - held as f64 - block.bytes() as f64
    };
    blocks.iter().enumerate().map(beside).collect()
}
