//! Stochastic depth: residual branches that are left out of a step at random.
//!
//! A branch is what lies between a value and a sum with it, or with what follows from it: all operators whose
//! results nobody else reads, with the parameters that only they read. Left out, the sum is the other operand. A
//! branch that is kept is multiplied by `1 / (1 - p)`, so that its mean is that of the whole network, where `p` is
//! the probability that it is left out; one decision holds for all rows of the batch. Huang, Sun, Liu, Sedra,
//! Weinberger, "Deep Networks with Stochastic Depth" (ECCV 2016); scaled as torchvision's `stochastic_depth`
//! does in mode `batch`.
//!
//! A step may lack branches ([`Structure::Without`]): then it has none of their operators and states. Or it has all of
//! them, each times an input that is 0 or 1 ([`Structure::Masked`]); then [`KeepStates`] lets a state of a
//! branch that is left out stay as it is. So both do the same to all states: without that pass, momenta would
//! move parameters whose gradients are zero.

use crate::differentiate::Glob;
use crate::rewrite::Editor;
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Data, Def, Graph, NodeId, StateId, ValueId};
use arenic_ir::op::{Binary, Op};
use arenic_ir::types::{DType, TensorType};
use cranelift_entity::SecondaryMap;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

/// Why branches cannot be left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DropError {
    /// A pattern that fits nothing.
    #[error("--drop-layers {0}: no trained parameter matches")]
    Pattern(String),
    /// Parameters outside of branches.
    #[error(
        "--drop-layers {pattern}: {} lies in no residual branch all of whose parameters match: nothing stands for \
         what it computes where it is left out; name the parameters of whole branches",
        .parameters.join(", ")
    )]
    NoBranch {
        /// The pattern.
        pattern: String,
        /// Some of the parameters.
        parameters: Vec<String>,
    },
}

/// A residual branch that may be left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// What its parameters' names have in common, for example `blocks.3`.
    pub name: String,
    /// How probable it is that a step lacks it.
    pub probability: f64,
    /// The states that nothing else reads.
    states: BTreeSet<String>,
    /// The sum, and which operand the branch is.
    sum: NodeId,
    operand: usize,
}

impl Branch {
    /// The input that says whether a masked step keeps it: 1 or 0.
    pub fn input(&self) -> String {
        format!("{}.keep", self.name)
    }
}

/// What a step has of the branches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Structure {
    /// All but those at these places.
    Without(BTreeSet<usize>),
    /// All, each times an input.
    Masked,
}

/// The branches of a forward graph whose parameters match patterns, each with its probability; the last pattern
/// that matches counts.
///
/// # Errors
/// A pattern matches no state; a state that matches lies in no branch.
pub fn branches(g: &Graph, patterns: &[(Glob, f64)]) -> Result<Vec<Branch>, DropError> {
    let matching = |name: &str| patterns.iter().rfind(|(glob, _)| glob.matches(name));
    for (glob, _) in patterns {
        if !g.states.values().any(|state| glob.matches(&state.name)) {
            return Err(DropError::Pattern(glob.to_string()));
        }
    }
    let uses = Uses::of(g);
    let mut found: Vec<(Region, NodeId, usize)> = Vec::new();
    for (sum, node) in &g.nodes {
        let (Op::Binary { f: Binary::Add }, [a, b]) = (&node.op, &node.inputs[..]) else {
            continue;
        };
        if g.ty(*a) != g.ty(*b) || g.resolve(*a).root == g.resolve(*b).root {
            continue;
        }
        for operand in [0, 1] {
            let region = uses.region(g, sum, node.inputs[operand]);
            let all_match = !region.states.is_empty()
                && region.states.iter().all(|s| matching(&g.states[*s].name).is_some());
            let other = g.resolve(node.inputs[1 - operand]).root;
            if all_match && depends(g, other, &region.boundary) {
                found.push((region, sum, operand));
            }
        }
    }
    // A branch within another one goes with that.
    found.sort_by_key(|(region, sum, _)| (std::cmp::Reverse(region.nodes.len()), *sum));
    let mut chosen: Vec<(Region, NodeId, usize)> = Vec::new();
    for (region, sum, operand) in found {
        let meets = |other: &(Region, NodeId, usize)| {
            !other.0.nodes.is_disjoint(&region.nodes) || other.1 == sum
        };
        if !chosen.iter().any(meets) {
            chosen.push((region, sum, operand));
        }
    }
    chosen.sort_by_key(|(_, sum, _)| *sum);
    let covered: BTreeSet<StateId> =
        chosen.iter().flat_map(|(region, ..)| region.states.iter().copied()).collect();
    let outside = |(s, state): (StateId, &arenic_ir::graph::State)| {
        let (glob, _) = matching(&state.name)?;
        (!covered.contains(&s)).then(|| (glob.to_string(), format!("`{}`", state.name)))
    };
    let outside: Vec<(String, String)> = g.states.iter().filter_map(outside).collect();
    if let Some((pattern, _)) = outside.first().cloned() {
        const SHOWN: usize = 3;
        let parameters = outside.into_iter().map(|(_, name)| name).take(SHOWN).collect();
        return Err(DropError::NoBranch { pattern, parameters });
    }
    let mut names: HashMap<String, usize> = HashMap::new();
    let branch = |(region, sum, operand): (Region, NodeId, usize)| {
        let states: BTreeSet<String> =
            region.states.iter().map(|s| g.states[*s].name.clone()).collect();
        let name = common(&states);
        let before = names.entry(name.clone()).or_default();
        *before += 1;
        let name = if *before > 1 { format!("{name}.{before}") } else { name };
        let first = states.first().map_or("", String::as_str);
        let probability = matching(first).map_or(0.0, |(_, p)| *p);
        Branch { name, probability, states, sum, operand }
    };
    Ok(chosen.into_iter().map(branch).collect())
}

