//! Gradients of ONNX Runtime's domain against differences of what they are gradients of, in double
//! precision; and its optimizers against their formulas.

use arenic::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType,
    tensor_proto::DataType, tensor_shape_proto, type_proto,
};
use arenic::onnx::{ImportOptions, import_bytes};
use arenic_ir::Graph;
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use prost::Message;
use std::collections::BTreeMap;

const MICROSOFT: &str = "com.microsoft";
/// Step of a difference, and how close a gradient must be to it.
const STEP: f64 = 1e-5;
const CLOSE: f64 = 1e-7;

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    let (name, r#type) = (Some(name.into()), Some(kind as i32));
    AttributeProto { name, r#type, ..AttributeProto::default() }
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { i: Some(i), ..attribute(name, AttributeType::Int) }
}

fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { f: Some(f), ..attribute(name, AttributeType::Float) }
}

fn ints(name: &str, list: &[i64]) -> AttributeProto {
    AttributeProto { ints: list.to_vec(), ..attribute(name, AttributeType::Ints) }
}

fn word(name: &str, s: &str) -> AttributeProto {
    AttributeProto { s: Some(s.into()), ..attribute(name, AttributeType::String) }
}

fn node(op: &str, inputs: &str, outputs: &str, attribute: &[AttributeProto]) -> NodeProto {
    let (domain, op) = op.split_once(':').unwrap_or(("", op));
    let names = |all: &str| -> Vec<String> {
        let all = all.trim();
        if all.is_empty() {
            return Vec::new();
        }
        all.split(' ').map(|n| if n == "_" { String::new() } else { n.into() }).collect()
    };
    NodeProto {
        op_type: Some(op.into()),
        domain: Some(if domain == "ms" { MICROSOFT } else { domain }.into()),
        input: names(inputs),
        output: names(outputs),
        attribute: attribute.to_vec(),
        ..NodeProto::default()
    }
}

/// A model with the nodes forward (to `y`) and backward (from `dy`).
struct Case {
    nodes: Vec<NodeProto>,
    /// Floats that are fed, by name; `dy` among them.
    floats: BTreeMap<String, (Vec<i64>, Vec<f64>)>,
    /// Integers that are constants.
    constants: Vec<TensorProto>,
}

fn case(nodes: Vec<NodeProto>) -> Case {
    Case { nodes, floats: BTreeMap::new(), constants: Vec::new() }
}

impl Case {
    /// Feeds numbers around zero, none of them equal.
    fn fed(mut self, name: &str, shape: &[i64]) -> Case {
        let seed = name.bytes().map(usize::from).sum::<usize>();
        let number = |i: usize| ((i * 7919 + seed * 31) % 1009) as f64 / 500.0 - 1.003;
        let count = shape.iter().product::<i64>() as usize;
        self.floats.insert(name.into(), (shape.to_vec(), (0..count).map(number).collect()));
        self
    }

    fn constant(mut self, name: &str, shape: &[i64], list: &[i64]) -> Case {
        self.constants.push(TensorProto {
            name: Some(name.into()),
            dims: shape.to_vec(),
            data_type: Some(DataType::Int64 as i32),
            int64_data: list.to_vec(),
            ..TensorProto::default()
        });
        self
    }

    fn truths(mut self, name: &str, shape: &[i64], list: &[bool]) -> Case {
        self.constants.push(TensorProto {
            name: Some(name.into()),
            dims: shape.to_vec(),
            data_type: Some(DataType::Bool as i32),
            int32_data: list.iter().map(|&b| b.into()).collect(),
            ..TensorProto::default()
        });
        self
    }

