//! Attention, from its operands and two numbers per row.

use super::{Local, Rule};
use crate::differentiate::tape::Tape;
use arenic_ir::op::families::Attention;
use arenic_ir::op::{Op, TypeError};

pub(super) fn rule(op: Attention) -> Option<Rule> {
    match op {
        Attention::Attention { spec } if spec.packed => None,
        Attention::Attention { .. } => Some(Rule::Passes(attention)),
        // Gradients are made of it.
        Attention::AttentionGrad { .. } => None,
    }
}

/// One node has all of the gradients, which share the scores that it computes again.
fn attention(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Attention { spec } = l.op else { return Ok(()) };
    if l.wants(4) {
        return Err(TypeError("attention has no gradient of its second mask".into()));
    }
    let rows = [t.result(l.node, 1)?, t.result(l.node, 2)?];
    let (operands, masks) = l.x.split_at(3);
    let operands = [operands, &rows, &[l.dy()?], masks].concat();
    let op = Op::AttentionGrad { spec, of_mask: l.wants(3), has_result: false };
    let gradients = t.node(op, operands)?;
    for (i, d) in gradients.into_iter().enumerate() {
        if l.wants(i) {
            // That of a mask has all rows and columns.
            let d = t.sum_to(d, &t.shape(l.x[i]))?;
            t.give(l.x[i], d);
        }
    }
    Ok(())
}
