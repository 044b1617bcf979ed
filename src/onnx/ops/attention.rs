//! `Attention` of opset 23 and 24, and the parts of `FlexAttention`, as products, a softmax and what is between them.

use super::{Row, row};
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use crate::onnx::read::element_type;
use arenic_ir::op::{Binary, Reduction, Unary};
use arenic_ir::{DType, Op, TensorType, ValueId};

const ATTENTION: &[&str] = &[
    "is_causal",
    "kv_num_heads",
    "left_window_size",
    "q_num_heads",
    "qk_matmul_output_mode",
    "right_window_size",
    "scale",
    "softcap",
    "softmax_precision",
];

pub(super) const ROWS: &[Row] = &[row("Attention", (3, 7), ATTENTION, attention).since(23)];

/// Heads of an operand: `[batch, heads, steps, size]`.
fn heads(cx: &mut Cx, x: ValueId, count: Option<i64>) -> Result<ValueId, Fault> {
    let ty = cx.ty(x);
    match (&ty.shape[..], count) {
        ([_, _, _, _], _) => Ok(x),
        (&[batch, steps, all], Some(count)) => {
            let count = usize::try_from(count).ok().filter(|&n| n > 0 && all.is_multiple_of(n));
            let count = count.ok_or_else(|| Fault(format!("its heads do not make up {ty}")))?;
            let x = cx.reshape(x, vec![batch, steps, count, all / count])?;
            cx.transposed(x, vec![0, 2, 1, 3])
        }
        _ => Err(Fault(format!("an operand is {ty}, and its heads are not said"))),
    }
}

/// Each head of keys or values as often as queries share it.
fn repeated(cx: &mut Cx, x: ValueId, heads: usize) -> Result<ValueId, Fault> {
    let ty = cx.ty(x);
    let [batch, own, steps, size] = ty.shape[..] else { return Ok(x) };
    if own == heads {
        return Ok(x);
    }
    if own == 0 || !heads.is_multiple_of(own) {
        return Err(Fault(format!("{heads} heads of queries do not share {own}")));
    }
    let x = cx.reshape(x, vec![batch, own, 1, steps, size])?;
    let shape = vec![batch, own, heads / own, steps, size];
    let x = cx.emit1(Op::Expand { shape }, vec![x])?;
    cx.reshape(x, vec![batch, heads, steps, size])
}

pub(super) fn attention(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let (of_queries, of_keys) = (a.int("q_num_heads")?, a.int("kv_num_heads")?);
    let causal = a.flag("is_causal", false)?;
    let softcap = f64::from(a.float_or("softcap", 0.0)?);
    let scale = a.float("scale")?;
    let mode = a.int_or("qk_matmul_output_mode", 0)?;
    let window = [a.int_or("left_window_size", -1)?, a.int_or("right_window_size", -1)?];
    if window.iter().any(|&w| w < -1) {
        return Err(Fault(format!("a window of {window:?}")));
    }
    let (q, k, v) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let flat = cx.ty(q).rank() == 3;
    let q = heads(cx, q, of_queries)?;
    let (mut k, mut v) = (heads(cx, k, of_keys)?, heads(cx, v, of_keys)?);
    let mut past = 0;
    if let (Some(keys), Some(values)) = (cx.optional(4)?, cx.optional(5)?) {
        past = cx.ty(keys).shape.get(2).copied().unwrap_or(0);
        k = cx.emit1(Op::Concat { axis: 2 }, vec![keys, k])?;
        v = cx.emit1(Op::Concat { axis: 2 }, vec![values, v])?;
    }
    let present = (k, v);
    let ty = cx.ty(q);
    let [batch, count, queries, size] = ty.shape[..] else {
        return Err(Fault(format!("its queries are {ty}")));
    };
    let keys = cx.ty(k).shape[2];
    (k, v) = (repeated(cx, k, count)?, repeated(cx, v, count)?);
    let product = scaled_product(cx, q, k, scale.map_or(1.0 / (size as f64).sqrt(), f64::from))?;
    let mut scores = product;
    let mut capped = product;
    if softcap > 0.0 {
        let part = cx.times(product, 1.0 / softcap)?;
        let part = cx.map(Unary::Tanh, part)?;
        capped = cx.times(part, softcap)?;
        scores = capped;
    }
    let lengths = cx.optional(6)?;
    let hides = cx.optional(3)?.is_some() || lengths.is_some() || causal || window != [-1, -1];
    if let Some(mask) = cx.optional(3)? {
        let mask = additive(cx, mask, ty.dtype, keys)?;
        scores = cx.add(scores, mask)?;
    }
    if let Some(sees) = seen(cx, [queries, keys], past, lengths, causal, window)? {
        let hidden = cx.scalar(ty.dtype, f64::NEG_INFINITY);
        scores = cx.select(sees, scores, hidden)?;
    }
    let weights = match hides {
        false => cx.emit1(Op::Softmax { axis: 3 }, vec![scores])?,
        true => {
            // A row that sees nothing has no weights.
            let most = cx.reduced(Reduction::Max, scores, &[3])?;
            let none = cx.with(Binary::Equal, most, f64::NEG_INFINITY)?;
            let zero = cx.scalar(ty.dtype, 0.0);
            let some = cx.select(none, zero, scores)?;
            let weights = cx.emit1(Op::Softmax { axis: 3 }, vec![some])?;
            cx.select(none, zero, weights)?
        }
    };
    let y = cx.emit1(Op::MatMul { trans_a: false, trans_b: false }, vec![weights, v])?;
    let y = match flat {
        false => y,
        true => {
            let size = cx.ty(y).shape[3];
            let y = cx.transposed(y, vec![0, 2, 1, 3])?;
            cx.reshape(y, vec![batch, queries, count * size])?
        }
    };
    let shown = match mode {
        0 => product,
        1 => capped,
        2 => scores,
        3 => weights,
        _ => return Err(Fault(format!("attribute `qk_matmul_output_mode` is {mode}"))),
    };
    Ok(vec![Some(y), Some(present.0), Some(present.1), Some(shown)])
}

