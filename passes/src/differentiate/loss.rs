//! Losses, each with its gradient by the model's output.
//!
//! Definitions are PyTorch's. The gradient is written down rather than derived: that of a
//! cross entropy then needs two numbers per row beside the logits (see `fuse_cross_entropy`),
//! and that of the others no more than output and target.

use super::tape::Tape;
use super::{DifferentiateError, Reduction};
use arenic_ir::graph::ValueId;
use arenic_ir::op::{Binary, Op, Scatter, TypeError, Unary};
use arenic_ir::types::{DType, TensorType};
use std::borrow::Cow;

/// What is minimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss<'a> {
    /// Of logits and indices of classes.
    CrossEntropy,
    /// Of log probabilities and indices of classes.
    Nll,
    /// Of logits and probabilities.
    Bce,
    /// Squared differences.
    Mse,
    /// A scalar output of the model.
    Output(&'a str),
}

impl<'a> Loss<'a> {
    pub(super) fn named(name: &'a str) -> Loss<'a> {
        match name {
            "cross_entropy" => Loss::CrossEntropy,
            "nll" => Loss::Nll,
            "bce" => Loss::Bce,
            "mse" => Loss::Mse,
            output => Loss::Output(output),
        }
    }

    /// The type of the input `target` beside an output of this type; none where the model's
    /// own inputs hold the targets.
    ///
    /// # Errors
    /// The output does not fit the loss.
    pub(super) fn target(
        self,
        output: &TensorType,
        class_axis: usize,
    ) -> Result<Option<TensorType>, DifferentiateError> {
        let unfit = |wanted: Cow<'static, str>| DifferentiateError::Output {
            loss: self.name().to_owned(),
            ty: output.clone(),
            wanted: wanted.into_owned(),
        };
        if !output.dtype.is_float() {
            return Err(unfit("floats".into()));
        }
        match self {
            Loss::CrossEntropy | Loss::Nll => {
                if class_axis >= output.rank() {
                    return Err(unfit(format!("classes along axis {class_axis}").into()));
                }
                let mut shape = output.shape.clone();
                shape.remove(class_axis);
                Ok(Some(TensorType::new(DType::I64, shape)))
            }
            Loss::Bce | Loss::Mse => Ok(Some(output.clone())),
            Loss::Output(_) if output.elements() == 1 => Ok(None),
            Loss::Output(_) => Err(unfit("one element".into())),
        }
    }

    fn name(self) -> &'a str {
        match self {
            Loss::CrossEntropy => "cross_entropy",
            Loss::Nll => "nll",
            Loss::Bce => "bce",
            Loss::Mse => "mse",
            Loss::Output(name) => name,
        }
    }
}

/// How a loss is made of its elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    /// The axis of classes.
    pub(super) class_axis: usize,
    /// Targets that count for nothing.
    pub(super) ignore_index: i64,
    /// Sum or mean.
    pub(super) reduction: Reduction,
    /// What the gradient is multiplied by.
    pub(super) factor: f64,
}

/// The loss of `output`, a scalar, and what its gradient needs.
pub(super) struct Built {
    pub(super) loss: ValueId,
    gradient: Partial,
}

/// A gradient that is not made yet, so that a loss alone costs nothing more.
enum Partial {
    Classes { rows: Rows, stats: Option<[ValueId; 2]> },
    Elements { target: ValueId, difference: Option<ValueId> },
    Itself,
}

/// Logits or log probabilities with one row per target.
#[derive(Clone)]
struct Rows {
    /// `[R, C]`.
    x: ValueId,
    /// `[R, 1]`, in range.
    target: ValueId,
    /// `[R, 1]`, false where a target is ignored.
    counts: ValueId,
    /// The output's shape with the classes last.
    moved: Vec<usize>,
    /// What is divided by: the number of targets that count, or one.
    divisor: ValueId,
}

