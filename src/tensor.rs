//! Tensors in ordinary memory.

use arenic_ir::types::{DType, TensorType};

/// A dense tensor, row-major, in memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    ty: TensorType,
    bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor of little-endian bytes; `None` if there are not as many as the type takes.
    pub fn from_bytes(ty: TensorType, bytes: Vec<u8>) -> Option<Tensor> {
        (ty.checked_bytes() == Some(bytes.len() as u64)).then_some(Tensor { ty, bytes })
    }

    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The elements' little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements, where they are of the type `f32`.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let words = self.bytes.as_chunks::<4>().0.iter();
        (self.ty.dtype == DType::F32).then(|| words.map(|b| f32::from_le_bytes(*b)).collect())
    }
}

/// What an input is fed with: elements of its own type, in its own number, or one number.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Elements.
    F32(&'a [f32]),
    /// Elements.
    F64(&'a [f64]),
    /// Elements.
    I64(&'a [i64]),
    /// Elements.
    I32(&'a [i32]),
    /// For an input of one element of any type.
    Number(f64),
}

macro_rules! from_slices {
    ($($variant:ident($ty:ty)),*) => {
        $(impl<'a> From<&'a [$ty]> for Input<'a> {
            fn from(elements: &'a [$ty]) -> Self {
                Input::$variant(elements)
            }
        })*

        impl Input<'_> {
            /// The type of elements, and how many; `None` for a number.
            pub(crate) fn elements(&self) -> Option<(DType, usize)> {
                match self {
                    $(Input::$variant(elements) => Some((DType::$variant, elements.len())),)*
                    Input::Number(_) => None,
                }
            }

            /// Writes elements, of which there must be as many as `to` holds.
            pub(crate) fn write(&self, to: &mut [u8]) {
                match self {
                    $(Input::$variant(elements) => {
                        let words = to.as_chunks_mut::<{ size_of::<$ty>() }>().0;
                        words.iter_mut().zip(*elements).for_each(|(to, x)| *to = x.to_le_bytes());
                    })*
                    Input::Number(_) => {}
                }
            }
        }
    };
}

from_slices!(F32(f32), F64(f64), I64(i64), I32(i32));

impl From<f64> for Input<'_> {
    fn from(x: f64) -> Self {
        Input::Number(x)
    }
}
