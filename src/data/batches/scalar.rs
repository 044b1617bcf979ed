//! The values of `--set NAME=VALUE`.

use arenic_ir::types::{DType, bf16};
use std::str::FromStr;

/// The little-endian bytes of `text` as one element, or why it is none.
pub(crate) fn parse(dtype: DType, text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim();
    match dtype {
        DType::Bool => match text {
            "true" | "1" => Ok(vec![1]),
            "false" | "0" => Ok(vec![0]),
            _ => Err("takes true, false, 1 or 0".to_owned()),
        },
        DType::U8 => int(text, u8::to_le_bytes, u8::MIN, u8::MAX),
        DType::I8 => int(text, i8::to_le_bytes, i8::MIN, i8::MAX),
        DType::U16 => int(text, u16::to_le_bytes, u16::MIN, u16::MAX),
        DType::I16 => int(text, i16::to_le_bytes, i16::MIN, i16::MAX),
        DType::U32 => int(text, u32::to_le_bytes, u32::MIN, u32::MAX),
        DType::I32 => int(text, i32::to_le_bytes, i32::MIN, i32::MAX),
        DType::U64 => int(text, u64::to_le_bytes, u64::MIN, u64::MAX),
        DType::I64 => int(text, i64::to_le_bytes, i64::MIN, i64::MAX),
        DType::Bf16 => {
            let bytes = |x: f32| bf16::from_f32(x).to_le_bytes();
            float(text, bytes, |x: f32| bf16::round(x).is_infinite())
        }
        DType::F32 => float(text, f32::to_le_bytes, f32::is_infinite),
        DType::F64 => float(text, f64::to_le_bytes, f64::is_infinite),
    }
}

fn int<T: FromStr + ToString + Copy, const N: usize>(
    text: &str,
    bytes: fn(T) -> [u8; N],
    min: T,
    max: T,
) -> Result<Vec<u8>, String> {
    let value = text.parse().map(|v| bytes(v).to_vec());
    value.map_err(|_| format!("takes an integer from {} to {}", min.to_string(), max.to_string()))
}

fn float<T: FromStr + Copy, const N: usize>(
    text: &str,
    bytes: fn(T) -> [u8; N],
    infinite: fn(T) -> bool,
) -> Result<Vec<u8>, String> {
    let value = text.parse::<T>().map_err(|_| "takes a number such as 0.1 or 1e-3".to_owned())?;
    // Infinity may be written, but a number must not overflow to it.
    if infinite(value) && text.bytes().any(|b| b.is_ascii_digit()) {
        return Err("cannot hold a number so large".to_owned());
    }
    Ok(bytes(value).to_vec())
}
