//! Losses of rows of logits or log probabilities, one per target.

use super::Elements;
use crate::differentiate::Reduction;
use crate::differentiate::tape::Tape;
use arenic_ir::graph::ValueId;
use arenic_ir::op::{Binary, Op, Scatter, TypeError, Unary};
use arenic_ir::types::DType;

/// Logits or log probabilities with one row per target.
#[derive(Clone)]
pub(super) struct ClassRows {
    /// `[R, C]`.
    pub(super) x: ValueId,
    /// `[R, 1]`, in range.
    pub(super) target: ValueId,
    /// `[R, 1]`, false where a target is ignored.
    pub(super) counts: ValueId,
    /// The output's shape with the classes last.
    moved: Vec<usize>,
    /// `[R, 1]`: what the target's class counts; `None` if all count alike.
    weight: Option<ValueId>,
    /// `[1, C]`: what each class counts.
    weights: Option<ValueId>,
    /// What is divided by: what targets that count do so together, or one.
    pub(super) divisor: ValueId,
}

impl ClassRows {
    pub(super) fn new(
        t: &mut Tape,
        e: Elements,
        output: ValueId,
        target: ValueId,
    ) -> Result<ClassRows, TypeError> {
        let ty = t.ty(output);
        let perm: Vec<usize> = perm(e.class_axis, ty.rank());
        let moved: Vec<usize> = perm.iter().map(|&i| ty.shape[i]).collect();
        let classes = ty.shape[e.class_axis];
        let rows = t.ty(target).elements();
        let x = t.transpose(output, perm)?;
        let x = t.reshape(x, &[rows, classes])?;
        let target = t.reshape(target, &[rows, 1])?;
        let (ignored, zero) = (e.ignore_index as f64, 0.0);
        let (ignored, zero) = (t.number(target, ignored), t.number(target, zero));
        let ignored = t.binary(Binary::Equal, target, ignored)?;
        let counts = t.unary(Unary::Not, ignored)?;
        let target = t.select(counts, target, zero)?;
        let weights = e.class_weights.map(|list| t.row(ty.dtype, list)).transpose()?;
        let weight = match weights {
            Some(weights) => {
                let list = t.reshape(weights, &[classes])?;
                Some(t.emit(Op::Gather { axis: 0 }, vec![list, target])?)
            }
            None => None,
        };
        let divisor = match (e.reduction, weight) {
            (Reduction::Sum, _) => t.number(x, 1.0),
            (Reduction::Mean, Some(weight)) => {
                let weight = t.masked(counts, weight)?;
                t.sum(weight, vec![0, 1], false)?
            }
            (Reduction::Mean, None) => {
                let ones = t.cast(counts, ty.dtype)?;
                t.sum(ones, vec![0, 1], false)?
            }
        };
        Ok(ClassRows { x, target, counts, moved, weight, weights, divisor })
    }

    /// The loss and, of logits, the statistics of their rows.
    pub(super) fn loss(
        &self,
        t: &mut Tape,
        e: Elements,
        logits: bool,
    ) -> Result<(ValueId, Option<[ValueId; 2]>), TypeError> {
        let at = t.emit(Op::GatherElements { axis: 1 }, vec![self.x, self.target])?;
        let (log, stats) = if logits {
            let stats = t.node(Op::LogSoftmaxStats, vec![self.x])?;
            let shifted = t.binary(Binary::Sub, at, stats[0])?;
            (t.binary(Binary::Sub, shifted, stats[1])?, Some([stats[0], stats[1]]))
        } else {
            (at, None)
        };
        let mut log = match self.weight {
            Some(weight) => t.mul(weight, log)?,
            None => log,
        };
        if let (Some([max, ln_sum]), true) = (stats, e.smoothing > 0.0) {
            // Σ w · ((x − max) − ln_sum) over all classes.
            let shifted = t.binary(Binary::Sub, self.x, max)?;
            let weighted = match self.weights {
                Some(weights) => t.mul(shifted, weights)?,
                None => shifted,
            };
            let sum = t.sum(weighted, vec![1], true)?;
            let all = t.scaled(ln_sum, self.total(t, e))?;
            let all = t.binary(Binary::Sub, sum, all)?;
            let all = t.scaled(all, self.share(t, e))?;
            let own = t.scaled(log, 1.0 - e.smoothing)?;
            log = t.binary(Binary::Add, own, all)?;
        }
        let log = t.masked(self.counts, log)?;
        let each = t.unary(Unary::Neg, log)?;
        let sum = t.sum(each, vec![0, 1], false)?;
        Ok((t.binary(Binary::Div, sum, self.divisor)?, stats))
    }

