//! Rows of operators that draw.

use super::error::ensure;
use super::families::Random;
use super::family::Row;
use super::{Cut, Narrowing, TypeError, Work};
use crate::types::{DType, TensorType};

impl Row for Random<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Random::Dropout { .. } => (2, 2),
            Random::RandomUniform { .. } => (0, 0),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        match *self {
            Random::Dropout { .. } => {
                ensure!(x[0].dtype.is_float(), "dropout does not take {}", x[0].dtype);
                ensure!(
                    x[1].dtype.is_float() && x[1].elements() == 1,
                    "ratio {} is no float scalar",
                    x[1]
                );
                Ok(vec![x[0].clone(), TensorType::new(DType::Bool, x[0].shape.as_slice())])
            }
            Random::RandomUniform { dtype, shape, .. } => {
                // Rounded, a number could be the upper end.
                let made = dtype.is_float() && *dtype != DType::Bf16;
                ensure!(made, "random_uniform does not make {dtype}");
                Ok(vec![TensorType::new(*dtype, shape.as_slice())])
            }
        }
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Random::Dropout { .. } => vec![(0, 0)],
            Random::RandomUniform { .. } => vec![],
        }
    }

    fn cuts(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<Cut> {
        match self {
            // A part would draw for other elements.
            Random::Dropout { .. } | Random::RandomUniform { .. } => vec![],
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        match self {
            // A counter-based generator takes some ten rounds of integer arithmetic.
            Random::Dropout { .. } | Random::RandomUniform { .. } => {
                let drawn = y.first().map_or(0, |t| t.elements() as u64);
                Work::new(drawn.saturating_mul(12), x, y)
            }
        }
    }

    fn moves_elements(&self) -> bool {
        match self {
            Random::Dropout { .. } | Random::RandomUniform { .. } => false,
        }
    }

    fn narrowing(&self, _: usize) -> Narrowing {
        match self {
            Random::Dropout { .. } => Narrowing::follows([0]),
            Random::RandomUniform { .. } => Narrowing::wide(),
        }
    }
}
