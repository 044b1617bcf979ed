//! `arenic export`

use super::report::is_same_file;
use super::{Outcome, checked_target, failed, human_bytes};
use arenic::artifact::Artifact;
use arenic::onnx::export::{ExportOptions, annotated, write};
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
    /// Leave out initial values and constants: the file is small and cannot be run as it is
    #[arg(long)]
    no_data: bool,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    if is_same_file(&a.artifact, &a.output) {
        let path = a.output.display();
        return Err(miette!("`{path}` is what is exported; name another output").into());
    }
    let artifact = Artifact::read(&a.artifact).map_err(failed)?;
    let (target, footprint) = checked_target(&artifact, a.target.as_deref())?;
    let options = ExportOptions { data: !a.no_data };
    let model = annotated(target, &artifact.provenance, &footprint, options).map_err(failed)?;
    write(&model, &a.output).map_err(failed)?;
    let nodes = model.graph.map_or(0, |g| g.node.len());
    let bytes = human_bytes(std::fs::metadata(&a.output).map_or(0, |m| m.len()));
    eprintln!("{nodes} nodes, {bytes}: {}", a.output.display());
    Ok(())
}
