//! Operators of ONNX Runtime's domain, and gradients that it puts into ONNX's own: what its
//! training artifacts are made of.

mod index;
mod norm;
mod optimizer;
mod product;
mod recurrent;
pub(super) mod window;

use super::conv::{CONV, CONV_TRANSPOSE};
use super::recurrent::WHOLE;
use super::reduce::REDUCE;
use super::{ANY, Row, row};
use super::{activation, loss, reduce};

/// The domain.
const MICROSOFT: &str = "com.microsoft";

impl Row {
    const fn microsoft(self) -> Row {
        Row { domain: MICROSOFT, since: 1, ..self }
    }
}

const SPARSE_LOSS: &[&str] = &["ignore_index", "output_type", "reduction"];
const FUSED_MAT_MUL: &[&str] = &["alpha", "transA", "transB", "transBatchA", "transBatchB"];
const ADAM: &[&str] = &["adam_mode", "alpha", "beta", "correct_bias", "epsilon", "weight_decay"];
const BATCH_NORM: &[&str] = &["epsilon", "momentum", "training_mode"];
/// Those of ONNX without the layout.
const LSTM: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "input_forget",
];
const LAYER_NORM: &[&str] = &["axis", "epsilon", "stash_type"];

/// In alphabetical order; pools' gradients are in the table of ONNX's own domain.
pub(super) const TABLE: &[Row] = &[
    row("AdamWOptimizer", (6, 6), ADAM, optimizer::adam).microsoft().note("by --ort"),
    row("BatchNormInternal", (5, 5), BATCH_NORM, norm::batch_norm).microsoft(),
    row("BatchNormalizationGrad", (5, 5), &["epsilon"], norm::batch_norm_grad).microsoft(),
    row("BiasFastGeluGrad_dX", (3, 3), &[], activation::fast_gelu_grad).microsoft(),
    row("BiasGelu", (2, 2), &[], activation::runtime_gelu).microsoft(),
    row("BiasGeluGrad_dX", (3, 3), &[], activation::gelu_grad).microsoft(),
    row("ConcatTraining", (1, ANY), &["axis"], index::concat).microsoft(),
    row("ConvGrad", (3, 3), CONV, window::conv_grad).microsoft(),
    row("ConvTransposeGrad", (3, 3), CONV_TRANSPOSE, window::conv_transpose_grad)
        .microsoft()
        .note("explicit pads"),
    row("DropoutGrad", (2, 4), &[], index::dropout_grad).microsoft(),
    row("FastGelu", (1, 2), &[], activation::runtime_fast_gelu).microsoft(),
    row("FastGeluGrad", (2, 2), &[], activation::fast_gelu_grad).microsoft(),
    row("FusedMatMul", (2, 2), FUSED_MAT_MUL, product::fused_mat_mul)
        .microsoft()
        .note("without transBatchA and transBatchB"),
    row("GatherElementsGrad", (3, 3), &["axis"], index::gather_elements_grad).microsoft(),
    row("GatherGrad", (3, 3), &["axis"], index::gather_grad).microsoft(),
    row("Gelu", (1, 1), &[], activation::runtime_gelu).microsoft(),
    row("GeluGrad", (2, 2), &[], activation::gelu_grad).microsoft(),
    row("LSTMGrad", (11, 14), LSTM, recurrent::lstm_grad)
        .microsoft()
        .note("forward; as LSTMTraining"),
    row("LSTMTraining", (3, 8), LSTM, super::recurrent::lstm).microsoft().note(WHOLE),
    row("LayerNormalizationGrad", (5, 5), LAYER_NORM, norm::layer_norm_grad).microsoft(),
    row("LogSoftmaxGrad_13", (2, 2), &["axis"], norm::softmax_grad).microsoft(),
    row("QuickGelu", (1, 1), &["alpha"], activation::quick_gelu).microsoft(),
    row("QuickGeluGrad", (2, 2), &["alpha"], activation::quick_gelu_grad).microsoft(),
    row("ReduceSumTraining", (2, 2), REDUCE, reduce::reduce).microsoft(),
    row("ReluGrad", (2, 2), &[], activation::relu_grad).microsoft(),
    row("SGDOptimizerV2", (3, 3), &[], optimizer::sgd).microsoft().note("by --ort"),
    row("Scale", (2, 2), &["scale_down"], product::scale).microsoft(),
    row("SigmoidGrad", (2, 2), &[], activation::sigmoid_grad).microsoft(),
    row("SliceGrad", (4, 6), &[], index::slice_grad).microsoft().note("steps of 1"),
    row("SoftmaxCrossEntropyLossGrad", (3, 5), SPARSE_LOSS, loss::softmax_cross_entropy_grad)
        .microsoft(),
    row("SoftmaxCrossEntropyLossInternal", (2, 4), SPARSE_LOSS, loss::softmax_cross_entropy)
        .microsoft(),
    row(
        "SoftmaxCrossEntropyLossInternalGrad",
        (3, 6),
        SPARSE_LOSS,
        loss::softmax_cross_entropy_grad,
    )
    .microsoft(),
    row("SoftmaxGrad_13", (2, 2), &["axis"], norm::softmax_grad).microsoft(),
    row("SplitTraining", (2, 2), &["axis"], super::shape::split).microsoft(),
    row("TanhGrad", (2, 2), &[], activation::tanh_grad).microsoft(),
];
