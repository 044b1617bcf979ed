//! Rows of elementwise operators.

use super::error::{broadcast, ensure};
use super::families::Elementwise;
use super::family::Row;
use super::{Cut, MAX_OPERANDS, Narrowing, TypeError, Work, pointwise};
use crate::types::{DType, TensorType};

impl Row for Elementwise<'_> {
    fn arity(&self) -> (usize, usize) {
        match *self {
            Elementwise::Cast { .. } | Elementwise::Unary { .. } => (1, 1),
            Elementwise::Binary { .. } => (2, 2),
            Elementwise::Where => (3, 3),
            Elementwise::Clip { min, max } => {
                let n = 1 + usize::from(*min) + usize::from(*max);
                (n, n)
            }
            Elementwise::Pointwise { .. } => (1, MAX_OPERANDS),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let one = |dtype: DType, shape: &[usize]| Ok(vec![TensorType::new(dtype, shape)]);
        match *self {
            Elementwise::Cast { to } => one(*to, &x[0].shape),
            Elementwise::Unary { f } => {
                ensure!(f.takes(x[0].dtype), "{f:?} does not take {}", x[0].dtype);
                one(x[0].dtype, &x[0].shape)
            }
            Elementwise::Binary { f } => {
                ensure!(
                    x[0].dtype == x[1].dtype,
                    "operands of different element types, {} and {}",
                    x[0].dtype,
                    x[1].dtype
                );
                ensure!(f.takes(x[0].dtype), "{f:?} does not take {}", x[0].dtype);
                let dtype = if f.row().is_comparison { DType::Bool } else { x[0].dtype };
                one(dtype, &broadcast(x)?)
            }
            Elementwise::Where => {
                ensure!(x[0].dtype == DType::Bool, "the condition is {}, not bool", x[0].dtype);
                ensure!(
                    x[1].dtype == x[2].dtype,
                    "branches of different element types, {} and {}",
                    x[1].dtype,
                    x[2].dtype
                );
                one(x[1].dtype, &broadcast(x)?)
            }
            Elementwise::Clip { .. } => {
                ensure!(x[0].dtype != DType::Bool, "clip does not take bool");
                for bound in &x[1..] {
                    ensure!(
                        bound.dtype == x[0].dtype && bound.elements() == 1,
                        "bound {bound} is no scalar of {}",
                        x[0].dtype
                    );
                }
                one(x[0].dtype, &x[0].shape)
            }
            Elementwise::Pointwise { steps, results } => pointwise::infer(steps, results, x),
        }
    }

    fn in_place(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Elementwise::Cast { .. } | Elementwise::Unary { .. } | Elementwise::Clip { .. } => {
                vec![(0, 0)]
            }
            Elementwise::Binary { .. } => vec![(0, 0), (1, 0)],
            Elementwise::Where => vec![(1, 0), (2, 0), (0, 0)],
            Elementwise::Pointwise { .. } => {
                let of = |i: usize| (0..y.len()).map(move |o| (i, o));
                (0..x.len()).flat_map(of).collect()
            }
        }
    }

    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        match self {
            Elementwise::Cast { .. }
            | Elementwise::Unary { .. }
            | Elementwise::Binary { .. }
            | Elementwise::Where
            | Elementwise::Clip { .. }
            | Elementwise::Pointwise { .. } => {
                (0..y[0].rank()).map(|d| Cut::broadcast(x, y, d)).collect()
            }
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let each = match *self {
            Elementwise::Cast { .. }
            | Elementwise::Unary { .. }
            | Elementwise::Binary { .. }
            | Elementwise::Where => 1,
            Elementwise::Clip { .. } => 2,
            Elementwise::Pointwise { steps, .. } => steps.len() as u64,
        };
        Work::new((y[0].elements() as u64).saturating_mul(each), x, y)
    }

    fn moves_elements(&self) -> bool {
        match self {
            Elementwise::Cast { .. }
            | Elementwise::Unary { .. }
            | Elementwise::Binary { .. }
            | Elementwise::Where
            | Elementwise::Clip { .. }
            | Elementwise::Pointwise { .. } => false,
        }
    }

    fn narrowing(&self, operands: usize) -> Narrowing {
        match self {
            Elementwise::Unary { .. }
            | Elementwise::Binary { .. }
            | Elementwise::Where
            | Elementwise::Clip { .. }
            | Elementwise::Pointwise { .. } => Narrowing::elementwise(operands),
            Elementwise::Cast { .. } => Narrowing::wide(),
        }
    }
}
