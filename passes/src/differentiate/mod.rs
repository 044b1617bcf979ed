//! From a forward graph to a training step: loss, gradients, updates.
//!
//! The graph's weights are states that keep their value, as a model that is imported for
//! training has them. The pass adds the input `target`, the loss as the only output, `loss`,
//! the gradient of every parameter by reverse mode (`reverse`, by the rules in `rules`), and
//! its update (`optimizer`), scaled by the input `lr`. Gradients go only where a trained
//! parameter is; frozen ones become constants, and what their gradients would need is neither
//! computed nor kept.
//!
//! Sound because every rule is the adjoint of its operator's derivative, which tests hold
//! against central differences, and because whole steps equal PyTorch's (`tests/forward.rs`).
//! Reverse mode: Griewank, Walther, "Evaluating Derivatives" (2008), chapter 3.

mod chains;
mod function;
mod glob;
mod guards;
mod loss;
mod optimizer;
mod parameters;
mod reverse;
mod rounds;
mod rules;
mod schedule;
mod tape;

pub use function::Function;
pub use glob::Glob;
pub use parameters::{Parameter, Role};
pub use rules::{Passage, passage};

use crate::rounds::{Divides, Division};
use crate::{Cx, GraphPass, PassError, Purpose, Stats};
use arenic_ir::graph::{Data, Def, Graph, NodeId, Output, StateId, ValueId};
use arenic_ir::op::{Binary, TypeError, Unary};
use arenic_ir::types::TensorType;
use cranelift_entity::EntityRef;
use loss::{Built, Elements, Figures, Loss};
use optimizer::Updates;
use reverse::{Paths, reverse};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tape::Tape;

/// The output of an evaluation that says how many targets a batch's `loss` and `accuracy`, the two
/// outputs before it, are means of.
pub const COUNTED: &str = "counted";

/// Makes a training step of a forward graph: loss, gradients and updates.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Differentiate {
    /// cross_entropy, nll, bce or mse of the model's output and the input `target`, or the name
    /// of a scalar output that is the loss.
    pub loss: String,
    /// How parameters are updated.
    pub optimizer: Optimizer,
    /// The output that the loss is of; needed where there are several.
    pub output: Option<String>,
    /// The axis of classes.
    pub class_axis: Option<usize>,
    /// Targets of this class count for nothing; -100 without it.
    pub ignore_index: Option<i64>,
    /// How the loss is made of its elements.
    pub reduction: Reduction,
    /// Weights that are trained whatever they look like.
    pub train: Vec<Glob>,
    /// Weights that keep their value.
    pub freeze: Vec<Glob>,
    /// Values that gradients do not pass.
    pub stop_gradient: Vec<Glob>,
    /// Micro-batches in one step, whose gradients are averaged; inputs have as many times the rows.
    pub accumulate: Option<u32>,
    /// Gradients are scaled down so that their norm, of all together, is no larger.
    pub clip_norm: Option<f64>,
    /// Of `momentum`: how much of the last direction stays; 0.9 without it.
    pub momentum: Option<f64>,
    /// Of `momentum`: Nesterov's way.
    pub nesterov: bool,
    /// Of adam, adamw and lion.
    pub beta1: Option<f64>,
    /// Of adam, adamw and lion; of rmsprop, which calls it alpha.
    pub beta2: Option<f64>,
    /// Epsilon, added to the denominator.
    pub epsilon: Option<f64>,
    /// Weight decay of all parameters; 0.01 for adamw, else 0, without it.
    pub weight_decay: Option<f64>,
    /// Weight decay of some; the last pattern that fits counts.
    pub decay: Vec<Decay>,
    /// How the learning rate varies: what the input `lr` is multiplied by.
    pub lr_schedule: LrSchedule,
    /// Steps in which the learning rate rises to its full value.
    pub warmup_steps: u64,
    /// Of cosine and linear: steps after which the learning rate is zero.
    pub total_steps: Option<u64>,
    /// Of step: steps between two changes.
    pub lr_step_size: Option<u64>,
    /// Of step: what each change multiplies by; 0.1 without it.
    pub lr_gamma: Option<f64>,
}

/// How parameters are updated; formulas and defaults are PyTorch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the field's names
pub enum Optimizer {
    #[default]
    Sgd,
    Momentum,
    Adam,
    Adamw,
    Adagrad,
    Rmsprop,
    Lion,
}

/// How a loss is made of its elements.
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
    /// Whose.
    pub of: Glob,
    /// How much.
    pub is: f64,
}

/// An operator that gradients cannot pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The node's name; may be empty.
    pub node: String,
    /// Its operator.
    pub op: &'static str,
}

