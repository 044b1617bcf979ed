//! The table of ONNX operators: one row each, which dispatches and documents.

mod activation;
mod arrange;
mod attention;
mod compose;
mod conv;
mod deform;
mod einsum;
mod elementwise;
mod fourier;
mod index;
mod inverse;
mod loss;
mod microsoft;
mod norm;
mod normal;
mod pad;
mod pool;
mod position;
mod random;
mod rectifier;
mod recurrent;
mod reduce;
mod resize;
mod sequence;
mod shape;
mod signal;
mod source;
mod spatial;
mod stateful;
mod training;

use super::context::{Built, Cx};
use super::domains::TRAINING;
use microsoft::window;
use std::collections::HashMap;
use std::sync::LazyLock;

/// What the importer knows of one operator.
pub(super) struct Row {
    /// Empty for ai.onnx.
    domain: &'static str,
    name: &'static str,
    /// The first version of its domain that is supported.
    pub(super) since: i64,
    /// Least and most operands.
    pub(super) inputs: (usize, usize),
    /// Attributes of every version from 13 on.
    pub(super) attributes: &'static [&'static str],
    pub(super) build: fn(&mut Cx) -> Built,
    note: &'static str,
}

const ANY: usize = usize::MAX;

const fn row(
    name: &'static str,
    inputs: (usize, usize),
    attributes: &'static [&'static str],
    build: fn(&mut Cx) -> Built,
) -> Row {
    Row { domain: "", name, since: 13, inputs, attributes, build, note: "" }
}

impl Row {
    const fn since(self, since: i64) -> Row {
        Row { since, ..self }
    }

    const fn note(self, note: &'static str) -> Row {
        Row { note, ..self }
    }

    const fn training(self) -> Row {
        Row { domain: TRAINING, since: 1, ..self }
    }
}

const REDUCE: &[&str] = &["axes", "keepdims", "noop_with_empty_axes"];
const ARG: &[&str] = &["axis", "keepdims", "select_last_index"];
const CAST: &[&str] = &["to", "saturate", "round_mode"];
const CONV: &[&str] = &["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];
const CONV_TRANSPOSE: &[&str] = &[
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "output_padding",
    "output_shape",
    "pads",
    "strides",
];
const AVERAGE_POOL: &[&str] =
    &["auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides"];
const MAX_POOL: &[&str] =
    &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"];
const RESIZE: &[&str] = &[
    "antialias",
    "axes",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "extrapolation_value",
    "keep_aspect_ratio_policy",
    "mode",
    "nearest_mode",
];
const BATCH_NORM: &[&str] = &["epsilon", "momentum", "training_mode"];
const GROUP_NORM: &[&str] = &["epsilon", "num_groups", "stash_type"];
const LSTM: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "input_forget",
    "layout",
];
const GRU: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "layout",
    "linear_before_reset",
];
const RNN: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "layout",
];
const ATTENTION: &[&str] = &[
    "is_causal",
    "kv_num_heads",
    "left_window_size",
    "q_num_heads",
    "qk_matmul_output_mode",
    "right_window_size",
    "scale",
    "softcap",
    "softmax_precision",
];
const LINEAR_ATTENTION: &[&str] =
    &["chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule"];
const LP_POOL: &[&str] =
    &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "p", "pads", "strides"];
const WINDOW: &[&str] = &["output_datatype", "periodic"];
const DEFORM_CONV: &[&str] =
    &["dilations", "group", "kernel_shape", "offset_group", "pads", "strides"];
const SCAN: &[&str] = &[
    "body",
    "num_scan_inputs",
    "scan_input_axes",
    "scan_input_directions",
    "scan_output_axes",
    "scan_output_directions",
];
const ROTARY: &[&str] = &["interleaved", "num_heads", "rotary_embedding_dim"];
const PLACE: &str = "position known when compiled";
const WHOLE: &str = "whole sequences, without clip; sigmoid and tanh";
const CONSTANT: &[&str] = &["value", "value_float", "value_floats", "value_int", "value_ints"];

/// Of operators with graphs inside, which are built where their names are known.
fn unplaced(_: &mut Cx) -> Built {
    Err("its graphs are not at hand".into())
}