/// Scores of queries and keys.
fn scaled_product(cx: &mut Cx, q: ValueId, k: ValueId, scale: f64) -> Result<ValueId, Fault> {
    // Queries and keys each get the root of it, as ONNX has it.
    let (q, k) = (cx.times(q, scale.sqrt())?, cx.times(k, scale.sqrt())?);
    let k = cx.transposed(k, vec![0, 1, 3, 2])?;
    cx.emit1(Op::MatMul { trans_a: false, trans_b: false }, vec![q, k])
}

/// The scores of a `FlexAttention`, in the type of its softmax, and its values, a head for each of queries.
pub(in crate::onnx) fn flexible_scores(cx: &mut Cx) -> Result<(ValueId, ValueId), Fault> {
    let a = cx.attributes();
    let (scale, precision) = (a.float("scale")?, a.int("softmax_precision")?);
    let (q, k, v) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let ty = cx.ty(q);
    let [_, count, _, size] = ty.shape[..] else {
        return Err(Fault(format!("its queries are {ty}, of four axes")));
    };
    for x in [k, v] {
        if cx.ty(x).rank() != 4 {
            return Err(Fault(format!("its keys or values are {}, of four axes", cx.ty(x))));
        }
    }
    let precision = match precision {
        Some(code) => i32::try_from(code)
            .map_err(|_| format!("element type {code} is unknown"))
            .and_then(element_type)?,
        None if ty.dtype == DType::F64 => DType::F64,
        None => DType::F32,
    };
    let (k, v) = (repeated(cx, k, count)?, repeated(cx, v, count)?);
    let scores = scaled_product(cx, q, k, scale.map_or(1.0 / (size as f64).sqrt(), f64::from))?;
    Ok((cx.cast(scores, precision)?, v))
}

/// The result of a `FlexAttention`: values by their weights, summed in the type of these.
pub(in crate::onnx) fn weighted(
    cx: &mut Cx,
    weights: ValueId,
    v: ValueId,
) -> Result<ValueId, Fault> {
    let (dtype, precise) = (cx.ty(v).dtype, cx.ty(weights).dtype);
    let v = cx.cast(v, precise)?;
    let y = cx.emit1(Op::MatMul { trans_a: false, trans_b: false }, vec![weights, v])?;
    cx.cast(y, dtype)
}

/// Which keys each query sees by its place: those that are no padding, not later ones where that is
/// asked for, and those in a window around it. Queries stand behind `past` keys or, where keys have
/// lengths, at their end.
fn seen(
    cx: &mut Cx,
    [queries, keys]: [usize; 2],
    past: usize,
    lengths: Option<ValueId>,
    causal: bool,
    [left, right]: [i64; 2],
) -> Result<Option<ValueId>, Fault> {
    let count = |cx: &mut Cx, shape: [usize; 2]| {
        let n = (shape[0] * shape[1]) as i64;
        let bytes: Vec<u8> = (0..n).flat_map(i64::to_le_bytes).collect();
        cx.b.constant(TensorType::new(DType::I64, shape), bytes)
    };
    let (query, key) = (count(cx, [queries, 1]), count(cx, [1, keys]));
    let mut all = Vec::new();
    let place = match lengths {
        None => cx.plus(query, past as f64)?,
        Some(lengths) => {
            let batch = cx.ty(lengths).elements();
            let lengths = cx.cast(lengths, DType::I64)?;
            let lengths = cx.reshape(lengths, vec![batch, 1, 1, 1])?;
            all.push(cx.both(Binary::Less, key, lengths)?);
            let first = cx.plus(lengths, -(queries as f64))?;
            cx.add(query, first)?
        }
    };
    if causal {
        all.push(cx.both(Binary::LessOrEqual, key, place)?);
    }
    let ahead = cx.sub(key, place)?;
    if left >= 0 {
        all.push(cx.with(Binary::GreaterOrEqual, ahead, -left as f64)?);
    }
    if right >= 0 {
        all.push(cx.with(Binary::LessOrEqual, ahead, right as f64)?);
    }
    let mut seen = None;
    for part in all {
        seen = Some(match seen {
            None => part,
            Some(seen) => cx.both(Binary::And, seen, part)?,
        });
    }
    Ok(seen)
}

/// What a mask adds to scores, for as many keys as there are.
fn additive(cx: &mut Cx, mask: ValueId, dtype: DType, keys: usize) -> Result<ValueId, Fault> {
    let mut mask = mask;
    if cx.ty(mask).dtype == DType::Bool {
        let (seen, hidden) = (cx.scalar(dtype, 0.0), cx.scalar(dtype, f64::NEG_INFINITY));
        mask = cx.select(mask, seen, hidden)?;
    }
    let mut shape = cx.ty(mask).shape;
    let Some(last) = shape.last_mut().filter(|last| **last < keys) else { return Ok(mask) };
    // Keys that a mask does not reach are hidden.
    *last = keys;
    let rank = shape.len();
    let op =
        Op::Pad { starts: vec![0; rank], steps: vec![1; rank], shape, value: f64::NEG_INFINITY };
    cx.emit1(op, vec![mask])
}