    fn graph(&self, outputs: &[String]) -> Graph {
        use tensor_shape_proto::{Dimension, dimension::Value};
        let info = |name: &str, shape: Option<&Vec<i64>>| {
            let dim = |&d: &i64| Dimension { denotation: None, value: Some(Value::DimValue(d)) };
            let tensor = |shape: &Vec<i64>| type_proto::Tensor {
                elem_type: Some(DataType::Double as i32),
                shape: Some(TensorShapeProto { dim: shape.iter().map(dim).collect() }),
            };
            ValueInfoProto {
                name: Some(name.into()),
                r#type: shape.map(|s| TypeProto {
                    value: Some(type_proto::Value::TensorType(tensor(s))),
                    ..TypeProto::default()
                }),
                ..ValueInfoProto::default()
            }
        };
        let import = |(domain, version): (&str, i64)| OperatorSetIdProto {
            domain: Some(domain.into()),
            version: Some(version),
        };
        let model = ModelProto {
            opset_import: [("", 17), (MICROSOFT, 1)].map(import).to_vec(),
            graph: Some(GraphProto {
                name: Some("case".into()),
                node: self.nodes.clone(),
                initializer: self.constants.clone(),
                input: self.floats.iter().map(|(n, (s, _))| info(n, Some(s))).collect(),
                output: outputs.iter().map(|n| info(n, None)).collect(),
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        };
        let bytes = model.encode_to_vec().into();
        import_bytes(bytes, None, &ImportOptions::default()).unwrap().graph
    }

    /// Checks the gradients of what is listed, each called `d` and the name.
    fn holds(mut self, what: &str, of: &[&str]) {
        let gradients: Vec<String> = of.iter().map(|n| format!("d{n}")).collect();
        let graph = self.graph(&gradients);
        let found = run(&graph, &self.floats);
        let forward = self.graph(&["y".into()]);
        let dy = self.floats["dy"].1.clone();
        let mut count = 0;
        for (name, gradient) in of.iter().zip(&found) {
            assert_eq!(gradient.len(), self.floats[*name].1.len(), "{what}: {name}");
            assert!(gradient.iter().any(|g| *g != 0.0), "{what}: {name} is zero");
            for (i, found) in gradient.iter().enumerate() {
                let x = self.floats[*name].1[i];
                let mut at = |offset: f64| {
                    self.floats.get_mut(*name).unwrap().1[i] = x + offset;
                    let y = run(&forward, &self.floats).remove(0);
                    y.iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>()
                };
                let slope = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                at(0.0);
                let off = (slope - found).abs();
                assert!(
                    off <= CLOSE * slope.abs().max(1.0),
                    "{what}: d{name}[{i}] is {found} not {slope}"
                );
                count += 1;
            }
        }
        assert!(count > 3, "{what}");
    }
}

/// Outputs of one step.
fn run(g: &Graph, floats: &BTreeMap<String, (Vec<i64>, Vec<f64>)>) -> Vec<Vec<f64>> {
    let mut reference = Reference::new(g).unwrap();
    for (v, data) in g.consts() {
        reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
    }
    for v in g.inputs() {
        let bytes: Vec<u8> =
            floats[&g.values[v].name].1.iter().flat_map(|x| x.to_le_bytes()).collect();
        reference.value_mut(v).unwrap().copy_from_slice(&bytes);
    }
    reference.step(Draw { seed: 1, step: 0, round: 0 }).unwrap();
    let numbers = |bytes: &[u8]| -> Vec<f64> {
        bytes.chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect()
    };
    g.outputs.iter().map(|o| numbers(reference.value(o.value))).collect()
}

#[test]
fn activations() {
    let elementwise = |forward: &str, backward: &str, operands: &str, a: &[AttributeProto]| {
        case(vec![node(forward, "x", "y", a), node(backward, operands, "dx", a)])
            .fed("x", &[3, 4])
            .fed("dy", &[3, 4])
            .holds(forward, &["x"]);
    };
    elementwise("Tanh", "ms:TanhGrad", "dy y", &[]);
    elementwise("Sigmoid", "ms:SigmoidGrad", "dy y", &[]);
    elementwise("Relu", "ms:ReluGrad", "dy y", &[]);
    elementwise("ms:Gelu", "ms:GeluGrad", "dy x", &[]);
    elementwise("ms:FastGelu", "ms:FastGeluGrad", "dy x", &[]);
    elementwise("ms:QuickGelu", "ms:QuickGeluGrad", "dy x", &[float("alpha", 1.5)]);
    elementwise("Softmax", "ms:SoftmaxGrad_13", "dy y", &[int("axis", 0)]);
    elementwise("LogSoftmax", "ms:LogSoftmaxGrad_13", "dy y", &[int("axis", -1)]);
    for (forward, backward) in
        [("ms:BiasGelu", "ms:BiasGeluGrad_dX"), ("ms:FastGelu", "ms:BiasFastGeluGrad_dX")]
    {
        case(vec![node(forward, "x b", "y", &[]), node(backward, "dy x b", "dx", &[])])
            .fed("x", &[3, 4])
            .fed("b", &[4])
            .fed("dy", &[3, 4])
            .holds(forward, &["x"]);
    }
}

