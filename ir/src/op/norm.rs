//! Rows of layer and batch normalisation. Statistics, factors and their gradients are of the type
//! in which sums are taken. What is fused with elementwise steps asks [`fused_norm`].

use super::error::{axis_in, ensure};
use super::families::Norm;
use super::family::Row;
use super::{Assembly, Cut, Family, Narrowing, TypeError, Work, fused_norm};
use crate::types::{TensorType, broadcast_shapes};

impl Row for Norm<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Norm::LayerNorm { .. } => (2, 3),
            Norm::LayerNormParamGrad { .. } | Norm::BatchNormParamGrad => (4, 4),
            Norm::LayerNormInputGrad { .. } => (5, 5),
            Norm::BatchNorm { .. } => (3, 3),
            Norm::BatchNormInputGrad => (7, 7),
            Norm::FusedNorm { of, others, .. } => fused_norm::arity(of, **others),
            Norm::FusedNormGrad { of, .. } => fused_norm::arity_of_gradient(of),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        ensure!(x[0].dtype.is_float(), "{} does not take {}", self.name(), x[0].dtype);
        match *self {
            Norm::LayerNorm { axis, .. } => {
                axis_in(*axis, x[0])?;
                factors(x[0], *axis, &x[1..])?;
                let stats = row_stats(x[0], *axis);
                Ok(vec![x[0].clone(), stats.clone(), stats])
            }
            Norm::LayerNormParamGrad { axis } => {
                axis_in(*axis, x[0])?;
                like(x[0], &x[1..2])?;
                like(&row_stats(x[0], *axis), &x[2..])?;
                Ok(vec![TensorType::new(x[0].dtype.accumulated(), &x[0].shape[*axis..]); 2])
            }
            Norm::LayerNormInputGrad { axis } => {
                axis_in(*axis, x[0])?;
                like(x[0], &x[1..2])?;
                factors(x[0], *axis, &x[2..3])?;
                like(&row_stats(x[0], *axis), &x[3..])?;
                Ok(vec![x[0].clone()])
            }
            Norm::BatchNorm { .. } => {
                let channel = channels(x[0])?;
                like(&channel, &x[1..])?;
                Ok(vec![x[0].clone(), channel.clone(), channel.clone(), channel])
            }
            Norm::BatchNormParamGrad => {
                let channel = channels(x[0])?;
                like(x[0], &x[1..2])?;
                like(&channel, &x[2..])?;
                Ok(vec![channel.clone(), channel])
            }
            Norm::BatchNormInputGrad => {
                like(x[0], &x[1..2])?;
                like(&channels(x[0])?, &x[2..])?;
                Ok(vec![x[0].clone()])
            }
            Norm::FusedNorm { of, others, steps, rounded } => {
                fused_norm::infer(of, (*others, steps, *rounded), x)
            }
            Norm::FusedNormGrad { of, steps } => fused_norm::infer_gradient(of, steps, x),
        }
    }

    fn in_place(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<(usize, usize)> {
        match *self {
            Norm::LayerNorm { .. } | Norm::BatchNorm { .. } => vec![(0, 0)],
            Norm::LayerNormInputGrad { .. } | Norm::BatchNormInputGrad => vec![(1, 0), (0, 0)],
            Norm::LayerNormParamGrad { .. } | Norm::BatchNormParamGrad => vec![],
            Norm::FusedNorm { of, others, .. } => fused_norm::in_place(of, *others, x, y),
            Norm::FusedNormGrad { of, .. } => fused_norm::in_place_of_gradient(of, x, y),
        }
    }

    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        match *self {
            Norm::LayerNorm { axis, .. } | Norm::LayerNormInputGrad { axis } => {
                (0..*axis).map(|d| Cut::broadcast(x, y, d)).collect()
            }
            Norm::LayerNormParamGrad { axis } => {
                let cut = |d: usize| {
                    let operands = vec![Some(d), Some(d), None, None];
                    Cut::along(x[0].shape[d], operands, Assembly::concat(y, d - axis))
                };
                (*axis..x[0].rank()).map(cut).collect()
            }
            Norm::BatchNorm { .. } | Norm::BatchNormParamGrad | Norm::BatchNormInputGrad => {
                let channels = |t: &TensorType| usize::from(t.rank() > 1);
                let operands = x.iter().map(|t| Some(channels(t))).collect();
                let results = y.iter().map(|t| Assembly::Concat(channels(t))).collect();
                vec![Cut::along(x[0].shape[1], operands, results)]
            }
            Norm::FusedNorm { of, others, .. } => fused_norm::cuts(of, *others, x, y),
            Norm::FusedNormGrad { of, .. } => fused_norm::cuts_of_gradient(of, x, y),
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let work = Work::new((x[0].elements() as u64).saturating_mul(self.flops()), x, y);
        // Once for the statistics, once for the results.
        let twice = x.iter().take(self.operands_of_statistics());
        work.reading(&x.iter().chain(twice).copied().collect::<Vec<_>>(), y)
    }

    fn moves_elements(&self) -> bool {
        match self {
            Norm::LayerNorm { .. }
            | Norm::LayerNormParamGrad { .. }
            | Norm::LayerNormInputGrad { .. }
            | Norm::BatchNorm { .. }
            | Norm::BatchNormParamGrad
            | Norm::BatchNormInputGrad
            | Norm::FusedNorm { .. }
            | Norm::FusedNormGrad { .. } => false,
        }
    }

    fn narrowing(&self, _: usize) -> Narrowing {
        match self {
            Norm::LayerNorm { .. } | Norm::BatchNorm { .. } => Narrowing::follows([0]),
            Norm::LayerNormParamGrad { .. }
            | Norm::LayerNormInputGrad { .. }
            | Norm::BatchNormParamGrad
            | Norm::BatchNormInputGrad => Narrowing::follows([0, 1]),
            // Passes that run later make them.
            Norm::FusedNorm { .. } | Norm::FusedNormGrad { .. } => Narrowing::wide(),
        }
    }
}

