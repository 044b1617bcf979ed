//! Rows of attention and its gradient. The mask and statistics of rows are of the type in which
//! sums are taken. Types are inferred as if heads were before positions.

use super::error::ensure;
use super::families::Attention;
use super::family::Row;
use super::{Assembly, AttentionSpec, Cut, Narrowing, TypeError, Work};
use crate::types::{TensorType, broadcast_shapes};

impl AttentionSpec {
    /// The types of queries, keys and values with heads before positions. Those without heads stay as they are.
    pub fn heads_first(&self, x: &[&TensorType]) -> [TensorType; 3] {
        if self.packed {
            let all = exchanged(x[0]);
            let keys = self.packed_heads(&all);
            let heads = all.rank().saturating_sub(3);
            return [keys.saturating_mul(self.group), keys, keys]
                .map(|n| all.with_extent(heads, n));
        }
        let turned = self.positions_first;
        [0, 1, 2].map(|i| if turned { exchanged(x[i]) } else { x[i].clone() })
    }

    /// Heads of keys in a tensor of queries, keys and values with heads before positions.
    fn packed_heads(&self, all: &TensorType) -> usize {
        let heads = all.rank().checked_sub(3).map_or(0, |axis| all.shape[axis]);
        heads / self.group.saturating_add(2)
    }

    /// Where matrices are in queries, keys, values and the result, of operands that `infer` accepts.
    pub fn matrices(&self, x: &[&TensorType]) -> [Matrices; 4] {
        let [q, k, v] = &self.heads_first(x);
        let of = |t: &TensorType| match t.shape[..] {
            [.., heads, rows, columns] => [heads, rows, columns],
            [rows, columns] => [1, rows, columns],
            _ => unreachable!("operands are matrices"),
        };
        let ([heads, rows, _], values) = (of(q), of(v));
        let mut made = [of(q), of(k), values, [heads, rows, values[2]]]
            .map(|extents| Matrices::new(extents, self.positions_first));
        if self.packed {
            let (columns, shared) = (values[2], made[1].heads);
            let all = heads + 2 * shared;
            for (of, first) in made.iter_mut().zip([0, heads, heads + shared]) {
                let (row, first) = (all * columns, first * columns);
                *of = Matrices { first, sequence: rows * row, row, ..*of };
            }
        }
        made
    }

    /// Tensors of gradients of queries, keys and values.
    pub fn gradients(&self) -> usize {
        if self.packed { 1 } else { 3 }
    }
}

/// The type with heads and positions, its last axes but one, exchanged.
fn exchanged(x: &TensorType) -> TensorType {
    let mut made = x.clone();
    if let Some(heads) = x.rank().checked_sub(3) {
        made.shape.swap(heads, heads + 1);
    }
    made
}

/// Where the matrices of an attention are in a tensor of queries, keys, values or results. Strides are in
/// elements; those of a row lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// The first element of the first matrix.
    pub first: usize,
    /// Matrices of a sequence: those along the last axis of the batch.
    pub heads: usize,
    /// From sequence to sequence.
    pub sequence: usize,
    /// From matrix to matrix of a sequence.
    pub head: usize,
    /// From row to row.
    pub row: usize,
}

impl Matrices {
    fn new([heads, rows, columns]: [usize; 3], positions_first: bool) -> Matrices {
        let sequence = heads * rows * columns;
        match positions_first {
            true => Matrices { first: 0, heads, sequence, head: columns, row: heads * columns },
            false => Matrices { first: 0, heads, sequence, head: rows * columns, row: columns },
        }
    }

    /// The first element of a matrix, counted over all sequences.
    pub fn offset(&self, matrix: usize) -> usize {
        match self.heads {
            0 => self.first,
            heads => self.first + matrix / heads * self.sequence + matrix % heads * self.head,
        }
    }
}

impl Attention<'_> {
    /// The place of the first mask among the operands; there may be none, one or two.
    pub fn first_mask(&self) -> usize {
        match *self {
            Attention::Attention { .. } => 3,
            Attention::AttentionGrad { has_result, .. } => 6 + usize::from(*has_result),
        }
    }

    /// The mask that has a gradient, if one has.
    pub fn trained_mask<'t>(&self, x: &[&'t TensorType]) -> Option<&'t TensorType> {
        match self {
            Attention::AttentionGrad { of_mask: true, .. } => x.get(self.first_mask()).copied(),
            Attention::AttentionGrad { .. } | Attention::Attention { .. } => None,
        }
    }

    /// The attributes.
    pub fn spec(&self) -> &AttentionSpec {
        let (Attention::Attention { spec } | Attention::AttentionGrad { spec, .. }) = self;
        spec
    }
}

