//! Rows of reductions.

use super::error::ensure;
use super::families::Reducing;
use super::family::Row;
use super::{Assembly, Cut, MAX_OPERANDS, Narrowing, Reduction, TypeError, Work, pointwise};
use crate::types::{DType, TensorType};

impl<'a> Reducing<'a> {
    /// What is reduced, how, and along which axes.
    pub fn reduction(&self, x: &[&TensorType]) -> (TensorType, Reduction, &'a [usize]) {
        match *self {
            Reducing::Reduce { f, axes, .. } => (x[0].clone(), *f, axes),
            Reducing::PointwiseReduce { f, axes, .. } => (pointwise::terms(x), *f, axes),
        }
    }
}

impl Row for Reducing<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Reducing::Reduce { .. } => (1, 1),
            Reducing::PointwiseReduce { .. } => (1, MAX_OPERANDS),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        match *self {
            Reducing::Reduce { axes, keep, .. } => Ok(vec![reduced(x[0], axes, *keep)?]),
            Reducing::PointwiseReduce { steps, axes, keep, .. } => {
                Ok(vec![reduced(&pointwise::infer_terms(steps, x)?, axes, *keep)?])
            }
        }
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Reducing::Reduce { .. } | Reducing::PointwiseReduce { .. } => vec![],
        }
    }

    fn cuts(&self, x: &[&TensorType], _: &[&TensorType]) -> Vec<Cut> {
        match *self {
            Reducing::Reduce { f, axes, keep } => cuts(*f, axes, *keep, x[0]),
            Reducing::PointwiseReduce { f, axes, keep, .. } => {
                let terms = pointwise::terms(x);
                let mut cuts = cuts(*f, axes, *keep, &terms);
                for cut in &mut cuts {
                    let axis = cut.operands[0];
                    let of = |t: &&TensorType| axis.filter(|_| t.shape == terms.shape);
                    cut.operands = x.iter().map(of).collect();
                }
                cuts
            }
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        match *self {
            Reducing::Reduce { .. } => Work::new(x[0].elements() as u64, x, y),
            Reducing::PointwiseReduce { steps, .. } => {
                let terms = x.iter().map(|t| t.elements() as u64).max().unwrap_or(0);
                Work::new(terms.saturating_mul(steps.len() as u64 + 1), x, y)
            }
        }
    }

    fn moves_elements(&self) -> bool {
        match self {
            Reducing::Reduce { .. } | Reducing::PointwiseReduce { .. } => false,
        }
    }

    fn narrowing(&self, operands: usize) -> Narrowing {
        match self {
            Reducing::Reduce { .. } => Narrowing::follows(0..operands),
            Reducing::PointwiseReduce { .. } => Narrowing::wide(),
        }
    }
}

/// The type of what a reduction of `x` along `axes` gives.
fn reduced(x: &TensorType, axes: &[usize], keep: bool) -> Result<TensorType, TypeError> {
    ensure!(x.dtype != DType::Bool, "reduce does not take bool");
    ensure!(
        axes.windows(2).all(|w| w[0] < w[1]) && axes.last().is_none_or(|&a| a < x.rank()),
        "{axes:?} are no axes of {x}"
    );
    let mut shape = Vec::new();
    for (i, &d) in x.shape.iter().enumerate() {
        match (axes.contains(&i), keep) {
            (false, _) => shape.push(d),
            (true, true) => shape.push(1),
            (true, false) => {}
        }
    }
    Ok(TensorType::new(x.dtype, shape))
}

fn cuts(f: Reduction, axes: &[usize], keep: bool, x: &TensorType) -> Vec<Cut> {
    let cut = |d: usize| {
        let before = axes.iter().filter(|&&a| a < d).count();
        let result = match axes.contains(&d) {
            false => Assembly::Concat(if keep { d } else { d - before }),
            true if f == Reduction::Sum => Assembly::Sum,
            true => return None,
        };
        Some(Cut::along(x.shape[d], vec![Some(d)], vec![result]))
    };
    (0..x.rank()).filter_map(cut).collect()
}
