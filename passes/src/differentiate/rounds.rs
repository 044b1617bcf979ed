//! Several micro-batches in one step: one round for each, and the update after the last.
//!
//! Every fed tensor has as many times the rows; a round reads its part of them. Gradients and the
//! loss are means over the rounds, as sums of terms. States that the forward part gives a new value
//! (running statistics) pass from round to round as from step to step, and a random operator draws
//! anew in each. So a step is what as many steps without an update would be.

use super::tape::Tape;
use super::{Differentiate, DifferentiateError, free, settle, states, trained};
use crate::rounds::{Division, with_common_states};
use crate::{Cx, PassError};
use arenic_ir::Rounds;
use arenic_ir::graph::{Graph, Output, StateId, ValueId};
use arenic_ir::op::{Binary, Op, TypeError};
use arenic_ir::types::TensorType;

/// What is summed over the rounds: the parameter whose gradient it is, or none for the loss.
struct Sum {
    of: Option<StateId>,
    name: String,
    ty: TensorType,
}

impl Differentiate {
    /// The step of a forward graph in `count` rounds.
    pub(super) fn in_rounds(
        &self,
        forward: &Graph,
        count: u32,
        cx: &Cx,
    ) -> Result<Division, PassError> {
        let (main, sums) = self.round(forward, count, cx)?;
        let before = self.zeros(forward, &sums, cx).map_err(PassError::from)?;
        let after = self.update(forward, &sums, cx)?;
        let [after, before, main] = with_common_states([after, before, main]);
        let fed = main.inputs().filter(|&v| main.ty(v).rank() > 0);
        let by_rows = fed.map(|v| main.values[v].name.clone()).collect();
        Ok(Division { main, rounds: Rounds { count, by_rows, before, after } })
    }

    /// Loss and gradients of one micro-batch, added to the sums so far.
    fn round(
        &self,
        forward: &Graph,
        count: u32,
        cx: &Cx,
    ) -> Result<(Graph, Vec<Sum>), DifferentiateError> {
        let mut g = forward.clone();
        let parameters = self.parameters(&g)?;
        free(&g, "lr")?;
        let output = self.scored(&g)?;
        let target = self.target(&mut g, output)?;
        g.outputs.clear();
        for v in g.inputs().filter(|&v| g.ty(v).rank() > 0) {
            let ty = g.ty(v);
            let rows = ty.shape[0].checked_mul(count as usize);
            let whole = rows.map(|rows| ty.with_extent(0, rows));
            if whole.is_none_or(|whole| whole.checked_bytes().is_none()) {
                return Err(TypeError(format!("{count} times the batch {ty} is too large")).into());
            }
        }
        let trained = trained(&parameters, &g);
        let mut t = Tape::new(&mut g, cx.evaluate);
        let part = self.micro_batch(&mut t, output, target, &trained, count)?;
        t.name = "loss".into();
        let loss = t.scaled(part.loss, 1.0 / f64::from(count))?;
        let mut terms = vec![(None, "loss".to_owned(), loss)];
        for (state, gradient) in states(&parameters).into_iter().zip(part.gradients) {
            let name = format!("{}.grad", t.g.states[state].name);
            terms.extend(gradient.map(|term| (Some(state), name, term)));
        }
        let mut sums = Vec::with_capacity(terms.len());
        for (of, name, term) in terms {
            let sum = Sum { of, name: format!("sum {name}"), ty: t.ty(term) };
            t.name = "accumulate".into();
            let s = sum.carried_in(t.g)?;
            let enter = t.g.states[s].enter;
            t.g.states[s].exit = t.binary(Binary::Add, enter, term)?;
            sums.push(sum);
        }
        settle(&mut g, &parameters);
        Ok((g.compacted(|_| true), sums))
    }

    /// Sets the sums to zero.
    fn zeros(&self, forward: &Graph, sums: &[Sum], cx: &Cx) -> Result<Graph, DifferentiateError> {
        let mut g = states_of(forward);
        let mut t = Tape::new(&mut g, cx.evaluate);
        t.name = "zero".into();
        for sum in sums {
            let s = sum.carried_in(t.g)?;
            let zero = t.scalar(sum.ty.dtype, 0.0);
            t.g.states[s].exit = match &sum.ty.shape[..] {
                [] => t.emit(Op::Copy, vec![zero])?,
                shape => t.emit(Op::Expand { shape: shape.to_vec() }, vec![zero])?,
            };
        }
        settle(&mut g, &self.parameters(forward)?);
        Ok(g.compacted(|_| true))
    }

    /// Updates the parameters by the sums.
    fn update(&self, forward: &Graph, sums: &[Sum], cx: &Cx) -> Result<Graph, DifferentiateError> {
        let mut g = states_of(forward);
        let mut gradients: Vec<(StateId, ValueId)> = Vec::new();
        for sum in sums {
            let s = sum.carried_in(&mut g)?;
            let value = g.states[s].enter;
            match sum.of {
                Some(parameter) => gradients.push((parameter, value)),
                None => g.outputs.push(Output { name: "loss".into(), value }),
            }
        }
        let mut t = Tape::new(&mut g, cx.evaluate);
        self.updates(&mut t, gradients)?;
        settle(&mut g, &self.parameters(forward)?);
        Ok(g.compacted(|_| true))
    }
}

impl Sum {
    fn carried_in(&self, g: &mut Graph) -> Result<StateId, DifferentiateError> {
        free(g, &self.name)?;
        let s = g.add_state(&self.name, self.ty.clone(), None);
        g.states[s].carried = true;
        Ok(s)
    }
}

/// A graph of the same states, which keep their values.
fn states_of(g: &Graph) -> Graph {
    let mut new = Graph { name: g.name.clone(), ..Graph::default() };
    for state in g.states.values() {
        let s = new.add_state(&state.name, g.ty(state.enter).clone(), state.init.clone());
        new.states[s].rows = state.rows;
    }
    new
}
