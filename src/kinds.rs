//! What the tensors of a training step are for. A graph says what is computed, not what for;
//! this is read off its shape:
//!
//! - *forward* is what the loss depends on, and *backward* what else the next values of states
//!   depend on. What leads to neither (an accuracy, say) counts as forward;
//! - a state that the forward part reads is a *weight* (a parameter or a statistic), any other
//!   is the *optimizer's state*;
//! - results of the forward part are *activations*, and so are masks and indices, which are
//!   no floating-point numbers; other results of the backward part are *gradients*, but for the
//!   next values of states, which are *updates*.
//!
//! The loss is what [`loss`] says, or the first output of all.
//!
//! A step in rounds is several graphs, and a later one reads what an earlier one leaves in states:
//! the loss is known after the last round, from a sum that rounds carry in a state. Such a state
//! and its next value are what the sum is, an activation or a gradient.

use arenic_ir::graph::{Def, Graph, NodeId, StateId, ValueId};
use cranelift_entity::SecondaryMap;
use std::collections::BTreeSet;

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Fed before every step.
    Input,
    /// The same in every step.
    Constant,
    /// A state that the forward part reads.
    Weight,
    /// A state that the update alone reads.
    OptimizerState,
    /// A result of the forward part, or a mask or indices.
    Activation,
    /// Another result of the backward part.
    Gradient,
    /// The next value of a state.
    Update,
    /// Another copy of a value, in this or another memory.
    Copy,
    /// What a kernel works with while it runs.
    Scratch,
}

impl Kind {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Input => "input",
            Kind::Constant => "constant",
            Kind::Weight => "weight",
            Kind::OptimizerState => "optimizer state",
            Kind::Activation => "activation",
            Kind::Gradient => "gradient",
            Kind::Update => "update",
            Kind::Copy => "copy",
            Kind::Scratch => "scratch",
        }
    }
}

/// The kinds of a graph's values.
pub(crate) struct Kinds {
    of: SecondaryMap<ValueId, Option<Kind>>,
}

impl Kinds {
    /// Reads off a step's graphs, in the order in which they run, what values of one of them are for.
    pub(crate) fn new(turns: &[&Graph], shown: usize) -> Kinds {
        let with_loss = turns.iter().rposition(|g| loss(g).is_some());
        let with_loss = with_loss.unwrap_or(turns.len().saturating_sub(1));
        let forward = needs(turns, |turn, g| match turn == with_loss {
            true => g.outputs.get(loss(g).unwrap_or(0)).map(|o| o.value).into_iter().collect(),
            false => Vec::new(),
        });
        let lasting =
            |g: &Graph| g.states.values().filter(|s| !s.carried).map(|s| s.exit).collect();
        let backward = needs(turns, |_, g| lasting(g));

        let mut of: SecondaryMap<ValueId, Option<Kind>> = SecondaryMap::new();
        let Some(&g) = turns.get(shown) else { return Kinds { of } };
        let result = |is_forward: bool, is_backward: bool, v: ValueId| {
            let is_gradient = is_backward && !is_forward && g.ty(v).dtype.is_float();
            if is_gradient { Kind::Gradient } else { Kind::Activation }
        };
        let any = |needs: &[Needs], s: StateId| {
            needs.iter().any(|needs| needs.states.contains(g.states[s].name.as_str()))
        };
        let state = |s: StateId, lasting: Kind| match g.states[s].carried {
            true => result(any(&forward, s), any(&backward, s), g.states[s].enter),
            false => lasting,
        };
        for (v, value) in &g.values {
            of[v] = match value.def {
                Def::Input => Some(Kind::Input),
                Def::Const(_) => Some(Kind::Constant),
                Def::State(s) if any(&forward, s) => Some(state(s, Kind::Weight)),
                Def::State(s) => Some(state(s, Kind::OptimizerState)),
                Def::Node { node, .. } => {
                    Some(result(forward[shown].nodes[node], backward[shown].nodes[node], v))
                }
                Def::View { .. } => None,
            };
        }
        for s in g.states.keys() {
            let root = g.resolve(g.states[s].exit).root;
            if let Def::Node { .. } = g.values[root].def {
                of[root] = Some(state(s, Kind::Update));
            }
        }
        Kinds { of }
    }

    /// The kind of a root, that is, of any value but a view.
    pub(crate) fn of(&self, root: ValueId) -> Kind {
        self.of[root].unwrap_or(Kind::Activation)
    }
}