/// In alphabetical order, as `arenic ops` prints it.
static TABLE: &[Row] = &[
    row("Abs", (1, 1), &[], elementwise::unary),
    row("Acos", (1, 1), &[], inverse::acos),
    row("Acosh", (1, 1), &[], inverse::acosh),
    row("Add", (2, 2), &[], elementwise::binary),
    row("AffineGrid", (2, 2), &["align_corners"], spatial::affine_grid)
        .since(20)
        .note("size known when compiled"),
    row("And", (2, 2), &[], elementwise::binary).since(7),
    row("ArgMax", (1, 1), ARG, index::arg_extremum),
    row("ArgMin", (1, 1), ARG, index::arg_extremum),
    row("Asin", (1, 1), &[], inverse::asin),
    row("Asinh", (1, 1), &[], inverse::asinh),
    row("Atan", (1, 1), &[], elementwise::unary),
    row("Atanh", (1, 1), &[], elementwise::unary),
    row("Attention", (3, 7), ATTENTION, attention::attention).since(23),
    row("AveragePool", (1, 1), AVERAGE_POOL, pool::average_pool),
    row("AveragePoolGrad", (1, 1), AVERAGE_POOL, window::average_pool_grad)
        .since(1)
        .note("of ONNX Runtime; windows that fill their operand"),
    row("BatchNormalization", (5, 5), BATCH_NORM, norm::batch_norm).since(9),
    row("BlackmanWindow", (1, 1), WINDOW, signal::window)
        .since(17)
        .note("size known when compiled"),
    row("Cast", (1, 1), CAST, elementwise::cast),
    row("CastLike", (2, 2), &["saturate", "round_mode"], elementwise::cast_like),
    row("CausalConvWithState", (2, 4), &["activation"], stateful::causal_conv).since(27),
    row("Ceil", (1, 1), &[], elementwise::unary),
    row("Celu", (1, 1), &["alpha"], rectifier::celu),
    row("CenterCropPad", (2, 2), &["axes"], arrange::center_crop_pad)
        .since(18)
        .note("shape known when compiled"),
    row("Clip", (1, 3), &[], elementwise::clip),
    row("Col2Im", (3, 3), &["dilations", "pads", "strides"], spatial::col2im)
        .since(18)
        .note("shapes known when compiled"),
    row("Compress", (2, 2), &["axis"], index::compress).note("condition known when compiled"),
    row("Concat", (1, ANY), &["axis"], shape::concat),
    row("ConcatFromSequence", (1, 1), &["axis", "new_axis"], sequence::concat).since(11),
    row("Constant", (0, 0), CONSTANT, source::constant).note("no strings, not sparse"),
    row("ConstantOfShape", (1, 1), &["value"], source::constant_of_shape)
        .note("shape known when compiled"),
    row("Conv", (2, 3), CONV, conv::conv),
    row("ConvTranspose", (2, 3), CONV_TRANSPOSE, conv::conv_transpose),
    row("Cos", (1, 1), &[], elementwise::unary),
    row("Cosh", (1, 1), &[], rectifier::cosh),
    row("CumProd", (2, 2), &["exclusive", "reverse"], elementwise::cum_prod)
        .since(26)
        .note("axis known when compiled"),
    row("CumSum", (2, 2), &["exclusive", "reverse"], elementwise::cum_sum)
        .note("axis known when compiled"),
    row("DFT", (1, 3), &["axis", "inverse", "onesided"], fourier::dft)
        .since(17)
        .note("length and axis known when compiled"),
    row("DeformConv", (3, 5), DEFORM_CONV, deform::deform_conv).since(19),
    row("DepthToSpace", (1, 1), &["blocksize", "mode"], arrange::depth_to_space),
    row("Div", (2, 2), &[], elementwise::binary),
    row("Dropout", (1, 3), &["seed"], random::dropout).note("training_mode known when compiled"),
    row("Einsum", (1, ANY), &["equation"], einsum::einsum),
    row("Elu", (1, 1), &["alpha"], rectifier::elu),
    row("Equal", (2, 2), &[], elementwise::binary),
    row("Erf", (1, 1), &[], elementwise::unary),
    row("Exp", (1, 1), &[], elementwise::unary),
    row("Expand", (2, 2), &[], shape::expand).note("shape known when compiled"),
    row("EyeLike", (1, 1), &["dtype", "k"], arrange::eye_like),
    row("Flatten", (1, 1), &["axis"], shape::flatten),
    row("Floor", (1, 1), &[], elementwise::unary),
    row("GRU", (3, 6), GRU, recurrent::gru).since(7).note(WHOLE),
    row("Gather", (2, 2), &["axis"], index::gather),
    row("GatherElements", (2, 2), &["axis"], index::gather_elements),
    row("GatherND", (2, 2), &["batch_dims"], index::gather_nd),
    row("Gelu", (1, 1), &["approximate"], rectifier::onnx_gelu).since(20),
    row("Gemm", (2, 3), &["alpha", "beta", "transA", "transB"], norm::gemm),
    row("GlobalAveragePool", (1, 1), &[], pool::global_pool),
    row("GlobalLpPool", (1, 1), &["p"], pool::global_lp_pool),
    row("GlobalMaxPool", (1, 1), &[], pool::global_pool),
    row("Greater", (2, 2), &[], elementwise::binary),
    row("GreaterOrEqual", (2, 2), &[], elementwise::binary),
    row("GridSample", (2, 2), &["align_corners", "mode", "padding_mode"], spatial::grid_sample)
        .since(16)
        .note("cubic in two dimensions"),
    row("GroupNormalization", (3, 3), GROUP_NORM, normal::group_norm).since(18),
    row("HammingWindow", (1, 1), WINDOW, signal::window).since(17).note("size known when compiled"),
    row("HannWindow", (1, 1), WINDOW, signal::window).since(17).note("size known when compiled"),
    row("HardSigmoid", (1, 1), &["alpha", "beta"], rectifier::hard_sigmoid),
    row("HardSwish", (1, 1), &[], rectifier::hard_swish).since(14),
    row("Hardmax", (1, 1), &["axis"], index::hardmax),
    row("Identity", (1, 1), &[], shape::identity),
    row("If", (1, 1), &["else_branch", "then_branch"], unplaced)
        .since(1)
        .note("condition known when compiled"),
    row("InstanceNormalization", (3, 3), &["epsilon"], normal::instance_norm),
    row("IsInf", (1, 1), &["detect_negative", "detect_positive"], rectifier::is_inf),
    row("IsNaN", (1, 1), &[], rectifier::is_nan),
    row("LRN", (1, 1), &["alpha", "beta", "bias", "size"], normal::local_response),
    row("LSTM", (3, 8), LSTM, recurrent::lstm).since(7).note(WHOLE),
    row("LayerNormalization", (2, 3), &["axis", "epsilon", "stash_type"], norm::layer_norm),
    row("LeakyRelu", (1, 1), &["alpha"], rectifier::leaky_relu),
    row("Less", (2, 2), &[], elementwise::binary),
    row("LessOrEqual", (2, 2), &[], elementwise::binary),
    row("LinearAttention", (3, 6), LINEAR_ATTENTION, stateful::linear_attention)
        .since(27)
        .note("steps become nodes"),
    row("Log", (1, 1), &[], elementwise::unary),
    row("LogSoftmax", (1, 1), &["axis"], norm::softmax),
    row("Loop", (2, ANY), &["body"], unplaced)
        .since(1)
        .note("count and conditions known when compiled"),
    row("LpNormalization", (1, 1), &["axis", "p"], normal::lp_norm),
    row("LpPool", (1, 1), LP_POOL, pool::lp_pool),
    row("MatMul", (2, 2), &[], norm::mat_mul),
    row("Max", (1, ANY), &[], elementwise::variadic),
    row("MaxPool", (1, 1), MAX_POOL, pool::max_pool),
    row("MaxPoolGrad", (2, 2), MAX_POOL, window::max_pool_grad).since(1).note("of ONNX Runtime"),
    row("Mean", (1, ANY), &[], elementwise::mean),
    row("MeanVarianceNormalization", (1, 1), &["axes"], normal::mean_variance),
    row("Min", (1, ANY), &[], elementwise::variadic),
    row("Mish", (1, 1), &[], rectifier::mish).since(18),
    row("Mod", (2, 2), &["fmod"], elementwise::modulo),
    row("Mul", (2, 2), &[], elementwise::binary),
    row("Neg", (1, 1), &[], elementwise::unary),
    row(
        "NegativeLogLikelihoodLoss",
        (2, 3),
        &["ignore_index", "reduction"],
        loss::negative_log_likelihood,
    ),
    row("Not", (1, 1), &[], elementwise::unary).since(1),
    row("OneHot", (3, 3), &["axis"], arrange::one_hot).note("depth known when compiled"),
    row("Or", (2, 2), &[], elementwise::binary).since(7),
    row("PRelu", (2, 2), &[], rectifier::p_relu),
    row("Pad", (2, 4), &["mode"], pad::pad).note("pads, value and axes known when compiled"),
    row("Pow", (2, 2), &[], elementwise::pow),
    row("RMSNormalization", (2, 2), &["axis", "epsilon", "stash_type"], normal::rms_norm).since(23),
    row("RNN", (3, 6), RNN, recurrent::rnn)
        .since(7)
        .note("whole sequences, without clip; tanh or relu"),
    row("RandomNormal", (0, 0), &["dtype", "mean", "scale", "seed", "shape"], random::normal),
    row("RandomNormalLike", (1, 1), &["dtype", "mean", "scale", "seed"], random::normal_like),
    row("RandomUniform", (0, 0), &["dtype", "high", "low", "seed", "shape"], random::uniform),
    row("RandomUniformLike", (1, 1), &["dtype", "high", "low", "seed"], random::uniform_like),
    row("Range", (3, 3), &["stash_type"], source::range).note("operands known when compiled"),
    row("Reciprocal", (1, 1), &[], elementwise::unary),
    row("ReduceL1", (1, 2), REDUCE, reduce::reduce),
    row("ReduceL2", (1, 2), REDUCE, reduce::reduce),
    row("ReduceLogSum", (1, 2), REDUCE, reduce::reduce),
    row("ReduceLogSumExp", (1, 2), REDUCE, reduce::reduce),
    row("ReduceMax", (1, 2), REDUCE, reduce::reduce),
    row("ReduceMean", (1, 2), REDUCE, reduce::reduce),
    row("ReduceMin", (1, 2), REDUCE, reduce::reduce),
    row("ReduceProd", (1, 2), REDUCE, reduce::reduce),
    row("ReduceSum", (1, 2), REDUCE, reduce::reduce),
    row("ReduceSumSquare", (1, 2), REDUCE, reduce::reduce),
    row("Relu", (1, 1), &[], elementwise::unary),
    row("Reshape", (2, 2), &["allowzero"], shape::reshape).note("shape known when compiled"),
    row("Resize", (1, 4), RESIZE, resize::resize).note("scales, sizes, roi known when compiled"),
    row("ReverseSequence", (2, 2), &["batch_axis", "time_axis"], position::reverse_sequence),
    row("RotaryEmbedding", (3, 4), ROTARY, position::rotary_embedding).since(23),
    row("Round", (1, 1), &[], position::round),
    row("STFT", (2, 4), &["onesided"], signal::stft).since(17).note("lengths known when compiled"),
    row("Scan", (1, ANY), SCAN, unplaced).since(9),
    row("ScatterElements", (3, 3), &["axis", "reduction"], index::scatter_elements),
    row("ScatterND", (3, 3), &["reduction"], index::scatter_nd),
    row("Selu", (1, 1), &["alpha", "gamma"], rectifier::selu),
    row("SequenceAt", (2, 2), &[], sequence::at).since(11).note(PLACE),
    row("SequenceConstruct", (1, ANY), &[], sequence::construct).since(11),
    row("SequenceEmpty", (0, 0), &["dtype"], sequence::empty).since(11),
    row("SequenceErase", (1, 2), &[], sequence::erase).since(11).note(PLACE),
    row("SequenceInsert", (2, 3), &[], sequence::insert).since(11).note(PLACE),
    row("SequenceLength", (1, 1), &[], sequence::length).since(11),
    row("Shape", (1, 1), &["end", "start"], source::shape),
    row("Shrink", (1, 1), &["bias", "lambd"], rectifier::shrink),
    row("Sigmoid", (1, 1), &[], elementwise::unary),
    row("Sign", (1, 1), &[], elementwise::unary),
    row("Sin", (1, 1), &[], elementwise::unary),
    row("Sinh", (1, 1), &[], rectifier::sinh),
    row("Size", (1, 1), &[], source::size),
    row("Slice", (3, 5), &[], shape::slice).note("bounds known when compiled"),
    row("Softmax", (1, 1), &["axis"], norm::softmax),
    row(
        "SoftmaxCrossEntropyLoss",
        (2, 3),
        &["ignore_index", "reduction"],
        loss::softmax_cross_entropy,
    ),
    row("Softplus", (1, 1), &[], rectifier::softplus),
    row("Softsign", (1, 1), &[], rectifier::softsign),
    row("SpaceToDepth", (1, 1), &["blocksize", "mode"], arrange::space_to_depth),
    row("Split", (1, 2), &["axis", "num_outputs"], shape::split).note("sizes known when compiled"),
    row("SplitToSequence", (1, 2), &["axis", "keepdims"], sequence::split)
        .since(11)
        .note("sizes known when compiled"),
    row("Sqrt", (1, 1), &[], elementwise::unary),
    row("Squeeze", (1, 2), &[], shape::squeeze).note("axes known when compiled"),
    row("Sub", (2, 2), &[], elementwise::binary),
    row("Sum", (1, ANY), &[], elementwise::variadic),
    row("SwiGLU", (2, 2), &["alpha"], rectifier::swi_glu).since(28),
    row("Swish", (1, 1), &["alpha"], rectifier::swish).since(24),
    row("Tan", (1, 1), &[], rectifier::tan),
    row("Tanh", (1, 1), &[], elementwise::unary),
    row("ThresholdedRelu", (1, 1), &["alpha"], rectifier::thresholded_relu),
    row("Tile", (2, 2), &[], shape::tile).note("repeats known when compiled"),
    row("TopK", (2, 2), &["axis", "largest", "sorted"], index::top_k).note("k known when compiled"),
    row("Transpose", (1, 1), &["perm"], shape::transpose),
    row("Trilu", (1, 2), &["upper"], arrange::trilu).since(14).note("k known when compiled"),
    row("Unsqueeze", (2, 2), &[], shape::unsqueeze).note("axes known when compiled"),
    row("Where", (3, 3), &[], elementwise::select),
    row("Xor", (2, 2), &[], elementwise::binary).since(7),
    row("Adagrad", (2, ANY), &["decay_factor", "epsilon", "norm_coefficient"], training::adagrad)
        .training(),
    row(
        "Adam",
        (2, ANY),
        &["alpha", "beta", "epsilon", "norm_coefficient", "norm_coefficient_post"],
        training::adam,
    )
    .training(),
    row("Gradient", (1, ANY), &["xs", "y", "zs"], training::gradient).training(),
    row("Momentum", (2, ANY), &["alpha", "beta", "mode", "norm_coefficient"], training::momentum)
        .training(),
];

