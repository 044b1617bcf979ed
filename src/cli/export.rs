//! `arenic export`

use super::report::is_same_file;
use super::{Outcome, can_write, checked_target, failed, human_bytes};
use arenic::artifact::Artifact;
use arenic::onnx::export::{ExportOptions, annotated, with_training_info, write};
use clap::Args;
use miette::miette;
use std::path::PathBuf;

/// Arguments of `arenic export`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The artifact
    artifact: PathBuf,
    /// The ONNX file to write: standard operators in the order of the program, with streams,
    /// offsets, lifetimes and swaps as metadata of nodes
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
    if is_same_file(&a.artifact, &a.output) {
        let path = a.output.display();
        return Err(miette!("`{path}` is what is exported; name another output").into());
    }
    can_write([&a.output])?;
    let artifact = Artifact::read(&a.artifact).map_err(failed)?;
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
