//! Which operators are cut how, and which values exist in parts alone.

use arenic_ir::TargetInfo;
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::Cut;
use cranelift_entity::SecondaryMap;
use std::collections::VecDeque;

/// Values below this part of what an operator may need stay whole.
const SMALL: u64 = 16;

/// Bytes that a node cannot do without.
fn own_bytes(g: &Graph, n: NodeId, target: TargetInfo) -> u64 {
    let node = &g.nodes[n];
    let mut roots: Vec<ValueId> = node.inputs.iter().map(|&v| g.resolve(v).root).collect();
    roots.sort_unstable();
    roots.dedup();
    let Ok(outputs) = g.output_types(n) else { return 0 };
    let (x, y) = (g.input_types(n), outputs.iter().collect::<Vec<_>>());
    let mut shared: Vec<usize> = node.op.in_place_pairs(&x, &y).iter().map(|p| p.1).collect();
    shared.sort_unstable();
    shared.dedup();
    let made = |(o, _): &(usize, &Option<ValueId>)| !shared.contains(o);
    let results = node.outputs.iter().enumerate().filter(made).filter_map(|(_, v)| *v);
    let values = roots.iter().copied().chain(results).map(|v| g.ty(v).bytes());
    values.sum::<u64>() + node.op.scratch_bytes(target, &x, &y)
}

/// Which nodes are cut how, and which values exist in parts alone.
pub(super) struct Sections<'a> {
    pub(super) g: &'a Graph,
    pub(super) parts: usize,
    /// Bytes that an operator may need.
    most: u64,
    target: TargetInfo,
    reassociate: bool,
    /// States may be in parts.
    pub(super) states: bool,
    readers: SecondaryMap<ValueId, Vec<NodeId>>,
    /// The axis along which a value exists in parts.
    pub(super) axis: SecondaryMap<ValueId, Option<usize>>,
    pub(super) cut: SecondaryMap<NodeId, Option<Cut>>,
}

impl<'a> Sections<'a> {
    /// Nothing is cut before [`Sections::grow`]. Operators that need half again as much as a part of
    /// the largest one will be.
    pub(super) fn new(g: &'a Graph, parts: usize, target: TargetInfo, reassociate: bool) -> Self {
        let largest = g.nodes.keys().map(|n| own_bytes(g, n, target)).max().unwrap_or(0);
        let most = (largest + largest / 2) / parts.max(1) as u64;
        let mut readers: SecondaryMap<ValueId, Vec<NodeId>> = SecondaryMap::new();
        for (n, node) in &g.nodes {
            node.inputs.iter().for_each(|&v| readers[v].push(n));
        }
        let (axis, cut, states) = (SecondaryMap::new(), SecondaryMap::new(), true);
        Sections { g, parts, most, target, reassociate, states, readers, axis, cut }
    }

    /// Cuts what is too large, and from there on what makes or reads its parts. The first
    /// operators decide: the axis of a forward pass serves its backward pass too.
    pub(super) fn grow(&mut self) {
        let mut work: VecDeque<NodeId> = self
            .g
            .nodes
            .keys()
            .filter(|&n| own_bytes(self.g, n, self.target) > self.most)
            .collect();
        while let Some(n) = work.pop_front() {
            if self.cut[n].is_some() {
                continue;
            }
            let Some(cut) = self.best_cut(n) else { continue };
            let node = &self.g.nodes[n];
            let operands = node.inputs.iter().copied().zip(cut.operands.iter().copied());
            let axes = cut.results.iter().map(|r| r.axis());
            let results = node.outputs.iter().copied().zip(axes);
            let results = results.filter_map(|(v, axis)| Some((v?, axis)));
            for (v, axis) in operands.chain(results) {
                if let Some(axis) = axis.filter(|&axis| self.may_be_parts(v, axis)) {
                    self.axis[v] = Some(axis);
                    work.extend(&self.readers[v]);
                    if let Def::Node { node, .. } = self.g.values[v].def {
                        work.push_back(node);
                    }
                }
            }
            self.cut[n] = Some(cut);
        }
        self.close_states();
    }

    /// A state is in parts as it enters and as it leaves, or not at all.
    fn close_states(&mut self) {
        for state in self.g.states.values() {
            if self.axis[state.enter].is_some() && self.axis[state.exit] != Some(0) {
                self.axis[state.enter] = None;
            }
        }
    }

    /// The cut under which most bytes are in parts.
    fn best_cut(&self, n: NodeId) -> Option<Cut> {
        let node = &self.g.nodes[n];
        let types = self.g.output_types(n).ok()?;
        let (x, y) = (self.g.input_types(n), types.iter().collect::<Vec<_>>());
        let cuts = node.op.cuts(&x, &y);
        let allowed = |cut: &Cut| {
            let ends = || (0..self.parts).map(|part| self.range(cut.extent, part).1);
            cut.extent >= self.parts
                && (self.reassociate
                    || node.op.cut_keeps_bits(
                        self.target.backend,
                        cut,
                        &ends().collect::<Vec<_>>(),
                        &x,
                        &y,
                    ))
        };
        let score = |cut: &Cut| -> i128 {
            let operands = node.inputs.iter().copied().zip(cut.operands.iter().copied());
            let results = node.outputs.iter().copied().zip(cut.results.iter().map(|r| r.axis()));
            let results = results.filter_map(|(v, axis)| Some((v?, axis)));
            let gain = |(v, axis): (ValueId, Option<usize>)| {
                let bytes = i128::from(self.g.ty(v).bytes());
                match (self.axis[v], axis) {
                    (Some(is), axis) => {
                        if axis == Some(is) {
                            bytes
                        } else {
                            -bytes
                        }
                    }
                    (None, Some(axis)) if self.may_be_parts(v, axis) => bytes,
                    (None, _) => 0,
                }
            };
            operands.chain(results).map(gain).sum()
        };
        let scored = cuts.into_iter().filter(allowed).map(|cut| (score(&cut), cut));
        // Of equal ones the first, which may keep every bit.
        scored.rev().max_by_key(|s| s.0).filter(|s| s.0 > 0).map(|s| s.1)
    }

    /// True where a value may exist in parts alone: a large result, or a state, by rows.
    fn may_be_parts(&self, v: ValueId, axis: usize) -> bool {
        let large = self.g.ty(v).bytes() > self.most / SMALL;
        let extent = self.g.ty(v).shape.get(axis).copied().unwrap_or(0);
        let free = self.axis[v].is_none() && extent >= self.parts;
        large
            && free
            && match self.g.values[v].def {
                Def::Node { .. } => true,
                Def::State(s) => axis == 0 && self.states && self.g.states[s].part_of.is_none(),
                Def::Input | Def::Const(_) | Def::View { .. } => false,
            }
    }

    /// The indices of a part along an axis: the first, and one past the last. Parts begin at
    /// multiples of what products sum at a time, where that leaves them about equal.
    pub(super) fn range(&self, extent: usize, part: usize) -> (usize, usize) {
        let about_equal = |&grain: &usize| {
            let grains = extent.div_ceil(grain);
            grains >= 8 * self.parts || (grains >= self.parts && grains % self.parts == 0)
        };
        let most = self.target.backend.kernels.sum_grain();
        let halves = std::iter::successors(Some(most), |&grain| Some(grain / 2));
        let grain = halves.take_while(|&grain| grain > 1).find(about_equal).unwrap_or(1);
        let begin = |part: usize| (part * extent.div_ceil(grain) / self.parts * grain).min(extent);
        (begin(part), begin(part + 1))
    }
}
