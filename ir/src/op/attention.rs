//! Rows of attention and its gradient. The mask and statistics of rows are of the type in which
//! sums are taken.

use super::error::ensure;
use super::families::Attention;
use super::family::Row;
use super::{Assembly, AttentionSpec, Cut, Narrowing, TypeError, Work};
use crate::types::{TensorType, broadcast_shapes};

impl Attention<'_> {
    /// The place of the first mask among the operands; there may be none, one or two.
    pub fn first_mask(&self) -> usize {
        match self {
            Attention::Attention { .. } => 3,
            Attention::AttentionGrad { .. } => 6,
        }
    }
}

impl Row for Attention<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Attention::Attention { .. } => (3, 5),
            Attention::AttentionGrad { .. } => (6, 8),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let row = || row_stats(x[0]);
        match *self {
            Attention::Attention { spec } => {
                let o = result(*spec, x, &x[3..])?;
                Ok(vec![o, row(), row()])
            }
            Attention::AttentionGrad { spec, of_mask } => {
                let o = result(*spec, x, &x[6..])?;
                for (t, ty) in [(x[3], &row()), (x[4], &row()), (x[5], &o)] {
                    ensure!(t == ty, "an operand is {t}, not {ty}");
                }
                let mut gradients = vec![x[0].clone(), x[1].clone(), x[2].clone()];
                if *of_mask {
                    let Some(mask) = x.get(6) else {
                        return Err(TypeError("no mask to give a gradient".into()));
                    };
                    gradients.push(mask_gradient(mask, x[0], x[1]));
                }
                Ok(gradients)
            }
        }
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Attention::Attention { .. } | Attention::AttentionGrad { .. } => vec![],
        }
    }

    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        let (Attention::Attention { spec } | Attention::AttentionGrad { spec, .. }) = self;
        // A part would draw for other elements.
        if spec.dropout.is_some() {
            return vec![];
        }
        // The last axis has fewer keys than queries where these share some.
        let shared = usize::from(spec.group > 1);
        let axes = 0..y[0].rank().saturating_sub(2 + shared);
        axes.map(|d| of_batch(x, y, self.first_mask(), d)).collect()
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let extent = |i: usize, from_end: usize| {
            x[i].rank().checked_sub(from_end).map_or(1, |axis| x[i].shape[axis].max(1) as u64)
        };
        let (d, s, e) = (extent(0, 1), extent(1, 2), extent(2, 1));
        let (each, spec) = match *self {
            Attention::Attention { spec } => (2 * d + 2 * e + 6, spec),
            Attention::AttentionGrad { spec, .. } => (6 * d + 4 * e + 10, spec),
        };
        let scores = (x[0].elements() as u64 / d).saturating_mul(s);
        let scores = if spec.causal { scores.div_ceil(2) } else { scores };
        let each = each + if spec.dropout.is_some() { 12 } else { 0 };
        let capped = match self {
            Attention::Attention { .. } => 8,
            // Products are taken once more for the slope.
            Attention::AttentionGrad { .. } => 16 + 2 * d,
        };
        let each = each + if spec.softcap.is_some() { capped } else { 0 };
        Work::of_attention(scores.saturating_mul(each), x, y)
    }

    fn moves_elements(&self) -> bool {
        match self {
            Attention::Attention { .. } | Attention::AttentionGrad { .. } => false,
        }
    }

    fn narrowing(&self, _: usize) -> Narrowing {
        match self {
            Attention::Attention { .. } => Narrowing::product([0, 1, 2]),
            Attention::AttentionGrad { .. } => Narrowing::product([0, 1, 2, 5]),
        }
    }
}

/// The type of `o`.
fn result(
    spec: AttentionSpec,
    x: &[&TensorType],
    masks: &[&TensorType],
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
    let mut of_keys = batch.to_vec();
    let shared = match of_keys.last_mut() {
        Some(heads) if spec.group > 0 && heads.is_multiple_of(spec.group) => {
            *heads /= spec.group;
            true
        }
        _ => spec.group == 1,
    };
    ensure!(shared, "{} matrices of the queries {q} do not share keys", spec.group);
    ensure!(
        [of_k, of_v] == [&of_keys[..]; 2]
            && of_d == d
            && of_s == s
            && [k.dtype, v.dtype] == [q.dtype; 2],
        "no attention of {q}, {k} and {v}"
    );
    let cap = spec.softcap;
    ensure!(cap.is_none_or(|c| c > 0.0 && c.is_finite()), "the bound of scores is {cap:?}");
    ensure!(![d, s, e].contains(&&0), "attention of {q}, {k} and {v}, of which one is empty");
    for mask in masks {
        let scores = [batch, &[*t, *s]].concat();
        ensure!(
            mask.dtype == q.dtype.accumulated()
                && broadcast_shapes(&mask.shape, &scores) == Some(scores.clone()),
            "the mask {mask} does not broadcast to scores {scores:?}"
        );
    }
    Ok(TensorType::new(q.dtype, [batch, &[*t, *e]].concat()))
}

/// The type of a statistic of the rows of scores, one for each query.
fn row_stats(q: &TensorType) -> TensorType {
    TensorType::new(q.dtype.accumulated(), &q.shape[..q.rank() - 1])
}

/// The type of the gradient of a mask: of the mask's batch, all rows and columns of scores.
fn mask_gradient(mask: &TensorType, q: &TensorType, k: &TensorType) -> TensorType {
    let batch = &mask.shape[..mask.rank().saturating_sub(2)];
    let [queries, keys] = [q, k].map(|x| x.shape[x.rank() - 2]);
    TensorType::new(mask.dtype, [batch, &[queries, keys]].concat())
}

/// Operands and results begin with the axes of the batch, but for masks, which broadcast, and the
/// gradient of one, of which parts give summands where it broadcasts.
fn of_batch(x: &[&TensorType], y: &[&TensorType], masks: usize, d: usize) -> Cut {
    let (rank, extent) = (x[0].rank(), x[0].shape[d]);
    let of_mask = |t: &TensorType| {
        let axis = (d + t.rank()).checked_sub(rank)?;
        (t.shape[axis] == extent).then_some(axis)
    };
    let operand = |(i, t): (usize, &&TensorType)| if i < masks { Some(d) } else { of_mask(t) };
    let mut results = Assembly::concat(&y[..3], d);
    results.extend(y[3..].iter().map(|t| of_mask(t).map_or(Assembly::Sum, Assembly::Concat)));
    Cut::along(extent, x.iter().enumerate().map(operand).collect(), results)
}
