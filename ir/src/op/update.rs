//! Rows of updates of one parameter.

use super::error::ensure;
use super::families::Update;
use super::family::Row;
use super::{Assembly, Cut, Narrowing, TypeError, Work};
use crate::types::{DType, TensorType};

impl Row for Update<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Update::Adam { .. } => (6, 6),
            Update::Adagrad { .. } | Update::Momentum { .. } => (5, 5),
        }
    }

    /// `lr, t, x, g, slots…`: as many results as the parameter and its slots.
    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let param = x[2];
        ensure!(param.dtype.is_float(), "an update does not take {}", param.dtype);
        ensure!(
            x[0].dtype == param.dtype && x[0].elements() == 1,
            "learning rate {} is no scalar of {}",
            x[0],
            param.dtype
        );
        ensure!(
            x[1].dtype == DType::I64 && x[1].elements() == 1,
            "count {} is no i64 scalar",
            x[1]
        );
        ensure!(
            x[3..].iter().all(|t| *t == param),
            "gradient or slots differ in type from the parameter {param}"
        );
        Ok(vec![param.clone(); x.len() - 3])
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Update::Adam { .. } => vec![(2, 0), (4, 1), (5, 2)],
            Update::Adagrad { .. } | Update::Momentum { .. } => vec![(2, 0), (4, 1)],
        }
    }

    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        match self {
            Update::Adam { .. } | Update::Adagrad { .. } | Update::Momentum { .. } => {
                let operands = |d: usize| (0..x.len()).map(|i| (i > 1).then_some(d)).collect();
                let cut = |d: usize| Cut::along(y[0].shape[d], operands(d), Assembly::concat(y, d));
                (0..y[0].rank()).map(cut).collect()
            }
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let each = match self {
            Update::Adam { .. } => 12,
            Update::Adagrad { .. } => 8,
            Update::Momentum { .. } => 6,
        };
        Work::new((x[2].elements() as u64).saturating_mul(each), x, y)
    }

    fn moves_elements(&self) -> bool {
        match self {
            Update::Adam { .. } | Update::Adagrad { .. } | Update::Momentum { .. } => false,
        }
    }

    fn narrowing(&self, _: usize) -> Narrowing {
        match self {
            Update::Adam { .. } | Update::Adagrad { .. } | Update::Momentum { .. } => {
                Narrowing::wide()
            }
        }
    }
}
