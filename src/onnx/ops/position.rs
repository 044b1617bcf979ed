//! Operators on positions along an axis: rotary embeddings, sequences that are reversed, rounding.

use super::{Row, row};
use crate::onnx::context::{Built, Cx, axis};
use crate::onnx::error::Fault;
use arenic_ir::op::{Binary, Unary};
use arenic_ir::{DType, Op, TensorType, ValueId};

const ROTARY: &[&str] = &["interleaved", "num_heads", "rotary_embedding_dim"];

pub(super) const ROWS: &[Row] = &[
    row("ReverseSequence", (2, 2), &["batch_axis", "time_axis"], reverse_sequence),
    row("RotaryEmbedding", (3, 4), ROTARY, rotary_embedding).since(23),
    row("Round", (1, 1), &[], round),
];

/// To the nearest integer, and of two to the even one: `⌊x⌋`, and one more where the rest is above a
/// half, or is a half and `⌊x⌋` is odd. No step loses anything.
fn round(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    Ok(vec![Some(rounded(cx, x)?)])
}

/// See [`round`].
pub(super) fn rounded(cx: &mut Cx, x: ValueId) -> Result<ValueId, Fault> {
    let dtype = cx.ty(x).dtype;
    if !dtype.is_float() {
        return Err(Fault(format!("it does not take {dtype}")));
    }
    let floor = cx.map(Unary::Floor, x)?;
    let rest = cx.sub(x, floor)?;
    let above = cx.with(Binary::Greater, rest, 0.5)?;
    let half = cx.with(Binary::Equal, rest, 0.5)?;
    let pairs = cx.times(floor, 0.5)?;
    let pairs = cx.map(Unary::Floor, pairs)?;
    let even = cx.times(pairs, 2.0)?;
    let even = cx.both(Binary::Equal, even, floor)?;
    let odd = cx.map(Unary::Not, even)?;
    let tie = cx.both(Binary::And, half, odd)?;
    let up = cx.both(Binary::Or, above, tie)?;
    let next = cx.plus(floor, 1.0)?;
    // Also of what is no number or infinite, whose rest is none.
    cx.select(up, next, floor)
}

/// `x[…, t, …]` is taken from `length − 1 − t` while `t` is below the row's length.
fn reverse_sequence(cx: &mut Cx) -> Built {
    let (x, lengths) = (cx.input(0)?, cx.input(1)?);
    let (ty, of) = (cx.ty(x), cx.ty(lengths));
    let a = cx.attributes();
    let batch = axis(a.int_or("batch_axis", 1)?, ty.rank())?;
    let time = axis(a.int_or("time_axis", 0)?, ty.rank())?;
    if batch == time || batch > 1 || time > 1 {
        return Err(Fault(format!("batch axis {batch} and time axis {time} are not 0 and 1")));
    }
    let (rows, steps) = (ty.shape[batch], ty.shape[time]);
    if of.dtype != DType::I64 || of.shape != [rows] {
        return Err(Fault(format!("its lengths are {of}, not i64[{rows}]")));
    }
    // Rows first, then steps.
    let swap: Vec<usize> = [batch, time].into_iter().chain(2..ty.rank()).collect();
    let x = cx.transposed(x, swap.clone())?;
    let bytes: Vec<u8> = (0..steps as i64).flat_map(i64::to_le_bytes).collect();
    let here = cx.b.constant(TensorType::new(DType::I64, [1, steps]), bytes);
    let lengths = cx.reshape(lengths, vec![rows, 1])?;
    let within = cx.both(Binary::Less, here, lengths)?;
    let last = cx.plus(lengths, -1.0)?;
    let from = cx.sub(last, here)?;
    let from = cx.select(within, from, here)?;
    let from = cx.reshape(from, vec![rows, steps, 1])?;
    let y = cx.emit1(Op::GatherNd { batch_dims: 1 }, vec![x, from])?;
    Ok(vec![Some(cx.transposed(y, swap)?)])
}

