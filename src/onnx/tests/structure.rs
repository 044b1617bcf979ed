//! The shape of a model: order, names, functions, versions, inputs, stored tensors.

use super::model::*;
use crate::onnx::proto::{
    AttributeProto, FunctionProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    tensor_proto::{DataLocation, DataType},
};
use crate::onnx::{ImportError, ImportOptions, import_bytes, import_file, supported_ops};
use arenic_ir::{DType, Data, Def, TensorType};
use bytes::Bytes;
use prost::Message;

#[test]
fn nodes_are_sorted_and_keep_names() {
    let m = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .node(node("Neg", &["b"], &["y"]))
        .node(node("Relu", &["a"], &["b"]))
        .node(node("Exp", &["x"], &["a"]))
        .output("y");
    let g = import(&m).unwrap().graph;
    let names: Vec<&str> = g.nodes.values().map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["n_a", "n_b", "n_y"]);
    let values: Vec<&str> = g.values.values().map(|v| v.name.as_str()).collect();
    assert_eq!(values, ["x", "a", "b", "y"]);
    assert_eq!(g.name, "g");
}

#[test]
fn a_cycle_is_named_node_by_node() {
    // Of two cycles that share a node, the one through the file's first node; `d` only reads.
    let m = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .node(node("Add", &["c", "x"], &["a"]))
        .node(node("Add", &["a", "e"], &["b"]))
        .node(node("Exp", &["b"], &["c"]))
        .node(node("Exp", &["c"], &["d"]))
        .node(node("Exp", &["b"], &["e"]));
    assert_eq!(
        failure(&m.output("d")),
        "the graph has a cycle: n_a → n_b → n_c → n_a (1 more nodes are in cycles with these)"
    );
    let m = model(18).node(node("Exp", &["a"], &["a"]));
    assert_eq!(failure(&m.output("a")), "the graph has a cycle: n_a → n_a");
}

#[test]
fn not_a_cycle() {
    let m = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .node(node("Add", &["x", "b"], &["a"]))
        .node(node("Exp", &["a"], &["b"]))
        .node(node("Exp", &["b"], &["y"]))
        .output("y");
    assert_eq!(failure(&m), "the graph has a cycle: n_a → n_b → n_a");
}

#[test]
fn not_a_missing_tensor_nor_a_second_definition() {
    let m = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .node(node("Add", &["x", "w"], &["y"]))
        .output("y");
    assert_eq!(
        failure(&m),
        "node `n_y` (Add): it reads `w`, which is no input, no initializer and no node's result"
    );
    let twice = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .node(node("Exp", &["x"], &["y"]))
        .node(node("Neg", &["x"], &["y"]))
        .output("y");
    assert_eq!(
        failure(&twice),
        "tensor `y` has two definitions: node `n_y` (Exp) and node `n_y` (Neg)"
    );
    let input = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .node(node("Exp", &["x"], &["x"]))
        .output("x");
    assert!(failure(&input).contains("a graph input and node `n_x` (Exp)"));
    let inputs = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .input("x", DataType::Float, &fixed([2]))
        .output("x");
    assert!(failure(&inputs).contains("two definitions"));
    assert!(failure(&model(18).output("y")).contains("output `y`: `y` is not defined"));
}

#[test]
fn unsupported_operators_are_reported_together_and_first() {
    let mut alien = node("Frob", &["nowhere"], &["f"]);
    alien.domain = Some("com.example".into());
    let mut unnamed = node("TfIdfVectorizer", &["x"], &["e"]);
    unnamed.name = None;
    let m = model(11)
        .input("x", DataType::Float16, &fixed([2]))
        .node(unnamed)
        .node(node("TfIdfVectorizer", &["x"], &["e2"]))
        .node(alien)
        .node(with(node("Optional", &["x"], &["i"]), "body", Attr::G))
        .node(node("Bogus", &["x"], &["unread"]));
    let m = ["e", "e2", "f", "i"].iter().fold(m, |m, output| m.output(output));
    let text = failure(&m);
    assert!(text.contains("3 operators that arenic does not support (4 nodes)"), "{text}");
    assert!(text.contains("ai.onnx TfIdfVectorizer (version 11): 2 nodes, first `e`"), "{text}");
    assert!(text.contains("com.example Frob (no version): 1 node, first `n_f`"), "{text}");
    assert!(text.contains("ai.onnx Optional (version 11): 1 node, first `n_i`"), "{text}");
}

