//! Steps in rounds: how passes divide a step, and how the parts come to have common states.

use crate::{Cx, PassError};
use arenic_ir::Rounds;
use arenic_ir::graph::{Def, Graph, State};
use std::collections::HashMap;

/// A step as three graphs with the same states.
#[derive(Clone, Debug)]
pub struct Division {
    /// What one round computes.
    pub main: Graph,
    /// What runs before the first round and after the last.
    pub rounds: Rounds<Graph>,
}

/// A graph pass that divides a step into rounds.
pub trait Divides {
    /// Numbers of rounds that are possible, increasing; 1 is the step as it is.
    ///
    /// # Errors
    /// The step cannot run in rounds.
    fn counts(&self, g: &Graph) -> Result<Vec<u32>, PassError>;

    /// The step in so many rounds, at least 2.
    ///
    /// # Errors
    /// The step cannot run in so many rounds.
    fn divide(&self, g: &Graph, count: u32, cx: &Cx) -> Result<Division, PassError>;
}

/// Gives all parts of a step the same states in the same order: those of the first part, then those
/// that others add. Initial values go to the last part.
pub(crate) fn with_common_states(parts: [Graph; 3]) -> [Graph; 3] {
    let mut all: Vec<(State, arenic_ir::TensorType)> = Vec::new();
    let mut index: HashMap<String, usize> = HashMap::new();
    for g in &parts {
        for state in g.states.values() {
            let at = *index.entry(state.name.clone()).or_insert_with(|| {
                all.push((state.clone(), g.ty(state.enter).clone()));
                all.len() - 1
            });
            let init = &mut all[at].0.init;
            *init = init.take().or_else(|| state.init.clone());
        }
    }
    let mut left = parts.len();
    parts.map(|mut g| {
        left -= 1;
        let own = std::mem::take(&mut g.states);
        let mut by_name: HashMap<String, State> =
            own.into_iter().map(|(_, state)| (state.name.clone(), state)).collect();
        for (state, ty) in &all {
            let init = state.init.clone().filter(|_| left == 0);
            match by_name.remove(&state.name) {
                Some(own) => {
                    let enter = own.enter;
                    let s = g.states.push(State { init, ..own });
                    g.values[enter].def = Def::State(s);
                }
                None => {
                    let s = g.add_state(&state.name, ty.clone(), init);
                    g.states[s].carried = state.carried;
                    g.states[s].rows = state.rows;
                    g.states[s].part_of.clone_from(&state.part_of);
                }
            }
        }
        g
    })
}
