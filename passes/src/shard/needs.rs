//! What each rank needs of each value: its rows, its term of a sum, the whole, or its own part.

use super::{Level, ShardError};
use crate::accumulate::rows::Rows;
use crate::accumulate::rules::Kind;
use arenic_ir::graph::{Def, Graph, NodeId, StateId, ValueId};
use arenic_ir::op::families::Movement;
use arenic_ir::op::{Family, Op, Reduction};
use cranelift_entity::SecondaryMap;

/// What is needed of a step's values.
pub(super) struct Needs {
    /// As the rank computes it of its rows: rows, or a term of a sum.
    pub(super) local: SecondaryMap<ValueId, bool>,
    /// The same on all ranks: a sum of all terms, or what follows from such.
    pub(super) whole: SecondaryMap<ValueId, bool>,
    /// The rank's own part of the whole.
    pub(super) own: SecondaryMap<ValueId, bool>,
    /// States of which every rank has its part.
    pub(super) sharded: SecondaryMap<StateId, bool>,
    /// States whose next value is computed in parts.
    pub(super) in_parts: SecondaryMap<StateId, bool>,
    /// Nodes that outputs depend on: the forward pass.
    pub(super) forward: SecondaryMap<NodeId, bool>,
}

/// Makes sums of what is reduced whole: the rank reduces its own part, and that is its term. So the norm of
/// a gradient is taken in the same order at every level, and no whole gradient is needed for it.
pub(super) fn reduce_by_parts(rows: &mut Rows) {
    let g = rows.g;
    for n in g.nodes.keys() {
        if rows.rule[n].is_some() {
            continue;
        }
        let is_late = |v: &ValueId| rows.kind[*v] == Kind::Late;
        let late = g.nodes[n].outputs.iter().flatten().any(is_late);
        if late && (reduces_parts(rows, n) || rows.is_linear(n)) {
            for &v in g.nodes[n].outputs.iter().flatten() {
                rows.kind[v] = Kind::Sum;
            }
        }
    }
}

/// True for a sum of all elements of what all ranks know in the end.
pub(super) fn reduces_parts(rows: &Rows, n: NodeId) -> bool {
    let (g, node) = (rows.g, &rows.g.nodes[n]);
    let Op::Reduce { f: Reduction::Sum, axes, .. } = &node.op else { return false };
    let x = node.inputs[0];
    axes.len() == g.ty(x).rank() && g.ty(x).elements() >= rows.count && has_parts(rows, x)
}

/// True for a value whose parts can be computed by themselves.
fn has_parts(rows: &Rows, v: ValueId) -> bool {
    match rows.g.values[v].def {
        Def::Node { node, .. } if rows.kind[v] == Kind::Late => is_elementwise(rows, node),
        _ => false,
    }
}

/// True where a part of the results is computed of the same part of the operands, and of scalars.
pub(super) fn is_elementwise(rows: &Rows, n: NodeId) -> bool {
    let (g, node) = (rows.g, &rows.g.nodes[n]);
    if rows.rule[n].is_some() {
        return false;
    }
    let Some(result) = g.result(n) else { return false };
    let (elements, shape) = (g.ty(result).elements(), &g.ty(result).shape);
    let fits = |&v: &ValueId| g.ty(v).elements() == 1 || g.ty(v).shape == *shape;
    // No operator is so by default, and none by oversight: a state whose update is not keeps all of its bytes.
    match node.op.family() {
        Family::Movement(op) => match op {
            Movement::Reshape { .. } | Movement::Copy => elements >= rows.count,
            Movement::Slice { .. }
            | Movement::Pad { .. }
            | Movement::Transpose { .. }
            | Movement::Expand { .. }
            | Movement::Concat { .. } => false,
        },
        Family::Elementwise(_) | Family::Update(_) => {
            elements >= rows.count && node.inputs.iter().all(fits)
        }
        Family::Indexing(_)
        | Family::Random(_)
        | Family::Reducing(_)
        | Family::Softmax(_)
        | Family::Norm(_)
        | Family::Product(_)
        | Family::Convolution(_)
        | Family::Pool(_)
        | Family::Resizing(_)
        | Family::Attention(_)
        | Family::Recurrent(_)
        | Family::Collective(_)
        | Family::Opaque(_)
        // Passes that run later make them.
        | Family::Wrapping(_) => false,
    }
}

/// True for an operand that is the rank's term of a sum, not the whole: of a product that adds to another
/// sum over the batch, and of a batch normalisation's gradient, which goes by the rank's own rows.
pub(super) fn takes_term(rows: &Rows, n: NodeId, operand: usize) -> bool {
    let node = &rows.g.nodes[n];
    let Some(rule) = &rows.rule[n] else { return false };
    rows.kind[node.inputs[operand]] == Kind::Sum
        && match node.op {
            Op::Gemm { .. } => operand == 2 && rule.results == [Kind::Sum] && rule.op == node.op,
            Op::BatchNormInputGrad => operand > 4,
            _ => false,
        }
}