impl Norm<'_> {
    /// How many of the first operands are read for sums over rows or channels before an element is computed.
    fn operands_of_statistics(&self) -> usize {
        match *self {
            Norm::LayerNorm { .. } | Norm::BatchNorm { .. } => 1,
            Norm::LayerNormInputGrad { .. } => 2,
            Norm::LayerNormParamGrad { .. }
            | Norm::BatchNormParamGrad
            | Norm::BatchNormInputGrad => 0,
            Norm::FusedNorm { of, .. } | Norm::FusedNormGrad { of, .. } => match of.family() {
                Family::Norm(of) => of.operands_of_statistics(),
                _ => 0,
            },
        }
    }

    /// Operations for each element.
    fn flops(&self) -> u64 {
        match *self {
            Norm::LayerNorm { .. } | Norm::BatchNorm { .. } => 8,
            Norm::LayerNormParamGrad { .. } | Norm::BatchNormParamGrad => 5,
            Norm::LayerNormInputGrad { .. } => 12,
            Norm::BatchNormInputGrad => 7,
            Norm::FusedNorm { of, steps, .. } | Norm::FusedNormGrad { of, steps } => {
                let own = match of.family() {
                    Family::Norm(of) => of.flops(),
                    _ => 0,
                };
                own.saturating_add(steps.len() as u64)
            }
        }
    }
}

/// The type of a statistic of the rows of `x`, which lie along the axes from `axis` on.
fn row_stats(x: &TensorType, axis: usize) -> TensorType {
    let mut stats = x.accumulated();
    stats.shape[axis..].fill(1);
    stats
}

/// The type of a statistic of the channels of `x`.
fn channels(x: &TensorType) -> Result<TensorType, TypeError> {
    ensure!(x.rank() >= 2, "{x} has no channels");
    Ok(TensorType::new(x.dtype.accumulated(), &x.shape[1..2]))
}

/// Refuses operands of another type.
fn like(ty: &TensorType, operands: &[&TensorType]) -> Result<(), TypeError> {
    for t in operands {
        ensure!(*t == ty, "an operand is {t}, not {ty}");
    }
    Ok(())
}

/// Refuses scales and biases that do not broadcast to rows from `axis` on.
fn factors(x: &TensorType, axis: usize, factors: &[&TensorType]) -> Result<(), TypeError> {
    let row = &x.shape[axis..];
    for t in factors {
        ensure!(
            t.dtype == x.dtype.accumulated()
                && broadcast_shapes(&t.shape, row).as_deref() == Some(row),
            "scale or bias {t} does not fit {x} from axis {axis}"
        );
    }
    Ok(())
}
