//! Softmax and normalisations, from their results and statistics.

use super::{Local, Rule};
use crate::differentiate::tape::Tape;
use arenic_ir::op::families::{Norm, Softmax};
use arenic_ir::op::{Op, TypeError};

pub(super) fn rule_of_softmax(op: Softmax) -> Option<Rule> {
    Some(match op {
        Softmax::Softmax { .. } => Rule::Passes(softmax),
        Softmax::LogSoftmax { .. } => Rule::Passes(log_softmax),
        // Gradients are made of them, or passes that run later make them.
        Softmax::SoftmaxGrad { .. }
        | Softmax::LogSoftmaxGrad { .. }
        | Softmax::LogSoftmaxStats
        | Softmax::SoftmaxOfStats
        | Softmax::CrossEntropyGrad => return None,
    })
}

pub(super) fn rule(op: Norm) -> Option<Rule> {
    Some(match op {
        Norm::LayerNorm { .. } => Rule::Passes(layer_norm),
        Norm::BatchNorm { .. } => Rule::Passes(batch_norm),
        // Gradients are made of them, or passes that run later make them.
        Norm::LayerNormParamGrad { .. }
        | Norm::LayerNormInputGrad { .. }
        | Norm::BatchNormParamGrad
        | Norm::BatchNormInputGrad
        | Norm::FusedNorm { .. }
        | Norm::FusedNormGrad { .. } => return None,
    })
}

fn softmax(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Softmax { axis } = l.op else { return Ok(()) };
    let y = t.result(l.node, 0)?;
    let d = t.emit(Op::SoftmaxGrad { axis }, vec![y, l.dy()?])?;
    t.give(l.x[0], d);
    Ok(())
}

fn log_softmax(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::LogSoftmax { axis } = l.op else { return Ok(()) };
    let y = t.result(l.node, 0)?;
    let d = t.emit(Op::LogSoftmaxGrad { axis }, vec![y, l.dy()?])?;
    t.give(l.x[0], d);
    Ok(())
}

fn layer_norm(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::LayerNorm { axis, .. } = l.op else { return Ok(()) };
    let (x, dy) = (l.x[0], l.dy()?);
    let (mean, inv_std) = (t.result(l.node, 1)?, t.result(l.node, 2)?);
    if l.wants(0) {
        let operands = vec![x, dy, l.x[1], mean, inv_std];
        let d = t.emit(Op::LayerNormInputGrad { axis }, operands)?;
        t.give(x, d);
    }
    if l.wants(1) || l.wants(2) {
        let sums = t.node(Op::LayerNormParamGrad { axis }, vec![x, dy, mean, inv_std])?;
        for (i, d) in sums.into_iter().enumerate() {
            if l.wants(1 + i) {
                let shape = t.shape(l.x[1 + i]);
                let d = t.sum_to(d, &shape)?;
                t.give(l.x[1 + i], d);
            }
        }
    }
    Ok(())
}

/// Through the batch's statistics; running ones are of no influence on the result.
fn batch_norm(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let (x, dy) = (l.x[0], l.dy()?);
    let (mean, inv_std) = (t.result(l.node, 1)?, t.result(l.node, 3)?);
    let sums = t.node(Op::BatchNormParamGrad, vec![x, dy, mean, inv_std])?;
    let &[scale, bias] = &sums[..] else {
        return Err(TypeError("a batch norm has two parameters".into()));
    };
    for (i, d) in [(1, scale), (2, bias)] {
        if l.wants(i) {
            t.give(l.x[i], d);
        }
    }
    if l.wants(0) {
        let operands = vec![x, dy, l.x[1], mean, inv_std, scale, bias];
        let d = t.emit(Op::BatchNormInputGrad, operands)?;
        t.give(x, d);
    }
    Ok(())
}
