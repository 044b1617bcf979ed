//! A model and its large tensors apart, so that these can be kept where others of equal contents are.

use super::ImportError;
use super::proto::tensor_proto::DataLocation;
use super::proto::{GraphProto, ModelProto, TensorProto};
use super::read::Reader;
use arenic_ir::graph::Data;
use bytes::Bytes;
use std::path::Path;

/// Fewer bytes stay in the model.
const LARGE: usize = 256;

/// A model without the contents of its large tensors, and these in the order of the model.
///
/// # Errors
/// External data, which lie in `folder`, cannot be read.
pub(crate) fn apart(
    model: &ModelProto,
    folder: Option<&Path>,
) -> Result<(ModelProto, Vec<Bytes>), ImportError> {
    let unread = |name: &str, reason: String| {
        let name = name.to_owned();
        ImportError::Interface { kind: "initializer", name, reason }
    };
    let mut reader = Reader::new(folder, false).map_err(|source| {
        let path = folder.unwrap_or(Path::new("")).to_owned();
        ImportError::Io { path, source }
    })?;
    let (mut model, mut tensors) = (model.clone(), Vec::new());
    for tensor in model.graph.iter_mut().flat_map(stored) {
        if tensor.data_location == Some(DataLocation::External as i32) {
            let name = tensor.name.clone().unwrap_or_default();
            match reader.tensor(tensor).map_err(|reason| unread(&name, reason))? {
                (_, Data::Bytes(bytes)) => tensor.raw_data = Some(bytes),
                (_, Data::Absent) => return Err(unread(&name, "its data are missing".to_owned())),
            }
            (tensor.data_location, tensor.external_data) = (None, Vec::new());
        }
        if let Some(raw) = tensor.raw_data.as_mut().filter(|raw| raw.len() >= LARGE) {
            tensors.push(std::mem::take(raw));
            tensor.segment = None;
            tensor.data_location = Some(APART);
        }
    }
    Ok((model, tensors))
}

/// What a tensor's place says whose contents are apart: none of ONNX's values.
const APART: i32 = -1;

/// The model with its tensors; `None` where there are others than it lacks.
pub(crate) fn together(mut model: ModelProto, tensors: &[Bytes]) -> Option<ModelProto> {
    let mut tensors = tensors.iter();
    for tensor in model.graph.iter_mut().flat_map(stored) {
        if tensor.data_location == Some(APART) {
            (tensor.raw_data, tensor.data_location) = (Some(tensors.next()?.clone()), None);
        }
    }
    tensors.next().is_none().then_some(model)
}

/// Tensors that a graph stores, in its initializers and its constants.
fn stored(g: &mut GraphProto) -> impl Iterator<Item = &mut TensorProto> {
    let attributes = g.node.iter_mut().flat_map(|node| &mut node.attribute);
    g.initializer.iter_mut().chain(attributes.filter_map(|attribute| attribute.t.as_mut()))
}
