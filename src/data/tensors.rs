//! State files: safetensors or `.npz` in, safetensors out.

use super::atomic::AtomicFile;
use super::error::{ArrayProblem, DataError};
use super::mapped::{Array, Arrays, MappedFile};
use super::npz::Npz;
use arenic_ir::types::{DType, TensorType};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// The longest header of a safetensors file, in bytes; the limit of its specification.
const MAX_HEADER: usize = 100_000_000;

/// The key of the string metadata in a safetensors header.
const METADATA: &str = "__metadata__";

/// A file of named tensors. Their bytes are mapped; the bytes of a bool tensor are 0 and 1.
#[derive(Debug)]
pub struct TensorFile {
    arrays: Arrays,
    metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Opens a safetensors or `.npz` file; which of them is seen from its content.
    ///
    /// # Errors
    /// The file cannot be read, is neither, is damaged, or holds a tensor of a type that
    /// arenic does not have.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let file = MappedFile::open(path)?;
        let bytes = file.bytes();
        let file = if bytes.get(8) == Some(&b'{') && !is_zip_header(bytes) {
            open_safetensors(path, &file)?
        } else if bytes.starts_with(b"PK") {
            let arrays = Npz::from_file(path, &file)?.into_arrays();
            TensorFile { arrays, metadata: BTreeMap::new() }
        } else {
            let detail = "it starts like neither safetensors nor npz".to_owned();
            return Err(bad_file(path, detail));
        };
        file.tensors().iter().try_for_each(|t| t.check_bools(path))?;
        Ok(file)
    }

    /// The tensors, in file order.
    pub fn tensors(&self) -> &[Array] {
        self.arrays.list()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Array> {
        self.arrays.get(name)
    }

    /// The string metadata; an `.npz` has none.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.arrays.path()
    }
}

/// Tells a zip member's header from the length of a safetensors header: read as a length,
/// the former is far above the limit.
fn is_zip_header(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK") && header_len(bytes).is_none_or(|n| n > MAX_HEADER)
}

fn header_len(bytes: &[u8]) -> Option<usize> {
    let len = u64::from_le_bytes(*bytes.first_chunk()?);
    Some(usize::try_from(len).unwrap_or(usize::MAX))
}

fn open_safetensors(path: &Path, file: &Arc<MappedFile>) -> Result<TensorFile, DataError> {
    let bad = |detail: &str| bad_file(path, detail.to_owned());
    let bytes = file.bytes();
    let len = header_len(bytes).ok_or_else(|| bad("it is shorter than 8 bytes"))?;
    if len > MAX_HEADER {
        return Err(bad("its header is longer than 100 MB"));
    }
    let start = 8 + len;
    let header = bytes.get(8..start).ok_or_else(|| bad("it ends within its header"))?;
    // The crate's own reader of whole files adds offsets unchecked; its header type checks
    // that tensors follow one another and are as long as their shapes say.
    let header: Metadata = serde_json::from_slice(header)
        .map_err(|e| bad(&format!("its header is malformed ({e})")))?;
    if start.checked_add(header.data_len()) != Some(bytes.len()) {
        let detail = format!(
            "its header announces {} bytes of tensors, there are {}",
            header.data_len(),
            bytes.len() - start
        );
        return Err(bad_file(path, detail));
    }
    let mut arrays = Arrays::new(path);
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        let Some(dtype) = from_safetensors(info.dtype) else {
            let problem = ArrayProblem::DType(info.dtype.to_string());
            return Err(DataError::array(path, &name, problem));
        };
        let ty = TensorType::new(dtype, info.shape.clone());
        let range = start + info.data_offsets.0..start + info.data_offsets.1;
        arrays.push(Array::new(path, name, ty, file, range)?)?;
    }
    let metadata = header.metadata().iter().flatten();
    Ok(TensorFile { arrays, metadata: metadata.map(|(k, v)| (k.clone(), v.clone())).collect() })
}

fn bad_file(path: &Path, detail: String) -> DataError {
    DataError::Format {
        path: path.to_owned(),
        format: "a tensor file",
        detail,
        mend: "give a whole file written by arenic run --save, safetensors or numpy.savez",
    }
}

/// Writes tensors as safetensors, straight from where they lie, under a temporary name that
/// is renamed at the end.
///
/// Tensors keep the given order except that larger elements come first: so each tensor is
/// aligned to its elements, as some readers need. Equal input gives equal bytes.
///
/// # Errors
/// A name is used twice or is reserved, a tensor's bytes do not fit its type, or the file
/// cannot be written; a file that was there before is then untouched.
pub fn save<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a TensorType, &'a [u8])>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), DataError> {
    let path = path.as_ref();
    let tensors: Vec<_> = tensors.into_iter().collect();
    let bytes: HashMap<&str, &[u8]> =
        tensors.iter().map(|&(name, _, bytes)| (name, bytes)).collect();
    let types = in_file_order(tensors.iter().map(|&(name, ty, _)| (name, ty)));
    for (name, ty, bytes) in &tensors {
        if ty.checked_bytes() != Some(bytes.len() as u64) {
            let detail = format!("tensor \"{name}\" is {ty} but has {} bytes", bytes.len());
            return Err(DataError::Unwritable { path: path.to_owned(), detail });
        }
    }
    save_streamed(path, &types, metadata, |name, put| bytes.get(name).map_or(Ok(()), |b| put(b)))
}

