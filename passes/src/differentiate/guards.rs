//! Which elements of a value any `Where` selects.
//!
//! An element that is not selected has the gradient zero, whatever its branch computed of it.
//! Where the branch is no number there, as a logarithm of zero or an exponential that overflows,
//! so is its slope, and zero times the slope would be NaN. So a rule that multiplies by a slope
//! selects once more behind it: the gradient of what is not selected stays zero.
//!
//! The condition of a `Where` holds for what one of its branches is made of element by element,
//! or as terms of sums whose results are elements of the branch, as long as nobody else reads it
//! and the condition broadcasts to it. Behind anything else it is forgotten: there an element has a
//! part in several of the result, of which some may be selected.

use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::op::{Op, Reduction};
use arenic_ir::types::TensorType;
use cranelift_entity::SecondaryMap;

/// Elements that count: those where the condition is `selected`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    /// Of bools; it broadcasts to what it guards.
    pub(super) condition: ValueId,
    pub(super) selected: bool,
}

/// The guards of values all of whose readers were visited.
#[derive(Default)]
pub(super) struct Guards {
    /// Those that all readers so far have in common; `None` if there was no reader.
    of: SecondaryMap<ValueId, Option<Vec<Guard>>>,
}

impl Guards {
    /// What guards a value, once all of its readers on the gradients' way were visited.
    pub(super) fn of(&self, v: ValueId) -> &[Guard] {
        self.of[v].as_deref().unwrap_or_default()
    }

    /// A node with the result `y` reads operand `i`, through which gradients pass.
    pub(super) fn read(&mut self, g: &Graph, op: &Op, x: &[ValueId], i: usize, y: ValueId) {
        let mut guards = Vec::new();
        if passes(op) {
            guards.extend_from_slice(self.of(y));
            if matches!(op, Op::Where) {
                guards.push(Guard { condition: x[0], selected: i == 1 });
            }
            // What one element of the operand has a part in has one element of the condition.
            guards.retain(|guard| broadcasts(g.ty(guard.condition), g.ty(x[i])));
        }
        let common = &mut self.of[x[i]];
        match common {
            None => *common = Some(guards),
            Some(common) => common.retain(|guard| guards.contains(guard)),
        }
    }
}

/// True where elements of operands have a part only in those of the result to which they broadcast,
/// or of which they are terms.
fn passes(op: &Op) -> bool {
    match op {
        Op::Unary { .. } | Op::Binary { .. } | Op::Where | Op::Clip { .. } | Op::Cast { .. } => {
            true
        }
        Op::Reduce { f: Reduction::Sum | Reduction::Mean, keep, .. } => *keep,
        _ => false,
    }
}

/// True where a tensor broadcasts to the shape of another.
fn broadcasts(from: &TensorType, to: &TensorType) -> bool {
    let pairs = from.shape.iter().rev().zip(to.shape.iter().rev());
    from.rank() <= to.rank() && pairs.into_iter().all(|(&from, &to)| from == 1 || from == to)
}
