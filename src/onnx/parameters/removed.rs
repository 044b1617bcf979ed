//! What exporters are known to leave out of files that say nothing of parameters.

use super::{Said, floats, label, name, property};
use crate::onnx::parameters::lost::RULE;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use std::collections::{HashMap, HashSet};

/// Sentences about what seems to be left out of a model that is to be trained.
pub(in crate::onnx) fn notes(model: &ModelProto, said: &Said) -> Vec<String> {
    let Some(graph) = model.graph.as_ref().filter(|_| said.standing.is_empty()) else {
        return Vec::new();
    };
    let by_rule = graph
        .node
        .iter()
        .filter(|n| property(n, RULE).is_some_and(|rule| rule.contains("BatchNorm")));
    let named = graph.node.iter().filter(|n| {
        let weight = n.input.get(1).is_some_and(|w| w.starts_with("onnx::Conv_"));
        is(n, &["Conv"]) && n.input.len() == 3 && weight
    });
    let mut notes = Vec::new();
    let again = "the model was exported for inference. Export it again with";
    if let Some(note) = folded(by_rule) {
        notes.push(format!("{note}: {again} optimize=False to train with batch statistics"));
    }
    if let Some(note) = folded(named) {
        notes.push(format!(
            "{note}: {again} training=TrainingMode.TRAINING and do_constant_folding=False, or with \
             dynamo=True and optimize=False, to train with batch statistics"
        ));
    }
    if model.producer_name.as_deref().is_some_and(|p| p.starts_with("tf2onnx")) {
        notes.extend(tf2onnx(graph));
    }
    notes.extend(half_biases(graph));
    notes
}

/// Biases of recurrences of which one half, that of the state's product, is zeros: a framework with
/// one bias, such as Keras, is exported so, and both halves learn.
fn half_biases(graph: &GraphProto) -> Option<String> {
    let stored: HashMap<&str, &TensorProto> = floats(graph).map(|t| (name(t), t)).collect();
    let recurrences = graph.node.iter().filter(|n| is(n, &["LSTM", "GRU", "RNN"]));
    let biases = recurrences.filter_map(|n| stored.get(n.input.get(3)?.as_str()));
    let half = |t: &&&TensorProto| {
        let rows = t.dims.first().and_then(|&d| usize::try_from(d).ok()).filter(|&d| d > 0);
        let Some((rows, bytes)) = rows.zip(t.raw_data.as_ref()) else { return false };
        let row = bytes.len() / rows;
        let zero = |part: &[u8]| part.iter().all(|&b| b == 0);
        row > 0
            && bytes.chunks_exact(row).all(|r| zero(&r[row / 2..]))
            && !bytes.chunks_exact(row).all(zero)
    };
    let found: Vec<&str> = biases.filter(half).map(|t| name(t)).collect();
    let first = found.first()?;
    let more = match found.len() - 1 {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    Some(format!(
        "the bias `{first}` of a recurrence{more} has zeros for the product with the state, as \
         exporters write it of a framework with one bias (Keras): both halves are trained, so that their sum \
         learns twice as fast"
    ))
}

fn is(node: &NodeProto, kinds: &[&str]) -> bool {
    node.op_type.as_deref().is_some_and(|op| kinds.contains(&op))
}

fn folded<'m>(mut nodes: impl Iterator<Item = &'m NodeProto>) -> Option<String> {
    let first = nodes.next()?;
    let weight = first.input.get(1).map_or(label(first), String::as_str);
    let more = match nodes.count() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    Some(format!("a batch normalisation seems to be folded into `{weight}`{more}"))
}

/// tf2onnx leaves out biases that are zero, and dropout, and folds batch normalisation into weights.
fn tf2onnx(graph: &GraphProto) -> Option<String> {
    let merged = floats(graph).map(name).filter(|n| {
        ["merged_input", "batchnorm/mul", "batchnorm/sub", "batchnorm/Rsqrt"]
            .iter()
            .any(|mark| n.contains(mark))
    });
    let merged: Vec<&str> = merged.collect();
    let stored: HashSet<&str> = floats(graph).map(name).collect();
    let lacks_bias = |n: &&NodeProto| {
        let weight = n.input.get(1).is_some_and(|w| stored.contains(w.as_str()));
        let Some(output) = n.output.first() else { return false };
        let reads = |r: &&NodeProto| r.input.iter().any(|i| i == output);
        let adds = |r: &NodeProto| {
            is(r, &["Add", "Sub"]) && r.input.iter().any(|i| stored.contains(i.as_str()))
        };
        let added = graph.node.iter().filter(reads).any(adds);
        weight && n.input.len() < 3 && is(n, &["Conv", "ConvTranspose", "MatMul", "Gemm"]) && !added
    };
    let bare = graph.node.iter().filter(lacks_bias).count();
    if merged.is_empty() && bare == 0 {
        return None;
    }
    let normalised = merged.first().map(|first| match merged.len() {
        1 => format!("`{first}` has a batch normalisation in it"),
        n => format!("{n} weights have a batch normalisation in them, such as `{first}`"),
    });
    let bare = (bare > 0).then(|| match bare {
        1 => "1 product or convolution has no bias".to_owned(),
        n => format!("{n} products and convolutions have no bias"),
    });
    let found: Vec<String> = normalised.into_iter().chain(bare).collect();
    Some(format!(
        "tf2onnx folds batch normalisation and leaves out dropout and biases that are zero: {}. What was left \
         out is not trained. A Keras model with the backend torch that `arenic.torch` exports is trained whole",
        found.join("; ")
    ))
}
