//! Is this a graph? Structure, types and names (invariants I1 and I2).

use crate::graph::{Data, Def, Graph, Node, NodeId, StateId, ValueId};
use crate::op::{AttentionSpec, MAX_RANK, MAX_RANKS, Op, part_type};
use crate::types::TensorType;
use cranelift_entity::EntitySet;
use std::collections::{HashMap, HashSet};

/// What is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {message}")]
pub struct Defect {
    /// The item, for example `n7 (conv "layer1")` or `v3`.
    pub at: String,
    /// What is wrong with it.
    pub message: String,
}

/// Refuses a graph that breaks I1 (acyclic, one definition per value, views resolve) or
/// I2 (random operators have generators of their own), and one whose types, data or
/// names do not fit.
///
/// # Errors
/// The first defect.
pub fn verify(g: &Graph) -> Result<(), Defect> {
    let endless = endless_views(g);
    for (v, value) in &g.values {
        verify_value(g, v, &endless)
            .map_err(|message| Defect { at: named(&v.to_string(), &value.name), message })?;
    }
    if let Some(message) = ranks_defect(g) {
        return Err(Defect { at: "ranks".into(), message });
    }
    let mut generators = HashMap::new();
    for (n, node) in &g.nodes {
        let at = || named(&format!("{n} ({})", node.op.name()), &node.name);
        verify_node(g, n).map_err(|message| Defect { at: at(), message })?;
        if let Some(ranks) = node.op.ranks().filter(|&ranks| ranks != g.rank_count()) {
            let message = format!("it is for {ranks} ranks, the graph for {}", g.rank_count());
            return Err(Defect { at: at(), message });
        }
        if !is_packed_once(node) {
            let message = "queries, keys and values are packed, and several tensors".into();
            return Err(Defect { at: at(), message });
        }
        let Some(rng) = node.op.rng() else { continue };
        let key = (rng.stream, rng.seed);
        let message = if !matches!(node.op, Op::AttentionGrad { .. }) {
            let other = generators.insert(key, n);
            other.map(|_| format!("another node draws from generator {} too", rng.stream))
        } else {
            // A gradient draws again what its attention drew, which comes before it.
            let forward = generators.get(&key);
            let is_it = forward.is_some_and(|&forward| is_attention_of(g, forward, n));
            (!is_it).then(|| format!("no attention before it draws from generator {}", rng.stream))
        };
        if let Some(message) = message {
            return Err(Defect { at: at(), message });
        }
    }
    let mut names = HashMap::new();
    for (s, state) in &g.states {
        let at = || named(&s.to_string(), &state.name);
        let enter_is_own = matches!(g.values[state.enter].def, Def::State(of) if of == s);
        let problem = if let Some(message) = rows_defect(g, s, &mut names) {
            Some(message.to_owned())
        } else if !enter_is_own {
            Some(format!("its enter value {} is not defined by it", state.enter))
        } else if g.ty(state.enter) != g.ty(state.exit) {
            Some(format!("enters as {}, leaves as {}", g.ty(state.enter), g.ty(state.exit)))
        } else if let Some(whole) = &state.part_of {
            part_defect(g, s, whole)
        } else {
            state.init.as_ref().and_then(|data| data_defect(g.ty(state.enter), data))
        };
        if let Some(message) = problem {
            return Err(Defect { at: at(), message });
        }
    }
    for (name, (held, tensor)) in &names {
        let rows = tensor.shape.first().copied().unwrap_or(1).max(1);
        if *held != rows {
            let message = format!("its states hold {held} of {rows} rows");
            return Err(Defect { at: named("state", name), message });
        }
    }
    let mut names = HashSet::new();
    let fed = g.inputs().map(|v| ("input", g.values[v].name.as_str()));
    let given = g.outputs.iter().map(|o| ("output", o.name.as_str()));
    for (kind, name) in fed.chain(given) {
        if !names.insert((kind, name)) {
            let at = named(kind, name);
            return Err(Defect { at, message: "the name comes twice".into() });
        }
    }
    Ok(())
}

/// False for an attention of one tensor, or its gradient, that has several.
fn is_packed_once(node: &Node) -> bool {
    match &node.op {
        Op::Attention { spec } | Op::AttentionGrad { spec, .. } if spec.packed => {
            node.inputs.get(1..3)
                == node.inputs.first().map(|&all| [all; 2]).as_ref().map(|x| &x[..])
        }
        _ => true,
    }
}

/// True where the gradient's attention may be this node: it computes the same of operands of
/// the same types.
fn is_attention_of(g: &Graph, forward: NodeId, gradient: NodeId) -> bool {
    let [forward, gradient] = [&g.nodes[forward], &g.nodes[gradient]];
    let (Op::Attention { spec }, Op::AttentionGrad { spec: of_gradient, .. }) =
        (&forward.op, &gradient.op)
    else {
        return false;
    };
    let alike =
        |spec: &AttentionSpec| AttentionSpec { positions_first: false, packed: false, ..*spec };
    let types = |spec: &AttentionSpec, of: &Node| spec.heads_first(&g.types_of(&of.inputs));
    alike(spec) == alike(of_gradient) && types(spec, forward) == types(of_gradient, gradient)
}

fn named(item: &str, name: &str) -> String {
    if name.is_empty() { item.to_owned() } else { format!("{item} `{name}`") }
}

