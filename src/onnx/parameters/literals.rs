//! Weights that a file holds in `Constant` nodes.
//!
//! Writers of ONNX that have no initializers put weights there, beside literals. What a node
//! does with a tensor tells them apart: a filter, a factor of a product, a table of rows, a scale or a
//! bias is a weight.

use crate::onnx::flatten::{FlatNode, Tensor};
use crate::onnx::proto::AttributeProto;
use std::collections::{HashMap, HashSet};

/// Results of `Constant` nodes that are weights.
pub(in crate::onnx) fn weights(nodes: &[FlatNode]) -> HashSet<Tensor> {
    let maker: HashMap<Tensor, &FlatNode> =
        nodes.iter().flat_map(|n| n.outputs.iter().flatten().map(move |&t| (t, n))).collect();
    let operator = |n: &FlatNode| if n.domain.is_empty() { n.op.to_owned() } else { String::new() };
    // What leads elements on without computing.
    let origin = |mut t: Tensor| {
        for _ in 0..nodes.len() {
            match maker.get(&t) {
                Some(n)
                    if ["Identity", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Cast"]
                        .contains(&n.op) =>
                {
                    let Some(Some(first)) = n.inputs.first() else { break };
                    t = *first;
                }
                _ => break,
            }
        }
        t
    };
    let is_product = |t: Tensor| {
        maker.get(&origin(t)).is_some_and(|n| ["MatMul", "Conv", "ConvTranspose"].contains(&n.op))
    };
    let mut found = HashSet::new();
    for node in nodes {
        let at: &[usize] = match &operator(node)[..] {
            "MatMul" => &[0, 1],
            "Gemm" => &[0, 1, 2],
            "Conv" | "ConvTranspose" => &[1, 2],
            "LSTM" | "GRU" | "RNN" => &[1, 2, 3],
            "Gather" => &[0],
            "LayerNormalization" | "BatchNormalization" | "GroupNormalization" => &[1, 2],
            "Add" => match node.inputs[..] {
                [Some(a), Some(_)] if is_product(a) => &[1],
                [Some(_), Some(b)] if is_product(b) => &[0],
                _ => &[],
            },
            _ => &[],
        };
        for t in at.iter().filter_map(|&i| node.inputs.get(i).copied().flatten()) {
            let t = origin(t);
            if maker.get(&t).is_some_and(|n| n.op == "Constant" && holds_floats(n)) {
                found.insert(t);
            }
        }
    }
    found
}

/// True for a constant that is a tensor of floats.
fn holds_floats(node: &FlatNode) -> bool {
    let value = |a: &AttributeProto| match &a.t {
        Some(t) => !t.dims.is_empty() && [1, 11, 16].contains(&t.data_type.unwrap_or_default()),
        None => !a.floats.is_empty(),
    };
    node.domain.is_empty() && node.attributes.iter().any(|(_, a)| value(a))
}
