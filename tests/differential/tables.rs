//! What is not tried, and why: each entry has to be needed.

use crate::case::Suite;
use std::collections::BTreeSet;

/// Rows without a generator.
const EXCUSED: &[(&str, &str)] = &[
    ("Bernoulli", "draws; ONNX's node tests count its results over many steps"),
    ("RandomNormal", "draws; tests of distributions hold it"),
    ("RandomNormalLike", "draws; tests of distributions hold it"),
    ("RandomUniform", "draws; tests of distributions hold it"),
    ("RandomUniformLike", "draws; tests of distributions hold it"),
    ("com.microsoft.AdamWOptimizer", "takes sequences; tests/ort_training.rs holds whole updates"),
    ("com.microsoft.SGDOptimizerV2", "takes sequences; tests/ort_training.rs holds whole updates"),
];

/// A refusal that is expected.
pub(crate) struct Refusal {
    /// The row, or `*` for any.
    pub(crate) row: &'static str,
    /// A part of the message.
    pub(crate) says: &'static str,
}

const fn refusal(row: &'static str, says: &'static str) -> Refusal {
    Refusal { row, says }
}

/// Cases that are no models for arenic.
pub(crate) const REFUSED: &[Refusal] = &[];

/// Rows, or cases of them, that have no gradient.
pub(crate) const WITHOUT_GRADIENT: &[Refusal] = &[
    refusal("Ceil", "the loss depends on no parameter"),
    refusal("Floor", "the loss depends on no parameter"),
    refusal("Hardmax", "the loss depends on no parameter"),
    refusal("Round", "the loss depends on no parameter"),
    refusal("Sign", "the loss depends on no parameter"),
    refusal("BatchNormalization", "only the first result of batch_norm has a gradient"),
    refusal(
        "com.microsoft.BatchNormInternal",
        "only the first result of batch_norm has a gradient",
    ),
    // Gradients and updates have none themselves.
    refusal("AveragePoolGrad", "no gradient passes average_pool_grad"),
    refusal("MaxPoolGrad", "no gradient passes max_pool_grad"),
    refusal("com.microsoft.BatchNormalizationGrad", "no gradient passes batch_norm_param_grad"),
    refusal("com.microsoft.ConvGrad", "no gradient passes conv_weight_grad"),
    refusal("com.microsoft.ConvTransposeGrad", "no gradient passes conv_weight_grad"),
    refusal("com.microsoft.LSTMGrad", "no gradient passes lstm_grad"),
    refusal("com.microsoft.LayerNormalizationGrad", "no gradient passes layer_norm_param_grad"),
    refusal("com.microsoft.LogSoftmaxGrad_13", "no gradient passes log_softmax_grad"),
    refusal("com.microsoft.SoftmaxGrad_13", "no gradient passes softmax_grad"),
    refusal("ai.onnx.preview.training.Adagrad", "no gradient passes adagrad"),
    refusal("ai.onnx.preview.training.Adam", "no gradient passes adam"),
    refusal("ai.onnx.preview.training.Momentum", "no gradient passes momentum"),
];

/// Rows of which no case has both an operand and a result of floats that is a function of it.
const NOT_OF_FLOATS: &[&str] = &[
    "And",
    "ArgMax",
    "ArgMin",
    "BlackmanWindow",
    "Constant",
    "ConstantOfShape",
    "Equal",
    "EyeLike",
    "Greater",
    "GreaterOrEqual",
    "HammingWindow",
    "HannWindow",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "MelWeightMatrix",
    "Not",
    "Or",
    "Range",
    "Shape",
    "Size",
    "Xor",
];

fn find(list: &[Refusal], row: &str, message: &str) -> Option<usize> {
    list.iter().position(|r| (r.row == row || r.row == "*") && message.contains(r.says))
}

/// Which listed refusal a message is.
pub(crate) fn refused(row: &str, message: &str) -> Option<usize> {
    find(REFUSED, row, message)
}

/// Which listed lack of a gradient a message is.
pub(crate) fn without_gradient(row: &str, message: &str) -> Option<usize> {
    find(WITHOUT_GRADIENT, row, message)
}

/// Every row of the importer has cases, or is listed; and is not both.
pub(crate) fn listed(known: &BTreeSet<String>, suite: &Suite) -> Result<(), String> {
    let mut wrong = Vec::new();
    let has = |row: &str, gradient: bool| {
        suite.cases.iter().any(|c| c.row == row && (!gradient || c.gradient))
    };
    for row in known {
        let is_excused = EXCUSED.iter().any(|(name, _)| name == row);
        if has(row, false) == is_excused {
            wrong.push(match is_excused {
                true => format!("{row} has cases now: take it off EXCUSED in tables.rs"),
                false => format!(
                    "{row} has no cases: add a generator to tests/differential/*.py, as a function \
                     with @row(\"{row}\") or one more name of one that is there, and run `make \
                     differential-cases`; or say in EXCUSED of tests/differential/tables.rs why \
                     there is none"
                ),
            });
        }
        let is_listed = NOT_OF_FLOATS.contains(&row.as_str());
        if !is_excused && has(row, true) == is_listed {
            wrong.push(match is_listed {
                true => format!("{row} has gradients to try: take it off NOT_OF_FLOATS"),
                false => format!("no gradient of {row} is tried: list it in NOT_OF_FLOATS"),
            });
        }
    }
    let listed = EXCUSED.iter().map(|(row, _)| row).chain(NOT_OF_FLOATS);
    for row in listed.filter(|row| !known.contains(**row)) {
        wrong.push(format!("tables.rs lists {row}, which the importer has no row for"));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}
