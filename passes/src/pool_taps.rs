//! Max pools say which tap of a window saw its maximum, in a byte.
//!
//! ONNX's indices are positions in the whole operand, of 8 bytes each: twice the bytes of the pooled
//! `f32` tensor, kept from the forward pass to the backward one. The gradient needs no more than the
//! tap, which is one byte in windows of up to 256.
//!
//! Done where all that reads the indices is the gradient of the pool: `max_pool_grad`, or what
//! exporters write for it, an addition to zeros at these positions, counted from the start of the
//! tensor or, after a subtraction, of each plane. Such a `scatter_elements` becomes a
//! `max_pool_grad`. Sound because the position of the result and the tap tell the place, and the
//! gradient adds the same terms in the same order: the bits stay the same. It never needs more
//! memory: the taps live as long as the indices did.
//!
//! Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training" (ISCA 2018),
//! section III, which keeps the place in the window in four bits.

use crate::rewrite::{Editor, GraphView};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, PoolIndices, Scatter};
use arenic_ir::types::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Makes the indices of max pools as small as their gradients allow.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PoolTaps {}

impl GraphPass for PoolTaps {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let view = GraphView::new(g);
        let pools: Vec<MaxPool> = g.nodes.keys().filter_map(|n| view.max_pool(n)).collect();
        let mut e = Editor::new(g);
        pools.iter().try_for_each(|pool| pool.replace(&mut e))?;
        e.finish();
        Ok(Stats::from([("pools_by_taps", pools.len() as u64)]))
    }
}

/// A max pool of whose indices only gradients are made.
struct MaxPool {
    node: NodeId,
    /// The gradient's operator, of a pool whose indices are taps.
    gradient: Op,
    /// Each gradient: the node, and the gradient of the pool's result that it reads.
    gradients: Vec<(NodeId, ValueId)>,
}

impl MaxPool {
    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let Node { mut op, inputs, outputs, .. } = e.g.nodes[self.node].clone();
        if let Op::MaxPool { indices, .. } = &mut op {
            *indices = PoolIndices::Taps;
        }
        let made = e.node(self.node, op, inputs)?;
        let &[y, taps] = &made[..] else { return Ok(()) };
        if let Some(old) = outputs[0] {
            e.replace(self.node, old, y)?;
        }
        if let Some(places) = outputs[1] {
            e.g.values[taps].name = e.g.values[places].name.clone();
        }
        let shape = e.g.ty(y).shape.clone();
        for &(node, dy) in &self.gradients {
            let dy = e.reshaped(node, dy, &shape)?;
            let dx = e.value(node, self.gradient.clone(), vec![dy, taps])?;
            if let Some(old) = e.g.result(node) {
                e.replace(node, old, dx)?;
            }
        }
        Ok(())
    }
}

impl GraphView<'_> {
    /// The max pool that a node is, if only gradients read its indices.
    fn max_pool(&self, node: NodeId) -> Option<MaxPool> {
        let g = self.g;
        let Node { op, inputs, outputs, .. } = &g.nodes[node];
        let Op::MaxPool { window, ceil, indices } = op else { return None };
        let places = outputs[1]?;
        let operand = g.ty(inputs[0]);
        if *indices == PoolIndices::Taps || !operand.dtype.is_float() {
            return None;
        }
        let gradient = |indices| Op::MaxPoolGrad {
            window: window.clone(),
            ceil: *ceil,
            indices,
            shape: operand.shape.clone(),
        };
        let own = gradient(*indices);
        // A window in padding alone has a position, to which a scatter adds, and a tap that sees nothing.
        let axes = operand.shape[2..].iter().zip(&g.ty(places).shape[2..]).enumerate();
        let sees_something = axes.into_iter().all(|(d, (&extent, &count))| {
            let last = count.saturating_sub(1) * window.strides[d];
            window.dilations[d] == 1 && last < extent + window.pads_begin[d]
        });
        let mut gradients = Vec::new();
        for n in self.uses(places)? {
            let Node { op, inputs, .. } = &g.nodes[n];
            if *op == own && self.is(inputs[1], places) {
                gradients.push((n, inputs[0]));
            } else if *indices != PoolIndices::Positions || !sees_something {
                return None;
            } else if let Some(dy) = self.added_to_zeros(n, places, &[operand.elements()]) {
                gradients.push((n, dy));
            } else {
                let [at, starts] = self.applied(n, Binary::Sub)?;
                let planes =
                    [operand.shape[0] * operand.shape[1], operand.shape[2..].iter().product()];
                let within = g.result(n)?;
                if !self.is(at, places)
                    || !self.are_multiples(starts, &operand.shape[..2], planes[1])
                {
                    return None;
                }
                for n in self.uses(within)? {
                    gradients.push((n, self.added_to_zeros(n, within, &planes)?));
                }
            }
        }
        let is_read = !gradients.is_empty();
        is_read.then(|| MaxPool { node, gradient: gradient(PoolIndices::Taps), gradients })
    }

    /// What a node adds to zeros at these places of the last axis of the box; every row of places
    /// belongs to one of the box.
    fn added_to_zeros(&self, n: NodeId, places: ValueId, of: &[usize]) -> Option<ValueId> {
        let g = self.g;
        let Node { op: Op::ScatterElements { axis, reduction: Scatter::Add }, inputs, .. } =
            &g.nodes[n]
        else {
            return None;
        };
        let &[data, at, dy] = &inputs[..] else { return None };
        let (data_shape, at_shape) = (&g.ty(data).shape, &g.ty(at).shape);
        let (last, rows) = data_shape.split_last()?;
        let fits = axis + 1 == data_shape.len()
            && Some(last) == of.last()
            && rows.iter().product::<usize>() == of[..of.len() - 1].iter().product::<usize>()
            && at_shape[..*axis] == *rows
            && self.is(at, places)
            && self.number(data) == Some(0.0);
        fits.then_some(dy)
    }

    /// True for a constant of a number for each plane of these images and channels: `size` times the
    /// plane's number.
    fn are_multiples(&self, v: ValueId, planes: &[usize], size: usize) -> bool {
        let ty = self.g.ty(v);
        let one_each = ty.rank() > planes.len()
            && ty.shape.starts_with(planes)
            && ty.shape[planes.len()..].iter().all(|&d| d == 1);
        one_each
            && ty.dtype == DType::I64
            && self.g.const_bytes(v).is_some_and(|bytes| {
                let (numbers, _) = bytes.as_chunks::<8>();
                numbers.iter().enumerate().all(|(i, x)| i64::from_le_bytes(*x) == (i * size) as i64)
            })
    }
}
