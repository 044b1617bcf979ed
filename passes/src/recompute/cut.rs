//! What is held across a moment of the step, and what is computed again after it, by least cuts.
//!
//! At a moment, what later runs read of earlier ones is held or made again; what is made
//! again needs operands that are held or made again themselves. With a price for each byte
//! that is held, the cheapest way is a least cut: an operator on the sink's side runs again,
//! and a tensor is held where its maker is on the source's side and a reader on the sink's.
//! PyTorch's partitioner cuts so between the forward and the backward pass (He and Yu,
//! "Transcending runtime-memory tradeoffs in checkpointing by being fusion aware", 2023);
//! here the moment is any, and the price is the one at which what is held fits.
//!
//! The cut of a price, less the price of all bytes that may be held, is a lower bound on the
//! seconds of repeats (Lagrange): prices are multipliers of the constraint on bytes. Where
//! the cut is of the graph, not of a sequence, the bound is one for every order ([`bound`]).

use super::step::RecomputeStep;
use crate::flow::{Network, SINK, SOURCE, UNLIMITED};

/// Seconds of all operators together, in ticks: units of a cut.
const TICKS: f64 = (1u64 << 36) as f64;

/// Bytes at their price come to no more ticks.
const MOST_TICKS: f64 = (1u64 << 59) as f64;

/// Prices that are tried for one cut.
const PRICES: usize = 16;

/// What a cheaper cut has to save of what the dearest one costs.
const CLOSE: f64 = 1e-4;

/// Arcs that a search for one flow may look at.
const ARCS: u64 = 200_000_000;

/// What is needed after a moment.
#[derive(Clone)]
pub(super) struct Needs<'a> {
    pub(super) step: &'a RecomputeStep<'a>,
    /// Tensors that are read after it, and what is held of them for another reason.
    pub(super) read: Vec<u32>,
    /// Tensors that are there at no price.
    pub(super) there: Vec<bool>,
    /// Seconds of each operator, if it runs again; `None` if it cannot.
    pub(super) again: Vec<Option<f64>>,
}

/// What is made again at a price.
#[derive(Clone, Debug, Default)]
pub(super) struct Cut {
    /// The operators that run again.
    pub(super) again: Vec<u32>,
    /// Bytes that are held.
    pub(super) held: u64,
    /// How long the operators take, in ticks.
    ticks: f64,
}

/// A network of what is needed, for one price after another.
pub(super) struct Cutter<'a> {
    needs: &'a Needs<'a>,
    /// Operators that could run again.
    ops: Vec<u32>,
    /// Tensors that one of them or a later run reads.
    tensors: Vec<u32>,
    /// The operator that could make each of them again, by its index in `ops`.
    maker: Vec<Option<usize>>,
    /// Who reads each of them, by indices: an operator, or none for a later run.
    readers: Vec<(usize, Option<usize>)>,
    /// Seconds of all operators, and bytes of all tensors.
    seconds: f64,
    bytes: f64,
    network: Network,
    /// The best lower bound of all prices tried, in seconds.
    pub(super) bound: f64,
    /// Arcs looked at so far.
    pub(super) arcs: u64,
}

impl<'a> Cutter<'a> {
    pub(super) fn new(needs: &'a Needs<'a>) -> Self {
        let step = needs.step;
        let (mut ops, mut tensors) = (Vec::new(), Vec::new());
        let (mut maker, mut readers) = (Vec::new(), Vec::new());
        let (mut op_at, mut tensor_at) = (vec![None; step.operators()], vec![None; step.tensors()]);
        let mut stack: Vec<(u32, Option<usize>)> = needs.read.iter().map(|&x| (x, None)).collect();
        while let Some((x, reader)) = stack.pop() {
            if needs.there[x as usize] {
                continue;
            }
            if let Some(i) = tensor_at[x as usize] {
                readers.push((i, reader));
                continue;
            }
            tensor_at[x as usize] = Some(tensors.len());
            readers.push((tensors.len(), reader));
            tensors.push(x);
            let op = step.maker(x).filter(|&op| needs.again[op as usize].is_some());
            maker.push(op.map(|op| {
                *op_at[op as usize].get_or_insert_with(|| {
                    ops.push(op);
                    let again = Some(ops.len() - 1);
                    stack.extend(step.reads.row(op as usize).iter().map(|&y| (y, again)));
                    ops.len() - 1
                })
            }));
        }
        readers.sort_unstable();
        readers.dedup();
        let seconds: f64 = ops.iter().filter_map(|&op| needs.again[op as usize]).sum();
        let bytes = tensors.iter().map(|&x| step.bytes[x as usize] as f64).sum();
        let (seconds, network) = (seconds.max(f64::MIN_POSITIVE), Network::default());
        Cutter { needs, ops, tensors, maker, readers, seconds, bytes, network, bound: 0.0, arcs: 0 }
    }

