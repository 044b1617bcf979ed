//! Elements of constants in text.

use super::lexer::Lexer;
use super::{INLINE_ELEMENTS, TextError};
use crate::graph::Data;
use crate::types::{DType, TensorType, bf16};
use bytes::Bytes;
use std::fmt;

/// Writes `[1, 2]`, or `...` for data that is absent or long.
pub(super) fn write(f: &mut fmt::Formatter<'_>, ty: &TensorType, data: &Data) -> fmt::Result {
    let Some(bytes) = data.bytes().filter(|_| ty.elements() <= INLINE_ELEMENTS) else {
        return f.write_str("...");
    };
    f.write_str("[")?;
    for (i, element) in bytes.chunks_exact(ty.dtype.size() as usize).enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        write_element(f, ty.dtype, element)?;
    }
    f.write_str("]")
}

fn low_bits(element: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(wide)
}

fn write_element(f: &mut fmt::Formatter<'_>, dtype: DType, element: &[u8]) -> fmt::Result {
    let bits = low_bits(element);
    match dtype {
        DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 => write!(f, "{bits}"),
        DType::I8 => write!(f, "{}", bits as i8),
        DType::I16 => write!(f, "{}", bits as i16),
        DType::I32 => write!(f, "{}", bits as i32),
        DType::I64 => write!(f, "{}", bits as i64),
        DType::Bf16 => {
            let x = bf16::to_f32(bits as u16);
            if x.is_nan() { write!(f, "{bits:#x}") } else { write!(f, "{x:?}") }
        }
        DType::F32 => {
            let x = f32::from_bits(bits as u32);
            // A NaN's payload is part of the data.
            if x.is_nan() { write!(f, "{bits:#x}") } else { write!(f, "{x:?}") }
        }
        DType::F64 => {
            let x = f64::from_bits(bits);
            if x.is_nan() { write!(f, "{bits:#x}") } else { write!(f, "{x:?}") }
        }
    }
}

fn parse_element(dtype: DType, text: &str) -> Option<u64> {
    let hex = || text.strip_prefix("0x").and_then(|h| u64::from_str_radix(h, 16).ok());
    Some(match dtype {
        DType::Bool => text.parse::<u8>().ok().filter(|&b| b < 2)?.into(),
        DType::U8 => text.parse::<u8>().ok()?.into(),
        DType::U16 => text.parse::<u16>().ok()?.into(),
        DType::U32 => text.parse::<u32>().ok()?.into(),
        DType::U64 => text.parse().ok()?,
        DType::I8 => text.parse::<i8>().ok()? as u64,
        DType::I16 => text.parse::<i16>().ok()? as u64,
        DType::I32 => text.parse::<i32>().ok()? as u64,
        DType::I64 => text.parse::<i64>().ok()? as u64,
        DType::Bf16 => match hex() {
            Some(bits) => u16::try_from(bits).ok()?.into(),
            None => bf16::from_f32(text.parse::<f32>().ok()?).into(),
        },
        DType::F32 => match hex() {
            Some(bits) => u32::try_from(bits).ok()?.into(),
            None => text.parse::<f32>().ok()?.to_bits().into(),
        },
        DType::F64 => match hex() {
            Some(bits) => bits,
            None => text.parse::<f64>().ok()?.to_bits(),
        },
    })
}

/// Reads what [`write`] wrote.
pub(super) fn parse(lexer: &mut Lexer, ty: &TensorType) -> Result<Data, TextError> {
    if lexer.accept("...") {
        return Ok(Data::Absent);
    }
    lexer.expect("[")?;
    let size = ty.dtype.size() as usize;
    let mut bytes = Vec::new();
    while !lexer.accept("]") {
        if !bytes.is_empty() {
            lexer.expect(",")?;
        }
        let at = lexer.position();
        let bits = parse_element(ty.dtype, lexer.element()?)
            .ok_or_else(|| lexer.error_at(at, format!("not an element of {}", ty.dtype)))?;
        bytes.extend_from_slice(&bits.to_le_bytes()[..size]);
    }
    if bytes.len() as u64 != ty.bytes() {
        return Err(lexer.error(format!("{} elements for a {ty}", bytes.len() / size)));
    }
    Ok(Data::Bytes(Bytes::from(bytes)))
}
