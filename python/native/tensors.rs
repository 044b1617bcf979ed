//! Tensors that Python gives.

use crate::errors::DataError;
use arenic::Tensor;
use arenic_ir::DType;
use arenic_ir::types::TensorType;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// Tensors of `(dtype, shape, bytes)`, by name.
pub(crate) fn tensors(
    given: BTreeMap<String, (String, Vec<usize>, Vec<u8>)>,
) -> PyResult<BTreeMap<String, Tensor>> {
    let tensor = |(name, (dtype, shape, bytes)): (String, (String, Vec<usize>, Vec<u8>))| {
        let known = DType::ALL.into_iter().find(|d| d.name() == dtype);
        let tensor = known
            .and_then(|dtype| Tensor::from_bytes(TensorType::new(dtype, shape.clone()), bytes));
        let refused = || DataError::new_err(format!("`{name}` is no tensor of {dtype}{shape:?}"));
        let tensor = tensor.ok_or_else(refused)?;
        Ok((name, tensor))
    };
    given.into_iter().map(tensor).collect()
}
