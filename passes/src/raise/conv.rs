//! Gradients of convolutions.
//!
//! That of the operand is `conv_transpose(dy, w)`, or without strides also
//!
//! ```text
//! dx = conv(dy, w')     w' = transpose(w) [C, M, …], turned around along every spatial axis
//! ```
//!
//! with `d·(k − 1) − p` for the padding `p`: `dx[i] = Σ dy[i + p − d·u] w[u]`, where `u` runs the
//! other way. That of the weight: for `y = conv(x, w)` with `G` groups, PyTorch's decomposition and ONNX exporters write
//!
//! ```text
//! a  = transpose(x)            [C, N, …]            (G = 1)
//!      transpose(x as [N, G, C/G, …])  as [C/G, G·N, …]   (G > 1)
//! b  = transpose(dy)           [M, N, …]
//! r  = conv(a, b)              [C/G, M, …], strides and dilations exchanged
//! dw = transpose(slice(r))     [M, C/G, …]
//! ```
//!
//! where the slice drops taps that a stride of the convolution has left over, and a first or last
//! transpose that moves nothing (`C`, `N` or `M` is 1) may be a view. The transpose of `dy` may be one
//! with those before it, as where the channels of `dy` were last: what is left of it comes before.

use crate::PassError;
use crate::rewrite::{Editor, GraphView};
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Op, Window};
use arenic_ir::types::TensorType;

/// Replaces every gradient of an operand that is written as a convolution; how many there were.
pub(super) fn operand_gradients(g: &mut Graph) -> u64 {
    let view = GraphView::new(g);
    let found = |n| Some((n, operand_gradient(&view, n)?));
    let found: Vec<_> = g.nodes.keys().filter_map(found).collect();
    for (conv, (op, w)) in &found {
        let node = &mut g.nodes[*conv];
        (node.op, node.inputs[1]) = (op.clone(), *w);
    }
    found.len() as u64
}

/// A convolution as the transpose of one with another weight, and that weight.
fn operand_gradient(v: &GraphView, conv: NodeId) -> Option<(Op, ValueId)> {
    let g = v.g;
    let Op::Conv { window: taken, group: 1 } = &g.nodes[conv].op else { return None };
    let [dy, turned] = g.nodes[conv].inputs[..] else { return None };
    let first = [1, 0];
    let w = match transposed(v, turned, &first) {
        Some(w) => around(g, w)?,
        None => transposed(v, around(g, turned)?, &first)?,
    };
    let rest = |pads: &[usize]| {
        let reach = taken.kernel.iter().zip(&taken.dilations).map(|(k, d)| d * (k - 1));
        reach.zip(pads).map(|(reach, pad)| reach.checked_sub(*pad)).collect::<Option<Vec<usize>>>()
    };
    let window = Window {
        pads_begin: rest(&taken.pads_begin)?,
        pads_end: rest(&taken.pads_end)?,
        ..taken.clone()
    };
    let output_padding = vec![0; window.kernel.len()];
    let op = Op::ConvTranspose { window, group: 1, output_padding };
    let dx = op.infer(&[g.ty(dy), g.ty(w)]).ok()?;
    let fits = taken.strides.iter().all(|&s| s == 1) && dx[0] == *g.ty(g.result(conv)?);
    fits.then_some((op, w))
}

/// What a value is turned around along every axis but the first two.
fn around(g: &Graph, v: ValueId) -> Option<ValueId> {
    let shape = &g.ty(v).shape;
    if shape[2..].iter().all(|&extent| extent == 1) {
        return Some(v);
    }
    let Def::Node { node, .. } = g.values[v].def else { return None };
    let Op::Slice { starts, steps, .. } = &g.nodes[node].op else { return None };
    let of = g.nodes[node].inputs[0];
    let turned = shape.iter().enumerate().all(|(i, &extent)| match (i < 2, extent) {
        (_, 1) => starts[i] == 0,
        (true, _) => starts[i] == 0 && steps[i] == 1,
        (false, _) => starts[i] + 1 == extent && steps[i] == -1,
    });
    (turned && g.ty(of).shape == *shape).then_some(of)
}

/// Replaces every gradient of a weight; how many there were.
///
/// # Errors
/// Never: types were checked when a gradient was found.
pub(super) fn weight_gradients(g: &mut Graph) -> Result<u64, PassError> {
    let view = GraphView::new(g);
    let found: Vec<_> = g.nodes.keys().filter_map(|n| Some((n, gradient(&view, n)?))).collect();
    let mut e = Editor::new(g);
    for (conv, Gradient { x, x_shape, dy, op, result }) in &found {
        let x = e.reshaped(*conv, *x, x_shape)?;
        let dy = match dy {
            Dy::Made(dy) => *dy,
            Dy::Turned { of, perm } => {
                e.value(*conv, Op::Transpose { perm: perm.clone() }, vec![*of])?
            }
        };
        let dw = e.value(*conv, op.clone(), vec![x, dy])?;
        e.replace(*conv, *result, dw)?;
    }
    e.finish();
    Ok(found.len() as u64)
}

/// A gradient that was found.
struct Gradient {
    /// The forward operand, of this shape.
    x: ValueId,
    x_shape: Vec<usize>,
    dy: Dy,
    op: Op,
    /// What has the gradient's elements.
    result: ValueId,
}

/// The gradient of a convolution's result.
enum Dy {
    /// It is there.
    Made(ValueId),
    /// It is `of` with its axes permuted.
    Turned { of: ValueId, perm: Vec<usize> },
}

