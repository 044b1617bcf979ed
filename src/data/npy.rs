//! The header of a `.npy` file: a magic number, a version, and a Python dictionary.

use super::error::ArrayProblem;
use arenic_ir::types::{DType, TensorType};
use std::io::{ErrorKind, Read};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest header that is read. NumPy itself refuses more than 10,000 bytes.
const MAX_HEADER: usize = 1 << 16;

/// The most axes a NumPy array can have.
pub(super) const MAX_RANK: usize = 64;

/// Reads the header; returns the array's type and the bytes consumed. The reader is left
/// at the first byte of the data.
pub(super) fn read_header(reader: &mut impl Read) -> Result<(TensorType, u64), ArrayProblem> {
    let mut start = [0u8; 8];
    fill(reader, &mut start, ArrayProblem::NotNpy)?;
    if !start.starts_with(MAGIC) {
        return Err(ArrayProblem::NotNpy);
    }
    let cut = || ArrayProblem::Header("it ends early");
    let (len, prefix) = match (start[6], start[7]) {
        (1, 0) => {
            let mut len = [0u8; 2];
            fill(reader, &mut len, cut())?;
            (usize::from(u16::from_le_bytes(len)), 10)
        }
        (2 | 3, 0) => {
            let mut len = [0u8; 4];
            fill(reader, &mut len, cut())?;
            (usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX), 12)
        }
        (major, minor) => return Err(ArrayProblem::Version(major, minor)),
    };
    if len > MAX_HEADER {
        return Err(ArrayProblem::Header("it is longer than 65536 bytes"));
    }
    let mut text = vec![0u8; len];
    fill(reader, &mut text, cut())?;
    Ok((Parser { text: &text }.dictionary()?, (prefix + len) as u64))
}

fn fill(reader: &mut impl Read, buf: &mut [u8], cut: ArrayProblem) -> Result<(), ArrayProblem> {
    reader.read_exact(buf).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => cut,
        _ => ArrayProblem::Unreadable(e.to_string()),
    })
}

/// The header NumPy would write: version 1, padded so that the data starts at a multiple of
/// 64. `shape` must have at most [`MAX_RANK`] axes.
pub(super) fn write_header(dtype: DType, shape: &[usize]) -> Vec<u8> {
    let descr = match dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::U16 => "<u2",
        DType::I16 => "<i2",
        DType::U32 => "<u4",
        DType::I32 => "<i4",
        DType::U64 => "<u8",
        DType::I64 => "<i8",
        // NumPy has none; ml_dtypes writes two bytes without a meaning.
        DType::Bf16 => "|V2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
    };
    // The comma after each extent makes a tuple of a single one.
    let extents: String = shape.iter().map(|d| format!("{d}, ")).collect();
    let mut text =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", extents.trim());
    let len = (10 + text.len() + 1).next_multiple_of(64) - 10;
    while text.len() + 1 < len {
        text.push(' ');
    }
    text.push('\n');
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    header.extend((len as u16).to_le_bytes());
    header.extend(text.as_bytes());
    header
}

/// A parser for the literals that occur in headers: strings, truth values, tuples of
/// integers. It has no recursion, so that no input can exhaust the stack.
struct Parser<'a> {
    text: &'a [u8],
}

impl<'a> Parser<'a> {
    fn dictionary(mut self) -> Result<TensorType, ArrayProblem> {
        let (mut dtype, mut fortran, mut shape) = (None, None, None);
        self.expect(b'{', "it does not start with {")?;
        while !self.eat(b'}') {
            let key = self.string().ok_or(ArrayProblem::Header("a key is not a string"))?;
            self.expect(b':', "a key without a value")?;
            let repeated = match key {
                b"descr" => dtype.replace(self.dtype()?).is_some(),
                b"fortran_order" => fortran.replace(self.truth()?).is_some(),
                b"shape" => shape.replace(self.tuple()?).is_some(),
                _ => return Err(ArrayProblem::Header("an unknown key")),
            };
            if repeated {
                return Err(ArrayProblem::Header("a key occurs twice"));
            }
            if !self.eat(b',') {
                self.expect(b'}', "it does not end with }")?;
                break;
            }
        }
        self.skip_space();
        if !self.text.is_empty() {
            return Err(ArrayProblem::Header("text after the dictionary"));
        }
        let (Some(dtype), Some(fortran), Some(shape)) = (dtype, fortran, shape) else {
            return Err(ArrayProblem::Header("descr, fortran_order or shape is missing"));
        };
        let ty = TensorType::new(dtype, shape);
        if ty.checked_bytes().is_none() {
            return Err(ArrayProblem::TooLarge(ty.shape));
        }
        // With one extent above 1 both orders are the same.
        let order_matters = ty.bytes() > 0 && ty.shape.iter().filter(|&&d| d > 1).count() > 1;
        if fortran && order_matters {
            return Err(ArrayProblem::Fortran(ty));
        }
        Ok(ty)
    }