#[test]
fn cross_entropies() {
    let [forward, backward] = ["SoftmaxCrossEntropyLoss", "ms:SoftmaxCrossEntropyLossGrad"];
    for (reduction, dy) in [("mean", &[][..]), ("sum", &[]), ("none", &[5])] {
        for ignored in [None, Some(2)] {
            for weights in ["", " w"] {
                let mut a = vec![word("reduction", reduction)];
                a.extend(ignored.map(|i| int("ignore_index", i)));
                case(vec![
                    node(forward, &format!("x labels{weights}"), "y log", &a),
                    node(backward, &format!("dy log labels{weights}"), "dx", &a),
                ])
                .fed("x", &[5, 4])
                .fed("w", &[4])
                .fed("dy", dy)
                .constant("labels", &[5], &[1, 2, 0, 3, 2])
                .holds(&format!("{reduction} {ignored:?}{weights}"), &["x"]);
            }
        }
    }
    // Classes on the middle axis, and the label that is ignored as an operand.
    let internal = "ms:SoftmaxCrossEntropyLossInternal";
    case(vec![
        node(internal, "x labels _ ignored", "y log", &[]),
        node(&format!("{internal}Grad"), "dy log labels _ ignored", "dx", &[]),
    ])
    .fed("x", &[2, 3, 2])
    .fed("dy", &[])
    .constant("labels", &[2, 2], &[1, 2, 0, -1])
    .constant("ignored", &[], &[-1])
    .holds(internal, &["x"]);
}

#[test]
fn normalisations() {
    let a = [int("axis", 1), float("epsilon", 1e-2)];
    // ONNX gives statistics in single precision, so these are made by hand.
    let by_hand = vec![
        node("ReduceMean", "x", "mean", &[ints("axes", &[1, 2])]),
        node("Sub", "x mean", "centred", &[]),
        node("Mul", "centred centred", "square", &[]),
        node("ReduceMean", "square", "var", &[ints("axes", &[1, 2])]),
        node("Constant", "", "e", &[float("value_float", 1e-2)]),
        node("CastLike", "e x", "epsilon", &[]),
        node("Add", "var epsilon", "sum", &[]),
        node("Sqrt", "sum", "root", &[]),
        node("Reciprocal", "root", "inverse", &[]),
        node("LayerNormalization", "x s b", "y", &a),
        node("ms:LayerNormalizationGrad", "dy x s mean inverse", "dx ds db", &a),
    ];
    case(by_hand)
        .fed("x", &[3, 2, 4])
        .fed("s", &[2, 4])
        .fed("b", &[2, 4])
        .fed("dy", &[3, 2, 4])
        .holds("LayerNormalizationGrad", &["x", "s", "b"]);
    let a = [float("epsilon", 1e-2), float("momentum", 0.9), int("training_mode", 1)];
    case(vec![
        node("ms:BatchNormInternal", "x s b m v", "y _ _ mean inverse", &a),
        node("ms:BatchNormalizationGrad", "dy x s mean inverse", "dx ds db", &a[..1]),
    ])
    .fed("x", &[3, 2, 4])
    .fed("s", &[2])
    .fed("b", &[2])
    .fed("m", &[2])
    .fed("v", &[2])
    .fed("dy", &[3, 2, 4])
    .holds("BatchNormalizationGrad", &["x", "s", "b"]);
}

