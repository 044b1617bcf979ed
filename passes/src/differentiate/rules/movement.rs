//! Operators that move elements: gradients move back.

use super::{Local, Rule};
use crate::differentiate::tape::Tape;
use arenic_ir::op::families::Movement;
use arenic_ir::op::{Op, TypeError};

pub(super) fn rule(op: Movement) -> Rule {
    match op {
        Movement::Reshape { .. } => Rule::Passes(reshape),
        Movement::Slice { .. } => Rule::Passes(slice),
        Movement::Pad { .. } => Rule::Passes(pad),
        Movement::Transpose { .. } => Rule::Passes(transpose),
        Movement::Expand { .. } => Rule::Passes(expand),
        Movement::Concat { .. } => Rule::Passes(concat),
        Movement::Copy => Rule::Broadcasts(copy),
    }
}

fn copy(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    t.give(l.x[0], l.dy()?);
    Ok(())
}

fn reshape(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let shape = t.shape(l.x[0]);
    let d = t.reshape(l.dy()?, &shape)?;
    t.give(l.x[0], d);
    Ok(())
}

fn transpose(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Transpose { perm } = &l.op else { return Ok(()) };
    let mut inverse = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(i, &p)| inverse[p] = i);
    let d = t.transpose(l.dy()?, inverse)?;
    t.give(l.x[0], d);
    Ok(())
}

fn expand(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let shape = t.shape(l.x[0]);
    let d = t.sum_to(l.dy()?, &shape)?;
    t.give(l.x[0], d);
    Ok(())
}

fn concat(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Concat { axis } = l.op else { return Ok(()) };
    let mut at = 0;
    for (i, &x) in l.x.iter().enumerate() {
        let shape = t.shape(x);
        let mut starts = vec![0; shape.len()];
        starts[axis] = at;
        at += shape[axis];
        if l.wants(i) {
            let steps = vec![1; shape.len()];
            let d = t.emit(Op::Slice { starts, steps, shape }, vec![l.dy()?])?;
            t.give(x, d);
        }
    }
    Ok(())
}

/// The gradient of a part. Where an axis is read backwards it is turned first.
fn slice(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Slice { starts, steps, shape } = &l.op else { return Ok(()) };
    if shape.contains(&0) {
        return Ok(());
    }
    let mut dy = l.dy()?;
    let (mut first, mut stride) = (starts.clone(), vec![1; shape.len()]);
    let mut turned = (vec![0; shape.len()], vec![1i64; shape.len()]);
    for (i, &step) in steps.iter().enumerate() {
        stride[i] = step.unsigned_abs() as usize;
        if step < 0 {
            first[i] = starts[i] - (shape[i] - 1) * stride[i];
            (turned.0[i], turned.1[i]) = (shape[i] - 1, -1);
        }
    }
    if steps.iter().any(|&s| s < 0) {
        let (starts, steps) = turned;
        dy = t.emit(Op::Slice { starts, steps, shape: shape.clone() }, vec![dy])?;
    }
    t.give_part(l.x[0], first, stride, dy);
    Ok(())
}

fn pad(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Pad { starts, steps, .. } = &l.op else { return Ok(()) };
    let shape = t.shape(l.x[0]);
    let steps = steps.iter().map(|&s| s as i64).collect();
    let d = t.emit(Op::Slice { starts: starts.clone(), steps, shape }, vec![l.dy()?])?;
    t.give(l.x[0], d);
    Ok(())
}
