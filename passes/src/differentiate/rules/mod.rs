//! The table of gradient rules: how each operator passes gradients on to its operands.
//!
//! A rule is given the gradients of a node's results and adds nodes that compute those of
//! the operands which need one, each as a node of its own where the arithmetic allows it, so
//! that the order and the byte limit can treat them apart. What a rule reads of the forward
//! part stays alive until then, so rules read what is small or alive anyway: a mask, a
//! result that the next operator keeps too, statistics.

mod attention;
mod elementwise;
mod indexing;
mod movement;
mod norms;
mod products;
mod recurrent;
mod reductions;
mod windows;

use super::guards::Guard;
use super::tape::Tape;
use arenic_ir::graph::{NodeId, ValueId};
use arenic_ir::op::{Family, Op, TypeError};

/// A node whose results have gradients.
pub(super) struct Local {
    pub(super) node: NodeId,
    pub(super) op: Op,
    /// Operands.
    pub(super) x: Vec<ValueId>,
    /// Whose gradients are needed.
    pub(super) wanted: Vec<bool>,
    /// Gradients of results.
    pub(super) dy: Vec<Option<ValueId>>,
    /// What says which elements of the first result count.
    pub(super) guards: Vec<Guard>,
}

impl Local {
    fn wants(&self, i: usize) -> bool {
        self.wanted.get(i).copied().unwrap_or(false)
    }

    /// The gradient of the first result, which operators with a rule differentiate through; that
    /// of another one is refused, since nothing would pass it on.
    fn dy(&self) -> Result<ValueId, TypeError> {
        match self.dy.split_first() {
            Some((&Some(dy), rest)) if rest.iter().all(Option::is_none) => Ok(dy),
            _ => {
                let op = self.op.name();
                Err(TypeError(format!("only the first result of {op} has a gradient")))
            }
        }
    }
}

/// Adds nodes for the gradients of a node's operands.
pub(in crate::differentiate) type Apply = fn(&mut Tape, &Local) -> Result<(), TypeError>;

/// How gradients pass an operator.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// They do not: its results are no continuous function of its operands, or its gradient is
    /// zero almost everywhere.
    Stops,
    /// By these nodes, from gradients of the shapes of results.
    Passes(Apply),
    /// The same, from gradients whose axes may have extent 1 for all of their elements.
    Broadcasts(Apply),
}

/// Whether gradients pass an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// They do.
    Passes,
    /// They are zero, or there are none.
    Stops,
    /// It has no rule.
    None,
}

/// Whether gradients pass an operator.
pub fn passage(op: &Op) -> Passage {
    match rule(op) {
        Some(Rule::Passes(_) | Rule::Broadcasts(_)) => Passage::Passes,
        Some(Rule::Stops) => Passage::Stops,
        None => Passage::None,
    }
}

/// The rule of an operator; `None` if it has none.
pub(super) fn rule(op: &Op) -> Option<Rule> {
    match op.family() {
        Family::Movement(op) => Some(movement::rule(op)),
        Family::Indexing(op) => indexing::rule(op),
        Family::Elementwise(op) => elementwise::rule(op),
        Family::Random(op) => Some(elementwise::rule_of_random(op)),
        Family::Reducing(op) => reductions::rule(op),
        Family::Softmax(op) => norms::rule_of_softmax(op),
        Family::Norm(op) => norms::rule(op),
        Family::Product(op) => products::rule(op),
        Family::Convolution(op) => products::rule_of_convolution(op),
        Family::Pool(op) => windows::rule(op),
        Family::Resizing(op) => windows::rule_of_resizing(op),
        Family::Attention(op) => attention::rule(op),
        Family::Recurrent(op) => recurrent::rule(op),
        // What gradients and updates are made of, and what passes that run later make.
        Family::Update(_) | Family::Collective(_) | Family::Wrapping(_) | Family::Opaque(_) => None,
    }
}
