//! Nodes that are added to a graph.

use crate::onnx::proto::{AttributeProto, NodeProto};

/// A constant's node.
pub(super) fn constant(value: AttributeProto, name: &str) -> NodeProto {
    NodeProto {
        name: Some(name.to_owned()),
        op_type: Some("Constant".to_owned()),
        output: vec![name.to_owned()],
        attribute: vec![value],
        ..NodeProto::default()
    }
}