    /// What all classes count together.
    fn total(&self, t: &Tape, e: Elements) -> f64 {
        let classes = t.shape(self.x)[1];
        e.class_weights.map_or(classes as f64, |list| list.iter().sum())
    }

    /// How much of a target each class gets.
    fn share(&self, t: &Tape, e: Elements) -> f64 {
        e.smoothing / t.shape(self.x)[1].max(1) as f64
    }

    /// For how many rows a bool is true.
    pub(super) fn number(t: &mut Tape, of: ValueId) -> Result<ValueId, TypeError> {
        let ones = t.cast(of, DType::I64)?;
        t.sum(ones, vec![0, 1], false)
    }

    pub(super) fn gradient(
        &self,
        t: &mut Tape,
        e: Elements,
        output: ValueId,
        stats: Option<[ValueId; 2]>,
    ) -> Result<ValueId, TypeError> {
        let each = t.unary(Unary::Reciprocal, self.divisor)?;
        let each = t.scaled(each, -e.factor)?;
        let each = t.masked(self.counts, each)?;
        let weight = match self.weight {
            Some(weight) => t.mul(each, weight)?,
            None => each,
        };
        let d = match stats {
            Some([max, ln_sum]) => {
                let weight = t.scaled(weight, 1.0 - e.smoothing)?;
                let operands = vec![self.x, max, ln_sum, self.target, weight];
                let d = t.emit(Op::CrossEntropyGrad, operands)?;
                self.smoothed(t, e, d, each, [max, ln_sum])?
            }
            None => {
                let ty = t.ty(self.x);
                let zeros = t.zeros(&ty)?;
                let op = Op::ScatterElements { axis: 1, reduction: Scatter::Replace };
                t.emit(op, vec![zeros, self.target, weight])?
            }
        };
        let d = t.reshape(d, &self.moved)?;
        let rank = t.ty(output).rank();
        let mut back = vec![0; rank];
        perm(e.class_axis, rank).into_iter().enumerate().for_each(|(i, p)| back[p] = i);
        t.transpose(d, back)
    }
}

impl ClassRows {
    /// Adds to a gradient that of what is spread over all classes: `share · (total · p − w)` of
    /// each, times what its row counts.
    fn smoothed(
        &self,
        t: &mut Tape,
        e: Elements,
        d: ValueId,
        each: ValueId,
        [max, ln_sum]: [ValueId; 2],
    ) -> Result<ValueId, TypeError> {
        if e.smoothing == 0.0 {
            return Ok(d);
        }
        let p = t.emit(Op::SoftmaxOfStats, vec![self.x, max, ln_sum])?;
        let p = t.scaled(p, self.total(t, e))?;
        let weights = match self.weights {
            Some(weights) => weights,
            None => t.number(p, 1.0),
        };
        let difference = t.binary(Binary::Sub, p, weights)?;
        let row = t.scaled(each, -self.share(t, e))?;
        let spread = t.mul(difference, row)?;
        t.binary(Binary::Add, d, spread)
    }
}

/// All axes with that of the classes last.
fn perm(class_axis: usize, rank: usize) -> Vec<usize> {
    (0..rank).filter(|&i| i != class_axis).chain([class_axis]).collect()
}
