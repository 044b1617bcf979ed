//! Dropout and micro-batches of several ranks: a row is dropped as it is in one process with all rows, whatever rank has it
//! and in whatever round.

use super::{Trained, assert_close, trained};
use arenic::artifact::Artifact;
use arenic::data::OutputSpool;
use arenic::onnx::proto::attribute_proto::AttributeType;
use arenic::onnx::proto::tensor_shape_proto::Dimension;
use arenic::onnx::proto::tensor_shape_proto::dimension::Value as Extent;
use arenic::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, tensor_proto::DataType, type_proto,
};
use arenic::train::{Length, TrainOptions};
use arenic::{Compiler, Model};
use arenic_ir::graph::Node;
use arenic_ir::{DType, Op, TensorType};
use arenic_passes::differentiate::{Differentiate, Optimizer};
use arenic_passes::shard::Level;
use prost::Message;
use std::path::Path;

const INPUTS: usize = 6;
const HIDDEN: usize = 8;
const CLASSES: usize = 5;
/// Rows of a step, of all ranks together.
const ROWS: usize = 16;
const STEPS: usize = 3;

fn bytes(data_type: DataType, dims: &[usize], name: &str, raw: Vec<u8>) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.iter().map(|&d| d as i64).collect(),
        data_type: Some(data_type as i32),
        raw_data: Some(raw.into()),
        ..TensorProto::default()
    }
}

fn weights(name: &str, dims: [usize; 2], phase: f32) -> TensorProto {
    let value = |i: usize| (i as f32 * 0.37 + phase).sin();
    let raw = (0..dims[0] * dims[1]).flat_map(|i| value(i).to_le_bytes()).collect();
    bytes(DataType::Float, &dims, name, raw)
}

fn integers(name: &str, values: &[i64]) -> TensorProto {
    let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    bytes(DataType::Int64, &[values.len()], name, raw)
}

/// The node, which exchanges the last two of three axes.
fn transposed(mut node: NodeProto) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some("perm".to_owned()),
        ints: vec![0, 2, 1],
        r#type: Some(AttributeType::Ints as i32),
        ..AttributeProto::default()
    });
    node
}

fn value(name: &str, columns: usize) -> ValueInfoProto {
    let extents = [Extent::DimParam("batch".into()), Extent::DimValue(columns as i64)];
    let dim = |value| Dimension { value: Some(value), ..Dimension::default() };
    let tensor = type_proto::Tensor {
        elem_type: Some(DataType::Float as i32),
        shape: Some(TensorShapeProto { dim: extents.map(dim).into() }),
    };
    let r#type = Some(TypeProto {
        value: Some(type_proto::Value::TensorType(tensor)),
        ..TypeProto::default()
    });
    ValueInfoProto { name: Some(name.to_owned()), r#type, ..ValueInfoProto::default() }
}

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(op.to_owned()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        name: Some(output.to_owned()),
        ..NodeProto::default()
    }
}

/// What reads the input with elements dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// The first layer.
    Layer,
    /// A mean over all rows, which the first layer's results are multiplied by.
    Mean,
    /// Queries and values of an attention, whose weights are dropped, too.
    Attention,
}

/// Two layers, with dropout of the input and of what is between them.
fn network(reads: Reads) -> Model {
    let first = match reads {
        Reads::Layer => vec![node("MatMul", &["dropped", "first"], "product")],
        Reads::Mean => vec![
            node("MatMul", &["x", "first"], "scores"),
            node("ReduceMean", &["dropped"], "mean"),
            node("Mul", &["scores", "mean"], "product"),
        ],
        Reads::Attention => vec![
            node("Reshape", &["dropped", "positions"], "keys"),
            node("MatMul", &["keys", "query"], "queries"),
            node("MatMul", &["keys", "value"], "values"),
            transposed(node("Transpose", &["keys"], "columns")),
            node("MatMul", &["queries", "columns"], "scores"),
            node("Softmax", &["scores"], "weights"),
            node("Dropout", &["weights", "ratio", "training"], "attended"),
            node("MatMul", &["attended", "values"], "mixed"),
            node("Reshape", &["mixed", "row"], "flat"),
            node("MatMul", &["flat", "first"], "product"),
        ],
    };
    let attends = match reads {
        Reads::Attention => vec![
            weights("query", [INPUTS / 2, INPUTS / 2], 0.7),
            weights("value", [INPUTS / 2, INPUTS / 2], 0.2),
            integers("positions", &[-1, 2, INPUTS as i64 / 2]),
            integers("row", &[-1, INPUTS as i64]),
        ],
        _ => vec![],
    };
    let rest = vec![
        node("Tanh", &["product"], "active"),
        node("Dropout", &["active", "ratio", "training"], "left"),
        node("MatMul", &["left", "second"], "logits"),
    ];
    let dropped = vec![node("Dropout", &["x", "ratio", "training"], "dropped")];
    let graph = GraphProto {
        name: Some("dropouts".to_owned()),
        node: [dropped, first, rest].concat(),
        initializer: [
            vec![
                bytes(DataType::Float, &[], "ratio", 0.25f32.to_le_bytes().into()),
                bytes(DataType::Bool, &[], "training", vec![1]),
                weights("first", [INPUTS, HIDDEN], 0.3),
                weights("second", [HIDDEN, CLASSES], 1.1),
            ],
            attends,
        ]
        .concat(),
        input: vec![value("x", INPUTS)],
        output: vec![value("logits", CLASSES)],
        ..GraphProto::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: None, version: Some(17) }];
    let graph = Some(graph);
    let model = ModelProto { ir_version: Some(8), opset_import, graph, ..ModelProto::default() };
    Model::from_bytes(model.encode_to_vec()).unwrap()
}

