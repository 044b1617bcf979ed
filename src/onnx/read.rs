//! Files and stored tensors: mapped, not copied, and confined to the model's folder.

use super::proto::{StringStringEntryProto, TensorProto, tensor_proto};
use arenic_ir::op::MAX_RANK;
use arenic_ir::{DType, Data, TensorType};
use bytes::Bytes;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Maps a regular file.
pub(super) fn map_file(path: &Path) -> io::Result<Bytes> {
    // Asked before opening: to open a pipe would wait for its other end.
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let file = File::open(path)?;
    if meta.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: a private read-only mapping. Nothing here relies on the bytes staying the
    // same; that nobody cuts the file short while it is mapped is asked of the user, as
    // by every program that maps its input.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    Ok(Bytes::from_owner(map))
}

/// The element type of an ONNX type code.
pub(super) fn element_type(code: i32) -> Result<DType, String> {
    use tensor_proto::DataType;
    match DataType::try_from(code) {
        Ok(DataType::Bool) => Ok(DType::Bool),
        Ok(DataType::Uint8) => Ok(DType::U8),
        Ok(DataType::Int8) => Ok(DType::I8),
        Ok(DataType::Uint16) => Ok(DType::U16),
        Ok(DataType::Int16) => Ok(DType::I16),
        Ok(DataType::Uint32) => Ok(DType::U32),
        Ok(DataType::Int32) => Ok(DType::I32),
        Ok(DataType::Uint64) => Ok(DType::U64),
        Ok(DataType::Int64) => Ok(DType::I64),
        Ok(DataType::Bfloat16) => Ok(DType::Bf16),
        Ok(DataType::Float) => Ok(DType::F32),
        Ok(DataType::Double) => Ok(DType::F64),
        Ok(DataType::Undefined) => Err("its element type is not said".into()),
        Ok(DataType::Float16) => {
            Err("element type FLOAT16 is not supported: export the model in f32 \
             (`module.float()`), and let --precision bf16 have products in 16 bits"
                .into())
        }
        Ok(other) => Err(format!(
            "element type {} is not supported; supported are {}",
            other.as_str_name(),
            DType::ALL.map(DType::name).join(", ")
        )),
        Err(_) => Err(format!("element type {code} is unknown")),
    }
}

/// Reads stored tensors of one model.
pub(super) struct Reader {
    /// Canonical, so that links which leave it show.
    folder: Option<PathBuf>,
    plan_only: bool,
    /// External files by location; `None` for one that is missing.
    maps: HashMap<String, Option<Bytes>>,
}

impl Reader {
    /// A reader of external data within `folder`.
    pub(super) fn new(folder: Option<&Path>, plan_only: bool) -> io::Result<Reader> {
        let folder = match folder {
            Some(f) if f.as_os_str().is_empty() => Some(Path::new(".").canonicalize()?),
            Some(f) => Some(f.canonicalize()?),
            None => None,
        };
        Ok(Reader { folder, plan_only, maps: HashMap::new() })
    }

    /// Type and contents of a stored tensor.
    pub(super) fn tensor(&mut self, t: &TensorProto) -> Result<(TensorType, Data), String> {
        let ty = tensor_type(t)?;
        if t.segment.is_some() {
            return Err("tensors in segments are not supported".into());
        }
        let external = tensor_proto::DataLocation::External as i32;
        let data = if t.data_location.unwrap_or_default() == external {
            match self.external(&t.external_data, ty.bytes())? {
                Some(bytes) => bytes,
                None => return Ok((ty, Data::Absent)),
            }
        } else {
            match &t.raw_data {
                Some(raw) if raw.len() as u64 == ty.bytes() => raw.clone(),
                // An empty raw_data beside typed data is what some writers leave.
                Some(raw) if !raw.is_empty() => {
                    return Err(format!(
                        "it holds {} bytes where its type {ty} takes {}",
                        raw.len(),
                        ty.bytes()
                    ));
                }
                _ => typed(t, &ty)?.into(),
            }
        };
        Ok((ty.clone(), Data::Bytes(as_stored(&ty, data))))
    }

    /// The bytes of an external tensor; `None` where the file is missing and may be.
    fn external(
        &mut self,
        entries: &[StringStringEntryProto],
        bytes: u64,
    ) -> Result<Option<Bytes>, String> {
        let get = |key: &str| {
            entries.iter().find(|e| e.key.as_deref() == Some(key)).and_then(|e| e.value.as_deref())
        };
        let number = |key: &str| {
            get(key)
                .map(|s| s.parse::<u64>().map_err(|_| format!("external {key} `{s}` is no number")))
                .transpose()
        };
        let location = get("location").ok_or("its external data has no location")?;
        let offset = number("offset")?.unwrap_or(0);
        if let Some(length) = number("length")?
            && length != bytes
        {
            return Err(format!(
                "its external data has {length} bytes where its type takes {bytes}"
            ));
        }
        if !self.maps.contains_key(location) {
            let map = self.open(location)?;
            self.maps.insert(location.to_owned(), map);
        }
        let Some(Some(map)) = self.maps.get(location) else { return Ok(None) };
        let range = offset.checked_add(bytes).filter(|&end| end <= map.len() as u64);
        if range.is_none() {
            return Err(format!(
                "it lies outside of its external file `{location}`: {bytes} bytes from {offset}, \
                 but the file has {}",
                map.len()
            ));
        }
        Ok(Some(map.slice(offset as usize..(offset + bytes) as usize)))
    }