/// Pairs of the first elements of every head are turned by the angles of their position.
fn rotary_embedding(cx: &mut Cx) -> Built {
    let (x, cos, sin) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let ids = cx.optional(3)?;
    let ty = cx.ty(x);
    let a = cx.attributes();
    let interleaved = a.flag("interleaved", false)?;
    let heads = a.int_or("num_heads", 0)?;
    let dim = a.int_or("rotary_embedding_dim", 0)?;
    // Batch, heads and steps, whichever comes second.
    let (split, head_axis) = match ty.shape[..] {
        [b, h, s, d] => (vec![b, h, s, d], 1),
        [b, s, all] => {
            let h = usize::try_from(heads).ok().filter(|&h| h > 0 && all.is_multiple_of(h));
            let h = h.ok_or_else(|| Fault(format!("{heads} heads do not make up {ty}")))?;
            (vec![b, s, h, all / h], 2)
        }
        _ => return Err(Fault(format!("its operand is {ty}, of another rank than 3 or 4"))),
    };
    let size = split[3];
    let turned = match usize::try_from(dim) {
        Ok(0) => size,
        Ok(n) if n <= size && n.is_multiple_of(2) => n,
        _ => return Err(Fault(format!("it turns {dim} of {size} elements"))),
    };
    if !turned.is_multiple_of(2) {
        return Err(Fault(format!("it turns {turned} elements, which are no pairs")));
    }
    let angles = |cx: &mut Cx, cache: ValueId| -> Result<ValueId, Fault> {
        let rows = match ids {
            Some(ids) => cx.emit1(Op::Gather { axis: 0 }, vec![cache, ids])?,
            None => cache,
        };
        let mut shape = cx.ty(rows).shape;
        if shape.len() != 3 || shape[2] < turned / 2 {
            return Err(Fault(format!("its angles are {}", cx.ty(rows))));
        }
        let rows = part(cx, rows, 2, 0, turned / 2, 1)?;
        shape[2] = turned / 2;
        shape.insert(head_axis, 1);
        cx.reshape(rows, shape)
    };
    let (cos, sin) = (angles(cx, cos)?, angles(cx, sin)?);
    let x = cx.reshape(x, split.clone())?;
    let (first, second) = match interleaved {
        true => (part(cx, x, 3, 0, turned / 2, 2)?, part(cx, x, 3, 1, turned / 2, 2)?),
        false => (part(cx, x, 3, 0, turned / 2, 1)?, part(cx, x, 3, turned / 2, turned / 2, 1)?),
    };
    let (a, b) = (cx.mul(cos, first)?, cx.mul(sin, second)?);
    let real = cx.sub(a, b)?;
    let (a, b) = (cx.mul(sin, first)?, cx.mul(cos, second)?);
    let imaginary = cx.add(a, b)?;
    let mut shape = split.clone();
    shape[3] = turned;
    let y = match interleaved {
        false => cx.emit1(Op::Concat { axis: 3 }, vec![real, imaginary])?,
        true => {
            let pair = vec![split[0], split[1], split[2], turned / 2, 1];
            let real = cx.reshape(real, pair.clone())?;
            let imaginary = cx.reshape(imaginary, pair)?;
            let pairs = cx.emit1(Op::Concat { axis: 4 }, vec![real, imaginary])?;
            cx.reshape(pairs, shape)?
        }
    };
    let y = match turned < size {
        false => y,
        true => {
            let rest = part(cx, x, 3, turned, size - turned, 1)?;
            cx.emit1(Op::Concat { axis: 3 }, vec![y, rest])?
        }
    };
    Ok(vec![Some(cx.reshape(y, ty.shape)?)])
}

/// Elements of an axis, from a first one by a step.
pub(super) fn part(
    cx: &mut Cx,
    x: ValueId,
    along: usize,
    first: usize,
    count: usize,
    step: i64,
) -> Result<ValueId, Fault> {
    let mut shape = cx.ty(x).shape;
    let (mut starts, mut steps) = (vec![0; shape.len()], vec![1; shape.len()]);
    (starts[along], steps[along], shape[along]) = (first, step, count);
    cx.emit1(Op::Slice { starts, steps, shape }, vec![x])
}
