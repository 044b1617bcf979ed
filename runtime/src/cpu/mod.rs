//! The CPU kernels.
//!
//! Rules that every kernel keeps:
//! - the order of every sum and every chunk boundary follows from shapes alone, never
//!   from the number of threads, so that threads change speed and nothing else;
//! - no heap memory for tensor data: scratch comes with the call, sized by
//!   [`Op::scratch_bytes`](arenic_ir::Op::scratch_bytes);
//! - where the operator table declares an in-place pair, the kernel reads what it needs
//!   of an element (or row) before it writes there, and the result has the same bits.

mod address;
mod attention;
mod batch_norm;
mod blocks;
mod cast;
mod channels;
mod channels_last;
mod choice;
mod conv;
mod conv_transpose;
mod conv_weight;
mod cross_entropy;
mod direct;
mod dispatch;
mod gather;
mod gelu;
mod indices;
mod map;
mod math;
mod matmul;
mod movement;
mod narrow;
mod nest;
mod norm;
mod norm_grad;
mod number;
mod pad;
mod param_grad;
mod pointwise;
mod pool;
mod pool_grad;
mod product;
mod product_update;
mod random;
mod recurrence;
mod recurrence_grad;
mod reduce;
mod resize;
mod scalar;
mod scatter;
mod sliding;
mod softmax;
mod softmax_grad;
mod tasks;
#[cfg(test)]
mod tests;
mod top_k;
mod transpose;
mod update;
mod wide;

pub use product::library_bytes;

use crate::kernel::{Call, KernelError};
use arenic_ir::Op;

/// Runs one operator.
///
/// # Errors
/// The operands' contents do not fit, for example an index out of range.
pub fn run(call: &Call) -> Result<(), KernelError> {
    if narrow::applies(call) { narrow::run(call) } else { wide_enough(call) }
}

/// Runs one operator on operands that its kernel takes as they are.
fn wide_enough(call: &Call) -> Result<(), KernelError> {
    match call.op {
        Op::Reshape { .. } | Op::Copy => movement::duplicate(call),
        Op::Slice { starts, steps, .. } => movement::slice(starts, steps, call),
        Op::Pad { .. } => pad::run(call),
        Op::Transpose { perm } => transpose::run(perm, call),
        Op::Expand { .. } => movement::expand(call),
        Op::Concat { axis } => movement::concat(*axis, call),
        Op::Gather { axis } => return gather::gather(*axis, call),
        Op::GatherElements { axis } => return gather::gather_elements(*axis, call),
        Op::GatherNd { batch_dims } => return gather::gather_nd(*batch_dims, call),
        Op::ScatterElements { axis, reduction } => {
            return scatter::scatter_elements(*axis, *reduction, call);
        }
        Op::ScatterNd { reduction } => return scatter::scatter_nd(*reduction, call),
        Op::Cast { to } => cast::run(*to, call),
        Op::Unary { f } => scalar::unary(*f, call),
        Op::Binary { f } => return scalar::binary(*f, call),
        Op::Where => choice::choose(call),
        Op::Clip { min, max } => choice::clip(*min, *max, call),
        Op::Dropout { rng } => return random::dropout(rng, call),
        Op::RandomUniform { low, high, rng, .. } => {
            random::uniform(*low, *high, rng, call);
        }
        Op::Reduce { .. } | Op::PointwiseReduce { .. } => reduce::run(call),
        Op::TopK { axis, k, largest } => top_k::run(*axis, *k, *largest, call),
        Op::Softmax { .. } | Op::LogSoftmax { .. } => return softmax::run(call),
        Op::SoftmaxGrad { .. } | Op::LogSoftmaxGrad { .. } => softmax_grad::run(call),
        Op::LayerNorm { .. } => return norm::run(call),
        Op::LayerNormInputGrad { .. } => norm_grad::run(call),
        Op::LayerNormParamGrad { .. } | Op::BatchNormParamGrad => param_grad::run(call),
        Op::BatchNorm { .. } | Op::BatchNormInputGrad => batch_norm::run(call),
        Op::MatMul { .. } | Op::Gemm { .. } => return matmul::run(call),
        Op::Attention { .. } | Op::AttentionGrad { .. } => attention::run(call),
        Op::Conv { .. } => return conv::run(call),
        Op::ConvTranspose { .. } => return conv_transpose::run(call),
        Op::ConvWeightGrad { .. } => conv_weight::run(call),
        Op::MaxPool { .. } | Op::AveragePool { .. } => return pool::run(call),
        Op::MaxPoolGrad { .. } | Op::AveragePoolGrad { .. } => return pool_grad::run(call),
        Op::ChannelsLast { of } => return channels_last::run(of, call),
        Op::Lstm { .. } | Op::Gru { .. } | Op::Rnn { .. } => recurrence::run(call),
        Op::LstmGrad { .. } | Op::GruGrad { .. } | Op::RnnGrad { .. } => recurrence_grad::run(call),
        Op::Resize { .. } => return resize::run(call),
        Op::Adam { .. } | Op::Adagrad { .. } | Op::Momentum { .. } => update::run(call),
        Op::Pointwise { steps, results } => pointwise::run(steps, results, call),
        Op::ProductUpdate { .. } => product_update::run(call),
        Op::GemmGelu { .. } | Op::GemmGeluGrad { .. } => return gelu::run(call),
        Op::LogSoftmaxStats => cross_entropy::stats(call),
        Op::SoftmaxOfStats => cross_entropy::softmax(call),
        Op::CrossEntropyGrad => return cross_entropy::gradient(call),
        Op::Opaque { .. } => return Err(KernelError::Opaque),
    }
    Ok(())
}
