//! What a weight is for, by what reads it.
//!
//! Where a file names no parameters, what a tensor does tells most of them: a filter is one, an
//! epsilon and the statistics of a normalisation in pieces are none. A tensor that reshapes,
//! casts and the like lead on is used where they lead.

use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::families::{
    Convolution, Elementwise, Indexing, Movement, Norm, Product, Recurrent,
};
use arenic_ir::op::{Binary, Family, Op, Unary};
use cranelift_entity::SecondaryMap;

/// How an operator uses a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// A factor of a product or a filter of a convolution.
    Product,
    /// Rows are taken from it.
    Table,
    /// It is added to a product, or to rows of a table.
    Bias,
    /// Scale or bias of what was normalised.
    Affine,
    /// It is added to something before a square root.
    UnderRoot,
    /// It is subtracted.
    Subtracted,
    /// It shifts or scales what is fed.
    Feed,
    /// A recurrence starts from it.
    Initial,
    /// It is added to what a softmax is taken of.
    Score,
    /// Anything else.
    Other,
}

/// What is known of values, so that the other operand of an operator tells what one is for.
pub(super) struct Uses<'g> {
    g: &'g Graph,
    readers: SecondaryMap<ValueId, Vec<NodeId>>,
    facts: SecondaryMap<ValueId, Facts>,
}

/// What led to a value.
#[derive(Clone, Copy, Default)]
struct Facts {
    /// An input of the graph.
    fed: bool,
    /// An input of the graph that at most constants were added to or multiplied with.
    raw: bool,
    /// A product with a weight, or rows of a table, to which at most weights were added.
    product: bool,
    /// One over a square root.
    inverse_root: bool,
    /// A normalisation, whole or in pieces.
    normalised: bool,
}

