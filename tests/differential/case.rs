//! The folder that `generate.py` writes.

use arenic_ir::{DType, TensorType};
use bytes::Bytes;
use serde::Deserialize;
use std::path::Path;

/// All cases of a folder.
pub(crate) struct Suite {
    /// Every row that there is a generator for, in `domain.name` form.
    pub(crate) rows: Vec<String>,
    pub(crate) cases: Vec<Case>,
    data: Bytes,
}

/// A part of the data: where it begins, and its length.
type Place = (usize, usize);

#[derive(Deserialize)]
struct Index {
    rows: Vec<String>,
    cases: Vec<Case>,
}

/// A random node with its operands and what is right.
#[derive(Clone, Deserialize)]
pub(crate) struct Case {
    /// The row of the importer's table.
    pub(crate) row: String,
    pub(crate) seed: u64,
    /// Its gradient is tried, too.
    pub(crate) gradient: bool,
    model: Place,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Output>,
}

/// An operand.
#[derive(Clone, Deserialize)]
pub(crate) struct Input {
    pub(crate) name: String,
    #[serde(rename = "type")]
    dtype: DType,
    shape: Vec<usize>,
    at: Place,
    /// Known when the model is compiled.
    pub(crate) fixed: bool,
    /// Differentiated by.
    pub(crate) trained: bool,
}

/// A result and what it should be.
#[derive(Clone, Deserialize)]
pub(crate) struct Output {
    pub(crate) name: String,
    #[serde(rename = "type")]
    dtype: DType,
    shape: Vec<usize>,
    at: Place,
    /// Of floats: how far each element may be from what is right.
    tolerance: Option<Place>,
}

/// What a result should be.
pub(crate) enum Right {
    /// Doubles, and how far each element may be from them.
    Near(Vec<f64>, Vec<f64>),
    /// These very bytes.
    Exactly(Bytes),
}

impl Suite {
    /// Reads a folder; `None` where there is none.
    pub(crate) fn read(folder: &Path) -> Result<Option<Suite>, String> {
        let index = folder.join("index.json");
        if !index.exists() {
            return Ok(None);
        }
        let read =
            |path: &Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let Index { rows, cases } =
            serde_json::from_slice(&read(&index)?).map_err(|e| e.to_string())?;
        let data = read(&folder.join("cases.bin"))?.into();
        Ok(Some(Suite { rows, cases, data }))
    }

    fn part(&self, (first, length): Place) -> Bytes {
        self.data.slice(first..first + length)
    }

    fn doubles(&self, at: Place) -> Vec<f64> {
        self.part(at).as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect()
    }

    /// The encoded model of a case.
    pub(crate) fn model(&self, case: &Case) -> Bytes {
        self.part(case.model)
    }

    /// Type and contents of an operand.
    pub(crate) fn operand(&self, input: &Input) -> (TensorType, Vec<u8>) {
        (TensorType::new(input.dtype, input.shape.clone()), self.part(input.at).to_vec())
    }

    /// Type and contents of a result.
    pub(crate) fn right(&self, output: &Output) -> (TensorType, Right) {
        let ty = TensorType::new(output.dtype, output.shape.clone());
        let right = match output.tolerance {
            Some(tolerance) => Right::Near(self.doubles(output.at), self.doubles(tolerance)),
            None => Right::Exactly(self.part(output.at)),
        };
        (ty, right)
    }
}
