//! Attentions read queries, keys and values where one product wrote them.
//!
//! Exporters cut the result of one product in three, copy each part, and put the gradients of the parts together
//! again. With heads behind positions a part is some rows of every position, so that an attention, and its gradient,
//! may have the whole tensor in the place of the parts ([`AttentionSpec::packed`]). Sound because they read and write
//! the same elements: the bits stay the same. No order of the graph needs more memory: the parts have as many
//! bytes as the whole, which is alive from there on instead of them, and of the gradients there was each part and
//! then the whole.
//!
//! Only where nobody else reads a part, and where all gradients of an attention are put together as its operands were.
//!
//! It is for GPUs, where `sink_transposes` has heads behind positions: on a CPU rows that lie apart take longer
//! than copies of them. This is `QKVPacked` of FlashAttention (Dao et al., 2022), as a rewrite.

use crate::rewrite::{Editor, GraphView};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Graph, Node, NodeId, ValueId};
use arenic_ir::op::{AttentionSpec, Op};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Lets attentions read queries, keys and values as one tensor.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PackAttention {}

impl GraphPass for PackAttention {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let view = GraphView::new(g);
        let found: Vec<Found> = g.nodes.keys().filter_map(|n| found(&view, n)).collect();
        let mut e = Editor::new(g);
        found.iter().try_for_each(|found| found.replace(&mut e))?;
        e.finish();
        Ok(Stats::from([("attentions", found.len() as u64)]))
    }
}

/// An attention whose operands are parts of one tensor.
struct Found {
    forward: NodeId,
    spec: AttentionSpec,
    whole: ValueId,
    /// The shape in which it is read.
    shape: Vec<usize>,
    /// Gradients of the attention, and who puts their results together.
    gradients: Vec<(NodeId, NodeId)>,
}

/// Rows of queries, keys and values of every position, as elements of a whole.
struct Parts {
    positions: usize,
    of: [Range<usize>; 3],
}

fn found(view: &GraphView, forward: NodeId) -> Option<Found> {
    let g = view.g;
    let Node { op, inputs, outputs, .. } = &g.nodes[forward];
    let &Op::Attention { spec } = op else { return None };
    if !spec.positions_first || spec.packed {
        return None;
    }
    let [batch @ .., heads, depth] = &g.ty(inputs[0]).shape[..] else { return None };
    let [_, keys, width] = g.ty(inputs[2]).shape[batch.len() - 1..] else { return None };
    if width != *depth || g.ty(inputs[1]).elements() != g.ty(inputs[2]).elements() {
        return None;
    }
    let ends = [0, *heads, heads + keys, heads + 2 * keys].map(|heads| heads * depth);
    let parts =
        Parts { positions: batch.iter().product(), of: [0, 1, 2].map(|i| ends[i]..ends[i + 1]) };
    let mut wholes = (0..3).map(|i| parts.whole(view, inputs[i], i));
    let whole = wholes.next()??;
    if !wholes.all(|other| other.is_some_and(|other| view.base(other) == view.base(whole))) {
        return None;
    }
    let gradients: Vec<(NodeId, NodeId)> = view
        .consumers(outputs[1]?)
        .into_iter()
        .map(|n| Some((n, parts.joined(view, forward, n)?)))
        .collect::<Option<_>>()?;
    let readers: Vec<NodeId> = gradients.iter().map(|&(n, _)| n).chain([forward]).collect();
    let only_these = |i: usize| {
        let uses = view.uses(view.base(inputs[i]));
        uses.is_some_and(|uses| uses.iter().all(|n| readers.contains(n)))
    };
    let shape = [batch, &[heads + 2 * keys, *depth]].concat();
    let spec = AttentionSpec { packed: true, ..spec };
    (0..3).all(only_these).then_some(Found { forward, spec, whole, shape, gradients })
}

impl Parts {
    /// What a value is the part `i` of, by a slice.
    fn whole(&self, view: &GraphView, v: ValueId, i: usize) -> Option<ValueId> {
        let Node { op, inputs, .. } = view.node(v)?;
        let (Op::Slice { starts, steps, shape }, &[whole]) = (op, &inputs[..]) else { return None };
        let of = &view.g.ty(whole).shape;
        let mut cut = (0..of.len()).filter(|&axis| of[axis] != shape[axis]);
        let (axis, is_last) = (cut.next()?, cut.next().is_none());
        let run = self.run(of, axis, starts[axis]..starts[axis] + shape[axis])?;
        (is_last && steps.iter().all(|&s| s == 1) && run == self.of[i]).then_some(whole)
    }

    /// Indices along an axis of a whole as elements of every position; `None` if positions are not before the axis.
    fn run(&self, whole: &[usize], axis: usize, indices: Range<usize>) -> Option<Range<usize>> {
        let inner: usize = whole[axis + 1..].iter().product();
        let all = whole[axis] * inner;
        let positions: usize = whole[..axis].iter().product();
        (positions == self.positions && all == self.of[2].end)
            .then_some(indices.start * inner..indices.end * inner)
    }

    /// The node that alone reads the three gradients that `n` gives, and puts them together as the operands of
    /// the attention are.
    fn joined(&self, view: &GraphView, forward: NodeId, n: NodeId) -> Option<NodeId> {
        let g = view.g;
        let [forward, gradient] = [forward, n].map(|n| &g.nodes[n]);
        let (Op::Attention { spec }, Op::AttentionGrad { spec: of, .. }) =
            (&forward.op, &gradient.op)
        else {
            return None;
        };
        let results = [0, 1, 2].map(|i| gradient.outputs[i]);
        let [Some(dq), Some(dk), Some(dv)] = results else { return None };
        let [join] = view.uses(dq)?[..] else { return None };
        let Node { op: Op::Concat { axis }, inputs, .. } = &g.nodes[join] else { return None };
        let whole = &g.ty(g.result(join)?).shape;
        let mut at = 0;
        let in_place = inputs.iter().zip([dq, dk, dv]).zip(&self.of).all(|((&v, of), part)| {
            let extent = g.ty(v).shape[*axis];
            at += extent;
            view.base(v) == of && self.run(whole, *axis, at - extent..at).as_ref() == Some(part)
        });
        let alone = [dk, dv].into_iter().all(|v| view.uses(v).is_some_and(|uses| uses == [join]));
        let is_it = spec == of && forward.inputs[..3] == gradient.inputs[..3];
        (is_it && inputs.len() == 3 && in_place && alone).then_some(join)
    }
}

impl Found {
    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let whole = e.reshaped(self.forward, self.whole, &self.shape)?;
        let Node { inputs, outputs, .. } = e.g.nodes[self.forward].clone();
        let operands = [&[whole; 3], &inputs[3..]].concat();
        let made = e.node(self.forward, Op::Attention { spec: self.spec }, operands)?;
        for (old, new) in outputs.into_iter().zip(made) {
            if let Some(old) = old {
                e.replace(self.forward, old, new)?;
            }
        }
        for &(n, join) in &self.gradients {
            let Node { op, inputs, outputs, .. } = e.g.nodes[n].clone();
            let Op::AttentionGrad { of_mask, has_result, .. } = op else { continue };
            let op = Op::AttentionGrad { spec: self.spec, of_mask, has_result };
            let made = e.node(n, op, [&[whole; 3], &inputs[3..]].concat())?;
            let joined = e.g.result(join);
            for (old, &new) in [joined].into_iter().chain(outputs.into_iter().skip(3)).zip(&made) {
                if let Some(old) = old {
                    e.replace(n, old, new)?;
                }
            }
        }
        Ok(())
    }
}