#[test]
fn old_opsets_are_told_how_to_convert() {
    let m = single(12, &[2], node("Exp", &["x"], &["y"]), &[]);
    let text = failure(&m);
    assert!(text.contains("opset 12") && text.contains("version_converter"), "{text}");
    // Its definition has not changed since.
    let m = model(7).input("x", DataType::Bool, &fixed([2])).node(node("Not", &["x"], &["y"]));
    assert!(import(&m.output("y")).is_ok());
    let mut m = single(18, &[2], node("Exp", &["x"], &["y"]), &[]);
    m.opset_import.remove(0);
    assert!(failure(&m).contains("imports no version of its operator's domain"));
    assert!(import(&single(99, &[2], node("Exp", &["x"], &["y"]), &[])).is_ok());
}

#[test]
fn unknown_attributes_and_wrong_types_are_named() {
    let m = single(18, &[2], with(node("Exp", &["x"], &["y"]), "turbo", Attr::I(1)), &[]);
    assert_eq!(failure(&m), "node `n_y` (Exp): attribute `turbo` is not supported");
    let m = single(18, &[2], with(node("Softmax", &["x"], &["y"]), "axis", Attr::F(1.0)), &[]);
    assert_eq!(failure(&m), "node `n_y` (Softmax): attribute `axis` is of type FLOAT, not INT");
    let mut twice = with(node("Softmax", &["x"], &["y"]), "axis", Attr::I(0));
    twice = with(twice, "axis", Attr::I(0));
    assert!(failure(&single(18, &[2], twice, &[])).contains("`axis` is there twice"));
    let m = single(18, &[2], node("Exp", &["x", "x"], &["y"]), &[]);
    assert_eq!(failure(&m), "node `n_y` (Exp): it has 2 operands, not 1");
}

#[test]
fn dimensions_are_bound_or_all_reported() {
    let dims = [Dim::S("batch"), Dim::S("time"), Dim::Open, Dim::N(3)];
    let m =
        model(18).input("x", DataType::Float, &dims).node(node("Exp", &["x"], &["y"])).output("y");
    let Err(ImportError::UnboundDims(names)) = import(&m) else { panic!() };
    assert_eq!(names, ["batch", "time", "x.2"]);
    let mut options = ImportOptions::default();
    for (name, size) in [("batch", 4), ("time", 5), ("x.2", 6)] {
        options.dims.insert(name.into(), size);
    }
    let g = import_with(&m, &options).unwrap().graph;
    assert_eq!(g.ty(output(&g, "y")).shape, [4, 5, 6, 3]);
    options.dims.insert("tiem".into(), 1);
    let text = import_with(&m, &options).unwrap_err().to_string();
    assert_eq!(
        text,
        "the model's inputs have no symbolic dimension named tiem; they have batch, time, x.2"
    );
    let negative = single(18, &[-2], node("Exp", &["x"], &["y"]), &[]);
    assert!(failure(&negative).contains("input `x`: its dimensions [-2] are negative"));
}

