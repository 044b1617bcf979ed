//! Learning rates that vary from step to step: a factor of the input `lr`.
//!
//! With `w` steps of warm-up, step `k` (from 0) has the factor `(k + 1) / w` while `k < w`.
//! Afterwards, with `i = k − w` of `n = total − w` steps done, it is `½ (1 + cos(π i / n))`
//! (Loshchilov, Hutter, "SGDR", equation 5, without restarts), `1 − i / n`, or
//! `γ^⌊i / size⌋`; beyond the last step it stays what it was then.

use super::tape::Tape;
use super::{Differentiate, DifferentiateError, LrSchedule};
use arenic_ir::graph::ValueId;
use arenic_ir::op::{Binary, TypeError, Unary};
use arenic_ir::types::DType;
use std::f64::consts::PI;

/// A schedule with all of its numbers.
pub(super) struct Schedule {
    warmup: u64,
    rest: Rest,
}

enum Rest {
    Constant,
    Cosine(f64),
    Linear(f64),
    Step { size: f64, gamma: f64 },
}

impl Schedule {
    /// That of the options; `None` if the rate stays.
    ///
    /// # Errors
    /// A number is missing.
    pub(super) fn new(options: &Differentiate) -> Result<Option<Schedule>, DifferentiateError> {
        let warmup = options.warmup_steps;
        let decays = || {
            let total = options.total_steps.ok_or(DifferentiateError::Schedule {
                what: "the number of steps (total_steps)",
            })?;
            match total.checked_sub(warmup) {
                Some(n) if n > 0 => Ok(n as f64),
                _ => {
                    Err(DifferentiateError::Schedule { what: "more steps in all than of warm-up" })
                }
            }
        };
        let rest = match options.lr_schedule {
            LrSchedule::Constant => Rest::Constant,
            LrSchedule::Cosine => Rest::Cosine(decays()?),
            LrSchedule::Linear => Rest::Linear(decays()?),
            LrSchedule::Step => match options.lr_step_size.filter(|&n| n > 0) {
                Some(size) => {
                    Rest::Step { size: size as f64, gamma: options.lr_gamma.unwrap_or(0.1) }
                }
                None => {
                    let what = "the steps between two changes (lr_step_size)";
                    return Err(DifferentiateError::Schedule { what });
                }
            },
        };
        let varies = warmup > 0 || !matches!(rest, Rest::Constant);
        Ok(varies.then_some(Schedule { warmup, rest }))
    }

    /// The factor after `done` steps, both doubles.
    pub(super) fn factor(&self, t: &mut Tape, done: ValueId) -> Result<ValueId, TypeError> {
        let number = |t: &mut Tape, x: f64| t.scalar(DType::F64, x);
        let (zero, one) = (number(t, 0.0), number(t, 1.0));
        let warmup = number(t, self.warmup as f64);
        let mut i = done;
        if self.warmup > 0 {
            let past = t.binary(Binary::Sub, done, warmup)?;
            i = t.binary(Binary::Max, past, zero)?;
        }
        let share = |t: &mut Tape, n: f64| {
            let n = number(t, n);
            let at = t.binary(Binary::Min, i, n)?;
            t.binary(Binary::Div, at, n)
        };
        let rest = match self.rest {
            Rest::Constant => one,
            Rest::Cosine(n) => {
                let share = share(t, n)?;
                let angle = t.scaled(share, PI)?;
                let cosine = t.unary(Unary::Cos, angle)?;
                let sum = t.binary(Binary::Add, one, cosine)?;
                t.scaled(sum, 0.5)?
            }
            Rest::Linear(n) => {
                let share = share(t, n)?;
                t.binary(Binary::Sub, one, share)?
            }
            Rest::Step { size, gamma } => {
                let (size, gamma) = (number(t, size), number(t, gamma));
                let periods = t.binary(Binary::Div, i, size)?;
                let periods = t.unary(Unary::Floor, periods)?;
                t.binary(Binary::Pow, gamma, periods)?
            }
        };
        if self.warmup == 0 {
            return Ok(rest);
        }
        let next = t.binary(Binary::Add, done, one)?;
        let rising = t.binary(Binary::Div, next, warmup)?;
        let warm = t.binary(Binary::Less, done, warmup)?;
        t.select(warm, rising, rest)
    }
}