impl<'g> Uses<'g> {
    pub(super) fn new(g: &'g Graph) -> Uses<'g> {
        let mut facts: SecondaryMap<ValueId, Facts> = SecondaryMap::new();
        for v in g.inputs() {
            facts[v] = Facts { fed: true, raw: g.ty(v).dtype.is_float(), ..Facts::default() };
        }
        for node in g.nodes.values() {
            let made = derived(g, &facts, &node.op, &node.inputs);
            for &v in node.outputs.iter().flatten() {
                facts[v] = made;
            }
        }
        Uses { g, readers: g.readers(), facts }
    }

    /// All uses of a value, sorted, each once.
    pub(super) fn of(&self, v: ValueId) -> Vec<Use> {
        let mut all = Vec::new();
        let mut seen: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        let mut open = vec![(v, false)];
        while let Some((v, negated)) = open.pop() {
            if std::mem::replace(&mut seen[v], true) {
                continue;
            }
            for &n in &self.readers[v] {
                let node = &self.g.nodes[n];
                let results = node.outputs.iter().flatten().copied();
                match &node.op {
                    Op::Unary { f: Unary::Neg } => open.extend(results.map(|r| (r, !negated))),
                    Op::Binary { f: Binary::Add } if self.is_sum_of_weights(n) => {
                        open.extend(results.map(|r| (r, negated)));
                    }
                    op if carries(op) => open.extend(results.map(|r| (r, negated))),
                    op => {
                        let operands = node.inputs.iter().enumerate();
                        let own = operands.filter(|&(_, &o)| o == v).map(|(i, _)| i);
                        all.extend(own.map(|i| self.by(op, n, i, negated)));
                    }
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// True for a sum of parts of weights, such as both biases of a recurrence.
    fn is_sum_of_weights(&self, n: NodeId) -> bool {
        let node = &self.g.nodes[n];
        let plain = |v: &ValueId| {
            let Facts { fed, inverse_root, normalised, .. } = self.facts[*v];
            !(fed || inverse_root || normalised) && self.g.ty(*v).elements() > 1
        };
        node.inputs.iter().all(plain)
    }

    /// What operand `i` of a node is to it. No operator has a use by default: a parameter that an operator reads for
    /// anything else would be kept as it is.
    fn by(&self, op: &Op, n: NodeId, i: usize, negated: bool) -> Use {
        match op.family() {
            Family::Product(op) => match op {
                Product::MatMul { .. } => Use::Product,
                Product::Gemm { .. } if i < 2 => Use::Product,
                Product::Gemm { .. } => Use::Bias,
                // Made of steps that know their parameters.
                Product::GemmGelu { .. }
                | Product::GemmGeluGrad { .. }
                | Product::ProductUpdate { .. } => Use::Other,
            },
            Family::Convolution(op) => match op {
                Convolution::Conv { .. } | Convolution::ConvTranspose { .. } if i < 2 => {
                    Use::Product
                }
                Convolution::Conv { .. } | Convolution::ConvTranspose { .. } => Use::Bias,
                Convolution::ConvWeightGrad { .. } => Use::Other,
            },
            Family::Indexing(op) => match op {
                Indexing::Gather { .. }
                | Indexing::GatherElements { .. }
                | Indexing::GatherNd { .. }
                    if i == 0 =>
                {
                    Use::Table
                }
                Indexing::Gather { .. }
                | Indexing::GatherElements { .. }
                | Indexing::GatherNd { .. }
                | Indexing::ScatterElements { .. }
                | Indexing::ScatterNd { .. }
                | Indexing::TopK { .. } => Use::Other,
            },
            Family::Norm(op) => match op {
                Norm::LayerNorm { .. } | Norm::BatchNorm { .. } if i > 0 => Use::Affine,
                Norm::LayerNorm { .. }
                | Norm::LayerNormParamGrad { .. }
                | Norm::LayerNormInputGrad { .. }
                | Norm::BatchNorm { .. }
                | Norm::BatchNormParamGrad
                | Norm::BatchNormInputGrad
                | Norm::FusedNorm { .. }
                | Norm::FusedNormGrad { .. } => Use::Other,
            },
            Family::Recurrent(op) => match (op, i) {
                (Recurrent::Lstm { .. } | Recurrent::Gru { .. } | Recurrent::Rnn { .. }, 1) => {
                    Use::Product
                }
                (Recurrent::Lstm { .. }, 2 | 3)
                | (Recurrent::Gru { .. } | Recurrent::Rnn { .. }, 2) => Use::Initial,
                (Recurrent::Lstm { .. } | Recurrent::Gru { .. } | Recurrent::Rnn { .. }, _) => {
                    Use::Bias
                }
                (
                    Recurrent::LstmGrad { .. }
                    | Recurrent::GruGrad { .. }
                    | Recurrent::RnnGrad { .. },
                    _,
                ) => Use::Other,
            },
            Family::Elementwise(op) => match op {
                Elementwise::Binary { f } => self.elementwise(*f, n, i, negated),
                Elementwise::Cast { .. }
                | Elementwise::Unary { .. }
                | Elementwise::Where
                | Elementwise::Clip { .. }
                | Elementwise::Pointwise { .. } => Use::Other,
            },
            Family::Movement(_)
            | Family::Random(_)
            | Family::Reducing(_)
            | Family::Softmax(_)
            | Family::Pool(_)
            | Family::Resizing(_)
            | Family::Attention(_)
            | Family::Update(_)
            | Family::Collective(_)
            | Family::Wrapping(_)
            | Family::Opaque(_) => Use::Other,
        }
    }

    fn elementwise(&self, f: Binary, n: NodeId, i: usize, negated: bool) -> Use {
        let node = &self.g.nodes[n];
        let (Some(&result), Some(&other)) =
            (node.outputs.iter().flatten().next(), node.inputs.get(1 - i))
        else {
            return Use::Other;
        };
        let other = self.facts[other];
        let linear = matches!(f, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div);
        match f {
            Binary::Add if self.leads(result, is_root) => Use::UnderRoot,
            _ if other.raw && linear => Use::Feed,
            // The mean of a normalisation in pieces, whose multiple is subtracted.
            Binary::Mul if other.inverse_root && (negated || self.leads(result, is_subtracted)) => {
                Use::Subtracted
            }
            Binary::Mul if other.inverse_root || other.normalised => Use::Affine,
            Binary::Sub if i == 1 => Use::Subtracted,
            Binary::Add if negated => Use::Subtracted,
            Binary::Add if other.product => Use::Bias,
            Binary::Add | Binary::Sub if other.normalised || other.inverse_root => Use::Affine,
            Binary::Add if self.leads(result, is_softmax) => Use::Score,
            _ => Use::Other,
        }
    }

    /// True where all that reads a value, through what only leads it on, is of this kind.
    fn leads(&self, v: ValueId, to: fn(&Op, usize) -> bool) -> bool {
        let readers = &self.readers[v];
        !readers.is_empty()
            && readers.iter().all(|&n| {
                let node = &self.g.nodes[n];
                let mut results = node.outputs.iter().flatten();
                let at = node.inputs.iter().position(|&o| o == v).unwrap_or(0);
                to(&node.op, at) || (carries(&node.op) && results.all(|&r| self.leads(r, to)))
            })
    }
}

fn is_root(op: &Op, _: usize) -> bool {
    matches!(op, Op::Unary { f: Unary::Sqrt })
}

fn is_subtracted(op: &Op, at: usize) -> bool {
    match op {
        Op::Unary { f: Unary::Neg } => true,
        Op::Binary { f: Binary::Sub } => at == 1,
        _ => false,
    }
}

fn is_softmax(op: &Op, _: usize) -> bool {
    matches!(op, Op::Softmax { .. } | Op::LogSoftmax { .. })
}

/// True for operators whose result holds elements of the operand.
fn carries(op: &Op) -> bool {
    match op.family() {
        Family::Movement(op) => match op {
            Movement::Reshape { .. }
            | Movement::Transpose { .. }
            | Movement::Expand { .. }
            | Movement::Slice { .. }
            | Movement::Pad { .. }
            | Movement::Concat { .. }
            | Movement::Copy => true,
        },
        Family::Elementwise(op) => match op {
            Elementwise::Cast { .. } => true,
            Elementwise::Unary { .. }
            | Elementwise::Binary { .. }
            | Elementwise::Where
            | Elementwise::Clip { .. }
            | Elementwise::Pointwise { .. } => false,
        },
        // Elements of a table: it is one.
        Family::Indexing(_) => false,
        Family::Random(_)
        | Family::Reducing(_)
        | Family::Softmax(_)
        | Family::Norm(_)
        | Family::Product(_)
        | Family::Convolution(_)
        | Family::Pool(_)
        | Family::Resizing(_)
        | Family::Attention(_)
        | Family::Recurrent(_)
        | Family::Update(_)
        | Family::Collective(_)
        | Family::Wrapping(_)
        | Family::Opaque(_) => false,
    }
}

/// What is known of the results of a node.
fn derived(g: &Graph, facts: &SecondaryMap<ValueId, Facts>, op: &Op, inputs: &[ValueId]) -> Facts {
    let of = |i: usize| inputs.get(i).map_or(Facts::default(), |&v| facts[v]);
    let fed = inputs.iter().any(|&v| facts[v].fed);
    let new = Facts { fed, ..Facts::default() };
    match op {
        op if carries(op) => inputs.iter().map(|&v| facts[v]).fold(new, |a, b| Facts {
            fed,
            raw: a.raw | b.raw,
            product: a.product | b.product,
            inverse_root: a.inverse_root | b.inverse_root,
            normalised: a.normalised | b.normalised,
        }),
        // A product of two values that inputs led to is of scores, to which masks are added.
        Op::MatMul { .. } | Op::Gemm { .. } | Op::Conv { .. } | Op::ConvTranspose { .. } => {
            Facts { product: !(of(0).fed && of(1).fed), ..new }
        }
        Op::Gather { .. } => Facts { product: !of(0).fed, ..new },
        Op::LayerNorm { .. } | Op::BatchNorm { .. } => Facts { normalised: true, ..new },
        Op::Dropout { .. } => of(0),
        Op::Unary { f: Unary::Reciprocal } => {
            Facts { inverse_root: inputs.first().is_some_and(|&v| comes_of_root(g, v)), ..new }
        }
        Op::Unary { f: Unary::Neg } => of(0),
        Op::Binary { f } => {
            let (a, b) = (of(0), of(1));
            let divides = *f == Binary::Div && inputs.get(1).is_some_and(|&v| comes_of_root(g, v));
            let shifts = matches!(f, Binary::Add | Binary::Sub);
            let linear = shifts || matches!(f, Binary::Mul | Binary::Div);
            Facts {
                raw: linear && (a.raw || !a.fed) && (b.raw || !b.fed) && (a.raw || b.raw),
                product: shifts && ((a.product && !b.fed) || (b.product && !a.fed)),
                inverse_root: (*f == Binary::Mul
                    && (a.inverse_root || b.inverse_root)
                    && !(a.fed && b.fed))
                    || (divides && !a.fed),
                normalised: (divides && a.fed)
                    || (*f == Binary::Mul && (a.inverse_root || b.inverse_root) && a.fed | b.fed)
                    || (linear && (a.normalised || b.normalised)),
                ..new
            }
        }
        _ => new,
    }
}

/// True for a square root, through what only leads it on.
fn comes_of_root(g: &Graph, v: ValueId) -> bool {
    let Def::Node { node, .. } = g.values[v].def else { return false };
    let node = &g.nodes[node];
    match &node.op {
        Op::Unary { f: Unary::Sqrt } => true,
        op if carries(op) => node.inputs.first().is_some_and(|&v| comes_of_root(g, v)),
        _ => false,
    }
}
