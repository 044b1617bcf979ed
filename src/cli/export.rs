//! `arenic export`

use super::report::is_same_file;
use super::{Outcome, can_write, checked_target, failed, human_bytes};
use crate::artifact::Artifact;
use crate::data::TensorFile;
use crate::model::Model;
use crate::onnx::export::{ExportOptions, annotated, with_training_info, write};
use crate::onnx::trained;
use crate::tensor::Tensor;
use clap::Args;
use miette::miette;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Arguments of `arenic export`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The artifact; with --init, the forward model that it was compiled from
    #[arg(value_name = "ARTIFACT|MODEL.onnx")]
    input: PathBuf,
    /// Write the forward model MODEL.onnx with these values for its weights and running statistics, as it
    /// is after training: what `arenic run --save` wrote
    #[arg(long, value_name = "W.safetensors", conflicts_with_all = ["target", "no_data", "training_info"])]
    init: Option<PathBuf>,
    /// The ONNX file to write. Of an artifact: standard operators in the order of the program, with
    /// streams, offsets, lifetimes and swaps as metadata of nodes
    #[arg(short, long, value_name = "OUT.onnx")]
    output: PathBuf,
    /// The target whose graph and program to write [default: the first]
    #[arg(long, value_name = "T")]
    target: Option<String>,
    /// The variant, where the artifact holds several [default: the first]
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Leave out initial values and constants: the file is small and cannot be run as it is
    #[arg(long)]
    no_data: bool,
    /// Write the update as the standard's training info: the file's graph computes the outputs,
    /// its training algorithm the rest
    #[arg(long, conflicts_with = "no_data")]
    training_info: bool,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    if is_same_file(&a.input, &a.output) {
        let path = a.output.display();
        return Err(miette!("`{path}` is what is exported; name another output").into());
    }
    can_write([&a.output])?;
    if let Some(init) = &a.init {
        return export_trained(&a.input, init, &a.output);
    }
    let artifact = Artifact::read(&a.input).map_err(failed)?;
    let (target, footprint) = checked_target(&artifact, a.target.as_deref(), a.variant.as_deref())?;
    if let Some(rounds) = &target.rounds {
        let help = "compile it without --accumulate to export it";
        let n = rounds.count;
        return Err(miette!(help = help, "a step in {n} rounds cannot be exported as ONNX").into());
    }
    let options = ExportOptions { data: !a.no_data };
    let model = annotated(target, &artifact.provenance, &footprint, options).map_err(failed)?;
    let model = match a.training_info {
        true => with_training_info(model, &target.graph).map_err(failed)?,
        false => model,
    };
    write(&model, &a.output).map_err(failed)?;
    let algorithms = model.training_info.iter().filter_map(|t| t.algorithm.as_ref());
    let nodes: usize = model.graph.iter().chain(algorithms).map(|g| g.node.len()).sum();
    let bytes = human_bytes(std::fs::metadata(&a.output).map_or(0, |m| m.len()));
    tell!("{nodes} nodes, {bytes}: {}", a.output.display());
    Ok(())
}

/// Writes a forward model with trained weights.
fn export_trained(model: &Path, init: &Path, output: &Path) -> Outcome {
    if is_same_file(init, output) {
        return Err(miette!("`{}` has the weights; name another output", output.display()).into());
    }
    let model = Model::open(model).map_err(failed)?;
    let file = TensorFile::open(init).map_err(failed)?;
    let mut weights = BTreeMap::new();
    for array in file.tensors() {
        let tensor = Tensor::from_bytes(array.ty().clone(), array.bytes().to_vec());
        weights.extend(tensor.map(|tensor| (array.name().to_owned(), tensor)));
    }
    for note in trained::write(&model, &weights, output).map_err(failed)? {
        tell!("note: {note}");
    }
    let bytes = human_bytes(std::fs::metadata(output).map_or(0, |m| m.len()));
    tell!("{bytes}: {}", output.display());
    Ok(())
}
