//! Products, and factors.

use crate::onnx::context::{Built, Cx};
use arenic_ir::Op;

/// `a, b → alpha · a' b'`.
pub(in super::super) fn fused_mat_mul(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    if a.flag("transBatchA", false)? || a.flag("transBatchB", false)? {
        return Err("attributes `transBatchA` and `transBatchB` are not supported".into());
    }
    let op = Op::MatMul { trans_a: a.flag("transA", false)?, trans_b: a.flag("transB", false)? };
    let alpha = a.float_or("alpha", 1.0)?;
    let inputs = cx.inputs()?;
    let y = cx.emit1(op, inputs)?;
    let y = if alpha == 1.0 { y } else { cx.times(y, alpha.into())? };
    Ok(vec![Some(y)])
}

/// `x, scale → x · scale`, or what is left where it scales down.
pub(in super::super) fn scale(cx: &mut Cx) -> Built {
    let down = cx.attributes().flag("scale_down", false)?;
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let dtype = cx.ty(x).dtype;
    let scale = cx.cast(scale, dtype)?;
    let scale = cx.as_scalar(scale)?;
    Ok(vec![Some(if down { cx.div(x, scale)? } else { cx.mul(x, scale)? })])
}
