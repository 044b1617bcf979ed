//! Options that make a training step of a forward model.

use super::{Failure, failed};
use crate::compile::Weights;
use crate::compiler::MOST_STRUCTURES;
use crate::data::Npz;
use crate::onnx::parameters::Lost;
use crate::onnx::{ImportOptions, Training, Variance};
use arenic_ir::DType;
use arenic_passes::differentiate::{
    Decay, Differentiate, Glob, LrSchedule, Optimizer, Parameter, Reduction, WeightRole,
};
use clap::Args;
use miette::miette;
use serde::de::value::{Error as Unknown, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How a forward model becomes a training step.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Training a forward model")]
pub(super) struct LossOptions {
    /// Loss of the model's output and the input `target`: cross_entropy or nll (targets are
    /// classes), bce, mse, l1, smooth_l1, huber or kl_div (targets are numbers); or the name of a
    /// scalar output that is the loss
    #[arg(long, value_name = "LOSS", requires = "optimizer")]
    pub(super) loss: Option<String>,
    /// Optimizer, by PyTorch's formulas: sgd, momentum, adam, adamw, adagrad, rmsprop or lion; the
    /// learning rate is the input `lr`
    #[arg(long, value_name = "NAME", requires = "loss", value_parser = by_name::<Optimizer>)]
    optimizer: Option<Optimizer>,
    /// Default of the input `lr` in runs
    #[arg(long, value_name = "X", requires = "loss")]
    lr: Option<f64>,
    /// Output that the loss is computed from, if the model has several
    #[arg(long, value_name = "NAME", requires = "loss")]
    output: Option<String>,
    /// Axis of the classes in the output; -1 is the last [default: 1]
    #[arg(long, value_name = "N", requires = "loss", allow_negative_numbers = true)]
    class_axis: Option<i64>,
    /// Label smoothing of cross_entropy: the part of each target that is spread over all classes;
    /// `eval` uses none [default: 0]
    #[arg(long, value_name = "X", requires = "loss")]
    label_smoothing: Option<f64>,
    /// Of cross_entropy and nll: what each class counts in training, as numbers in a text file or as the
    /// one array of an .npz; `eval` says the loss with and without
    #[arg(long, value_name = "FILE", requires = "loss")]
    class_weights: Option<PathBuf>,
    /// Threshold of smooth_l1 (its beta) and huber, below which differences are squared [default:
    /// 1]
    #[arg(long, value_name = "X", requires = "loss", value_parser = positive)]
    delta: Option<f64>,
    /// Ignore targets of this class [default: -100]
    #[arg(long, value_name = "N", requires = "loss", allow_negative_numbers = true)]
    ignore_index: Option<i64>,
    /// Reduction of the loss over all targets that count: mean or sum
    #[arg(long, value_name = "R", requires = "loss", value_parser = by_name::<Reduction>)]
    reduction: Option<Reduction>,
    /// Keep weights as they are
    #[arg(long, value_name = "GLOB", requires = "loss")]
    freeze: Vec<Glob>,
    /// Train weights that would be kept or frozen
    #[arg(long, value_name = "GLOB", requires = "loss")]
    train: Vec<Glob>,
    /// Restore parameters that the exporter merged or replaced, where that is certain
    #[arg(long, requires = "loss")]
    repair: bool,
    /// Go on without the parameters that the exporter took apart
    #[arg(long, requires = "loss")]
    accept_missing: bool,
    /// Stop gradients at these tensors
    #[arg(long, value_name = "GLOB", requires = "loss")]
    stop_gradient: Vec<Glob>,
    /// Leave out residual branches whose parameters match at random, each with this probability (stochastic
    /// depth). What is left out stays as it is, with its optimizer's states; a branch that is kept counts
    /// 1/(1-P), and evaluation has all of them
    #[arg(long, value_name = "GLOB=P", requires = "loss", value_parser = drop_layer)]
    pub(super) drop_layers: Vec<(Glob, f64)>,
    /// Most structures of left-out branches that have a program of their own; where there are more, one program
    /// can be any of them
    #[arg(long, value_name = "N", default_value_t = MOST_STRUCTURES, requires = "drop_layers", value_parser = at_least_one)]
    pub(super) variants_at_most: usize,
    /// Micro-batches of one step. With a number N, inputs have N times the model's rows, and
    /// gradients are averaged (also with --ort). With auto, the rows of any step are divided so
    /// that it is fastest within its memory
    #[arg(long, value_name = "N|auto", value_parser = micro_batches)]
    pub(super) accumulate: Option<MicroBatches>,
    /// Clip gradients: scale them down so that their global norm is at most X
    #[arg(long, value_name = "X", requires = "loss", value_parser = positive)]
    clip_norm: Option<f64>,
    /// Factor of momentum [default: 0.9]; sgd with it is momentum
    #[arg(long, value_name = "X", requires = "loss")]
    momentum: Option<f64>,
    /// Nesterov momentum, for momentum and for sgd with --momentum
    #[arg(long, requires = "loss")]
    nesterov: bool,
    /// Decay of the first moment in adam, adamw and lion [default: 0.9]
    #[arg(long, value_name = "X", requires = "loss")]
    beta1: Option<f64>,
    /// Decay of the second moment in adam and adamw [default: 0.999]; beta2 of lion and alpha of
    /// rmsprop [default: 0.99]
    #[arg(long, value_name = "X", requires = "loss")]
    beta2: Option<f64>,
    /// Epsilon, added to the denominator [default: 1e-8; adagrad: 1e-10]
    #[arg(long, value_name = "X", requires = "loss")]
    epsilon: Option<f64>,
    /// Weight decay of all weights, or of those that match; the last match counts [default: 0;
    /// adamw: 0.01]
    #[arg(long, value_name = "[GLOB=]X", requires = "loss", value_parser = decay)]
    weight_decay: Vec<(Option<Glob>, f64)>,
    /// Schedule of the learning rate: constant, cosine, linear or step
    #[arg(long, value_name = "S", requires = "loss", value_parser = by_name::<LrSchedule>)]
    lr_schedule: Option<LrSchedule>,
    /// Steps of warm-up, in which the learning rate rises [default: 0]
    #[arg(long, value_name = "N", requires = "loss")]
    warmup_steps: Option<u64>,
    /// Steps of the whole training, for cosine and linear
    #[arg(long, value_name = "N", requires = "loss")]
    total_steps: Option<u64>,
    /// Steps between two changes, for step
    #[arg(long, value_name = "N", requires = "loss")]
    lr_step_size: Option<u64>,
    /// Factor of each change, for step [default: 0.1]
    #[arg(long, value_name = "X", requires = "loss")]
    lr_gamma: Option<f64>,
    /// Ratio of every dropout in training; 0 turns it off
    #[arg(long, value_name = "P", value_parser = ratio)]
    dropout: Option<f32>,
    /// Variance that batch normalisation averages over steps: population, as in ONNX, or unbiased,
    /// as in PyTorch [default: the file's, or population]
    #[arg(long, value_name = "V", value_parser = variance)]
    bn_variance: Option<Variance>,
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
    ///
    /// # Errors
    /// Options of another optimizer, or weights of classes that cannot be read.
    pub(super) fn pass(&self) -> Result<Option<Differentiate>, Failure> {
        let Some(loss) = self.loss.clone() else { return Ok(None) };
        let mut pass = Differentiate {
            loss,
            optimizer: self.optimizer()?,
            output: self.output.clone(),
            class_axis: self.class_axis,
            label_smoothing: self.label_smoothing,
            class_weights: self.class_weights.as_deref().map(numbers).transpose()?,
            delta: self.delta,
            ignore_index: self.ignore_index,
            reduction: self.reduction.unwrap_or_default(),
            train: self.train.clone(),
            freeze: self.freeze.clone(),
            weights: BTreeMap::new(),
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
        Ok(Some(pass))
    }

    /// The optimizer, which is momentum where sgd has one.
    fn optimizer(&self) -> Result<Optimizer, Failure> {
        let optimizer = self.optimizer.unwrap_or_default();
        let has_momentum = self.momentum.is_some_and(|m| m != 0.0);
        match optimizer {
            Optimizer::Sgd if has_momentum => Ok(Optimizer::Momentum),
            Optimizer::Sgd if self.nesterov => {
                let help = "add --momentum 0.9";
                Err(miette!(help = help, "--nesterov is a way to use momentum, and there is none")
                    .into())
            }
            Optimizer::Sgd | Optimizer::Momentum => Ok(optimizer),
            _ if self.momentum.is_some() || self.nesterov => {
                let help = "adam, adamw and lion have --beta1 instead";
                Err(miette!(help = help, "--momentum and --nesterov are of sgd and momentum")
                    .into())
            }
            _ => Ok(optimizer),
        }
    }

    /// How the model is imported for training.
    pub(super) fn training(&self) -> Training {
        Training { dropout: self.dropout, variance: self.bn_variance }
    }

    /// What an import is told of weights.
    pub(super) fn import(&self) -> ImportOptions {
        ImportOptions {
            trainable: self.train.clone(),
            repair: self.repair,
            accept_missing: self.accept_missing,
            ..ImportOptions::default()
        }
    }

    /// Says what becomes of a model's weights: numbers, what is doubtful, and each by its name where
    /// `verbose`.
    pub(super) fn describe(weights: &Weights, verbose: bool) -> Vec<String> {
        let Weights { parameters, said, notes } = weights;
        let trained = || parameters.iter().filter(|p| p.role == WeightRole::Trained);
        let elements: usize = trained().map(|p| p.ty.elements()).sum();
        let mut lines =
            vec![format!("trains {} parameters of {elements} numbers", trained().count())];
        if verbose {
            lines.extend(trained().map(|p| format!("  {} {}", p.name, p.ty)));
        }
        let mut kept: BTreeMap<String, Vec<&Parameter>> = BTreeMap::new();
        for p in parameters.iter().filter(|p| p.role != WeightRole::Trained) {
            kept.entry(p.role.to_string()).or_default().push(p);
        }
        for (why, all) in &kept {
            const SHOWN: usize = 3;
            let shown = if verbose { all.len() } else { SHOWN };
            let names = all.iter().take(shown).map(|p| format!("`{}` {}", p.name, p.ty));
            let names = names.collect::<Vec<_>>().join(", ");
            let more = match all.len().saturating_sub(shown) {
                0 => String::new(),
                n => format!(" and {n} more (-v names them)"),
            };
            lines.push(format!("  {} {why}: {names}{more}", all.len()));
        }
        if parameters.iter().any(|p| p.role == WeightRole::Fixed) {
            let what = "note: a batch normalisation in pieces is that of inference: it normalises with \
                        the statistics that the file holds, not with each batch's. `arenic.torch.export` \
                        writes a Keras model (backend torch) or a PyTorch module in training mode";
            lines.push(what.to_owned());
        }
        for p in parameters.iter().filter(|p| p.role.is_doubtful()) {
            lines.push(format!(
                "warning: nothing tells whether `{}` {} is a parameter; it is kept as it is, \
                 `--train {}` trains it",
                p.name, p.ty, p.name
            ));
        }
        if verbose {
            let tied = |(a, b)| format!("  `{a}` is one parameter with `{b}`");
            lines.extend(said.tied.iter().map(tied));
            let unread = |name: &String| {
                format!(
                    "  `{name}` is not in the file: it is one with another parameter, or unused"
                )
            };
            lines.extend(said.unread.iter().map(unread));
        }
        let restored = |l: &Lost| format!("  {} is restored; it was {}", l.name, l.fate);
        lines.extend(said.restored.iter().map(restored));
        lines.extend(said.lost.iter().map(|l| format!("warning: {} is {}", l.name, l.fate)));
        lines.extend(notes.iter().map(|note| format!("note: {note}")));
        lines
    }

    /// Values of inputs where a run gives none.
    pub(super) fn defaults(&self) -> BTreeMap<String, f64> {
        self.lr.map(|lr| ("lr".to_owned(), lr)).into_iter().collect()
    }
}

/// What becomes of a model's weights, for scripts; last those that the file lacks.
pub(super) fn parameters_json(weights: &Weights) -> Value {
    let row = |p: &Parameter| {
        let trained = p.role == WeightRole::Trained;
        let mut row = json!({"name": p.name, "shape": p.ty.shape, "trained": trained, "why": p.role.to_string()});
        if p.role.is_doubtful() || trained && weights.said.doubtful.contains(&p.name) {
            row["doubtful"] = true.into();
        }
        row
    };
    let lost = |l: &Lost| json!({"name": l.name, "trained": false, "why": l.fate.to_string(), "missing": true});
    let rows = weights.parameters.iter().map(row);
    rows.chain(weights.said.lost.iter().map(lost)).collect()
}

/// A value by the name that it has in pipelines.
fn by_name<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    let name: StrDeserializer<'_, Unknown> = name.into_deserializer();
    T::deserialize(name).map_err(|e| e.to_string())
}

/// Numbers in a text file, between spaces, commas or lines, or in the one array of an `.npz`.
fn numbers(path: &Path) -> Result<Vec<f64>, Failure> {
    let refused = |what: String| -> Failure {
        let help = "write one number for each class, or numpy.savez with one array of float32";
        miette!(help = help, "--class-weights `{}`: {what}", path.display()).into()
    };
    if path.extension().is_none_or(|e| e != "npz") {
        let text = std::fs::read_to_string(path).map_err(|e| refused(e.to_string()))?;
        let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty());
        let number = |w: &str| w.parse().map_err(|_| refused(format!("`{w}` is no number")));
        return words.map(number).collect();
    }
    let npz = Npz::open(path).map_err(failed)?;
    let [array] = npz.arrays() else { return Err(refused("it holds several arrays".into())) };
    let bytes = array.bytes();
    match (array.ty().dtype, array.ty().rank()) {
        (DType::F32, 1) => {
            let words = bytes.as_chunks::<4>().0.iter();
            Ok(words.map(|b| f64::from(f32::from_le_bytes(*b))).collect())
        }
        (DType::F64, 1) => {
            let words = bytes.as_chunks::<8>().0.iter();
            Ok(words.map(|b| f64::from_le_bytes(*b)).collect())
        }
        _ => Err(refused(format!("its array is {}", array.ty()))),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let x: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if x > 0.0 { Ok(x) } else { Err("it must be above 0".into()) }
}

fn ratio(text: &str) -> Result<f32, String> {
    let x: f32 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.0..1.0).contains(&x) { Ok(x) } else { Err("a ratio is from 0 to below 1".into()) }
}

fn drop_layer(text: &str) -> Result<(Glob, f64), String> {
    let (glob, p) = text.rsplit_once('=').ok_or("expected GLOB=P")?;
    let p: f64 = p.parse().map_err(|e| format!("`{p}`: {e}"))?;
    match p > 0.0 && p < 1.0 {
        true => Ok((glob.parse()?, p)),
        false => Err("a probability lies between 0 and 1".into()),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "it must be a number above 0".into())
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