    fn skip_space(&mut self) {
        self.text = self.text.trim_ascii_start();
    }

    fn eat(&mut self, byte: u8) -> bool {
        self.skip_space();
        let rest = self.text.strip_prefix(&[byte]);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    fn expect(&mut self, byte: u8, otherwise: &'static str) -> Result<(), ArrayProblem> {
        if self.eat(byte) { Ok(()) } else { Err(ArrayProblem::Header(otherwise)) }
    }

    /// Takes bytes while they satisfy `wanted`.
    fn take(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.text.iter().position(|&b| !wanted(b)).unwrap_or(self.text.len());
        let (taken, rest) = self.text.split_at(end);
        self.text = rest;
        taken
    }

    /// A string without escapes; none of the keys and types that are understood has one.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.skip_space();
        let (&quote, rest) = self.text.split_first().filter(|(b, _)| matches!(b, b'\'' | b'"'))?;
        self.text = rest;
        let content = self.take(|b| b != quote);
        self.eat(quote).then_some(content)
    }

    fn dtype(&mut self) -> Result<DType, ArrayProblem> {
        self.skip_space();
        if matches!(self.text.first(), Some(b'[' | b'(')) {
            return Err(ArrayProblem::DType("with named fields".to_owned()));
        }
        let descr = self.string().ok_or(ArrayProblem::Header("descr is not a string"))?;
        let (order, code) = match descr.split_first() {
            Some((&order @ (b'<' | b'>' | b'|' | b'='), code)) => (order, code),
            _ => (b'=', descr),
        };
        let dtype = match code {
            b"?" | b"b1" => DType::Bool,
            b"u1" => DType::U8,
            b"i1" => DType::I8,
            b"u2" => DType::U16,
            b"i2" => DType::I16,
            b"u4" => DType::U32,
            b"i4" => DType::I32,
            b"u8" => DType::U64,
            b"i8" => DType::I64,
            b"V2" => DType::Bf16,
            b"f4" => DType::F32,
            b"f8" => DType::F64,
            _ => return Err(unsupported(descr)),
        };
        if order == b'>' && dtype.size() > 1 { Err(unsupported(descr)) } else { Ok(dtype) }
    }

    fn truth(&mut self) -> Result<bool, ArrayProblem> {
        self.skip_space();
        match self.take(|b| b.is_ascii_alphabetic()) {
            b"True" => Ok(true),
            b"False" => Ok(false),
            _ => Err(ArrayProblem::Header("fortran_order is neither True nor False")),
        }
    }

    fn tuple(&mut self) -> Result<Vec<usize>, ArrayProblem> {
        let mut shape = Vec::new();
        self.expect(b'(', "the shape is not a tuple")?;
        while !self.eat(b')') {
            self.skip_space();
            let digits = self.take(|b| b.is_ascii_digit());
            let extent = std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok());
            shape.push(extent.ok_or(ArrayProblem::Header("an extent is not a number"))?);
            // Python 2 marked long integers.
            self.eat(b'L');
            if shape.len() > MAX_RANK {
                return Err(ArrayProblem::Header("more than 64 axes"));
            }
            if !self.eat(b',') {
                self.expect(b')', "the shape is not a tuple")?;
                break;
            }
        }
        Ok(shape)
    }
}

/// Names an element type in words where its code says little.
fn unsupported(descr: &[u8]) -> ArrayProblem {
    let code = String::from_utf8_lossy(&descr[..descr.len().min(32)]).escape_debug().to_string();
    let kind = match descr.iter().find(|b| b.is_ascii_alphabetic()) {
        _ if descr.starts_with(b">") => " (big-endian)",
        Some(b'O') => " (Python objects)",
        Some(b'U' | b'S') => " (text)",
        Some(b'f') if descr.ends_with(b"f2") => " (float16)",
        Some(b'c') => " (complex)",
        _ => "",
    };
    ArrayProblem::DType(format!("{code}{kind}"))
}