/// The gradient of a weight that a convolution computes.
fn gradient(v: &GraphView, conv: NodeId) -> Option<Gradient> {
    let g = v.g;
    let Node { op: Op::Conv { window: taken, group }, inputs, .. } = &g.nodes[conv] else {
        return None;
    };
    let &[a, b] = &inputs[..] else { return None };
    let (dy, dy_shape) = gradient_of_result(v, b)?;
    let (x, x_shape) = forward_operand(v, a, *group).or_else(|| of_one(v, conv, a, *group))?;
    // Where the result goes: through a slice, or not.
    let mut held = g.result(conv)?;
    if let Some(slice) = v.only_use(held)
        && let Node { op: Op::Slice { starts, steps, shape }, inputs, .. } = &g.nodes[slice]
        && inputs[0] == held
        && starts.iter().all(|&s| s == 0)
        && steps.iter().all(|&s| s == 1)
        && shape[..2] == g.ty(held).shape[..2]
    {
        held = g.result(slice)?;
    }
    let TensorType { dtype, shape } = g.ty(held);
    let (inputs, channels, kernel) = (shape[0], shape[1], shape[2..].to_vec());
    let turned = match v.readers[held][..] {
        [last] if !v.kept[held] => g.result(last),
        _ => None,
    };
    let turned = turned.filter(|&turned| transposed(v, turned, &[1, 0]) == Some(held));
    // A transpose that moves nothing leaves the bytes in their order.
    let result = turned.or((inputs.min(channels) == 1).then_some(held))?;
    let ty = TensorType::new(*dtype, [&[channels, inputs], &kernel[..]].concat());
    let window = Window {
        kernel,
        strides: taken.dilations.clone(),
        dilations: taken.strides.clone(),
        pads_begin: taken.pads_begin.clone(),
        pads_end: taken.pads_end.clone(),
    };
    let op = Op::ConvWeightGrad { window, group: *group };
    let [x_ty, dy_ty] = [&x_shape[..], &dy_shape[..]].map(|shape| TensorType::new(*dtype, shape));
    let same = op.infer(&[&x_ty, &dy_ty]).is_ok_and(|dw| dw[0] == ty);
    same.then_some(Gradient { x, x_shape, dy, op, result })
}

/// The operand of the transpose that makes a value, where it exchanges the first axes like this
/// and leaves the others.
fn transposed(v: &GraphView, x: ValueId, first: &[usize]) -> Option<ValueId> {
    let (of, perm) = permuted(v, x)?;
    let rest = perm.iter().enumerate().skip(first.len()).all(|(i, &p)| i == p);
    (perm.starts_with(first) && rest).then_some(of)
}

/// The operand and the permutation of the transpose that makes a value.
fn permuted<'a>(v: &GraphView<'a>, x: ValueId) -> Option<(ValueId, &'a [usize])> {
    let Def::Node { node, .. } = v.g.values[x].def else { return None };
    match &v.g.nodes[node] {
        Node { op: Op::Transpose { perm }, inputs, .. } => Some((inputs[0], perm)),
        _ => None,
    }
}

/// The gradient, with its shape, of which `b` has the first axes exchanged.
fn gradient_of_result(v: &GraphView, b: ValueId) -> Option<(Dy, Vec<usize>)> {
    if let Some(dy) = transposed(v, b, &[1, 0]) {
        return Some((Dy::Made(dy), v.g.ty(dy).shape.clone()));
    }
    let (of, perm) = permuted(v, b)?;
    if perm.len() < 3 || v.only_use(b).is_none() {
        return None;
    }
    let (mut perm, mut shape) = (perm.to_vec(), v.g.ty(b).shape.clone());
    perm.swap(0, 1);
    shape.swap(0, 1);
    Some((Dy::Turned { of, perm }, shape))
}

/// The forward operand `[N, C, …]` of which `a` is the transposed one, and that shape.
fn forward_operand(v: &GraphView, a: ValueId, group: usize) -> Option<(ValueId, Vec<usize>)> {
    if group == 1 {
        let x = transposed(v, a, &[1, 0])?;
        return Some((x, v.g.ty(x).shape.clone()));
    }
    let x = v.shapes(a).find_map(|of| transposed(v, of, &[2, 1, 0]))?;
    let [images, groups, inputs, ref spatial @ ..] = v.g.ty(x).shape[..] else { return None };
    let turned = [&[inputs, groups * images], spatial].concat();
    let fits = groups == group && v.g.ty(a).shape == turned;
    fits.then(|| (x, [&[images, groups * inputs], spatial].concat()))
}

/// The same where its transpose moves nothing, because there is one image or one channel. Only where the
/// result is no larger than the window, so that it is no convolution of one image.
fn of_one(v: &GraphView, conv: NodeId, a: ValueId, group: usize) -> Option<(ValueId, Vec<usize>)> {
    let Op::Conv { window, .. } = &v.g.nodes[conv].op else { return None };
    let result = v.g.ty(v.g.result(conv)?);
    let is_small =
        result.shape[2..].iter().zip(&window.kernel).all(|(extent, taps)| extent <= taps);
    let mut shape = v.g.ty(a).shape.clone();
    shape.swap(0, 1);
    let moves_nothing = group == 1 && shape[..2].contains(&1);
    (is_small && moves_nothing).then_some((a, shape))
}
