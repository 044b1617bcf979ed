//! What hides keys from queries.

use crate::rewrite::GraphView;
use arenic_ir::graph::ValueId;
use arenic_ir::op::Binary;
use arenic_ir::types::{DType, broadcast_shapes};

/// What a mask has beyond the diagonal of a causal attention is not above this.
const CAUSAL: f64 = -1e4;

/// Scores of `f32` that are not larger in magnitude than 1e22 vanish beside this.
const ABSORBS: f64 = -1e30;

/// What scores are masked by.
#[derive(Clone, Copy)]
pub(super) enum Mask {
    /// This is added.
    Added(ValueId),
    /// Scores count where the condition has this value; others are −∞, or as low.
    Where(ValueId, bool),
}

impl Mask {
    /// The scores that `s` masks, and their mask; `is_scores` tells which summand is the scores.
    pub(super) fn of(
        v: &GraphView,
        s: ValueId,
        is_scores: &dyn Fn(ValueId) -> bool,
    ) -> Option<(ValueId, Mask)> {
        let shape = &v.g.ty(v.base(s)).shape;
        let fits = |x: ValueId, mask: ValueId| {
            &v.g.ty(x).shape == shape
                && broadcast_shapes(&v.g.ty(mask).shape, shape).as_ref() == Some(shape)
        };
        let mut sums =
            v.commuted(s, Binary::Add).filter(|&[x, mask]| fits(x, mask) && is_scores(x));
        match (sums.next(), sums.next()) {
            (Some([x, mask]), None) => return Some((x, Mask::Added(mask))),
            (Some(_), Some(_)) => return None,
            _ => {}
        }
        let [condition, a, b] = v.choice(s)?;
        let (x, low, counts) = match (v.number(a), v.number(b)) {
            (None, Some(low)) => (a, low, true),
            (Some(low), None) => (b, low, false),
            _ => return None,
        };
        let mask = Mask::Where(condition, counts);
        // A finite number instead of a score gives a row that sees nothing no gradient.
        let is_low = low == f64::NEG_INFINITY
            || v.g.ty(x).dtype == DType::F32 && low <= ABSORBS && mask.shows_each_row(v, shape);
        (fits(x, condition) && is_low).then_some((x, mask))
    }

    /// The value that is added.
    pub(super) fn added(&self) -> Option<ValueId> {
        match *self {
            Mask::Added(mask) => Some(mask),
            Mask::Where(..) => None,
        }
    }

    /// The value that says what is hidden.
    fn value(&self) -> ValueId {
        match *self {
            Mask::Added(x) | Mask::Where(x, _) => x,
        }
    }

    /// Of every element in order: `Some(true)` if it hides its key, `Some(false)` if it leaves the
    /// score as it is, `None` if neither. `None` for a mask that does not follow from constants.
    fn hides(&self, v: &GraphView) -> Option<Vec<Option<bool>>> {
        let of = |x: f64| match x {
            0.0 => Some(false),
            x if x <= CAUSAL => Some(true),
            _ => None,
        };
        match *self {
            Mask::Added(mask) => Some(v.numbers(mask)?.iter().map(of).collect()),
            Mask::Where(condition, counts) => {
                let bytes = v.known(condition)?;
                Some(bytes.iter().map(|&b| Some((b != 0) != counts)).collect())
            }
        }
    }

    /// The extents of its matrices, if it has all queries and keys of scores of this shape.
    fn whole(&self, v: &GraphView, scores: &[usize]) -> Option<[usize; 2]> {
        let [.., t, s] = v.g.ty(self.value()).shape[..] else { return None };
        (scores.ends_with(&[t, s]) && t * s > 0).then_some([t, s])
    }

    /// True where every query is known to see some key.
    fn shows_each_row(&self, v: &GraphView, scores: &[usize]) -> bool {
        let (Some([_, s]), Some(hides)) = (self.whole(v, scores), self.hides(v)) else {
            return false;
        };
        hides.chunks(s).all(|row| row.contains(&Some(false)))
    }

    /// True for a mask that hides all keys behind each query's own, and perhaps others.
    pub(super) fn hides_later_keys(&self, v: &GraphView, scores: &[usize]) -> bool {
        let (Some([t, s]), Some(hides)) = (self.whole(v, scores), self.hides(v)) else {
            return false;
        };
        hides.iter().enumerate().all(|(i, &hides)| i % s <= i / s % t || hides == Some(true))
    }

    /// True for a mask that hides these keys and no others.
    pub(super) fn is_causal(&self, v: &GraphView, scores: &[usize]) -> bool {
        let (Some([t, s]), Some(hides)) = (self.whole(v, scores), self.hides(v)) else {
            return false;
        };
        hides.iter().enumerate().all(|(i, &hides)| hides == Some(i % s > i / s % t))
    }
}
