//! `Pad`: a constant around the operand, or its own elements gathered once more.

use super::{Row, row};
use crate::onnx::context::{Built, Cx, axes, axis};
use crate::onnx::error::Fault;
use crate::onnx::fold::to_number;
use arenic_ir::{DType, Op, TensorType, ValueId};

pub(super) const ROWS: &[Row] =
    &[row("Pad", (2, 4), &["mode"], pad).note("pads, value and axes known when compiled")];

/// What stands where the operand has no element.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Constant,
    Edge,
    Reflect,
    Wrap,
}

/// Negative pads cut elements off first, then positive ones add some.
pub(super) fn pad(cx: &mut Cx) -> Built {
    let mode = cx.attributes().one_of(
        "mode",
        "constant",
        &[
            ("constant", Mode::Constant),
            ("edge", Mode::Edge),
            ("reflect", Mode::Reflect),
            ("wrap", Mode::Wrap),
        ],
    )?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let pads = pads(cx, ty.rank())?;
    let (cut, ty) = cut(cx, x, ty, &pads)?;
    let added: Vec<[usize; 2]> = pads.iter().map(|p| p.map(|n| n.max(0) as usize)).collect();
    let mut shape = Vec::with_capacity(ty.rank());
    for (&n, &[begin, end]) in ty.shape.iter().zip(&added) {
        let extent = n.checked_add(begin).and_then(|n| n.checked_add(end));
        shape.push(extent.ok_or("its result is too large")?);
    }
    if mode == Mode::Constant {
        let value = value(cx, ty.dtype)?;
        if shape == ty.shape {
            return Ok(vec![Some(cx.same(cut)?)]);
        }
        let starts = added.iter().map(|&[begin, _]| begin).collect();
        let op = Op::Pad { starts, steps: vec![1; ty.rank()], shape, value };
        return cx.whole(op, vec![cut]);
    }
    let mut y = cut;
    for (axis, &[begin, _]) in added.iter().enumerate() {
        if shape[axis] != ty.shape[axis] {
            let indices = indices(cx, mode, ty.shape[axis], begin, shape[axis])?;
            y = cx.emit1(Op::Gather { axis }, vec![y, indices])?;
        }
    }
    Ok(vec![Some(if y == cut { cx.same(y)? } else { y })])
}

/// The pads of every axis, before and behind it.
fn pads(cx: &mut Cx, rank: usize) -> Result<Vec<[i64; 2]>, Fault> {
    let given = cx.ints(1)?.ok_or("its pads are missing")?;
    let on = cx.ints(3)?.unwrap_or_else(|| (0..rank as i64).collect());
    axes(&on, rank)?;
    if given.len() != 2 * on.len() {
        return Err(Fault(format!("{} pads for {} axes", given.len(), on.len())));
    }
    let mut pads = vec![[0; 2]; rank];
    for (i, &at) in on.iter().enumerate() {
        pads[axis(at, rank)?] = [given[i], given[i + on.len()]];
    }
    Ok(pads)
}

/// What negative pads leave of `x`.
fn cut(
    cx: &mut Cx,
    x: ValueId,
    ty: TensorType,
    pads: &[[i64; 2]],
) -> Result<(ValueId, TensorType), Fault> {
    let off = |n: i64| usize::try_from(n.min(0).unsigned_abs()).unwrap_or(usize::MAX);
    let starts: Vec<usize> = pads.iter().map(|p| off(p[0])).collect();
    let mut shape = ty.shape.clone();
    for (i, extent) in shape.iter_mut().enumerate() {
        let left = extent.checked_sub(starts[i]).and_then(|n| n.checked_sub(off(pads[i][1])));
        *extent = left.ok_or_else(|| {
            Fault(format!("pads {:?} cut more than there is off axis {i} of {ty}", pads[i]))
        })?;
    }
    if shape == ty.shape {
        return Ok((x, ty));
    }
    let op = Op::Slice { starts, steps: vec![1; shape.len()], shape };
    let cut = cx.emit1(op, vec![x])?;
    Ok((cut, cx.ty(cut)))
}

/// The constant around the operand, zero where none is given.
fn value(cx: &mut Cx, dtype: DType) -> Result<f64, Fault> {
    let Some((ty, bytes)) = cx.one(2)? else { return Ok(0.0) };
    if ty.dtype != dtype {
        return Err(Fault(format!("its value is {ty}, but it pads {dtype}")));
    }
    to_number(dtype, &bytes)
        .ok_or_else(|| "its value is an integer that no double holds exactly".into())
}

/// For every index of a padded axis the index of the operand's element that stands there.
fn indices(
    cx: &mut Cx,
    mode: Mode,
    extent: usize,
    begin: usize,
    padded: usize,
) -> Result<ValueId, Fault> {
    if extent == 0 {
        return Err("there is nothing to repeat along an axis without elements".into());
    }
    let bytes = (padded as u64).checked_mul(8);
    if !bytes.is_some_and(|bytes| cx.b.spend(bytes)) {
        return Err("the model's constants take too much memory".into());
    }
    // Both fit: their sum does.
    let (n, begin) = (extent as i64, begin as i64);
    let source = |i: i64| match mode {
        Mode::Constant | Mode::Edge => (i - begin).clamp(0, n - 1),
        Mode::Wrap => (i - begin).rem_euclid(n),
        Mode::Reflect => {
            // There and back, without the ends twice.
            let i = (i - begin).rem_euclid((2 * n - 2).max(1));
            i.min(2 * n - 2 - i)
        }
    };
    let bytes: Vec<u8> = (0..padded as i64).flat_map(|i| source(i).to_le_bytes()).collect();
    Ok(cx.b.constant(TensorType::new(DType::I64, [padded]), bytes))
}
