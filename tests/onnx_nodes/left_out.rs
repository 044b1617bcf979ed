//! Which tests do not count, judged from what arenic says it supports and not from what
//! its importer does with them.

use super::case::{Case, dtype};
use arenic::onnx::proto::{
    AttributeProto, GraphProto, NodeProto, ValueInfoProto, tensor_proto::DataType,
    type_proto::Value as TypeValue,
};
use arenic::onnx::supported_ops;
use std::collections::BTreeSet;

/// Why a test is left out; `None` where it must pass.
pub(crate) fn reason(case: &Case) -> Option<String> {
    let graph = case.graph();
    let mut ops = BTreeSet::new();
    let imports = &case.model.opset_import;
    let versions: Vec<(&str, i64)> = imports
        .iter()
        .map(|o| (spelled_out(o.domain.as_deref()), o.version.unwrap_or(0)))
        .collect();
    unsupported_ops(graph, &versions, &mut ops);
    if !ops.is_empty() {
        let list: Vec<String> = ops.into_iter().collect();
        return Some(format!("operator {}", list.join(", ")));
    }
    if !case.other_values.is_empty() {
        return Some(format!("values of kind {}", case.other_values.join(", ")));
    }
    let mut types = BTreeSet::new();
    unsupported_types(graph, &mut types);
    if !types.is_empty() {
        let list: Vec<String> = types.into_iter().collect();
        return Some(format!("element type {}", list.join(", ")));
    }
    None
}

/// Operators that arenic does not list, or not in this version, those of subgraphs included.
fn unsupported_ops(graph: &GraphProto, versions: &[(&str, i64)], found: &mut BTreeSet<String>) {
    for node in &graph.node {
        let domain = spelled_out(node.domain.as_deref());
        let name = node.op_type.as_deref().unwrap_or("");
        let row = supported_ops().find(|op| (op.domain, op.name) == (domain, name));
        let version = versions.iter().find(|(d, _)| *d == domain).map_or(0, |(_, v)| *v);
        match row {
            Some(row) if version >= row.since => {}
            Some(row) => {
                let since = row.since;
                found.insert(format!("{name} of opset {version}, before {since}"));
            }
            None if domain == "ai.onnx" => {
                found.insert(name.to_owned());
            }
            None => {
                found.insert(format!("{domain}.{name}"));
            }
        }
        let subgraphs = node.attribute.iter().filter_map(|a| a.g.as_ref());
        subgraphs.for_each(|g| unsupported_ops(g, versions, found));
    }
}

/// The default domain has two spellings.
fn spelled_out(domain: Option<&str>) -> &str {
    domain.filter(|d| !d.is_empty()).unwrap_or("ai.onnx")
}

fn unsupported_types(graph: &GraphProto, found: &mut BTreeSet<String>) {
    let infos = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
    infos.filter_map(element_type).for_each(|code| note(code, found));
    let codes = graph.initializer.iter().filter_map(|t| t.data_type);
    codes.for_each(|code| note(code, found));
    for node in &graph.node {
        node.attribute.iter().filter_map(|a| named_type(node, a)).for_each(|c| note(c, found));
    }
}

fn element_type(info: &ValueInfoProto) -> Option<i32> {
    match info.r#type.as_ref()?.value.as_ref()? {
        TypeValue::TensorType(tensor) => tensor.elem_type,
        _ => None,
    }
}

/// The element type that an attribute asks for.
fn named_type(node: &NodeProto, a: &AttributeProto) -> Option<i32> {
    match (node.op_type.as_deref()?, a.name.as_deref()?) {
        ("Cast", "to") | ("RandomUniform" | "RandomUniformLike", "dtype") => Some(a.i? as i32),
        ("Constant", "value_string" | "value_strings") => Some(DataType::String as i32),
        _ => a.t.as_ref()?.data_type,
    }
}

fn note(code: i32, found: &mut BTreeSet<String>) {
    if dtype(code).is_none() {
        let name = DataType::try_from(code).map_or("unknown", |t| t.as_str_name());
        found.insert(name.to_lowercase());
    }
}