    /// The cut at a price, in ticks for each byte; the bound is for `most` bytes.
    fn at(&mut self, price: f64, most: u64) -> Cut {
        let bytes = |x: u32| self.needs.step.bytes[x as usize];
        self.network.clear();
        let ops: Vec<usize> = self.ops.iter().map(|_| self.network.node()).collect();
        let tensors: Vec<usize> = self.tensors.iter().map(|_| self.network.node()).collect();
        for (&node, &op) in ops.iter().zip(&self.ops) {
            let seconds = self.needs.again[op as usize].unwrap_or(0.0);
            self.network.arc(SOURCE, node, (seconds / self.seconds * TICKS) as u64);
        }
        for (i, &x) in self.tensors.iter().enumerate() {
            let maker = self.maker[i].map_or(SOURCE, |op| ops[op]);
            self.network.arc(maker, tensors[i], (bytes(x) as f64 * price) as u64);
        }
        for &(x, reader) in &self.readers {
            self.network.arc(tensors[x], reader.map_or(SINK, |op| ops[op]), UNLIMITED);
        }
        let mut work = ARCS;
        let flow = self.network.flow_without_cycles(&mut work);
        self.arcs += ARCS - work;
        // A flow that is not the greatest is a bound, too.
        let bound = (flow as f64 - price * most as f64) / TICKS * self.seconds;
        self.bound = self.bound.max(bound);
        let sink = self.network.reaching_sink();
        let mut read = vec![false; tensors.len()];
        for &(x, reader) in &self.readers {
            read[x] |= reader.is_none_or(|op| sink[ops[op]]);
        }
        let held = |&i: &usize| read[i] && !self.maker[i].is_some_and(|op| sink[ops[op]]);
        let held = (0..tensors.len()).filter(held).map(|i| bytes(self.tensors[i])).sum();
        let again = ops.iter().zip(&self.ops).filter(|(node, _)| sink[**node]);
        let again: Vec<u32> = again.map(|(_, &op)| op).collect();
        let seconds = |op: &u32| self.needs.again[*op as usize].unwrap_or(0.0);
        let ticks = again.iter().map(seconds).sum::<f64>() / self.seconds * TICKS;
        Cut { again, held, ticks }
    }

    /// The cheapest cut found that holds at most so many bytes; where there is none, the one
    /// that holds the fewest.
    ///
    /// What a cut costs rises with the price along a line. Of two cuts, one that holds too
    /// much and one that does not, the lines cross at the next price. Where no cut is cheaper
    /// there, it is the price at which the bound is best (Cheney and Goldstein, "Newton's method
    /// for convex programming", 1959).
    pub(super) fn within(&mut self, most: u64) -> Cut {
        let mut low = self.keeping_all();
        if low.held <= most {
            return low;
        }
        let mut high = self.at((TICKS / 1024.0).min(MOST_TICKS / self.bytes.max(1.0)), most);
        for _ in 1..PRICES {
            if high.held > most || high.ticks <= low.ticks {
                break;
            }
            let price = (high.ticks - low.ticks) / (low.held - high.held) as f64;
            let cut = self.at(price, most);
            let saved = (low.ticks - cut.ticks) + price * (low.held as f64 - cut.held as f64);
            if saved <= high.ticks * CLOSE {
                break;
            }
            match cut.held <= most {
                true => high = cut,
                false => low = cut,
            }
        }
        high
    }

    /// The cut that has nothing run again.
    fn keeping_all(&self) -> Cut {
        let needs = self.needs;
        let held = needs.read.iter().filter(|&&x| !needs.there[x as usize]);
        let mut held: Vec<u32> = held.copied().collect();
        held.sort_unstable();
        held.dedup();
        let held = held.iter().map(|&x| needs.step.bytes[x as usize]).sum();
        Cut { held, ..Cut::default() }
    }
}