/// Which output is the loss: the scalar of that name, else the first floating-point scalar.
pub(crate) fn loss(g: &Graph) -> Option<usize> {
    let scalar = |i: &usize| g.ty(g.outputs[*i].value).elements() == 1;
    let float = |i: &usize| g.ty(g.outputs[*i].value).dtype.is_float();
    let mut scalars = (0..g.outputs.len()).filter(scalar);
    let named = scalars.clone().find(|&i| g.outputs[i].name == "loss");
    named.or_else(|| scalars.find(float))
}

/// What some values of a graph are computed from.
struct Needs<'g> {
    nodes: SecondaryMap<NodeId, bool>,
    /// Names of the states, which all graphs of a step have in common.
    states: BTreeSet<&'g str>,
}

/// What each of a step's graphs computes, and reads of its states, for values of it and of later ones.
fn needs<'g>(turns: &[&'g Graph], of: impl Fn(usize, &Graph) -> Vec<ValueId>) -> Vec<Needs<'g>> {
    let mut all: Vec<Needs> = Vec::with_capacity(turns.len());
    for (turn, g) in turns.iter().enumerate().rev() {
        let mut needed: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        let later = all.last().map(|needs| &needs.states);
        let is_read = |name: &str| later.is_some_and(|states| states.contains(name));
        let left = g.states.values().filter(|s| is_read(&s.name)).map(|s| s.exit);
        left.chain(of(turn, g)).for_each(|v| needed[g.resolve(v).root] = true);
        let mut nodes: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        // Values precede their readers.
        for (n, node) in g.nodes.iter().rev() {
            if node.outputs.iter().flatten().any(|&v| needed[v]) {
                nodes[n] = true;
                node.inputs.iter().for_each(|&v| needed[g.resolve(v).root] = true);
            }
        }
        let states = g.states.values().filter(|s| needed[s.enter]).map(|s| s.name.as_str());
        all.push(Needs { nodes, states: states.collect() });
    }
    all.reverse();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use arenic_ir::text::Module;

    /// `w -= lr · d`, with momentum `m`, and an accuracy that nobody trains on.
    const STEP: &str = r#"graph "step" {
  input v0: f32[4] "x"
  input v1: f32[] "lr"
  const v2: f32[] "momentum" = [0.9]
  state s0 "w": v3: f32[4] -> v11
  state s1 "m": v4: f32[4] -> v10
  n0 binary {"f":"mul"} (v0, v3) -> (v5: f32[4] "y")
  view v6: f32[2,2] = v5+0 "square"
  n1 reduce {"f":"sum","axes":[0,1],"keep":false} (v6) -> (v7: f32[] "loss")
  n2 reduce {"f":"max","axes":[0],"keep":false} (v5) -> (v8: f32[] "accuracy")
  n3 binary {"f":"mul"} (v5, v0) -> (v9: f32[4] "d")
  n4 binary {"f":"greater"} (v5, v0) -> (v12: bool[4] "mask")
  n5 where (v12, v9, v0) -> (v13: f32[4] "masked")
  n6 binary {"f":"add"} (v4, v13) -> (v10: f32[4] "out_m")
  n7 binary {"f":"sub"} (v3, v10) -> (v11: f32[4] "out_w")
  output "accuracy" v8
  output "loss" v7
}
"#;

    fn kinds(text: &str) -> Vec<(String, Kind)> {
        let g = Module::parse(text, &arenic_backends::ALL).unwrap().graph;
        let kinds = Kinds::new(&[&g], 0);
        let roots = g.values.iter().filter(|(_, v)| !matches!(v.def, Def::View { .. }));
        roots.map(|(v, value)| (value.name.clone(), kinds.of(v))).collect()
    }

    #[test]
    fn kinds_follow_from_what_loss_and_states_depend_on() {
        let named = |name: &str| kinds(STEP).into_iter().find(|(n, _)| n == name).unwrap().1;
        for (name, kind) in [
            ("x", Kind::Input),
            ("lr", Kind::Input),
            ("momentum", Kind::Constant),
            ("w", Kind::Weight),
            ("m", Kind::OptimizerState),
            ("y", Kind::Activation),
            ("loss", Kind::Activation),
            ("accuracy", Kind::Activation),
            ("d", Kind::Gradient),
            ("mask", Kind::Activation),
            ("masked", Kind::Gradient),
            ("out_m", Kind::Update),
            ("out_w", Kind::Update),
        ] {
            assert_eq!(named(name), kind, "{name}");
        }
    }

    #[test]
    fn not_every_graph_has_a_loss() {
        let cut = STEP.find("  output").unwrap();
        let headless = format!("{}}}\n", &STEP[..cut]);
        assert!(kinds(&headless).contains(&("y".into(), Kind::Gradient)));
        assert_eq!(kinds("graph \"none\" {\n}\n"), []);
    }
}
