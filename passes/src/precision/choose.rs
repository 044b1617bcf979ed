//! Which operators take `bf16`, and which values are stored as such.

use arenic_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Bf16Role, Narrowing, Op};
use arenic_ir::types::DType;
use cranelift_entity::SecondaryMap;

/// Which nodes and values become `bf16`.
pub(super) struct Bf16Choice {
    /// Nodes that take `bf16` operands, and give such results.
    pub(super) narrow: SecondaryMap<NodeId, bool>,
    /// Narrow products that are added to what they were a part of in `f32`, by a node of its own.
    pub(super) apart: SecondaryMap<NodeId, bool>,
    /// Roots that are stored as `bf16`.
    pub(super) stored: SecondaryMap<ValueId, bool>,
}

impl Bf16Choice {
    /// The operands that are `bf16` of a node of the graph.
    pub(super) fn operands(&self, g: &Graph, n: NodeId) -> Vec<usize> {
        if !self.narrow[n] {
            return Vec::new();
        }
        let mut operands = narrow_operands(&g.nodes[n]);
        operands.retain(|&i| !self.apart[n] || i != SUMMAND);
        operands
    }
}

/// The operand of a `gemm` that its product is added to.
pub(super) const SUMMAND: usize = 2;

/// The operands that are `bf16` where a node is narrow; statistics, factors of normalisations and
/// masks are not among them.
fn narrow_operands(node: &Node) -> Vec<usize> {
    narrowing(node).operands
}

fn narrowing(node: &Node) -> Narrowing {
    node.op.narrowing(node.inputs.len())
}

/// Chooses, forwards through the graph, and then what is stored of elementwise results.
pub(super) fn choose(g: &Graph) -> Bf16Choice {
    let (kept, readers) = (g.kept(), g.readers());
    let ends = ends(g, &kept, &readers);
    let retyped = retyped(g);
    let mut narrow: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    let mut apart: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    // Roots that come of narrow nodes alone: nothing is lost where they are rounded once more.
    let mut derived: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    for (n, node) in &g.nodes {
        let Narrowing { role, .. } = narrowing(node);
        let follows = || follows(g, node, &derived);
        match role {
            Bf16Role::Product => {
                narrow[n] = narrow_operands(node).iter().all(|&i| is_f32(g, node.inputs[i]));
            }
            Bf16Role::Follows => narrow[n] = follows(),
            Bf16Role::Elementwise if !ends[n] && follows() => {
                floats(g, node).for_each(|v| derived[v] = true);
            }
            Bf16Role::Elementwise | Bf16Role::Wide => {}
        }
        if let Some(c) = summand(g, node).filter(|_| narrow[n]) {
            // What is as narrow already is a term like the product, unless the sum is a gradient that
            // a state takes, which may have many terms.
            let is_term = derived[c] || matches!(g.values[c].def, Def::Const(_));
            apart[n] = !is_term || ends[n];
        }
        if narrow[n] && !apart[n] {
            narrowed(g, node).for_each(|v| derived[v] = true);
        }
    }
    let mut choice = Bf16Choice { narrow, apart, stored: SecondaryMap::new() };
    let reads_narrow = |n: NodeId, v: ValueId| {
        let inputs = &g.nodes[n].inputs;
        choice.operands(g, n).iter().any(|&i| g.resolve(inputs[i]).root == v)
    };
    let mut stored = SecondaryMap::new();
    for (v, value) in &g.values {
        let Def::Node { node: n, .. } = value.def else { continue };
        if !derived[v] || kept[v] || retyped[v] {
            continue;
        }
        stored[v] = choice.narrow[n]
            || match readers[v][..] {
                [] => false,
                // What one node reads at once need not be stored; a chain is one node.
                [reader] => reads_narrow(reader, v),
                _ => true,
            };
    }
    choice.stored = stored;
    choice
}

/// The root of the matrix that a node adds its product to: one of its own shape, and no bias.
fn summand(g: &Graph, node: &Node) -> Option<ValueId> {
    let (Op::Gemm { beta, .. }, Some(&c)) = (&node.op, node.inputs.get(SUMMAND)) else {
        return None;
    };
    let y = node.outputs.first().copied().flatten()?;
    (*beta != 0.0 && g.ty(c).shape == g.ty(y).shape).then(|| g.resolve(c).root)
}