impl Row for Attention<'_> {
    fn arity(&self) -> (usize, usize) {
        (self.first_mask(), self.first_mask() + 2)
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let masks = &x[self.first_mask()..];
        let operands = heads_first(self.spec(), x)?;
        let [q, k, _] = &operands;
        let o = result(*self.spec(), operands.each_ref(), masks)?;
        let o = if self.spec().positions_first { exchanged(&o) } else { o };
        let row = row_stats(q);
        match *self {
            Attention::Attention { .. } => Ok(vec![o, row.clone(), row]),
            Attention::AttentionGrad { of_mask, .. } => {
                let of = [&row, &row, &o, &o];
                for (t, ty) in x[3..self.first_mask()].iter().zip(of) {
                    ensure!(*t == ty, "an operand is {t}, not {ty}");
                }
                let mut gradients =
                    x[..self.spec().gradients()].iter().map(|&t| t.clone()).collect::<Vec<_>>();
                if *of_mask {
                    let Some(mask) = masks.first() else {
                        return Err(TypeError("no mask to give a gradient".into()));
                    };
                    gradients.push(mask_gradient(mask, q, k));
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
        let spec = self.spec();
        // A part would draw for other elements.
        if spec.dropout.is_some() {
            return vec![];
        }
        // The last axis has fewer keys than queries where these share some, and all three where they are one.
        let shared = usize::from(spec.group > 1 || spec.packed);
        let axes = 0..x[0].rank().saturating_sub(2 + shared);
        axes.map(|d| of_batch(*self, x, y, d)).collect()
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let operands = self.spec().heads_first(x);
        let extent = |i: usize, from_end: usize| {
            let t = &operands[i];
            t.rank().checked_sub(from_end).map_or(1, |axis| t.shape[axis].max(1) as u64)
        };
        let (d, s, e) = (extent(0, 1), extent(1, 2), extent(2, 1));
        let spec = self.spec();
        let each = match self {
            Attention::Attention { .. } => 2 * d + 2 * e + 6,
            Attention::AttentionGrad { .. } => 6 * d + 4 * e + 10,
        };
        let scores = (operands[0].elements() as u64 / d).saturating_mul(s);
        let scores = if spec.causal { scores.div_ceil(2) } else { scores };
        let each = each + if spec.dropout.is_some() { 12 } else { 0 };
        let capped = match self {
            Attention::Attention { .. } => 8,
            // Products are taken once more for the slope.
            Attention::AttentionGrad { .. } => 16 + 2 * d,
        };
        let each = each + if spec.softcap.is_some() { capped } else { 0 };
        // One tensor is read once.
        let read = [&x[..spec.gradients()], &x[3..]].concat();
        Work::of_attention(scores.saturating_mul(each), &read, y)
    }

    fn moves_elements(&self) -> bool {
        match self {
            Attention::Attention { .. } | Attention::AttentionGrad { .. } => false,
        }
    }

    fn narrowing(&self, _: usize) -> Narrowing {
        match self {
            Attention::Attention { .. } => Narrowing::product([0, 1, 2]),
            Attention::AttentionGrad { has_result: false, .. } => Narrowing::product([0, 1, 2, 5]),
            Attention::AttentionGrad { .. } => Narrowing::product([0, 1, 2, 5, 6]),
        }
    }
}

/// The types of queries, keys and values with heads before positions.
fn heads_first(spec: &AttentionSpec, x: &[&TensorType]) -> Result<[TensorType; 3], TypeError> {
    for t in &x[..3] {
        ensure!(!spec.positions_first || t.rank() > 2, "{t} has no heads after its positions");
    }
    if spec.packed {
        let all = x[0];
        let heads = all.shape[all.rank().saturating_sub(2)];
        let parts = spec.group.saturating_add(2);
        ensure!(
            spec.positions_first && heads.is_multiple_of(parts) && [x[1], x[2]] == [all; 2],
            "{all} are no queries, keys and values, {} heads of queries for one of keys",
            spec.group
        );
    }
    Ok(spec.heads_first(x))
}

/// The type of `o`, with heads before positions.
fn result(
    spec: AttentionSpec,
    [q, k, v]: [&TensorType; 3],
    masks: &[&TensorType],
) -> Result<TensorType, TypeError> {
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

/// Along an axis of the batch, counted with heads before positions. Masks broadcast, and so does the gradient of
/// one, of which parts give summands then.
fn of_batch(op: Attention, x: &[&TensorType], y: &[&TensorType], d: usize) -> Cut {
    let rank = x[0].rank();
    let is_head = d + 3 == rank;
    let own = d + usize::from(is_head && op.spec().positions_first);
    let of_mask = |t: &TensorType, extent: usize| {
        let axis = (d + t.rank()).checked_sub(rank)?;
        (t.shape[axis] == extent).then_some(axis)
    };
    let extent = x[0].shape[own];
    let operand = |(i, t): (usize, &&TensorType)| match i {
        _ if i >= op.first_mask() => of_mask(t, extent),
        // The statistics, which have no elements beside positions.
        3 | 4 => Some(d),
        _ => Some(own),
    };
    let of_result = match op {
        Attention::Attention { .. } => vec![own, d, d],
        Attention::AttentionGrad { .. } => vec![own; op.spec().gradients()],
    };
    let results = y.iter().enumerate().map(|(i, t)| match of_result.get(i) {
        Some(&axis) => Assembly::Concat(axis),
        None => of_mask(t, extent).map_or(Assembly::Sum, Assembly::Concat),
    });
    Cut::along(extent, x.iter().enumerate().map(operand).collect(), results.collect())
}