#[test]
fn bound_inputs_become_constants_and_size_dimensions() {
    let m = model(18)
        .input("x", DataType::Float, &[Dim::S("n")])
        .input("shape", DataType::Int64, &fixed([2]))
        .input("table", DataType::Float, &[Dim::S("n")])
        .node(node("Add", &["x", "table"], &["a"]))
        .node(node("Reshape", &["a", "shape"], &["y"]))
        .output("y");
    let mut options = ImportOptions::default();
    let bytes = |list: [i64; 2]| list.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let shape = TensorType::new(DType::I64, [2]);
    options.bind.insert("shape".into(), (shape.clone(), bytes([2, 3])));
    options.bind.insert("table".into(), (TensorType::new(DType::F32, [6]), vec![0; 24]));
    let i = import_with(&m, &options).unwrap();
    assert_eq!(i.graph.ty(output(&i.graph, "y")).shape, [2, 3]);
    assert_eq!(i.graph.inputs().count(), 1);
    assert_eq!(i.bound, ["shape", "table"]);
    options.bind.insert("shape".into(), (TensorType::new(DType::I64, [3]), vec![0; 24]));
    let text = import_with(&m, &options).unwrap_err().to_string();
    assert_eq!(text, "--bind `shape`: it is i64[3], but the input is i64[2]");
    options.bind.insert("shape".into(), (shape.clone(), vec![0; 7]));
    assert!(import_with(&m, &options).unwrap_err().to_string().contains("7 bytes"));
    options.bind.insert("shape".into(), (shape, bytes([2, 3])));
    options.bind.insert("nothing".into(), (TensorType::scalar(DType::F32), vec![0; 4]));
    assert!(import_with(&m, &options).is_err());
    let text = failure(&single(18, &[6], node("Reshape", &["x", "x"], &["y"]), &[]));
    assert!(text.contains("no list of i64"), "{text}");
}

/// `f(a; k) = Cast(Neg(a), to = k)`, called twice, once from within another function.
#[test]
fn functions_are_inlined() {
    let text = |s: &str| Some(s.to_owned());
    let reference =
        AttributeProto { name: text("to"), ref_attr_name: text("k"), ..AttributeProto::default() };
    let mut cast = node("Cast", &["t"], &["r"]);
    cast.attribute.push(reference);
    let opset = |domain: &str| OperatorSetIdProto { domain: text(domain), version: Some(18) };
    let inner = FunctionProto {
        name: text("f"),
        domain: text("local"),
        input: vec!["a".into()],
        output: vec!["r".into()],
        attribute: vec!["k".into()],
        node: vec![node("Neg", &["a"], &["t"]), cast],
        opset_import: vec![opset("")],
        ..FunctionProto::default()
    };
    let call = |op: &str, x: &str, y: &str| {
        let mut n = node(op, &[x], &[y]);
        n.domain = text("local");
        n
    };
    let outer = FunctionProto {
        name: text("g"),
        domain: text("local"),
        input: vec!["t".into()],
        output: vec!["u".into()],
        node: vec![
            with(call("f", "t", "v"), "k", Attr::I(DataType::Double as i64)),
            node("Exp", &["v"], &["u"]),
        ],
        opset_import: vec![opset(""), opset("local")],
        ..FunctionProto::default()
    };
    let mut m = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .node(with(call("f", "x", "z"), "k", Attr::I(DataType::Int32 as i64)))
        .node(call("g", "x", "y"))
        .output("y")
        .output("z");
    m.functions = vec![inner, outer];
    let g = import(&m).unwrap().graph;
    let names: Vec<&str> = g.nodes.values().map(|n| n.op.name()).collect();
    assert_eq!(names, ["unary", "cast", "unary", "cast", "unary"]);
    assert_eq!(g.ty(output(&g, "y")).dtype, DType::F64);
    assert_eq!(g.ty(output(&g, "z")).dtype, DType::I32);

    m.functions[1].node[0] = call("g", "t", "v");
    assert!(failure(&m).contains("does one call itself?"));
}

#[test]
fn stored_tensors_are_checked() {
    let stored = |t: TensorProto| {
        let m = model(18)
            .input("x", DataType::Float, &fixed([2]))
            .initializer(t)
            .node(node("Add", &["x", "w"], &["y"]))
            .output("y");
        import(&m).map_err(|e| e.to_string())
    };
    let good = floats("w", &[2], &[1.0, 2.0]);
    assert!(stored(good.clone()).is_ok());
    let bad = |change: &dyn Fn(&mut TensorProto)| {
        let mut t = good.clone();
        change(&mut t);
        stored(t).unwrap_err()
    };
    assert_eq!(
        bad(&|t| t.dims = vec![3]),
        "tensor `w`: it holds 8 bytes where its type f32[3] takes 12"
    );
    assert!(bad(&|t| t.dims = vec![-1]).contains("negative"));
    assert!(bad(&|t| t.dims = vec![i64::MAX, i64::MAX]).contains("too large"));
    assert!(bad(&|t| t.dims = vec![1; 17]).contains("rank 17"));
    assert!(bad(&|t| t.data_type = Some(10)).contains("FLOAT16 is not supported"));
    assert!(bad(&|t| t.data_type = Some(777)).contains("777 is unknown"));
    assert!(bad(&|t| t.raw_data = None).contains("it holds 0 elements"));
}

