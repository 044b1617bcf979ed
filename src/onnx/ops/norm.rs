//! Products and normalisations.

use crate::onnx::context::{Built, Cx, axis};
use arenic_ir::{DType, Op};

pub(super) fn mat_mul(cx: &mut Cx) -> Built {
    let inputs = cx.inputs()?;
    cx.whole(Op::MatMul { trans_a: false, trans_b: false }, inputs)
}

pub(super) fn gemm(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let op = Op::Gemm {
        alpha: a.float_or("alpha", 1.0)?,
        beta: a.float_or("beta", 1.0)?,
        trans_a: a.int_or("transA", 0)? != 0,
        trans_b: a.int_or("transB", 0)? != 0,
    };
    let mut inputs = vec![cx.input(0)?, cx.input(1)?];
    inputs.extend(cx.optional(2)?);
    cx.whole(op, inputs)
}

pub(super) fn softmax(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let log = cx.node.op == "LogSoftmax";
    let op = |axis| if log { Op::LogSoftmax { axis } } else { Op::Softmax { axis } };
    let at = cx.attributes().int_or("axis", -1)?;
    if ty.rank() > 0 {
        return cx.whole(op(axis(at, ty.rank())?), vec![x]);
    }
    axis(at, 1)?;
    let row = cx.reshape(x, vec![1])?;
    let y = cx.emit1(op(0), vec![row])?;
    Ok(vec![Some(cx.reshape(y, vec![])?)])
}

pub(super) fn layer_norm(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let epsilon = a.float_or("epsilon", 1e-5)?;
    let stash = a.int_or("stash_type", 1)?;
    if stash != 1 {
        return Err(
            format!("attribute `stash_type` is {stash}; only 1, float, is supported").into()
        );
    }
    let mut inputs = vec![cx.input(0)?, cx.input(1)?];
    inputs.extend(cx.optional(2)?);
    let rank = cx.ty(inputs[0]).rank();
    let axis = axis(a.int_or("axis", -1)?, rank)?;
    let mut results = cx.whole(Op::LayerNorm { axis, epsilon }, inputs)?;
    // The statistics are f32 whatever the operand is.
    for (i, result) in results.iter_mut().enumerate().skip(1) {
        if let Some(v) = result.filter(|_| cx.wants(i)) {
            *result = Some(cx.cast(v, DType::F32)?);
        }
    }
    Ok(results)
}
