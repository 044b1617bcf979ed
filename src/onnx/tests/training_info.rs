//! `Gradient` and `TrainingInfoProto`.

use super::model::*;
use crate::onnx::Imported;
use crate::onnx::proto::{
    GraphProto, ModelProto, StringStringEntryProto, TrainingInfoProto, tensor_proto::DataType,
};
use arenic_ir::Data;
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;

/// `y = a² · b`, element by element.
fn cube() -> ModelProto {
    model(18)
        .input("a", DataType::Float, &fixed([2]))
        .input("b", DataType::Float, &fixed([2]))
        .node(node("Mul", &["a", "a"], &["aa"]))
        .node(node("Mul", &["aa", "b"], &["y"]))
}

const AT: [(&str, &[f32]); 2] = [("a", &[2.0, 3.0]), ("b", &[5.0, 7.0])];

#[test]
fn gradients_are_nodes() {
    let m = cube().node(gradient("y", &["a", "b"], &[], &["a", "b"], &["da", "db"]));
    let g = import(&m.output("da").output("db")).unwrap().graph;
    assert_eq!(computed(&g, &AT, "da"), [20.0, 42.0]);
    assert_eq!(computed(&g, &AT, "db"), [4.0, 9.0]);
}

#[test]
fn a_gradient_comes_before_what_it_is_of_in_a_file() {
    let mut m = cube().node(gradient("y", &["a"], &["b"], &["a", "b"], &["da"])).output("da");
    m.graph().node.rotate_right(1);
    assert_eq!(computed(&import(&m).unwrap().graph, &AT, "da"), [20.0, 42.0]);
}

#[test]
fn gradients_end_where_they_are_asked_of() {
    // aa is taken as it is: a's part of y through aa does not count.
    let m = cube().node(gradient("y", &["aa"], &["b"], &["aa", "b"], &["d"])).output("d");
    assert_eq!(computed(&import(&m).unwrap().graph, &AT, "d"), [5.0, 7.0]);
    let m = cube().node(gradient("y", &["a"], &["aa"], &["a", "aa"], &["d"])).output("d");
    assert_eq!(computed(&import(&m).unwrap().graph, &AT, "d"), [0.0, 0.0]);
}

#[test]
fn gradients_elsewhere_and_of_gradients() {
    // At (b, a) in place of (a, b).
    let m = cube().node(gradient("y", &["a"], &["b"], &["b", "a"], &["d"])).output("d");
    assert_eq!(computed(&import(&m).unwrap().graph, &AT, "d"), [20.0, 42.0]);
    let other: [(&str, &[f32]); 2] = [("a", &[2.0, 3.0]), ("b", &[1.0, 10.0])];
    assert_eq!(computed(&import(&m).unwrap().graph, &other, "d"), [4.0, 60.0]);
    let m = cube().node(gradient("y", &["a"], &["b"], &["a", "b"], &["d"])).node(gradient(
        "d",
        &["a"],
        &["b"],
        &["a", "b"],
        &["dd"],
    ));
    assert_eq!(computed(&import(&m.output("dd")).unwrap().graph, &AT, "dd"), [10.0, 14.0]);
}

#[test]
fn what_a_gradient_is_asked_of_is_not_folded() {
    let m = model(18)
        .input("b", DataType::Float, &fixed([2]))
        .initializer(floats("s", &[], &[3.0]))
        .node(node("Mul", &["s", "s"], &["ss"]))
        .node(node("Mul", &["ss", "b"], &["y"]))
        .node(gradient("y", &["s"], &["b"], &["s", "b"], &["d"]))
        .output("d");
    assert_eq!(computed(&import(&m).unwrap().graph, &AT[1..], "d"), [72.0]);
}

#[test]
fn not_of_what_has_no_gradient() {
    let with = |y, xs: &[&str], at: &[&str]| {
        failure(&cube().node(gradient(y, xs, &[], at, &["d"])).output("d"))
    };
    assert!(with("y", &["a", "b"], &["a"]).contains("1 operands for 2 names in `xs`"));
    assert!(with("z", &["a"], &["a"]).contains("it reads `z`, which is no input"));
    let m = model(18).input("a", DataType::Int64, &fixed([2])).node(node("Neg", &["a"], &["y"]));
    let m = m.node(gradient("y", &["a"], &[], &["a"], &["d"])).output("d");
    assert!(failure(&m).contains("there is no gradient of i64[2]"));
    let mut m = cube().node(gradient("y", &["a"], &[], &["a"], &["d"])).output("d");
    m.graph().node[2].attribute.remove(0);
    assert!(failure(&m).contains("attribute `y` is missing"));
}

fn entry(x: &str, y: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(x.into()), value: Some(y.into()) }
}

