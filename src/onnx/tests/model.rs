//! Builders of small models.

use crate::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType,
    tensor_proto::DataType, tensor_shape_proto, type_proto,
};
use crate::onnx::{ImportError, ImportOptions, Imported, import_bytes};
use arenic_ir::{Graph, Op, ValueId};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use prost::Message;

/// A model of this opset without anything in it.
pub(super) fn model(opset: i64) -> ModelProto {
    let import = |domain: &str, version| OperatorSetIdProto {
        domain: Some(domain.into()),
        version: Some(version),
    };
    ModelProto {
        opset_import: vec![import("", opset), import("ai.onnx.preview.training", 1)],
        graph: Some(GraphProto { name: Some("g".into()), ..GraphProto::default() }),
        ..ModelProto::default()
    }
}

/// A node; its name is `n_` and its first result's name.
pub(super) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        name: Some(format!("n_{}", outputs.first().unwrap_or(&""))),
        input: inputs.iter().map(|&s| s.into()).collect(),
        output: outputs.iter().map(|&s| s.into()).collect(),
        ..NodeProto::default()
    }
}

/// Methods that add to a message and give it back.
pub(super) trait Add: Sized {
    fn graph(&mut self) -> &mut GraphProto;

    fn node(mut self, node: NodeProto) -> Self {
        self.graph().node.push(node);
        self
    }

    fn input(mut self, name: &str, ty: DataType, dims: &[Dim]) -> Self {
        self.graph().input.push(info(name, ty, dims));
        self
    }

    fn output(mut self, name: &str) -> Self {
        let info = ValueInfoProto { name: Some(name.into()), ..ValueInfoProto::default() };
        self.graph().output.push(info);
        self
    }

    fn initializer(mut self, tensor: TensorProto) -> Self {
        self.graph().initializer.push(tensor);
        self
    }
}

impl Add for ModelProto {
    fn graph(&mut self) -> &mut GraphProto {
        self.graph.as_mut().unwrap()
    }
}

/// An extent: a number or a name.
pub(super) enum Dim {
    N(i64),
    S(&'static str),
    Open,
}

/// Fixed extents.
pub(super) fn fixed<const N: usize>(dims: [i64; N]) -> [Dim; N] {
    dims.map(Dim::N)
}

pub(super) fn info(name: &str, ty: DataType, dims: &[Dim]) -> ValueInfoProto {
    use tensor_shape_proto::{Dimension, dimension::Value};
    let dim = dims
        .iter()
        .map(|d| Dimension {
            denotation: None,
            value: match d {
                Dim::N(n) => Some(Value::DimValue(*n)),
                Dim::S(s) => Some(Value::DimParam((*s).into())),
                Dim::Open => None,
            },
        })
        .collect();
    let tensor =
        type_proto::Tensor { elem_type: Some(ty as i32), shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(tensor)),
            ..TypeProto::default()
        }),
        ..ValueInfoProto::default()
    }
}

/// A tensor of i64.
pub(super) fn ints(name: &str, dims: &[i64], data: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(DataType::Int64 as i32),
        int64_data: data.to_vec(),
        ..TensorProto::default()
    }
}

/// A list of i64.
pub(super) fn list(name: &str, data: &[i64]) -> TensorProto {
    ints(name, &[data.len() as i64], data)
}

/// A tensor of f32, raw.
pub(super) fn floats(name: &str, dims: &[i64], data: &[f32]) -> TensorProto {
    let raw: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(DataType::Float as i32),
        raw_data: Some(raw.into()),
        ..TensorProto::default()
    }
}

/// A value of an attribute.
pub(super) enum Attr<'a> {
    I(i64),
    F(f32),
    S(&'a str),
    Is(&'a [i64]),
    Ss(&'a [&'a str]),
    T(Box<TensorProto>),
    G,
}

/// Adds an attribute to a node.
pub(super) fn with(mut node: NodeProto, name: &str, value: Attr) -> NodeProto {
    let mut a = AttributeProto { name: Some(name.into()), ..AttributeProto::default() };
    let kind = match value {
        Attr::I(i) => {
            a.i = Some(i);
            AttributeType::Int
        }
        Attr::F(f) => {
            a.f = Some(f);
            AttributeType::Float
        }
        Attr::S(s) => {
            a.s = Some(s.as_bytes().to_vec());
            AttributeType::String
        }
        Attr::Is(list) => {
            a.ints = list.to_vec();
            AttributeType::Ints
        }
        Attr::Ss(list) => {
            a.strings = list.iter().map(|s| s.as_bytes().to_vec()).collect();
            AttributeType::Strings
        }
        Attr::T(t) => {
            a.t = Some(*t);
            AttributeType::Tensor
        }
        Attr::G => {
            a.g = Some(GraphProto::default());
            AttributeType::Graph
        }
    };
    a.r#type = Some(kind as i32);
    node.attribute.push(a);
    node
}

pub(super) fn import_with(
    model: &ModelProto,
    options: &ImportOptions,
) -> Result<Imported, ImportError> {
    import_bytes(model.encode_to_vec().into(), None, options)
}

pub(super) fn import(model: &ModelProto) -> Result<Imported, ImportError> {
    import_with(model, &ImportOptions::default())
}

/// What an import that must fail says.
pub(super) fn failure(model: &ModelProto) -> String {
    import(model).unwrap_err().to_string()
}

/// The value of an output.
pub(super) fn output(g: &Graph, name: &str) -> ValueId {
    g.outputs.iter().find(|o| o.name == name).unwrap().value
}

/// The operators in order.
pub(super) fn ops(g: &Graph) -> Vec<&Op> {
    g.nodes.values().map(|n| &n.op).collect()
}

/// A model of one node with one f32 operand `x`, one result `y`, and initializers.
pub(super) fn single(
    opset: i64,
    x: &[i64],
    node: NodeProto,
    initializers: &[TensorProto],
) -> ModelProto {
    let dims: Vec<Dim> = x.iter().map(|&d| Dim::N(d)).collect();
    let mut m = model(opset).input("x", DataType::Float, &dims).node(node).output("y");
    m.graph().initializer.extend_from_slice(initializers);
    m
}

/// The shape of the result `y` and the operators that make it.
pub(super) fn imported(m: &ModelProto) -> (Vec<usize>, Vec<Op>) {
    let g = import(m).unwrap().graph;
    (g.ty(output(&g, "y")).shape.clone(), ops(&g).into_iter().cloned().collect())
}

/// The elements of a tensor of f32.
pub(super) fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// What a graph computes of inputs, by name.
pub(super) fn computed(g: &Graph, inputs: &[(&str, &[f32])], name: &str) -> Vec<f32> {
    let mut reference = Reference::new(g).unwrap();
    for (v, data) in g.consts() {
        reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
    }
    for v in g.inputs() {
        let (_, data) = inputs.iter().find(|(n, _)| *n == g.values[v].name).unwrap();
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        reference.value_mut(v).unwrap().copy_from_slice(&bytes);
    }
    reference.step(Draw::default()).unwrap();
    floats_of(reference.value(output(g, name)))
}

/// ONNX's `Gradient` of `y` by `xs`.
pub(super) fn gradient(
    y: &str,
    xs: &[&str],
    zs: &[&str],
    at: &[&str],
    results: &[&str],
) -> NodeProto {
    let mut n = node("Gradient", at, results);
    n.domain = Some("ai.onnx.preview.training".into());
    let n = with(with(n, "y", Attr::S(y)), "xs", Attr::Ss(xs));
    if zs.is_empty() { n } else { with(n, "zs", Attr::Ss(zs)) }
}
