//! Pools and resizing.

use super::{Local, Rule};
use crate::differentiate::tape::Tape;
use arenic_ir::graph::Data;
use arenic_ir::op::families::{Pool, Resizing};
use arenic_ir::op::{Coordinates, Op, ResizeSpec, Scale, TypeError};
use arenic_ir::types::{DType, TensorType, bf16};

pub(super) fn rule(op: Pool) -> Option<Rule> {
    Some(match op {
        Pool::MaxPool { .. } => Rule::Passes(max_pool),
        Pool::AveragePool { .. } => Rule::Passes(average_pool),
        // Gradients are made of them.
        Pool::MaxPoolGrad { .. } | Pool::AveragePoolGrad { .. } => return None,
    })
}

pub(super) fn rule_of_resizing(op: Resizing) -> Option<Rule> {
    let Resizing::Resize { spec } = op;
    (spec.coordinates != Coordinates::TfCropAndResize).then_some(Rule::Passes(resize))
}

fn max_pool(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::MaxPool { window, ceil, indices } = &l.op else { return Ok(()) };
    let (shape, places) = (t.shape(l.x[0]), t.result(l.node, 1)?);
    let op = Op::MaxPoolGrad { window: window.clone(), ceil: *ceil, indices: *indices, shape };
    let d = t.emit(op, vec![l.dy()?, places])?;
    t.give(l.x[0], d);
    Ok(())
}

fn average_pool(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::AveragePool { window, ceil, count_include_pad } = &l.op else { return Ok(()) };
    let op = Op::AveragePoolGrad {
        window: window.clone(),
        ceil: *ceil,
        count_include_pad: *count_include_pad,
        shape: t.shape(l.x[0]),
    };
    let d = t.emit(op, vec![l.dy()?])?;
    t.give(l.x[0], d);
    Ok(())
}

/// Resizing is linear and goes axis by axis, so its gradient is a product with one matrix per
/// axis: what resizing makes of each unit vector.
fn resize(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Resize { spec } = &l.op else { return Ok(()) };
    let shape = t.shape(l.x[0]);
    let mut d = l.dy()?;
    for axis in 0..shape.len() {
        let (from, to) = (shape[axis], spec.sizes[axis]);
        if spec.keeps(axis, from) {
            continue;
        }
        let dtype = t.ty(d).dtype;
        let along = ResizeSpec {
            sizes: vec![from, to],
            scales: vec![Scale::ONE, spec.scales[axis]],
            ..spec.clone()
        };
        let units = TensorType::new(dtype, [from, from]);
        let mut identity = Vec::new();
        for i in 0..from * from {
            let one = f64::from(u8::from(i % (from + 1) == 0));
            match dtype {
                DType::F64 => identity.extend(one.to_le_bytes()),
                DType::Bf16 => identity.extend(bf16::from_f32(one as f32).to_le_bytes()),
                _ => identity.extend((one as f32).to_le_bytes()),
            }
        }
        let responses = t.evaluate(&Op::Resize { spec: along }, &units, &identity)?;
        let ty = TensorType::new(dtype, [from, to]);
        let matrix = t.g.add_const("", ty, Data::Bytes(responses.into()));
        let mut whole = t.shape(d);
        let (before, after) = (whole[..axis].iter().product(), whole[axis + 1..].iter().product());
        let product = if after == 1 {
            let rows = t.reshape(d, &[before, to])?;
            t.emit(Op::MatMul { trans_a: false, trans_b: true }, vec![rows, matrix])?
        } else {
            let columns = t.reshape(d, &[before, to, after])?;
            t.emit(Op::MatMul { trans_a: false, trans_b: false }, vec![matrix, columns])?
        };
        whole[axis] = from;
        d = t.reshape(product, &whole)?;
    }
    t.give(l.x[0], d);
    Ok(())
}