/// Rows that all differ, and their classes.
fn write_data(path: &Path) {
    let types = [
        ("x".to_owned(), TensorType::new(DType::F32, [INPUTS])),
        ("target".to_owned(), TensorType::new(DType::I64, [])),
    ];
    let mut spool = OutputSpool::new(path, &types).unwrap();
    for row in 0..STEPS * ROWS {
        let x = |i: usize| ((row * INPUTS + i) as f32 * 0.7).sin();
        let x: Vec<u8> = (0..INPUTS).flat_map(|i| x(i).to_le_bytes()).collect();
        spool.append(0, &x).unwrap();
        spool.append(1, &((row * 7 % CLASSES) as i64).to_le_bytes()).unwrap();
    }
    spool.finish().unwrap();
}

/// For so many ranks, each with its rows in so many micro-batches.
fn compiled(reads: Reads, ranks: usize, level: Level, micro_batches: usize) -> Artifact {
    let pass = Differentiate {
        loss: "cross_entropy".into(),
        optimizer: Optimizer::Momentum,
        accumulate: (micro_batches > 1).then_some(micro_batches as u32),
        clip_norm: Some(0.5),
        ..Differentiate::default()
    };
    let compiler = Compiler::new().differentiate(pass).evaluation(false).effort(0.0);
    let model = network(reads).dim("batch", (ROWS / ranks / micro_batches) as u64);
    let what = format!("{reads:?}, {ranks} ranks, {}, {micro_batches} micro-batches", level.name());
    compiler.ranks(ranks, level).compile(&model).unwrap_or_else(|e| panic!("{what}: {e}"))
}

#[test]
fn every_row_is_dropped_as_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data.npz");
    write_data(&data);
    let options = |seed| TrainOptions {
        data: vec![data.clone()],
        set: vec![("lr".into(), "0.5".into())],
        length: Length::Steps(STEPS as u64),
        seed: Some(seed),
        threads: 1,
        ..TrainOptions::default()
    };
    // By four ranks with four micro-batches each, a micro-batch is one row, and six elements cannot be drawn by themselves: they
    // are drawn before the first round, which a mean can be taken of.
    let cases = [
        (Reads::Layer, 2, vec![1, 2, 4]),
        (Reads::Layer, 4, vec![1, 2]),
        (Reads::Mean, 2, vec![1]),
        (Reads::Mean, 4, vec![1, 4]),
        (Reads::Attention, 2, vec![1, 2]),
        (Reads::Attention, 4, vec![1, 2]),
    ];
    for (reads, ranks, all_micro_batches) in cases {
        let whole = compiled(reads, 1, Level::None, 1);
        let one = trained(&whole, 1, || options(7));
        let other = trained(&whole, 1, || options(8));
        assert!(one.losses[0] != other.losses[0], "another seed drops other elements");
        for micro_batches in all_micro_batches {
            let mut bits: Option<Trained> = None;
            for level in Level::ALL {
                let what =
                    format!("{reads:?}, {ranks} ranks, {}, {micro_batches} rounds", level.name());
                let artifact = compiled(reads, ranks, level, micro_batches);
                let g = &artifact.targets[0].graph;
                let drops = |node: &Node| match &node.op {
                    Op::Attention { spec } => spec.dropout.is_some(),
                    _ => false,
                };
                assert_eq!(g.nodes.values().any(drops), reads == Reads::Attention, "{what}");
                let rounds = artifact.targets[0].rounds.as_ref().map_or(1, |r| r.count as usize);
                assert_eq!(rounds, micro_batches, "{what}");
                let made = trained(&artifact, ranks, || options(7));
                assert_eq!(made.losses.len(), STEPS, "{what}");
                assert_close(&made, &one, &what);
                assert_eq!(*bits.get_or_insert_with(|| made.clone()), made, "{what}");
                assert_eq!(trained(&artifact, ranks, || options(7)), made, "{what}, once more");
            }
        }
    }
}