/// Gradients of all that an LSTM gives: states of every step, the last state and the last cells.
#[test]
fn recurrences() {
    let a = [int("hidden_size", 2)];
    for (steps, peepholes) in [(3, ""), (3, " p"), (1, "")] {
        let rest = if peepholes.is_empty() { " _" } else { peepholes };
        let gradients = "dx dw dr db dh dc dp";
        let backward = format!("x w r b _ h c{rest} states cells gates dstates dlast dcell");
        let mut given = case(vec![
            node(
                "ms:LSTMTraining",
                &format!("x w r b _ h c{peepholes}"),
                "states last cell cells gates",
                &a,
            ),
            node("Unsqueeze", "last zero", "a", &[]),
            node("Unsqueeze", "cell zero", "b2", &[]),
            node("Concat", "states a b2", "y", &[int("axis", 0)]),
            node("Split", "dy sizes", "dstates d1 d2", &[int("axis", 0)]),
            node("Squeeze", "d1 zero", "dlast", &[]),
            node("Squeeze", "d2 zero", "dcell", &[]),
            node("ms:LSTMGrad", &backward, gradients, &a),
        ])
        .fed("x", &[steps, 2, 3])
        .fed("w", &[1, 8, 3])
        .fed("r", &[1, 8, 2])
        .fed("b", &[1, 16])
        .fed("h", &[1, 2, 2])
        .fed("c", &[1, 2, 2])
        .fed("dy", &[steps + 2, 1, 2, 2])
        .constant("zero", &[1], &[0])
        .constant("sizes", &[3], &[steps, 1, 1]);
        let mut of = vec!["x", "w", "r", "b", "h", "c"];
        if !peepholes.is_empty() {
            given = given.fed("p", &[1, 6]);
            of.push("p");
        }
        given.holds(&format!("LSTMGrad of {steps} steps{peepholes}"), &of);
    }
    // Without a bias, initial states and gradients of the last step.
    case(vec![
        node("ms:LSTMTraining", "x w r", "y _ _ cells gates", &a),
        node("ms:LSTMGrad", "x w r _ _ _ _ _ y cells gates dy", "dx dw dr", &a),
    ])
    .fed("x", &[3, 2, 3])
    .fed("w", &[1, 8, 3])
    .fed("r", &[1, 8, 2])
    .fed("dy", &[3, 1, 2, 2])
    .holds("LSTMGrad without a bias", &["x", "w", "r"]);
}

#[test]
fn a_window_that_pads_alone_would_fill() {
    let a = [ints("strides", &[2]), ints("pads", &[1, 1])];
    case(vec![node("Conv", "x w b", "y", &a), node("ms:ConvGrad", "dy x w", "dx dw db", &a)])
        .fed("x", &[1, 2, 1])
        .fed("w", &[3, 2, 2])
        .fed("b", &[3])
        .fed("dy", &[1, 3, 1])
        .holds("ConvGrad", &["x", "w", "b"]);
}

#[test]
fn windows() {
    for (stride, dilation, group) in [(1, 1, 1), (2, 1, 2), (3, 2, 1)] {
        let a = [
            ints("strides", &[stride, stride]),
            ints("dilations", &[dilation, dilation]),
            ints("pads", &[1, 0, 0, 1]),
            int("group", group),
        ];
        let extent = |n: i64, k: i64| (n + 1 - (k - 1) * dilation - 1) / stride + 1;
        case(vec![node("Conv", "x w b", "y", &a), node("ms:ConvGrad", "dy x w", "dx dw db", &a)])
            .fed("x", &[2, 2, 6, 7])
            .fed("w", &[4, 2 / group, 3, 2])
            .fed("b", &[4])
            .fed("dy", &[2, 4, extent(6, 3), extent(7, 2)])
            .holds("ConvGrad", &["x", "w", "b"]);
        let wide = |n: i64, k: i64| (n - 1) * stride + (k - 1) * dilation;
        case(vec![
            node("ConvTranspose", "x w b", "y", &a),
            node("ms:ConvTransposeGrad", "dy x w", "dx dw db", &a),
        ])
        .fed("x", &[2, 4, 3, 2])
        .fed("w", &[4, 2 / group, 3, 2])
        .fed("b", &[2])
        .fed("dy", &[2, 2, wide(3, 3), wide(2, 2)])
        .holds("ConvTransposeGrad", &["x", "w", "b"]);
    }
    let a = [ints("kernel_shape", &[3, 2]), ints("strides", &[2, 1]), ints("pads", &[1, 0, 1, 1])];
    case(vec![node("MaxPool", "x", "y indices", &a), node("MaxPoolGrad", "dy indices", "dx", &a)])
        .fed("x", &[2, 2, 6, 4])
        .fed("dy", &[2, 2, 3, 4])
        .holds("MaxPoolGrad", &["x"]);
    for counted in [0, 1] {
        let a = [&a[..], &[int("count_include_pad", counted)]].concat();
        case(vec![node("AveragePool", "x", "y", &a), node("AveragePoolGrad", "dy", "dx", &a)])
            .fed("x", &[2, 2, 5, 4])
            .fed("dy", &[2, 2, 3, 4])
            .holds("AveragePoolGrad", &["x"]);
    }
}

