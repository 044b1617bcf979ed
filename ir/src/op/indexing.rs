//! Rows of gathers, scatters and `TopK`.

use super::error::{axis_in, ensure};
use super::families::Indexing;
use super::family::Row;
use super::{Assembly, Cut, Narrowing, Scatter, TypeError, Work};
use crate::types::{DType, TensorType};

impl Row for Indexing<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Indexing::Gather { .. }
            | Indexing::GatherElements { .. }
            | Indexing::GatherNd { .. } => (2, 2),
            Indexing::ScatterElements { .. } | Indexing::ScatterNd { .. } => (3, 3),
            Indexing::TopK { .. } => (1, 1),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let one = |shape: &[usize]| Ok(vec![TensorType::new(x[0].dtype, shape)]);
        match *self {
            Indexing::Gather { axis } => {
                axis_in(*axis, x[0])?;
                is_index(x[1])?;
                let s = &x[0].shape;
                one(&[&s[..*axis], &x[1].shape, &s[axis + 1..]].concat())
            }
            Indexing::GatherElements { axis } => {
                axis_in(*axis, x[0])?;
                is_index(x[1])?;
                elements_fit(*axis, x[0], x[1])?;
                one(&x[1].shape)
            }
            Indexing::GatherNd { batch_dims } => {
                is_index(x[1])?;
                let (b, depth) = nd_depth(*batch_dims, x[0], x[1])?;
                let indices = &x[1].shape[..x[1].rank() - 1];
                one(&[indices, &x[0].shape[b + depth..]].concat())
            }
            Indexing::TopK { axis, k, .. } => {
                axis_in(*axis, x[0])?;
                ensure!(x[0].dtype != DType::Bool, "{} has no order", x[0]);
                let mut shape = x[0].shape.clone();
                ensure!(*k <= shape[*axis], "the {k} first of {}", shape[*axis]);
                shape[*axis] = *k;
                let indices = TensorType::new(DType::I64, shape.clone());
                Ok(vec![TensorType::new(x[0].dtype, shape), indices])
            }
            Indexing::ScatterElements { axis, .. } => {
                axis_in(*axis, x[0])?;
                is_index(x[1])?;
                elements_fit(*axis, x[0], x[1])?;
                ensure!(
                    x[2].shape == x[1].shape && x[2].dtype == x[0].dtype,
                    "updates {} do not fit indices {} into {}",
                    x[2],
                    x[1],
                    x[0]
                );
                one(&x[0].shape)
            }
            Indexing::ScatterNd { .. } => {
                is_index(x[1])?;
                let (_, depth) = nd_depth(0, x[0], x[1])?;
                let updates = [&x[1].shape[..x[1].rank() - 1], &x[0].shape[depth..]].concat();
                ensure!(
                    x[2].shape == updates && x[2].dtype == x[0].dtype,
                    "updates {} do not fit indices {} into {}",
                    x[2],
                    x[1],
                    x[0]
                );
                one(&x[0].shape)
            }
        }
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Indexing::ScatterElements { .. } | Indexing::ScatterNd { .. } => vec![(0, 0)],
            Indexing::Gather { .. }
            | Indexing::GatherElements { .. }
            | Indexing::GatherNd { .. }
            | Indexing::TopK { .. } => vec![],
        }
    }

    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        match *self {
            Indexing::GatherElements { axis } | Indexing::ScatterElements { axis, .. } => {
                let fits = |&d: &usize| {
                    d != *axis && x.iter().all(|t| t.shape.get(d) == x[0].shape.get(d))
                };
                let cut = |d: usize| {
                    Cut::along(x[0].shape[d], vec![Some(d); x.len()], Assembly::concat(y, d))
                };
                (0..x[0].rank()).filter(fits).map(cut).collect()
            }
            // Indices select from the whole operand.
            Indexing::Gather { .. } | Indexing::GatherNd { .. } | Indexing::ScatterNd { .. } => {
                vec![]
            }
            // No pass needs one.
            Indexing::TopK { .. } => vec![],
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        match self {
            // As many elements are read as are written.
            Indexing::Gather { .. }
            | Indexing::GatherElements { .. }
            | Indexing::GatherNd { .. } => Work::new(0, x, y).reading(&[y, &x[1..]].concat(), y),
            // In place, as scatters mostly are: only the elements that change are read and written.
            Indexing::ScatterElements { .. } | Indexing::ScatterNd { .. } => {
                Work::new(x[2].elements() as u64, x, y).reading(&x[1..], &[x[2], x[2]])
            }
            Indexing::TopK { .. } => Work::new((x[0].elements() as u64).saturating_mul(8), x, y),
        }
    }

    fn moves_elements(&self) -> bool {
        match self {
            Indexing::Gather { .. }
            | Indexing::GatherElements { .. }
            | Indexing::GatherNd { .. } => true,
            Indexing::ScatterElements { reduction, .. } | Indexing::ScatterNd { reduction } => {
                **reduction == Scatter::Replace
            }
            Indexing::TopK { .. } => false,
        }
    }

    fn narrowing(&self, _: usize) -> Narrowing {
        match self {
            Indexing::Gather { .. }
            | Indexing::GatherElements { .. }
            | Indexing::GatherNd { .. } => Narrowing::follows([0]),
            Indexing::ScatterElements { .. } | Indexing::ScatterNd { .. }
                if self.moves_elements() =>
            {
                Narrowing::follows([0, 2])
            }
            Indexing::ScatterElements { .. }
            | Indexing::ScatterNd { .. }
            | Indexing::TopK { .. } => Narrowing::wide(),
        }
    }
}

fn is_index(x: &TensorType) -> Result<(), TypeError> {
    ensure!(matches!(x.dtype, DType::I32 | DType::I64), "indices are {}, not i32 or i64", x.dtype);
    Ok(())
}

fn elements_fit(axis: usize, x: &TensorType, indices: &TensorType) -> Result<(), TypeError> {
    let fits = indices.rank() == x.rank()
        && (0..x.rank()).all(|i| i == axis || indices.shape[i] <= x.shape[i]);
    ensure!(fits, "indices {indices} do not fit {x} along axis {axis}");
    Ok(())
}

/// (batch axes, depth of an index tuple) of a gather or scatter by tuples.
fn nd_depth(b: usize, x: &TensorType, indices: &TensorType) -> Result<(usize, usize), TypeError> {
    let Some(&depth) = indices.shape.last() else {
        return Err(TypeError("indices are a scalar".into()));
    };
    let fits = b < indices.rank()
        && b <= x.rank()
        && x.shape[..b] == indices.shape[..b]
        && depth <= x.rank() - b;
    ensure!(fits, "indices {indices} with {b} batch axes do not fit {x}");
    Ok((b, depth))
}
