//! Rows of recurrences and their gradients: what each operand is, and what a step multiplies.
//!
//! These operators are the recurrence alone. The product with the input and the gradients of weights are products over
//! all steps at once, and nodes of their own: the importer and `differentiate` write them.

use super::error::ensure;
use super::families::Recurrent;
use super::family::Row;
use super::{Assembly, Cut, Extents, Narrowing, TypeError, Work};
use crate::types::TensorType;
use serde::{Deserialize, Serialize};

/// The function of an [`Op::Rnn`](super::Op::Rnn).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the functions
pub enum Activation {
    Tanh,
    Relu,
}

/// What an operand or a result is; a number of gates, or of tensors as wide, comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// `[T, B, k·H]`: of every step.
    Steps(usize),
    /// `[B, H]`: before the first step.
    State,
    /// `[k·H, H]`: multiplies the state.
    Weight(usize),
    /// `[k·H]`: of every unit.
    Units(usize),
}

/// The extents of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrence {
    /// Steps.
    pub steps: usize,
    /// Sequences that are computed at once.
    pub batch: usize,
    /// Hidden units.
    pub hidden: usize,
    /// Gates of a unit.
    pub gates: usize,
}

impl Recurrence {
    /// The extents of a recurrence or of its gradient, whose units have so many gates, from its
    /// first operand.
    pub fn new(gates: usize, first: &TensorType) -> Recurrence {
        let [steps, batch, width] = first.shape[..] else { unreachable!("infer asks for steps") };
        Recurrence { steps, batch, hidden: width / gates, gates }
    }

    /// The steps in the order of the recurrence.
    pub fn order(&self, reverse: bool) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let steps = self.steps;
        (0..steps).map(move |i| if reverse { steps - 1 - i } else { i })
    }

    /// Elements of a state.
    pub fn state(&self) -> usize {
        self.batch.saturating_mul(self.hidden)
    }
}

impl Recurrent<'_> {
    /// Gates of a unit.
    pub fn gates(&self) -> usize {
        match self {
            Recurrent::Lstm { .. } | Recurrent::LstmGrad { .. } => 4,
            Recurrent::Gru { .. } | Recurrent::GruGrad { .. } => 3,
            Recurrent::Rnn { .. } | Recurrent::RnnGrad { .. } => 1,
        }
    }

    /// The extents, from the first operand.
    pub fn extents(&self, first: &TensorType) -> Recurrence {
        Recurrence::new(self.gates(), first)
    }

    /// The products of a step.
    pub fn products(&self, of: Recurrence) -> Vec<Extents> {
        let (m, hidden) = (of.batch, of.hidden);
        let forward = |gates: usize| Extents { m, k: hidden, n: gates * hidden };
        let back = |gates: usize| Extents { m, k: gates * hidden, n: hidden };
        match self {
            Recurrent::Lstm { .. } | Recurrent::Rnn { .. } => vec![forward(of.gates)],
            Recurrent::Gru { .. } => vec![forward(2), forward(1)],
            Recurrent::LstmGrad { .. } | Recurrent::RnnGrad { .. } => vec![back(of.gates)],
            Recurrent::GruGrad { .. } => vec![back(2), back(1)],
        }
    }

    /// What the operands are, of which there are so many.
    fn operands(&self, count: usize) -> Vec<Role> {
        use Role::{State, Steps, Units, Weight};
        match *self {
            Recurrent::Lstm { .. } => {
                [Steps(4), Weight(4), State, State, Units(3)][..count].to_vec()
            }
            Recurrent::LstmGrad { dcells, .. } => {
                let mut roles = vec![Steps(4), Steps(1), Weight(4), State, Steps(1)];
                roles.extend(dcells.then_some(Steps(1)));
                roles.extend((count > roles.len()).then_some(Units(3)));
                roles
            }
            Recurrent::Gru { .. } => [Steps(3), Weight(3), State, Units(1)][..count].to_vec(),
            Recurrent::GruGrad { .. } => {
                [Steps(3), Steps(1), Weight(3), State, Steps(1), Steps(1)][..count].to_vec()
            }
            Recurrent::Rnn { .. } => vec![Steps(1), Weight(1), State],
            Recurrent::RnnGrad { .. } => vec![Steps(1), Weight(1), Steps(1)],
        }
    }

    /// What the results are.
    fn results(&self) -> &'static [Role] {
        use Role::{State, Steps};
        match self {
            Recurrent::Lstm { .. } => &[Steps(1), Steps(4), Steps(1)],
            Recurrent::LstmGrad { .. } => &[Steps(4), State, State],
            Recurrent::Gru { .. } => &[Steps(1), Steps(3)],
            Recurrent::GruGrad { .. } => &[Steps(3), State],
            Recurrent::Rnn { .. } => &[Steps(1)],
            Recurrent::RnnGrad { .. } => &[Steps(1), State],
        }
    }
}