/// The graph with a structure.
///
/// # Errors
/// Never: operands fit, as those of the sums do.
pub fn structured(
    g: &Graph,
    branches: &[Branch],
    structure: &Structure,
) -> Result<Graph, PassError> {
    let mut g = g.clone();
    let mut gone: BTreeSet<&str> = BTreeSet::new();
    let mut editor = Editor::new(&mut g);
    for (i, branch) in branches.iter().enumerate() {
        let Branch { sum, operand, .. } = *branch;
        let inputs = editor.g.nodes[sum].inputs.clone();
        if let Structure::Without(left_out) = structure
            && left_out.contains(&i)
        {
            if let Some(result) = editor.g.result(sum) {
                editor.redirect(result, inputs[1 - operand]);
            }
            gone.extend(branch.states.iter().map(String::as_str));
            continue;
        }
        let ty = TensorType::scalar(editor.g.ty(inputs[operand]).dtype);
        let mut factor = editor.constant(ty.clone(), 1.0 / (1.0 - branch.probability));
        let product = Op::Binary { f: Binary::Mul };
        if *structure == Structure::Masked {
            let keep = editor.g.add_input(branch.input(), ty);
            factor = editor.value(sum, product.clone(), vec![keep, factor])?;
        }
        let scaled = editor.value(sum, product, vec![inputs[operand], factor])?;
        editor.g.nodes[sum].inputs[operand] = scaled;
    }
    for state in editor.g.states.values_mut().filter(|state| gone.contains(&state.name[..])) {
        state.exit = state.enter;
    }
    editor.finish();
    Ok(without(&g, &gone))
}

/// The graph without states that nothing reads.
fn without(g: &Graph, gone: &BTreeSet<&str>) -> Graph {
    let mut left = g.clone();
    left.states.clear();
    let mut new: SecondaryMap<StateId, Option<StateId>> = SecondaryMap::new();
    for (s, state) in g.states.iter().filter(|(_, state)| !gone.contains(&state.name[..])) {
        new[s] = Some(left.states.push(state.clone()));
    }
    for value in left.values.values_mut() {
        if let Def::State(s) = &mut value.def
            && let Some(new) = new[*s]
        {
            *s = new;
        }
    }
    left.compacted(|_| true)
}

/// Lets the states of branches that a masked step leaves out stay as they are.
#[derive(Debug)]
pub struct KeepStates {
    /// The inputs of branches, and the states that each keeps.
    branches: Vec<(String, BTreeSet<String>)>,
    /// All states of the forward graph: an optimizer's states are called after them.
    forward: BTreeSet<String>,
}

impl KeepStates {
    /// For the branches of a forward graph.
    pub fn of(g: &Graph, branches: &[Branch]) -> KeepStates {
        let branches = branches.iter().map(|b| (b.input(), b.states.clone())).collect();
        KeepStates { branches, forward: g.states.values().map(|s| s.name.clone()).collect() }
    }

    /// The state of the forward graph that a state is, or is called after.
    fn owner<'a>(&'a self, name: &str) -> Option<&'a str> {
        let is_owner = |owner: &&String| {
            name.strip_prefix(owner.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('.'))
        };
        self.forward.iter().filter(is_owner).max_by_key(|owner| owner.len()).map(String::as_str)
    }
}

impl GraphPass for KeepStates {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let mut kept = 0;
        for (input, states) in &self.branches {
            let Some(keep) = g.inputs().find(|&v| g.values[v].name == *input) else { continue };
            let ty = TensorType::scalar(g.ty(keep).dtype);
            let half = match ty.dtype {
                DType::F64 => 0.5f64.to_le_bytes().to_vec(),
                _ => 0.5f32.to_le_bytes().to_vec(),
            };
            let half = g.add_const("", ty, Data::Bytes(half.into()));
            let mask = result(g, Op::Binary { f: Binary::Greater }, vec![keep, half])?;
            for s in g.states.keys().collect::<Vec<_>>() {
                let state = &g.states[s];
                let (enter, exit) = (state.enter, state.exit);
                let is_of_branch = self.owner(&state.name).is_some_and(|o| states.contains(o));
                if !is_of_branch || g.resolve(exit).root == enter {
                    continue;
                }
                g.states[s].exit = result(g, Op::Where, vec![mask, exit, enter])?;
                kept += 1;
            }
        }
        Ok(Stats::from([("states", kept)]))
    }
}