/// `y = w · x`; training: `l = Σ y²`, `w ← w − r · dl/dw`, `k ← k + 1`.
fn trained() -> ModelProto {
    let mut m = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .initializer(floats("w", &[2], &[1.0, 2.0]))
        .node(node("Mul", &["w", "x"], &["y"]))
        .output("y");
    let mut algorithm = model(18)
        .input("r", DataType::Float, &[])
        .initializer(ints("k", &[], &[7]))
        .initializer(ints("one", &[], &[1]))
        .node(with(node("ReduceSumSquare", &["y"], &["l"]), "keepdims", Attr::I(0)))
        .node(gradient("l", &["w"], &["x"], &["w", "x"], &["dw"]))
        .node(node("Mul", &["r", "dw"], &["s"]))
        .node(node("Sub", &["w", "s"], &["next"]))
        .node(node("Add", &["k", "one"], &["count"]))
        .output("l");
    m.training_info = vec![TrainingInfoProto {
        algorithm: Some(std::mem::take(algorithm.graph())),
        update_binding: vec![entry("w", "next"), entry("k", "count")],
        ..TrainingInfoProto::default()
    }];
    m
}

/// The initial value of a state.
fn initial(i: &Imported, name: &str) -> Vec<u8> {
    let state = i.graph.states.values().find(|s| s.name == name).unwrap();
    state.init.as_ref().and_then(Data::bytes).unwrap().to_vec()
}

#[test]
fn training_info_is_one_step() {
    let i = import(&trained()).unwrap();
    let g = &i.graph;
    let outputs: Vec<&str> = g.outputs.iter().map(|o| o.name.as_str()).collect();
    assert_eq!((outputs, g.states.len()), (vec!["y", "l"], 2));
    assert_eq!(initial(&i, "k"), 7i64.to_le_bytes());
    let mut reference = Reference::new(g).unwrap();
    for s in g.states.values() {
        let bytes = s.init.as_ref().and_then(Data::bytes).unwrap();
        reference.value_mut(s.enter).unwrap().copy_from_slice(bytes);
    }
    for (v, data) in g.consts() {
        reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
    }
    for v in g.inputs() {
        let data: &[f32] = if g.values[v].name == "r" { &[0.25] } else { &[1.0, -1.0] };
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        reference.value_mut(v).unwrap().copy_from_slice(&bytes);
    }
    reference.step(Draw::default()).unwrap();
    // dl/dw = 2 w x² halves w.
    let state = |name: &str| g.states.values().find(|s| s.name == name).unwrap().enter;
    assert_eq!(floats_of(reference.value(state("w"))), [0.5, 1.0]);
    assert_eq!(reference.value(state("k")), 8i64.to_le_bytes());
}

#[test]
fn initialization_replaces_initial_values() {
    let mut m = trained();
    let constant = with(node("Constant", &[], &["zero"]), "value_int", Attr::I(0));
    let normal = with(node("RandomNormal", &[], &["n"]), "shape", Attr::Is(&[2]));
    let mut graph = model(18).node(constant).node(normal).output("zero").output("n");
    m.training_info[0].initialization = Some(std::mem::take(graph.graph()));
    m.training_info[0].initialization_binding = vec![entry("k", "zero"), entry("w", "n")];
    let i = import(&m).unwrap();
    assert_eq!(initial(&i, "k"), 0i64.to_le_bytes());
    let w = floats_of(&initial(&i, "w"));
    assert!(w != [1.0, 2.0] && w[0] != w[1] && w.iter().all(|x| x.abs() < 6.0), "{w:?}");
    assert_eq!(initial(&import(&m).unwrap(), "w"), initial(&i, "w"));

    m.training_info[0].initialization_binding[0] = entry("w", "zero");
    assert!(failure(&m).contains("the initialization of `w` is of another type or shape"));
    m.training_info[0].initialization_binding[0] = entry("w", "nothing");
    assert!(failure(&m).contains("the initialization has no output `nothing`"));
}

#[test]
fn not_bindings_of_what_is_not_there() {
    let mut m = trained();
    m.training_info[0].update_binding.push(entry("x", "next"));
    assert_eq!(failure(&m), "training_info binds `x`, which is no initializer");
    m.training_info[0].update_binding[2] = entry("one", "nothing");
    assert!(failure(&m).contains("the model has no tensor `nothing`"));
    let mut m = trained();
    m.training_info.push(m.training_info[0].clone());
    assert!(failure(&m).contains("has 2 algorithms"));
    let mut m = trained();
    m.training_info[0].initialization =
        Some(GraphProto { input: vec![info("z", DataType::Float, &[])], ..GraphProto::default() });
    m.training_info[0].initialization_binding = vec![entry("k", "z")];
    assert!(failure(&m).contains("the initialization has an input, `z`"));
}
