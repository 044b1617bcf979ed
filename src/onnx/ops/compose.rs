//! Arithmetic on values, for operators that become several of the graph's.

use crate::onnx::context::Cx;
use crate::onnx::error::Fault;
use arenic_ir::op::{Binary, Reduction, Unary};
use arenic_ir::{DType, Op, TensorType, ValueId};

/// A value, or why it could not be made.
pub(super) type Made = Result<ValueId, Fault>;

impl Cx<'_, '_> {
    /// `f(x)`.
    pub(super) fn map(&mut self, f: Unary, x: ValueId) -> Made {
        self.emit1(Op::Unary { f }, vec![x])
    }

    /// `f(a, b)`.
    pub(super) fn both(&mut self, f: Binary, a: ValueId, b: ValueId) -> Made {
        self.emit1(Op::Binary { f }, vec![a, b])
    }

    pub(super) fn add(&mut self, a: ValueId, b: ValueId) -> Made {
        self.both(Binary::Add, a, b)
    }

    pub(super) fn sub(&mut self, a: ValueId, b: ValueId) -> Made {
        self.both(Binary::Sub, a, b)
    }

    pub(super) fn mul(&mut self, a: ValueId, b: ValueId) -> Made {
        self.both(Binary::Mul, a, b)
    }

    pub(super) fn div(&mut self, a: ValueId, b: ValueId) -> Made {
        self.both(Binary::Div, a, b)
    }

    /// `f(x, number)`.
    pub(super) fn with(&mut self, f: Binary, x: ValueId, number: f64) -> Made {
        let dtype = self.ty(x).dtype;
        let number = self.scalar(dtype, number);
        self.both(f, x, number)
    }

    /// `x + number`.
    pub(super) fn plus(&mut self, x: ValueId, number: f64) -> Made {
        self.with(Binary::Add, x, number)
    }

    /// `x · number`.
    pub(super) fn times(&mut self, x: ValueId, number: f64) -> Made {
        self.with(Binary::Mul, x, number)
    }

    /// `number − x`.
    pub(super) fn number_minus(&mut self, number: f64, x: ValueId) -> Made {
        let dtype = self.ty(x).dtype;
        let number = self.scalar(dtype, number);
        self.sub(number, x)
    }

    /// `condition ? a : b`.
    pub(super) fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Made {
        self.emit1(Op::Where, vec![condition, a, b])
    }

    /// `√x` of a sum of squares, as norms have it: its gradient at zero, where the root has none,
    /// is zero.
    pub(super) fn norm_of(&mut self, x: ValueId) -> Made {
        let dtype = self.ty(x).dtype;
        let zero = self.scalar(dtype, 0.0);
        let is_zero = self.both(Binary::Equal, x, zero)?;
        let root = self.map(Unary::Sqrt, x)?;
        self.select(is_zero, zero, root)
    }

    /// Reduces axes, which stay with extent 1.
    pub(super) fn reduced(&mut self, f: Reduction, x: ValueId, axes: &[usize]) -> Made {
        self.emit1(Op::Reduce { f, axes: axes.to_vec(), keep: true }, vec![x])
    }

    /// Reduces axes, which go.
    pub(super) fn without(&mut self, f: Reduction, x: ValueId, axes: &[usize]) -> Made {
        self.emit1(Op::Reduce { f, axes: axes.to_vec(), keep: false }, vec![x])
    }

    /// A tensor that holds one number.
    pub(super) fn filled(&mut self, dtype: DType, shape: &[usize], number: f64) -> Made {
        let number = self.scalar(dtype, number);
        self.emit1(Op::Expand { shape: shape.to_vec() }, vec![number])
    }

    pub(super) fn zeros(&mut self, ty: &TensorType) -> Made {
        self.filled(ty.dtype, &ty.shape, 0.0)
    }

    /// A value without axes, of a tensor with one element.
    pub(super) fn as_scalar(&mut self, x: ValueId) -> Made {
        match self.ty(x) {
            ty if ty.rank() == 0 => Ok(x),
            ty if ty.elements() == 1 => self.reshape(x, vec![]),
            ty => Err(Fault(format!("{ty} is no scalar"))),
        }
    }

    /// The axes in another order; the value itself where that is its own.
    pub(super) fn transposed(&mut self, x: ValueId, perm: Vec<usize>) -> Made {
        if perm.iter().copied().eq(0..self.ty(x).rank()) {
            return Ok(x);
        }
        self.emit1(Op::Transpose { perm }, vec![x])
    }
}