impl Built {
    /// Adds the loss to the graph.
    pub(super) fn new(
        t: &mut Tape,
        loss: Loss,
        e: Elements,
        output: ValueId,
        target: Option<ValueId>,
    ) -> Result<Built, TypeError> {
        match (loss, target) {
            (Loss::CrossEntropy | Loss::Nll, Some(target)) => {
                let rows = Rows::new(t, e, output, target)?;
                let (axis, logits) = (1, loss == Loss::CrossEntropy);
                let at = t.emit(Op::GatherElements { axis }, vec![rows.x, rows.target])?;
                let (log, stats) = if logits {
                    let stats = t.node(Op::LogSoftmaxStats, vec![rows.x])?;
                    let shifted = t.binary(Binary::Sub, at, stats[0])?;
                    (t.binary(Binary::Sub, shifted, stats[1])?, Some([stats[0], stats[1]]))
                } else {
                    (at, None)
                };
                let log = t.masked(rows.counts, log)?;
                let each = t.unary(Unary::Neg, log)?;
                let sum = t.sum(each, vec![0, 1], false)?;
                let loss = t.binary(Binary::Div, sum, rows.divisor)?;
                Ok(Built { loss, gradient: Partial::Classes { rows, stats } })
            }
            (Loss::Bce, Some(target)) => {
                // max(x, 0) − x · target + ln(1 + exp(−|x|)), which never overflows.
                let x = output;
                let positive = t.unary(Unary::Relu, x)?;
                let product = t.mul(x, target)?;
                let linear = t.binary(Binary::Sub, positive, product)?;
                let size = t.unary(Unary::Abs, x)?;
                let minus = t.unary(Unary::Neg, size)?;
                let small = t.unary(Unary::Exp, minus)?;
                let one = t.number(x, 1.0);
                let sum = t.binary(Binary::Add, one, small)?;
                let log = t.unary(Unary::Log, sum)?;
                let each = t.binary(Binary::Add, linear, log)?;
                let loss = reduced(t, e, each)?;
                Ok(Built { loss, gradient: Partial::Elements { target, difference: None } })
            }
            (Loss::Mse, Some(target)) => {
                let difference = t.binary(Binary::Sub, output, target)?;
                let each = t.mul(difference, difference)?;
                let loss = reduced(t, e, each)?;
                let difference = Some(difference);
                Ok(Built { loss, gradient: Partial::Elements { target, difference } })
            }
            _ => Ok(Built { loss: t.reshape(output, &[])?, gradient: Partial::Itself }),
        }
    }

    /// The gradient of the loss by `output`, of which it was made.
    pub(super) fn gradient(
        &self,
        t: &mut Tape,
        e: Elements,
        output: ValueId,
    ) -> Result<ValueId, TypeError> {
        match &self.gradient {
            Partial::Classes { rows, stats } => rows.gradient(t, e, output, *stats),
            Partial::Elements { target, difference } => {
                let count = match e.reduction {
                    Reduction::Mean => t.ty(output).elements().max(1) as f64,
                    Reduction::Sum => 1.0,
                };
                match difference {
                    Some(difference) => t.scaled(*difference, 2.0 * e.factor / count),
                    None => {
                        let probability = t.unary(Unary::Sigmoid, output)?;
                        let difference = t.binary(Binary::Sub, probability, *target)?;
                        t.scaled(difference, e.factor / count)
                    }
                }
            }
            Partial::Itself => {
                let shape = t.shape(output);
                let factor = t.number(output, e.factor);
                t.reshape(factor, &shape)
            }
        }
    }
}

/// How good a model is at what one batch asks of it.
pub(super) struct Figures {
    /// The mean over the targets that count, or over all elements; zero where none counts.
    pub(super) loss: ValueId,
    /// Of classes.
    pub(super) classes: Option<Classes>,
}

