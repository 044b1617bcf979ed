//! LSTM, GRU and RNN: their shapes, and what is refused.

use super::model::*;
use crate::onnx::proto::{ModelProto, NodeProto, TensorProto, tensor_proto::DataType};
use arenic_ir::Op;
use arenic_ir::op::Activation;

/// A node of 5 steps, a batch of 2, 3 features and 4 units, with these initializers.
fn model_of(node: NodeProto, gates: i64, directions: i64, more: &[TensorProto]) -> ModelProto {
    let mut m = model(14)
        .input("x", DataType::Float, &fixed([5, 2, 3]))
        .input("w", DataType::Float, &fixed([directions, gates * 4, 3]))
        .input("r", DataType::Float, &fixed([directions, gates * 4, 4]))
        .node(node)
        .output("y");
    m.graph().initializer.extend_from_slice(more);
    m
}

fn lstm(more: &[&str]) -> NodeProto {
    node("LSTM", &[&["x", "w", "r"], more].concat(), &["y"])
}

#[test]
fn two_directions_are_two_recurrences() {
    let both = with(lstm(&[]), "direction", Attr::S("bidirectional"));
    let (shape, ops) = imported(&model_of(both, 4, 2, &[]));
    assert_eq!(shape, [5, 2, 2, 4]);
    let found: Vec<&Op> = ops.iter().filter(|op| matches!(op, Op::Lstm { .. })).collect();
    assert_eq!(found, [&Op::Lstm { reverse: false }, &Op::Lstm { reverse: true }]);
    // Nobody reads the last states, so that nothing is made of them.
    assert_eq!(ops.iter().filter(|op| matches!(op, Op::Concat { .. })).count(), 1);
}

#[test]
fn functions_of_each_direction_are_read() {
    let both = with(node("RNN", &["x", "w", "r"], &["y"]), "direction", Attr::S("bidirectional"));
    let named = with(both, "activations", Attr::Ss(&["Relu", "Tanh"]));
    let (_, ops) = imported(&model_of(named, 1, 2, &[]));
    let found = ops.iter().filter_map(|op| match op {
        Op::Rnn { reverse, activation } => Some((*reverse, *activation)),
        _ => None,
    });
    let want = [(false, Activation::Relu), (true, Activation::Tanh)];
    assert_eq!(found.collect::<Vec<_>>(), want);
    let named = with(lstm(&[]), "activations", Attr::Ss(&["Sigmoid", "Tanh", "Tanh"]));
    assert_eq!(imported(&model_of(named, 4, 1, &[])).0, [5, 1, 2, 4]);
}

#[test]
fn whole_sequences_are_sequences() {
    let lengths = [list("lengths", &[5, 5])];
    let whole = model_of(lstm(&["", "lengths"]), 4, 1, &lengths);
    assert_eq!(imported(&whole).0, [5, 1, 2, 4]);
    let last = node("GRU", &["x", "w", "r", "", "lengths"], &["", "y"]);
    assert_eq!(imported(&model_of(last, 3, 1, &lengths)).0, [1, 2, 4]);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let refused = |node: NodeProto, more: &[TensorProto], why: &str| {
        let gates = if node.op_type() == "LSTM" { 4 } else { 1 };
        let said = failure(&model_of(node, gates, 1, more));
        assert!(said.contains(why), "{said}");
    };
    refused(with(lstm(&[]), "clip", Attr::F(3.0)), &[], "attribute `clip` is not supported");
    refused(with(lstm(&[]), "input_forget", Attr::I(1)), &[], "attribute `input_forget`");
    refused(with(lstm(&[]), "layout", Attr::I(2)), &[], "attribute `layout` is 2, not 0 or 1");
    refused(with(lstm(&[]), "hidden_size", Attr::I(5)), &[], "`hidden_size` is 5, but `R` has 4");
    refused(with(lstm(&[]), "direction", Attr::S("up")), &[], "attribute `direction` is `up`");
    refused(with(lstm(&[]), "direction", Attr::S("bidirectional")), &[], "its `W` is f32[1,16,3]");
    let other = Attr::Ss(&["Sigmoid", "Relu", "Tanh"]);
    refused(with(lstm(&[]), "activations", other), &[], "Sigmoid, Relu, Tanh is not supported");
    refused(with(lstm(&[]), "activations", Attr::Ss(&["Tanh"])), &[], "has 1 entries, not 3");
    let shorter = [list("lengths", &[5, 4])];
    refused(lstm(&["", "lengths"]), &shorter, "sequence_lens, is not 5 for every sequence");
    let bias = [floats("b", &[1, 3], &[0.0; 3])];
    refused(lstm(&["b"]), &bias, "its `B` is f32[3] in a direction, not [32]");
    refused(node("RNN", &["x", "w", "x"], &["y"]), &[], "its `W`");
}
