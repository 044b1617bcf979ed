//! A forward model with other values for its weights: the file that it was, in its inference form.
//!
//! Names, order, metadata and external data stay as they are. Two operators do another thing in training
//! than afterwards, and are written as they are afterwards: `Dropout` lets everything pass, and
//! `BatchNormalization` takes its running statistics, which are weights here like any other.

use super::ImportError;
use super::parameters::Said;
use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto,
    tensor_proto::DataLocation,
};
use super::read::Reader;
use crate::data::{AtomicFile, DataError};
use crate::model::Model;
use crate::tensor::Tensor;
use arenic_ir::types::TensorType;
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Why a trained model could not be written.
#[derive(Debug, thiserror::Error)]
pub enum TrainedError {
    /// It is no forward model of one file.
    #[error(
        "ONNX Runtime's training artifacts are no forward model; name the model they were made of"
    )]
    Artifacts,
    /// Nothing in the model is called as the weights are.
    #[error(
        "none of the {0} tensors is a weight of the model; are they of another model, or of one that \
         was repaired?"
    )]
    Other(usize),
    /// A weight of another type.
    #[error("the weight `{name}` is {expected} in the model, and {found} in what was trained")]
    Type {
        /// The weight.
        name: String,
        /// Its type in the model.
        expected: TensorType,
        /// The type of what was trained.
        found: TensorType,
    },
    /// A stored tensor cannot be read.
    #[error("tensor `{name}`: {reason}")]
    Tensor {
        /// The tensor.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The batch's own statistics are read, which there are none of after training.
    #[error(
        "the statistics `{0}` of a batch, which `BatchNormalization` gives in training alone, are read"
    )]
    Statistics(String),
    /// What the file says of its weights contradicts itself.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// More than protobuf holds.
    #[error(
        "the file would have {0} bytes, but protobuf holds less than 2 GiB; give the model external data"
    )]
    TooLarge(usize),
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] DataError),
}

/// Writes a forward model with these values for its weights; tensors of `weights` that are no weights of it (the
/// optimizer's states) are left out. Gives what there is to say, in sentences.
///
/// Tensors that lie in external files do so in the written model, too: in one file beside it, `OUTPUT.data`.
///
/// # Errors
/// See [`TrainedError`]. Files are written whole or not at all.
pub fn write(
    model: &Model,
    weights: &BTreeMap<String, Tensor>,
    output: &Path,
) -> Result<Vec<String>, TrainedError> {
    let Some((model, folder)) = model.onnx() else { return Err(TrainedError::Artifacts) };
    let mut reader = Reader::new(folder, false).map_err(|source| ImportError::Io {
        path: folder.unwrap_or(Path::new("")).to_owned(),
        source,
    })?;
    let said = Said::of(&mut ModelProto::clone(model), &mut reader, false)?;
    let mut model = ModelProto::clone(model);
    let used = replace(&mut model, weights, &said.tied)?;
    if used.is_empty() {
        return Err(TrainedError::Other(weights.len()));
    }
    let mut notes = Vec::new();
    let left = weights.len() - used.len();
    if left > 0 {
        notes.push(format!(
            "{left} tensors are no weights of the model, as an optimizer's states are"
        ));
    }
    if let Some(graph) = &mut model.graph {
        infer(graph)?;
    }
    let mut kept = HashSet::new();
    for function in &mut model.functions {
        kept.extend(function.output.iter().cloned());
        infer_nodes(&mut function.node, &kept)?;
    }
    gather(&mut model, &mut reader, output)?;
    let bytes = model.encode_to_vec();
    if bytes.len() > i32::MAX as usize {
        return Err(TrainedError::TooLarge(bytes.len()));
    }
    let mut file = AtomicFile::create(output)?;
    file.put(&bytes)?;
    file.commit()?;
    Ok(notes)
}

/// Replaces initializers, and constants of the graph, by the weights of their names. Gives the names of those
/// weights that there are.
fn replace<'w>(
    model: &mut ModelProto,
    weights: &'w BTreeMap<String, Tensor>,
    tied: &BTreeMap<String, String>,
) -> Result<BTreeSet<&'w str>, TrainedError> {
    let mut used = BTreeSet::new();
    let Some(graph) = &mut model.graph else { return Ok(used) };
    let mut weight = |name: &str| {
        let name = tied.get(name).map_or(name, String::as_str);
        let (name, weight) = weights.get_key_value(name)?;
        used.insert(name.as_str());
        Some(weight)
    };
    for tensor in &mut graph.initializer {
        let name = tensor.name.clone().unwrap_or_default();
        if let Some(weight) = weight(&name) {
            put(tensor, &name, weight)?;
        }
    }
    for node in graph.node.iter_mut().filter(|node| node.op_type.as_deref() == Some("Constant")) {
        let Some(name) = node.output.first().cloned() else { continue };
        for tensor in node.attribute.iter_mut().filter_map(|a| a.t.as_mut()) {
            if let Some(weight) = weight(&name) {
                put(tensor, &name, weight)?;
            }
        }
    }
    Ok(used)
}

/// Gives a stored tensor other contents. One that lies in an external file will do so again (`gather`).
fn put(tensor: &mut TensorProto, name: &str, weight: &Tensor) -> Result<(), TrainedError> {
    let found = weight.ty();
    let dims: Vec<i64> = found.shape.iter().map(|&d| d as i64).collect();
    let code = super::export::tensor(name, found, Bytes::new()).data_type;
    if tensor.dims != dims || tensor.data_type != code {
        let dtype = super::read::element_type(tensor.data_type.unwrap_or_default());
        let expected = dtype.and_then(|dtype| super::read::shape_type(dtype, &tensor.dims));
        return Err(match expected {
            Ok(expected) => {
                TrainedError::Type { name: name.to_owned(), expected, found: found.clone() }
            }
            Err(reason) => TrainedError::Tensor { name: name.to_owned(), reason },
        });
    }
    tensor.raw_data = Some(Bytes::copy_from_slice(weight.bytes()));
    tensor.float_data.clear();
    tensor.double_data.clear();
    tensor.int32_data.clear();
    tensor.int64_data.clear();
    tensor.uint64_data.clear();
    Ok(())
}

