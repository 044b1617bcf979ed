//! Pools.

use super::conv::{spatial, window};
use crate::onnx::context::{Built, Cx, Slot, extents};
use crate::onnx::error::Fault;
use arenic_ir::Op;
use arenic_ir::op::{Reduction, Window};

fn pool_window(cx: &mut Cx) -> Result<Window, Fault> {
    let a = cx.attributes();
    let kernel = extents(a.ints("kernel_shape")?.ok_or("attribute `kernel_shape` is missing")?)?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    window(&a, kernel, spatial(&ty)?)
}

pub(super) fn average_pool(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let op = Op::AveragePool {
        window: pool_window(cx)?,
        ceil: a.flag("ceil_mode", false)?,
        count_include_pad: a.flag("count_include_pad", false)?,
    };
    let x = cx.input(0)?;
    cx.whole(op, vec![x])
}

pub(super) fn max_pool(cx: &mut Cx) -> Built {
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

pub(super) fn global_pool(cx: &mut Cx) -> Built {
    let f = if cx.node.op == "GlobalMaxPool" { Reduction::Max } else { Reduction::Mean };
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    if ty.rank() < 2 {
        return Err(Fault(format!("{ty} has no channels")));
    }
    let axes = (2..ty.rank()).collect();
    cx.whole(Op::Reduce { f, axes, keep: true }, vec![x])
}