fn is_f32(g: &Graph, v: ValueId) -> bool {
    g.ty(v).dtype == DType::F32
}

/// A node's results of `f32`.
fn floats<'a>(g: &'a Graph, node: &'a Node) -> impl Iterator<Item = ValueId> + 'a {
    node.outputs.iter().flatten().copied().filter(|&v| is_f32(g, v))
}

/// Results of a node that become `bf16` where its operands are.
fn narrowed<'a>(g: &'a Graph, node: &'a Node) -> impl Iterator<Item = ValueId> + 'a {
    let mut types: Vec<_> = g.types_of(&node.inputs).into_iter().cloned().collect();
    for i in narrow_operands(node) {
        types[i].dtype = if types[i].dtype == DType::F32 { DType::Bf16 } else { types[i].dtype };
    }
    let results = node.op.infer(&types.iter().collect::<Vec<_>>()).unwrap_or_default();
    let results = node.outputs.iter().copied().zip(results);
    results.filter_map(|(v, ty)| v.filter(|_| ty.dtype == DType::Bf16))
}

/// True where a node's operands are narrow, but for what has no precision to lose by it: states
/// and constants, and beside elements what is read for many of them.
fn follows(g: &Graph, node: &Node, derived: &SecondaryMap<ValueId, bool>) -> bool {
    let Some(most) = floats(g, node).map(|v| g.ty(v).elements()).max() else { return false };
    let operands = narrow_operands(node).into_iter().map(|i| node.inputs[i]);
    let operands: Vec<ValueId> = operands.filter(|&v| is_f32(g, v)).collect();
    let is_narrow = |v: ValueId| derived[g.resolve(v).root];
    let is_leaf = |v: ValueId| {
        let elementwise = narrowing(node).role == Bf16Role::Elementwise;
        let root = g.resolve(v).root;
        matches!(g.values[root].def, Def::State(_) | Def::Const(_))
            || elementwise && g.ty(v).elements() < most
    };
    // Scalars are losses, norms and rates.
    most > 1
        && operands.iter().any(|&v| is_narrow(v))
        && operands.iter().all(|&v| is_narrow(v) || is_leaf(v))
}

/// Elementwise nodes, and sums of a product and a matrix, whose results lead to nothing but updates and
/// outputs: losses, the arithmetic of optimizers, and gradients that have several terms.
fn ends(
    g: &Graph,
    kept: &SecondaryMap<ValueId, bool>,
    readers: &SecondaryMap<ValueId, Vec<NodeId>>,
) -> SecondaryMap<NodeId, bool> {
    let mut ends: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    for (n, node) in g.nodes.iter().rev() {
        let updates = |v: ValueId, reader: NodeId| {
            let node = &g.nodes[reader];
            // A factor of a product leads on.
            let is_added = summand(g, node).is_none_or(|c| {
                c == v && node.inputs[..SUMMAND].iter().all(|&x| g.resolve(x).root != v)
            });
            matches!(
                node.op,
                Op::Adam { .. }
                    | Op::Adagrad { .. }
                    | Op::Momentum { .. }
                    | Op::ProductUpdate { .. }
            ) || ends[reader] && is_added
        };
        let leads_on = |&v: &ValueId| !readers[v].iter().all(|&reader| updates(v, reader));
        let is_read = |&v: &ValueId| kept[v] || !readers[v].is_empty();
        let results = || node.outputs.iter().flatten();
        ends[n] = (narrowing(node).role == Bf16Role::Elementwise || summand(g, node).is_some())
            && results().any(is_read)
            && !results().any(leads_on);
    }
    ends
}

/// Roots of which a view has elements of another type.
fn retyped(g: &Graph) -> SecondaryMap<ValueId, bool> {
    let mut retyped: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    for (v, value) in &g.values {
        let root = g.resolve(v).root;
        if value.ty.dtype != g.ty(root).dtype {
            retyped[root] = true;
        }
    }
    retyped
}
