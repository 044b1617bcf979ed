//! Why operands do not fit an operator, and the checks that families share.

use crate::types::{TensorType, broadcast_shapes};

/// Why operands do not fit an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TypeError(pub String);

macro_rules! ensure {
    ($cond:expr, $($arg:tt)*) => {
        if !$cond {
            return Err(TypeError(format!($($arg)*)));
        }
    };
}
pub(super) use ensure;

/// The rank beyond which shapes are refused; kernels keep indices in fixed arrays.
pub const MAX_RANK: usize = 16;

/// Refuses types whose rank or size is beyond what kernels take.
pub(super) fn sized(what: &str, t: &TensorType) -> Result<(), TypeError> {
    ensure!(t.rank() <= MAX_RANK, "{what} of rank {}, above {MAX_RANK}", t.rank());
    ensure!(t.checked_bytes().is_some(), "{what} of type {t}, which is too large");
    Ok(())
}

/// Refuses an axis that `x` does not have.
pub(super) fn axis_in(axis: usize, x: &TensorType) -> Result<(), TypeError> {
    ensure!(axis < x.rank(), "axis {axis} of {x}");
    Ok(())
}

/// The shape that all operands broadcast to.
pub(super) fn broadcast(x: &[&TensorType]) -> Result<Vec<usize>, TypeError> {
    let mut shape = x[0].shape.clone();
    for t in &x[1..] {
        shape = broadcast_shapes(&shape, &t.shape)
            .ok_or_else(|| TypeError(format!("{t} does not broadcast with {shape:?}")))?;
    }
    Ok(shape)
}
