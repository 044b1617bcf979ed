//! The row of an operator of which only sizes are known.

use super::families::Opaque;
use super::family::Row;
use super::{Cut, Narrowing, TypeError, Work};
use crate::types::{DType, TensorType};

impl Row for Opaque<'_> {
    fn arity(&self) -> (usize, usize) {
        (0, usize::MAX)
    }

    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let Opaque::Opaque { results } = self;
        Ok(results.iter().map(|&n| TensorType::new(DType::U8, [n])).collect())
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        vec![]
    }

    fn cuts(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<Cut> {
        vec![]
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        Work::new(0, x, y)
    }

    fn moves_elements(&self) -> bool {
        false
    }

    fn narrowing(&self, _: usize) -> Narrowing {
        Narrowing::wide()
    }
}
