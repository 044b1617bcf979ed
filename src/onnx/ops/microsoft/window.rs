//! Gradients of convolutions and pools.

use super::super::conv::{group, kernel, spatial, window};
use super::super::pool::{AVERAGE_POOL, MAX_POOL};
use super::super::{Row, row};
use crate::onnx::context::{Built, Cx, extents};
use crate::onnx::error::Fault;
use arenic_ir::op::{Reduction, Window};
use arenic_ir::{Def, Op};

pub(in crate::onnx::ops) const ROWS: &[Row] = &[
    row("AveragePoolGrad", (1, 1), AVERAGE_POOL, average_pool_grad)
        .since(1)
        .note("of ONNX Runtime; windows that fill their operand"),
    row("MaxPoolGrad", (2, 2), MAX_POOL, max_pool_grad).since(1).note("of ONNX Runtime"),
];

/// `dy, x, w → dx, dw, dbias` of `y = conv(x, w) + bias`.
pub(in super::super) fn conv_grad(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let (dy, x, w) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (x_ty, w_ty) = (cx.ty(x), cx.ty(w));
    let input = spatial(&x_ty)?;
    let window = window(&a, kernel(&a, &w_ty)?, input)?;
    let group = group(&a)?;
    let dx = match cx.wants(0) {
        true => {
            let out = cx.ty(dy);
            let output_padding = left_over(&window, spatial(&out)?, input)?;
            let op = Op::ConvTranspose { window: window.clone(), group, output_padding };
            Some(cx.emit1(op, vec![dy, w])?)
        }
        false => None,
    };
    let dw = match cx.wants(1) {
        true => Some(cx.emit1(Op::ConvWeightGrad { window, group }, vec![x, dy])?),
        false => None,
    };
    Ok(vec![dx, dw, bias_grad(cx, 2)?])
}

/// `dy, x, w → dx, dw, dbias` of `y = conv_transpose(x, w) + bias`.
pub(in super::super) fn conv_transpose_grad(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let (dy, x, w) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (dy_ty, x_ty, w_ty) = (cx.ty(dy), cx.ty(x), cx.ty(w));
    if a.text_or("auto_pad", "NOTSET")? != "NOTSET" || a.ints("output_shape")?.is_some() {
        return Err("attributes `auto_pad` and `output_shape` are not supported".into());
    }
    let window = window(&a, kernel(&a, &w_ty)?, spatial(&dy_ty)?)?;
    if window.slide(spatial(&dy_ty)?, false)? != spatial(&x_ty)? {
        return Err(Fault(format!("{dy_ty} is no gradient of a convolution of {x_ty}")));
    }
    let group = group(&a)?;
    let dx = match cx.wants(0) {
        true => Some(cx.emit1(Op::Conv { window: window.clone(), group }, vec![dy, w])?),
        false => None,
    };
    let dw = match cx.wants(1) {
        true => Some(cx.emit1(Op::ConvWeightGrad { window, group }, vec![dy, x])?),
        false => None,
    };
    Ok(vec![dx, dw, bias_grad(cx, 2)?])
}

/// The sum of `dy`, operand 0, over all axes but that of channels.
fn bias_grad(cx: &mut Cx, result: usize) -> Result<Option<arenic_ir::ValueId>, Fault> {
    if !cx.wants(result) {
        return Ok(None);
    }
    let dy = cx.input(0)?;
    let axes: Vec<usize> = (0..cx.ty(dy).rank()).filter(|&i| i != 1).collect();
    cx.without(Reduction::Sum, dy, &axes).map(Some)
}

/// What strides of a window over `input` that gives `output` leave over at the end.
fn left_over(window: &Window, output: &[usize], input: &[usize]) -> Result<Vec<usize>, Fault> {
    // With so many more, pads leave something.
    let pads = window.pads_begin.iter().zip(&window.pads_end).map(|(begin, end)| begin + end);
    let more: Vec<usize> = pads.collect();
    let covered = window.unslide(output, &more)?;
    let rest = input.iter().zip(&more).zip(&covered);
    let rest = rest.map(|((all, more), part)| (all + more).checked_sub(*part));
    rest.collect::<Option<_>>().ok_or_else(|| {
        Fault(format!("a gradient of {output:?} covers more than the extents {input:?}"))
    })
}

/// `dy, indices → dx`: what the pool took gets its gradient. The shape of `dx` is that of the
/// operand of the pool that gives the indices.
pub(in super::super) fn max_pool_grad(cx: &mut Cx) -> Built {
    let (dy, places) = (cx.input(0)?, cx.input(1)?);
    let Def::Node { node, output: 1 } = cx.b.g.values[places].def else {
        return Err("its indices are not those of a MaxPool".into());
    };
    let pool = &cx.b.g.nodes[node];
    let (Op::MaxPool { window, ceil, indices }, Some(&x)) = (&pool.op, pool.inputs.first()) else {
        return Err("its indices are not those of a MaxPool".into());
    };
    let shape = cx.b.g.ty(x).shape.clone();
    let op = Op::MaxPoolGrad { window: window.clone(), ceil: *ceil, indices: *indices, shape };
    cx.whole(op, vec![dy, places])
}

/// `dy → dx`: each element of a window gets its part. Nothing says the shape of `dx`; it is what
/// windows fill.
pub(in super::super) fn average_pool_grad(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let kernel = extents(a.ints("kernel_shape")?.ok_or("attribute `kernel_shape` is missing")?)?;
    if a.flag("ceil_mode", false)? || a.text_or("auto_pad", "NOTSET")? != "NOTSET" {
        return Err("attributes `ceil_mode` and `auto_pad` are not supported".into());
    }
    let dy = cx.input(0)?;
    let ty = cx.ty(dy);
    let window = window(&a, kernel, spatial(&ty)?)?;
    let filled = window.unslide(spatial(&ty)?, &vec![0; window.rank()])?;
    let shape = [&ty.shape[..2], &filled[..]].concat();
    let count_include_pad = a.flag("count_include_pad", false)?;
    cx.whole(Op::AveragePoolGrad { window, ceil: false, count_include_pad, shape }, vec![dy])
}