#[test]
fn moved_elements() {
    for axis in [0, 1, 2] {
        let a = [int("axis", axis)];
        let mut dy = vec![4, 3, 5];
        dy.splice(axis as usize..=axis as usize, [2, 3]);
        case(vec![
            node("Gather", "x indices", "y", &a),
            node("Shape", "x", "shape", &[]),
            node("ms:GatherGrad", "shape indices dy", "dx", &a),
        ])
        .fed("x", &[4, 3, 5])
        .fed("dy", &dy)
        .constant("indices", &[2, 3], &[0, 2, 0, -1, 1, 2])
        .holds("GatherGrad", &["x"]);
    }
    let a = [int("axis", 1)];
    case(vec![
        node("GatherElements", "x indices", "y", &a),
        node("Shape", "x", "shape", &[]),
        node("ms:GatherElementsGrad", "dy shape indices", "dx", &a),
    ])
    .fed("x", &[2, 4])
    .fed("dy", &[2, 3])
    .constant("indices", &[2, 3], &[0, 2, 0, 3, 1, 2])
    .holds("GatherElementsGrad", &["x"]);
    case(vec![
        node("Slice", "x starts ends axes", "y", &[]),
        node("Shape", "x", "shape", &[]),
        node("ms:SliceGrad", "dy shape starts ends axes", "dx", &[]),
    ])
    .fed("x", &[4, 3, 5])
    .fed("dy", &[2, 3, 2])
    .constant("starts", &[2], &[1, -3])
    .constant("ends", &[2], &[3, -1])
    .constant("axes", &[2], &[0, 2])
    .holds("SliceGrad", &["x"]);
}

