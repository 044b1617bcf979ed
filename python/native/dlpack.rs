//! Tensors in a GPU's memory, as DLPack describes them (<https://dmlc.github.io/dlpack/latest/c_api.html>).

use arenic_ir::DType;
use arenic_ir::types::TensorType;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{CStr, c_void};

/// The name of a capsule that nobody has taken the tensor out of.
const NAME: &CStr = c"dltensor";

/// `kDLCUDA` and `kDLCUDAManaged`.
const CUDA: [i32; 2] = [2, 13];

/// `DLTensor`, with which `DLManagedTensor` begins.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device: i32,
    axes: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    /// In elements; null where the tensor is dense.
    strides: *const i64,
    byte_offset: u64,
}

/// A tensor of a GPU.
pub(crate) struct OnGpu {
    /// The GPU's number.
    pub(crate) gpu: u32,
    /// Its first byte.
    pub(crate) address: u64,
    pub(crate) ty: TensorType,
}

/// The tensor of a capsule; `None` if it is not dense, lies elsewhere, or has other elements than ours. The capsule
/// keeps it: the tensor is there as long as the capsule is.
pub(crate) fn on_gpu(capsule: &Bound<'_, PyCapsule>) -> PyResult<Option<OnGpu>> {
    let pointer = capsule.pointer_checked(Some(NAME))?.cast::<DlTensor>();
    // SAFETY: a capsule of this name has a `DLManagedTensor`, whose first field this is.
    let x = unsafe { pointer.as_ref() };
    let axes = usize::try_from(x.axes).unwrap_or(0);
    let sizes = |of: *const i64| match of.is_null() || axes == 0 {
        true => Vec::new(),
        // SAFETY: there is a number for each axis.
        false => unsafe { std::slice::from_raw_parts(of, axes) }.to_vec(),
    };
    let shape: Option<Vec<usize>> =
        sizes(x.shape).into_iter().map(|size| usize::try_from(size).ok()).collect();
    let (Some(shape), Some(dtype)) = (shape, dtype(x.code, x.bits, x.lanes)) else {
        return Ok(None);
    };
    let (Ok(gpu), true) = (u32::try_from(x.device), CUDA.contains(&x.device_type)) else {
        return Ok(None);
    };
    let is_dense = x.strides.is_null() || is_dense(&shape, &sizes(x.strides));
    let address = x.data.addr() as u64 + x.byte_offset;
    let ty = TensorType::new(dtype, shape);
    Ok(is_dense.then_some(OnGpu { gpu, address, ty }))
}

/// True where elements follow each other in the order of their indices.
fn is_dense(shape: &[usize], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        expected *= size as i64;
        fits
    })
}

/// An element type by `DLDataType`.
fn dtype(code: u8, bits: u8, lanes: u16) -> Option<DType> {
    Some(match (code, bits, lanes) {
        (0, 8, 1) => DType::I8,
        (0, 16, 1) => DType::I16,
        (0, 32, 1) => DType::I32,
        (0, 64, 1) => DType::I64,
        (1, 8, 1) => DType::U8,
        (1, 16, 1) => DType::U16,
        (1, 32, 1) => DType::U32,
        (1, 64, 1) => DType::U64,
        (2, 32, 1) => DType::F32,
        (2, 64, 1) => DType::F64,
        (4, 16, 1) => DType::Bf16,
        (6, 8, 1) => DType::Bool,
        _ => return None,
    })
}
