//! Operators that move elements, or only rename their positions.

use super::{ANY, Row, row};
use crate::onnx::context::{Built, Cx, Slot, axes, axis, extents};
use crate::onnx::error::Fault;
use arenic_ir::types::{broadcast_shapes, dense_strides};
use arenic_ir::{DType, Op, TensorType};

pub(super) const ROWS: &[Row] = &[
    row("Concat", (1, ANY), &["axis"], concat),
    row("Expand", (2, 2), &[], expand).note("shape known when compiled"),
    row("Flatten", (1, 1), &["axis"], flatten),
    row("Identity", (1, 1), &[], identity),
    row("Reshape", (2, 2), &["allowzero"], reshape).note("shape known when compiled"),
    row("Slice", (3, 5), &[], slice).note("bounds known when compiled"),
    row("Split", (1, 2), &["axis", "num_outputs"], split).note("sizes known when compiled"),
    row("Squeeze", (1, 2), &[], squeeze).note("axes known when compiled"),
    row("Tile", (2, 2), &[], tile).note("repeats known when compiled"),
    row("Transpose", (1, 1), &["perm"], transpose),
    row("Unsqueeze", (2, 2), &[], unsqueeze).note("axes known when compiled"),
];

pub(super) fn identity(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    Ok(vec![Some(cx.same(x)?)])
}

pub(super) fn reshape(cx: &mut Cx) -> Built {
    let allow_zero = cx.attributes().flag("allowzero", false)?;
    let target = cx.ints(1)?.ok_or("its shape is missing")?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let misfit = || Fault(format!("{ty} does not reshape to {target:?}"));
    let mut shape = Vec::with_capacity(target.len());
    let mut open = None;
    for (i, &d) in target.iter().enumerate() {
        shape.push(match d {
            0 if !allow_zero => *ty.shape.get(i).ok_or_else(misfit)?,
            -1 if open.is_none() => {
                open = Some(i);
                1
            }
            d => usize::try_from(d).map_err(|_| misfit())?,
        });
    }
    if let Some(i) = open {
        if allow_zero && target.contains(&0) {
            return Err("both 0 and -1 in its shape, with allowzero".into());
        }
        let rest = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(misfit)?;
        shape[i] = match (ty.elements(), rest) {
            (0, 0) => 0,
            (n, rest) if rest > 0 && n % rest == 0 => n / rest,
            _ => return Err(misfit()),
        };
    }
    Ok(vec![Some(cx.reshape(x, shape)?)])
}

pub(super) fn flatten(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let at = match cx.attributes().int_or("axis", 1)? {
        a if a == ty.rank() as i64 => ty.rank(),
        a => axis(a, ty.rank())?,
    };
    let product = |s: &[usize]| s.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let (Some(rows), Some(columns)) = (product(&ty.shape[..at]), product(&ty.shape[at..])) else {
        return Err(Fault(format!("{ty} does not flatten")));
    };
    Ok(vec![Some(cx.reshape(x, vec![rows, columns])?)])
}

fn squeeze(cx: &mut Cx) -> Built {
    let given = cx.ints(1)?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let gone = match given {
        Some(list) => axes(&list, ty.rank())?,
        None => (0..ty.rank()).filter(|&i| ty.shape[i] == 1).collect(),
    };
    if let Some(i) = gone.iter().find(|&&i| ty.shape[i] != 1) {
        return Err(Fault(format!("axis {i} of {ty} is not 1")));
    }
    let shape = (0..ty.rank()).filter(|i| !gone.contains(i)).map(|i| ty.shape[i]).collect();
    Ok(vec![Some(cx.reshape(x, shape)?)])
}