#[test]
fn typed_fields_are_converted() {
    let constant = |code: DataType, fill: &dyn Fn(&mut TensorProto)| {
        let mut t =
            TensorProto { dims: vec![2], data_type: Some(code as i32), ..TensorProto::default() };
        fill(&mut t);
        let m = model(18)
            .node(with(node("Constant", &[], &["y"]), "value", Attr::T(t.into())))
            .output("y");
        let g = import(&m).map_err(|e| e.to_string())?.graph;
        Ok::<Vec<u8>, String>(g.const_bytes(output(&g, "y")).unwrap().to_vec())
    };
    let small: &dyn Fn(&mut TensorProto) = &|t| t.int32_data = vec![1, -1];
    assert_eq!(constant(DataType::Int8, small).unwrap(), [1, 255]);
    assert_eq!(constant(DataType::Int16, small).unwrap(), [1, 0, 255, 255]);
    assert_eq!(constant(DataType::Bool, &|t| t.int32_data = vec![0, 7]).unwrap(), [0, 1]);
    let raw = |t: &mut TensorProto| t.raw_data = Some(Bytes::from_static(&[9, 0]));
    assert_eq!(constant(DataType::Bool, &raw).unwrap(), [1, 0]);
    assert!(constant(DataType::Uint8, small).unwrap_err().contains("out of its type's range"));
    let u32s = constant(DataType::Uint32, &|t| t.uint64_data = vec![1, 2]).unwrap();
    assert_eq!(u32s, [1, 0, 0, 0, 2, 0, 0, 0]);
    let f64s = constant(DataType::Double, &|t| t.double_data = vec![1.0, 0.0]).unwrap();
    assert_eq!(f64s[..8], 1f64.to_le_bytes());
}

fn external(location: &str, offset: &str, length: &str) -> TensorProto {
    let entry = |key: &str, value: &str| StringStringEntryProto {
        key: Some(key.into()),
        value: Some(value.into()),
    };
    TensorProto {
        raw_data: None,
        data_location: Some(DataLocation::External as i32),
        external_data: vec![
            entry("location", location),
            entry("offset", offset),
            entry("length", length),
        ],
        ..floats("w", &[2], &[0.0; 2])
    }
}