#[test]
fn products_and_factors() {
    for (trans_a, trans_b, a, b) in
        [(0, 0, [2, 3, 4], [2, 4, 5]), (1, 0, [2, 4, 3], [2, 4, 5]), (0, 1, [2, 3, 4], [2, 5, 4])]
    {
        // The gradient of the first operand, by the operator itself: dy b', or its transpose.
        let scaled = [float("alpha", 0.5), int("transA", trans_a), int("transB", trans_b)];
        let backward = match trans_a {
            0 => node(
                "ms:FusedMatMul",
                "dy b",
                "dx",
                &[float("alpha", 0.5), int("transB", 1 - trans_b)],
            ),
            _ => node("ms:FusedMatMul", "b dy", "dx", &[float("alpha", 0.5), int("transB", 1)]),
        };
        case(vec![node("ms:FusedMatMul", "x b", "y", &scaled), backward])
            .fed("x", &a)
            .fed("b", &b)
            .fed("dy", &[2, 3, 5])
            .holds("FusedMatMul", &["x"]);
    }
    for (down, factor) in [(1, "Div"), (0, "Mul")] {
        case(vec![
            node("CastLike", "n x", "number", &[]),
            node(factor, "x number", "y", &[]),
            node("ms:Scale", "dy n", "dx", &[int("scale_down", down)]),
        ])
        .fed("x", &[2, 3])
        .fed("dy", &[2, 3])
        .constant("n", &[1], &[6])
        .holds("Scale", &["x"]);
    }
    // The mask is given, so that the same elements are dropped.
    case(vec![
        node("CastLike", "mask x", "kept", &[]),
        node("Mul", "x kept", "masked", &[]),
        node("Constant", "", "three_quarters", &[float("value_float", 0.75)]),
        node("CastLike", "three_quarters x", "rest", &[]),
        node("Div", "masked rest", "y", &[]),
        node("Constant", "", "ratio", &[float("value_float", 0.25)]),
        node("ms:DropoutGrad", "dy mask ratio", "dx", &[]),
    ])
    .fed("x", &[2, 3])
    .fed("dy", &[2, 3])
    .truths("mask", &[2, 3], &[true, false, true, true, false, true])
    .holds("DropoutGrad", &["x"]);
    case(vec![
        node("ms:ConcatTraining", "x b", "y lengths", &[int("axis", 1)]),
        node("ms:SplitTraining", "dy lengths", "dx db", &[int("axis", 1)]),
    ])
    .fed("x", &[2, 3])
    .fed("b", &[2, 1])
    .fed("dy", &[2, 4])
    .holds("SplitTraining", &["x", "b"]);
    case(vec![
        node("Expand", "x shape", "y", &[]),
        node("ms:ReduceSumTraining", "dy axes", "dx", &[int("keepdims", 1)]),
    ])
    .fed("x", &[2, 1, 3])
    .fed("dy", &[2, 4, 3])
    .constant("shape", &[3], &[2, 4, 3])
    .constant("axes", &[1], &[1])
    .holds("ReduceSumTraining", &["x"]);
}

/// In mode 1 the epsilon is beside the uncorrected root and the decay comes last, in mode 0 first.
#[test]
fn optimizers() {
    let (alpha, beta, epsilon, decay) = (0.9f32, 0.99f32, 1e-3f32, 0.1f32);
    for (mode, correct) in [(0, 1), (0, 0), (1, 1), (1, 0)] {
        let a = [
            float("alpha", alpha),
            float("beta", beta),
            float("epsilon", epsilon),
            float("weight_decay", decay),
            int("adam_mode", mode),
            int("correct_bias", correct),
        ];
        let nodes = vec![
            node("Mul", "h h", "v", &[]),
            node("ms:AdamWOptimizer", "r t p g m v", "p2 m2 v2", &a),
            node("ms:SGDOptimizerV2", "r p g", "p3", &[]),
        ];
        let mut case = case(nodes).fed("r", &[]).constant("t", &[], &[3]);
        for name in ["p", "g", "m", "h"] {
            case = case.fed(name, &[6]);
        }
        let outputs = ["p2", "m2", "v2", "p3"].map(String::from);
        let found = run(&case.graph(&outputs), &case.floats);
        let of = |name: &str| &case.floats[name].1;
        let rate = of("r")[0];
        let (alpha, beta) = (f64::from(alpha), f64::from(beta));
        let (epsilon, decay) = (f64::from(epsilon), f64::from(decay));
        let corrected = |factor: f64| if correct == 1 { 1.0 - factor.powi(3) } else { 1.0 };
        let (first, second) = (corrected(alpha), corrected(beta));
        for i in 0..6 {
            let (p, g) = (of("p")[i], of("g")[i]);
            let m = alpha * of("m")[i] + (1.0 - alpha) * g;
            let v = beta * of("h")[i] * of("h")[i] + (1.0 - beta) * g * g;
            let updated = match mode {
                0 => {
                    let below = first * ((v / second).sqrt() + epsilon);
                    p - p * rate * decay - rate * m / below
                }
                _ => {
                    let p = p - rate * second.sqrt() / first * m / (v.sqrt() + epsilon);
                    p - rate * decay * p
                }
            };
            for (found, formula) in found.iter().zip([updated, m, v, p - rate * g]) {
                let off = (found[i] - formula).abs();
                assert!(off <= 1e-6, "mode {mode} {correct}: {} is not {formula}", found[i]);
            }
        }
    }
}