/// The inference form of a graph's nodes, and of those in its nodes' bodies.
fn infer(graph: &mut GraphProto) -> Result<(), TrainedError> {
    let kept = graph.output.iter().filter_map(|output| output.name.clone()).collect();
    infer_nodes(&mut graph.node, &kept)
}

/// The same of a list of nodes; `kept` are tensors that are read from outside.
fn infer_nodes(nodes: &mut Vec<NodeProto>, kept: &HashSet<String>) -> Result<(), TrainedError> {
    let mut read = kept.clone();
    nodes.iter().for_each(|node| reads(node, &mut read));
    let mut copies: HashMap<usize, Vec<NodeProto>> = HashMap::new();
    for (i, node) in nodes.iter_mut().enumerate() {
        for attribute in &mut node.attribute {
            attribute.g.iter_mut().chain(&mut attribute.graphs).try_for_each(infer)?;
        }
        if !matches!(node.domain.as_deref(), None | Some("" | "ai.onnx")) {
            continue;
        }
        match node.op_type.as_deref() {
            // Without the third operand nothing is dropped.
            Some("Dropout") => node.input.truncate(2),
            Some("BatchNormalization") => {
                let is_mode = |a: &AttributeProto| a.name.as_deref() == Some("training_mode");
                node.attribute.retain(|a| !is_mode(a));
                let statistics = node.output.split_off(node.output.len().min(1));
                for (k, name) in statistics.into_iter().enumerate() {
                    if name.is_empty() || !read.contains(&name) {
                        continue;
                    }
                    let Some(running) = node.input.get(3 + k).filter(|_| k < 2) else {
                        return Err(TrainedError::Statistics(name));
                    };
                    // What the running statistics are next is what they are.
                    let copy = NodeProto {
                        input: vec![running.clone()],
                        name: Some(name.clone()),
                        output: vec![name],
                        op_type: Some("Identity".to_owned()),
                        ..NodeProto::default()
                    };
                    copies.entry(i).or_default().push(copy);
                }
            }
            _ => {}
        }
    }
    if !copies.is_empty() {
        let all = std::mem::take(nodes).into_iter().enumerate();
        let with_copies = all.flat_map(|(i, node)| {
            std::iter::once(node).chain(copies.remove(&i).into_iter().flatten())
        });
        *nodes = with_copies.collect();
    }
    Ok(())
}

/// Collects what a node reads, and what the bodies in it do.
fn reads(node: &NodeProto, read: &mut HashSet<String>) {
    read.extend(node.input.iter().cloned());
    for body in node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)) {
        read.extend(body.output.iter().filter_map(|output| output.name.clone()));
        body.node.iter().for_each(|node| reads(node, read));
    }
}

/// Where entries of an external file begin, in bytes.
const ALIGN: u64 = 64;

/// Writes what lies in external files, as it is now, to one beside `output`.
fn gather(model: &mut ModelProto, reader: &mut Reader, output: &Path) -> Result<(), TrainedError> {
    let external = DataLocation::External as i32;
    let mut tensors = Vec::new();
    if let Some(graph) = &mut model.graph {
        tensors_of(graph, &mut tensors);
    }
    tensors.retain(|t| t.data_location == Some(external));
    if tensors.is_empty() {
        return Ok(());
    }
    let path = data_file(output);
    let location = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut file = AtomicFile::create(&path)?;
    let mut at = 0u64;
    for tensor in tensors {
        let bytes = match tensor.raw_data.take() {
            Some(bytes) => bytes,
            None => stored(reader, tensor)?,
        };
        let first = at.next_multiple_of(ALIGN);
        file.put(&[0; ALIGN as usize][..(first - at) as usize])?;
        file.put(&bytes)?;
        at = first + bytes.len() as u64;
        let entries = [
            ("location", location.clone()),
            ("offset", first.to_string()),
            ("length", bytes.len().to_string()),
        ];
        // A checksum would be of the file that it was.
        let entry = |(key, value): (&str, String)| StringStringEntryProto {
            key: Some(key.to_owned()),
            value: Some(value),
        };
        tensor.external_data = entries.into_iter().map(entry).collect();
    }
    file.commit()?;
    Ok(())
}

fn stored(reader: &mut Reader, tensor: &TensorProto) -> Result<Bytes, TrainedError> {
    let name = tensor.name.clone().unwrap_or_default();
    let (_, data) = reader
        .tensor(tensor)
        .map_err(|reason| TrainedError::Tensor { name: name.clone(), reason })?;
    let missing = || TrainedError::Tensor { name, reason: "its data is missing".to_owned() };
    data.bytes().cloned().ok_or_else(missing)
}

/// All stored tensors of a graph, and of the bodies in it.
fn tensors_of<'m>(graph: &'m mut GraphProto, all: &mut Vec<&'m mut TensorProto>) {
    all.extend(&mut graph.initializer);
    for attribute in graph.node.iter_mut().flat_map(|node| &mut node.attribute) {
        all.extend(attribute.t.iter_mut().chain(&mut attribute.tensors));
        for body in attribute.g.iter_mut().chain(&mut attribute.graphs) {
            tensors_of(body, all);
        }
    }
}

/// The file that external data of a model written to `output` lies in.
fn data_file(output: &Path) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_owned();
    name.push(".data");
    output.with_file_name(name)
}
