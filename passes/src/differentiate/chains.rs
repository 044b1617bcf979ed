//! Chains of elementwise operators that depend on one tensor: an activation function written in
//! several operators, say GELU.
//!
//! The backward part of a chain needs most of the values inside of it. All of them follow from
//! the tensor that the chain begins with, at the cost of arithmetic alone, so that one is kept
//! and the others are computed again, with the same bits. What the chain ends with is read by
//! others, who may keep it themselves, and is read as it is.
//!
//! A factor with few elements, one for each row say, is kept beside it: of an RMS normalisation
//! `x · r · w` with `r = 1 / √(mean(x²) + ε)` (Zhang and Sennrich, 2019), `x` and `r` stay and `x · r` is
//! computed again for the gradient of `w`.

use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::op::{Binary, Op};
use cranelift_entity::SecondaryMap;

/// How many times fewer elements a factor has that is kept beside what a chain begins with.
const FEWER: usize = 8;

pub(super) struct Chains {
    /// The tensor that a value's chain begins with; `None` if it begins one itself.
    base: SecondaryMap<ValueId, Option<ValueId>>,
    inside: SecondaryMap<ValueId, bool>,
    /// Values that were computed again.
    pub(super) again: SecondaryMap<ValueId, Option<ValueId>>,
}

impl Chains {
    /// Those of a forward graph.
    pub(super) fn new(g: &Graph) -> Chains {
        let mut base: SecondaryMap<ValueId, Option<ValueId>> = SecondaryMap::new();
        for node in g.nodes.values() {
            let [Some(y)] = node.outputs[..] else { continue };
            if !is_elementwise(&node.op) {
                continue;
            }
            let mut own = None;
            let mut is_one = true;
            let is_factor = |x: ValueId| {
                matches!(node.op, Op::Binary { f: Binary::Mul })
                    && g.ty(x).elements().saturating_mul(FEWER) <= g.ty(y).elements()
            };
            for &x in node.inputs.iter().filter(|&&x| !is_number(g, x) && !is_factor(x)) {
                let begins = base[x].unwrap_or(x);
                is_one &= *own.get_or_insert(begins) == begins && g.ty(x).shape == g.ty(y).shape;
            }
            base[y] = own.filter(|_| is_one);
        }
        // A value is inside where everybody who reads it goes on with the chain.
        let mut inside: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        let (readers, kept) = (g.readers(), g.kept());
        for (v, begins) in base.iter().filter_map(|(v, b)| b.map(|b| (v, b))) {
            let goes_on = |y: &ValueId| base[*y] == Some(begins);
            inside[v] = !kept[v]
                && !readers[v].is_empty()
                && readers[v].iter().all(|&n| g.result(n).as_ref().is_some_and(goes_on));
        }
        Chains { base, inside, again: SecondaryMap::new() }
    }

    pub(super) fn is_inside(&self, v: ValueId) -> bool {
        self.inside[v] && self.base[v].is_some()
    }
}

/// A constant, or one number for all elements.
fn is_number(g: &Graph, v: ValueId) -> bool {
    matches!(g.values[v].def, Def::Const(_)) || g.ty(v).elements() == 1
}

fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary { .. } | Op::Binary { .. } | Op::Where | Op::Clip { .. } | Op::Cast { .. }
    )
}
