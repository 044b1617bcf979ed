//! Element types and tensor types.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// The upper half of an `F32`: 8 bits of precision. See [`bf16`].
    Bf16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [DType; 12] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::U16,
        DType::I16,
        DType::U32,
        DType::I32,
        DType::U64,
        DType::I64,
        DType::Bf16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes of one element.
    pub fn size(self) -> u64 {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::U16 | DType::I16 | DType::Bf16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 => 8,
        }
    }

    /// True for the floating-point types.
    pub fn is_float(self) -> bool {
        matches!(self, DType::Bf16 | DType::F32 | DType::F64)
    }

    /// The type of sums of such elements and of statistics over them, and in which arithmetic on
    /// them is done: `F32` for `Bf16`, else the type itself.
    pub fn accumulated(self) -> DType {
        if self == DType::Bf16 { DType::F32 } else { self }
    }

    /// True for every integer type; `Bool` is none.
    pub fn is_int(self) -> bool {
        !self.is_float() && self != DType::Bool
    }

    /// The name in the text form, for example `f32`.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::U16 => "u16",
            DType::I16 => "i16",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::U64 => "u64",
            DType::I64 => "i64",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }

    /// The inverse of [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

/// Conversions of [`DType::Bf16`], an element of which is a `u16`.
pub mod bf16 {
    /// The nearest one; of two that are as near the one whose last bit is 0. NaN stays NaN.
    #[inline(always)]
    pub fn from_f32(x: f32) -> u16 {
        let bits = x.to_bits();
        // Half of the last place, less one bit where the last place is even.
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        // The payload's upper bits; quiet, so that none of it is an infinity.
        let nan = bits | 0x0040_0000;
        // A choice without a branch, for the sake of vectors.
        ((if x.is_nan() { nan } else { nearest }) >> 16) as u16
    }

    /// The same number.
    #[inline(always)]
    pub fn to_f32(x: u16) -> f32 {
        f32::from_bits(u32::from(x) << 16)
    }

    /// The nearest number that a `bf16` holds.
    #[inline(always)]
    pub fn round(x: f32) -> f32 {
        to_f32(from_f32(x))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The most bytes one tensor may have. Sums of thousands of them still fit an `i64`.
pub const MAX_TENSOR_BYTES: u64 = 1 << 48;

/// The largest product of the extents other than zero of a tensor without elements. Kernels
/// loop over such extents, and no memory bounds them.
pub const MAX_EMPTY_EXTENTS: u64 = 1 << 26;

/// Element type and static shape of a tensor; dense, row-major.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// A tensor type.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        TensorType { dtype, shape: shape.into() }
    }

    /// The type of a scalar.
    pub fn scalar(dtype: DType) -> Self {
        TensorType { dtype, shape: Vec::new() }
    }

    /// The type with another extent along an axis.
    pub fn with_extent(&self, axis: usize, extent: usize) -> Self {
        let mut ty = self.clone();
        ty.shape[axis] = extent;
        ty
    }

    /// The type with [`DType::accumulated`] elements.
    pub fn accumulated(&self) -> Self {
        TensorType { dtype: self.dtype.accumulated(), shape: self.shape.clone() }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Bytes of the tensor, or `None` when above [`MAX_TENSOR_BYTES`], or without elements
    /// and above [`MAX_EMPTY_EXTENTS`].
    ///
    /// Where this is `Some`, no product of some of the extents overflows.
    pub fn checked_bytes(&self) -> Option<u64> {
        let mut extents = self.shape.iter().filter(|&&d| d != 0);
        let product = extents.try_fold(1u64, |n, &d| n.checked_mul(d as u64))?;
        if self.shape.contains(&0) {
            return (product <= MAX_EMPTY_EXTENTS).then_some(0);
        }
        product.checked_mul(self.dtype.size()).filter(|&n| n <= MAX_TENSOR_BYTES)
    }

    /// Bytes of the tensor; exact for every type a verified graph holds.
    pub fn bytes(&self) -> u64 {
        self.checked_bytes().unwrap_or(MAX_TENSOR_BYTES)
    }

    /// Number of elements; exact for every type a verified graph holds.
    pub fn elements(&self) -> usize {
        (self.bytes() / self.dtype.size()) as usize
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.shape.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}

/// Row-major strides, in elements, of a dense tensor of this shape.
pub fn dense_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
    }
    strides
}

/// The shape two operands broadcast to (NumPy's rule), or `None` where they do not.
pub fn broadcast_shapes(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let extent = |s: &[usize], i: usize| {
        let pad = rank - s.len();
        if i < pad { 1 } else { s[i - pad] }
    };
    (0..rank)
        .map(|i| match (extent(a, i), extent(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

/// True where some of these is of `bf16`.
pub fn has_bf16(mut types: impl Iterator<Item = DType>) -> bool {
    types.any(|d| d == DType::Bf16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_exact_or_refused() {
        assert_eq!(TensorType::new(DType::F32, [2, 3]).bytes(), 24);
        assert_eq!(TensorType::scalar(DType::I64).bytes(), 8);
        assert_eq!(TensorType::new(DType::F32, [1 << 26, 0]).checked_bytes(), Some(0));
        assert_eq!(TensorType::new(DType::F32, [1 << 26, 0, 2]).checked_bytes(), None);
        assert_eq!(TensorType::new(DType::F32, [usize::MAX, 0]).checked_bytes(), None);
        assert_eq!(TensorType::new(DType::F32, [usize::MAX, 2]).checked_bytes(), None);
    }

    #[test]
    fn bf16_rounds_to_the_nearest_and_ties_to_even() {
        let round = |bits: u32| bf16::from_f32(f32::from_bits(bits));
        for (bits, expected) in [
            (0x3f80_0000, 0x3f80),
            (0x3f80_7fff, 0x3f80),
            (0x3f80_8000, 0x3f80),
            (0x3f80_8001, 0x3f81),
            (0x3f81_8000, 0x3f82),
            (0xbf81_7fff, 0xbf81),
            (0x8000_0000, 0x8000),
            (0x0000_8001, 0x0001),
            (0x7f7f_ffff, 0x7f80),
            (0x7f80_0000, 0x7f80),
            (0xff80_0000, 0xff80),
        ] {
            assert_eq!(round(bits), expected, "{bits:#x}");
        }
        for nan in [0x7f80_0001, 0xffff_ffff, 0x7fc0_0000] {
            assert!(bf16::to_f32(round(nan)).is_nan(), "{nan:#x}");
        }
        for bits in 0..=u16::MAX {
            let x = bf16::to_f32(bits);
            assert!(x.is_nan() || bf16::from_f32(x) == bits, "{bits:#x}");
        }
    }

    #[test]
    fn broadcast_follows_numpy() {
        assert_eq!(broadcast_shapes(&[2, 1], &[3]), Some(vec![2, 3]));
        assert_eq!(broadcast_shapes(&[], &[4]), Some(vec![4]));
        assert_eq!(broadcast_shapes(&[0], &[1]), Some(vec![0]));
        assert_eq!(broadcast_shapes(&[2], &[3]), None);
    }
}
