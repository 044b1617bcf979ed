//! Rows of pools and their gradients.

use super::error::ensure;
use super::families::Pool;
use super::family::Row;
use super::{Assembly, Cut, Narrowing, PoolIndices, TypeError, Window, Work};
use crate::types::{DType, TensorType};

impl Row for Pool<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Pool::MaxPool { .. } | Pool::AveragePool { .. } | Pool::AveragePoolGrad { .. } => {
                (1, 1)
            }
            Pool::MaxPoolGrad { .. } => (2, 2),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        match *self {
            Pool::MaxPool { window, ceil, indices } => {
                ensure!(x[0].dtype != DType::Bool, "max_pool does not take bool");
                let shape = pooled(x[0], window, *ceil)?;
                Ok(vec![
                    TensorType::new(x[0].dtype, shape.as_slice()),
                    TensorType::new(indices.dtype(window.taps()), shape),
                ])
            }
            Pool::AveragePool { window, ceil, .. } => {
                ensure!(x[0].dtype.is_float(), "average_pool does not take {}", x[0].dtype);
                Ok(vec![TensorType::new(x[0].dtype, pooled(x[0], window, *ceil)?)])
            }
            Pool::MaxPoolGrad { window, ceil, indices, shape } => {
                let dx = unpooled(x[0], window, *ceil, shape)?;
                ensure!(
                    x[1].dtype == indices.dtype(window.taps()) && x[1].shape == x[0].shape,
                    "indices {} do not fit {}",
                    x[1],
                    x[0]
                );
                Ok(vec![dx])
            }
            Pool::AveragePoolGrad { window, ceil, shape, .. } => {
                Ok(vec![unpooled(x[0], window, *ceil, shape)?])
            }
        }
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Pool::MaxPool { .. }
            | Pool::AveragePool { .. }
            | Pool::MaxPoolGrad { .. }
            | Pool::AveragePoolGrad { .. } => vec![],
        }
    }

    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        match self {
            // Positions are those in the whole.
            Pool::MaxPoolGrad {
                indices: PoolIndices::Positions | PoolIndices::ColumnMajorPositions,
                ..
            } => vec![],
            Pool::MaxPool {
                indices: PoolIndices::Positions | PoolIndices::ColumnMajorPositions,
                ..
            } => {
                let each = x[0].shape[1..].iter().product();
                let results = vec![Assembly::Concat(0), Assembly::Positions(each)];
                vec![Cut::along(x[0].shape[0], vec![Some(0)], results)]
            }
            Pool::MaxPool { .. }
            | Pool::AveragePool { .. }
            | Pool::MaxPoolGrad { .. }
            | Pool::AveragePoolGrad { .. } => {
                let cut = |d: usize| {
                    Cut::along(x[0].shape[d], vec![Some(d); x.len()], Assembly::concat(y, d))
                };
                (0..2).map(cut).collect()
            }
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let (windows, window) = match *self {
            Pool::MaxPool { window, .. } | Pool::AveragePool { window, .. } => {
                (y.first().map_or(0, |t| t.elements()), window)
            }
            Pool::MaxPoolGrad { window, .. } | Pool::AveragePoolGrad { window, .. } => {
                (x[0].elements(), window)
            }
        };
        Work::new((windows as u64).saturating_mul(window.taps() as u64), x, y)
    }

    fn moves_elements(&self) -> bool {
        match self {
            Pool::MaxPool { .. }
            | Pool::AveragePool { .. }
            | Pool::MaxPoolGrad { .. }
            | Pool::AveragePoolGrad { .. } => false,
        }
    }

    fn narrowing(&self, operands: usize) -> Narrowing {
        match self {
            Pool::MaxPool { .. } | Pool::AveragePool { .. } | Pool::AveragePoolGrad { .. } => {
                Narrowing::follows(0..operands)
            }
            Pool::MaxPoolGrad { .. } => Narrowing::follows([0]),
        }
    }
}

/// The shape of a pool's result.
fn pooled(x: &TensorType, window: &Window, ceil: bool) -> Result<Vec<usize>, TypeError> {
    let y = window.slide(window.spatial(x)?, ceil)?;
    pads_below_span(window)?;
    Ok([&x.shape[..2], &y[..]].concat())
}

/// The operand of this shape, of a pool whose result has a gradient of type `dy`.
fn unpooled(
    dy: &TensorType,
    window: &Window,
    ceil: bool,
    shape: &[usize],
) -> Result<TensorType, TypeError> {
    ensure!(dy.dtype.is_float(), "the gradient of a pool does not take {}", dy.dtype);
    let x = TensorType::new(dy.dtype, shape);
    ensure!(dy.shape == pooled(&x, window, ceil)?, "{dy} is no gradient of a pool of {shape:?}");
    Ok(x)
}

/// A window that lies in padding alone has no maximum and no mean.
fn pads_below_span(w: &Window) -> Result<(), TypeError> {
    let inside = (0..w.rank()).all(|i| w.pads_begin[i] < w.span(i) && w.pads_end[i] < w.span(i));
    ensure!(inside, "padding as wide as the window");
    Ok(())
}