impl Row for Recurrent<'_> {
    fn arity(&self) -> (usize, usize) {
        match *self {
            Recurrent::Lstm { .. } => (4, 5),
            Recurrent::LstmGrad { dcells, .. } => {
                (5 + usize::from(*dcells), 6 + usize::from(*dcells))
            }
            Recurrent::Gru { linear_before_reset, .. } => {
                let n = 3 + usize::from(*linear_before_reset);
                (n, n)
            }
            Recurrent::GruGrad { linear_before_reset, .. } => {
                let n = 5 + usize::from(*linear_before_reset);
                (n, n)
            }
            Recurrent::Rnn { .. } | Recurrent::RnnGrad { .. } => (3, 3),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        ensure!(x[0].dtype.is_float(), "{} does not take {}", self.name(), x[0].dtype);
        let roles = self.operands(x.len());
        let (Role::Steps(gates), &[steps, batch, width]) = (roles[0], &x[0].shape[..]) else {
            return Err(TypeError(format!("{} has no steps, batch and gates", x[0])));
        };
        ensure!(steps > 0, "{} has no steps", x[0]);
        ensure!(width.is_multiple_of(gates), "{} does not fall into {gates} gates", x[0]);
        let hidden = width / gates;
        let shape = |role: Role| match role {
            Role::Steps(k) => vec![steps, batch, k.saturating_mul(hidden)],
            Role::State => vec![batch, hidden],
            Role::Weight(k) => vec![k.saturating_mul(hidden), hidden],
            Role::Units(k) => vec![k.saturating_mul(hidden)],
        };
        for (i, (t, &role)) in x.iter().zip(&roles).enumerate() {
            let want = TensorType::new(x[0].dtype, shape(role));
            ensure!(**t == want, "operand {i} is {t}, not {want}");
        }
        Ok(self.results().iter().map(|&role| TensorType::new(x[0].dtype, shape(role))).collect())
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        // A step's gates, and their gradients, are read before they are written.
        match self {
            Recurrent::Lstm { .. } | Recurrent::Gru { .. } => vec![(0, 1)],
            Recurrent::LstmGrad { .. } | Recurrent::GruGrad { .. } | Recurrent::Rnn { .. } => {
                vec![(0, 0)]
            }
            Recurrent::RnnGrad { .. } => vec![(2, 0), (0, 0)],
        }
    }

    fn cuts(&self, x: &[&TensorType], _: &[&TensorType]) -> Vec<Cut> {
        let batch = |role: &Role| match role {
            Role::Steps(_) => Some(1),
            Role::State => Some(0),
            Role::Weight(_) | Role::Units(_) => None,
        };
        let operands = self.operands(x.len()).iter().map(batch).collect();
        let results = self.results().iter().filter_map(batch);
        let results = results.map(Assembly::Concat).collect();
        vec![Cut::along(x[0].shape[1], operands, results)]
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        // A product with the recurrence's weight each step, and functions of each gate.
        let (weight, more) = match self {
            Recurrent::Lstm { .. }
            | Recurrent::Gru { .. }
            | Recurrent::Rnn { .. }
            | Recurrent::RnnGrad { .. } => (1, 4),
            Recurrent::LstmGrad { .. } | Recurrent::GruGrad { .. } => (2, 8),
        };
        let terms = x[weight].shape[1].max(1) as u64;
        let each = terms.saturating_mul(2).saturating_add(more);
        Work::new((x[0].elements() as u64).saturating_mul(each), x, y)
    }

    fn moves_elements(&self) -> bool {
        match self {
            Recurrent::Lstm { .. }
            | Recurrent::LstmGrad { .. }
            | Recurrent::Gru { .. }
            | Recurrent::GruGrad { .. }
            | Recurrent::Rnn { .. }
            | Recurrent::RnnGrad { .. } => false,
        }
    }

    fn narrowing(&self, _: usize) -> Narrowing {
        match self {
            Recurrent::Lstm { .. }
            | Recurrent::LstmGrad { .. }
            | Recurrent::Gru { .. }
            | Recurrent::GruGrad { .. }
            | Recurrent::Rnn { .. }
            | Recurrent::RnnGrad { .. } => Narrowing::wide(),
        }
    }
}
