//! The min-cut certificate: a lower bound on the peak of every order.
//!
//! When operator v runs, the set D of operators already run contains all of v's ancestors
//! and none of its descendants. So memory while v runs is at least v's own inputs and
//! outputs (less what its declared pairs can share) and the least cut over operators
//! incomparable to v, where a tensor costs its bytes if its producer is in D and a reader
//! is not. As a flow network: producer → tensor with capacity bytes, tensor → readers and
//! operator → its predecessors without limit. Any flow is a lower bound, so that a search
//! that stops early still gives one.

use super::problem::{Kind, Problem};
use crate::flow::{Network, SINK, SOURCE, UNLIMITED};
use std::cmp::Reverse;

/// Why no order can have a lower peak.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// No order's peak is lower.
    pub bound: u64,
    /// What the operator and its cut alone prove; `bound` is higher where a search through
    /// all cases proved more.
    pub by_cut: u64,
    /// The operator that needs this much while it runs; `None` if the bound is what is
    /// alive before the first operator or after the last one.
    pub operator: Option<usize>,
    /// Every operator was looked at whose cut could prove more; else the work ran out before.
    pub is_whole: bool,
    /// The tensors of the cut: one such set beside the operator's own is alive in any
    /// order, none is lighter.
    pub tensors: Vec<usize>,
}

/// The cut of one operator.
pub(super) struct Cut {
    pub(super) bound: u64,
    pub(super) tensors: Vec<usize>,
    /// The operators before v in an order that meets the bound at v.
    pub(super) before: Vec<bool>,
}

/// The largest bound over operators. `profile` is the memory of each position of `order`:
/// it bounds the operator's cut from above, so that mostly one cut is enough. `work`
/// limits the arcs looked at and is reduced by them.
pub(super) fn certificate(
    p: &Problem,
    order: &[usize],
    profile: &[u64],
    work: &mut u64,
) -> Certificate {
    let mut best = at_least(p);
    let free = vec![0; p.len()];
    let mut by_memory: Vec<usize> = (0..order.len()).collect();
    by_memory.sort_by_key(|&i| Reverse(profile[i]));
    let mut network = Network::default();
    for i in by_memory {
        if profile[i] <= best.bound {
            break;
        }
        if *work == 0 {
            best.is_whole = false;
            break;
        }
        let cut = network.cut(p, order[i], &free, work);
        if cut.bound > best.bound {
            best = Certificate {
                bound: cut.bound,
                by_cut: cut.bound,
                operator: Some(order[i]),
                is_whole: true,
                tensors: cut.tensors,
            };
        }
    }
    best
}

/// The bound without any cut: the largest operator alone, or what is alive at the start or
/// at the end.
fn at_least(p: &Problem) -> Certificate {
    let ends = p.at_start().max(p.at_end());
    let largest = (0..p.len()).map(|v| (p.resident + p.own(v), Reverse(v))).max();
    let (bound, operator) = match largest {
        Some((own, Reverse(v))) if own > ends => (own, Some(v)),
        _ => (ends, None),
    };
    Certificate { bound, by_cut: bound, operator, is_whole: true, tensors: Vec::new() }
}

/// Where an operator stands when v runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Before,
    After,
    Open,
}

impl Network {
    /// The least memory while v runs, among orders where operators of lower phases run
    /// before those of higher ones.
    pub(super) fn cut(&mut self, p: &Problem, v: usize, phase: &[u32], work: &mut u64) -> Cut {
        let side = sides(p, v, phase);
        *work = work.saturating_sub(p.len() as u64);
        self.clear();
        let node_of = self.operators(&side);
        let mut tensors: Vec<(usize, u32)> = Vec::new();
        let mut forced = 0;
        let mut forced_tensors = Vec::new();
        for (t, tensor) in p.tensors.iter().enumerate() {
            let counts = match tensor.kind {
                Kind::Resident => false,
                Kind::Input | Kind::Transient => !tensor.readers.is_empty(),
                Kind::Pinned => tensor.producer.is_some(),
            };
            let own = tensor.producer == Some(v) || tensor.readers.binary_search(&v).is_ok();
            if !counts || own || tensor.bytes == 0 {
                continue;
            }
            let from = match tensor.producer.map(|w| (w, side[w])) {
                Some((_, Side::After)) => continue,
                None | Some((_, Side::Before)) => SOURCE,
                Some((w, Side::Open)) => node_of[w],
            };
            let kept = tensor.kind == Kind::Pinned
                || tensor.readers.iter().any(|&r| side[r] == Side::After);
            let mut open = tensor.readers.iter().filter(|&&r| side[r] == Side::Open);
            if kept && from == SOURCE {
                forced += tensor.bytes;
                forced_tensors.push(t);
            } else if kept {
                tensors.push((t, self.arc(from, SINK, tensor.bytes)));
            } else if let Some(&reader) = open.next() {
                let reader = node_of[reader];
                match open.next() {
                    None => tensors.push((t, self.arc(from, reader, tensor.bytes))),
                    Some(_) => {
                        let node = self.node();
                        tensors.push((t, self.arc(from, node, tensor.bytes)));
                        for &r in tensor.readers.iter().filter(|&&r| side[r] == Side::Open) {
                            self.arc(node, node_of[r], UNLIMITED);
                        }
                    }
                }
            }
        }
        for w in (0..p.len()).filter(|&w| side[w] == Side::Open) {
            for &b in p.before[w].iter().filter(|&&b| side[b] == Side::Open) {
                self.arc(node_of[w], node_of[b], UNLIMITED);
            }
        }
        let flow = self.flow(work);
        let crossing = tensors.iter().filter(|&&(_, arc)| self.crosses(arc));
        let mut cut: Vec<usize> = crossing.map(|&(t, _)| t).chain(forced_tensors).collect();
        cut.sort_unstable();
        let before = (0..p.len()).map(|w| match side[w] {
            Side::Before => true,
            Side::After => false,
            Side::Open => self.reached(node_of[w]),
        });
        Cut { bound: p.resident + p.own(v) + forced + flow, tensors: cut, before: before.collect() }
    }

    /// A node for each operator that may run before or after; the source for others.
    fn operators(&mut self, side: &[Side]) -> Vec<usize> {
        side.iter().map(|s| if *s == Side::Open { self.node() } else { SOURCE }).collect()
    }
}

/// Which operators run before v, after v, or on either side.
fn sides(p: &Problem, v: usize, phase: &[u32]) -> Vec<Side> {
    let mut side: Vec<Side> = phase
        .iter()
        .map(|&f| match f.cmp(&phase[v]) {
            std::cmp::Ordering::Less => Side::Before,
            std::cmp::Ordering::Equal => Side::Open,
            std::cmp::Ordering::Greater => Side::After,
        })
        .collect();
    side[v] = Side::After;
    for (neighbours, mark) in [(&p.before, Side::Before), (&p.after, Side::After)] {
        let mut stack = vec![v];
        while let Some(w) = stack.pop() {
            for &o in &neighbours[w] {
                if side[o] == Side::Open {
                    side[o] = mark;
                    stack.push(o);
                }
            }
        }
    }
    side
}