    /// Maps an external file that lies within the model's folder.
    fn open(&self, location: &str) -> Result<Option<Bytes>, String> {
        let outside = || format!("its external data `{location}` is outside of the model's folder");
        let path = Path::new(location);
        let inside = |c| matches!(c, Component::Normal(_) | Component::CurDir);
        if location.is_empty() || location.contains('\0') || !path.components().all(inside) {
            return Err(outside());
        }
        let Some(folder) = &self.folder else {
            return if self.plan_only {
                Ok(None)
            } else {
                Err(format!("its external data `{location}` has no folder to be in"))
            };
        };
        let full = match folder.join(path).canonicalize() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return if self.plan_only {
                    Ok(None)
                } else {
                    Err(format!(
                        "its external data `{location}` is missing (--plan-only does without it)"
                    ))
                };
            }
            other => other.map_err(|e| format!("its external data `{location}`: {e}"))?,
        };
        if !full.starts_with(folder) {
            return Err(outside());
        }
        map_file(&full).map(Some).map_err(|e| format!("its external data `{location}`: {e}"))
    }
}

/// The type of a stored tensor.
fn tensor_type(t: &TensorProto) -> Result<TensorType, String> {
    let dtype = element_type(t.data_type.unwrap_or_default())?;
    shape_type(dtype, &t.dims)
}

/// A tensor type from extents that may be anything.
pub(super) fn shape_type(dtype: DType, dims: &[i64]) -> Result<TensorType, String> {
    let shape = dims
        .iter()
        .map(|&d| usize::try_from(d).map_err(|_| format!("its dimensions {dims:?} are negative")))
        .collect::<Result<Vec<_>, _>>()?;
    let ty = TensorType::new(dtype, shape);
    if ty.rank() > MAX_RANK {
        return Err(format!("rank {} is above {MAX_RANK}", ty.rank()));
    }
    if ty.checked_bytes().is_none() {
        return Err(format!("a tensor of type {ty} is too large"));
    }
    Ok(ty)
}

/// The contents of the field that `dtype` is stored in when it is not raw.
fn typed(t: &TensorProto, ty: &TensorType) -> Result<Vec<u8>, String> {
    let count = match ty.dtype {
        DType::F32 => t.float_data.len(),
        DType::F64 => t.double_data.len(),
        DType::I64 => t.int64_data.len(),
        DType::U64 | DType::U32 => t.uint64_data.len(),
        _ => t.int32_data.len(),
    };
    if count != ty.elements() {
        return Err(format!(
            "it holds {count} elements where its type {ty} takes {}",
            ty.elements()
        ));
    }
    fn narrow<T: Copy, U: TryFrom<T>, const N: usize>(
        from: &[T],
        bytes: impl Fn(U) -> [u8; N],
    ) -> Result<Vec<u8>, String> {
        let mut out = Vec::with_capacity(from.len() * N);
        for &x in from {
            let x = U::try_from(x).map_err(|_| "an element is out of its type's range")?;
            out.extend(bytes(x));
        }
        Ok(out)
    }
    match ty.dtype {
        DType::F32 => narrow(&t.float_data, f32::to_le_bytes),
        DType::F64 => narrow(&t.double_data, f64::to_le_bytes),
        DType::I64 => narrow(&t.int64_data, i64::to_le_bytes),
        DType::U64 => narrow(&t.uint64_data, u64::to_le_bytes),
        DType::U32 => narrow(&t.uint64_data, u32::to_le_bytes),
        DType::I32 => narrow(&t.int32_data, i32::to_le_bytes),
        DType::I16 => narrow(&t.int32_data, i16::to_le_bytes),
        DType::U16 | DType::Bf16 => narrow(&t.int32_data, u16::to_le_bytes),
        DType::I8 => narrow(&t.int32_data, i8::to_le_bytes),
        DType::U8 => narrow(&t.int32_data, u8::to_le_bytes),
        DType::Bool => Ok(t.int32_data.iter().map(|&x| u8::from(x != 0)).collect()),
    }
}

/// Bools are 0 or 1 everywhere below; a file may hold other bytes for true.
pub(super) fn as_stored(ty: &TensorType, data: Bytes) -> Bytes {
    if ty.dtype == DType::Bool && data.iter().any(|&b| b > 1) {
        return data.iter().map(|&b| u8::from(b != 0)).collect();
    }
    data
}
