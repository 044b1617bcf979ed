//! Elementwise operators. An operand that was broadcast gets the sum over what was repeated.
//!
//! Rules that multiply by a slope, which may be infinite or NaN, pass zero for elements that no
//! `Where` selects (see `guards`); those that choose elements or negate them need not.

use super::{Local, Rule};
use crate::differentiate::tape::Tape;
use arenic_ir::graph::ValueId;
use arenic_ir::op::families::{Elementwise, Random};
use arenic_ir::op::{Binary, Gradient, GradientStep, Kept, Op, TypeError, Unary};

pub(super) fn rule(op: Elementwise) -> Option<Rule> {
    Some(match op {
        Elementwise::Cast { .. } => Rule::Broadcasts(cast),
        Elementwise::Unary { f } => unary_rule(*f),
        Elementwise::Binary { f } => binary_rule(*f),
        Elementwise::Where => Rule::Passes(select),
        Elementwise::Clip { .. } => Rule::Passes(clip),
        // Passes that run later make it.
        Elementwise::Pointwise { .. } => return None,
    })
}

pub(super) fn rule_of_random(op: Random) -> Rule {
    match op {
        Random::Dropout { .. } => Rule::Broadcasts(dropout),
        Random::RandomUniform { .. } => Rule::Stops,
    }
}

fn unary_rule(f: Unary) -> Rule {
    match f.row().gradient {
        Gradient::Zero => Rule::Stops,
        Gradient::Steps { .. } => Rule::Broadcasts(unary),
    }
}

fn binary_rule(f: Binary) -> Rule {
    match f {
        Binary::Add | Binary::Sub => Rule::Passes(add),
        Binary::Mul => Rule::Passes(mul),
        Binary::Div => Rule::Passes(div),
        Binary::Pow => Rule::Passes(pow),
        Binary::Rem => Rule::Passes(rem),
        Binary::Max | Binary::Min => Rule::Passes(extremum),
        Binary::And
        | Binary::Equal
        | Binary::Greater
        | Binary::GreaterOrEqual
        | Binary::Less
        | Binary::LessOrEqual
        | Binary::Or
        | Binary::Xor => Rule::Stops,
    }
}

/// The gradient of a function's operand by the steps of the function's row.
fn unary(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Unary { f } = l.op else { return Err(unexpected(l)) };
    let Gradient::Steps { of, has_slope, steps } = f.row().gradient else {
        return Err(unexpected(l));
    };
    let (operand, dy) = (l.x[0], l.dy()?);
    let kept = match of {
        // No step reads it.
        Kept::Nothing => dy,
        Kept::Operand => t.saved(operand)?,
        Kept::Result => {
            let y = t.result(l.node, 0)?;
            t.saved(y)?
        }
    };
    let mut sources = vec![dy, kept];
    for step in steps {
        let made = match *step {
            GradientStep::Unary(f, x) => t.unary(f, sources[x])?,
            GradientStep::Binary(f, a, b) => t.binary(f, sources[a], sources[b])?,
            GradientStep::Number(x) => t.number(kept, x),
            GradientStep::Scaled(x, by) => t.scaled(sources[x], by)?,
            GradientStep::Masked(condition, x) => t.masked(sources[condition], sources[x])?,
        };
        sources.push(made);
    }
    let d = sources[sources.len() - 1];
    let d = if has_slope { guarded(t, l, d)? } else { d };
    t.give(operand, d);
    Ok(())
}

/// A gradient with zeros for elements that do not count.
fn guarded(t: &mut Tape, l: &Local, mut d: ValueId) -> Result<ValueId, TypeError> {
    for guard in &l.guards {
        let condition = t.saved(guard.condition)?;
        d = if guard.selected { t.masked(condition, d)? } else { t.unless(condition, d)? };
    }
    Ok(d)
}

/// The same, of a gradient that was multiplied or divided by this value.
fn guarded_by(t: &mut Tape, l: &Local, by: ValueId, d: ValueId) -> Result<ValueId, TypeError> {
    match t.known(by) {
        Some(by) if by.is_finite() && by != 0.0 => Ok(d),
        _ => guarded(t, l, d),
    }
}