fn unsqueeze(cx: &mut Cx) -> Built {
    let list = cx.ints(1)?.ok_or("its axes are missing")?;
    let x = cx.input(0)?;
    let old = cx.ty(x).shape;
    let rank = old.len() + list.len();
    let new = axes(&list, rank)?;
    let mut rest = old.into_iter();
    let shape = (0..rank)
        .map(|i| if new.binary_search(&i).is_ok() { Some(1) } else { rest.next() })
        .collect::<Option<Vec<_>>>()
        .ok_or("its axes do not fit")?;
    Ok(vec![Some(cx.reshape(x, shape)?)])
}

fn expand(cx: &mut Cx) -> Built {
    let target = extents(&cx.ints(1)?.ok_or("its shape is missing")?)?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    // ONNX broadcasts both ways: a 1 in the target keeps the operand's extent.
    let shape = broadcast_shapes(&ty.shape, &target)
        .ok_or_else(|| format!("{ty} does not broadcast with {target:?}"))?;
    if shape == ty.shape {
        return identity(cx);
    }
    Ok(vec![Some(cx.emit1(Op::Expand { shape }, vec![x])?)])
}

/// Each repeated axis `d` becomes a pair `1, d`, which expands to `n, d`.
fn tile(cx: &mut Cx) -> Built {
    let repeats = extents(&cx.ints(1)?.ok_or("its repeats are missing")?)?;
    let x = cx.input(0)?;
    let old = cx.ty(x).shape;
    if repeats.len() != old.len() {
        return Err(Fault(format!("{} repeats for rank {}", repeats.len(), old.len())));
    }
    let (mut pairs, mut expanded, mut shape) = (Vec::new(), Vec::new(), Vec::new());
    for (&n, &d) in repeats.iter().zip(&old) {
        if n != 1 {
            pairs.push(1);
            expanded.push(n);
        }
        pairs.push(d);
        expanded.push(d);
        shape.push(n.checked_mul(d).ok_or("its result is too large")?);
    }
    let x = cx.reshape(x, pairs)?;
    let x = cx.emit1(Op::Expand { shape: expanded }, vec![x])?;
    Ok(vec![Some(cx.reshape(x, shape)?)])
}

pub(super) fn transpose(cx: &mut Cx) -> Built {
    let perm = cx.attributes().ints("perm")?;
    let x = cx.input(0)?;
    let rank = cx.ty(x).rank();
    let perm = match perm {
        Some(list) => extents(list)?,
        None => (0..rank).rev().collect(),
    };
    if perm.iter().copied().eq(0..rank) {
        return identity(cx);
    }
    cx.whole(Op::Transpose { perm }, vec![x])
}

pub(super) fn concat(cx: &mut Cx) -> Built {
    let at = cx.attributes().int("axis")?.ok_or("attribute `axis` is missing")?;
    let inputs = cx.inputs()?;
    let rank = inputs.first().map_or(0, |&x| cx.ty(x).rank());
    cx.whole(Op::Concat { axis: axis(at, rank)? }, inputs)
}

pub(super) fn split(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let given = cx.ints(1)?;
    let parts = a.int("num_outputs")?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let at = axis(a.int_or("axis", 0)?, ty.rank())?;
    let (extent, n) = (ty.shape[at], cx.node.outputs.len());
    let sizes = match (given, parts) {
        (Some(_), Some(_)) => return Err("both `split` and `num_outputs`".into()),
        (Some(list), None) => extents(&list)?,
        (None, Some(parts)) if parts != n as i64 => {
            return Err(Fault(format!("`num_outputs` is {parts}, but it has {n} results")));
        }
        (None, Some(_)) if n > 0 => {
            let part = extent.div_ceil(n);
            (0..n).map(|i| extent.saturating_sub(i * part).min(part)).collect()
        }
        _ if n == 0 || !extent.is_multiple_of(n) => {
            return Err(Fault(format!("axis {at} of {ty} does not split into {n} equal parts")));
        }
        _ => vec![extent / n; n],
    };
    let total = sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s));
    if sizes.len() != n || total != Some(extent) {
        return Err(Fault(format!("parts {sizes:?} do not make up axis {at} of {ty}")));
    }
    let mut results = Vec::with_capacity(n);
    let mut first = 0;
    for (i, &size) in sizes.iter().enumerate() {
        let (mut starts, mut shape) = (vec![0; ty.rank()], ty.shape.clone());
        starts[at] = first;
        shape[at] = size;
        first += size;
        let op = Op::Slice { starts, steps: vec![1; ty.rank()], shape };
        results.push(if cx.wants(i) { Some(cx.emit1(op, vec![x])?) } else { None });
    }
    Ok(results)
}