/// Tensors in the order in which they lie in a file: wide elements first, so that all are aligned.
pub fn in_file_order<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a TensorType)>,
) -> Vec<(&'a str, &'a TensorType)> {
    let mut tensors: Vec<_> = tensors.into_iter().collect();
    tensors.sort_by_key(|(_, ty)| std::cmp::Reverse(ty.dtype.size()));
    tensors
}

/// Writes tensors as a safetensors file, as [`save`] does, whose bytes come piece by piece: `write` is
/// called for each tensor in the order given, which is that of [`in_file_order`], and puts its bytes.
///
/// # Errors
/// Those of [`save`], and of `write`; bytes are missing or too many.
pub fn save_streamed<'a, E: From<DataError>>(
    path: &Path,
    tensors: &[(&'a str, &'a TensorType)],
    metadata: &BTreeMap<String, String>,
    mut write: impl FnMut(&'a str, &mut dyn FnMut(&[u8]) -> Result<(), DataError>) -> Result<(), E>,
) -> Result<(), E> {
    let unwritable = |detail: String| DataError::Unwritable { path: path.to_owned(), detail };
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert(METADATA.to_owned(), json!(metadata));
    }
    let mut seen = HashSet::from([METADATA]);
    let mut offset = 0u64;
    for &(name, ty) in tensors {
        if !seen.insert(name) {
            let detail =
                format!("the name \"{name}\" is reserved or occurs twice; rename a tensor");
            return Err(unwritable(detail).into());
        }
        let end = offset + ty.bytes();
        let dtype = to_safetensors(ty.dtype);
        let entry = json!({"dtype": dtype, "shape": ty.shape, "data_offsets": [offset, end]});
        header.insert(name.to_owned(), entry);
        offset = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > MAX_HEADER {
        return Err(unwritable("its header would be longer than 100 MB".to_owned()).into());
    }

    let mut file = AtomicFile::create(path)?;
    file.put(&(header.len() as u64).to_le_bytes())?;
    file.put(&header)?;
    for &(name, ty) in tensors {
        let mut put = 0u64;
        write(name, &mut |bytes| {
            put += bytes.len() as u64;
            file.put(bytes)
        })?;
        if put != ty.bytes() {
            let detail = format!("tensor \"{name}\" is {ty} but has {put} bytes");
            return Err(unwritable(detail).into());
        }
    }
    Ok(file.commit()?)
}

fn from_safetensors(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&d| to_safetensors(d) == dtype)
}

fn to_safetensors(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::U16 => Dtype::U16,
        DType::I16 => Dtype::I16,
        DType::U32 => Dtype::U32,
        DType::I32 => Dtype::I32,
        DType::U64 => Dtype::U64,
        DType::I64 => Dtype::I64,
        DType::Bf16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

/// How far a run is. It is saved with the state, as the metadata strings `arenic.step` and
/// `arenic.seed` in decimal, so that no name in the model can collide with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps done so far; the next step's number.
    pub step: u64,
    /// The seed of random operators.
    pub seed: u64,
}

impl Progress {
    const STEP: &'static str = "arenic.step";
    const SEED: &'static str = "arenic.seed";

    /// The metadata to save with the state.
    pub fn to_metadata(self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (Self::STEP.to_owned(), self.step.to_string()),
            (Self::SEED.to_owned(), self.seed.to_string()),
        ])
    }

    /// The progress that was saved with a state, or `None` where the file was not saved by
    /// a run.
    ///
    /// # Errors
    /// Only one of the two is there, or one is no number.
    pub fn of(file: &TensorFile) -> Result<Option<Self>, DataError> {
        let number = |key| match file.metadata.get(key) {
            None => Ok(None),
            Some(text) => text.parse::<u64>().map(Some).map_err(|_| {
                bad_file(file.path(), format!("its metadata {key} is \"{text}\", not a number"))
            }),
        };
        match (number(Self::STEP)?, number(Self::SEED)?) {
            (Some(step), Some(seed)) => Ok(Some(Progress { step, seed })),
            (None, None) => Ok(None),
            _ => {
                let detail = "its metadata holds one of arenic.step and arenic.seed".to_owned();
                Err(bad_file(file.path(), detail))
            }
        }
    }
}
