//! Elements of every type as numbers.

use arenic_ir::types::bf16;
use arenic_ir::{DType, TensorType};

/// The elements as numbers: exact for all but integers beyond 2^53, which only show up in
/// messages.
pub(crate) fn numbers(ty: &TensorType, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.chunks_exact(N).map(|c| number(c.try_into().expect("N bytes"))).collect()
    }
    match ty.dtype {
        DType::Bool | DType::U8 => each(bytes, |[b]| f64::from(b)),
        DType::I8 => each(bytes, |b| f64::from(i8::from_le_bytes(b))),
        DType::U16 => each(bytes, |b| f64::from(u16::from_le_bytes(b))),
        DType::I16 => each(bytes, |b| f64::from(i16::from_le_bytes(b))),
        DType::U32 => each(bytes, |b| f64::from(u32::from_le_bytes(b))),
        DType::I32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        DType::U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
        DType::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        DType::Bf16 => each(bytes, |b| f64::from(bf16::to_f32(u16::from_le_bytes(b)))),
        DType::F32 => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
        DType::F64 => each(bytes, f64::from_le_bytes),
    }
}
