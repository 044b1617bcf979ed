//! The CPU kernels.
//!
//! Rules that every kernel keeps:
//! - the order of every sum follows from shapes alone, never from the number of threads, so that
//!   threads change speed and nothing else;
//! - no heap memory for tensor data: scratch comes with the call, sized by
//!   [`Op::scratch_bytes`](arenic_ir::Op::scratch_bytes);
//! - where the operator table declares an in-place pair, the kernel reads what it needs
//!   of an element (or row) before it writes there, and the result has the same bits.
//!
//! Products go by kernels of the `gemm` crates (`library`) and, of `bf16`, by oneDNN where it is (`onednn`). What these
//! pack is the one allocation beside the arena, which [`library_bytes`] bounds. A recurrence packs its weight once for
//! all steps (`step_product`).
//!
//! What kernels are written with: `isa` says which instructions they may use, `wide` compiles loops for each; `tasks`
//! shares out work; `nest`, `map` and `blocks` are loops over operands; `address` has addresses that tasks share.
//! Convolutions have several ways (`depthwise`, `direct`, `winograd`, `shifted`, columns in `conv`), of which
//! `arenic_backends::cpu::tiling` chooses one by shapes.

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
mod depthwise;
mod direct;
mod dispatch;
mod factor;
mod fused_norm;
mod gather;
mod gelu;
mod indices;
mod isa;
mod lane_sums;
mod library;
mod map;
mod math;
mod matmul;
mod moments;
mod movement;
mod narrow;
mod nest;
mod norm;
mod norm_grad;
mod number;
mod onednn;
mod pad;
mod param_grad;
mod pointwise;
mod pool;
mod product;
mod product_update;
mod random;
mod recurrence;
mod recurrence_grad;
mod reduce;
mod region;
mod resize;
mod scalar;
mod scatter;
mod shifted;
mod sliding;
mod softmax;
mod softmax_grad;
mod step_product;
mod tasks;
mod terms;
#[cfg(test)]
mod tests;
mod tiles;
mod top_k;
mod transpose;
mod update;
mod wide;
mod winograd;

pub use isa::{Isa, UnknownIsa};
pub use library::library_bytes;
pub use onednn::multiplies_bf16;

