//! Where a module's `detach` stops gradients.
//!
//! Without its optimizer PyTorch's exporter writes an `Identity` for it. The optimizer takes that away,
//! but the text of the operator that reads the result still names it.

use super::label;
use super::signature::Signature;
use crate::onnx::proto::{GraphProto, NodeProto};
use std::collections::HashSet;

/// Puts back each `Identity` of which the operand is certain, as a node that gives the name that the program has
/// for it; says which could not be.
pub(super) fn restore(graph: &mut GraphProto) -> Vec<String> {
    let results = graph.node.iter().flat_map(|n| &n.output).map(String::as_str);
    let known: HashSet<String> = results.map(str::to_owned).collect();
    let mut notes = Vec::new();
    let mut made: Vec<NodeProto> = Vec::new();
    for node in &mut graph.node {
        let Some(text) = Signature::text(node) else { continue };
        let words = operands(text);
        let lost: Vec<String> = words
            .iter()
            .filter(|w| is_detach(w) && !known.contains(**w))
            .map(|w| (*w).to_owned())
            .collect();
        if lost.is_empty() {
            continue;
        }
        // What is read in place of them is no operand that the program names.
        let reads = node.input.iter().enumerate();
        let others: Vec<usize> = reads
            .filter(|(_, i)| known.contains(*i) && !words.contains(&i.as_str()))
            .map(|(at, _)| at)
            .collect();
        if others.len() != lost.len() {
            notes.push(format!(
                "the module's detach() before node `{}` is not in the file, and gradients pass; export it \
                 with optimize=False, or say where they stop with --stop-gradient",
                label(node)
            ));
            continue;
        }
        for (at, name) in others.into_iter().zip(lost) {
            let result = format!("{name}.before.{}", label(node));
            made.push(NodeProto {
                op_type: Some("Identity".to_owned()),
                name: Some(format!("node_{name}")),
                input: vec![node.input[at].clone()],
                output: vec![result.clone()],
                ..NodeProto::default()
            });
            node.input[at] = result;
        }
    }
    graph.node.extend(made);
    notes
}

/// Results of each `detach` of a module.
pub(in crate::onnx) fn results(graph: &GraphProto) -> Vec<String> {
    let detaches = |node: &&NodeProto| {
        let said = Signature::text(node).map(|text| text.contains("=torch.ops.aten.detach"));
        let named = || {
            let result = node.output.first().map_or("", String::as_str);
            is_detach(result.split_once(".before.").map_or(result, |(name, _)| name))
        };
        node.op_type.as_deref() == Some("Identity") && said.unwrap_or_else(named)
    };
    let results = graph.node.iter().filter(detaches).filter_map(|node| node.output.first());
    results.cloned().collect()
}

/// Names that the operands of an operator have in the program.
fn operands(text: &str) -> Vec<&str> {
    let arguments = text.split_once("](").map_or("", |(_, rest)| rest);
    let word = |w: &'_ str| w.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(w.len());
    arguments.split('%').skip(1).map(|w| &w[..word(w)]).collect()
}

/// True for `detach`, `detach_1` and so on.
fn is_detach(name: &str) -> bool {
    name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_') == "detach"
}
