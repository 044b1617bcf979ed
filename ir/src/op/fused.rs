//! Operators that graph passes make out of several of ONNX's: updates as one node, and
//! the cross entropy without its probabilities.

use super::Op;
use super::infer::{TypeError, ensure};
use crate::types::{DType, TensorType};

/// How [`Op::ProductUpdate`] makes the operands of its update: a gradient at one position
/// that is the product of the last two.
#[derive(Clone, Copy, Debug)]
pub struct ProductOperands {
    /// Position of the gradient among the update's operands.
    pub gradient: usize,
    /// Operands of the update besides the gradient.
    pub others: usize,
}

impl ProductOperands {
    /// The position of the update's operand `i` among the node's operands; none for the
    /// gradient.
    pub fn of_update(&self, i: usize) -> Option<usize> {
        match i.cmp(&self.gradient) {
            std::cmp::Ordering::Less => Some(i),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(i - 1),
        }
    }

    /// The update's operands, the gradient being `gradient`.
    pub fn operands<T: Copy>(&self, x: &[T], gradient: T) -> Vec<T> {
        let mut operands = x[..self.others].to_vec();
        operands.insert(self.gradient, gradient);
        operands
    }
}

/// Checks where [`Op::ProductUpdate`] finds what it needs among `count` operands.
pub(super) fn product_operands(
    update: &Op,
    gradient: usize,
    count: usize,
) -> Result<ProductOperands, TypeError> {
    ensure!(
        matches!(
            update,
            Op::Pointwise { .. } | Op::Adam { .. } | Op::Adagrad { .. } | Op::Momentum { .. }
        ),
        "{} is no update",
        update.name()
    );
    let Some(others) = count.checked_sub(2) else {
        return Err(TypeError(format!("{count} operands hold no product")));
    };
    ensure!(gradient <= others, "no operand {gradient} among {}", others + 1);
    Ok(ProductOperands { gradient, others })
}

/// Results of [`Op::ProductUpdate`].
pub(super) fn product_update(
    update: &Op,
    gradient: usize,
    (trans_a, trans_b): (bool, bool),
    x: &[&TensorType],
) -> Result<Vec<TensorType>, TypeError> {
    let operands = product_operands(update, gradient, x.len())?;
    let (a, b) = (x[operands.others], x[operands.others + 1]);
    ensure!(
        a.rank() == 2 && b.rank() == 2 && a.dtype.is_float(),
        "product_update of {a} and {b}, which are no matrices of floats"
    );
    // Nothing of it is ever stored, so that sums need not be rounded.
    let product = Op::MatMul { trans_a, trans_b }.infer(&[a, b])?.swap_remove(0).accumulated();
    if let Op::Pointwise { .. } = update {
        // Tiles have no axes to broadcast along.
        let fits = |t: &&&TensorType| {
            t.dtype == product.dtype && (t.shape == product.shape || t.elements() == 1)
        };
        let other = x[..operands.others].iter().find(|t| !fits(t));
        ensure!(other.is_none(), "an operand of the update is neither like {product} nor a scalar");
    }
    let results = update.infer(&operands.operands(x, &product))?;
    ensure!(
        results.iter().all(|y| *y == product),
        "the update of {} is not of its gradient's type {product}",
        results[0]
    );
    Ok(results)
}

/// What [`Op::GemmGelu`] applies its function to, and [`Op::GemmGeluGrad`] gives: a product of
/// the first two operands; all are of one type.
pub(super) fn gelu_operand(
    x: &[&TensorType],
    trans_a: bool,
    trans_b: bool,
) -> Result<TensorType, TypeError> {
    ensure!(x[0].dtype.is_float(), "no GELU of {}", x[0].dtype);
    let other = x.iter().find(|t| t.dtype != x[0].dtype);
    ensure!(other.is_none(), "operands of different element types");
    let gemm = Op::Gemm { alpha: 1.0, beta: 1.0, trans_a, trans_b };
    Ok(gemm.infer(&x[..2])?.swap_remove(0))
}

/// `x` without its last axis' extent, of the type in which sums are taken: what a reduction along
/// it gives.
pub(super) fn row_stats(x: &TensorType) -> Result<TensorType, TypeError> {
    let mut shape = x.shape.clone();
    let Some(last) = shape.last_mut() else {
        return Err(TypeError("a scalar has no rows".into()));
    };
    *last = 1;
    ensure!(x.dtype.is_float(), "no softmax of {}", x.dtype);
    Ok(TensorType::new(x.dtype.accumulated(), shape))
}

/// The result of [`Op::SoftmaxOfStats`] and [`Op::CrossEntropyGrad`].
pub(super) fn of_rows(x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
    let rows = row_stats(x[0])?;
    for (i, t) in x.iter().enumerate().skip(1) {
        let index = i == 3 && matches!(t.dtype, DType::I32 | DType::I64);
        ensure!(
            t.shape == rows.shape && (index || (i != 3 && t.dtype == rows.dtype)),
            "operand {i} of type {t} does not fit rows of {}",
            x[0]
        );
    }
    Ok(vec![x[0].clone()])
}
