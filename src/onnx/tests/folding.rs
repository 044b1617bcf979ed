//! What is known when a model is compiled.

use super::model::*;
use crate::onnx::fold::to_ints;
use crate::onnx::proto::{ModelProto, tensor_proto::DataType};
use arenic_ir::{DType, Graph, Op, TensorType};

/// The integers that an output was folded to.
fn const_ints(g: &Graph, name: &str) -> Option<Vec<i64>> {
    let v = output(g, name);
    to_ints(g.ty(v), &g.const_bytes(v)?)
}

/// Shape → Gather → Concat → Reshape, as exporters write a flattening of batches.
fn shape_arithmetic() -> ModelProto {
    model(18)
        .input("x", DataType::Float, &fixed([2, 3, 4]))
        .initializer(ints("zero", &[], &[0]))
        .initializer(list("rest", &[-1]))
        .initializer(list("first", &[0]))
        .node(node("Shape", &["x"], &["s"]))
        .node(node("Gather", &["s", "zero"], &["n"]))
        .node(node("Unsqueeze", &["n", "first"], &["n1"]))
        .node(with(node("Concat", &["n1", "rest"], &["t"]), "axis", Attr::I(0)))
        .node(node("Reshape", &["x", "t"], &["y"]))
        .output("y")
}

#[test]
fn shapes_are_computed() {
    let i = import(&shape_arithmetic()).unwrap();
    assert_eq!(i.graph.ty(output(&i.graph, "y")).shape, [2, 12]);
    assert_eq!(i.graph.nodes.len(), 1);
    assert_eq!(i.graph.consts().count(), 0);
    for name in ["zero", "rest", "first"] {
        assert!(i.bound.iter().any(|b| b == name), "{name} in {:?}", i.bound);
    }
}

#[test]
fn not_float_initializers() {
    let m = |w| {
        model(18)
            .input("x", DataType::Float, &fixed([2]))
            .initializer(w)
            .node(node("Exp", &["w"], &["e"]))
            .node(node("Add", &["x", "e"], &["y"]))
            .output("y")
    };
    let i = import(&m(floats("w", &[2], &[0.0, 0.0]))).unwrap();
    assert_eq!(i.graph.nodes.len(), 2);
    assert!(i.bound.is_empty());
    let i = import(&m(floats("w", &[], &[0.0]))).unwrap();
    assert_eq!(i.graph.nodes.len(), 1);
    assert!(i.bound.contains(&"w".to_owned()));
}

#[test]
fn results_that_would_take_memory_stay_nodes() {
    let m = |shape: &[i64]| {
        let fill =
            with(node("ConstantOfShape", &["s"], &["y"]), "value", Attr::T(list("", &[7]).into()));
        import(&model(18).initializer(list("s", shape)).node(fill).output("y"))
    };
    let i = m(&[3]).unwrap();
    let bytes = i.graph.const_bytes(output(&i.graph, "y")).unwrap();
    assert_eq!(bytes.len(), 24);
    assert!(bytes.chunks(8).all(|c| c == 7i64.to_le_bytes()));
    let i = m(&[1 << 20]).unwrap();
    assert!(matches!(ops(&i.graph)[..], [Op::Expand { .. }]));
    assert!(m(&[1 << 40, 1 << 40]).unwrap_err().to_string().contains("too large"));
    assert!(m(&[-1]).unwrap_err().to_string().contains("negative"));
}

#[test]
fn ranges_are_constants_of_bounded_length() {
    let m = |limit: i64| {
        let m = model(18)
            .initializer(ints("a", &[], &[1]))
            .initializer(ints("b", &[], &[limit]))
            .initializer(ints("c", &[], &[3]))
            .node(node("Range", &["a", "b", "c"], &["y"]))
            .output("y");
        import(&m)
    };
    let i = m(8).unwrap();
    let g = &i.graph;
    assert_eq!(const_ints(g, "y").unwrap(), [1, 4, 7]);
    assert_eq!(m(-5).unwrap().graph.ty(output(&m(-5).unwrap().graph, "y")).shape, [0]);
    assert!(m(i64::MAX).unwrap_err().to_string().contains("more than"));
}

#[test]
fn a_value_that_is_needed_is_looked_for_behind_initializers() {
    // Scales that a float initializer takes part in: nothing folds, but they are known.
    let m = model(18)
        .input("x", DataType::Float, &fixed([1, 1, 2, 2]))
        .initializer(floats("one", &[2], &[1.0, 1.0]))
        .initializer(floats("two", &[2], &[2.0, 2.0]))
        .node(with(node("Concat", &["one", "two"], &["s"]), "axis", Attr::I(0)))
        .node(node("Resize", &["x", "", "s"], &["y"]))
        .output("y");
    let i = import(&m).unwrap();
    assert_eq!(i.graph.ty(output(&i.graph, "y")).shape, [1, 1, 4, 4]);
    assert_eq!(i.graph.nodes.len(), 1);
    assert!(i.bound.contains(&"one".to_owned()) && i.bound.contains(&"two".to_owned()));
}

