//! Gradients of what moves elements.

use crate::onnx::context::{Built, Cx, axis, extents};
use crate::onnx::error::Fault;
use arenic_ir::op::{Binary, Scatter};
use arenic_ir::{DType, Op, TensorType};

/// An operand that is a shape.
fn shape(cx: &mut Cx, i: usize) -> Result<Vec<usize>, Fault> {
    extents(&cx.ints(i)?.ok_or("its shape is missing")?)
}

/// `shape, indices, dy → dx`: every index adds its slice.
pub(in super::super) fn gather_grad(cx: &mut Cx) -> Built {
    let shape = shape(cx, 0)?;
    let (indices, dy) = (cx.input(1)?, cx.input(2)?);
    let at = axis(cx.attributes().int_or("axis", 0)?, shape.len())?;
    let (ty, count) = (cx.ty(dy), cx.ty(indices).rank());
    if ty.rank() != shape.len() + count - 1 {
        return Err(Fault(format!("{ty} is no gradient of what is gathered from {shape:?}")));
    }
    // The axis that is indexed comes first, before the scatter and back after it.
    let first: Vec<usize> = [at].into_iter().chain((0..shape.len()).filter(|&i| i != at)).collect();
    let turned: Vec<usize> = first.iter().map(|&i| shape[i]).collect();
    let mut updates = dy;
    if at > 0 {
        let of_indices = at..at + count;
        let rest = (0..ty.rank()).filter(|i| !of_indices.contains(i));
        updates = cx.transposed(dy, of_indices.clone().chain(rest).collect())?;
    }
    let tuples = [&cx.ty(indices).shape[..], &[1]].concat();
    let indices = cx.reshape(indices, tuples)?;
    let zeros = cx.zeros(&TensorType::new(ty.dtype, turned))?;
    let scatter = Op::ScatterNd { reduction: Scatter::Add };
    let dx = cx.emit1(scatter, vec![zeros, indices, updates])?;
    if at == 0 {
        return Ok(vec![Some(dx)]);
    }
    let mut back = vec![0; first.len()];
    first.iter().enumerate().for_each(|(i, &p)| back[p] = i);
    Ok(vec![Some(cx.transposed(dx, back)?)])
}

/// `dy, shape, indices → dx`.
pub(in super::super) fn gather_elements_grad(cx: &mut Cx) -> Built {
    let shape = shape(cx, 1)?;
    let (dy, indices) = (cx.input(0)?, cx.input(2)?);
    let axis = axis(cx.attributes().int_or("axis", 0)?, shape.len())?;
    let ty = TensorType::new(cx.ty(dy).dtype, shape);
    let zeros = cx.zeros(&ty)?;
    cx.whole(Op::ScatterElements { axis, reduction: Scatter::Add }, vec![zeros, indices, dy])
}

/// `dy, shape, starts, ends[, axes[, steps]] → dx`: zeros around.
pub(in super::super) fn slice_grad(cx: &mut Cx) -> Built {
    let shape = shape(cx, 1)?;
    let starts = cx.ints(2)?.ok_or("its starts are missing")?;
    let on = cx.ints(4)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    if cx.ints(5)?.is_some_and(|steps| steps.iter().any(|&s| s != 1)) {
        return Err("its steps are not all 1".into());
    }
    let mut dx = cx.input(0)?;
    if on.len() != starts.len() || cx.ty(dx).rank() != shape.len() {
        return Err("its operands do not fit".into());
    }
    for (&at, &start) in on.iter().zip(&starts) {
        let at = axis(at, shape.len())?;
        let ty = cx.ty(dx);
        let (extent, length) = (shape[at], ty.shape[at]);
        let start = if start < 0 { start.saturating_add(extent as i64) } else { start };
        let before = start.clamp(0, extent as i64) as usize;
        let Some(after) = extent.checked_sub(before).and_then(|n| n.checked_sub(length)) else {
            return Err(Fault(format!("{ty} is no slice of {shape:?} from {start} on")));
        };
        let mut parts = Vec::new();
        for (extent, is_zero) in [(before, true), (length, false), (after, true)] {
            match is_zero {
                false => parts.push(dx),
                true if extent > 0 => parts.push(cx.zeros(&ty.with_extent(at, extent))?),
                true => {}
            }
        }
        if parts.len() > 1 {
            dx = cx.emit1(Op::Concat { axis: at }, parts)?;
        }
    }
    if cx.ty(dx).shape != shape {
        return Err(Fault(format!("its gradient is {}, not of shape {shape:?}", cx.ty(dx))));
    }
    Ok(vec![Some(dx)])
}

/// `x… → y, extents`: the extents of the operands along the axis.
pub(in super::super) fn concat(cx: &mut Cx) -> Built {
    let at = cx.attributes().int_or("axis", 0)?;
    let inputs = cx.inputs()?;
    let rank = inputs.first().map_or(0, |&x| cx.ty(x).rank());
    let axis = axis(at, rank)?;
    let lengths: Vec<u8> = inputs
        .iter()
        .flat_map(|&x| (cx.ty(x).shape.get(axis).copied().unwrap_or(0) as i64).to_le_bytes())
        .collect();
    let y = cx.emit1(Op::Concat { axis }, inputs)?;
    let ty = TensorType::new(DType::I64, [lengths.len() / 8]);
    Ok(vec![Some(y), Some(cx.b.constant(ty, lengths))])
}

/// `dy, mask[, ratio[, training]] → dy · mask / (1 − ratio)`.
pub(in super::super) fn dropout_grad(cx: &mut Cx) -> Built {
    let (dy, mask) = (cx.input(0)?, cx.input(1)?);
    if cx.one(3)?.is_some_and(|(_, bytes)| bytes.iter().all(|&b| b == 0)) {
        return Ok(vec![Some(cx.same(dy)?)]);
    }
    let dtype = cx.ty(dy).dtype;
    let ratio = match cx.optional(2)? {
        Some(ratio) => cx.cast(ratio, dtype)?,
        None => cx.scalar(dtype, 0.5),
    };
    let ratio = cx.as_scalar(ratio)?;
    let kept = cx.number_minus(1.0, ratio)?;
    let mask = cx.cast(mask, dtype)?;
    let dx = cx.mul(dy, mask)?;
    Ok(vec![Some(cx.both(Binary::Div, dx, kept)?)])
}
