//! Gathers and scatters.

use crate::onnx::context::{Built, Cx, axis};
use crate::onnx::error::Fault;
use arenic_ir::Op;
use arenic_ir::op::Scatter;

/// The axis that the node names, of its first operand.
fn own_axis(cx: &mut Cx) -> Result<usize, Fault> {
    let x = cx.input(0)?;
    let rank = cx.ty(x).rank();
    axis(cx.attributes().int_or("axis", 0)?, rank)
}

fn reduction(cx: &Cx) -> Result<Scatter, Fault> {
    cx.attributes().one_of(
        "reduction",
        "none",
        &[
            ("none", Scatter::Replace),
            ("add", Scatter::Add),
            ("mul", Scatter::Mul),
            ("min", Scatter::Min),
            ("max", Scatter::Max),
        ],
    )
}

pub(super) fn gather(cx: &mut Cx) -> Built {
    let axis = own_axis(cx)?;
    let inputs = cx.inputs()?;
    cx.whole(Op::Gather { axis }, inputs)
}

pub(super) fn gather_elements(cx: &mut Cx) -> Built {
    let axis = own_axis(cx)?;
    let inputs = cx.inputs()?;
    cx.whole(Op::GatherElements { axis }, inputs)
}

pub(super) fn gather_nd(cx: &mut Cx) -> Built {
    let batch = cx.attributes().int_or("batch_dims", 0)?;
    let batch_dims =
        usize::try_from(batch).map_err(|_| format!("attribute `batch_dims` is {batch}"))?;
    let inputs = cx.inputs()?;
    cx.whole(Op::GatherNd { batch_dims }, inputs)
}

pub(super) fn scatter_elements(cx: &mut Cx) -> Built {
    let op = Op::ScatterElements { axis: own_axis(cx)?, reduction: reduction(cx)? };
    let inputs = cx.inputs()?;
    cx.whole(op, inputs)
}

pub(super) fn scatter_nd(cx: &mut Cx) -> Built {
    let op = Op::ScatterNd { reduction: reduction(cx)? };
    let inputs = cx.inputs()?;
    cx.whole(op, inputs)
}
