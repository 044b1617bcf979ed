//! From a forward graph to a training step: loss, gradients, updates.
//!
//! The graph's weights are states that keep their value, as a model that is imported for
//! training has them. The pass adds the input `target`, the loss as the only output, `loss`,
//! the gradient of every parameter by reverse mode (`reverse`, by the rules in `rules`), and
//! its update (`optimizer`), scaled by the input `lr`. Gradients go only where a trained
//! parameter is; frozen ones become constants, and what their gradients would need is neither
//! computed nor kept. Inside of a chain of elementwise operators values are computed again (`chains`); what no `Where`
//! selects has the gradient zero (`guards`).
//!
//! Sound because every rule is the adjoint of its operator's derivative, which tests hold
//! against central differences, and because whole steps equal PyTorch's (`tests/forward.rs`).
//! Reverse mode: Griewank, Walther, "Evaluating Derivatives" (2008), chapter 3.

mod chains;
mod error;
mod function;
mod glob;
mod guards;
mod loss;
mod optimizer;
mod parameters;
mod reverse;
mod roles;
mod rounds;
mod rules;
mod schedule;
mod tape;

pub use error::{DifferentiateError, Missing};
pub use function::Function;
pub use glob::Glob;
pub use parameters::{Parameter, Standing, WeightRole};
pub use rules::{Passage, passage};

use crate::rounds::{Divides, Division};
use crate::{Cx, GraphPass, PassError, Purpose, Stats};
use arenic_ir::graph::{Data, Def, Graph, NodeId, Output, StateId, ValueId};
use arenic_ir::op::{Binary, TypeError, Unary};
use arenic_ir::types::TensorType;
use cranelift_entity::EntityRef;
use loss::{Built, Elements, Figures, Loss, LossOperand};
use optimizer::Updates;
use reverse::{Paths, reverse};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tape::Tape;

/// Name of an evaluation's third output: the number of targets in the batch, over which the first
/// two, `loss` and `accuracy`, are means.
pub const COUNTED: &str = "counted";
/// The outputs of an evaluation with weights of classes: the weighted mean of the loss, and what the
/// targets that count weigh together. They come before the loss.
pub const WEIGHTED: [&str; 2] = ["weighted_loss", "weight"];

/// Makes a training step of a forward graph: loss, gradients and updates.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Differentiate {
    /// Loss of the model's output and the input `target`: cross_entropy, nll, bce, mse, l1,
    /// smooth_l1, huber or kl_div; or the name of a scalar output that is the loss.
    pub loss: String,
    /// How parameters are updated.
    pub optimizer: Optimizer,
    /// Output that the loss is computed from; needed if the model has several.
    pub output: Option<String>,
    /// Axis of the classes, counted from the end if negative; 1 by default.
    pub class_axis: Option<i64>,
    /// Label smoothing of cross_entropy: the part of each target that is spread over all classes,
    /// from 0 to 1.
    pub label_smoothing: Option<f64>,
    /// Class weights of cross_entropy and nll.
    pub class_weights: Option<Vec<f64>>,
    /// Threshold of smooth_l1 (its beta) and huber, below which differences are squared; 1 by
    /// default.
    pub delta: Option<f64>,
    /// Ignore targets of this class; -100 by default.
    pub ignore_index: Option<i64>,
    /// Reduction of the loss over its elements.
    pub reduction: Reduction,
    /// Weights to train, even if they would be kept or frozen.
    pub train: Vec<Glob>,
    /// Weights to keep as they are.
    pub freeze: Vec<Glob>,
    /// Roles of weights by name, as the model's file gives them; other weights get theirs from the
    /// operators that read them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, Standing>,
    /// Stop gradients at these tensors.
    pub stop_gradient: Vec<Glob>,
    /// Micro-batches of one step, whose gradients are averaged; inputs have that many times the
    /// model's rows.
    pub accumulate: Option<u32>,
    /// Clip gradients: scale them down so that their global norm is at most this.
    pub clip_norm: Option<f64>,
    /// Factor of momentum; 0.9 by default.
    pub momentum: Option<f64>,
    /// Nesterov momentum.
    pub nesterov: bool,
    /// Decay of the first moment in adam, adamw and lion.
    pub beta1: Option<f64>,
    /// Decay of the second moment in adam and adamw; beta2 of lion and alpha of rmsprop.
    pub beta2: Option<f64>,
    /// Epsilon, added to the denominator.
    pub epsilon: Option<f64>,
    /// Weight decay of all parameters; by default 0.01 for adamw, else 0.
    pub weight_decay: Option<f64>,
    /// Weight decay of some parameters; the last pattern that matches counts.
    pub decay: Vec<Decay>,
    /// Schedule of the learning rate: what the input `lr` is multiplied by.
    pub lr_schedule: LrSchedule,
    /// Steps of warm-up, in which the learning rate rises to its full value.
    pub warmup_steps: u64,
    /// Steps after which the learning rate is zero, for cosine and linear.
    pub total_steps: Option<u64>,
    /// Steps between two changes, for step.
    pub lr_step_size: Option<u64>,
    /// Factor of each change, for step; 0.1 by default.
    pub lr_gamma: Option<f64>,
}

