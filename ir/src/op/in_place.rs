//! Which output may take over which input's bytes.
//!
//! A declared pair is a promise of the kernel: it gives the same bits when the output's
//! range *is* the input's range. Every kernel that declares one reads an element (or
//! all it needs of a row) before it writes there. The traps of the MXNet note ("Squeeze
//! the Memory Consumption of Deep Learning", in-place rules) are closed here: a
//! broadcast operand is read again after its first element was overwritten, so only an
//! operand of the output's own shape is declared.

use super::{Op, ProductOperands};
use crate::types::TensorType;

impl Op {
    /// The legal (input, output) pairs, given operand and result types.
    ///
    /// Both members of a pair have equal bytes. Which pairs a plan uses is its choice;
    /// that the input is dead afterwards is the plan's duty.
    pub fn in_place_pairs(
        &self,
        inputs: &[&TensorType],
        outputs: &[&TensorType],
    ) -> Vec<(usize, usize)> {
        let every: Vec<(usize, usize)>;
        let candidates: &[(usize, usize)] = match self {
            Op::Reshape { .. } | Op::Copy | Op::Cast { .. } | Op::Unary { .. } => &[(0, 0)],
            Op::Binary { .. } => &[(0, 0), (1, 0)],
            Op::Where => &[(1, 0), (2, 0), (0, 0)],
            Op::Clip { .. } | Op::Dropout { .. } => &[(0, 0)],
            Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::LayerNorm { .. }
            | Op::BatchNorm { .. } => &[(0, 0)],
            Op::SoftmaxGrad { .. }
            | Op::LogSoftmaxGrad { .. }
            | Op::LayerNormInputGrad { .. }
            | Op::BatchNormInputGrad => &[(1, 0), (0, 0)],
            Op::ScatterElements { .. } | Op::ScatterNd { .. } => &[(0, 0)],
            // A step's gates, and their gradients, are read before they are written.
            Op::Lstm { .. } | Op::Gru { .. } => &[(0, 1)],
            Op::LstmGrad { .. } | Op::GruGrad { .. } | Op::Rnn { .. } => &[(0, 0)],
            Op::RnnGrad { .. } => &[(2, 0), (0, 0)],
            Op::Gemm { .. } => &[(2, 0)],
            Op::Adam { .. } => &[(2, 0), (4, 1), (5, 2)],
            Op::Adagrad { .. } | Op::Momentum { .. } => &[(2, 0), (4, 1)],
            Op::SoftmaxOfStats | Op::CrossEntropyGrad => &[(0, 0)],
            Op::Pointwise { .. } => {
                let of = |i: usize| (0..outputs.len()).map(move |o| (i, o));
                every = (0..inputs.len()).flat_map(of).collect();
                &every
            }
            Op::ProductUpdate { gradient, update, .. } => {
                let Some(others) = inputs.len().checked_sub(2) else { return Vec::new() };
                let place = ProductOperands { gradient: *gradient, others };
                let Some(product) = outputs.first().filter(|_| *gradient <= others) else {
                    return Vec::new();
                };
                let pairs = update.in_place_pairs(&place.operands(inputs, product), outputs);
                let kept = pairs.into_iter().filter_map(|(i, o)| Some((place.of_update(i)?, o)));
                return kept.collect();
            }
            Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Transpose { .. }
            | Op::Expand { .. }
            | Op::Concat { .. }
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::TopK { .. }
            | Op::RandomUniform { .. }
            | Op::Reduce { .. }
            | Op::PointwiseReduce { .. }
            | Op::MatMul { .. }
            | Op::GemmGelu { .. }
            // No library says that what it reads beside the sums may be where it writes.
            | Op::GemmGeluGrad { .. }
            | Op::Conv { .. }
            | Op::ConvTranspose { .. }
            | Op::ConvWeightGrad { .. }
            | Op::LayerNormParamGrad { .. }
            | Op::BatchNormParamGrad
            | Op::MaxPool { .. }
            | Op::AveragePool { .. }
            | Op::MaxPoolGrad { .. }
            | Op::AveragePoolGrad { .. }
            | Op::ChannelsLast { .. }
            | Op::Resize { .. }
            | Op::Attention { .. }
            | Op::AttentionGrad { .. }
            | Op::LogSoftmaxStats
            | Op::Opaque { .. } => &[],
        };
        candidates
            .iter()
            .copied()
            .filter(|&(i, o)| match (inputs.get(i), outputs.get(o)) {
                (Some(x), Some(y)) => {
                    let same_shape = x.shape == y.shape || matches!(self, Op::Reshape { .. });
                    same_shape && x.dtype.size() == y.dtype.size()
                }
                _ => false,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Binary;
    use crate::types::DType;

    #[test]
    fn not_broadcast_operands_nor_wider_elements() {
        let op = Op::Binary { f: Binary::Add };
        let (full, row) = (TensorType::new(DType::F32, [4, 3]), TensorType::new(DType::F32, [3]));
        assert_eq!(op.in_place_pairs(&[&full, &row], &[&full]), [(0, 0)]);
        assert_eq!(op.in_place_pairs(&[&row, &full], &[&full]), [(1, 0)]);
        let (bools, ints) = (TensorType::new(DType::Bool, [8]), TensorType::new(DType::I32, [8]));
        assert_eq!(Op::Cast { to: DType::I32 }.in_place_pairs(&[&bools], &[&ints]), []);
    }
}