/// States of one name hold its tensor's rows one after another; `next` says up to where.
fn rows_defect<'a>(
    g: &'a Graph,
    s: StateId,
    next: &mut HashMap<&'a str, (usize, TensorType)>,
) -> Option<&'static str> {
    let state = &g.states[s];
    let whole = g.saved_type(s);
    let (first, count) = match state.rows {
        Some(rows) => (rows.first, *g.ty(state.enter).shape.first()?),
        None => (0, whole.shape.first().copied().unwrap_or(1).max(1)),
    };
    let (begin, tensor) = next.entry(&state.name).or_insert((0, whole.clone()));
    match (*begin == first && *tensor == whole, state.rows) {
        (true, _) => *begin = first.saturating_add(count),
        (false, None) => return Some("another state has the same name"),
        (false, Some(_)) => return Some("its rows do not follow the ones before"),
    }
    None
}

/// Why the graph cannot be run by its ranks.
fn ranks_defect(g: &Graph) -> Option<String> {
    let ranks = g.ranks.as_ref()?;
    if !(2..=MAX_RANKS).contains(&ranks.count) {
        return Some(format!("{} ranks; 2 to {MAX_RANKS} can be", ranks.count));
    }
    let is_input = |name: &&String| g.inputs().any(|v| g.values[v].name == **name);
    let unknown = ranks.by_rows.iter().find(|name| !is_input(name))?;
    Some(format!("`{unknown}` is no input"))
}

/// Why a state cannot be a rank's part of a tensor.
fn part_defect(g: &Graph, s: StateId, whole: &TensorType) -> Option<String> {
    let state = &g.states[s];
    if state.rows.is_some() || state.carried || g.ranks.is_none() {
        return Some("it cannot be a rank's part".into());
    }
    if whole.checked_bytes().is_none() || whole.rank() > MAX_RANK {
        return Some(format!("type {whole} is too large"));
    }
    let ty = g.ty(state.enter);
    if *ty != part_type(whole, g.rank_count()) {
        return Some(format!("{ty} is no part of {whole}"));
    }
    state.init.as_ref().and_then(|data| data_defect(whole, data))
}

fn data_defect(ty: &TensorType, data: &Data) -> Option<String> {
    let len = data.bytes()?.len() as u64;
    (len != ty.bytes()).then(|| format!("{len} bytes of data for a {ty}"))
}

/// Views that lead back to themselves, or to such views. Each value is looked at once, however
/// long chains of views are.
fn endless_views(g: &Graph) -> EntitySet<ValueId> {
    let (mut seen, mut endless) = (EntitySet::new(), EntitySet::new());
    let mut chain = Vec::new();
    for v in g.values.keys() {
        let mut end = v;
        while let Def::View { of, .. } = g.values[end].def
            && seen.insert(end)
        {
            chain.push(end);
            end = of;
        }
        // It ends at a root, at a view that is judged already, or at one of its own.
        if endless.contains(end) || chain.contains(&end) {
            for &v in &chain {
                endless.insert(v);
            }
        }
        chain.clear();
    }
    endless
}

fn verify_value(g: &Graph, v: ValueId, endless: &EntitySet<ValueId>) -> Result<(), String> {
    let value = &g.values[v];
    if value.ty.checked_bytes().is_none() {
        return Err(format!("type {} is too large", value.ty));
    }
    if value.ty.rank() > MAX_RANK {
        return Err(format!("rank {} is above {MAX_RANK}", value.ty.rank()));
    }
    match &value.def {
        Def::Input => Ok(()),
        Def::Const(data) => data_defect(&value.ty, data).map_or(Ok(()), Err),
        Def::State(s) => match g.states.get(*s) {
            Some(state) if state.enter == v => Ok(()),
            _ => Err(format!("is not the enter value of {s}")),
        },
        Def::Node { node, output } => {
            let defined = g.nodes.get(*node).and_then(|n| n.outputs.get(*output));
            match defined {
                Some(&Some(w)) if w == v => Ok(()),
                _ => Err(format!("is not result {output} of {node}")),
            }
        }
        Def::View { of, offset } => {
            if endless.contains(v) {
                return Err("views itself".into());
            }
            let of = &g.values[*of].ty;
            let fits = offset.checked_add(value.ty.bytes()).is_some_and(|end| end <= of.bytes());
            if !fits {
                Err(format!("{} at byte {offset} does not lie in a {of}", value.ty))
            } else if offset % value.ty.dtype.size() != 0 {
                Err(format!("byte {offset} is not aligned for {}", value.ty.dtype))
            } else {
                Ok(())
            }
        }
    }
}

fn verify_node(g: &Graph, n: NodeId) -> Result<(), String> {
    let node = &g.nodes[n];
    for &v in &node.inputs {
        if let Def::Node { node: producer, .. } = g.values[g.resolve(v).root].def
            && producer >= n
        {
            return Err(format!("reads {v}, which {producer} defines: a cycle"));
        }
    }
    let types = g.output_types(n).map_err(|e| e.to_string())?;
    if types.len() != node.outputs.len() {
        return Err(format!("{} results, not {}", types.len(), node.outputs.len()));
    }
    for (output, (ty, v)) in types.iter().zip(&node.outputs).enumerate() {
        let Some(v) = *v else { continue };
        if g.ty(v) != ty {
            return Err(format!("result {v} is {}, not {ty}", g.ty(v)));
        }
        if g.values[v].def != (Def::Node { node: n, output }) {
            return Err(format!("result {v} is defined elsewhere"));
        }
    }
    Ok(())
}
