//! What an artifact keeps of how it was compiled, so that the same step can be compiled at other sizes.

use crate::model::Model;
use crate::onnx::ImportError;
use crate::onnx::apart;
use bytes::Bytes;
use prost::Message;

/// Options and models of a compilation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recipe {
    /// The options of `arenic compile` that say what the step is, whatever its sizes and limits.
    pub(crate) options: Vec<RecordedOption>,
    /// By structure.
    pub(crate) models: Vec<RecordedModel>,
}

/// What options say of a step and its dimensions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recorded {
    pub(crate) options: Vec<RecordedOption>,
    /// Names of the dimensions, in the order of the options.
    pub(crate) dims: Vec<String>,
}

/// An option as the command line has it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct RecordedOption {
    /// For example `--optimizer=adamw`; of one that names a file all that stands before the name.
    #[prost(string, tag = "1")]
    pub text: String,
    /// The file that it names, where it names one.
    #[prost(message, optional, tag = "2")]
    pub file: Option<RecordedFile>,
}

/// A file that an option names.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct RecordedFile {
    /// Its name, without its folder.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What it holds.
    #[prost(bytes = "bytes", tag = "2")]
    pub contents: Bytes,
}

/// A model whose dimensions may have other sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecordedModel {
    /// The name that it was given; empty where all variants are of one model.
    pub(crate) structure: String,
    /// Its file's name.
    pub(crate) name: String,
    pub(crate) digest: [u8; 32],
    /// Sizes of the first variant's dimensions, in the order of the options.
    pub(crate) dims: Vec<(String, u64)>,
    /// The encoded model, without its large tensors.
    pub(crate) proto: Bytes,
    pub(crate) tensors: Vec<Bytes>,
}

impl RecordedModel {
    /// Takes a model apart; `None` for one that is no ONNX file.
    ///
    /// # Errors
    /// Its external data cannot be read.
    pub(crate) fn of(
        structure: &str,
        model: &Model,
        dims: Vec<(String, u64)>,
    ) -> Result<Option<RecordedModel>, ImportError> {
        let Some((proto, folder)) = model.onnx() else { return Ok(None) };
        let digest = model.digest().map_err(|(path, source)| ImportError::Io { path, source })?;
        let (proto, tensors) = apart::apart(proto, folder)?;
        Ok(Some(RecordedModel {
            structure: structure.to_owned(),
            name: model.name().to_owned(),
            digest,
            dims,
            proto: proto.encode_to_vec().into(),
            tensors,
        }))
    }

    /// The model, without sizes of its dimensions; `None` where what was kept is none.
    pub(crate) fn model(&self) -> Option<Model> {
        Model::from_parts(&self.name, self.digest, self.proto.clone(), &self.tensors)
    }
}
