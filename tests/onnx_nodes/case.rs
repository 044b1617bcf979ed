//! The folder that `generate.py` writes.

use arenic::onnx::proto::{GraphProto, ModelProto, TensorProto, tensor_proto::DataType};
use arenic_ir::{DType, TensorType};
use bytes::Bytes;
use prost::Message;
use serde_json::Value;
use std::path::Path;

/// One node test.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) rtol: f64,
    pub(crate) atol: f64,
    /// The model, encoded and not.
    pub(crate) bytes: Bytes,
    pub(crate) model: ModelProto,
    /// Values of the model's inputs, then of its outputs; empty if some are no tensors.
    tensors: Vec<TensorProto>,
    /// What kinds of values there are besides tensors.
    pub(crate) other_values: Vec<String>,
}

/// A value of a test.
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) bytes: Vec<u8>,
}

/// All tests of a folder, and the version of onnx that they come from.
pub(crate) struct Suite {
    pub(crate) onnx: String,
    pub(crate) cases: Vec<Case>,
}

impl Suite {
    /// Reads a folder; `None` where there is none.
    pub(crate) fn read(folder: &Path) -> Result<Option<Suite>, String> {
        let path = folder.join("index.json");
        if !path.exists() {
            return Ok(None);
        }
        let index: Value = serde_json::from_slice(&read(&path)?).map_err(|e| e.to_string())?;
        let onnx = index["onnx"].as_str().ok_or("the index has no version")?.to_owned();
        let entries = index["tests"].as_array().ok_or("the index has no tests")?;
        let cases = entries.iter().map(|e| Case::read(folder, e)).collect::<Result<_, _>>()?;
        Ok(Some(Suite { onnx, cases }))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

impl Case {
    fn read(folder: &Path, entry: &Value) -> Result<Case, String> {
        let name = entry["name"].as_str().ok_or("a test without a name")?.to_owned();
        let number = |key: &str| entry[key].as_f64().ok_or(format!("{name}: no {key}"));
        let other_values: Vec<String> = entry["other_values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|kind| kind.as_str().map(str::to_owned))
            .collect();
        let folder = folder.join(&name);
        let bytes = Bytes::from(read(&folder.join("model.onnx"))?);
        let model = ModelProto::decode(bytes.clone()).map_err(|e| e.to_string())?;
        let tensors = if other_values.is_empty() {
            let data = read(&folder.join("tensors.pb"))?;
            GraphProto::decode(&*data).map_err(|e| e.to_string())?.initializer
        } else {
            Vec::new()
        };
        let (rtol, atol) = (number("rtol")?, number("atol")?);
        Ok(Case { name, rtol, atol, bytes, model, tensors, other_values })
    }

    pub(crate) fn graph(&self) -> &GraphProto {
        self.model.graph.as_ref().expect("onnx writes graphs")
    }

    /// Values of the model's inputs.
    pub(crate) fn inputs(&self) -> Result<Vec<Tensor>, String> {
        self.tensors[..self.graph().input.len()].iter().map(tensor).collect()
    }

    /// Expected values of the model's outputs.
    pub(crate) fn outputs(&self) -> Result<Vec<Tensor>, String> {
        self.tensors[self.graph().input.len()..].iter().map(tensor).collect()
    }
}

/// The element type of a code, where arenic has it.
pub(crate) fn dtype(code: i32) -> Option<DType> {
    Some(match DataType::try_from(code).ok()? {
        DataType::Bool => DType::Bool,
        DataType::Uint8 => DType::U8,
        DataType::Int8 => DType::I8,
        DataType::Uint16 => DType::U16,
        DataType::Int16 => DType::I16,
        DataType::Uint32 => DType::U32,
        DataType::Int32 => DType::I32,
        DataType::Uint64 => DType::U64,
        DataType::Int64 => DType::I64,
        DataType::Bfloat16 => DType::Bf16,
        DataType::Float => DType::F32,
        DataType::Double => DType::F64,
        _ => return None,
    })
}

fn tensor(t: &TensorProto) -> Result<Tensor, String> {
    let name = t.name.clone().unwrap_or_default();
    let dtype = dtype(t.data_type.unwrap_or_default()).ok_or("an unsupported element type")?;
    let shape: Vec<usize> = t.dims.iter().map(|&d| d as usize).collect();
    let ty = TensorType::new(dtype, shape);
    let bytes = t.raw_data.clone().unwrap_or_default().to_vec();
    if bytes.len() as u64 != ty.bytes() {
        return Err(format!("the test's `{name}` has {} bytes, but is {ty}", bytes.len()));
    }
    Ok(Tensor { name, ty, bytes })
}
