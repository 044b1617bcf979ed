//! What a step in rounds is fed and gives.

use arenic_ir::graph::{Def, Graph, Output, Ranks, State, StateId, ValueId};
use arenic_ir::op::Op;
use arenic_ir::program::Program;
use arenic_ir::rounds::Rounds;
use arenic_ir::types::TensorType;
use arenic_ir::verify::{Defect, verify};
use std::collections::HashMap;

/// Why parts make no step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoundsError {
    /// No rounds.
    #[error("the step has no rounds")]
    Count,
    /// A name of rows that is none of the main part's.
    #[error("`{0}` goes by rows, but is neither an input nor an output of a round")]
    Unknown(String),
    /// A scalar has no rows.
    #[error("`{0}` goes by rows, but is a scalar")]
    Scalar(String),
    /// The whole batch of it is too large.
    #[error("`{0}` is too large in all rounds together")]
    TooLarge(String),
    /// Two parts have other types of one input.
    #[error("the input `{name}` is {first} to one part and {second} to another")]
    Types {
        /// The input.
        name: String,
        /// The type that was found first.
        first: TensorType,
        /// Another one.
        second: TensorType,
    },
    /// Names come twice, or such things.
    #[error("the step is malformed: {0}")]
    Graph(#[from] Defect),
}

/// A graph and its program.
#[derive(Clone, Copy, Debug)]
pub struct Part<'g> {
    /// The graph.
    pub graph: &'g Graph,
    /// The program.
    pub program: &'g Program,
}

/// The ranks that run all parts, and what holds their rows in any of them.
fn all_ranks(parts: &[Part]) -> Option<Ranks> {
    let of_parts = || parts.iter().filter_map(|part| part.graph.ranks.as_ref());
    let by_rows = of_parts().flat_map(|ranks| ranks.by_rows.iter().cloned()).collect();
    Some(Ranks { count: of_parts().next()?.count, by_rows })
}

/// How many parts there are.
pub(super) const PARTS: usize = 3;

/// Places of the parts, in the order of their turns.
pub(super) const BEFORE: usize = 0;
pub(super) const MAIN: usize = 1;
pub(super) const AFTER: usize = 2;

/// An input of the whole step.
#[derive(Clone, Debug)]
pub(super) struct Fed {
    /// The input in the step's graph.
    pub(super) value: ValueId,
    /// Its bytes, of all rounds together.
    pub(super) bytes: usize,
    /// A round gets its rows; else all of it.
    pub(super) by_rows: bool,
    /// The parts that have it, and what it is there.
    pub(super) to: Vec<(usize, ValueId)>,
}

/// An output of the whole step.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// The part that gives it, and its place among the part's outputs.
    pub(super) part: usize,
    pub(super) index: usize,
    /// A round gives its rows; else it is as the last round left it.
    pub(super) by_rows: bool,
    /// Its bytes, of all rounds together.
    pub(super) bytes: usize,
}

/// What a step in rounds is fed, keeps and gives, as a graph of one operator that says nothing of
/// how; and where all of it is in the parts.
#[derive(Clone, Debug)]
pub struct WholeStep<'g> {
    graph: Graph,
    pub(super) count: u32,
    /// In the order of their turns.
    pub(super) parts: [Part<'g>; PARTS],
    pub(super) inputs: Vec<Fed>,
    /// Of constants, and states as the step begins, a part that has them, and what they are there.
    pub(super) homes: HashMap<ValueId, (usize, ValueId)>,
    /// The states of the step's graph as they are in the parts.
    pub(super) states: Vec<StateId>,
    pub(super) outputs: Vec<Given>,
}

impl<'g> WholeStep<'g> {
    /// The step whose rounds are `main`.
    ///
    /// # Errors
    /// The parts make no step.
    pub fn new(main: Part<'g>, rounds: &Rounds<Part<'g>>) -> Result<Self, RoundsError> {
        if rounds.count == 0 {
            return Err(RoundsError::Count);
        }
        let main_names: Vec<&str> = main
            .graph
            .inputs()
            .map(|v| main.graph.values[v].name.as_str())
            .chain(main.graph.outputs.iter().map(|o| o.name.as_str()))
            .collect();
        if let Some(name) = rounds.by_rows.iter().find(|n| !main_names.contains(&n.as_str())) {
            return Err(RoundsError::Unknown(name.clone()));
        }
        let parts = [rounds.before, main, rounds.after];
        let by_rows = |part, name: &str| part == MAIN && rounds.by_rows.contains(name);
        let whole = |part, name: &str, ty: &TensorType| match by_rows(part, name) {
            true => all_rounds(name, ty, rounds.count),
            false => Ok(ty.clone()),
        };
        let mut step = WholeStep {
            graph: Graph {
                name: main.graph.name.clone(),
                ranks: all_ranks(&parts),
                ..Graph::default()
            },
            count: rounds.count,
            parts,
            inputs: Vec::new(),
            homes: HashMap::new(),
            states: Vec::new(),
            outputs: Vec::new(),
        };
        step.add_inputs(by_rows, whole)?;
        step.add_homes();
        step.add_outputs(by_rows, whole)?;
        verify(&step.graph)?;
        Ok(step)
    }

