//! Pools.

use super::compose::Made;
use super::conv::{spatial, window};
use super::spatial::each;
use super::{Row, row};
use crate::onnx::context::{Built, Cx, Slot, extents};
use crate::onnx::error::Fault;
use arenic_ir::op::{Binary, PoolIndices, Reduction, Scatter, Unary, Window};
use arenic_ir::{DType, Op, ValueId};

pub(super) const AVERAGE_POOL: &[&str] =
    &["auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides"];
pub(super) const MAX_POOL: &[&str] =
    &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"];
const LP_POOL: &[&str] =
    &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "p", "pads", "strides"];

pub(super) const ROWS: &[Row] = &[
    row("AveragePool", (1, 1), AVERAGE_POOL, average_pool),
    row("GlobalAveragePool", (1, 1), &[], global_pool),
    row("GlobalLpPool", (1, 1), &["p"], global_lp_pool),
    row("GlobalMaxPool", (1, 1), &[], global_pool),
    row("LpPool", (1, 1), LP_POOL, lp_pool),
    row("MaxPool", (1, 1), MAX_POOL, max_pool),
    row("MaxUnpool", (2, 3), &["kernel_shape", "pads", "strides"], max_unpool)
        .note("output shape known when compiled"),
];

fn pool_window(cx: &mut Cx) -> Result<Window, Fault> {
    let a = cx.attributes();
    let kernel = extents(a.ints("kernel_shape")?.ok_or("attribute `kernel_shape` is missing")?)?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    window(&a, kernel, spatial(&ty)?)
}

fn average_pool(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let op = Op::AveragePool {
        window: pool_window(cx)?,
        ceil: a.flag("ceil_mode", false)?,
        count_include_pad: a.flag("count_include_pad", false)?,
    };
    let x = cx.input(0)?;
    cx.whole(op, vec![x])
}

fn max_pool(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let window = pool_window(cx)?;
    let indices = match a.flag("storage_order", false)? {
        true => PoolIndices::ColumnMajorPositions,
        false => PoolIndices::Positions,
    };
    let identity = window.is_pointwise() && indices == PoolIndices::Positions;
    let op = Op::MaxPool { window, ceil: a.flag("ceil_mode", false)?, indices };
    let x = cx.input(0)?;
    if let Some(&Some(t)) = cx.node.outputs.get(1)
        && identity
        && !cx.wants(0)
    {
        op.infer(&[cx.b.g.ty(x)])?;
        cx.slots[t] = Slot::Positions { x, op, node: cx.node.name.to_string() };
        return Ok(vec![None, None]);
    }
    cx.whole(op, vec![x])
}

/// `(Σ |x|ᵖ)^(1/p)` over each window, whose pads count as zeros: the sum is a convolution with ones.
fn lp_pool(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let (p, ceil) = (a.int_or("p", 2)?, a.flag("ceil_mode", false)?);
    let mut window = pool_window(cx)?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let like = Op::AveragePool { window: window.clone(), ceil, count_include_pad: true };
    let results = like.infer(&[&ty])?;
    // As far as the last window goes where it is not whole.
    for (i, &extent) in results[0].shape[2..].iter().enumerate() {
        let reached = extent.saturating_sub(1) * window.strides[i] + window.span(i);
        let covered = ty.shape[2 + i] + window.pads_begin[i];
        window.pads_end[i] = reached.saturating_sub(covered);
    }
    let channels = ty.shape[1];
    let shape = [channels, 1].into_iter().chain(window.kernel.iter().copied()).collect::<Vec<_>>();
    let powers = to_power(cx, x, p)?;
    let ones = cx.filled(ty.dtype, &shape, 1.0)?;
    let sum = cx.emit1(Op::Conv { window, group: channels }, vec![powers, ones])?;
    Ok(vec![Some(root(cx, sum, p)?)])
}

fn global_lp_pool(cx: &mut Cx) -> Built {
    let p = cx.attributes().int_or("p", 2)?;
    let x = cx.input(0)?;
    let axes: Vec<usize> = (2..cx.ty(x).rank()).collect();
    let powers = to_power(cx, x, p)?;
    let sum = cx.reduced(Reduction::Sum, powers, &axes)?;
    Ok(vec![Some(root(cx, sum, p)?)])
}

