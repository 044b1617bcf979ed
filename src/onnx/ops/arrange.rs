//! Blocks of elements, triangles, diagonals, one-hot vectors, and the middle of a tensor.

use super::compose::Made;
use super::{Row, row};
use crate::onnx::context::{Built, Cx, axes, axis, extents};
use crate::onnx::error::Fault;
use crate::onnx::fold::{to_floats, to_ints};
use crate::onnx::read::element_type;
use arenic_ir::op::Binary;
use arenic_ir::{DType, Op, TensorType, ValueId};

pub(super) const ROWS: &[Row] = &[
    row("CenterCropPad", (2, 2), &["axes"], center_crop_pad)
        .since(18)
        .note("shape known when compiled"),
    row("DepthToSpace", (1, 1), &["blocksize", "mode"], depth_to_space),
    row("EyeLike", (1, 1), &["dtype", "k"], eye_like),
    row("OneHot", (3, 3), &["axis"], one_hot).note("depth known when compiled"),
    row("SpaceToDepth", (1, 1), &["blocksize", "mode"], space_to_depth),
    row("Trilu", (1, 2), &["upper"], trilu).since(14).note("k known when compiled"),
];

/// Blocks of `[N, C, H, W]`, in the order of ONNX's default mode or the other one.
struct Blocks {
    x: ValueId,
    shape: [usize; 4],
    size: usize,
    depth_first: bool,
}

fn blocks(cx: &mut Cx) -> Result<Blocks, Fault> {
    let a = cx.attributes();
    let size = a.int("blocksize")?.ok_or("attribute `blocksize` is missing")?;
    let depth_first = a.one_of("mode", "DCR", &[("DCR", true), ("CRD", false)])?;
    let size = usize::try_from(size).ok().filter(|&s| (1..1 << 16).contains(&s));
    let size = size.ok_or("attribute `blocksize` is out of range")?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let shape = ty.shape.clone().try_into().map_err(|_| format!("{ty} is not of rank 4"))?;
    Ok(Blocks { x, shape, size, depth_first })
}

fn depth_to_space(cx: &mut Cx) -> Built {
    let Blocks { x, shape: [n, c, h, w], size: b, depth_first } = blocks(cx)?;
    if !c.is_multiple_of(b * b) {
        return Err(Fault(format!("{c} channels do not fall into blocks of {b}")));
    }
    let depth = c / (b * b);
    let (split, perm) = match depth_first {
        true => (vec![n, b, b, depth, h, w], vec![0, 3, 4, 1, 5, 2]),
        false => (vec![n, depth, b, b, h, w], vec![0, 1, 4, 2, 5, 3]),
    };
    rearranged(cx, x, split, perm, vec![n, depth, h.saturating_mul(b), w.saturating_mul(b)])
}

fn space_to_depth(cx: &mut Cx) -> Built {
    let Blocks { x, shape: [n, c, h, w], size: b, depth_first } = blocks(cx)?;
    if !h.is_multiple_of(b) || !w.is_multiple_of(b) {
        return Err(Fault(format!("{h} by {w} does not fall into blocks of {b}")));
    }
    let perm = if depth_first { vec![0, 3, 5, 1, 2, 4] } else { vec![0, 1, 3, 5, 2, 4] };
    let (depth, h, w) = (c.saturating_mul(b * b), h / b, w / b);
    rearranged(cx, x, vec![n, c, h, b, w, b], perm, vec![n, depth, h, w])
}

fn rearranged(
    cx: &mut Cx,
    x: ValueId,
    split: Vec<usize>,
    perm: Vec<usize>,
    shape: Vec<usize>,
) -> Built {
    let parts = cx.reshape(x, split)?;
    let turned = cx.transposed(parts, perm)?;
    Ok(vec![Some(cx.reshape(turned, shape)?)])
}

/// A constant for its elements' positions in a matrix.
fn mask(cx: &mut Cx, [rows, columns]: [usize; 2], holds: impl Fn(i128, i128) -> bool) -> Made {
    let ty = TensorType::new(DType::Bool, [rows, columns]);
    if ty.checked_bytes().is_none() || !cx.b.spend(ty.bytes()) {
        return Err("the model's constants take too much memory".into());
    }
    let row = |i: usize| (0..columns).map(move |j| (i as i128, j as i128));
    let bytes: Vec<u8> = (0..rows).flat_map(row).map(|(i, j)| holds(i, j).into()).collect();
    Ok(cx.b.constant(ty, bytes))
}