/// Gives operand `i` a gradient of the result's shape.
fn give(t: &mut Tape, l: &Local, i: usize, d: ValueId) -> Result<(), TypeError> {
    let shape = t.shape(l.x[i]);
    let d = t.sum_to(d, &shape)?;
    t.give(l.x[i], d);
    Ok(())
}

fn add(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let dy = l.dy()?;
    if l.wants(0) {
        give(t, l, 0, dy)?;
    }
    if l.wants(1) {
        // Summed first, so that less is negated.
        let shape = t.shape(l.x[1]);
        let sum = t.sum_to(dy, &shape)?;
        let minus = matches!(l.op, Op::Binary { f: Binary::Sub });
        let d = if minus { t.unary(Unary::Neg, sum)? } else { sum };
        t.give(l.x[1], d);
    }
    Ok(())
}

fn mul(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    for (i, other) in [(0, 1), (1, 0)] {
        if l.wants(i) {
            let factor = t.saved(l.x[other])?;
            let d = t.mul(l.dy()?, factor)?;
            let d = guarded_by(t, l, factor, d)?;
            give(t, l, i, d)?;
        }
    }
    Ok(())
}

fn div(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let divisor = t.saved(l.x[1])?;
    let d = t.binary(Binary::Div, l.dy()?, divisor)?;
    let d = guarded_by(t, l, divisor, d)?;
    if l.wants(0) {
        give(t, l, 0, d)?;
    }
    if l.wants(1) {
        // −dy/b · a/b; the quotient is the result.
        let y = t.result(l.node, 0)?;
        let y = t.saved(y)?;
        let d = t.mul(d, y)?;
        let d = guarded(t, l, d)?;
        let d = t.unary(Unary::Neg, d)?;
        give(t, l, 1, d)?;
    }
    Ok(())
}

/// `a − b · trunc(a/b)`, whose quotient is constant almost everywhere.
fn rem(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let &[a, b] = &l.x[..] else { return Err(unexpected(l)) };
    let dy = l.dy()?;
    if l.wants(0) {
        give(t, l, 0, dy)?;
    }
    if l.wants(1) {
        let (a, b, y) = (t.saved(a)?, t.saved(b)?, t.result(l.node, 0)?);
        let y = t.saved(y)?;
        // (y − a) / b, which is −trunc(a/b) but for rounding.
        let d = t.binary(Binary::Sub, y, a)?;
        let d = t.binary(Binary::Div, d, b)?;
        let d = t.mul(dy, d)?;
        let d = guarded(t, l, d)?;
        give(t, l, 1, d)?;
    }
    Ok(())
}

fn pow(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let &[a, b] = &l.x[..] else { return Err(unexpected(l)) };
    let (a, b) = (t.saved(a)?, t.saved(b)?);
    let dy = l.dy()?;
    if l.wants(0) {
        // b · a^(b − 1); a constant exponent's powers are simpler ones.
        let slope = match t.known(b) {
            // Also at a base of which there is no power −1.
            Some(0.0) => t.number(a, 0.0),
            Some(2.0) => t.scaled(a, 2.0)?,
            Some(0.5) => {
                let root = t.result(l.node, 0)?;
                let root = t.saved(root)?;
                let half = t.number(root, 0.5);
                t.binary(Binary::Div, half, root)?
            }
            Some(exponent) => {
                let less = t.number(a, exponent - 1.0);
                let power = t.binary(Binary::Pow, a, less)?;
                t.scaled(power, exponent)?
            }
            None => {
                // A zero exponent has slope zero, also at a zero base.
                let (one, zero) = (t.number(b, 1.0), t.number(b, 0.0));
                let less = t.binary(Binary::Sub, b, one)?;
                let power = t.binary(Binary::Pow, a, less)?;
                let slope = t.mul(b, power)?;
                let constant = t.binary(Binary::Equal, b, zero)?;
                t.select(constant, zero, slope)?
            }
        };
        let d = t.mul(dy, slope)?;
        let d = guarded(t, l, d)?;
        give(t, l, 0, d)?;
    }
    if l.wants(1) {
        // a^b · ln a, which is zero at a = 0 for b ≥ 0.
        let y = t.result(l.node, 0)?;
        let y = t.saved(y)?;
        let zero = t.number(a, 0.0);
        let log = t.unary(Unary::Log, a)?;
        let slope = t.mul(y, log)?;
        let (at_zero, rises) =
            (t.binary(Binary::Equal, a, zero)?, t.binary(Binary::GreaterOrEqual, b, zero)?);
        let flat = t.binary(Binary::And, at_zero, rises)?;
        let slope = t.select(flat, zero, slope)?;
        let d = t.mul(dy, slope)?;
        let d = guarded(t, l, d)?;
        give(t, l, 1, d)?;
    }
    Ok(())
}

