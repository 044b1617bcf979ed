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
use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Op, Window};
use arenic_ir::types::TensorType;
use cranelift_entity::SecondaryMap;

/// Replaces every gradient of an operand that is written as a convolution; how many there were.
pub(super) fn operand_gradients(g: &mut Graph) -> u64 {
    let found: Vec<_> = g.nodes.keys().filter_map(|n| Some((n, operand_gradient(g, n)?))).collect();
    for (conv, (op, w)) in &found {
        let node = &mut g.nodes[*conv];
        (node.op, node.inputs[1]) = (op.clone(), *w);
    }
    found.len() as u64
}

/// A convolution as the transpose of one with another weight, and that weight.
fn operand_gradient(g: &Graph, conv: NodeId) -> Option<(Op, ValueId)> {
    let Op::Conv { window: taken, group: 1 } = &g.nodes[conv].op else { return None };
    let [dy, turned] = g.nodes[conv].inputs[..] else { return None };
    let first = [1, 0];
    let w = match transposed(g, turned, &first) {
        Some(w) => around(g, w)?,
        None => transposed(g, around(g, turned)?, &first)?,
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
pub(super) fn weight_gradients(g: &mut Graph) -> Result<u64, PassError> {
    let (readers, kept) = (g.readers(), g.kept());
    let found: Vec<Gradient> =
        g.nodes.keys().filter_map(|n| gradient(g, n, &readers, &kept)).collect();
    for gradient in &found {
        let Gradient { conv, x, dy, window, group, result, ty } = gradient;
        let x = viewed(g, x.0, &x.1);
        let dy = &dy.made(g);
        let op = Op::ConvWeightGrad { window: window.clone(), group: *group };
        op.infer(&g.types_of(&[x, *dy]))?;
        if let Def::Node { node, .. } = g.values[*result].def {
            g.nodes[node].outputs = vec![None];
        }
        g.values[*result].ty = ty.clone();
        g.values[*result].def = Def::Node { node: *conv, output: 0 };
        let name = g.nodes[*conv].name.clone();
        g.nodes[*conv] = Node { name, op, inputs: vec![x, *dy], outputs: vec![Some(*result)] };
    }
    Ok(found.len() as u64)
}

/// A gradient that was found.
struct Gradient {
    /// The convolution that computes it, whose place it takes.
    conv: NodeId,
    /// The forward operand, and its shape.
    x: (ValueId, TensorType),
    dy: Dy,
    window: Window,
    group: usize,
    /// What holds the gradient, as a value of this type.
    result: ValueId,
    ty: TensorType,
}

/// The gradient of a convolution's result.
enum Dy {
    /// It is there.
    Made(ValueId),
    /// It is what a transpose gives, which no other node reads, by another permutation.
    Turned { of: ValueId, transpose: NodeId, perm: Vec<usize>, ty: TensorType },
}

impl Dy {
    /// Of which `b` has the first axes exchanged.
    fn of(
        g: &Graph,
        b: ValueId,
        readers: &SecondaryMap<ValueId, Vec<NodeId>>,
        kept: &SecondaryMap<ValueId, bool>,
    ) -> Option<Dy> {
        if let Some(dy) = transposed(g, b, &[1, 0]) {
            return Some(Dy::Made(dy));
        }
        let Def::Node { node: transpose, .. } = g.values[b].def else { return None };
        let Op::Transpose { perm } = &g.nodes[transpose].op else { return None };
        if readers[b].len() != 1 || kept[b] || perm.len() < 3 {
            return None;
        }
        let (mut perm, mut ty) = (perm.clone(), g.ty(b).clone());
        perm.swap(0, 1);
        ty.shape.swap(0, 1);
        Some(Dy::Turned { of: b, transpose, perm, ty })
    }

    fn ty<'g>(&'g self, g: &'g Graph) -> &'g TensorType {
        match self {
            Dy::Made(dy) => g.ty(*dy),
            Dy::Turned { ty, .. } => ty,
        }
    }

    fn made(&self, g: &mut Graph) -> ValueId {
        match self {
            Dy::Made(dy) => *dy,
            Dy::Turned { of, transpose, perm, ty } => {
                g.nodes[*transpose].op = Op::Transpose { perm: perm.clone() };
                g.values[*of].ty = ty.clone();
                *of
            }
        }
    }
}

fn gradient(
    g: &Graph,
    conv: NodeId,
    readers: &SecondaryMap<ValueId, Vec<NodeId>>,
    kept: &SecondaryMap<ValueId, bool>,
) -> Option<Gradient> {
    let Op::Conv { window: taken, group } = &g.nodes[conv].op else { return None };
    let [a, b] = g.nodes[conv].inputs[..] else { return None };
    let dy = Dy::of(g, b, readers, kept)?;
    let x = forward_operand(g, a, *group).or_else(|| of_one(g, conv, a, taken, *group))?;
    // Where the result goes: through a slice, or not.
    let mut held = g.result(conv)?;
    if let ([slice], false) = (&readers[held][..], kept[held])
        && let Op::Slice { starts, steps, shape } = &g.nodes[*slice].op
        && g.nodes[*slice].inputs[0] == held
        && starts.iter().all(|&s| s == 0)
        && steps.iter().all(|&s| s == 1)
        && shape[..2] == g.ty(held).shape[..2]
    {
        held = g.result(*slice)?;
    }
    let shape = &g.ty(held).shape;
    let (inputs, channels, kernel) = (shape[0], shape[1], shape[2..].to_vec());
    let ty = TensorType::new(g.ty(held).dtype, [&[channels, inputs], &kernel[..]].concat());
    let whole = |&n: &NodeId| g.nodes[n].inputs.contains(&held);
    let result = match &readers[held][..] {
        [last] if !kept[held] && transposed(g, g.result(*last)?, &[1, 0]) == Some(held) => {
            g.result(*last)?
        }
        // Every reader has a view of it, whose bytes are in the same order.
        all if inputs.min(channels) == 1
            && !all.iter().any(whole)
            && !g.outputs.iter().any(|o| o.value == held)
            && !g.states.values().any(|s| s.exit == held) =>
        {
            held
        }
        _ => return None,
    };
    let window = Window {
        kernel,
        strides: taken.dilations.clone(),
        dilations: taken.strides.clone(),
        pads_begin: taken.pads_begin.clone(),
        pads_end: taken.pads_end.clone(),
    };
    let op = Op::ConvWeightGrad { window: window.clone(), group: *group };
    let same = op.infer(&[&x.1, dy.ty(g)]).is_ok_and(|dw| dw[0] == ty);
    same.then_some(Gradient { conv, x, dy, window, group: *group, result, ty })
}

/// The operand of the transpose that makes a value, where it exchanges the first axes like this
/// and leaves the others.
fn transposed(g: &Graph, v: ValueId, first: &[usize]) -> Option<ValueId> {
    let Def::Node { node, .. } = g.values[v].def else { return None };
    let Op::Transpose { perm } = &g.nodes[node].op else { return None };
    let rest = perm.iter().enumerate().skip(first.len()).all(|(i, &p)| i == p);
    (perm.starts_with(first) && rest).then(|| g.nodes[node].inputs[0])
}

/// The forward operand `[N, C, …]` of which `a` is the transposed one, with its type.
fn forward_operand(g: &Graph, a: ValueId, group: usize) -> Option<(ValueId, TensorType)> {
    if group == 1 {
        let x = transposed(g, a, &[1, 0])?;
        return Some((x, g.ty(x).clone()));
    }
    let at = g.resolve(a);
    let x = transposed(g, at.root, &[2, 1, 0])?;
    let (ty, seen) = (g.ty(x), g.ty(a));
    let [images, groups, inputs, ref spatial @ ..] = ty.shape[..] else { return None };
    let fits = at.offset == 0
        && groups == group
        && seen.shape == [&[inputs, groups * images], spatial].concat();
    let whole = TensorType::new(ty.dtype, [&[images, groups * inputs], spatial].concat());
    fits.then_some((x, whole))
}

/// The same where its transpose moves nothing, because there is one image or one channel. Only where the
/// result is no larger than the window, so that it is no convolution of one image.
fn of_one(
    g: &Graph,
    conv: NodeId,
    a: ValueId,
    taken: &Window,
    group: usize,
) -> Option<(ValueId, TensorType)> {
    let ty = g.ty(a);
    let result = g.ty(g.result(conv)?);
    let is_small = result.shape[2..].iter().zip(&taken.kernel).all(|(extent, taps)| extent <= taps);
    let mut shape = ty.shape.clone();
    shape.swap(0, 1);
    let moves_nothing = group == 1 && shape[..2].contains(&1);
    (is_small && moves_nothing).then(|| (a, TensorType::new(ty.dtype, shape)))
}

/// A value as one of this type, which has as many elements.
fn viewed(g: &mut Graph, v: ValueId, ty: &TensorType) -> ValueId {
    if g.ty(v) == ty {
        return v;
    }
    let at = g.resolve(v);
    if at.offset == 0 && g.ty(at.root) == ty {
        return at.root;
    }
    g.add_view("", ty.clone(), at.root, at.offset)
}