/// Operators of ONNX that have no row, and names that older versions had.
const OTHERS: &[&str] = &[
    "Bernoulli",
    "BitCast",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "ConvInteger",
    "DequantizeLinear",
    "Det",
    "DynamicQuantizeLinear",
    "ImageDecoder",
    "MatMulInteger",
    "MaxRoiPool",
    "MaxUnpool",
    "MelWeightMatrix",
    "Multinomial",
    "NonMaxSuppression",
    "NonZero",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "RegexFullMatch",
    "RoiAlign",
    "Scatter",
    "SequenceMap",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    "TensorScatter",
    "TfIdfVectorizer",
    "Unique",
    "Upsample",
];

/// True for operators of ONNX's own domain, supported or not.
pub(super) fn is_of_onnx(name: &str) -> bool {
    find("", name).is_some() || OTHERS.contains(&name)
}

fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().chain(microsoft::TABLE)
}

/// The row of an operator.
pub(super) fn find(domain: &str, name: &str) -> Option<&'static Row> {
    static INDEX: LazyLock<HashMap<(&str, &str), &Row>> =
        LazyLock::new(|| rows().map(|row| ((row.domain, row.name), row)).collect());
    INDEX.get(&(domain, name)).copied()
}

/// An operator that the importer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupportedOp {
    /// Its domain, `ai.onnx` for the default one.
    pub domain: &'static str,
    /// Its type.
    pub name: &'static str,
    /// The first supported version of its domain.
    pub since: i64,
    /// What is asked of a model that uses it; may be empty.
    pub note: &'static str,
}

/// Every operator that the importer knows, by domain and name.
pub fn supported_ops() -> impl Iterator<Item = SupportedOp> {
    rows().map(|row| SupportedOp {
        domain: if row.domain.is_empty() { "ai.onnx" } else { row.domain },
        name: row.name,
        since: row.since,
        note: row.note,
    })
}