/// Declares [`Optimizer`] with the list of all of them.
macro_rules! optimizers {
    ($(#[$meta:meta])* $first:ident, $($other:ident),* $(,)?) => {
        $(#[$meta])*
        pub enum Optimizer {
            #[default]
            $first,
            $($other),*
        }

        impl Optimizer {
            /// All of them.
            pub const ALL: &[Optimizer] = &[Optimizer::$first, $(Optimizer::$other),*];
        }
    };
}

optimizers! {
    /// How parameters are updated; formulas and defaults are PyTorch's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[allow(missing_docs)] // the field's names
    Sgd, Momentum, Adam, Adamw, Adagrad, Rmsprop, Lion,
}

/// How a loss is reduced to one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the field's names
pub enum Reduction {
    #[default]
    Mean,
    Sum,
}

/// How the learning rate varies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the field's names
pub enum LrSchedule {
    #[default]
    Constant,
    Cosine,
    Linear,
    Step,
}

/// Weight decay of some parameters.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decay {
    /// Names of the parameters.
    pub of: Glob,
    /// Their weight decay.
    pub is: f64,
}

impl GraphPass for Differentiate {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let pass = cx.differentiate.unwrap_or(self);
        match cx.purpose {
            Purpose::Step => Ok(pass.step(g, cx)?),
            Purpose::Evaluation => Ok(pass.evaluation(g, cx)?),
        }
    }

    fn differentiates(&self) -> Option<&Differentiate> {
        Some(self)
    }

    fn divides(&self, cx: &Cx) -> Option<&dyn Divides> {
        let pass = cx.differentiate.unwrap_or(self);
        let divided = pass.accumulate.is_some_and(|count| count != 1);
        (divided && cx.purpose == Purpose::Step).then_some(self)
    }
}

impl Divides for Differentiate {
    fn counts(&self, _: &Graph) -> Result<Vec<u32>, PassError> {
        match self.accumulate {
            Some(0) => Err(DifferentiateError::NoBatches.into()),
            count => Ok(vec![count.unwrap_or(1)]),
        }
    }

    fn divide(&self, g: &Graph, count: u32, cx: &Cx) -> Result<Division, PassError> {
        if g.values.values().any(|v| matches!(v.def, Def::View { .. })) {
            return Err(DifferentiateError::Views.into());
        }
        cx.differentiate.unwrap_or(self).in_rounds(g, count, cx)
    }
}

impl Differentiate {
    /// The weights of a forward graph, and what the pass makes of them.
    ///
    /// # Errors
    /// See [`DifferentiateError`].
    pub fn parameters(&self, g: &Graph) -> Result<Vec<Parameter>, DifferentiateError> {
        let mut all = parameters::find(g, &self.train, &self.freeze, &self.weights)?;
        let output = self.scored(g)?;
        let trained = trained(&all, g);
        let nodes: Vec<NodeId> = g.nodes.keys().collect();
        let paths = Paths::new(g, &nodes, &trained, output, |v| self.stops(g, v))?;
        for p in all.iter_mut().filter(|p| p.role == WeightRole::Trained) {
            if !paths.includes(g.states[p.state].enter) {
                p.role = WeightRole::Unused;
            }
        }
        if !all.iter().any(|p| p.role == WeightRole::Trained) {
            return Err(DifferentiateError::Unreached { inference: all.is_empty() });
        }
        Ok(all)
    }

    /// Makes constants of all weights that are not trained, as [`Differentiate::parameters`] found
    /// them in the graph; returns the pass that trains the others, whatever they look like in a
    /// graph that passes have rewritten since.
    pub fn settled(&self, g: &mut Graph, parameters: &[Parameter]) -> Differentiate {
        settle(g, parameters);
        let trained = parameters.iter().filter(|p| p.role == WeightRole::Trained);
        let weights = trained.map(|p| (p.name.clone(), Standing::Parameter)).collect();
        Differentiate { train: Vec::new(), freeze: Vec::new(), weights, ..self.clone() }
    }