use crate::kernel::{Call, KernelError};
use crate::ranks;
use arenic_ir::{DType, Op};
use dispatch::for_float;

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
        Op::Pad { starts, steps, shape, value } => pad::run(starts, steps, shape, *value, call),
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
        Op::TopK { axis, k, largest } => top_k::run(*axis, *k, *largest, call),
        Op::Cast { to } => cast::run(*to, call),
        Op::Unary { f } => scalar::unary(*f, call),
        Op::Binary { f } => return scalar::binary(*f, call),
        Op::Where => choice::choose(call),
        Op::Clip { min, max } => choice::clip(*min, *max, call),
        Op::Pointwise { steps, results } => pointwise::run(steps, results, call),
        Op::Dropout { rng } => return random::dropout(rng, call),
        Op::RandomUniform { low, high, rng, .. } => {
            random::uniform(*low, *high, rng, call);
        }
        Op::Reduce { f, axes, .. } => reduce::run(*f, axes, call),
        Op::PointwiseReduce { steps, f, axes, .. } => {
            reduce::run_computed(steps, *f, axes, call);
        }
        Op::Softmax { axis } => softmax::run(*axis, false, call),
        Op::LogSoftmax { axis } => softmax::run(*axis, true, call),
        Op::SoftmaxGrad { axis } => softmax_grad::of_softmax(*axis, call),
        Op::LogSoftmaxGrad { axis } => softmax_grad::of_log_softmax(*axis, call),
        Op::LogSoftmaxStats => cross_entropy::stats(call),
        Op::SoftmaxOfStats => cross_entropy::softmax(call),
        Op::CrossEntropyGrad => return cross_entropy::gradient(call),
        Op::LayerNorm { .. }
        | Op::LayerNormInputGrad { .. }
        | Op::LayerNormParamGrad { .. }
        | Op::BatchNorm { .. }
        | Op::BatchNormInputGrad
        | Op::BatchNormParamGrad => fused_norm::alone(call),
        Op::FusedNorm { of, others, steps, rounded } => {
            fused_norm::followed(of, *others, steps, *rounded, call);
        }
        Op::FusedNormGrad { of, steps } => fused_norm::gradient(of, steps, None, call),
        Op::MatMul { trans_a, trans_b } => matmul::mat_mul(*trans_a, *trans_b, call),
        Op::Gemm { alpha, beta, trans_a, trans_b } => {
            matmul::gemm(*alpha, *beta, *trans_a, *trans_b, call);
        }
        Op::GemmGelu { trans_a, trans_b } => gelu::forward(*trans_a, *trans_b, call),
        Op::GemmGeluGrad { trans_a, trans_b } => gelu::gradient(*trans_a, *trans_b, call),
        Op::ProductUpdate { alpha, trans_a, trans_b, gradient, update } => {
            product_update::run(*alpha, [*trans_a, *trans_b], *gradient, update, call);
        }
        Op::Attention { spec } => attention::attention(*spec, call),
        Op::AttentionGrad { spec, has_result, .. } => attention::gradient(*spec, *has_result, call),
        Op::Conv { window, group } => conv::run(window, *group, call),
        Op::ConvTranspose { window, group, .. } => conv_transpose::run(window, *group, call),
        Op::ConvWeightGrad { window, group } => conv_weight::run(window, *group, call),
        Op::MaxPool { window, indices, .. } => pool::max(window, *indices, call),
        Op::AveragePool { window, count_include_pad, .. } => {
            pool::average(window, *count_include_pad, call);
        }
        Op::MaxPoolGrad { window, indices, .. } => return pool::grad::max(window, *indices, call),
        Op::AveragePoolGrad { window, count_include_pad, .. } => {
            pool::grad::average(window, *count_include_pad, call);
        }
        Op::ChannelsLast { of } => return channels_last::run(of, call),
        Op::ForEach { of, lots } => {
            let [inputs, outputs] = [call.inputs.len(), call.outputs.len()].map(|n| n / lots);
            for (inputs, outputs) in call.inputs.chunks(inputs).zip(call.outputs.chunks(outputs)) {
                wide_enough(&Call { op: of, inputs, outputs, ..*call })?;
            }
        }
        Op::Lstm { reverse } => {
            for_float!(first(call), T => recurrence::lstm::<T>(call, *reverse));
        }
        Op::LstmGrad { reverse, dcells } => {
            for_float!(first(call), T => recurrence_grad::lstm::<T>(call, *reverse, *dcells));
        }
        Op::Gru { reverse, linear_before_reset: linear } => {
            for_float!(first(call), T => recurrence::gru::<T>(call, *reverse, *linear));
        }
        Op::GruGrad { reverse, linear_before_reset: linear } => {
            for_float!(first(call), T => recurrence_grad::gru::<T>(call, *reverse, *linear));
        }
        Op::Rnn { reverse, activation } => {
            for_float!(first(call), T => recurrence::rnn::<T>(call, *reverse, *activation));
        }
        Op::RnnGrad { reverse, activation } => {
            for_float!(first(call), T => recurrence_grad::rnn::<T>(call, *reverse, *activation));
        }
        Op::Resize { spec } => resize::run(spec, call),
        Op::Adam { .. } | Op::Adagrad { .. } | Op::Momentum { .. } => update::run(call),
        // Without others.
        Op::AllReduce { .. }
        | Op::ReduceScatter { .. }
        | Op::AllGather { .. }
        | Op::OwnPart { .. } => return ranks::run(call, None),
        Op::Opaque { .. } => return Err(KernelError::Opaque),
    }
    Ok(())
}

/// The element type of the first operand.
fn first(call: &Call) -> DType {
    call.inputs[0].ty().dtype
}
