//! Which inputs of a test arenic must know when it compiles.

use arenic::onnx::proto::{GraphProto, NodeProto};
use std::collections::{BTreeSet, HashMap};

/// The operands of an operator that fix a shape, or choose what it does.
fn fixed_operands(op: &str) -> &'static [usize] {
    match op {
        "ConstantOfShape" | "If" | "BlackmanWindow" | "HammingWindow" | "HannWindow" => &[0],
        "AffineGrid" | "SequenceAt" | "SequenceErase" | "SplitToSequence" => &[1],
        "Col2Im" | "DFT" => &[1, 2],
        "STFT" => &[1, 3],
        "MelWeightMatrix" => &[0, 1, 2, 3, 4],
        "MaxUnpool" | "SequenceInsert" => &[2],
        "Loop" => &[0, 1],
        "Expand" | "Reshape" | "Split" | "Squeeze" | "Tile" | "Unsqueeze" | "Trilu" | "OneHot"
        | "CumSum" | "CumProd" | "TopK" | "CenterCropPad" | "Compress" => &[1],
        "Dropout" => &[2],
        "Range" => &[0, 1, 2],
        "Pad" | "Resize" => &[1, 2, 3],
        "Slice" => &[1, 2, 3, 4],
        "GRU" | "LSTM" | "RNN" => &[4],
        _ if op.starts_with("Reduce") => &[1],
        _ => &[],
    }
}

/// All nodes of a graph, and of those inside of its nodes.
fn all<'g>(graph: &'g GraphProto, nodes: &mut Vec<&'g NodeProto>) {
    for node in &graph.node {
        nodes.push(node);
        node.attribute.iter().filter_map(|a| a.g.as_ref()).for_each(|inner| all(inner, nodes));
    }
}

/// The graph inputs that such operands are, or are computed from.
pub(crate) fn inputs(graph: &GraphProto) -> BTreeSet<&str> {
    let mut nodes = Vec::new();
    all(graph, &mut nodes);
    let mut makers: HashMap<&str, &NodeProto> = HashMap::new();
    for &node in &nodes {
        makers.extend(node.output.iter().map(|name| (name.as_str(), node)));
    }
    let mut open: Vec<&str> = nodes
        .iter()
        .flat_map(|node| {
            let operands = fixed_operands(node.op_type.as_deref().unwrap_or(""));
            operands.iter().filter_map(|&i| node.input.get(i))
        })
        .map(String::as_str)
        .collect();
    let mut met: BTreeSet<&str> = BTreeSet::new();
    while let Some(name) = open.pop() {
        if met.insert(name)
            && let Some(node) = makers.get(name)
            // These look at shapes, not at contents.
            && !matches!(node.op_type.as_deref(), Some("Shape" | "Size"))
        {
            open.extend(node.input.iter().map(String::as_str));
            let inner = node.attribute.iter().filter_map(|a| a.g.as_ref());
            open.extend(inner.flat_map(|g| &g.output).filter_map(|o| o.name.as_deref()));
        }
    }
    let names = graph.input.iter().filter_map(|info| info.name.as_deref());
    names.filter(|name| met.contains(name)).collect()
}