/// `|x|ᵖ`.
fn to_power(cx: &mut Cx, x: ValueId, p: i64) -> Made {
    match p {
        1 => cx.map(Unary::Abs, x),
        2 => cx.mul(x, x),
        3.. => {
            let magnitude = cx.map(Unary::Abs, x)?;
            cx.with(Binary::Pow, magnitude, p as f64)
        }
        _ => Err(Fault(format!("attribute `p` is {p}"))),
    }
}

/// `x^(1/p)`, whose gradient at zero, where it has none, is zero.
fn root(cx: &mut Cx, x: ValueId, p: i64) -> Made {
    match p {
        1 => Ok(x),
        2 => cx.norm_of(x),
        _ => {
            let is_zero = cx.with(Binary::Equal, x, 0.0)?;
            let root = cx.with(Binary::Pow, x, 1.0 / p as f64)?;
            let dtype = cx.ty(x).dtype;
            let zero = cx.scalar(dtype, 0.0);
            cx.select(is_zero, zero, root)
        }
    }
}

fn global_pool(cx: &mut Cx) -> Built {
    let f = if cx.node.op == "GlobalMaxPool" { Reduction::Max } else { Reduction::Mean };
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    if ty.rank() < 2 {
        return Err(Fault(format!("{ty} has no channels")));
    }
    let axes = (2..ty.rank()).collect();
    cx.whole(Op::Reduce { f, axes, keep: true }, vec![x])
}

/// Each element at the place in the whole tensor that its index names, and zeros beside; a larger shape that is
/// asked for has zeros at its end.
fn max_unpool(cx: &mut Cx) -> Built {
    let (x, places) = (cx.input(0)?, cx.input(1)?);
    let (ty, of) = (cx.ty(x), cx.ty(places));
    let a = cx.attributes();
    let kernel = extents(a.ints("kernel_shape")?.ok_or("attribute `kernel_shape` is missing")?)?;
    let n = kernel.len();
    if ty.rank() != n + 2 || of.shape != ty.shape || of.dtype != DType::I64 {
        return Err(Fault(format!("places {of} and windows {kernel:?} do not fit {ty}")));
    }
    let (strides, pads) = (each(&a, "strides", n, 1)?, each(&a, "pads", 2 * n, 0)?);
    let mut shape = ty.shape[..2].to_vec();
    for i in 0..n {
        let whole = ty.shape[2 + i].checked_sub(1).and_then(|last| last.checked_mul(strides[i]));
        let whole = whole.and_then(|w| w.checked_add(kernel[i]));
        let inner = whole.and_then(|w| w.checked_sub(pads[i])?.checked_sub(pads[n + i]));
        shape.push(inner.ok_or_else(|| Fault(format!("pads {pads:?} do not fit {ty}")))?);
    }
    let count = shape.iter().try_fold(1usize, |all, &d| all.checked_mul(d));
    let count = count.ok_or("its result is too large")?;
    let nothing = cx.filled(ty.dtype, &[count], 0.0)?;
    let (x, places) =
        (cx.reshape(x, vec![ty.elements()])?, cx.reshape(places, vec![ty.elements()])?);
    let op = Op::ScatterElements { axis: 0, reduction: Scatter::Replace };
    let spread = cx.emit1(op, vec![nothing, places, x])?;
    let spread = cx.reshape(spread, shape.clone())?;
    let Some(wanted) = cx.ints(2)? else { return Ok(vec![Some(spread)]) };
    let wanted = extents(&wanted)?;
    let is_larger = wanted.len() == shape.len() && wanted.iter().zip(&shape).all(|(w, s)| w >= s);
    if !is_larger {
        return Err(Fault(format!("a shape of {wanted:?} does not hold {shape:?}")));
    }
    let (starts, steps) = (vec![0; wanted.len()], vec![1; wanted.len()]);
    cx.whole(Op::Pad { starts, steps, shape: wanted, value: 0.0 }, vec![spread])
}