fn trilu(cx: &mut Cx) -> Built {
    let upper = cx.attributes().flag("upper", true)?;
    let k = cx.ints(1)?.map_or(Ok(0), |list| list.first().copied().ok_or("its k is empty"))?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let &[.., rows, columns] = &ty.shape[..] else {
        return Err(Fault(format!("{ty} is no matrix")));
    };
    let k = i128::from(k);
    let kept = mask(cx, [rows, columns], |i, j| if upper { j - i >= k } else { j - i <= k })?;
    let zero = cx.scalar(ty.dtype, 0.0);
    Ok(vec![Some(cx.select(kept, x, zero)?)])
}

/// Ones on a diagonal of a matrix as large as the operand.
fn eye_like(cx: &mut Cx) -> Built {
    let k = i128::from(cx.attributes().int_or("k", 0)?);
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let to = match cx.attributes().int("dtype")? {
        Some(code) => {
            let code = i32::try_from(code).map_err(|_| format!("element type {code} is unknown"));
            code.and_then(element_type)?
        }
        None => ty.dtype,
    };
    let &[rows, columns] = &ty.shape[..] else { return Err(Fault(format!("{ty} is no matrix"))) };
    let is_on = mask(cx, [rows, columns], |i, j| j - i == k)?;
    Ok(vec![Some(cx.cast(is_on, to)?)])
}

/// The middle of the operand, or the operand in the middle of zeros, along each axis.
fn center_crop_pad(cx: &mut Cx) -> Built {
    let wanted = extents(&cx.ints(1)?.ok_or("its shape is missing")?)?;
    let x = cx.input(0)?;
    let rank = cx.ty(x).rank();
    let named = cx.attributes().ints("axes")?.map(<[i64]>::to_vec);
    let named = named.unwrap_or_else(|| (0..rank as i64).collect());
    axes(&named, rank)?;
    let on = named.iter().map(|&at| axis(at, rank)).collect::<Result<Vec<usize>, _>>()?;
    if on.len() != wanted.len() {
        return Err(Fault(format!("{} extents for {} axes", wanted.len(), on.len())));
    }
    let (mut cut, mut whole) = (cx.ty(x).shape, cx.ty(x).shape);
    let (mut from, mut to) = (vec![0; rank], vec![0; rank]);
    for (&at, &extent) in on.iter().zip(&wanted) {
        from[at] = cut[at].saturating_sub(extent) / 2;
        to[at] = extent.saturating_sub(cut[at]) / 2;
        (cut[at], whole[at]) = (cut[at].min(extent), extent);
    }
    let cut = cx.emit1(Op::Slice { starts: from, steps: vec![1; rank], shape: cut }, vec![x])?;
    cx.whole(Op::Pad { starts: to, steps: vec![1; rank], shape: whole, value: 0.0 }, vec![cut])
}

/// Longest one-hot vector.
const MAX_DEPTH: i64 = 1 << 24;

/// Indices out of range have no element that is on.
fn one_hot(cx: &mut Cx) -> Built {
    let (ty, bytes) = cx.one(1)?.ok_or("its depth is missing")?;
    let floats = || to_floats(&ty, &bytes).and_then(|f| Some(*f.first()? as i64));
    let depth = to_ints(&ty, &bytes).and_then(|i| i.first().copied()).or_else(floats);
    let depth = depth.filter(|d| (0..=MAX_DEPTH).contains(d)).ok_or("its depth is out of range")?;
    let at = cx.attributes().int_or("axis", -1)?;
    let (indices, values) = (cx.input(0)?, cx.input(2)?);
    let shape = cx.ty(indices).shape;
    let at = axis(at, shape.len() + 1)?;
    let indices = cx.cast(indices, DType::I64)?;
    let is_negative = cx.with(Binary::Less, indices, 0.0)?;
    let from_end = cx.plus(indices, depth as f64)?;
    let indices = cx.select(is_negative, from_end, indices)?;
    let indices = cx.reshape(indices, [&shape[..at], &[1], &shape[at..]].concat())?;
    let mut places = vec![1; shape.len() + 1];
    places[at] = depth as usize;
    let ty = TensorType::new(DType::I64, places);
    if !cx.b.spend(ty.bytes()) {
        return Err("the model's constants take too much memory".into());
    }
    let places: Vec<u8> = (0..depth).flat_map(i64::to_le_bytes).collect();
    let places = cx.b.constant(ty, places);
    let is_on = cx.both(Binary::Equal, indices, places)?;
    if cx.ty(values).shape != [2] {
        return Err(Fault(format!("its values are {}, not two", cx.ty(values))));
    }
    let pick = |cx: &mut Cx, first: usize| {
        let op = Op::Slice { starts: vec![first], steps: vec![1], shape: vec![1] };
        let one = cx.emit1(op, vec![values])?;
        cx.as_scalar(one)
    };
    let (off, on) = (pick(cx, 0)?, pick(cx, 1)?);
    Ok(vec![Some(cx.select(is_on, on, off)?)])
}