#[test]
fn external_data_stays_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("models");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(inside.join("w.bin"), [0u8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    std::fs::write(folder.path().join("secret"), [0u8; 64]).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path().join("secret"), inside.join("link")).unwrap();
    let path = inside.join("m.onnx");
    let run = |location: &str, offset: &str, length: &str, plan_only: bool| {
        let m = model(18)
            .input("x", DataType::Float, &fixed([2]))
            .initializer(external(location, offset, length))
            .node(node("Add", &["x", "w"], &["y"]))
            .output("y");
        std::fs::write(&path, m.encode_to_vec()).unwrap();
        let options = ImportOptions { plan_only, ..ImportOptions::default() };
        import_file(&path, &options).map_err(|e| e.to_string())
    };
    let g = run("w.bin", "3", "8", false).unwrap().graph;
    let (_, data) = g.consts().next().unwrap();
    assert_eq!(data.bytes().unwrap()[..], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(run("./w.bin", "3", "8", false).is_ok());
    let outside = "outside of the model's folder";
    let absolute = folder.path().join("secret").display().to_string();
    for location in ["../secret", "a/../../secret", &absolute, "link", "", "/"] {
        for plan_only in [false, true] {
            let text = run(location, "0", "8", plan_only).unwrap_err();
            assert!(text.contains(outside), "{location}: {text}");
        }
    }
    assert!(run("w.bin", "4", "8", false).unwrap_err().contains("outside of its external file"));
    assert!(run("w.bin", "18446744073709551615", "8", false).is_err());
    assert!(run("w.bin", "-1", "8", false).unwrap_err().contains("no number"));
    assert!(run("w.bin", "0", "9", false).unwrap_err().contains("has 9 bytes"));
    assert!(run("gone.bin", "0", "8", false).unwrap_err().contains("missing"));
    assert!(run(".", "0", "8", false).unwrap_err().contains("not a regular file"));
    let g = run("gone.bin", "0", "8", true).unwrap().graph;
    assert!(g.values.values().any(|v| v.def == Def::Const(Data::Absent)));
}

#[test]
fn damaged_files_are_errors() {
    let options = ImportOptions::default();
    let bytes = single(18, &[2], node("Exp", &["x"], &["y"]), &[]).encode_to_vec();
    for n in 0..bytes.len() {
        // Some prefixes are models of their own; none may panic.
        let _ = import_bytes(Bytes::copy_from_slice(&bytes[..n]), None, &options);
    }
    for i in 0..bytes.len() {
        for flip in [0x01, 0x08, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[i] ^= flip;
            let _ = import_bytes(damaged.into(), None, &options);
        }
    }
    let nested = Bytes::from(vec![0x3b; 200_000]);
    assert!(matches!(import_bytes(nested, None, &options), Err(ImportError::Decode(_))));
    assert!(
        import_bytes(Bytes::new(), None, &options).unwrap_err().to_string().contains("no graph")
    );
}

#[test]
fn raw_data_is_shared_with_the_file() {
    let m = single(18, &[2], node("Add", &["x", "w"], &["y"]), &[floats("w", &[2], &[1.0, 2.0])]);
    let file = Bytes::from(m.encode_to_vec());
    let range = file.as_ptr_range();
    let g = import_bytes(file, None, &ImportOptions::default()).unwrap().graph;
    let (_, data) = g.consts().next().unwrap();
    assert!(range.contains(&data.bytes().unwrap().as_ptr()));
}

#[test]
fn outputs_must_be_what_they_are_declared_to_be() {
    let mut m = single(18, &[2], node("Exp", &["x"], &["y"]), &[]);
    m.graph().output[0] = info("y", DataType::Float, &[Dim::S("n")]);
    assert!(import(&m).is_ok());
    m.graph().output[0] = info("y", DataType::Float, &fixed([3]));
    assert_eq!(failure(&m), "output `y`: it is declared as f32[3], but it is f32[2]");
    m.graph().output[0] = info("y", DataType::Double, &fixed([2]));
    assert!(failure(&m).contains("declared as f64[2]"));
}

#[test]
fn large_graphs_import_in_linear_time() {
    let n = 100_000;
    let mut m = model(18).input("t0", DataType::Float, &fixed([4]));
    // Backwards in the file, so that sorting has work to do.
    for i in (0..n).rev() {
        m = m.node(node("Relu", &[&format!("t{i}")], &[&format!("t{}", i + 1)]));
    }
    let m = m.output(&format!("t{n}"));
    assert_eq!(import(&m).unwrap().graph.nodes.len(), n);
}

#[test]
fn the_table_is_sorted_and_names_each_operator_once() {
    let rows: Vec<(&str, &str)> = supported_ops().map(|op| (op.domain, op.name)).collect();
    assert!(rows.windows(2).all(|w| w[0] < w[1]), "{rows:?}");
    // What joint graphs of PyTorch's modules are made of is the least.
    let union = "Adam Add And AveragePool Cast Clip Concat ConstantOfShape Conv ConvTranspose Div \
                 Dropout Equal Erf Exp Expand Gather GatherElements GatherND Gemm Greater \
                 GreaterOrEqual Identity LayerNormalization Less LessOrEqual LogSoftmax MatMul \
                 MaxPool Mul Neg Not Pow RandomUniformLike Reciprocal ReduceMean ReduceMin \
                 ReduceSum Relu Reshape Resize ScatterElements ScatterND Sigmoid Slice Softmax \
                 Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze Where";
    for name in union.split_whitespace() {
        assert!(rows.iter().any(|&(_, n)| n == name), "{name}");
    }
    assert_eq!(union.split_whitespace().count(), 54);
}
