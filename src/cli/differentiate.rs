//! `arenic differentiate`

use super::dims::{Dimension, Dimensions, parse_dimension};
use super::loss::LossOptions;
use super::{Outcome, can_write, failed};
use crate::compile::Weights;
use crate::evaluator::Kernels;
use crate::onnx::export::{ExportOptions, export, write};
use crate::onnx::{ImportOptions, Imported, Mode, import_file};
use arenic_backends::CPU;
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Cx, Standard};
use clap::Args;
use miette::miette;
use std::path::PathBuf;

/// The passes of the default pipeline up to the step as ONNX can say it.
const PASSES: &str =
    "- fold_constants\n- dead_code\n- raise\n- differentiate\n- fold_constants\n- dead_code\n";

/// Arguments of `arenic differentiate`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The forward model
    model: PathBuf,
    /// The training step to write: states X and out_X, inputs `target` and `lr`, output `loss`
    #[arg(short = 'o', value_name = "STEP.onnx")]
    step: Option<PathBuf>,
    /// Size of a symbolic dimension
    #[arg(long = "dim", value_name = "NAME=N", value_parser = parse_dimension)]
    dims: Vec<Dimension>,
    /// Print what becomes of each weight
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    loss: LossOptions,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    can_write(&a.step)?;
    let Some(pass) = a.loss.pass()? else {
        let help = "for example --loss cross_entropy --optimizer adamw";
        return Err(miette!(help = help, "--loss and --optimizer say what is trained").into());
    };
    if !a.loss.drop_layers.is_empty() {
        let help = "`arenic compile` makes a variant of each structure";
        return Err(miette!(help = help, "--drop-layers makes several steps, not one").into());
    }
    let dims = Dimensions::new(&a.dims)?;
    if let Some(name) = dims.largest {
        return Err(miette!("--dim {name} needs a size").into());
    }
    let import = ImportOptions {
        mode: Mode::Training(a.loss.training()),
        dims: dims.given,
        ..a.loss.import()
    };
    let Imported { mut graph, said, stops, notes, .. } =
        import_file(&a.model, &import).map_err(failed)?;
    let (weights, pass) =
        Weights::decided(&mut graph, &pass, said, &stops, notes).map_err(failed)?;
    LossOptions::describe(&weights, a.verbose).iter().for_each(|line| tell!("{line}"));
    let pipeline = Pipeline::from_yaml(PASSES, &Standard).and_then(|p| p.differentiating(pass));
    let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(CPU.target()) };
    let step = pipeline.map_err(failed)?.run(graph, &cx, RunOptions::default()).map_err(failed)?;
    let mut model = export(&step.module.graph, ExportOptions::default()).map_err(failed)?;
    model.metadata_props.extend(crate::onnx::defaults(&a.loss.defaults()));
    let nodes = model.graph.as_ref().map_or(0, |g| g.node.len());
    match &a.step {
        Some(path) => {
            write(&model, path).map_err(failed)?;
            tell!("{nodes} nodes: {}", path.display());
        }
        None => tell!("{nodes} nodes; -o STEP.onnx writes them"),
    }
    Ok(())
}
