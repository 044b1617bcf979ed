//! Losses, each with its gradient by the model's output.
//!
//! Definitions are PyTorch's. The gradient is written down rather than derived: that of a
//! cross entropy then needs two numbers per row beside the logits (see `fuse_cross_entropy`),
//! and that of the others no more than output and target.

mod classes;
mod elements;

use super::tape::Tape;
use super::{DifferentiateError, Reduction};
use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::op::{Binary, Op, TypeError, Unary};
use arenic_ir::types::{DType, TensorType};
use classes::ClassRows;
use elements::Slope;
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
    /// Absolute differences.
    L1,
    /// Differences, squared below `delta` and divided by it.
    SmoothL1,
    /// Differences, squared below `delta`, above it multiplied by it.
    Huber,
    /// Divergence of the target's probabilities from the output's log probabilities.
    KlDiv,
    /// A scalar output of the model.
    Output(&'a str),
}

/// Losses by name; any other name is an output's.
pub(super) const NAMED: [(&str, Loss<'static>); 8] = [
    ("cross_entropy", Loss::CrossEntropy),
    ("nll", Loss::Nll),
    ("bce", Loss::Bce),
    ("mse", Loss::Mse),
    ("l1", Loss::L1),
    ("smooth_l1", Loss::SmoothL1),
    ("huber", Loss::Huber),
    ("kl_div", Loss::KlDiv),
];

impl<'a> Loss<'a> {
    pub(super) fn named(name: &'a str) -> Loss<'a> {
        let known = NAMED.iter().find(|(known, _)| *known == name);
        known.map_or(Loss::Output(name), |&(_, loss)| loss)
    }

    /// True where targets are classes.
    pub(super) fn is_of_classes(self) -> bool {
        matches!(self, Loss::CrossEntropy | Loss::Nll)
    }

    /// The type of the input `target` beside an output of this type; `None` if the model's
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
                let mut shape = output.shape.clone();
                shape.remove(class_axis);
                Ok(Some(TensorType::new(DType::I64, shape)))
            }
            Loss::Output(_) if output.elements() == 1 => Ok(None),
            Loss::Output(_) => Err(unfit("one element".into())),
            _ => Ok(Some(output.clone())),
        }
    }

    fn name(self) -> &'a str {
        match self {
            Loss::Output(name) => name,
            _ => NAMED.iter().find(|(_, loss)| *loss == self).map_or("", |&(name, _)| name),
        }
    }
}

/// How a loss is made of its elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements<'a> {
    /// The axis of classes.
    pub(super) class_axis: usize,
    /// Targets that count for nothing.
    pub(super) ignore_index: i64,
    /// Sum or mean.
    pub(super) reduction: Reduction,
    /// What the gradient is multiplied by.
    pub(super) factor: f64,
    /// Of `cross_entropy`: how much of each target is spread over all classes.
    pub(super) smoothing: f64,
    /// Of classes: what each counts.
    pub(super) class_weights: Option<&'a [f64]>,
    /// Of `smooth_l1` and `huber`: up to where differences are squared.
    pub(super) delta: f64,
}

/// The loss of `output`, a scalar, and what its gradient needs.
pub(super) struct Built {
    pub(super) loss: ValueId,
    gradient: Partial,
}

