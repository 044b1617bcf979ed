//! Regions of the graph whose tensors have their axes in another order.
//!
//! [`form`] says how an operator works on such tensors, [`choose`] which operators do: a least cut, by what each
//! operator gains and what it costs to turn a tensor where the region ends. [`rewrite`] makes the graph, in which
//! states, inputs and outputs keep their order.
//! Transposes that the graph has are such ends, and cost nothing more where one side of them is in the region
//! (Boykov, Veksler and Zabih, "Fast Approximate Energy Minimization via Graph Cuts", 2001, has labels by cuts).

mod choose;
mod form;
mod rewrite;
#[cfg(test)]
mod tests;

pub(crate) use choose::{Costs, choose};
pub(crate) use form::{Form, form};
pub(crate) use rewrite::rewrite;

use arenic_ir::graph::{Def, Graph, NodeId};
use arenic_ir::op::Op;
use arenic_ir::op::channels_last::{is_turned, to_last};
use arenic_ir::types::TensorType;

/// The order of axes in a region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Axes {
    /// Of tensors with three axes or more the second one is last.
    ChannelsLast,
    /// Of tensors with as many axes as this list, axis i is the one that it names: a transpose's permutation.
    By {
        /// The permutation.
        perm: Vec<usize>,
        /// Attentions may be in the region, with positions before heads.
        attentions: bool,
    },
}

impl Axes {
    /// True for tensors whose axes are in this order in the region.
    pub(crate) fn turns(&self, ty: &TensorType) -> bool {
        match self {
            Axes::ChannelsLast => is_turned(ty),
            Axes::By { perm, .. } => ty.rank() == perm.len(),
        }
    }

    /// The permutation that brings a tensor's axes into this order.
    pub(crate) fn perm(&self, rank: usize) -> Vec<usize> {
        match self {
            Axes::ChannelsLast => to_last(&(0..rank).collect::<Vec<_>>()),
            Axes::By { perm, .. } => perm.clone(),
        }
    }

    /// The permutation that undoes it.
    pub(crate) fn back(&self, rank: usize) -> Vec<usize> {
        inverse(&self.perm(rank))
    }

    /// A list with an entry for each axis, or with none at all, in this order.
    fn turned<T: Clone>(&self, axes: &[T]) -> Vec<T> {
        if axes.is_empty() {
            return Vec::new();
        }
        self.perm(axes.len()).into_iter().map(|p| axes[p].clone()).collect()
    }

    /// Where an axis of a tensor of this rank stands in this order.
    fn place(&self, rank: usize, axis: usize) -> usize {
        self.back(rank)[axis]
    }

    /// What a transpose in the graph is to the region.
    fn border(&self, g: &Graph, n: NodeId) -> Option<Border> {
        let node = &g.nodes[n];
        let Op::Transpose { perm } = &node.op else { return None };
        let ty = g.ty(*node.inputs.first()?);
        if !self.turns(ty) {
            return None;
        }
        let (into, out) = (self.perm(ty.rank()) == *perm, self.back(ty.rank()) == *perm);
        match (into, out) {
            // One that undoes itself ends the region where something may be in it before, or else begins it.
            (true, true) => {
                let may_turn = match g.values[node.inputs[0]].def {
                    Def::Node { node, .. } => form(g, node, self).is_some(),
                    _ => false,
                };
                Some(if may_turn { Border::Reads } else { Border::Makes })
            }
            (true, false) => Some(Border::Reads),
            (false, true) => Some(Border::Makes),
            (false, false) => None,
        }
    }
}

/// A transpose beside the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Border {
    /// Its result is its operand in the region's order.
    Reads,
    /// Its operand is its result in the region's order.
    Makes,
}

/// The permutation that undoes another one.
pub(crate) fn inverse(perm: &[usize]) -> Vec<usize> {
    let mut back = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(i, &p)| back[p] = i);
    back
}