/// Why a graph cannot be differentiated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DifferentiateError {
    /// There is no loss.
    #[error("no loss is given: cross_entropy, nll, bce, mse, or a scalar output's name")]
    NoLoss,
    /// It cannot be told which output the loss is of.
    #[error("the model has {}; name the one that the loss is of with `output`", listed("output", .0))]
    Outputs(Vec<String>),
    /// There is no output of this name.
    #[error("the model has no output `{name}`; it has {}", listed("output", .known))]
    UnknownOutput {
        /// The name.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// The output's type does not fit the loss.
    #[error("the loss {loss} is of {wanted}, the output is {ty}")]
    Output {
        /// The loss.
        loss: String,
        /// The output's type.
        ty: TensorType,
        /// What it should have.
        wanted: String,
    },
    /// Nothing that can be trained leads to the loss.
    #[error(
        "the loss depends on no parameter{}",
        if *inference { "; weights that are constants are those of a model that was not imported for training" } else { "" }
    )]
    Unreached {
        /// There are no weights at all.
        inference: bool,
    },
    /// Operators that gradients cannot pass.
    #[error("no gradient passes {}; freeze what lies before, or stop gradients there", missing(.0))]
    NoRule(Vec<Missing>),
    /// A pattern that fits nothing.
    #[error("no weight fits `{0}`")]
    Pattern(String),
    /// What is to be trained holds no floats.
    #[error("`{name}` is {ty}: integers are not trained")]
    Integers {
        /// The weight.
        name: String,
        /// Its type.
        ty: TensorType,
    },
    /// A name that the step needs is taken.
    #[error("the model has a `{0}` already, which the training step would add")]
    Name(String),
    /// A schedule lacks a number.
    #[error("the learning rate's schedule needs {what}")]
    Schedule {
        /// The number.
        what: &'static str,
    },
    /// Views are made too early.
    #[error("`views` comes before `differentiate`; move it behind")]
    Views,
    /// Micro-batches.
    #[error("accumulate is 0; it counts the micro-batches of a step")]
    NoBatches,
    /// Operands do not fit: a batch too large, or a defect.
    #[error(transparent)]
    Type(#[from] TypeError),
}

fn listed(what: &str, names: &[String]) -> String {
    match names {
        [] => format!("no {what}"),
        [one] => format!("one {what}, `{one}`"),
        many => format!("{} {what}s: `{}`", many.len(), many.join("`, `")),
    }
}

fn missing(all: &[Missing]) -> String {
    let each = all.iter().map(|m| match m.node.as_str() {
        "" => m.op.to_owned(),
        node => format!("{} (node `{node}`)", m.op),
    });
    each.collect::<Vec<_>>().join(", ")
}

impl GraphPass for Differentiate {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        match cx.purpose {
            Purpose::Step => Ok(self.step(g, cx)?),
            Purpose::Evaluation => Ok(self.evaluation(g, cx)?),
        }
    }

    fn differentiates(&self) -> Option<&Differentiate> {
        Some(self)
    }

    fn divides(&self, cx: &Cx) -> Option<&dyn Divides> {
        let divided = self.accumulate.is_some_and(|count| count != 1);
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
        self.in_rounds(g, count, cx)
    }
}

impl Differentiate {
    /// The weights of a forward graph, and what the pass makes of them.
    ///
    /// # Errors
    /// See [`DifferentiateError`].
    pub fn parameters(&self, g: &Graph) -> Result<Vec<Parameter>, DifferentiateError> {
        let mut all = parameters::find(g, &self.train, &self.freeze)?;
        let output = self.output(g)?.value;
        let trained = trained(&all, g);
        let nodes: Vec<NodeId> = g.nodes.keys().collect();
        let paths = Paths::new(g, &nodes, &trained, output, |v| self.stops(g, v))?;
        for p in all.iter_mut().filter(|p| p.role == Role::Trained) {
            if !paths.includes(g.states[p.state].enter) {
                p.role = Role::Unused;
            }
        }
        if !all.iter().any(|p| p.role == Role::Trained) {
            return Err(DifferentiateError::Unreached { inference: all.is_empty() });
        }
        Ok(all)
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
                DifferentiateError::UnknownOutput { name: name.to_owned(), known: known() }
            }),
        }
    }

    fn stops(&self, g: &Graph, v: ValueId) -> bool {
        self.stop_gradient.iter().any(|p| p.matches(&g.values[v].name))
    }

    /// Of one of so many micro-batches.
    fn elements(&self, count: u32) -> Elements {
        Elements {
            class_axis: self.class_axis.unwrap_or(1),
            ignore_index: self.ignore_index.unwrap_or(-100),
            reduction: self.reduction,
            factor: 1.0 / f64::from(count),
        }
    }

    /// Adds the input `target`, where the loss has one.
    fn target(
        &self,
        g: &mut Graph,
        output: ValueId,
    ) -> Result<Option<ValueId>, DifferentiateError> {
        let e = self.elements(1);
        let Some(ty) = self.loss()?.target(g.ty(output), e.class_axis)? else { return Ok(None) };
        free(g, "target")?;
        Ok(Some(g.add_input("target", ty)))
    }

    /// The loss alone, where there are classes with the accuracy and the number of targets that
    /// both are of, beside the model's outputs.
    fn evaluation(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, DifferentiateError> {
        let output = self.output(g)?.value;
        if let Loss::Output(_) = self.loss()? {
            return Ok(Stats::new());
        }
        let target = self.target(g, output)?;
        let mut t = Tape::new(g, cx.evaluate);
        t.name = "loss".into();
        let figures = Figures::new(&mut t, self.loss()?, self.elements(1), output, target)?;
        let mut say = |name: &str, value| g.outputs.push(Output { name: name.into(), value });
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
        let output = self.output(g)?.value;
        let target = self.target(g, output)?;
        g.outputs.clear();
        let trained = trained(&parameters, g);
        let mut t = Tape::new(g, cx.evaluate);
        let part = self.micro_batch(&mut t, output, target, &trained, 1)?;
        let each = states(&parameters).into_iter().zip(part.gradients);
        let gradients = each.filter_map(|(state, gradient)| Some((state, gradient?)));
        let updated = self.updates(&mut t, gradients.collect())?;
        g.outputs.push(Output { name: "loss".into(), value: part.loss });
        let frozen = settle(g, &parameters);
        *g = g.compacted(|_| true);
        Ok(Stats::from([("parameters", updated), ("frozen", frozen)]))
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
        let e = self.elements(count);
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
    parameters.iter().filter(|p| p.role == Role::Trained).map(|p| p.state).collect()
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
    let kept = |p: &&Parameter| !matches!(p.role, Role::Trained | Role::Statistic);
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
