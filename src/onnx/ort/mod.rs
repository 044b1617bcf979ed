//! ONNX Runtime's training artifacts: a folder with `training_model.onnx`, `optimizer_model.onnx`
//! and `checkpoint`, read as one training step. `checkpoint` reads the flatbuffer, `fuse` makes one model of the three,
//! which is imported like any other; its operators have their rows in `ops/microsoft`.

mod accumulate;
mod checkpoint;
mod flatbuffer;
mod fuse;
mod graph;

use super::error::ImportError;
use super::parameters::Said;
use super::proto::ModelProto;
use super::read::{Reader, map_file};
use super::{ImportOptions, Imported, import};
use bytes::Bytes;
use checkpoint::Checkpoint;
use prost::Message;
use std::path::Path;

/// The files of a folder of training artifacts.
pub const FILES: [&str; 3] = ["training_model.onnx", "optimizer_model.onnx", "checkpoint"];

/// Imports a folder of training artifacts as one step: parameters are states with the checkpoint's
/// values, the optimizer's moments are states `NAME.m` and `NAME.v`, its count is the state
/// `step`, running statistics are states. The learning rate is the scalar input `lr`, the loss the
/// output `loss`. With micro-batches, inputs have as many times the rows, and gradients are averaged.
///
/// # Errors
/// A file cannot be read, is damaged, belongs to another model, or holds what is not supported.
pub fn import_artifacts(folder: &Path, options: &ImportOptions) -> Result<Imported, ImportError> {
    let [training, optimizer, checkpoint] = FILES.map(|name| folder.join(name));
    let (training, optimizer) = (model(&training)?, model(&optimizer)?);
    let bytes = read(&checkpoint)?;
    let checkpoint = Checkpoint::read(&bytes)
        .map_err(|reason| ImportError::Model(format!("`{}`: {reason}", checkpoint.display())))?;
    let mut options = options.clone();
    let (count, dims) = (options.micro_batches, &mut options.dims);
    let fused = fuse::fuse(training, &optimizer, checkpoint, count, dims).map_err(|reason| {
        ImportError::Model(format!("the artifacts in `{}`: {reason}", folder.display()))
    })?;
    options.states.extend(fused.states);
    let io = |source| ImportError::Io { path: folder.to_owned(), source };
    let mut reader = Reader::new(Some(folder), options.plan_only).map_err(io)?;
    import::import(&fused.model, &mut reader, &options, &Said::default())
}

fn read(path: &Path) -> Result<Bytes, ImportError> {
    map_file(path).map_err(|source| ImportError::Io { path: path.to_owned(), source })
}

fn model(path: &Path) -> Result<ModelProto, ImportError> {
    ModelProto::decode(read(path)?).map_err(|e| {
        let path = path.display();
        ImportError::Model(format!("`{path}` is no ONNX model, or it is damaged: {e}"))
    })
}
