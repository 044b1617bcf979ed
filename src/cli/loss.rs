//! Options that make a training step of a forward model.

use super::Failure;
use arenic::onnx::{Mode, Training, Variance};
use arenic_passes::differentiate::{
    Decay, Differentiate, Glob, LrSchedule, Optimizer, Parameter, Reduction, Role,
};
use clap::Args;
use miette::miette;
use serde::de::value::{Error as Unknown, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How a forward model becomes a training step.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Training a forward model")]
pub(super) struct LossOptions {
    /// cross_entropy, nll (targets: classes), bce or mse (targets: numbers) of the model's output and
    /// the input `target`; or the name of a scalar output that is the loss
    #[arg(long, value_name = "LOSS", requires = "optimizer")]
    pub(super) loss: Option<String>,
    /// sgd, momentum, adam, adamw, adagrad, rmsprop or lion, by PyTorch's formulas; the learning rate is
    /// the input `lr`
    #[arg(long, value_name = "NAME", requires = "loss", value_parser = by_name::<Optimizer>)]
    optimizer: Option<Optimizer>,
    /// Value of the input `lr` where a run gives none
    #[arg(long, value_name = "X", requires = "loss")]
    lr: Option<f64>,
    /// The output that the loss is of, where the model has several
    #[arg(long, value_name = "NAME", requires = "loss")]
    output: Option<String>,
    /// The axis of classes in the output [default: 1]
    #[arg(long, value_name = "N", requires = "loss")]
    class_axis: Option<usize>,
    /// Targets of this class count for nothing [default: -100]
    #[arg(long, value_name = "N", requires = "loss", allow_negative_numbers = true)]
    ignore_index: Option<i64>,
    /// mean (of what counts) or sum
    #[arg(long, value_name = "R", requires = "loss", value_parser = by_name::<Reduction>)]
    reduction: Option<Reduction>,
    /// Keep weights as they are
    #[arg(long, value_name = "GLOB", requires = "loss")]
    freeze: Vec<Glob>,
    /// Train weights that would be kept or frozen
    #[arg(long, value_name = "GLOB", requires = "loss")]
    train: Vec<Glob>,
    /// Let no gradient pass these tensors
    #[arg(long, value_name = "GLOB", requires = "loss")]
    stop_gradient: Vec<Glob>,
    /// Micro-batches in one step: N has inputs of N times the model's rows, whose gradients are averaged
    /// (for --ort, too); auto cuts the rows of any step into as many as make it fastest within its
    /// memory
    #[arg(long, value_name = "N|auto", value_parser = micro_batches)]
    pub(super) accumulate: Option<MicroBatches>,
    /// Scale gradients down so that their norm, of all together, is at most X
    #[arg(long, value_name = "X", requires = "loss", value_parser = positive)]
    clip_norm: Option<f64>,
    /// Of momentum [default: 0.9]
    #[arg(long, value_name = "X", requires = "loss")]
    momentum: Option<f64>,
    /// Of momentum: Nesterov's
    #[arg(long, requires = "loss")]
    nesterov: bool,
    /// Of adam, adamw and lion [default: 0.9]
    #[arg(long, value_name = "X", requires = "loss")]
    beta1: Option<f64>,
    /// Of adam and adamw [default: 0.999], of lion and rmsprop (its alpha) [default: 0.99]
    #[arg(long, value_name = "X", requires = "loss")]
    beta2: Option<f64>,
    /// Epsilon, added to the denominator [default: 1e-8; adagrad: 1e-10]
    #[arg(long, value_name = "X", requires = "loss")]
    epsilon: Option<f64>,
    /// Weight decay, of all or of those that match; the last that fits counts [default: 0; adamw: 0.01]
    #[arg(long, value_name = "[GLOB=]X", requires = "loss", value_parser = decay)]
    weight_decay: Vec<(Option<Glob>, f64)>,
    /// What varies the learning rate: constant, cosine, linear or step
    #[arg(long, value_name = "S", requires = "loss", value_parser = by_name::<LrSchedule>)]
    lr_schedule: Option<LrSchedule>,
    /// Steps in which the learning rate rises [default: 0]
    #[arg(long, value_name = "N", requires = "loss")]
    warmup_steps: Option<u64>,
    /// Of cosine and linear: steps of the whole training
    #[arg(long, value_name = "N", requires = "loss")]
    total_steps: Option<u64>,
    /// Of step: steps between two changes
    #[arg(long, value_name = "N", requires = "loss")]
    lr_step_size: Option<u64>,
    /// Of step: what each change multiplies by [default: 0.1]
    #[arg(long, value_name = "X", requires = "loss")]
    lr_gamma: Option<f64>,
    /// Ratio of every dropout in training; 0 turns it off
    #[arg(long, value_name = "P", value_parser = ratio)]
    dropout: Option<f32>,
    /// What batch normalisation's running variance is made of: population, as ONNX says, or unbiased, as
    /// PyTorch has it
    #[arg(long, value_name = "V", default_value = "population", value_parser = variance)]
    bn_variance: Variance,
}

/// How many micro-batches a step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MicroBatches {
    /// As many as make it fastest.
    Auto,
    /// So many.
    Count(u16),
}

