//! Softmax and normalisations, and their gradients. Statistics, factors and their gradients are of
//! the type in which sums are taken.

use super::{TypeError, axis_in, ensure};
use crate::op::Op;
use crate::types::{TensorType, broadcast_shapes};

/// The types of an operator's results.
pub(super) fn infer(op: &Op, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
    ensure!(x[0].dtype.is_float(), "{} does not take {}", op.name(), x[0].dtype);
    match op {
        Op::Softmax { axis } | Op::LogSoftmax { axis } => {
            axis_in(*axis, x[0])?;
            Ok(vec![x[0].clone()])
        }
        Op::SoftmaxGrad { axis } | Op::LogSoftmaxGrad { axis } => {
            axis_in(*axis, x[0])?;
            like(x[0], &x[1..])?;
            Ok(vec![x[0].clone()])
        }
        Op::LayerNorm { axis, .. } => {
            axis_in(*axis, x[0])?;
            factors(x[0], *axis, &x[1..])?;
            let stats = row_stats(x[0], *axis);
            Ok(vec![x[0].clone(), stats.clone(), stats])
        }
        Op::LayerNormParamGrad { axis } => {
            axis_in(*axis, x[0])?;
            like(x[0], &x[1..2])?;
            like(&row_stats(x[0], *axis), &x[2..])?;
            Ok(vec![TensorType::new(x[0].dtype.accumulated(), &x[0].shape[*axis..]); 2])
        }
        Op::LayerNormInputGrad { axis } => {
            axis_in(*axis, x[0])?;
            like(x[0], &x[1..2])?;
            factors(x[0], *axis, &x[2..3])?;
            like(&row_stats(x[0], *axis), &x[3..])?;
            Ok(vec![x[0].clone()])
        }
        Op::BatchNorm { .. } => {
            let channel = channels(x[0])?;
            like(&channel, &x[1..])?;
            Ok(vec![x[0].clone(), channel.clone(), channel.clone(), channel])
        }
        Op::BatchNormParamGrad => {
            let channel = channels(x[0])?;
            like(x[0], &x[1..2])?;
            like(&channel, &x[2..])?;
            Ok(vec![channel.clone(), channel])
        }
        Op::BatchNormInputGrad => {
            like(x[0], &x[1..2])?;
            like(&channels(x[0])?, &x[2..])?;
            Ok(vec![x[0].clone()])
        }
        _ => unreachable!("no normalisation"),
    }
}

/// The type of what rows from `axis` on have one number of.
fn row_stats(x: &TensorType, axis: usize) -> TensorType {
    let mut stats = x.accumulated();
    stats.shape[axis..].fill(1);
    stats
}

/// The type of what channels have one number of.
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