impl Needs {
    pub(super) fn new(rows: &Rows, level: Level) -> Result<Needs, ShardError> {
        let g = rows.g;
        let mut needs = Needs {
            local: SecondaryMap::new(),
            whole: SecondaryMap::new(),
            own: SecondaryMap::new(),
            sharded: SecondaryMap::new(),
            in_parts: SecondaryMap::new(),
            forward: forward(g),
        };
        for output in &g.outputs {
            let v = output.value;
            match rows.kind[v] {
                Kind::Rows(_) | Kind::Positions => needs.local[v] = true,
                _ => needs.whole[v] = true,
            }
        }
        for (s, state) in &g.states {
            needs.in_parts[s] = level > Level::None && updates_in_parts(rows, s);
            match needs.in_parts[s] {
                true => needs.own[state.exit] = true,
                false => needs.whole[state.exit] = true,
            }
        }
        // Readers come after what they read: one way back through the nodes is enough.
        for n in g.nodes.keys().rev() {
            needs.of_operands(rows, n, level)?;
        }
        for (s, state) in &g.states {
            let enter = state.enter;
            needs.sharded[s] = needs.in_parts[s]
                && state.rows.is_none()
                && (level == Level::Parameters || !needs.whole[enter]);
        }
        Ok(needs)
    }

    fn of_operands(&mut self, rows: &Rows, n: NodeId, level: Level) -> Result<(), ShardError> {
        let (g, node) = (rows.g, &rows.g.nodes[n]);
        let results = || node.outputs.iter().flatten().copied();
        if let Some(rule) = &rows.rule[n] {
            for v in results().filter(|&v| rows.kind[v] == Kind::Sum) {
                self.settle_sum(v, level);
            }
            for v in results().filter(|&v| rows.kind[v] == Kind::Own) {
                self.local[v] |= self.whole[v];
            }
            if !results().any(|v| self.local[v]) {
                return Ok(());
            }
            for (i, (&v, along)) in node.inputs.iter().zip(&rule.narrow).enumerate() {
                match rows.kind[v] {
                    Kind::Rows(_) | Kind::Positions => self.local[v] = true,
                    Kind::Sum if takes_term(rows, n, i) => self.local[v] = true,
                    // What is cut is made as it is wanted.
                    _ if along.is_some() => {}
                    _ => self.whole[v] = true,
                }
            }
            return Ok(());
        }
        if results().any(|v| rows.kind[v] == Kind::Sum) {
            results().for_each(|v| self.settle_sum(v, level));
            if results().any(|v| self.local[v]) {
                match reduces_parts(rows, n) {
                    true => self.own[node.inputs[0]] = true,
                    false => node.inputs.iter().for_each(|&v| self.local[v] = true),
                }
            }
            return Ok(());
        }
        if results().any(|v| self.own[v]) {
            if is_elementwise(rows, n) {
                for &v in &node.inputs {
                    match g.ty(v).elements() {
                        1 => self.whole[v] = true,
                        _ => self.own[v] = true,
                    }
                }
            } else {
                results().filter(|&v| self.own[v]).collect::<Vec<_>>().into_iter().for_each(|v| {
                    self.whole[v] = true;
                });
            }
        }
        if results().any(|v| self.whole[v]) {
            if node.op.rng().is_some() {
                let name = if node.name.is_empty() { n.to_string() } else { node.name.clone() };
                return Err(ShardError::Random { op: node.op.name().to_owned(), name });
            }
            node.inputs.iter().for_each(|&v| self.whole[v] = true);
        }
        Ok(())
    }

    /// Of a sum, whole or in parts, every rank gives its term. Without shards parts are of the whole.
    fn settle_sum(&mut self, v: ValueId, level: Level) {
        if self.own[v] && level == Level::None {
            self.whole[v] = true;
        }
        self.local[v] |= self.whole[v] || self.own[v];
    }
}

/// True where the next value of a state is computed element by element.
fn updates_in_parts(rows: &Rows, s: StateId) -> bool {
    let g = rows.g;
    let state = &g.states[s];
    let exit = state.exit;
    let ends_in_parts = match g.values[exit].def {
        Def::Node { node, .. } => rows.kind[exit] == Kind::Sum || is_elementwise(rows, node),
        _ => false,
    };
    exit != state.enter && g.ty(exit).elements() >= rows.count && ends_in_parts
}

/// Nodes that outputs depend on.
fn forward(g: &Graph) -> SecondaryMap<NodeId, bool> {
    let mut wanted: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    g.outputs.iter().for_each(|output| wanted[output.value] = true);
    let mut forward = SecondaryMap::new();
    for (n, node) in g.nodes.iter().rev() {
        if node.outputs.iter().flatten().any(|&v| wanted[v]) {
            forward[n] = true;
            node.inputs.iter().for_each(|&v| wanted[v] = true);
        }
    }
    forward
}
