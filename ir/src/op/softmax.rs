//! Rows of softmax, its gradients, and the cross entropy without its probabilities.

use super::error::{axis_in, ensure};
use super::families::Softmax;
use super::family::Row;
use super::{Assembly, Cut, Narrowing, TypeError, Work};
use crate::types::{DType, TensorType};

impl Row for Softmax<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Softmax::Softmax { .. } | Softmax::LogSoftmax { .. } | Softmax::LogSoftmaxStats => {
                (1, 1)
            }
            Softmax::SoftmaxGrad { .. } | Softmax::LogSoftmaxGrad { .. } => (2, 2),
            Softmax::SoftmaxOfStats => (3, 3),
            Softmax::CrossEntropyGrad => (5, 5),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        match *self {
            Softmax::Softmax { axis }
            | Softmax::LogSoftmax { axis }
            | Softmax::SoftmaxGrad { axis }
            | Softmax::LogSoftmaxGrad { axis } => {
                ensure!(x[0].dtype.is_float(), "{} does not take {}", self.name(), x[0].dtype);
                axis_in(*axis, x[0])?;
                for t in &x[1..] {
                    ensure!(*t == x[0], "an operand is {t}, not {}", x[0]);
                }
                Ok(vec![x[0].clone()])
            }
            Softmax::LogSoftmaxStats => {
                let rows = row_stats(x[0])?;
                Ok(vec![rows.clone(), rows])
            }
            Softmax::SoftmaxOfStats | Softmax::CrossEntropyGrad => of_stats(x),
        }
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Softmax::Softmax { .. }
            | Softmax::LogSoftmax { .. }
            | Softmax::SoftmaxOfStats
            | Softmax::CrossEntropyGrad => vec![(0, 0)],
            Softmax::SoftmaxGrad { .. } | Softmax::LogSoftmaxGrad { .. } => vec![(1, 0), (0, 0)],
            Softmax::LogSoftmaxStats => vec![],
        }
    }

    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        let rank = y[0].rank();
        match *self {
            Softmax::Softmax { axis }
            | Softmax::LogSoftmax { axis }
            | Softmax::SoftmaxGrad { axis }
            | Softmax::LogSoftmaxGrad { axis } => {
                (0..rank).filter(|d| d != axis).map(|d| Cut::broadcast(x, y, d)).collect()
            }
            Softmax::SoftmaxOfStats | Softmax::CrossEntropyGrad => {
                (0..rank.saturating_sub(1)).map(|d| Cut::broadcast(x, y, d)).collect()
            }
            Softmax::LogSoftmaxStats => {
                let cut =
                    |d: usize| Cut::along(x[0].shape[d], vec![Some(d)], Assembly::concat(y, d));
                (0..x[0].rank().saturating_sub(1)).map(cut).collect()
            }
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let each = match self {
            Softmax::Softmax { .. } | Softmax::LogSoftmax { .. } | Softmax::LogSoftmaxStats => 5,
            Softmax::SoftmaxOfStats => 3,
            Softmax::CrossEntropyGrad => 5,
            Softmax::SoftmaxGrad { .. } | Softmax::LogSoftmaxGrad { .. } => 4,
        };
        Work::new((x[0].elements() as u64).saturating_mul(each), x, y)
    }

    fn moves_elements(&self) -> bool {
        match self {
            Softmax::Softmax { .. }
            | Softmax::LogSoftmax { .. }
            | Softmax::SoftmaxGrad { .. }
            | Softmax::LogSoftmaxGrad { .. }
            | Softmax::LogSoftmaxStats
            | Softmax::SoftmaxOfStats
            | Softmax::CrossEntropyGrad => false,
        }
    }

    fn narrowing(&self, operands: usize) -> Narrowing {
        match self {
            Softmax::Softmax { .. } | Softmax::SoftmaxGrad { .. } | Softmax::LogSoftmaxStats => {
                Narrowing::follows(0..operands)
            }
            Softmax::SoftmaxOfStats | Softmax::CrossEntropyGrad => Narrowing::follows([0]),
            // Losses are computed of it.
            Softmax::LogSoftmax { .. } | Softmax::LogSoftmaxGrad { .. } => Narrowing::wide(),
        }
    }
}

/// The type of a statistic of the rows of `x`, which lie along its last axis: that extent is 1, and
/// elements are of the type in which sums are taken.
fn row_stats(x: &TensorType) -> Result<TensorType, TypeError> {
    let mut shape = x.shape.clone();
    let Some(last) = shape.last_mut() else {
        return Err(TypeError("a scalar has no rows".into()));
    };
    *last = 1;
    ensure!(x.dtype.is_float(), "no softmax of {}", x.dtype);
    Ok(TensorType::new(x.dtype.accumulated(), shape))
}

/// The result of operators that read the statistics of rows.
fn of_stats(x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
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
