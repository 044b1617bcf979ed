//! Pools.

use super::conv::{spatial, window};
use super::{Row, row};
use crate::onnx::context::{Built, Cx, Slot, extents};
use crate::onnx::error::Fault;
use arenic_ir::Op;
use arenic_ir::op::{Reduction, Window};

pub(super) const AVERAGE_POOL: &[&str] =
    &["auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides"];
pub(super) const MAX_POOL: &[&str] =
    &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"];

pub(super) const ROWS: &[Row] = &[
    row("AveragePool", (1, 1), AVERAGE_POOL, average_pool),
    row("GlobalAveragePool", (1, 1), &[], global_pool),
    row("GlobalMaxPool", (1, 1), &[], global_pool),
    row("MaxPool", (1, 1), MAX_POOL, max_pool),
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
    let column_major = a.flag("storage_order", false)?;
    let identity = window.is_pointwise() && !column_major;
    let op = Op::MaxPool { window, ceil: a.flag("ceil_mode", false)?, column_major };
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
