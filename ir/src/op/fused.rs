//! Operators that graph passes make out of several of ONNX's: updates as one node, and
//! the cross entropy without its probabilities.

use super::infer::TypeError;
use super::{Binary, Op, Unary};
use crate::types::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// One elementwise step of [`Op::Pointwise`]. Numbers name sources: the operands from
/// zero on, then the results of earlier steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// `f(x)`.
    Unary(Unary, usize),
    /// `f(a, b)`.
    Binary(Binary, usize, usize),
}

impl Step {
    /// The sources it reads.
    pub fn sources(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = match *self {
            Step::Unary(_, x) => (x, None),
            Step::Binary(_, a, b) => (a, Some(b)),
        };
        [first].into_iter().chain(second)
    }

    /// True for functions that [`Op::Pointwise`] takes: arithmetic on floats, one result
    /// from one or two elements.
    pub fn is_supported(&self) -> bool {
        match self {
            Step::Unary(f, _) => matches!(f, Unary::Neg | Unary::Reciprocal | Unary::Sqrt),
            Step::Binary(f, ..) => matches!(
                f,
                Binary::Add
                    | Binary::Div
                    | Binary::Max
                    | Binary::Min
                    | Binary::Mul
                    | Binary::Pow
                    | Binary::Sub
            ),
        }
    }
}

/// Most steps of one [`Op::Pointwise`]; the kernel keeps a block of each on its stack.
pub const MAX_STEPS: usize = 64;

/// Most operands, and most results, of an update.
pub const MAX_OPERANDS: usize = 16;

macro_rules! ensure {
    ($cond:expr, $($arg:tt)*) => {
        if !$cond {
            return Err(TypeError(format!($($arg)*)));
        }
    };
}

/// Results of [`Op::Pointwise`]: all of the type of its operands that are no scalars.
pub(super) fn pointwise(
    steps: &[Step],
    results: &[usize],
    x: &[&TensorType],
) -> Result<Vec<TensorType>, TypeError> {
    ensure!(!steps.is_empty() && steps.len() <= MAX_STEPS, "{} steps", steps.len());
    for (i, step) in steps.iter().enumerate() {
        ensure!(step.is_supported(), "pointwise does not take {step:?}");
        ensure!(
            step.sources().all(|s| s < x.len() + i),
            "{step:?} reads what no operand and no earlier step gives"
        );
    }
    ensure!(
        (1..=MAX_OPERANDS).contains(&results.len())
            && results.iter().all(|r| (x.len()..x.len() + steps.len()).contains(r)),
        "results {results:?} are not results of steps"
    );
    let full = full(x);
    ensure!(full.dtype.is_float(), "pointwise does not take {}", full.dtype);
    for t in x {
        let scalar = t.elements() == 1 && t.rank() <= full.rank();
        ensure!(
            t.dtype == full.dtype && (t.shape == full.shape || scalar),
            "{t} is neither like {full} nor a scalar"
        );
    }
    Ok(vec![full.clone(); results.len()])
}

/// The first operand that is no scalar, else the one of highest rank.
fn full<'a>(x: &[&'a TensorType]) -> &'a TensorType {
    let highest = x[1..].iter().fold(x[0], |y, &t| if t.rank() > y.rank() { t } else { y });
    x.iter().find(|t| t.elements() != 1).copied().unwrap_or(highest)
}

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
    let product = Op::MatMul { trans_a, trans_b }.infer(&[a, b])?.swap_remove(0);
    let results = update.infer(&operands.operands(x, &product))?;
    ensure!(
        results.iter().all(|y| *y == product),
        "the update of {} is not of its gradient's type {product}",
        results[0]
    );
    Ok(results)
}

/// `x` without its last axis' extent: what a reduction along it gives.
pub(super) fn row_stats(x: &TensorType) -> Result<TensorType, TypeError> {
    let mut shape = x.shape.clone();
    let Some(last) = shape.last_mut() else {
        return Err(TypeError("a scalar has no rows".into()));
    };
    *last = 1;
    ensure!(x.dtype.is_float(), "no softmax of {}", x.dtype);
    Ok(TensorType::new(x.dtype, shape))
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