/// Largest slice of a pool's positions that becomes a constant.
const MAX_POSITIONS: u64 = 16 << 20;

pub(super) fn slice(cx: &mut Cx) -> Built {
    let starts = cx.ints(1)?.ok_or("its starts are missing")?;
    let ends = cx.ints(2)?.ok_or("its ends are missing")?;
    let (on, by) = (cx.ints(3)?, cx.ints(4)?);
    let unmade = match cx.slot(0) {
        Slot::Positions { x, .. } => Some(TensorType::new(DType::I64, cx.ty(x).shape)),
        _ => None,
    };
    let (x, ty) = match &unmade {
        Some(ty) => (None, ty.clone()),
        None => {
            let x = cx.input(0)?;
            (Some(x), cx.ty(x))
        }
    };
    let n = starts.len();
    let on = on.unwrap_or_else(|| (0..n as i64).collect());
    let by = by.unwrap_or_else(|| vec![1; n]);
    if [ends.len(), on.len(), by.len()] != [n; 3] {
        return Err("its starts, ends, axes and steps differ in length".into());
    }
    axes(&on, ty.rank())?;
    let mut shape = ty.shape.clone();
    let (mut first, mut steps) = (vec![0; ty.rank()], vec![1; ty.rank()]);
    for i in 0..n {
        let at = axis(on[i], ty.rank())?;
        let (start, length) = bounds(starts[i], ends[i], by[i], ty.shape[at])?;
        (first[at], steps[at], shape[at]) = (start, by[i], length);
    }
    let x = match x {
        Some(x) => x,
        None => {
            let part = TensorType::new(DType::I64, shape.as_slice());
            if part.bytes() <= MAX_POSITIONS && cx.b.spend(part.bytes()) {
                let bytes = positions(&ty.shape, &first, &steps, &shape);
                return Ok(vec![Some(cx.b.constant(part, bytes))]);
            }
            cx.input(0)?
        }
    };
    cx.whole(Op::Slice { starts: first, steps, shape }, vec![x])
}

/// First index and number of indices that `start..end` by `step` selects, as NumPy does, but that a
/// start before the first element is the first one backwards, too.
fn bounds(start: i64, end: i64, step: i64, extent: usize) -> Result<(usize, usize), Fault> {
    if step == 0 {
        return Err("a step is zero".into());
    }
    let (d, step) = (extent as i128, i128::from(step));
    let at = |i: i64| i128::from(i) + if i < 0 { d } else { 0 };
    // Backwards, the end -1 stands before the first element.
    let (low, high) = if step > 0 { (0, d) } else { (-1, d - 1) };
    let start = at(start).max(0).min(high);
    let span = at(end).clamp(low, high) - start;
    if span.signum() != step.signum() {
        return Ok((0, 0));
    }
    let length = span / step + i128::from(span % step != 0);
    Ok((start as usize, length as usize))
}

/// The elements of a slice of `0, 1, 2, …` in the shape `of`.
fn positions(of: &[usize], first: &[usize], steps: &[i64], shape: &[usize]) -> Vec<u8> {
    let strides = dense_strides(of);
    let mut at = vec![0i64];
    for i in 0..of.len() {
        let along = |k: usize| (first[i] as i64 + k as i64 * steps[i]) * strides[i] as i64;
        at = at.iter().flat_map(|&base| (0..shape[i]).map(move |k| base + along(k))).collect();
    }
    at.into_iter().flat_map(i64::to_le_bytes).collect()
}
