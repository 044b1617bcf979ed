//! Attention and its gradient. The mask and statistics of rows are of the type in which sums are
//! taken.

use super::{TypeError, ensure};
use crate::op::AttentionSpec;
use crate::types::{TensorType, broadcast_shapes};

/// Results of an attention of `q, k, v[, mask]`.
pub(super) fn forward(
    spec: AttentionSpec,
    x: &[&TensorType],
) -> Result<Vec<TensorType>, TypeError> {
    let o = result(spec, x, x.get(3).copied())?;
    let row = row_stats(x[0]);
    Ok(vec![o, row.clone(), row])
}

/// Gradients of `q, k, v` from these, statistics of rows, the result's gradient and the mask.
pub(super) fn gradients(
    spec: AttentionSpec,
    x: &[&TensorType],
) -> Result<Vec<TensorType>, TypeError> {
    let o = result(spec, x, x.get(6).copied())?;
    let row = row_stats(x[0]);
    for (t, ty) in [(x[3], &row), (x[4], &row), (x[5], &o)] {
        ensure!(t == ty, "an operand is {t}, not {ty}");
    }
    Ok(vec![x[0].clone(), x[1].clone(), x[2].clone()])
}

/// The type of `o`.
fn result(
    spec: AttentionSpec,
    x: &[&TensorType],
    mask: Option<&TensorType>,
) -> Result<TensorType, TypeError> {
    let [q, k, v] = [x[0], x[1], x[2]];
    if let Some(dropout) = spec.dropout {
        ensure!(dropout.is_sound(), "the ratio {} is not in [0, 1)", dropout.ratio);
    }
    ensure!(q.dtype.is_float(), "attention does not take {}", q.dtype);
    let ([batch @ .., t, d], [of_k @ .., s, of_d], [of_v @ .., of_s, e]) =
        (&q.shape[..], &k.shape[..], &v.shape[..])
    else {
        return Err(TypeError(format!("no attention of {q}, {k} and {v}: no matrices")));
    };
    ensure!(
        [of_k, of_v] == [batch; 2] && of_d == d && of_s == s && [k.dtype, v.dtype] == [q.dtype; 2],
        "no attention of {q}, {k} and {v}"
    );
    ensure!(![d, s, e].contains(&&0), "attention of {q}, {k} and {v}, of which one is empty");
    if let Some(mask) = mask {
        let scores = [batch, &[*t, *s]].concat();
        ensure!(
            mask.dtype == q.dtype.accumulated()
                && broadcast_shapes(&mask.shape, &scores) == Some(scores.clone()),
            "the mask {mask} does not broadcast to scores {scores:?}"
        );
    }
    Ok(TensorType::new(q.dtype, [batch, &[*t, *e]].concat()))
}

/// The type of what rows have one number of.
fn row_stats(q: &TensorType) -> TensorType {
    TensorType::new(q.dtype.accumulated(), &q.shape[..q.rank() - 1])
}
