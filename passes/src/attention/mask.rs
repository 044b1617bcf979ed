//! What hides keys from queries.

use super::matrices::regrouped;
use crate::rewrite::GraphView;
use arenic_ir::graph::{Def, ValueId};
use arenic_ir::op::Binary;
use arenic_ir::types::{DType, broadcast_shapes};
use std::collections::BTreeSet;

/// What a mask has beyond the diagonal of a causal attention is not above this.
const CAUSAL: f64 = -1e4;

/// Scores of `f32` that are not larger in magnitude than 1e22 vanish beside this.
const ABSORBS: f64 = -1e30;

/// What scores are masked by.
pub(super) struct Mask {
    pub(super) by: By,
    /// The shape of the scores that it masks, to which it broadcasts.
    scores: Vec<usize>,
}

/// How scores are masked.
#[derive(Clone, Copy)]
pub(super) enum By {
    /// This is added.
    Added(ValueId),
    /// This number, of which nothing else is left, is added where the condition does not have this value.
    Where(ValueId, bool, f64),
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
            (Some([x, mask]), None) => {
                return Some((x, Mask { by: By::Added(mask), scores: shape.clone() }));
            }
            (Some(_), Some(_)) => return None,
            _ => {}
        }
        let [condition, a, b] = v.choice(s)?;
        let (x, low, counts) = match (v.number(a), v.number(b)) {
            (None, Some(low)) => (a, low, true),
            (Some(low), None) => (b, low, false),
            _ => return None,
        };
        let mask =
            Mask { by: By::Where(condition, counts, f64::NEG_INFINITY), scores: shape.clone() };
        // A finite number instead of a score gives a row that sees nothing no gradient.
        let is_low = low == f64::NEG_INFINITY
            || v.g.ty(x).dtype == DType::F32 && low <= ABSORBS && mask.shows_each_row(v);
        (fits(x, condition) && is_low).then_some((x, mask))
    }

    /// The masks whose sum it is, where each of them has fewer elements: then the sum need not exist.
    pub(super) fn parts(self, v: &GraphView) -> Vec<Mask> {
        let shape = |x: ValueId| &v.g.ty(x).shape;
        let By::Added(sum) = self.by else { return vec![self] };
        if shape(sum) != shape(v.base(sum)) {
            return vec![self];
        }
        let is_smaller = |x: ValueId| v.g.ty(x).elements() < v.g.ty(sum).elements();
        let parts = if let Some([a, b]) = v.binary(sum, Binary::Add) {
            [a, b].iter().all(|&x| is_smaller(x)).then_some([By::Added(a), By::Added(b)])
        } else if let Some([condition, a, b]) = v.choice(sum) {
            let absorbs = if v.g.ty(sum).dtype == DType::F32 { ABSORBS } else { f64::NEG_INFINITY };
            let low = |x: ValueId| v.number(x).filter(|&low| low <= absorbs);
            let ways = [(a, low(b), true), (b, low(a), false)];
            let found = ways.into_iter().find_map(|(x, low, counts)| Some((x, low?, counts)));
            let small = found.filter(|&(x, ..)| is_smaller(x) && is_smaller(condition));
            small.map(|(x, low, counts)| [By::Added(x), By::Where(condition, counts, low)])
        } else {
            None
        };
        match parts {
            Some(parts) => {
                let each = |by| Mask { by, scores: self.scores.clone() }.parts(v);
                parts.into_iter().flat_map(each).collect()
            }
            None => vec![self],
        }
    }

    /// True where it is computed of a state, so that it may be trained.
    pub(super) fn is_trained(&self, v: &GraphView) -> bool {
        let By::Added(mask) = self.by else { return false };
        let (mut next, mut seen) = (vec![mask], BTreeSet::new());
        while let Some(x) = next.pop() {
            let root = v.g.resolve(x).root;
            match v.g.values[root].def {
                _ if !seen.insert(root) => {}
                Def::State(_) if v.g.ty(root).dtype.is_float() => return true,
                Def::Node { node, .. } => next.extend(&v.g.nodes[node].inputs),
                _ => {}
            }
        }
        false
    }

    /// True for numbers that are added.
    pub(super) fn is_added(&self) -> bool {
        matches!(self.by, By::Added(_))
    }

    /// The value that says what is hidden.
    pub(super) fn value(&self) -> ValueId {
        match self.by {
            By::Added(x) | By::Where(x, ..) => x,
        }
    }

    /// What a shape that broadcasts to the scores becomes where these have another shape.
    pub(super) fn moved(&self, own: &[usize], scores: &[usize]) -> Option<Vec<usize>> {
        match self.scores == scores {
            // Of as many axes as before.
            true => Some(own.to_vec()),
            false => regrouped(own, &self.scores, scores),
        }
    }

    /// Its shape among scores of this shape.
    pub(super) fn shape_in(&self, v: &GraphView, scores: &[usize]) -> Option<Vec<usize>> {
        self.moved(&v.g.ty(self.value()).shape, scores)
    }

    /// Of every element in order: `Some(true)` if it hides its key, `Some(false)` if it leaves the
    /// score as it is, `None` if neither. `None` for a mask that does not follow from constants.
    fn hides(&self, v: &GraphView) -> Option<Vec<Option<bool>>> {
        let of = |x: f64| match x {
            0.0 => Some(false),
            x if x <= CAUSAL => Some(true),
            _ => None,
        };
        match self.by {
            By::Added(mask) => Some(v.numbers(mask)?.iter().map(of).collect()),
            By::Where(condition, counts, _) => {
                let bytes = v.known(condition)?;
                Some(bytes.iter().map(|&b| Some((b != 0) != counts)).collect())
            }
        }
    }

    /// The extents of its matrices, if it has all queries and keys of the scores.
    fn whole(&self, v: &GraphView) -> Option<[usize; 2]> {
        let [.., t, s] = v.g.ty(self.value()).shape[..] else { return None };
        (self.scores.ends_with(&[t, s]) && t * s > 0).then_some([t, s])
    }

    /// True where every query is known to see some key.
    fn shows_each_row(&self, v: &GraphView) -> bool {
        let (Some([_, s]), Some(hides)) = (self.whole(v), self.hides(v)) else {
            return false;
        };
        hides.chunks(s).all(|row| row.contains(&Some(false)))
    }

    /// True for a mask that is known to hide nothing.
    pub(super) fn is_open(&self, v: &GraphView) -> bool {
        self.hides(v).is_some_and(|hides| hides.iter().all(|&hides| hides == Some(false)))
    }

    /// True for a mask that hides all keys behind each query's own, and perhaps others.
    pub(super) fn hides_later_keys(&self, v: &GraphView) -> bool {
        let (Some([t, s]), Some(hides)) = (self.whole(v), self.hides(v)) else {
            return false;
        };
        hides.iter().enumerate().all(|(i, &hides)| i % s <= i / s % t || hides == Some(true))
    }

    /// True for a mask that hides these keys and no others.
    pub(super) fn is_causal(&self, v: &GraphView) -> bool {
        let (Some([t, s]), Some(hides)) = (self.whole(v), self.hides(v)) else {
            return false;
        };
        hides.iter().enumerate().all(|(i, &hides)| hides == Some(i % s > i / s % t))
    }
}
