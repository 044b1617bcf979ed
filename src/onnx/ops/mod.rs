//! The table of ONNX operators: one row each, which dispatches and documents. A row stands in the
//! file of its builder.

mod activation;
mod arrange;
pub(super) mod attention;
mod compose;
mod conv;
mod deform;
mod determinant;
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
mod region;
mod resize;
mod sequence;
mod shape;
mod signal;
mod source;
mod spatial;
mod stateful;
mod training;

use super::attributes;
use super::context::{Built, Cx};
use super::domains::{PREVIEW, TRAINING};
use super::flatten::{FlatNode, holds_graphs};
use super::proto::attribute_proto::AttributeType;
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

const SCAN: &[&str] = &[
    "body",
    "num_scan_inputs",
    "scan_input_axes",
    "scan_input_directions",
    "scan_output_axes",
    "scan_output_directions",
];

const FLEXIBLE: &[&str] = &["prob_mod", "scale", "score_mod", "softmax_precision"];

/// Of operators with graphs inside, which are built where their names are known.
fn unplaced(_: &mut Cx) -> Built {
    Err("its graphs are not at hand".into())
}

/// Rows of operators with graphs inside.
const ROWS: &[Row] = &[
    row("If", (1, 1), &["else_branch", "then_branch"], unplaced)
        .since(1)
        .note("condition known when compiled"),
    row("Loop", (2, ANY), &["body"], unplaced)
        .since(1)
        .note("count and conditions known when compiled"),
    row("Scan", (1, ANY), SCAN, unplaced).since(9),
    row("SequenceMap", (1, ANY), &["body"], unplaced).since(17),
    Row { domain: PREVIEW, ..row("FlexAttention", (3, 3), FLEXIBLE, unplaced).since(1) },
];

/// The rows of each file.
const TABLES: &[&[Row]] = &[
    ROWS,
    arrange::ROWS,
    attention::ROWS,
    conv::ROWS,
    deform::ROWS,
    determinant::ROWS,
    einsum::ROWS,
    elementwise::ROWS,
    fourier::ROWS,
    index::ROWS,
    inverse::ROWS,
    loss::ROWS,
    norm::ROWS,
    normal::ROWS,
    pad::ROWS,
    pool::ROWS,
    position::ROWS,
    random::ROWS,
    rectifier::ROWS,
    recurrent::ROWS,
    reduce::ROWS,
    region::ROWS,
    resize::ROWS,
    sequence::ROWS,
    shape::ROWS,
    signal::ROWS,
    source::ROWS,
    spatial::ROWS,
    stateful::ROWS,
    training::ROWS,
    window::ROWS,
    microsoft::TABLE,
];

/// Operators of ONNX that have no row, and names that older versions had.
const OTHERS: &[&str] = &[
    "BitCast",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "ImageDecoder",
    "MatMulInteger",
    "MaxRoiPool",
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
    "Scatter",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    "TfIdfVectorizer",
    "Unique",
    "Upsample",
];

/// True for operators of ONNX's own domain, supported or not.
pub(super) fn is_of_onnx(name: &str) -> bool {
    find("", name).is_some() || OTHERS.contains(&name)
}

/// By domain and name.
static TABLE: LazyLock<Vec<&Row>> = LazyLock::new(|| {
    let mut rows: Vec<&Row> = TABLES.iter().copied().flatten().collect();
    rows.sort_unstable_by_key(|row| (row.domain, row.name));
    rows
});

/// The row of an operator.
pub(super) fn find(domain: &str, name: &str) -> Option<&'static Row> {
    static INDEX: LazyLock<HashMap<(&str, &str), &Row>> =
        LazyLock::new(|| TABLE.iter().map(|&row| ((row.domain, row.name), row)).collect());
    INDEX.get(&(domain, name)).copied()
}

/// True if the importer has a row for the node's operator.
pub(super) fn is_supported(node: &FlatNode) -> bool {
    let subgraph = node.attributes.iter().any(|(_, a)| {
        matches!(attributes::kind(a), Some(AttributeType::Graph | AttributeType::Graphs))
    });
    let control = holds_graphs(node.domain, node.op);
    find(node.domain, node.op).is_some() && (control || !subgraph)
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
    TABLE.iter().map(|row| SupportedOp {
        domain: if row.domain.is_empty() { "ai.onnx" } else { row.domain },
        name: row.name,
        since: row.since,
        note: row.note,
    })
}
