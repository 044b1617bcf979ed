//! ONNX export: a graph as plain standard ONNX.
//!
//! The file is the functional whole step. What is fed is an input; a state `X` is an input `X` with
//! its initial value as the initializer of that name, and an output `out_X`, which is how the
//! importer finds states; constants are initializers. Operators that ONNX has are written as they
//! are, the others as several nodes (`ops`, `fused`, `norms`, `attention`,
//! `windows`). Views become reshapes and slices.

mod attention;
mod error;
mod fused;
mod gelu;
mod norms;
mod ops;
mod plan;
mod recurrent;
mod resize;
mod training_info;
mod windows;
mod writer;

pub use error::ExportError;
pub use plan::annotated;
pub use training_info::with_training_info;
pub(super) use writer::tensor;

use super::proto::{ModelProto, StringStringEntryProto};
use crate::data::AtomicFile;
use arenic_ir::Graph;
use arenic_ir::graph::NodeId;
use prost::Message;
use std::path::Path;
use writer::Writer;

/// What an exported file holds.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// Initial values of states, and constants. Without them, all but small constants are inputs
    /// alone.
    pub data: bool,
}

impl Default for ExportOptions {
    fn default() -> Self {
        ExportOptions { data: true }
    }
}

/// What there is to say of a graph besides what it computes.
#[derive(Clone, Debug, Default)]
struct Notes {
    /// Of the whole model: keys and values.
    model: Vec<(&'static str, String)>,
    /// Of each node in the order of writing.
    nodes: Vec<(NodeId, Vec<(String, String)>)>,
}

/// A graph as an ONNX model.
///
/// # Errors
/// The graph holds an operator of which only sizes are known, data that is not at hand, two things
/// that would have one name, or more than protobuf can hold.
pub fn export(g: &Graph, options: ExportOptions) -> Result<ModelProto, ExportError> {
    let nodes = g.nodes.keys().map(|n| (n, Vec::new())).collect();
    with_notes(g, options, &Notes { model: Vec::new(), nodes })
}

fn with_notes(g: &Graph, options: ExportOptions, notes: &Notes) -> Result<ModelProto, ExportError> {
    let mut writer = Writer::new(g, options)?;
    for (n, said) in &notes.nodes {
        writer.node(*n, said)?;
    }
    let mut model = writer.finish()?;
    model.metadata_props = properties(&notes.model);
    if model.encoded_len() > MAX_BYTES {
        return Err(ExportError::TooLarge(model.encoded_len() as u64));
    }
    Ok(model)
}

/// Protobuf messages end here; beyond it tensors would have to be in files of their own.
const MAX_BYTES: usize = i32::MAX as usize;

fn properties<K: AsRef<str>>(all: &[(K, String)]) -> Vec<StringStringEntryProto> {
    let entry = |(key, value): &(K, String)| StringStringEntryProto {
        key: Some(key.as_ref().to_owned()),
        value: Some(value.clone()),
    };
    all.iter().map(entry).collect()
}

/// Writes a model under a temporary name and renames it.
///
/// # Errors
/// The file system refuses.
pub fn write(model: &ModelProto, path: &Path) -> Result<(), ExportError> {
    let mut file = AtomicFile::create(path)?;
    file.put(&model.encode_to_vec())?;
    Ok(file.commit()?)
}