#[test]
fn not_shapes_that_depend_on_inputs() {
    let m = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .input("s", DataType::Int64, &fixed([1]))
        .node(node("Reshape", &["x", "s"], &["y"]))
        .output("y");
    let text = failure(&m);
    assert!(text.contains("operand 1, `s`, must be known") && text.contains("--bind"), "{text}");
}

/// PyTorch's exporter computes positions within a channel as the indices of the pool
/// minus those of each channel's first element.
#[test]
fn positions_of_a_pointwise_pool_fold_to_the_slice_in_use() {
    let pool = with(node("MaxPool", &["x"], &["p", "i"]), "kernel_shape", Attr::Is(&[1, 1]));
    let m = model(18)
        .input("x", DataType::Float, &fixed([2, 3, 200, 200]))
        .initializer(list("starts", &[0, 0]))
        .initializer(list("ends", &[1, 1]))
        .initializer(list("axes", &[2, 3]))
        .node(pool.clone())
        .node(node("Slice", &["i", "starts", "ends", "axes"], &["y"]))
        .output("y");
    let i = import(&m).unwrap();
    let g = &i.graph;
    assert_eq!(g.nodes.len(), 0);
    let plane = 200 * 200;
    let firsts: Vec<i64> = (0..6).map(|c| c * plane).collect();
    assert_eq!(const_ints(g, "y").unwrap(), firsts);

    let backwards = model(18)
        .input("x", DataType::Float, &fixed([1, 1, 2, 3]))
        .initializer(list("starts", &[-1, 0]))
        .initializer(list("ends", &[i64::MIN, 3]))
        .initializer(list("axes", &[2, 3]))
        .initializer(list("steps", &[-1, 2]))
        .node(pool.clone())
        .node(node("Slice", &["i", "starts", "ends", "axes", "steps"], &["y"]))
        .output("y");
    let i = import(&backwards).unwrap();
    assert_eq!(const_ints(&i.graph, "y").unwrap(), [3, 5, 0, 2]);

    // Read whole, few positions become a constant and many stay a node.
    let whole = |extent: i64| {
        let m = model(18)
            .input("x", DataType::Float, &fixed([1, 1, extent, extent]))
            .node(pool.clone())
            .node(node("Neg", &["i"], &["y"]))
            .output("y");
        import(&m).unwrap().graph
    };
    assert_eq!(ops(&whole(2)).len(), 0);
    let large = whole(100);
    assert!(matches!(ops(&large)[..], [Op::MaxPool { .. }, Op::Unary { .. }]));
    assert!(large.nodes.values().next().unwrap().outputs[0].is_none());
    // As soon as the maximum is read, the pool is one like any other.
    let m = model(18)
        .input("x", DataType::Float, &fixed([1, 1, 2, 2]))
        .node(pool)
        .output("p")
        .output("i");
    assert_eq!(ops(&import(&m).unwrap().graph).len(), 1);
}

#[test]
fn dead_nodes_and_results_are_dropped() {
    let m = model(18)
        .input("x", DataType::Float, &fixed([2, 3]))
        .input("idle", DataType::Float, &fixed([2]))
        .initializer(floats("scale", &[3], &[1.0; 3]))
        .initializer(floats("spare", &[3], &[1.0; 3]))
        .node(node("Exp", &["x"], &["dead"]))
        .node(node("LayerNormalization", &["x", "scale"], &["y", "mean", "inv"]))
        .output("y");
    let i = import(&m).unwrap();
    let g = &i.graph;
    assert_eq!(g.nodes.len(), 1);
    let outputs: Vec<bool> =
        g.nodes.values().next().unwrap().outputs.iter().map(Option::is_some).collect();
    assert_eq!(outputs, [true, false, false]);
    assert_eq!(g.inputs().count(), 2);
    assert_eq!(i.unused, ["spare"]);
}

#[test]
fn constants_come_in_every_form() {
    let value = |name: &str, attr: Attr| {
        let m = model(18).node(with(node("Constant", &[], &["y"]), name, attr)).output("y");
        import(&m).map(|i| i.graph.ty(output(&i.graph, "y")).clone()).map_err(|e| e.to_string())
    };
    assert_eq!(value("value_int", Attr::I(3)).unwrap(), TensorType::scalar(DType::I64));
    assert_eq!(value("value_float", Attr::F(3.0)).unwrap(), TensorType::scalar(DType::F32));
    assert_eq!(value("value_ints", Attr::Is(&[1, 2])).unwrap(), TensorType::new(DType::I64, [2]));
    assert!(value("value_string", Attr::S("x")).unwrap_err().contains("value_string"));
}
