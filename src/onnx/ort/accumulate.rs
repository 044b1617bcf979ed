//! Several micro-batches in one step, as `differentiate` has them: the training model's nodes once
//! for each, over its part of what is fed, and the mean of losses and of gradients.

use super::graph::constant;
use crate::onnx::proto::{
    AttributeProto, GraphProto, NodeProto, attribute_proto::AttributeType,
    tensor_shape_proto::dimension::Value as Extent, type_proto::Value as TypeValue,
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Micro-batches, and what they need to know of the model.
pub(super) struct MicroBatches {
    /// How many.
    pub(super) count: usize,
    /// The version of ONNX's operators.
    pub(super) opset: i64,
}

impl MicroBatches {
    /// Copies the nodes of a training model. `kept` are inputs that are not fed, `means` tensors
    /// whose mean takes their name, `carried` pairs of a state and its next value, which pass from
    /// copy to copy as from step to step. `dims` are the sizes of symbolic dimensions, of one
    /// micro-batch; those that the inputs do not have any more are taken from them.
    pub(super) fn apply(
        &self,
        graph: &mut GraphProto,
        kept: &HashSet<&str>,
        means: &[String],
        carried: &[(String, String)],
        dims: &mut BTreeMap<String, u64>,
    ) {
        let parts = self.parts(graph, kept, dims);
        // What has no name was left out.
        let results = graph.node.iter().flat_map(|n| n.output.iter());
        let produced: HashSet<String> = results.filter(|y| !y.is_empty()).cloned().collect();
        let exits: HashSet<&str> = carried.iter().map(|(_, exit)| exit.as_str()).collect();
        let last = self.count - 1;
        // The last copy's states are the step's.
        let renamed = |name: &str, k: usize| match exits.contains(name) && k == last {
            true => name.to_owned(),
            false => of_copy(name, k),
        };
        let originals = std::mem::take(&mut graph.node);
        graph.node = parts;
        let fed: HashSet<String> =
            graph.node.iter().filter_map(|n| n.input.first().cloned()).collect();
        for k in 0..self.count {
            let running: HashMap<&str, &str> = match k {
                0 => HashMap::new(),
                _ => carried.iter().map(|(x, y)| (x.as_str(), y.as_str())).collect(),
            };
            let operand = |name: &String| match running.get(name.as_str()) {
                Some(exit) => renamed(exit, k - 1),
                None if produced.contains(name) => renamed(name, k),
                None if fed.contains(name) => of_copy(name, k),
                None => name.clone(),
            };
            for node in &originals {
                graph.node.push(NodeProto {
                    name: node.name.as_deref().map(|name| of_copy(name, k)),
                    input: node.input.iter().map(operand).collect(),
                    output: node.output.iter().map(|y| result(y, |y| renamed(y, k))).collect(),
                    ..node.clone()
                });
            }
        }
        self.mean(graph, means);
    }

    /// Splits what is fed, which has as many times the rows.
    fn parts(
        &self,
        graph: &mut GraphProto,
        kept: &HashSet<&str>,
        dims: &mut BTreeMap<String, u64>,
    ) -> Vec<NodeProto> {
        let (mut parts, mut used) = (Vec::new(), HashSet::new());
        for input in &mut graph.input {
            let name = input.name.clone().unwrap_or_default();
            let Some(TypeValue::TensorType(tensor)) =
                input.r#type.as_mut().and_then(|t| t.value.as_mut())
            else {
                continue;
            };
            let rows = tensor.shape.as_mut().and_then(|shape| shape.dim.first_mut());
            let Some(rows) = rows.filter(|_| !kept.contains(name.as_str())) else { continue };
            let symbol = match &rows.value {
                Some(Extent::DimValue(_)) => None,
                Some(Extent::DimParam(symbol)) => Some(symbol.clone()),
                None => Some(format!("{name}.0")),
            };
            let size = match (&rows.value, &symbol) {
                (Some(Extent::DimValue(n)), _) => Some(*n),
                (_, symbol) => symbol.as_ref().and_then(|s| dims.get(s)).map(|&n| n as i64),
            };
            // A size that nobody gave is asked for when the model is imported.
            let Some(size) = size else { continue };
            used.extend(symbol);
            rows.value = Some(Extent::DimValue(size.saturating_mul(self.count as i64)));
            let attribute = match self.opset {
                18.. => vec![AttributeProto {
                    name: Some("num_outputs".to_owned()),
                    r#type: Some(AttributeType::Int as i32),
                    i: Some(self.count as i64),
                    ..AttributeProto::default()
                }],
                _ => Vec::new(),
            };
            let output = (0..self.count).map(|k| of_copy(&name, k)).collect();
            parts.push(NodeProto { attribute, ..node("Split", vec![name], output) });
        }
        dims.retain(|symbol, _| !used.contains(symbol) || has(graph, symbol));
        parts
    }

    fn mean(&self, graph: &mut GraphProto, of: &[String]) {
        let share = "micro_batches/share".to_owned();
        let value = AttributeProto {
            name: Some("value_float".to_owned()),
            r#type: Some(AttributeType::Float as i32),
            f: Some(1.0 / self.count as f32),
            ..AttributeProto::default()
        };
        graph.node.push(constant(value, &share));
        for name in of {
            let each = (0..self.count).map(|k| of_copy(name, k)).collect();
            let sum = format!("{name}/sum");
            graph.node.push(node("Sum", each, vec![sum.clone()]));
            graph.node.push(node("Mul", vec![sum, share.clone()], vec![name.clone()]));
        }
    }
}

/// True where an input has a dimension of this name.
fn has(graph: &GraphProto, symbol: &str) -> bool {
    let types = graph.input.iter().filter_map(|i| i.r#type.as_ref()?.value.as_ref());
    let dims = types.filter_map(|t| match t {
        TypeValue::TensorType(tensor) => tensor.shape.as_ref(),
        _ => None,
    });
    let mut dims = dims.flat_map(|shape| &shape.dim);
    dims.any(|d| matches!(&d.value, Some(Extent::DimParam(name)) if name == symbol))
}

/// A tensor of one copy.
fn of_copy(name: &str, k: usize) -> String {
    format!("{name}/{k}")
}

/// Results that nobody asks for have no name.
fn result(name: &str, renamed: impl Fn(&str) -> String) -> String {
    if name.is_empty() { String::new() } else { renamed(name) }
}

fn node(op: &str, input: Vec<String>, output: Vec<String>) -> NodeProto {
    NodeProto {
        name: output.first().cloned(),
        op_type: Some(op.to_owned()),
        input,
        output,
        ..NodeProto::default()
    }
}
