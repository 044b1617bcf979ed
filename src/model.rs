//! A model as it is given: a file, its bytes, or a folder of ONNX Runtime's training artifacts.

use crate::onnx::ort::{FILES, import_artifacts};
use crate::onnx::proto::ModelProto;
use crate::onnx::{ImportError, ImportOptions, Imported, apart, decode_file, import_model};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// An ONNX model, decoded once however often it is compiled: a whole training step, or a forward model of
/// which [`Compiler::loss`](crate::Compiler::loss) makes one.
///
/// Tensors stay in the file, which is mapped: nobody may cut it short while the model is in use.
///
/// ```
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/digits/digits_step.onnx");
/// let step = arenic::Model::open(path)?.dim("batch", 32);
/// let artifact = arenic::Compiler::new().compile(&step)?;
/// assert!(artifact.arena_bytes() > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    source: Source,
    /// The file's name, without its folder.
    name: String,
    digest: Arc<OnceLock<[u8; 32]>>,
    /// Sizes of symbolic dimensions.
    pub(crate) dims: BTreeMap<String, u64>,
}

#[derive(Clone, Debug)]
enum Source {
    /// A decoded file.
    File { path: PathBuf, model: Arc<ModelProto> },
    /// A decoded message.
    Bytes { bytes: Bytes, model: Arc<ModelProto> },
    /// A folder of ONNX Runtime's training artifacts.
    Artifacts(PathBuf),
}

impl Model {
    /// Maps and decodes an ONNX file; external data is looked for in its folder and nowhere else. A folder is
    /// one of ONNX Runtime's training artifacts: `training_model.onnx`, `optimizer_model.onnx` and `checkpoint`.
    ///
    /// # Errors
    /// The file cannot be read or is no ONNX model.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, ImportError> {
        let path = path.as_ref();
        let source = match path.is_dir() {
            true => Source::Artifacts(path.to_owned()),
            false => Source::File { path: path.to_owned(), model: decode_file(path)?.into() },
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Model::new(source, name))
    }

    /// Decodes an ONNX model that lies in memory. It has no folder: all its tensors must be in it.
    ///
    /// # Errors
    /// The bytes are no ONNX model.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Model, ImportError> {
        let bytes = bytes.into();
        let model = Arc::new(ModelProto::decode(bytes.clone())?);
        Ok(Model::new(Source::Bytes { bytes, model }, "model.onnx".to_owned()))
    }

    /// A model whose large tensors lie apart; `None` where bytes are none, or tensors are missing.
    pub(crate) fn from_parts(
        name: &str,
        digest: [u8; 32],
        bytes: Bytes,
        tensors: &[Bytes],
    ) -> Option<Model> {
        let model = apart::together(ModelProto::decode(bytes.clone()).ok()?, tensors)?;
        let source = Source::Bytes { bytes, model: Arc::new(model) };
        let model = Model::new(source, name.to_owned());
        model.digest.get_or_init(|| digest);
        Some(model)
    }

    fn new(source: Source, name: String) -> Model {
        Model { source, name, digest: Arc::default(), dims: BTreeMap::new() }
    }

    /// Sets the size of a symbolic dimension, in elements. A dimension that the model leaves open without a name
    /// is called `INPUT.AXIS`.
    #[must_use]
    pub fn dim(mut self, name: impl Into<String>, size: u64) -> Model {
        self.dims.insert(name.into(), size);
        self
    }

    /// The name of the file, without its folder; `model.onnx` for a model from memory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The decoded model and the folder of its external data; `None` for a folder of training artifacts.
    pub(crate) fn onnx(&self) -> Option<(&Arc<ModelProto>, Option<&Path>)> {
        match &self.source {
            Source::File { path, model } => Some((model, path.parent())),
            Source::Bytes { model, .. } => Some((model, None)),
            Source::Artifacts(_) => None,
        }
    }

    /// Makes a graph of the model. Its own dimensions hold where the options say nothing of them.
    ///
    /// # Errors
    /// The model holds something that is not supported, or lacks data.
    pub fn import(&self, options: &ImportOptions) -> Result<Imported, ImportError> {
        let mut options = options.clone();
        for (name, size) in &self.dims {
            options.dims.entry(name.clone()).or_insert(*size);
        }
        match &self.source {
            Source::Artifacts(folder) => import_artifacts(folder, &options),
            Source::File { path, model } => import_model(model, path.parent(), &options),
            Source::Bytes { model, .. } => import_model(model, None, &options),
        }
    }

    /// The blake3 digest of the file, or of the artifacts one after another.
    ///
    /// # Errors
    /// A file can no longer be read.
    pub(crate) fn digest(&self) -> Result<[u8; 32], (PathBuf, io::Error)> {
        if let Some(digest) = self.digest.get() {
            return Ok(*digest);
        }
        let mut hasher = blake3::Hasher::new();
        let files = match &self.source {
            Source::File { path, .. } => vec![path.clone()],
            Source::Artifacts(folder) => FILES.map(|name| folder.join(name)).to_vec(),
            Source::Bytes { bytes, .. } => {
                hasher.update(bytes);
                Vec::new()
            }
        };
        for path in files {
            std::fs::File::open(&path)
                .and_then(|file| hasher.update_reader(file).map(drop))
                .map_err(|error| (path, error))?;
        }
        Ok(*self.digest.get_or_init(|| *hasher.finalize().as_bytes()))
    }
}
