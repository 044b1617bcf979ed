//! State discovery.

use super::model::*;
use crate::onnx::proto::{ModelProto, StringStringEntryProto, tensor_proto::DataType};
use crate::onnx::{ImportOptions, Imported};
use arenic_ir::{Data, Def};

/// `out_w = w + g`, `out_v = Identity(w)`, and an unrelated output.
fn step() -> ModelProto {
    model(18)
        .input("w", DataType::Float, &fixed([2]))
        .input("g", DataType::Float, &fixed([2]))
        .initializer(floats("v", &[2], &[7.0, 8.0]))
        .node(node("Add", &["w", "g"], &["out_w"]))
        .node(node("Identity", &["w"], &["out_v"]))
        .node(node("Mul", &["v", "g"], &["loss"]))
        .output("loss")
        .output("out_w")
        .output("out_v")
}

fn pairs(i: &Imported) -> Vec<(String, String)> {
    let g = &i.graph;
    g.states.values().map(|s| (s.name.clone(), g.values[s.exit].name.clone())).collect()
}

fn pair(x: &str, y: &str) -> (String, String) {
    (x.into(), y.into())
}

#[test]
fn names_make_pairs() {
    let i = import(&step()).unwrap();
    assert_eq!(pairs(&i), [pair("w", "out_w"), pair("v", "out_v")]);
    let g = &i.graph;
    assert_eq!(g.outputs.len(), 1);
    let inputs: Vec<&str> = g.inputs().map(|v| g.values[v].name.as_str()).collect();
    assert_eq!(inputs, ["g"]);
    let states: Vec<_> = g.states.values().collect();
    assert_eq!(states[0].init, None);
    let bytes = states[1].init.as_ref().and_then(Data::bytes).unwrap();
    assert_eq!(bytes[..4], 7f32.to_le_bytes());
    assert!(matches!(g.values[states[1].enter].def, Def::State(_)));
    assert_eq!(g.consts().count(), 0);
}

#[test]
fn metadata_comes_before_names_and_options_before_metadata() {
    let mut m = step();
    m.metadata_props.push(StringStringEntryProto {
        key: Some("arenic.state".into()),
        value: Some("\n v = out_w \n".into()),
    });
    // `out_w` is taken, so `w` is an input like any other.
    assert_eq!(pairs(&import(&m).unwrap()), [pair("v", "out_w")]);
    let options = ImportOptions { states: vec![pair("w", "out_v")], ..ImportOptions::default() };
    let i = import_with(&m, &options).unwrap();
    assert_eq!(pairs(&i), [pair("w", "out_v"), pair("v", "out_w")]);
    assert_eq!(i.graph.outputs.len(), 1);
    m.metadata_props[0].value = Some("nonsense".into());
    assert!(failure(&m).contains("line `nonsense` is not of the form X=Y"));
}

#[test]
fn not_pairs_that_do_not_fit() {
    let with = |states: &[(&str, &str)]| {
        let states = states.iter().map(|(x, y)| pair(x, y)).collect();
        let options = ImportOptions { states, ..ImportOptions::default() };
        import_with(&step(), &options).unwrap_err().to_string()
    };
    assert!(with(&[("z", "out_w")]).contains("no input or initializer `z`"));
    assert!(with(&[("loss", "out_w")]).contains("no input or initializer `loss`"));
    assert!(with(&[("w", "z")]).contains("no tensor `z`"));
    assert!(with(&[("w", "out_w"), ("w", "out_v")]).contains("`w` is in two pairs"));
    assert!(with(&[("w", "out_w"), ("v", "out_w")]).contains("`out_w` is in two pairs"));

    let m = model(18)
        .input("w", DataType::Float, &fixed([2]))
        .node(with_axes(node("ReduceSum", &["w"], &["out_w"])))
        .output("out_w");
    assert_eq!(
        failure(&m),
        "state `w` with next value `out_w`: they differ in type, f32[2] and f32[]"
    );
}

fn with_axes(n: crate::onnx::proto::NodeProto) -> crate::onnx::proto::NodeProto {
    with(n, "keepdims", Attr::I(0))
}

#[test]
fn a_state_is_no_constant() {
    let m = model(18)
        .initializer(ints("step", &[], &[3]))
        .initializer(ints("one", &[], &[1]))
        .node(node("Add", &["step", "one"], &["out_step"]))
        .output("out_step");
    let i = import(&m).unwrap();
    assert_eq!(i.graph.nodes.len(), 1);
    assert_eq!(pairs(&i), [pair("step", "out_step")]);
    assert!(i.bound.is_empty());
}

#[test]
fn updates_are_simultaneous() {
    let m = model(18)
        .input("a", DataType::Float, &fixed([2]))
        .input("b", DataType::Float, &fixed([2]))
        .node(node("Identity", &["b"], &["out_a"]))
        .node(node("Identity", &["a"], &["out_b"]))
        .output("out_a")
        .output("out_b");
    let g = import(&m).unwrap().graph;
    assert_eq!((g.states.len(), g.outputs.len(), g.inputs().count()), (2, 0, 0));
}

#[test]
fn optimizers_become_one_update_per_parameter() {
    let mut adam = node(
        "Adam",
        &["lr", "t", "p", "q", "dp", "dq", "mp", "mq", "vp", "vq"],
        &["out_p", "out_q", "out_mp", "out_mq", "out_vp", "out_vq"],
    );
    adam.domain = Some("ai.onnx.preview.training".into());
    let mut m = model(18)
        .input("lr", DataType::Float, &[])
        .input("t", DataType::Int64, &[])
        .node(with(adam, "epsilon", Attr::F(0.5)));
    for name in ["p", "dp", "mp", "vp"] {
        m = m.input(name, DataType::Float, &fixed([2]));
    }
    for name in ["q", "dq", "mq", "vq"] {
        m = m.input(name, DataType::Float, &fixed([3]));
    }
    for name in ["out_p", "out_q", "out_mp", "out_mq", "out_vp", "out_vq"] {
        m = m.output(name);
    }
    let g = import(&m).unwrap().graph;
    assert_eq!(g.states.len(), 6);
    let names = |list: Vec<arenic_ir::ValueId>| -> Vec<String> {
        list.into_iter().map(|v| g.values[v].name.clone()).collect()
    };
    let nodes: Vec<_> = g.nodes.values().collect();
    assert_eq!(nodes.len(), 2);
    assert_eq!(names(nodes[1].inputs.clone()), ["lr", "t", "q", "dq", "mq", "vq"]);
    let results = nodes[1].outputs.iter().flatten().copied().collect();
    assert_eq!(names(results), ["out_q", "out_mq", "out_vq"]);
    let arenic_ir::Op::Adam { alpha, epsilon, .. } = nodes[0].op else { panic!() };
    assert_eq!((alpha, epsilon), (0.9, 0.5));

    m.graph().node[0].input.pop();
    assert!(failure(&m).contains("n_out_p"));
}
