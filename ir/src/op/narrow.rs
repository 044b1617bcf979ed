//! How operators run on `bf16`.
//!
//! Kernels that move elements take `bf16` as it is, and some convert what they read and write.
//! Every other one of the CPU is a kernel of `f32` between conversions: operands are widened into
//! scratch, and results rounded out of it. Sound because arithmetic on `bf16` is that on `f32`,
//! rounded once.

use super::Op;
use crate::types::{DType, TensorType};

/// What addresses in scratch are multiples of, in bytes.
const ALIGN: u64 = 64;

/// Bytes of scratch that a tensor takes as `f32`, up to where the next one begins.
pub fn widened_bytes(ty: &TensorType) -> u64 {
    ty.accumulated().bytes().next_multiple_of(ALIGN)
}

impl Op {
    /// True where a kernel of the CPU takes `bf16` without widening whole operands.
    pub fn cpu_takes_bf16(&self) -> bool {
        self.moves_elements()
            || matches!(self, Op::Cast { .. } | Op::Pointwise { .. } | Op::PointwiseReduce { .. })
    }

    /// True where the CUDA backend has a kernel for `bf16` operands or results.
    pub fn cuda_takes_bf16(&self) -> bool {
        if let Op::ChannelsLast { of } = self {
            return of.cuda_takes_bf16();
        }
        self.cpu_takes_bf16()
            || matches!(
                self,
                Op::Pad { .. }
                    | Op::Unary { .. }
                    | Op::Binary { .. }
                    | Op::Where
                    | Op::Clip { .. }
                    | Op::Reduce { .. }
                    | Op::Softmax { .. }
                    | Op::LogSoftmax { .. }
                    | Op::SoftmaxGrad { .. }
                    | Op::LogSoftmaxGrad { .. }
                    | Op::LogSoftmaxStats
                    | Op::SoftmaxOfStats
                    | Op::CrossEntropyGrad
                    | Op::LayerNorm { .. }
                    | Op::LayerNormParamGrad { .. }
                    | Op::LayerNormInputGrad { .. }
                    | Op::BatchNorm { .. }
                    | Op::BatchNormParamGrad
                    | Op::BatchNormInputGrad
                    | Op::MatMul { .. }
                    | Op::Gemm { .. }
                    | Op::ProductUpdate { .. }
                    | Op::GemmGelu { .. }
                    | Op::GemmGeluGrad { .. }
                    | Op::Conv { .. }
                    | Op::ConvTranspose { .. }
                    | Op::ConvWeightGrad { .. }
                    | Op::MaxPool { .. }
                    | Op::AveragePool { .. }
                    | Op::MaxPoolGrad { .. }
                    | Op::AveragePoolGrad { .. }
                    | Op::Attention { .. }
                    | Op::AttentionGrad { .. }
                    | Op::Dropout { .. }
            )
    }
}

/// True where some of these is of `bf16`.
pub fn has_bf16(mut types: impl Iterator<Item = DType>) -> bool {
    types.any(|d| d == DType::Bf16)
}
