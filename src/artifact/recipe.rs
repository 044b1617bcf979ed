//! How a recipe lies in an artifact: tensors of models are entries like others, so that those that are
//! states or constants lie there once.

use super::layout::{Entry, Layout, piece};
use crate::recipe::{Recipe, RecordedModel, RecordedOption};
use arenic_ir::graph::Data;
use bytes::Bytes;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RecipeHeader {
    #[prost(message, repeated, tag = "1")]
    options: Vec<RecordedOption>,
    #[prost(message, repeated, tag = "2")]
    models: Vec<ModelHeader>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ModelHeader {
    #[prost(string, tag = "1")]
    structure: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(bytes = "vec", tag = "3")]
    digest: Vec<u8>,
    #[prost(message, repeated, tag = "4")]
    dims: Vec<DimHeader>,
    /// The encoded model.
    #[prost(message, optional, tag = "5")]
    proto: Option<Entry>,
    #[prost(message, repeated, tag = "6")]
    tensors: Vec<Entry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DimHeader {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "2")]
    size: u64,
}

pub(super) fn write<'a>(recipe: &'a Recipe, layout: &mut Layout<'a>) -> RecipeHeader {
    layout.section();
    let mut model = |model: &'a RecordedModel| {
        let dim = |(name, size): &(String, u64)| DimHeader { name: name.clone(), size: *size };
        ModelHeader {
            structure: model.structure.clone(),
            name: model.name.clone(),
            digest: model.digest.to_vec(),
            dims: model.dims.iter().map(dim).collect(),
            proto: Some(layout.push(0, &model.proto)),
            tensors: model.tensors.iter().map(|bytes| layout.push(0, bytes)).collect(),
        }
    };
    let models = recipe.models.iter().map(&mut model).collect();
    RecipeHeader { options: recipe.options.clone(), models }
}

/// `None` where the file lacks what the header names.
pub(super) fn read(header: RecipeHeader, data: &Bytes) -> Option<Recipe> {
    let bytes = |entry: &Entry| match piece(data, entry)? {
        Data::Bytes(bytes) => Some(bytes),
        Data::Absent => None,
    };
    let model = |model: ModelHeader| {
        Some(RecordedModel {
            structure: model.structure,
            name: model.name,
            digest: model.digest.try_into().ok()?,
            dims: model.dims.into_iter().map(|dim| (dim.name, dim.size)).collect(),
            proto: bytes(&model.proto?)?,
            tensors: model.tensors.iter().map(bytes).collect::<Option<_>>()?,
        })
    };
    let models = header.models.into_iter().map(model).collect::<Option<_>>()?;
    Some(Recipe { options: header.options, models })
}