impl MicroBatches {
    /// The number, where one is given.
    pub(super) fn count(self) -> Option<u16> {
        match self {
            MicroBatches::Auto => None,
            MicroBatches::Count(n) => Some(n),
        }
    }
}

fn micro_batches(text: &str) -> Result<MicroBatches, String> {
    match text.parse::<u16>() {
        _ if text == "auto" => Ok(MicroBatches::Auto),
        Ok(n) if n > 0 => Ok(MicroBatches::Count(n)),
        _ => Err("micro-batches are counted from 1 to 65535, or `auto`".into()),
    }
}

impl LossOptions {
    /// The pass that the options describe, where there is a loss.
    pub(super) fn pass(&self) -> Option<Differentiate> {
        let loss = self.loss.clone()?;
        let mut pass = Differentiate {
            loss,
            optimizer: self.optimizer.unwrap_or_default(),
            output: self.output.clone(),
            class_axis: self.class_axis,
            ignore_index: self.ignore_index,
            reduction: self.reduction.unwrap_or_default(),
            train: self.train.clone(),
            freeze: self.freeze.clone(),
            stop_gradient: self.stop_gradient.clone(),
            accumulate: self.accumulate.and_then(MicroBatches::count).map(u32::from),
            clip_norm: self.clip_norm,
            momentum: self.momentum,
            nesterov: self.nesterov,
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: None,
            decay: Vec::new(),
            lr_schedule: self.lr_schedule.unwrap_or_default(),
            warmup_steps: self.warmup_steps.unwrap_or_default(),
            total_steps: self.total_steps,
            lr_step_size: self.lr_step_size,
            lr_gamma: self.lr_gamma,
        };
        for (of, is) in self.weight_decay.iter().cloned() {
            match of {
                Some(of) => pass.decay.push(Decay { of, is }),
                None => pass.weight_decay = Some(is),
            }
        }
        Some(pass)
    }

    /// How the model is imported for training.
    ///
    /// # Errors
    /// Options of training without any.
    pub(super) fn mode(&self, trains: bool) -> Result<Mode, Failure> {
        let training = Training { dropout: self.dropout, variance: self.bn_variance };
        match trains {
            true => Ok(Mode::Training(training)),
            false if training != Training::default() => {
                let help = "add --loss and --optimizer";
                let what = "--dropout and --bn-variance are for training a forward model";
                Err(miette!(help = help, "{what}").into())
            }
            false => Ok(Mode::AsWritten),
        }
    }

    /// Values of inputs where a run gives none.
    pub(super) fn defaults(&self) -> BTreeMap<String, f64> {
        self.lr.map(|lr| ("lr".to_owned(), lr)).into_iter().collect()
    }
}

/// Prints what becomes of a model's weights: all that is not plainly trained, and how many are.
pub(super) fn print_parameters(parameters: &[Parameter], folded: &[String]) {
    let trained = || parameters.iter().filter(|p| p.role == Role::Trained);
    let elements: usize = trained().map(|p| p.ty.elements()).sum();
    tell!("trains {} parameters of {elements} numbers", trained().count());
    for p in parameters.iter().filter(|p| p.role != Role::Trained) {
        tell!("  {} {}: {}", p.name, p.ty, p.role);
    }
    if let Some(first) = folded.first() {
        tell!(
            "note: a batch normalisation seems to be folded into `{first}` and {} more: the model was \
             exported for inference. Export it with training=TrainingMode.TRAINING and \
             do_constant_folding=False to train with batch statistics",
            folded.len() - 1
        );
    }
}

/// What becomes of a model's weights, for scripts.
pub(super) fn parameters_json(parameters: &[Parameter]) -> Value {
    let row = |p: &Parameter| json!({"name": p.name, "shape": p.ty.shape, "trained": p.role == Role::Trained, "why": p.role.to_string()});
    parameters.iter().map(row).collect()
}

/// A value by the name that it has in pipelines.
fn by_name<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    let name: StrDeserializer<'_, Unknown> = name.into_deserializer();
    T::deserialize(name).map_err(|e| e.to_string())
}

fn positive(text: &str) -> Result<f64, String> {
    let x: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if x > 0.0 { Ok(x) } else { Err("it must be above 0".into()) }
}

fn ratio(text: &str) -> Result<f32, String> {
    let x: f32 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.0..1.0).contains(&x) { Ok(x) } else { Err("a ratio is from 0 to below 1".into()) }
}

fn variance(name: &str) -> Result<Variance, String> {
    match name {
        "population" => Ok(Variance::Population),
        "unbiased" => Ok(Variance::Unbiased),
        _ => Err("population and unbiased are".into()),
    }
}

fn decay(text: &str) -> Result<(Option<Glob>, f64), String> {
    let number = |x: &str| x.parse().map_err(|e| format!("`{x}`: {e}"));
    match text.rsplit_once('=') {
        Some((glob, x)) => Ok((Some(glob.parse()?), number(x)?)),
        None => Ok((None, number(text)?)),
    }
}
