//! Layer normalisation.
//!
//! Before opset 17 ONNX had no operator for it, and exporters write
//!
//! ```text
//! d = x − mean(x)        over the last axes
//! y = d / √(mean(d²) + ε) [· scale] [+ bias]
//! ```
//!
//! As one operator it keeps two numbers per row instead of three tensors of `x`'s size, and
//! its gradient is one operator, too.

use crate::PassError;
use arenic_ir::graph::{Data, Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Unary};
use arenic_ir::types::{DType, TensorType};
use cranelift_entity::SecondaryMap;

/// Replaces every one; how many there were.
pub(super) fn layer_norms(g: &mut Graph) -> Result<u64, PassError> {
    let (readers, kept) = (g.readers(), g.kept());
    let found: Vec<Norm> = g.nodes.keys().filter_map(|n| norm(g, n, &readers, &kept)).collect();
    for norm in &found {
        let &Norm { last, x, axis, epsilon, scale, bias } = norm;
        let scale = scale.unwrap_or_else(|| one(g, x));
        let inputs: Vec<ValueId> = [x, scale].into_iter().chain(bias).collect();
        let op = Op::LayerNorm { axis, epsilon };
        let results = op.infer(&g.types_of(&inputs))?.len();
        let name = g.nodes[last].name.clone();
        let mut outputs = vec![None; results];
        outputs[0] = g.result(last);
        g.nodes[last] = Node { name, op, inputs, outputs };
    }
    Ok(found.len() as u64)
}

/// A normalisation that was found.
struct Norm {
    /// The node that gives its result, whose place it takes.
    last: NodeId,
    x: ValueId,
    axis: usize,
    epsilon: f32,
    scale: Option<ValueId>,
    bias: Option<ValueId>,
}

fn norm(
    g: &Graph,
    quotient: NodeId,
    readers: &SecondaryMap<ValueId, Vec<NodeId>>,
    kept: &SecondaryMap<ValueId, bool>,
) -> Option<Norm> {
    let [d, std] = binary(g, g.result(quotient)?, Binary::Div)?;
    let [x, mean] = binary(g, d, Binary::Sub)?;
    // Factors of a `bf16` operand have another type.
    if g.ty(x).dtype == DType::Bf16 {
        return None;
    }
    let axes = row_mean(g, mean, x)?;
    let Op::Unary { f: Unary::Sqrt } = node(g, std)?.op else { return None };
    let (variance, epsilon) = plus_constant(g, node(g, std)?.inputs[0])?;
    let square = node(g, variance)?.inputs[0];
    if row_mean(g, variance, square)? != axes || squared(g, square)? != d {
        return None;
    }
    let mut norm = Norm { last: quotient, x, axis: axes, epsilon, scale: None, bias: None };
    // What a lone reader multiplies by and adds belongs to it.
    for f in [Binary::Mul, Binary::Add] {
        let y = g.result(norm.last)?;
        let &[reader] = &readers[y][..] else { break };
        let Some([a, b]) = g.result(reader).and_then(|r| binary(g, r, f)) else { continue };
        let other = if a == y { b } else { a };
        if kept[y] || a == b || !is_parameter(g, other, x, axes) {
            break;
        }
        match f {
            Binary::Mul => norm.scale = Some(other),
            _ => norm.bias = Some(other),
        }
        norm.last = reader;
    }
    Some(norm)
}

fn node(g: &Graph, v: ValueId) -> Option<&Node> {
    match g.values[v].def {
        Def::Node { node, output: 0 } => Some(&g.nodes[node]),
        _ => None,
    }
}

/// The operands of a value that this function gives.
fn binary(g: &Graph, v: ValueId, wanted: Binary) -> Option<[ValueId; 2]> {
    match node(g, v)? {
        Node { op: Op::Binary { f }, inputs, .. } if *f == wanted => {
            Some([*inputs.first()?, *inputs.get(1)?])
        }
        _ => None,
    }
}

/// The first of the last axes over which `v` is the mean of `of`.
fn row_mean(g: &Graph, v: ValueId, of: ValueId) -> Option<usize> {
    let mean = node(g, v)?;
    let Op::Reduce { f: Reduction::Mean, axes, keep: true } = &mean.op else { return None };
    let first = *axes.first()?;
    let last = axes.iter().copied().eq(first..g.ty(of).rank());
    (last && mean.inputs[0] == of).then_some(first)
}

/// What a value is the square of.
fn squared(g: &Graph, v: ValueId) -> Option<ValueId> {
    if let Some([a, b]) = binary(g, v, Binary::Mul) {
        return (a == b).then_some(a);
    }
    let [base, exponent] = binary(g, v, Binary::Pow)?;
    (constant(g, exponent)? == 2.0).then_some(base)
}

/// What a constant is added to, and the constant.
fn plus_constant(g: &Graph, v: ValueId) -> Option<(ValueId, f32)> {
    let [a, b] = binary(g, v, Binary::Add)?;
    match (constant(g, a), constant(g, b)) {
        (None, Some(x)) => Some((a, x)),
        (Some(x), None) => Some((b, x)),
        _ => None,
    }
}

/// The value of a constant of one element.
fn constant(g: &Graph, v: ValueId) -> Option<f32> {
    let ty = g.ty(v);
    let bytes = g.const_bytes(v).filter(|_| ty.elements() == 1)?;
    match ty.dtype {
        DType::F32 => Some(f32::from_le_bytes(bytes[..].try_into().ok()?)),
        DType::F64 => Some(f64::from_le_bytes(bytes[..].try_into().ok()?) as f32),
        _ => None,
    }
}

/// True for what has one element per place in a row, or one for all.
fn is_parameter(g: &Graph, v: ValueId, x: ValueId, axis: usize) -> bool {
    let (ty, row) = (g.ty(v), &g.ty(x).shape[axis..]);
    ty.elements() == 1 || ty.shape == row
}

fn one(g: &mut Graph, like: ValueId) -> ValueId {
    let dtype = g.ty(like).dtype;
    let bytes = match dtype {
        DType::F64 => 1f64.to_le_bytes().to_vec(),
        _ => 1f32.to_le_bytes().to_vec(),
    };
    g.add_const("", TensorType::scalar(dtype), Data::Bytes(bytes.into()))
}
