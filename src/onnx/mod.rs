//! ONNX import and export. Nothing below this module sees ONNX or protobuf.
//!
//! A model is read in five steps: the file is mapped and decoded without copying tensor
//! data (`read`), functions are inlined and nodes sorted (`flatten`), inputs, symbolic
//! dimensions and states are resolved (`interface`, `state`), each node is built by its
//! operator's row (`ops`), with constants folded on the way (`fold`), and what nobody
//! reads is dropped.

mod attributes;
mod context;
mod error;
pub mod export;
mod flatten;
mod fold;
mod import;
mod interface;
mod ops;
pub mod ort;
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)] // generated
pub mod proto;
mod read;
mod state;

#[cfg(test)]
mod tests;

pub use error::{ImportError, UnsupportedOp};
pub use ops::{SupportedOp, supported_ops};

use arenic_ir::{Graph, TensorType};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;

/// What an import needs to know besides the model.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Sizes of symbolic dimensions, by name. A dimension that the model leaves open
    /// without a name is called `INPUT.AXIS`.
    pub dims: BTreeMap<String, u64>,
    /// Pairs of a tensor and its next value, before those that the model itself suggests.
    pub states: Vec<(String, String)>,
    /// Missing external files are fine: their tensors are known by type alone.
    pub plan_only: bool,
    /// Inputs (or initializers) that become constants with these contents.
    pub bind: BTreeMap<String, (TensorType, Vec<u8>)>,
}

/// An imported model.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The graph.
    pub graph: Graph,
    /// Names of constants that cannot be replaced any more, sorted: initializers whose
    /// contents shaped the graph, values that the program itself holds or that were
    /// computed from constants, and bound inputs.
    pub bound: Vec<String>,
    /// Names of initializers that nothing in the graph depends on.
    pub unused: Vec<String>,
}

/// Imports a model file. External data is looked for in its folder and nowhere else.
///
/// # Errors
/// The file cannot be read, is damaged, or holds something that is not supported.
pub fn import_file(path: &Path, options: &ImportOptions) -> Result<Imported, ImportError> {
    let bytes =
        read::map_file(path).map_err(|source| ImportError::Io { path: path.to_owned(), source })?;
    import_bytes(bytes, path.parent(), options)
}

/// Imports an encoded model whose external data is in `folder`. Tensors share `bytes`.
///
/// # Errors
/// As [`import_file`].
pub fn import_bytes(
    bytes: Bytes,
    folder: Option<&Path>,
    options: &ImportOptions,
) -> Result<Imported, ImportError> {
    let model = proto::ModelProto::decode(bytes)?;
    let mut reader = read::Reader::new(folder, options.plan_only).map_err(|source| {
        ImportError::Io { path: folder.unwrap_or(Path::new("")).to_owned(), source }
    })?;
    import::import(&model, &mut reader, options)
}
