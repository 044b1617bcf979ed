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
pub(crate) fn reason(case: &Case) -> Option<(Kind, String)> {
    let mut ops = Ops { versions: Vec::new(), unknown: BTreeSet::new(), older: BTreeSet::new() };
    for import in &case.model.opset_import {
        let domain = spelled_out(import.domain.as_deref());
        ops.versions.push((domain, import.version.unwrap_or(0)));
    }
    let graph = case.graph();
    ops.note(graph);
    let mut types = BTreeSet::new();
    unsupported_types(graph, &mut types);
    let values = case.other_values.iter().cloned().collect();
    let reasons = [
        (Kind::Operator, ops.unknown),
        (Kind::Opset, ops.older),
        (Kind::Values, values),
        (Kind::ElementType, types),
    ];
    let (kind, names) = reasons.into_iter().find(|(_, names)| !names.is_empty())?;
    Some((kind, names.into_iter().collect::<Vec<String>>().join(", ")))
}

/// What arenic does not have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Operator,
    Opset,
    Values,
    ElementType,
}

impl Kind {
    pub(crate) const ALL: [Kind; 4] =
        [Kind::Operator, Kind::Opset, Kind::Values, Kind::ElementType];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Operator => "operator",
            Kind::Opset => "opset",
            Kind::Values => "values of kind",
            Kind::ElementType => "element type",
        }
    }
}

/// Operators that arenic does not list, and such that it does not list in this version.
struct Ops<'m> {
    versions: Vec<(&'m str, i64)>,
    unknown: BTreeSet<String>,
    older: BTreeSet<String>,
}

impl Ops<'_> {
    /// Looks at the nodes of a graph and of its subgraphs.
    fn note(&mut self, graph: &GraphProto) {
        for node in &graph.node {
            let domain = spelled_out(node.domain.as_deref());
            let name = node.op_type.as_deref().unwrap_or("");
            let version = self.versions.iter().find(|(d, _)| *d == domain).map_or(0, |(_, v)| *v);
            match supported_ops().find(|op| (op.domain, op.name) == (domain, name)) {
                Some(op) if version >= op.since => {}
                Some(_) => {
                    self.older.insert(format!("{version} ({name})"));
                }
                None if domain == "ai.onnx" => {
                    self.unknown.insert(name.to_owned());
                }
                None => {
                    self.unknown.insert(format!("{domain}.{name}"));
                }
            }
            node.attribute.iter().filter_map(|a| a.g.as_ref()).for_each(|g| self.note(g));
        }
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
        ("Cast", "to")
        | (
            "Bernoulli" | "RandomUniform" | "RandomUniformLike" | "RandomNormal"
            | "RandomNormalLike",
            "dtype",
        ) => Some(a.i? as i32),
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
