//! Losses of each element of the model's output and its target.

use super::{Elements, Loss};
use crate::differentiate::Reduction;
use crate::differentiate::tape::Tape;
use arenic_ir::graph::ValueId;
use arenic_ir::op::{Binary, Op, TypeError, Unary};

/// What the gradient of such a loss is made of.
pub(super) enum Slope {
    /// The target: of the binary cross entropy, `σ(x) − target`.
    Sigmoid(ValueId),
    /// A difference that is multiplied by a number.
    Difference(ValueId, f64),
    /// The sign of a difference.
    Sign(ValueId),
    /// A difference within ±`.1`, multiplied by a number.
    Clamped(ValueId, f64, f64),
    /// Minus the target.
    Target(ValueId),
}

/// Adds the loss of each element, and says what its gradient is made of.
pub(super) fn each(
    t: &mut Tape,
    loss: Loss,
    e: Elements,
    x: ValueId,
    target: ValueId,
) -> Result<(ValueId, Slope), TypeError> {
    match loss {
        Loss::Bce => {
            // max(x, 0) − x · target + ln(1 + exp(−|x|)), which never overflows.
            let positive = t.unary(Unary::Relu, x)?;
            let product = t.mul(x, target)?;
            let linear = t.binary(Binary::Sub, positive, product)?;
            let size = t.unary(Unary::Abs, x)?;
            let minus = t.unary(Unary::Neg, size)?;
            let small = t.unary(Unary::Exp, minus)?;
            let one = t.number(x, 1.0);
            let sum = t.binary(Binary::Add, one, small)?;
            let log = t.unary(Unary::Log, sum)?;
            Ok((t.binary(Binary::Add, linear, log)?, Slope::Sigmoid(target)))
        }
        Loss::KlDiv => {
            // target · (ln target − x), where a target of zero gives zero.
            let zero = t.number(target, 0.0);
            let counts = t.binary(Binary::Greater, target, zero)?;
            let log = t.unary(Unary::Log, target)?;
            let difference = t.binary(Binary::Sub, log, x)?;
            let product = t.mul(target, difference)?;
            Ok((t.masked(counts, product)?, Slope::Target(target)))
        }
        _ => {
            let d = t.binary(Binary::Sub, x, target)?;
            match loss {
                Loss::L1 => Ok((t.unary(Unary::Abs, d)?, Slope::Sign(d))),
                Loss::SmoothL1 => {
                    let each = rounded(t, d, e.delta, 0.5 / e.delta, 1.0)?;
                    Ok((each, Slope::Clamped(d, e.delta, 1.0 / e.delta)))
                }
                Loss::Huber => {
                    Ok((rounded(t, d, e.delta, 0.5, e.delta)?, Slope::Clamped(d, e.delta, 1.0)))
                }
                _ => Ok((t.mul(d, d)?, Slope::Difference(d, 2.0))),
            }
        }
    }
}

/// `square · m² + linear · (|d| − m)`, where `m` is `|d|` or `delta`, whichever is less.
fn rounded(
    t: &mut Tape,
    d: ValueId,
    delta: f64,
    square: f64,
    linear: f64,
) -> Result<ValueId, TypeError> {
    let size = t.unary(Unary::Abs, d)?;
    let most = t.number(size, delta);
    let near = t.binary(Binary::Min, size, most)?;
    let far = t.binary(Binary::Sub, size, near)?;
    let squared = t.mul(near, near)?;
    let squared = t.scaled(squared, square)?;
    let far = t.scaled(far, linear)?;
    t.binary(Binary::Add, squared, far)
}

impl Slope {
    /// The gradient by the model's output.
    pub(super) fn gradient(
        &self,
        t: &mut Tape,
        e: Elements,
        output: ValueId,
    ) -> Result<ValueId, TypeError> {
        let count = match e.reduction {
            Reduction::Mean => t.ty(output).elements().max(1) as f64,
            Reduction::Sum => 1.0,
        };
        let factor = e.factor / count;
        match *self {
            Slope::Sigmoid(target) => {
                let probability = t.unary(Unary::Sigmoid, output)?;
                let difference = t.binary(Binary::Sub, probability, target)?;
                t.scaled(difference, factor)
            }
            Slope::Difference(d, by) => t.scaled(d, by * factor),
            Slope::Sign(d) => {
                let sign = t.unary(Unary::Sign, d)?;
                t.scaled(sign, factor)
            }
            Slope::Clamped(d, most, by) => {
                let (low, high) = (t.number(d, -most), t.number(d, most));
                let clamped = t.emit(Op::Clip { min: true, max: true }, vec![d, low, high])?;
                t.scaled(clamped, by * factor)
            }
            Slope::Target(target) => t.scaled(target, -factor),
        }
    }
}
