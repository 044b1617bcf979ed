//! Recurrences and their gradients: what each operand is, and what a step multiplies.

use super::Op;
use super::infer::{TypeError, ensure};
use super::sums::Extents;
use crate::types::TensorType;
use serde::{Deserialize, Serialize};

/// The function of an [`Op::Rnn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the functions
pub enum Activation {
    Tanh,
    Relu,
}

/// What an operand or a result is; a number of gates, or of tensors as wide, comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// `[T, B, k·H]`: of every step.
    Steps(usize),
    /// `[B, H]`: before the first step.
    State,
    /// `[k·H, H]`: multiplies the state.
    Weight(usize),
    /// `[k·H]`: of every unit.
    Units(usize),
}

/// The operands of a recurrence that has so many.
pub(super) fn operands(op: &Op, count: usize) -> Vec<Role> {
    use Role::{State, Steps, Units, Weight};
    match op {
        Op::Lstm { .. } => [Steps(4), Weight(4), State, State, Units(3)][..count].to_vec(),
        Op::LstmGrad { dcells, .. } => {
            let mut roles = vec![Steps(4), Steps(1), Weight(4), State, Steps(1)];
            roles.extend(dcells.then_some(Steps(1)));
            roles.extend((count > roles.len()).then_some(Units(3)));
            roles
        }
        Op::Gru { .. } => [Steps(3), Weight(3), State, Units(1)][..count].to_vec(),
        Op::GruGrad { .. } => {
            [Steps(3), Steps(1), Weight(3), State, Steps(1), Steps(1)][..count].to_vec()
        }
        Op::Rnn { .. } => vec![Steps(1), Weight(1), State],
        Op::RnnGrad { .. } => vec![Steps(1), Weight(1), Steps(1)],
        _ => unreachable!("no recurrence"),
    }
}

/// The results of a recurrence.
pub(super) fn results(op: &Op) -> &'static [Role] {
    use Role::{State, Steps};
    match op {
        Op::Lstm { .. } => &[Steps(1), Steps(4), Steps(1)],
        Op::LstmGrad { .. } => &[Steps(4), State, State],
        Op::Gru { .. } => &[Steps(1), Steps(3)],
        Op::GruGrad { .. } => &[Steps(3), State],
        Op::Rnn { .. } => &[Steps(1)],
        Op::RnnGrad { .. } => &[Steps(1), State],
        _ => unreachable!("no recurrence"),
    }
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
    /// That of a recurrence or its gradient, from the operand that comes first.
    pub fn of(op: &Op, first: &TensorType) -> Recurrence {
        let gates = match op {
            Op::Lstm { .. } | Op::LstmGrad { .. } => 4,
            Op::Gru { .. } | Op::GruGrad { .. } => 3,
            _ => 1,
        };
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

    /// The products of a step.
    pub fn products(&self, op: &Op) -> Vec<Extents> {
        let (m, hidden) = (self.batch, self.hidden);
        let forward = |gates: usize| Extents { m, k: hidden, n: gates * hidden };
        let back = |gates: usize| Extents { m, k: gates * hidden, n: hidden };
        match op {
            Op::Gru { .. } => vec![forward(2), forward(1)],
            Op::GruGrad { .. } => vec![back(2), back(1)],
            Op::LstmGrad { .. } | Op::RnnGrad { .. } => vec![back(self.gates)],
            _ => vec![forward(self.gates)],
        }
    }

    /// Elements of the CPU kernel's scratch: a step's gates, should nobody read them, and what
    /// goes from step to step.
    pub fn cpu_scratch(&self, op: &Op) -> usize {
        let states = match op {
            Op::Lstm { .. } | Op::LstmGrad { .. } => 6,
            Op::Gru { .. } | Op::GruGrad { .. } => 5,
            Op::RnnGrad { .. } => 2,
            _ => 0,
        };
        self.state().saturating_mul(states)
    }

    /// Elements of the CUDA kernels' scratch. What all threads of a step read is not what they
    /// write, so that it takes the place of two steps.
    pub fn cuda_scratch(&self, op: &Op) -> usize {
        let states = match op {
            Op::Lstm { .. } => 3,
            Op::Gru { .. } => 4,
            Op::LstmGrad { .. } | Op::GruGrad { .. } => 9,
            Op::RnnGrad { .. } => 2,
            _ => 0,
        };
        self.state().saturating_mul(states)
    }
}

/// The types of a recurrence's results.
pub(super) fn infer(op: &Op, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
    ensure!(x[0].dtype.is_float(), "{} does not take {}", op.name(), x[0].dtype);
    let roles = operands(op, x.len());
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
    Ok(results(op).iter().map(|&role| TensorType::new(x[0].dtype, shape(role))).collect())
}