/// A gradient that is not made yet, so that a loss alone costs nothing more.
enum Partial {
    Classes { rows: ClassRows, stats: Option<[ValueId; 2]> },
    Elements(Slope),
    Itself,
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
        match target {
            Some(target) if loss.is_of_classes() => {
                let rows = ClassRows::new(t, e, output, target)?;
                let (loss, stats) = rows.loss(t, e, loss == Loss::CrossEntropy)?;
                Ok(Built { loss, gradient: Partial::Classes { rows, stats } })
            }
            Some(target) => {
                let (each, slope) = elements::each(t, loss, e, output, target)?;
                let loss = reduced(t, e, each)?;
                Ok(Built { loss, gradient: Partial::Elements(slope) })
            }
            None => Ok(Built { loss: t.reshape(output, &[])?, gradient: Partial::Itself }),
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
            Partial::Elements(slope) => slope.gradient(t, e, output),
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
    /// With weights of classes: the weighted mean, and what the targets that count weigh together.
    pub(super) weighted: Option<[ValueId; 2]>,
}

impl Figures {
    /// Adds the figures to the graph, whatever reduction the model is trained with.
    pub(super) fn new(
        t: &mut Tape,
        loss_of: Loss,
        e: Elements,
        output: ValueId,
        target: Option<ValueId>,
    ) -> Result<Figures, TypeError> {
        // Over all targets that count alike, whatever a training is to learn of them.
        let weighs = Elements { smoothing: 0.0, reduction: Reduction::Mean, ..e };
        let e = Elements { smoothing: 0.0, class_weights: None, ..e };
        let mean = Elements { reduction: Reduction::Mean, ..e };
        if target.is_none() || !loss_of.is_of_classes() {
            let built = Built::new(t, loss_of, mean, output, target)?;
            return Ok(Figures { loss: built.loss, classes: None });
        }
        let sum = Elements { reduction: Reduction::Sum, ..e };
        let built = Built::new(t, loss_of, sum, output, target)?;
        let Partial::Classes { rows, .. } = &built.gradient else {
            return Err(TypeError("a loss of classes has rows".into()));
        };
        let dtype = t.ty(rows.x).dtype;
        let counted = ClassRows::number(t, rows.counts)?;
        let one = t.number(counted, 1.0);
        let divisor = t.binary(Binary::Max, counted, one)?;
        let divisor = t.cast(divisor, dtype)?;
        let loss = t.binary(Binary::Div, built.loss, divisor)?;
        t.name = "accuracy".into();
        let best = t.node(Op::TopK { axis: 1, k: 1, largest: true }, vec![rows.x])?;
        let first = t.binary(Binary::Equal, rows.target, best[1])?;
        let right = t.binary(Binary::And, first, rows.counts)?;
        let right = ClassRows::number(t, right)?;
        let right = t.cast(right, dtype)?;
        let accuracy = t.binary(Binary::Div, right, divisor)?;
        let weighted = match (weighs.class_weights, target) {
            (Some(_), Some(target)) => {
                t.name = "weighted_loss".into();
                let rows = ClassRows::new(t, weighs, output, target)?;
                let (mean, _) = rows.loss(t, weighs, loss_of == Loss::CrossEntropy)?;
                Some([mean, rows.divisor])
            }
            _ => None,
        };
        Ok(Figures { loss, classes: Some(Classes { accuracy, counted, weighted }) })
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

/// Where a loss of logits or of log probabilities is given what a model makes of these: the
/// value that the loss is of, and what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossOperand {
    /// The operand of a softmax.
    Softmax(ValueId),
    /// The operand of a sigmoid.
    Sigmoid(ValueId),
    /// A softmax, of which the loss is not: it is of its logarithm.
    Probabilities,
}

/// What a model's output is to a loss.
pub(super) fn found(
    g: &Graph,
    loss: Loss,
    class_axis: usize,
    mut output: ValueId,
) -> Option<LossOperand> {
    loop {
        let Def::Node { node, .. } = g.values[output].def else { return None };
        let node = &g.nodes[node];
        let &operand = node.inputs.first()?;
        match (&node.op, loss) {
            (Op::Reshape { .. }, _) if g.ty(operand) == g.ty(output) => output = operand,
            (Op::Softmax { axis }, Loss::CrossEntropy) if *axis == class_axis => {
                return Some(LossOperand::Softmax(operand));
            }
            (Op::Unary { f: Unary::Sigmoid }, Loss::Bce) => {
                return Some(LossOperand::Sigmoid(operand));
            }
            (Op::Softmax { .. }, Loss::Nll | Loss::KlDiv) => {
                return Some(LossOperand::Probabilities);
            }
            _ => return None,
        }
    }
}