fn result(g: &mut Graph, op: Op, inputs: Vec<ValueId>) -> Result<ValueId, PassError> {
    let node = g.add_node("", op, inputs)?;
    g.result(node).ok_or(PassError::TooLarge)
}

/// Operators whose results one value alone needs.
#[derive(Debug, Default)]
struct Region {
    nodes: BTreeSet<NodeId>,
    /// States that they alone read.
    states: BTreeSet<StateId>,
    /// Roots that they read and do not make.
    boundary: BTreeSet<ValueId>,
}

/// Who reads what.
struct Uses {
    readers: SecondaryMap<ValueId, Vec<NodeId>>,
    /// Roots of the graph's outputs.
    given: BTreeSet<ValueId>,
    /// Operators from which only states follow, such as running statistics.
    of_states: SecondaryMap<NodeId, bool>,
}

impl Uses {
    fn of(g: &Graph) -> Uses {
        let readers = g.readers();
        let given: BTreeSet<ValueId> = g.outputs.iter().map(|o| g.resolve(o.value).root).collect();
        let mut of_states: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        for (n, node) in g.nodes.iter().rev() {
            let only = |v: &ValueId| {
                !given.contains(v) && readers[*v].iter().all(|&reader| of_states[reader])
            };
            of_states[n] = node.outputs.iter().flatten().all(only);
        }
        Uses { readers, given, of_states }
    }

    /// What `operand` of a sum alone needs.
    fn region(&self, g: &Graph, sum: NodeId, operand: ValueId) -> Region {
        let (mut region, root) = (Region::default(), g.resolve(operand).root);
        let maker = |v: ValueId| match g.values[g.resolve(v).root].def {
            Def::Node { node, .. } => Some(node),
            _ => None,
        };
        // Readers come later, so that they are known when their operands' makers are looked at.
        let mut open: BinaryHeap<NodeId> = maker(operand).into_iter().collect();
        let mut read: BTreeSet<ValueId> = BTreeSet::new();
        while let Some(n) = open.pop() {
            if region.nodes.contains(&n) {
                continue;
            }
            // The sum reads the branch, and the other operand, which is none of it.
            let is_own = |v: &ValueId| {
                let own = |&r: &NodeId| {
                    r == sum && *v == root || region.nodes.contains(&r) || self.of_states[r]
                };
                !self.given.contains(v) && self.readers[*v].iter().all(own)
            };
            if n >= sum || !g.nodes[n].outputs.iter().flatten().all(is_own) {
                continue;
            }
            region.nodes.insert(n);
            for &v in &g.nodes[n].inputs {
                read.insert(g.resolve(v).root);
                open.extend(maker(v));
            }
        }
        for v in read {
            match g.values[v].def {
                Def::State(s) => {
                    let own = |&n: &NodeId| region.nodes.contains(&n) || self.of_states[n];
                    match self.readers[v].iter().all(own) {
                        true => drop(region.states.insert(s)),
                        false => drop(region.boundary.insert(v)),
                    }
                }
                Def::Node { node, .. } if region.nodes.contains(&node) => {}
                Def::Const(_) => {}
                _ => drop(region.boundary.insert(v)),
            }
        }
        self.add_statistics(g, &mut region);
        region
    }

    /// Adds the states that follow from a region alone, such as running statistics.
    fn add_statistics(&self, g: &Graph, region: &mut Region) {
        let mut made = region.nodes.clone();
        for (n, node) in g.nodes.iter().filter(|(n, _)| self.of_states[*n]) {
            let follows = |v: &ValueId| match g.values[g.resolve(*v).root].def {
                Def::Node { node, .. } => made.contains(&node),
                _ => false,
            };
            if node.inputs.iter().any(follows) {
                made.insert(n);
            }
        }
        for (s, state) in &g.states {
            if let Def::Node { node, .. } = g.values[g.resolve(state.exit).root].def
                && made.contains(&node)
            {
                region.states.insert(s);
            }
        }
    }
}

/// True if a root is one of these, or follows from one.
fn depends(g: &Graph, root: ValueId, on: &BTreeSet<ValueId>) -> bool {
    let (mut open, mut met) = (vec![root], BTreeSet::new());
    while let Some(v) = open.pop() {
        if on.contains(&v) {
            return true;
        }
        if let Def::Node { node, .. } = g.values[v].def
            && met.insert(node)
        {
            open.extend(g.nodes[node].inputs.iter().map(|&v| g.resolve(v).root));
        }
    }
    false
}

/// What names have in common, up to a dot.
fn common(names: &BTreeSet<String>) -> String {
    let parts = |name: &String| name.split('.').map(str::to_owned).collect::<Vec<_>>();
    let mut all = names.iter().map(parts);
    let mut common = all.next().unwrap_or_default();
    // The last part says which parameter of a module it is.
    common.pop();
    for other in all {
        let same = common.iter().zip(&other).take_while(|(a, b)| a == b).count();
        common.truncate(same);
    }
    match common.is_empty() {
        true => names.first().cloned().unwrap_or_default(),
        false => common.join("."),
    }
}