    /// The step: its inputs, constants, states without those that are carried from part to part,
    /// and outputs: those of the part after the rounds, then a round's, then those of the part
    /// before. Of what goes by rows it has those of all rounds.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The parts, in the order of their turns.
    pub(crate) fn parts(&self) -> [Part<'g>; PARTS] {
        self.parts
    }

    /// How many rounds a step has.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Inputs of one name are one, whichever parts have them.
    fn add_inputs(
        &mut self,
        by_rows: impl Fn(usize, &str) -> bool,
        whole: impl Fn(usize, &str, &TensorType) -> Result<TensorType, RoundsError>,
    ) -> Result<(), RoundsError> {
        let mut places: HashMap<&str, usize> = HashMap::new();
        for part in [MAIN, BEFORE, AFTER] {
            let g = self.parts[part].graph;
            for v in g.inputs() {
                let name = g.values[v].name.as_str();
                let ty = whole(part, name, g.ty(v))?;
                let place = *places.entry(name).or_insert(self.inputs.len());
                match self.inputs.get_mut(place) {
                    None => self.inputs.push(Fed {
                        bytes: ty.bytes() as usize,
                        value: self.graph.add_input(name, ty),
                        by_rows: by_rows(part, name),
                        to: vec![(part, v)],
                    }),
                    Some(fed) => {
                        let first = self.graph.ty(fed.value);
                        if *first != ty {
                            let (name, first) = (name.to_owned(), first.clone());
                            return Err(RoundsError::Types { name, first, second: ty });
                        }
                        fed.to.push((part, v));
                    }
                }
            }
        }
        Ok(())
    }

    /// Constants of every part, and states, which all of them have.
    fn add_homes(&mut self) {
        let (g, parts) = (&mut self.graph, self.parts);
        for (part, of) in parts.iter().map(|part| part.graph).enumerate() {
            for (v, data) in of.consts() {
                let value = g.add_const(of.values[v].name.clone(), of.ty(v).clone(), data.clone());
                self.homes.insert(value, (part, v));
            }
        }
        let main = parts[MAIN].graph;
        for (s, state) in main.states.iter().filter(|(_, state)| !state.carried) {
            let ty = main.ty(state.enter).clone();
            let enter = g.add_value(state.name.clone(), ty, Def::State(g.states.next_key()));
            g.states.push(State { enter, exit: enter, ..state.clone() });
            self.homes.insert(enter, (MAIN, state.enter));
            self.states.push(s);
        }
    }

    /// Outputs, and what states leave with, are results of one operator that reads everything.
    fn add_outputs(
        &mut self,
        by_rows: impl Fn(usize, &str) -> bool,
        whole: impl Fn(usize, &str, &TensorType) -> Result<TensorType, RoundsError>,
    ) -> Result<(), RoundsError> {
        let mut given = Vec::new();
        for part in [AFTER, MAIN, BEFORE] {
            let of = self.parts[part].graph;
            for (index, output) in of.outputs.iter().enumerate() {
                let ty = whole(part, &output.name, of.ty(output.value))?;
                let (by_rows, bytes) = (by_rows(part, &output.name), ty.bytes() as usize);
                self.outputs.push(Given { part, index, by_rows, bytes });
                given.push((output.name.clone(), ty));
            }
        }
        let g = &mut self.graph;
        let read: Vec<ValueId> = g.values.keys().collect();
        let states: Vec<(StateId, TensorType)> =
            g.states.iter().map(|(s, state)| (s, g.ty(state.enter).clone())).collect();
        let types = given.iter().map(|(_, ty)| ty).chain(states.iter().map(|(_, ty)| ty));
        let op = Op::Opaque { results: types.map(|ty| ty.bytes() as usize).collect() };
        let malformed = |e: arenic_ir::op::TypeError| {
            RoundsError::Graph(Defect { at: "step".into(), message: e.to_string() })
        };
        let node = g.add_node("step", op, read).map_err(malformed)?;
        let mut results = g.nodes[node].outputs.clone().into_iter().flatten();
        for (name, ty) in given {
            let Some(bytes) = results.next() else { break };
            let value = g.add_view(name.clone(), ty, bytes, 0);
            g.outputs.push(Output { name, value });
        }
        for ((s, ty), bytes) in states.into_iter().zip(results) {
            g.states[s].exit = g.add_view("", ty, bytes, 0);
        }
        Ok(())
    }
}

/// The type of all rounds' rows together.
fn all_rounds(name: &str, ty: &TensorType, count: u32) -> Result<TensorType, RoundsError> {
    let Some(&rows) = ty.shape.first() else { return Err(RoundsError::Scalar(name.to_owned())) };
    let rows = rows.checked_mul(count as usize);
    let whole = rows.map(|rows| ty.with_extent(0, rows));
    let fits = whole.filter(|ty| ty.checked_bytes().is_some());
    fits.ok_or_else(|| RoundsError::TooLarge(name.to_owned()))
}