/// Maximum and minimum: to the operand that is chosen, to both in halves where they are equal.
fn extremum(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let &[a, b] = &l.x[..] else { return Err(unexpected(l)) };
    let (a, b) = (t.saved(a)?, t.saved(b)?);
    let (dy, max) = (l.dy()?, matches!(l.op, Op::Binary { f: Binary::Max }));
    for (i, own, other) in [(0, a, b), (1, b, a)] {
        if l.wants(i) {
            let wins = if max { Binary::Greater } else { Binary::Less };
            let wins = t.binary(wins, own, other)?;
            let equal = t.binary(Binary::Equal, own, other)?;
            let half = t.scaled(dy, 0.5)?;
            let tied = t.masked(equal, half)?;
            let d = t.select(wins, dy, tied)?;
            give(t, l, i, d)?;
        }
    }
    Ok(())
}

fn select(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let (condition, dy) = (t.saved(l.x[0])?, l.dy()?);
    if l.wants(1) {
        let d = t.masked(condition, dy)?;
        give(t, l, 1, d)?;
    }
    if l.wants(2) {
        let d = t.unless(condition, dy)?;
        give(t, l, 2, d)?;
    }
    Ok(())
}

/// Inside the bounds to `x`, beyond one to that bound. As of PyTorch's `clamp`, `hardtanh` and `relu6` nothing is
/// passed on where the result is a bound, so that it is enough: its readers keep it anyway, and the operand goes.
fn clip(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Clip { min, max } = l.op else { return Err(unexpected(l)) };
    let y = t.result(l.node, 0)?;
    let (y, dy) = (t.saved(y)?, l.dy()?);
    let low = min.then_some(1);
    let high = max.then_some(1 + usize::from(min));
    let mut inside = None;
    for (bound, within, beyond) in
        [(low, Binary::Greater, Binary::Less), (high, Binary::Less, Binary::Greater)]
    {
        let Some(i) = bound else { continue };
        if l.wants(i) {
            let x = t.saved(l.x[0])?;
            let out = t.binary(beyond, x, l.x[i])?;
            let d = t.masked(out, dy)?;
            give(t, l, i, d)?;
        }
        let within = t.binary(within, y, l.x[i])?;
        inside = Some(match inside {
            None => within,
            Some(other) => t.binary(Binary::And, other, within)?,
        });
    }
    if l.wants(0) {
        let d = match inside {
            None => dy,
            Some(inside) => t.masked(inside, dy)?,
        };
        t.give(l.x[0], d);
    }
    Ok(())
}

fn cast(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let dtype = t.ty(l.x[0]).dtype;
    if dtype.is_float() && t.ty(l.dy()?).dtype.is_float() {
        let d = t.cast(l.dy()?, dtype)?;
        t.give(l.x[0], d);
    }
    Ok(())
}

/// `dy / (1 − ratio)` where the element was kept.
fn dropout(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    if !l.wants(0) {
        return Ok(());
    }
    let (dy, mask) = (l.dy()?, t.result(l.node, 1)?);
    let kept = match t.known(l.x[1]) {
        Some(ratio) => t.number(dy, 1.0 - ratio),
        None => {
            let dtype = t.ty(dy).dtype;
            let ratio = t.cast(l.x[1], dtype)?;
            let one = t.number(dy, 1.0);
            t.binary(Binary::Sub, one, ratio)?
        }
    };
    let d = t.binary(Binary::Div, dy, kept)?;
    let d = t.masked(mask, d)?;
    t.give(l.x[0], d);
    Ok(())
}

fn unexpected(l: &Local) -> TypeError {
    TypeError(format!("{} with {} operands has no gradient", l.op.name(), l.x.len()))
}
