//! Reductions: gradients spread over what was combined.

use super::{Local, Rule};
use crate::differentiate::tape::Tape;
use arenic_ir::graph::ValueId;
use arenic_ir::op::families::Reducing;
use arenic_ir::op::{Binary, Op, Reduction, TypeError};

pub(super) fn rule(op: Reducing) -> Option<Rule> {
    Some(match op {
        Reducing::Reduce { f, .. } => match f {
            Reduction::Sum | Reduction::Mean => Rule::Passes(sum),
            Reduction::Min | Reduction::Max => Rule::Passes(extremum),
            Reduction::Prod => Rule::Passes(product),
        },
        // Passes that run later make it.
        Reducing::PointwiseReduce { .. } => return None,
    })
}

/// The operand's shape with reduced axes of extent 1.
fn kept(shape: &[usize], axes: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|i| if axes.contains(&i) { 1 } else { shape[i] }).collect()
}

fn sum(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Reduce { f, axes, .. } = &l.op else { return Ok(()) };
    let shape = t.shape(l.x[0]);
    let mut d = l.dy()?;
    if *f == Reduction::Mean {
        let count: usize = axes.iter().map(|&i| shape[i]).product();
        d = t.scaled(d, 1.0 / count.max(1) as f64)?;
    }
    let d = t.reshape(d, &kept(&shape, axes))?;
    t.give(l.x[0], d);
    Ok(())
}

/// To the elements that are the extremum, in equal parts.
fn extremum(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Reduce { axes, .. } = &l.op else { return Ok(()) };
    let shape = t.shape(l.x[0]);
    let small = kept(&shape, axes);
    let y = t.result(l.node, 0)?;
    let (y, dy) = (t.reshape(y, &small)?, t.reshape(l.dy()?, &small)?);
    let chosen = t.binary(Binary::Equal, l.x[0], y)?;
    let dtype = t.ty(dy).dtype;
    let ones = t.cast(chosen, dtype)?;
    let count = t.sum(ones, axes.clone(), true)?;
    let share = t.binary(Binary::Div, dy, count)?;
    let d = t.masked(chosen, share)?;
    t.give(l.x[0], d);
    Ok(())
}

/// To each element the product of all others, multiplied up from either side, so that zeros do
/// no harm.
fn product(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Reduce { axes, .. } = &l.op else { return Ok(()) };
    let shape = t.shape(l.x[0]);
    // All reduced axes become one, the last.
    let rest: Vec<usize> = (0..shape.len()).filter(|i| !axes.contains(i)).collect();
    let perm: Vec<usize> = rest.iter().chain(axes).copied().collect();
    let count: usize = axes.iter().map(|&i| shape[i]).product();
    if count == 0 || axes.is_empty() {
        if axes.is_empty() {
            t.give(l.x[0], l.dy()?);
        }
        return Ok(());
    }
    let moved: Vec<usize> = perm.iter().map(|&i| shape[i]).collect();
    let rows: usize = rest.iter().map(|&i| shape[i]).product();
    let x = t.transpose(l.x[0], perm.clone())?;
    let x = t.reshape(x, &[rows, count])?;
    let before = exclusive(t, x, rows, count, false)?;
    let after = exclusive(t, x, rows, count, true)?;
    let others = t.mul(before, after)?;
    let dy = t.reshape(l.dy()?, &[rows, 1])?;
    let d = t.mul(dy, others)?;
    let d = t.reshape(d, &moved)?;
    let mut inverse = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(i, &p)| inverse[p] = i);
    let d = t.transpose(d, inverse)?;
    t.give(l.x[0], d);
    Ok(())
}

/// Of every element of a row the product of those before it, or after it, by doubling.
fn exclusive(
    t: &mut Tape,
    x: ValueId,
    rows: usize,
    count: usize,
    after: bool,
) -> Result<ValueId, TypeError> {
    let mut product = shifted(t, x, rows, count, 1, after)?;
    let mut by = 1;
    while by < count {
        let next = shifted(t, product, rows, count, by, after)?;
        product = t.mul(product, next)?;
        by *= 2;
    }
    Ok(product)
}

/// Rows moved by some elements; ones move in.
fn shifted(
    t: &mut Tape,
    x: ValueId,
    rows: usize,
    count: usize,
    by: usize,
    after: bool,
) -> Result<ValueId, TypeError> {
    let left = count - by.min(count);
    let (from, to) = if after { (by.min(count), 0) } else { (0, by.min(count)) };
    let part = Op::Slice { starts: vec![0, from], steps: vec![1, 1], shape: vec![rows, left] };
    let part = t.emit(part, vec![x])?;
    let shape = vec![rows, count];
    t.emit(Op::Pad { starts: vec![0, to], steps: vec![1, 1], shape, value: 1.0 }, vec![part])
}