    fn loss(&self) -> Result<Loss<'_>, DifferentiateError> {
        match self.loss.as_str() {
            "" => Err(DifferentiateError::NoLoss),
            name => Ok(Loss::named(name)),
        }
    }

    /// The output that the loss is of.
    fn output<'g>(&self, g: &'g Graph) -> Result<&'g Output, DifferentiateError> {
        let wanted = match (self.loss()?, &self.output) {
            (Loss::Output(name), _) => Some(name),
            (_, name) => name.as_deref(),
        };
        let known = || g.outputs.iter().map(|o| o.name.clone()).collect();
        match (wanted, &g.outputs[..]) {
            (None, [output]) => Ok(output),
            (None, _) => Err(DifferentiateError::Outputs(known())),
            (Some(name), all) => all.iter().find(|o| o.name == name).ok_or_else(|| {
                let name = name.to_owned();
                match name == self.loss {
                    true => DifferentiateError::UnknownLoss { name, known: known() },
                    false => DifferentiateError::UnknownOutput { name, known: known() },
                }
            }),
        }
    }

    /// The value that the loss is of: the output or, of a loss of logits where the model gives
    /// probabilities, what these are made of.
    fn scored(&self, g: &Graph) -> Result<ValueId, DifferentiateError> {
        let output = self.output(g)?.value;
        let loss = self.loss()?;
        match loss::found(g, loss, self.axis(g.ty(output))?, output) {
            Some(LossOperand::Softmax(v) | LossOperand::Sigmoid(v)) => Ok(v),
            Some(LossOperand::Probabilities) => {
                Err(DifferentiateError::Probabilities(self.loss.clone()))
            }
            None => Ok(output),
        }
    }

    /// What a user should know of how the loss is taken.
    ///
    /// # Errors
    /// See [`DifferentiateError`].
    pub fn remarks(&self, g: &Graph) -> Result<Vec<String>, DifferentiateError> {
        let (output, loss) = (self.output(g)?, self.loss()?);
        let (name, ty) = (&output.name, g.ty(output.value));
        let mut remarks = Vec::new();
        let of = match loss::found(g, loss, self.axis(ty)?, output.value) {
            Some(LossOperand::Softmax(_)) => Some("softmax"),
            Some(LossOperand::Sigmoid(_)) => Some("sigmoid"),
            _ => None,
        };
        if let Some(of) = of {
            remarks.push(format!(
                "the output `{name}` is of a {of}; the loss {} is taken of the {of}'s operand",
                self.loss
            ));
        }
        if loss.is_of_classes() && ty.rank() == 3 && self.class_axis.is_none() {
            remarks.push(format!(
                "the output `{name}` is {ty}: its classes are the {} along axis 1; for the {} along \
                 the last give --class-axis -1",
                ty.shape[1], ty.shape[2]
            ));
        }
        Ok(remarks)
    }

    /// The axis of classes of an output; 0 where it has no such axis.
    fn axis(&self, output: &TensorType) -> Result<usize, DifferentiateError> {
        let (axis, rank) = (self.class_axis.unwrap_or(1), output.rank() as i64);
        let counted = if axis < 0 { axis + rank } else { axis };
        if !self.loss()?.is_of_classes() {
            return Ok(0);
        }
        usize::try_from(counted).ok().filter(|&a| a < output.rank()).ok_or_else(|| {
            DifferentiateError::Output {
                loss: self.loss.clone(),
                ty: output.clone(),
                wanted: format!("classes along axis {axis}"),
            }
        })
    }

    /// Refuses options that the loss does not have.
    fn check_loss(&self, output: &TensorType) -> Result<(), DifferentiateError> {
        let loss = self.loss()?;
        let refused = |text: String| Err(DifferentiateError::Option(text));
        match self.label_smoothing {
            Some(_) if loss != Loss::CrossEntropy => {
                return refused(format!(
                    "label smoothing is of cross_entropy, not of {}",
                    self.loss
                ));
            }
            Some(x) if !(0.0..=1.0).contains(&x) => {
                return refused(format!("a label smoothing of {x} is not from 0 to 1"));
            }
            _ => {}
        }
        if let Some(delta) = self.delta {
            if !matches!(loss, Loss::SmoothL1 | Loss::Huber) {
                return refused(format!("delta is of smooth_l1 and huber, not of {}", self.loss));
            }
            if delta.is_nan() || delta <= 0.0 || delta.is_infinite() {
                return refused(format!("a delta of {delta} is not above 0"));
            }
        }
        let Some(weights) = &self.class_weights else { return Ok(()) };
        if !loss.is_of_classes() {
            return refused(format!(
                "class weights are of cross_entropy and nll, not of {}",
                self.loss
            ));
        }
        let classes = output.shape[self.axis(output)?];
        if weights.len() != classes {
            return refused(format!(
                "there are {} class weights for {classes} classes",
                weights.len()
            ));
        }
        if let Some(x) = weights.iter().find(|x| !x.is_finite() || **x < 0.0) {
            return refused(format!("a class weight is {x}, not 0 or above"));
        }
        Ok(())
    }

    fn stops(&self, g: &Graph, v: ValueId) -> bool {
        self.stop_gradient.iter().any(|p| p.matches(&g.values[v].name))
    }

    /// Of one of `count` micro-batches.
    fn elements(
        &self,
        output: &TensorType,
        count: u32,
    ) -> Result<Elements<'_>, DifferentiateError> {
        Ok(Elements {
            class_axis: self.axis(output)?,
            ignore_index: self.ignore_index.unwrap_or(-100),
            reduction: self.reduction,
            factor: 1.0 / f64::from(count),
            smoothing: self.label_smoothing.unwrap_or(0.0),
            class_weights: self.class_weights.as_deref(),
            delta: self.delta.unwrap_or(1.0),
        })
    }

    /// Adds the input `target`, where the loss has one.
    fn target(
        &self,
        g: &mut Graph,
        output: ValueId,
    ) -> Result<Option<ValueId>, DifferentiateError> {
        self.check_loss(g.ty(output))?;
        let axis = self.axis(g.ty(output))?;
        let Some(ty) = self.loss()?.target(g.ty(output), axis)? else { return Ok(None) };
        free(g, "target")?;
        Ok(Some(g.add_input("target", ty)))
    }

    /// The loss alone, where there are classes with the accuracy and the number of targets that
    /// both are of, beside the model's outputs.
    fn evaluation(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, DifferentiateError> {
        if let Loss::Output(_) = self.loss()? {
            return Ok(Stats::new());
        }
        let output = self.scored(g)?;
        let target = self.target(g, output)?;
        let e = self.elements(g.ty(output), 1)?;
        let mut t = Tape::new(g, cx.evaluate);
        t.name = "loss".into();
        let figures = Figures::new(&mut t, self.loss()?, e, output, target)?;
        let mut say = |name: &str, value| g.outputs.push(Output { name: name.into(), value });
        let weighted = figures.classes.as_ref().and_then(|classes| classes.weighted);
        for (name, value) in WEIGHTED.into_iter().zip(weighted.into_iter().flatten()) {
            say(name, value);
        }
        say("loss", figures.loss);
        if let Some(classes) = figures.classes {
            say("accuracy", classes.accuracy);
            say(COUNTED, classes.counted);
        }
        Ok(Stats::new())
    }

    fn step(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, DifferentiateError> {
        if g.values.values().any(|v| matches!(v.def, Def::View { .. })) {
            return Err(DifferentiateError::Views);
        }
        let parameters = self.parameters(g)?;
        free(g, "lr")?;
        let output = self.scored(g)?;
        let target = self.target(g, output)?;
        g.outputs.clear();
        let trained = trained(&parameters, g);
        let mut t = Tape::new(g, cx.evaluate);
        let part = self.micro_batch(&mut t, output, target, &trained, 1)?;
        let each = states(&parameters).into_iter().zip(part.gradients);
        let gradients = each.filter_map(|(state, gradient)| Some((state, gradient?)));
        let updated = self.updates(&mut t, gradients.collect())?;
        let again = t.computed_again();
        g.outputs.push(Output { name: "loss".into(), value: part.loss });
        let frozen = settle(g, &parameters);
        *g = g.compacted(|_| true);
        Ok(Stats::from([
            ("parameters", updated),
            ("frozen", frozen),
            ("values_computed_again", again),
        ]))
    }

    /// Updates parameters by their gradients; says how many.
    fn updates(
        &self,
        t: &mut Tape,
        mut gradients: Vec<(StateId, ValueId)>,
    ) -> Result<u64, DifferentiateError> {
        let mut updates = Updates::new(t, self)?;
        if let Some(most) = self.clip_norm {
            clip(t, &mut gradients, most)?;
        }
        for &(state, gradient) in &gradients {
            updates.update(t, state, gradient)?;
        }
        Ok(gradients.len() as u64)
    }

    /// Adds loss and gradients of one micro-batch.
    fn micro_batch(
        &self,
        t: &mut Tape,
        output: ValueId,
        target: Option<ValueId>,
        trained: &[ValueId],
        count: u32,
    ) -> Result<MicroBatch, DifferentiateError> {
        let nodes: Vec<NodeId> = t.g.nodes.keys().collect();
        let paths = Paths::new(t.g, &nodes, trained, output, |v| self.stops(t.g, v))?;
        let e = self.elements(t.g.ty(output), count)?;
        t.name = "loss".into();
        let built = Built::new(t, self.loss()?, e, output, target)?;
        t.name = "loss.grad".into();
        let gradient = built.gradient(t, e, output)?;
        t.give(output, gradient);
        reverse(t, &nodes, &paths)?;
        let mut gradients = Vec::with_capacity(trained.len());
        for &p in trained {
            let (name, shape) = (t.g.values[p].name.clone(), t.shape(p));
            t.name = format!("{name}.grad");
            let gradient = t.collect(p)?;
            let gradient = gradient.map(|d| t.expand(d, &shape)).transpose()?;
            if let Some(d) = gradient
                && t.g.values[d].name.is_empty()
            {
                t.g.values[d].name = format!("{name}.grad");
            }
            gradients.push(gradient);
        }
        Ok(MicroBatch { loss: built.loss, gradients })
    }
}

struct MicroBatch {
    loss: ValueId,
    /// Of the trained parameters.
    gradients: Vec<Option<ValueId>>,
}

fn states(parameters: &[Parameter]) -> Vec<StateId> {
    parameters.iter().filter(|p| p.role == WeightRole::Trained).map(|p| p.state).collect()
}

fn trained(parameters: &[Parameter], g: &Graph) -> Vec<ValueId> {
    states(parameters).into_iter().map(|s| g.states[s].enter).collect()
}

/// Refuses a name that an input or a state has.
fn free(g: &Graph, name: &str) -> Result<(), DifferentiateError> {
    let taken =
        g.inputs().any(|v| g.values[v].name == name) || g.states.values().any(|s| s.name == name);
    if taken { Err(DifferentiateError::Name(name.to_owned())) } else { Ok(()) }
}

/// Scales gradients so that the norm of all together is at most `most`, as PyTorch's
/// `clip_grad_norm_` does. Every gradient then stays alive until the last one is known.
fn clip(t: &mut Tape, all: &mut [(StateId, ValueId)], most: f64) -> Result<(), TypeError> {
    t.name = "clip_norm".into();
    let mut sum: Option<ValueId> = None;
    for &(_, d) in all.iter() {
        let square = t.mul(d, d)?;
        let axes = (0..t.ty(d).rank()).collect();
        let part = t.sum(square, axes, false)?;
        sum = Some(match sum {
            None => part,
            Some(sum) => {
                let dtype = t.ty(sum).dtype;
                let part = t.cast(part, dtype)?;
                t.binary(Binary::Add, sum, part)?
            }
        });
    }
    let Some(sum) = sum else { return Ok(()) };
    let norm = t.unary(Unary::Sqrt, sum)?;
    let (small, most, one) = (t.number(norm, 1e-6), t.number(norm, most), t.number(norm, 1.0));
    let divisor = t.binary(Binary::Add, norm, small)?;
    let ratio = t.binary(Binary::Div, most, divisor)?;
    let factor = t.binary(Binary::Min, ratio, one)?;
    for (_, d) in all {
        let dtype = t.ty(*d).dtype;
        let factor = t.cast(factor, dtype)?;
        *d = t.mul(*d, factor)?;
    }
    Ok(())
}

/// Makes constants of weights that are not trained; returns how many.
fn settle(g: &mut Graph, parameters: &[Parameter]) -> u64 {
    let kept = |p: &&Parameter| !matches!(p.role, WeightRole::Trained | WeightRole::Statistic);
    let mut constant = vec![false; g.states.len()];
    let mut count = 0;
    for p in parameters.iter().filter(kept) {
        let state = &g.states[p.state];
        let data = state.init.clone().unwrap_or(Data::Absent);
        g.values[state.enter].def = Def::Const(data);
        constant[p.state.index()] = true;
        count += 1;
    }
    let old = std::mem::take(&mut g.states);
    for (s, state) in old {
        if !constant[s.index()] {
            let next = g.states.next_key();
            g.values[state.enter].def = Def::State(next);
            g.states.push(state);
        }
    }
    count
}
