//! ONNX import and export. The crates below see neither ONNX nor its protobuf, but for the names of ONNX's operators
//! in the table of scalar functions (`ir/src/op/scalar.rs`).
//!
//! A model is read in five steps: the file is mapped and decoded without copying tensor
//! data (`read`), functions are inlined and nodes sorted (`flatten`), inputs, symbolic
//! dimensions and states are resolved (`interface`, `state`), each node is built by its
//! operator's row (`ops`), with constants folded on the way (`fold`), and what nobody
//! reads is dropped.

pub(crate) mod apart;
mod attributes;
mod context;
mod control;
mod domains;
mod error;
pub mod export;
mod flatten;
mod fold;
mod import;
mod interface;
mod ops;
pub mod ort;
pub mod parameters;
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)] // generated
pub mod proto;
mod prune;
mod read;
mod state;
pub mod trained;
mod training_info;

#[cfg(test)]
mod tests;

pub use error::{ImportError, UnsupportedOp};
pub use ops::{SupportedOp, supported_ops};

use arenic_ir::{Graph, TensorType};
use arenic_passes::differentiate::Glob;
use bytes::Bytes;
use parameters::Said;
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
    /// What the graph is for.
    pub mode: Mode,
    /// Of ONNX Runtime's training artifacts: micro-batches in one step; one where there are fewer.
    pub micro_batches: Option<usize>,
    /// Weights that are or may be trained, so that nothing is folded through them: for training those
    /// beside what the file says, for inference those that were trained.
    pub trainable: Vec<Glob>,
    /// Parameters that an exporter took apart are restored where that is certain.
    pub repair: bool,
    /// A training goes on without the parameters that the file lacks.
    pub accept_missing: bool,
    /// Sizes in `dims` of the axis of the batch, the first one of inputs, are those of one of so many
    /// parts, a rank's or one of its micro-batches; the graph has all rows. 0 and 1 leave them as they are.
    pub ranks: usize,
    /// Statistics of batch normalisation are of all ranks' rows, not of a rank's own.
    pub sync_batch_norm: bool,
}

/// What a graph is for, where operators do another thing in training than afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mode {
    /// What each node says.
    #[default]
    AsWritten,
    /// Dropout drops, batch normalisation takes the batch's statistics and updates its running
    /// ones, and initializers of floats are states, so that they can be trained.
    Training(Training),
    /// Nothing is dropped, and statistics are the running ones.
    Inference,
}

/// How a model is imported for training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Training {
    /// Replaces the ratio of every dropout.
    pub dropout: Option<f32>,
    /// What batch normalisation's running variance is made of; what the file says without it, and of
    /// the population where that says nothing.
    pub variance: Option<Variance>,
}

/// What batch normalisation's running variance is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variance {
    /// The batch's variance, as ONNX says.
    #[default]
    Population,
    /// The estimate of the population's variance from the batch, as PyTorch has it.
    Unbiased,
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
    /// Values of inputs where a run gives none, as the model's metadata say.
    pub defaults: BTreeMap<String, f64>,
    /// For training and inference: what the file says of its weights.
    pub said: Said,
    /// For training: tensors that gradients do not pass, as the file says.
    pub stops: Vec<String>,
    /// For training: what exporters are known to leave out, and seem to have left out here.
    pub notes: Vec<String>,
}

/// In [`ImportOptions::dims`], the name that stands for the only symbolic dimension.
pub const ONLY_DIM: &str = "";

/// The metadata property that lists values of inputs, one `NAME=X` per line.
const DEFAULTS: &str = "arenic.defaults";

/// Values of inputs where a run gives none, as a property of a model's metadata; `None` if
/// there are no values.
pub fn defaults(values: &BTreeMap<String, f64>) -> Option<proto::StringStringEntryProto> {
    let lines: Vec<String> = values.iter().map(|(name, x)| format!("{name}={x}")).collect();
    let (key, value) = (Some(DEFAULTS.to_owned()), Some(lines.join("\n")));
    (!values.is_empty()).then_some(proto::StringStringEntryProto { key, value })
}

/// Imports a model file. External data is looked for in its folder and nowhere else.
///
/// # Errors
/// The file cannot be read, is damaged, or holds something that is not supported.
pub fn import_file(path: &Path, options: &ImportOptions) -> Result<Imported, ImportError> {
    import_model(&decode_file(path)?, path.parent(), options)
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
    import_model(&proto::ModelProto::decode(bytes)?, folder, options)
}

/// Maps and decodes a model file, whose tensors stay in it.
///
/// # Errors
/// The file cannot be read or is no ONNX model.
pub(crate) fn decode_file(path: &Path) -> Result<proto::ModelProto, ImportError> {
    let bytes =
        read::map_file(path).map_err(|source| ImportError::Io { path: path.to_owned(), source })?;
    Ok(proto::ModelProto::decode(bytes)?)
}

/// The inputs of a model with the names of their symbolic dimensions; `None` for axes of fixed size.
pub(crate) fn symbols(model: &proto::ModelProto) -> Vec<(String, Vec<Option<String>>)> {
    model.graph.as_ref().map_or(Vec::new(), interface::symbols)
}

/// Imports a decoded model whose external data is in `folder`. Tensors are shared.
///
/// # Errors
/// As [`import_file`].
pub(crate) fn import_model(
    model: &proto::ModelProto,
    folder: Option<&Path>,
    options: &ImportOptions,
) -> Result<Imported, ImportError> {
    let mut reader = read::Reader::new(folder, options.plan_only).map_err(|source| {
        ImportError::Io { path: folder.unwrap_or(Path::new("")).to_owned(), source }
    })?;
    // A forward model is made a step by us, whatever else it says of its training.
    if options.mode != Mode::AsWritten {
        let mut model = model.clone();
        let said = Said::of(&mut model, &mut reader, options.repair)?;
        let trains = matches!(options.mode, Mode::Training(_));
        if trains && !said.lost.is_empty() && !options.accept_missing {
            return Err(ImportError::Parameters(said.lost));
        }
        let mode = match options.mode {
            Mode::Training(t) => {
                Mode::Training(Training { variance: t.variance.or(said.variance), ..t })
            }
            mode => mode,
        };
        let options = ImportOptions { mode, ..options.clone() };
        let imported = import::import(&model, &mut reader, &options, &said)?;
        return Ok(Imported { said, ..imported });
    }
    if model.training_info.is_empty() {
        return import::import(model, &mut reader, options, &Said::default());
    }
    let (model, updates) = training_info::combined(model.clone(), &mut reader, options)?;
    let mut options = options.clone();
    options.states.extend(updates);
    import::import(&model, &mut reader, &options, &Said::default())
}