/// What else there is to say where targets are classes.
pub(super) struct Classes {
    /// The share of targets that count whose class is the first of those with the largest logit;
    /// zero where none counts.
    pub(super) accuracy: ValueId,
    /// How many targets count, by which batches are weighted; of `i64`.
    pub(super) counted: ValueId,
}

impl Figures {
    /// Adds the figures to the graph, whatever reduction the model is trained with.
    pub(super) fn new(
        t: &mut Tape,
        loss: Loss,
        e: Elements,
        output: ValueId,
        target: Option<ValueId>,
    ) -> Result<Figures, TypeError> {
        let mean = Elements { reduction: Reduction::Mean, ..e };
        let (Loss::CrossEntropy | Loss::Nll, Some(_)) = (loss, target) else {
            let built = Built::new(t, loss, mean, output, target)?;
            return Ok(Figures { loss: built.loss, classes: None });
        };
        let sum = Elements { reduction: Reduction::Sum, ..e };
        let built = Built::new(t, loss, sum, output, target)?;
        let Partial::Classes { rows, .. } = &built.gradient else {
            return Err(TypeError("a loss of classes has rows".into()));
        };
        let dtype = t.ty(rows.x).dtype;
        let counted = Rows::number(t, rows.counts)?;
        let one = t.number(counted, 1.0);
        let divisor = t.binary(Binary::Max, counted, one)?;
        let divisor = t.cast(divisor, dtype)?;
        let loss = t.binary(Binary::Div, built.loss, divisor)?;
        t.name = "accuracy".into();
        let best = t.node(Op::TopK { axis: 1, k: 1, largest: true }, vec![rows.x])?;
        let first = t.binary(Binary::Equal, rows.target, best[1])?;
        let right = t.binary(Binary::And, first, rows.counts)?;
        let right = Rows::number(t, right)?;
        let right = t.cast(right, dtype)?;
        let accuracy = t.binary(Binary::Div, right, divisor)?;
        Ok(Figures { loss, classes: Some(Classes { accuracy, counted }) })
    }
}

/// The sum or the mean of all elements.
fn reduced(t: &mut Tape, e: Elements, x: ValueId) -> Result<ValueId, TypeError> {
    let axes = (0..t.ty(x).rank()).collect();
    match e.reduction {
        Reduction::Sum => t.sum(x, axes, false),
        Reduction::Mean => {
            let f = arenic_ir::op::Reduction::Mean;
            t.emit(Op::Reduce { f, axes, keep: false }, vec![x])
        }
    }
}

impl Rows {
    fn new(t: &mut Tape, e: Elements, output: ValueId, target: ValueId) -> Result<Rows, TypeError> {
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
        let divisor = match e.reduction {
            Reduction::Sum => t.number(x, 1.0),
            Reduction::Mean => {
                let ones = t.cast(counts, ty.dtype)?;
                t.sum(ones, vec![0, 1], false)?
            }
        };
        Ok(Rows { x, target, counts, moved, divisor })
    }

    /// For how many rows a bool is true.
    fn number(t: &mut Tape, of: ValueId) -> Result<ValueId, TypeError> {
        let ones = t.cast(of, DType::I64)?;
        t.sum(ones, vec![0, 1], false)
    }

    fn gradient(
        &self,
        t: &mut Tape,
        e: Elements,
        output: ValueId,
        stats: Option<[ValueId; 2]>,
    ) -> Result<ValueId, TypeError> {
        let each = t.unary(Unary::Reciprocal, self.divisor)?;
        let each = t.scaled(each, -e.factor)?;
        let weight = t.masked(self.counts, each)?;
        let d = match stats {
            Some([max, ln_sum]) => {
                let operands = vec![self.x, max, ln_sum, self.target, weight];
                t.emit(Op::CrossEntropyGrad, operands)?
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

/// All axes with that of the classes last.
fn perm(class_axis: usize, rank: usize) -> Vec<usize> {
    (0..rank).filter(|&i| i != class_axis).chain([class_axis]).collect()
}
