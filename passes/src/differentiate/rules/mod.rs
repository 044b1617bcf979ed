//! The table of gradient rules: how each operator passes gradients on to its operands.
//!
//! A rule is given the gradients of a node's results and adds nodes that compute those of
//! the operands which need one, each as a node of its own where the arithmetic allows it, so
//! that the order and the byte limit can treat them apart. What a rule reads of the forward
//! part stays alive until then, so rules read what is small or alive anyway: a mask, a
//! result that the next operator keeps too, statistics.

mod attention;
mod elementwise;
mod indexing;
mod movement;
mod norms;
mod products;
mod recurrent;
mod reductions;
mod windows;

use super::guards::Guard;
use super::tape::Tape;
use arenic_ir::graph::{NodeId, ValueId};
use arenic_ir::op::{Coordinates, Op, Reduction, Scatter, TypeError};

/// A node whose results have gradients.
pub(super) struct Local {
    pub(super) node: NodeId,
    pub(super) op: Op,
    /// Operands.
    pub(super) x: Vec<ValueId>,
    /// Whose gradients are needed.
    pub(super) wanted: Vec<bool>,
    /// Gradients of results.
    pub(super) dy: Vec<Option<ValueId>>,
    /// What says which elements of the first result count.
    pub(super) guards: Vec<Guard>,
}

impl Local {
    fn wants(&self, i: usize) -> bool {
        self.wanted.get(i).copied().unwrap_or(false)
    }

    /// The gradient of the first result, which operators with a rule differentiate through.
    fn dy(&self) -> Result<ValueId, TypeError> {
        self.dy.first().copied().flatten().ok_or_else(|| {
            TypeError(format!("only the first result of {} has a gradient", self.op.name()))
        })
    }
}

/// Adds nodes for the gradients of a node's operands.
pub(in crate::differentiate) type Apply = fn(&mut Tape, &Local) -> Result<(), TypeError>;

/// How gradients pass an operator.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// They do not: its results are no continuous function of its operands, or its gradient is
    /// zero almost everywhere.
    Stops,
    /// By these nodes, from gradients of the shapes of results.
    Passes(Apply),
    /// The same, from gradients whose axes may have extent 1 for all of their elements.
    Broadcasts(Apply),
}

/// Whether gradients pass an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// They do.
    Passes,
    /// They are zero, or there are none.
    Stops,
    /// It has no rule.
    None,
}

/// Whether gradients pass an operator.
pub fn passage(op: &Op) -> Passage {
    match rule(op) {
        Some(Rule::Passes(_) | Rule::Broadcasts(_)) => Passage::Passes,
        Some(Rule::Stops) => Passage::Stops,
        None => Passage::None,
    }
}

/// The rule of an operator; none where there is none.
pub(super) fn rule(op: &Op) -> Option<Rule> {
    use Rule::{Broadcasts, Passes, Stops};
    Some(match op {
        Op::Reshape { .. } => Passes(movement::reshape),
        Op::Slice { .. } => Passes(movement::slice),
        Op::Pad { .. } => Passes(movement::pad),
        Op::Transpose { .. } => Passes(movement::transpose),
        Op::Expand { .. } => Passes(movement::expand),
        Op::Concat { .. } => Passes(movement::concat),
        Op::Copy => Broadcasts(movement::copy),

        Op::Gather { .. } => Passes(indexing::gather),
        Op::GatherElements { .. } => Passes(indexing::gather_elements),
        Op::GatherNd { .. } => Passes(indexing::gather_nd),
        Op::TopK { .. } => Passes(indexing::top_k),
        Op::ScatterElements { reduction: Scatter::Replace | Scatter::Add, .. }
        | Op::ScatterNd { reduction: Scatter::Replace | Scatter::Add } => Passes(indexing::scatter),
        Op::ScatterElements { .. } | Op::ScatterNd { .. } => return None,

        Op::Cast { .. } => Broadcasts(elementwise::cast),
        Op::Unary { f } => elementwise::unary_rule(*f),
        Op::Binary { f } => elementwise::binary_rule(*f),
        Op::Where => Passes(elementwise::select),
        Op::Clip { .. } => Passes(elementwise::clip),
        Op::Dropout { .. } => Broadcasts(elementwise::dropout),
        Op::RandomUniform { .. } => Stops,

        Op::Reduce { f: Reduction::Sum | Reduction::Mean, .. } => Passes(reductions::sum),
        Op::Reduce { f: Reduction::Min | Reduction::Max, .. } => Passes(reductions::extremum),
        Op::Reduce { f: Reduction::Prod, .. } => Passes(reductions::product),
        Op::Softmax { .. } => Passes(norms::softmax),
        Op::LogSoftmax { .. } => Passes(norms::log_softmax),
        Op::Attention { .. } => Passes(attention::attention),
        Op::LayerNorm { .. } => Passes(norms::layer_norm),
        Op::BatchNorm { .. } => Passes(norms::batch_norm),

        Op::MatMul { .. } => Passes(products::mat_mul),
        Op::Gemm { .. } => Passes(products::gemm),
        Op::Conv { .. } => Passes(products::conv),
        Op::ConvTranspose { .. } => Passes(products::conv_transpose),
        Op::MaxPool { .. } => Passes(windows::max_pool),
        Op::AveragePool { .. } => Passes(windows::average_pool),
        Op::Lstm { .. } => Passes(recurrent::lstm),
        Op::Gru { .. } => Passes(recurrent::gru),
        Op::Rnn { .. } => Passes(recurrent::rnn),
        Op::Resize { spec } if spec.coordinates == Coordinates::TfCropAndResize => return None,
        Op::Resize { .. } => Passes(windows::resize),

        // What gradients and updates are made of, and what passes that run later make.
        Op::ConvWeightGrad { .. }
        | Op::LstmGrad { .. }
        | Op::GruGrad { .. }
        | Op::RnnGrad { .. }
        | Op::BatchNormParamGrad
        | Op::BatchNormInputGrad
        | Op::LayerNormParamGrad { .. }
        | Op::LayerNormInputGrad { .. }
        | Op::SoftmaxGrad { .. }
        | Op::LogSoftmaxGrad { .. }
        | Op::MaxPoolGrad { .. }
        | Op::AveragePoolGrad { .. }
        | Op::Adam { .. }
        | Op::Adagrad { .. }
        | Op::Momentum { .. }
        | Op::Pointwise { .. }
        | Op::PointwiseReduce { .. }
        | Op::ProductUpdate { .. }
        | Op::ChannelsLast { .. }
        | Op::GemmGelu { .. }
        | Op::GemmGeluGrad { .. }
        | Op::AttentionGrad { .. }
        | Op::LogSoftmaxStats
        | Op::SoftmaxOfStats
        | Op::CrossEntropyGrad
        | Op::Opaque { .. } => return None,
    })
}
