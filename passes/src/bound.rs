//! A lower bound on the live peak that holds for every order.
//!
//! Whatever the order, while an operator runs its operands and results are alive beside
//! everything resident, and at the end of the step all outputs are. An operand and a
//! result may share bytes where the operator declares the pair, each buffer in one pair,
//! so the largest total of a matching of declared pairs is taken off. A state counts
//! once, as its home; its exit value never adds. Views and left-out results are free.
//! Beside the operands and results lies at least a least cut (see `order::cut`): tensors
//! that cross the operator have bytes of their own, since a result takes over an operand's
//! bytes only in the operator itself. The bound is for the frozen graph without
//! recomputation and swaps.

use crate::order;
use crate::{Cx, PassError};
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::plan::Plan;
use cranelift_entity::SecondaryMap;

/// Bytes of device memory below which no order of the graph can go.
///
/// # Errors
/// Operands that do not fit, or the graph cannot be planned; see [`PassError`].
pub fn lower_bound(g: &Graph, cx: &Cx) -> Result<u64, PassError> {
    let bound = Bound::new(g, cx.target.align);
    let mut largest = bound.at_the_end();
    for n in g.nodes.keys() {
        largest = largest.max(bound.while_running(n)?);
    }
    let plan = Plan::new(g, cx.target)?;
    let cut = order::certify(&order::problem(g, &plan)?).bound;
    Ok(cut.max(bound.resident() + largest))
}

struct Bound<'a> {
    g: &'a Graph,
    align: u64,
    used: SecondaryMap<ValueId, bool>,
    exits: SecondaryMap<ValueId, bool>,
}

impl<'a> Bound<'a> {
    fn new(g: &'a Graph, align: u64) -> Self {
        let mut used: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        let operands = g.nodes.values().flat_map(|n| n.inputs.iter().copied());
        let ends = g.outputs.iter().map(|o| o.value).chain(g.states.values().map(|s| s.exit));
        for v in operands.chain(ends) {
            used[g.resolve(v).root] = true;
        }
        let mut exits: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        for state in g.states.values() {
            exits[g.resolve(state.exit).root] = true;
        }
        Bound { g, align, used, exits }
    }

    fn rounded(&self, v: ValueId) -> u64 {
        self.g.ty(v).bytes().next_multiple_of(self.align)
    }

    fn is_resident(&self, v: ValueId) -> bool {
        matches!(self.g.values[v].def, Def::Const(_) | Def::State(_))
    }

    fn resident(&self) -> u64 {
        let counts = |v: &ValueId| match self.g.values[*v].def {
            Def::State(_) => true,
            Def::Const(_) => self.used[*v],
            _ => false,
        };
        self.g.values.keys().filter(counts).map(|v| self.rounded(v)).sum()
    }

    /// Bytes of distinct roots that come and go.
    fn transient(&self, values: impl Iterator<Item = ValueId>) -> Vec<ValueId> {
        let mut roots: Vec<ValueId> = values
            .map(|v| self.g.resolve(v).root)
            .filter(|&r| !self.is_resident(r) && !self.exits[r])
            .collect();
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    fn at_the_end(&self) -> u64 {
        let outputs = self.transient(self.g.outputs.iter().map(|o| o.value));
        outputs.into_iter().map(|v| self.rounded(v)).sum()
    }

    fn while_running(&self, n: NodeId) -> Result<u64, PassError> {
        let node = &self.g.nodes[n];
        let inputs = self.g.input_types(n);
        let outputs = self.g.output_types(n)?;
        let outputs: Vec<_> = outputs.iter().collect();
        let scratch = node.op.scratch_bytes(&inputs, &outputs).next_multiple_of(self.align);
        let values = node.inputs.iter().chain(node.outputs.iter().flatten()).copied();
        let alive: u64 = self.transient(values).into_iter().map(|v| self.rounded(v)).sum();
        let pairs: Vec<(ValueId, ValueId, u64)> = node
            .op
            .in_place_pairs(&inputs, &outputs)
            .into_iter()
            .filter_map(|(i, o)| {
                let (x, y) = (self.g.resolve(node.inputs[i]).root, node.outputs[o]?);
                let shares = !self.is_resident(x) && !self.exits[x] && !self.exits[y];
                shares.then(|| (x, y, self.rounded(y)))
            })
            .collect();
        Ok(alive + scratch - largest_matching(&pairs))
    }
}

/// The largest total weight of pairs without a common member. Operators declare a
/// handful, so trying all subsets is cheap.
fn largest_matching(pairs: &[(ValueId, ValueId, u64)]) -> u64 {
    let Some((&(x, y, bytes), rest)) = pairs.split_first() else { return 0 };
    let compatible: Vec<_> =
        rest.iter().copied().filter(|&(x2, y2, _)| x2 != x && y2 != y).collect();
    largest_matching(rest).max(bytes + largest_matching(&compatible))
}
