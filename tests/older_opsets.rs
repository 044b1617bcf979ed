//! Operators whose definition changed after opset 13, in their older and newer forms,
//! compiled and run. What an operator is called with decides; results agree where the
//! definitions do.

mod planned;

use arenic::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType,
    tensor_proto::DataType, tensor_shape_proto, type_proto,
};
use arenic_backends::CPU;
use arenic_ir::{DType, TensorType};
use planned::{Planned, Tensors};
use prost::Message;

/// A tensor of a test.
#[derive(Clone)]
struct T {
    code: DataType,
    ty: TensorType,
    bytes: Vec<u8>,
}

impl T {
    fn new<X: Copy, const N: usize>(
        code: DataType,
        dtype: DType,
        shape: &[usize],
        data: &[X],
        bytes: impl Fn(X) -> [u8; N],
    ) -> T {
        let ty = TensorType::new(dtype, shape);
        assert_eq!(ty.elements(), data.len());
        T { code, ty, bytes: data.iter().flat_map(|&x| bytes(x)).collect() }
    }

    fn stored(&self, name: &str) -> TensorProto {
        TensorProto {
            name: Some(name.into()),
            dims: self.ty.shape.iter().map(|&d| d as i64).collect(),
            data_type: Some(self.code as i32),
            raw_data: Some(self.bytes.clone().into()),
            ..TensorProto::default()
        }
    }

    fn declared(&self, name: &str) -> ValueInfoProto {
        use tensor_shape_proto::{Dimension, dimension::Value};
        let size = |&d: &usize| Dimension {
            value: Some(Value::DimValue(d as i64)),
            ..Dimension::default()
        };
        let tensor = type_proto::Tensor {
            elem_type: Some(self.code as i32),
            shape: Some(TensorShapeProto { dim: self.ty.shape.iter().map(size).collect() }),
        };
        ValueInfoProto {
            name: Some(name.into()),
            r#type: Some(TypeProto {
                value: Some(type_proto::Value::TensorType(tensor)),
                ..TypeProto::default()
            }),
            ..ValueInfoProto::default()
        }
    }
}

fn f(shape: &[usize], data: &[f32]) -> T {
    T::new(DataType::Float, DType::F32, shape, data, f32::to_le_bytes)
}

fn i(shape: &[usize], data: &[i64]) -> T {
    T::new(DataType::Int64, DType::I64, shape, data, i64::to_le_bytes)
}

fn b(shape: &[usize], data: &[bool]) -> T {
    T::new(DataType::Bool, DType::Bool, shape, data, |x| [u8::from(x)])
}

/// A list of integers.
fn list(data: &[i64]) -> T {
    i(&[data.len()], data)
}

/// An attribute's value.
#[derive(Clone, Copy)]
enum A<'a> {
    I(i64),
    F(f32),
    S(&'a str),
    Is(&'a [i64]),
}

/// One operator in one form.
struct Form<'a> {
    op: &'a str,
    attributes: &'a [(&'a str, A<'a>)],
    /// What is fed, in order; `None` for an operand that is left out.
    inputs: &'a [Option<T>],
    /// Which operands are initializers instead.
    stored: &'a [usize],
}

impl Form<'_> {
    fn attributes(&self) -> Vec<AttributeProto> {
        let attribute = |&(name, value): &(&str, A)| {
            let mut a = AttributeProto { name: Some(name.into()), ..AttributeProto::default() };
            let kind = match value {
                A::I(i) => {
                    a.i = Some(i);
                    AttributeType::Int
                }
                A::F(f) => {
                    a.f = Some(f);
                    AttributeType::Float
                }
                A::S(s) => {
                    a.s = Some(s.as_bytes().to_vec());
                    AttributeType::String
                }
                A::Is(list) => {
                    a.ints = list.to_vec();
                    AttributeType::Ints
                }
            };
            a.r#type = Some(kind as i32);
            a
        };
        self.attributes.iter().map(attribute).collect()
    }

    fn model(&self, opset: i64, results: usize) -> ModelProto {
        let name = |i: usize| format!("x{i}");
        let given = |i: usize| self.inputs[i].as_ref().map(|t| (i, t));
        let operands = (0..self.inputs.len()).filter_map(given);
        let (stored, fed): (Vec<_>, Vec<_>) = operands.partition(|(i, _)| self.stored.contains(i));
        let outputs: Vec<String> = (0..results).map(|i| format!("y{i}")).collect();
        let node = NodeProto {
            op_type: Some(self.op.into()),
            input: (0..self.inputs.len())
                .map(|i| given(i).map_or(String::new(), |_| name(i)))
                .collect(),
            output: outputs.clone(),
            attribute: self.attributes(),
            ..NodeProto::default()
        };
        let output = |name: &String| ValueInfoProto {
            name: Some(name.clone()),
            ..ValueInfoProto::default()
        };
        ModelProto {
            opset_import: vec![OperatorSetIdProto {
                version: Some(opset),
                ..OperatorSetIdProto::default()
            }],
            graph: Some(GraphProto {
                node: vec![node],
                input: fed.iter().map(|(i, t)| t.declared(&name(*i))).collect(),
                initializer: stored.iter().map(|(i, t)| t.stored(&name(*i))).collect(),
                output: outputs.iter().map(output).collect(),
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        }
    }

    /// Runs the form under each of some opsets and compares all results.
    #[track_caller]
    fn gives(&self, opsets: impl IntoIterator<Item = i64>, expected: &[T]) {
        for opset in opsets {
            let model = self.model(opset, expected.len());
            let at = format!("{} in opset {opset}", self.op);
            let planned = Planned::new(CPU.target(), model.encode_to_vec().into(), Tensors::new())
                .unwrap_or_else(|e| panic!("{at}: {e}"));
            let feeds: Tensors = (0..self.inputs.len())
                .filter_map(|i| {
                    let t = self.inputs[i].as_ref()?;
                    Some((format!("x{i}"), (t.ty.clone(), t.bytes.clone())))
                })
                .collect();
            let results = planned.run(&feeds, 1).unwrap_or_else(|e| panic!("{at}: {e}"));
            for (k, (expected, (_, ty))) in expected.iter().zip(planned.outputs()).enumerate() {
                assert_eq!(*ty, expected.ty, "{at}: result {k}");
                equal(&at, ty.dtype, &results[0][k], &expected.bytes);
            }
        }
    }
}

#[track_caller]
fn equal(at: &str, dtype: DType, found: &[u8], expected: &[u8]) {
    if dtype != DType::F32 {
        assert_eq!(found, expected, "{at}");
        return;
    }
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
    };
    let (found, expected) = (floats(found), floats(expected));
    for (a, b) in found.iter().zip(&expected) {
        assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{at}: {found:?}, not {expected:?}");
    }
}

/// A form whose operands from the second on are initializers.
fn form<'a>(op: &'a str, attributes: &'a [(&'a str, A<'a>)], inputs: &'a [Option<T>]) -> Form<'a> {
    Form { op, attributes, inputs, stored: &[1, 2, 3] }
}

/// The newest opset of the pinned onnx.
const NEWEST: i64 = 28;

#[test]
fn reductions_had_their_axes_in_an_attribute() {
    let ln = f32::ln;
    let cases: [(&str, [f32; 2], f32); 10] = [
        ("ReduceL1", [6.0, 15.0], 21.0),
        ("ReduceL2", [14f32.sqrt(), 77f32.sqrt()], 91f32.sqrt()),
        ("ReduceLogSum", [ln(6.0), ln(15.0)], ln(21.0)),
        ("ReduceLogSumExp", [3.407_606, 6.407_606], 6.456_193_4),
        ("ReduceMax", [3.0, 6.0], 6.0),
        ("ReduceMean", [2.0, 5.0], 3.5),
        ("ReduceMin", [1.0, 4.0], 1.0),
        ("ReduceProd", [6.0, 120.0], 720.0),
        ("ReduceSum", [6.0, 15.0], 21.0),
        ("ReduceSumSquare", [14.0, 77.0], 91.0),
    ];
    let x = || Some(f(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    for (op, rows, all) in cases {
        // `ReduceSum` changed at once with opset 13, the others with 18.
        let (old, new) =
            if op == "ReduceSum" { (13..13, 13..=NEWEST) } else { (13..18, 18..=NEWEST) };
        let flat = [("axes", A::Is(&[-1])), ("keepdims", A::I(0))];
        form(op, &flat, &[x()]).gives(old.clone(), &[f(&[2], &rows)]);
        form(op, &flat[..1], &[x()]).gives(old.clone(), &[f(&[2, 1], &rows)]);
        form(op, &[], &[x()]).gives(old, &[f(&[1, 1], &[all])]);

        let axes = || Some(list(&[-1]));
        form(op, &flat[1..], &[x(), axes()]).gives(new.clone(), &[f(&[2], &rows)]);
        form(op, &[], &[x(), axes()]).gives(new.clone(), &[f(&[2, 1], &rows)]);
        form(op, &[], &[x()]).gives(new.clone(), &[f(&[1, 1], &[all])]);
        form(op, &[], &[x(), Some(list(&[]))]).gives(new.clone(), &[f(&[1, 1], &[all])]);
    }
    let noop = [("noop_with_empty_axes", A::I(1))];
    let same = f(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    form("ReduceSum", &noop, &[x()]).gives(13..=NEWEST, std::slice::from_ref(&same));
    form("ReduceMean", &noop, &[x()]).gives(18..=NEWEST, &[same]);
}

#[test]
fn reductions_took_more_types_over_time() {
    let x = i(&[2, 2], &[i64::MIN, 3, i64::MAX, -4]);
    let axes = [("axes", A::Is(&[1])), ("keepdims", A::I(0))];
    let result = [list(&[3, i64::MAX])];
    form("ReduceMax", &axes, &[Some(x.clone())]).gives([13, 17], &result);
    form("ReduceMax", &axes[1..], &[Some(x), Some(list(&[1]))]).gives([18, NEWEST], &result);
    let x = b(&[2, 2], &[true, false, true, true]);
    let results = [("ReduceMin", [false, true]), ("ReduceMax", [true, true])];
    for (op, result) in results {
        let inputs = [Some(x.clone()), Some(list(&[1]))];
        form(op, &axes[1..], &inputs).gives([20, NEWEST], &[b(&[2], &result)]);
    }
}

#[test]
fn splits_took_their_number_of_results_later() {
    let x = || Some(f(&[5], &[0.0, 1.0, 2.0, 3.0, 4.0]));
    let uneven = [f(&[3], &[0.0, 1.0, 2.0]), f(&[2], &[3.0, 4.0])];
    form("Split", &[], &[x(), Some(list(&[3, 2]))]).gives([13, 17, 18, NEWEST], &uneven);
    form("Split", &[("num_outputs", A::I(2))], &[x()]).gives([18, NEWEST], &uneven);
    let even = || Some(f(&[2, 2], &[0.0, 1.0, 2.0, 3.0]));
    let columns = [f(&[2, 1], &[0.0, 2.0]), f(&[2, 1], &[1.0, 3.0])];
    form("Split", &[("axis", A::I(-1))], &[even()]).gives([13, 17], &columns);
}

#[test]
fn reshapes_learnt_of_zero() {
    let x = || Some(f(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    let kept = [f(&[2, 3, 1], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])];
    form("Reshape", &[], &[x(), Some(list(&[0, -1, 1]))]).gives([13, 14, NEWEST], &kept);
    let empty = || Some(f(&[0, 3], &[]));
    form("Reshape", &[], &[empty(), Some(list(&[0, 7]))])
        .gives([13, 14, NEWEST], &[f(&[0, 7], &[])]);
    let allow = [("allowzero", A::I(1))];
    let inputs = [empty(), Some(list(&[3, 0]))];
    form("Reshape", &allow, &inputs).gives([14, NEWEST], &[f(&[3, 0], &[])]);
    let inputs = [Some(f(&[1, 2, 1], &[1.0, 2.0])), Some(list(&[-1]))];
    form("Squeeze", &[], &inputs).gives([13, 21, NEWEST], &[f(&[1, 2], &[1.0, 2.0])]);
    form("Squeeze", &[], &inputs[..1]).gives([13, 21, NEWEST], &[f(&[2], &[1.0, 2.0])]);
    let inputs = [Some(f(&[2], &[1.0, 2.0])), Some(list(&[-1, 0]))];
    form("Unsqueeze", &[], &inputs).gives([13, 21, NEWEST], &[f(&[1, 2, 1], &[1.0, 2.0])]);
}

#[test]
fn shapes_can_be_cut_since_15() {
    let x = || Some(f(&[2, 3, 1], &[0.0; 6]));
    form("Shape", &[], &[x()]).gives([13, 15, NEWEST], &[list(&[2, 3, 1])]);
    let cut = [("start", A::I(1)), ("end", A::I(-1))];
    form("Shape", &cut, &[x()]).gives([15, NEWEST], &[list(&[3])]);
}

#[test]
fn clips_and_softmaxes_are_those_of_13() {
    let x = || Some(f(&[4], &[-2.0, 0.5, 3.0, f32::INFINITY]));
    let bound = |v: f32| Some(f(&[], &[v]));
    let clip = |inputs: &[Option<T>], y: [f32; 4]| {
        form("Clip", &[], inputs).gives([13, NEWEST], &[f(&[4], &y)]);
    };
    clip(&[x(), bound(-1.0), bound(1.0)], [-1.0, 0.5, 1.0, 1.0]);
    clip(&[x(), None, bound(1.0)], [-2.0, 0.5, 1.0, 1.0]);
    clip(&[x(), bound(2.0), bound(1.0)], [1.0; 4]);
    let ints = [Some(list(&[-5, 5])), Some(i(&[], &[-1]))];
    form("Clip", &[], &ints).gives([13, NEWEST], &[list(&[-1, 5])]);

    // Before 13 all axes from `axis` on were one.
    let ln = [0f32, 3f32.ln(), 0.0, 1f32.ln()];
    let inputs = [Some(f(&[1, 2, 2], &ln))];
    let rows = [0.25, 0.75, 0.5, 0.5];
    form("Softmax", &[], &inputs).gives([13, NEWEST], &[f(&[1, 2, 2], &rows)]);
    let columns = [0.5, 0.75, 0.5, 0.25];
    form("Softmax", &[("axis", A::I(1))], &inputs).gives([13], &[f(&[1, 2, 2], &columns)]);
    let logs = rows.map(f32::ln);
    form("LogSoftmax", &[], &inputs).gives([13, NEWEST], &[f(&[1, 2, 2], &logs)]);
}

#[test]
fn scatters_learnt_to_reduce() {
    let scatter = |opsets: &[i64], reduction: Option<&str>, y: [f32; 3]| {
        let attributes: Vec<_> = reduction.iter().map(|r| ("reduction", A::S(r))).collect();
        let x = Some(f(&[3], &[1.0, 2.0, 3.0]));
        let updates = Some(f(&[2], &[10.0, -20.0]));
        let inputs = [x.clone(), Some(list(&[2, -3])), updates.clone()];
        form("ScatterElements", &attributes, &inputs).gives(opsets.to_vec(), &[f(&[3], &y)]);
        let inputs = [x, Some(i(&[2, 1], &[2, 0])), updates];
        form("ScatterND", &attributes, &inputs).gives(opsets.to_vec(), &[f(&[3], &y)]);
    };
    scatter(&[13, 16, 18, NEWEST], None, [-20.0, 2.0, 10.0]);
    scatter(&[16, 18, NEWEST], Some("none"), [-20.0, 2.0, 10.0]);
    scatter(&[16, 18, NEWEST], Some("add"), [-19.0, 2.0, 13.0]);
    scatter(&[16, 18, NEWEST], Some("mul"), [-20.0, 2.0, 30.0]);
    scatter(&[18, NEWEST], Some("max"), [1.0, 2.0, 10.0]);
    scatter(&[18, NEWEST], Some("min"), [-20.0, 2.0, 3.0]);
}

#[test]
fn dropouts() {
    let x = || Some(f(&[3], &[1.0, -2.0, 3.0]));
    let (ratio, flag) = (|r: f32| Some(f(&[], &[r])), |t: bool| Some(b(&[], &[t])));
    let result = [f(&[3], &[1.0, -2.0, 3.0]), b(&[3], &[true; 3])];
    for inputs in [
        &[x()][..],
        &[x(), ratio(0.9)],
        &[x(), None, flag(false)],
        &[x(), ratio(0.9), flag(false)],
        &[x(), ratio(0.0), flag(true)],
    ] {
        form("Dropout", &[], inputs).gives([13, 22, NEWEST], &result);
    }
}

#[test]
fn average_pools_dilate_since_19() {
    let x = || Some(f(&[1, 1, 1, 4], &[1.0, 2.0, 4.0, 8.0]));
    let pool = |opsets: &[i64], more: &[(&str, A)], shape: &[usize], y: &[f32]| {
        let mut attributes = vec![("kernel_shape", A::Is(&[1, 2]))];
        attributes.extend(more);
        form("AveragePool", &attributes, &[x()]).gives(opsets.to_vec(), &[f(shape, y)]);
    };
    let all = [13, 18, 19, 22, NEWEST];
    pool(&all, &[], &[1, 1, 1, 3], &[1.5, 3.0, 6.0]);
    let pads = ("pads", A::Is(&[0, 1, 0, 1]));
    pool(&all, &[pads], &[1, 1, 1, 5], &[1.0, 1.5, 3.0, 6.0, 8.0]);
    let counted = [pads, ("count_include_pad", A::I(1))];
    pool(&all, &counted, &[1, 1, 1, 5], &[0.5, 1.5, 3.0, 6.0, 4.0]);
    let wide = [("strides", A::Is(&[1, 3])), ("ceil_mode", A::I(1))];
    pool(&all, &wide, &[1, 1, 1, 2], &[1.5, 8.0]);
    pool(&[19, 22, NEWEST], &[("dilations", A::Is(&[1, 2]))], &[1, 1, 1, 2], &[2.5, 5.0]);
}

#[test]
fn max_pools() {
    let x = Some(f(&[1, 1, 2, 3], &[1.0, 5.0, 2.0, 4.0, 3.0, 6.0]));
    let attributes = [("kernel_shape", A::Is(&[2, 2])), ("storage_order", A::I(1))];
    let y = f(&[1, 1, 1, 2], &[5.0, 6.0]);
    let rows = i(&[1, 1, 1, 2], &[1, 5]);
    let columns = i(&[1, 1, 1, 2], &[2, 5]);
    let inputs = [x];
    form("MaxPool", &attributes[..1], &inputs).gives([13, 22, NEWEST], &[y.clone(), rows]);
    form("MaxPool", &attributes, &inputs).gives([13, 22, NEWEST], &[y, columns]);
}

#[test]
fn casts_and_powers() {
    let x = || Some(f(&[3], &[-1.9, 0.0, 2.5]));
    let to = ("to", A::I(DataType::Int64 as i64));
    let result = [list(&[-1, 0, 2])];
    form("Cast", &[to], &[x()]).gives([13, 19, 24, NEWEST], &result);
    form("Cast", &[to, ("saturate", A::I(0))], &[x()]).gives([19, 24, NEWEST], &result);
    let rounding = [to, ("round_mode", A::S("down"))];
    form("Cast", &rounding, &[x()]).gives([24, NEWEST], &result);
    let inputs = [x(), Some(list(&[7]))];
    form("CastLike", &[], &inputs).gives([15, 19, NEWEST], &result);
    let inputs = [Some(f(&[2], &[1.5, -2.0])), Some(list(&[2, 3]))];
    form("Pow", &[], &inputs).gives([13, 15, NEWEST], &[f(&[2], &[2.25, -8.0])]);
}

#[test]
fn ranges_and_norms() {
    let scalar = |x: f32| Some(f(&[], &[x]));
    let range = Form {
        op: "Range",
        attributes: &[],
        inputs: &[scalar(1.0), scalar(2.9), scalar(0.5)],
        stored: &[0, 1, 2],
    };
    range.gives([13, 27, NEWEST], &[f(&[4], &[1.0, 1.5, 2.0, 2.5])]);

    let x = Some(f(&[2, 2], &[1.0, 3.0, -2.0, 2.0]));
    let inputs = [x, Some(f(&[2], &[1.0, 10.0])), Some(f(&[2], &[0.0, 1.0]))];
    let attributes = [("epsilon", A::F(3.0)), ("stash_type", A::I(1))];
    let y = f(&[2, 2], &[-0.5, 6.0, -2.0 / 7f32.sqrt(), 20.0 / 7f32.sqrt() + 1.0]);
    let (mean, inverse) = (f(&[2, 1], &[2.0, 0.0]), f(&[2, 1], &[0.5, 1.0 / 7f32.sqrt()]));
    let results = [y, mean, inverse];
    form("LayerNormalization", &attributes, &inputs).gives([17, NEWEST], &results);
}

/// Their scale and bias were of groups before they were of channels.
#[test]
fn group_norms_had_a_scale_per_group() {
    let x = Some(f(&[1, 4, 2], &[0.0, 2.0, 2.0, 0.0, 5.0, 5.0, 1.0, 1.0]));
    let attributes = [("epsilon", A::F(3.0)), ("num_groups", A::I(2))];
    let last = 3.0 * 2.0 / 7f32.sqrt();
    let y = f(&[1, 4, 2], &[0.0, 2.0, 2.0, 0.0, last, last, -last, -last]);
    let of_groups = [x.clone(), Some(f(&[2], &[2.0, 3.0])), Some(f(&[2], &[1.0, 0.0]))];
    form("GroupNormalization", &attributes, &of_groups).gives([18, 20], std::slice::from_ref(&y));
    let (scale, bias) = (f(&[4], &[2.0, 2.0, 3.0, 3.0]), f(&[4], &[1.0, 1.0, 0.0, 0.0]));
    let of_channels = [x, Some(scale), Some(bias)];
    form("GroupNormalization", &attributes, &of_channels).gives([21, NEWEST], &[y]);
}

/// Where a plain formula would cancel, overflow or make NaN of what counts for nothing.
#[test]
fn compositions_keep_their_ends() {
    let tiny = Some(f(&[1], &[1e-4]));
    let op = Form { op: "Sinh", attributes: &[], inputs: &[tiny], stored: &[] };
    let model = op.model(18, 1).encode_to_vec().into();
    let planned = Planned::new(CPU.target(), model, Tensors::new()).unwrap();
    let t = f(&[1], &[1e-4]);
    let feeds = Tensors::from([("x0".into(), (t.ty, t.bytes))]);
    let found = planned.run(&feeds, 1).unwrap().remove(0).remove(0);
    let found = f32::from_le_bytes(found.try_into().unwrap());
    assert!((found - 1e-4).abs() <= 2e-11, "{found:e}");

    let large = [Some(f(&[3], &[1000.0, -1000.0, 0.0]))];
    let ln_2 = std::f32::consts::LN_2;
    form("Softplus", &[], &large).gives([13, NEWEST], &[f(&[3], &[1000.0, 0.0, ln_2])]);
    form("Mish", &[], &large).gives([18, NEWEST], &[f(&[3], &[1000.0, 0.0, 0.0])]);
    form("Elu", &[], &large).gives([13, NEWEST], &[f(&[3], &[1000.0, -1.0, 0.0])]);

    let log = Some(f(&[2, 2], &[f32::NEG_INFINITY, -1.0, -2.0, f32::NEG_INFINITY]));
    let inputs = [log, Some(list(&[0, 0]))];
    let ignored = [("ignore_index", A::I(0)), ("reduction", A::S("sum"))];
    let each = [("reduction", A::S("none"))];
    form("NegativeLogLikelihoodLoss", &ignored, &inputs).gives([13], &[f(&[], &[0.0])]);
    let one = [Some(f(&[1, 2], &[-2.0, -3.0])), Some(list(&[1]))];
    form("NegativeLogLikelihoodLoss", &each, &one).gives([13], &[f(&[1], &[3.0])]);

    let zero = [Some(f(&[2, 2], &[0.0, 0.0, 3.0, 4.0]))];
    let unit = f(&[2, 2], &[0.0, 0.0, 0.6, 0.8]);
    form("LpNormalization", &[], &zero).gives([13, NEWEST], &[unit]);
}

#[test]
fn resizes_had_no_axes() {
    let x = || Some(f(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]));
    let floats = |data: &[f32]| Some(f(&[data.len()], data));
    let empty = || floats(&[]);
    let resize = |opsets: &[i64], attributes: &[(&str, A)], inputs: &[Option<T>], y: T| {
        form("Resize", attributes, inputs).gives(opsets.to_vec(), &[y]);
    };
    let all = [13, 17, 18, 19, NEWEST];
    let linear = ("mode", A::S("linear"));
    let how = |s| ("coordinate_transformation_mode", A::S(s));

    let repeated: [f32; 8] = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0];
    let nearest = f(&[1, 1, 2, 4], &repeated);
    let scales = || floats(&[1.0, 1.0, 1.0, 2.0]);
    // What is left out has no name, or is empty.
    resize(&all, &[], &[x(), None, scales()], nearest.clone());
    resize(&all, &[], &[x(), empty(), scales()], nearest.clone());
    let sizes = || Some(list(&[1, 1, 2, 4]));
    resize(&all, &[], &[x(), empty(), empty(), sizes()], nearest.clone());
    resize(&all, &[], &[x(), None, None, sizes()], nearest.clone());
    let on = ("axes", A::Is(&[3]));
    resize(&[18, 19, NEWEST], &[on], &[x(), None, floats(&[2.0])], nearest.clone());
    resize(&[18, 19, NEWEST], &[on], &[x(), None, None, Some(list(&[4]))], nearest);

    let half = f(&[1, 1, 2, 4], &[1.0, 1.25, 1.75, 2.0, 3.0, 3.25, 3.75, 4.0]);
    resize(&all, &[linear], &[x(), None, scales()], half);
    let third = 1.0 / 3.0;
    let corners = [1.0, 1.0 + third, 2.0 - third, 2.0, 3.0, 3.0 + third, 4.0 - third, 4.0];
    let aligned = f(&[1, 1, 2, 4], &corners);
    resize(&all, &[linear, how("align_corners")], &[x(), None, None, sizes()], aligned);
    let asymmetric = f(&[1, 1, 2, 4], &[1.0, 1.5, 2.0, 2.0, 3.0, 3.5, 4.0, 4.0]);
    resize(&all, &[linear, how("asymmetric")], &[x(), None, scales()], asymmetric);

    // The last of three columns of a crop lies beyond the image.
    let roi = || floats(&[0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.5]);
    let crop = [linear, how("tf_crop_and_resize"), ("extrapolation_value", A::F(9.0))];
    let cropped = f(&[1, 1, 2, 3], &[1.5, 2.0, 9.0, 3.5, 4.0, 9.0]);
    resize(&all, &crop, &[x(), roi(), None, Some(list(&[1, 1, 2, 3]))], cropped);

    let row = || Some(f(&[1, 4], &[1.0, 2.0, 3.0, 4.0]));
    let smooth = [linear, ("antialias", A::I(1))];
    let smoothed = f(&[1, 2], &[1.625, 3.375]);
    resize(&[18, 19, NEWEST], &smooth, &[row(), None, floats(&[1.0, 0.5])], smoothed);
    let policy = ("keep_aspect_ratio_policy", A::S("not_larger"));
    let square = f(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let both = ("axes", A::Is(&[2, 3]));
    resize(&[18, NEWEST], &[both, policy], &[x(), None, None, Some(list(&[2, 5]))], square);
    let symmetric = [linear, how("half_pixel_symmetric")];
    let three = f(&[1, 3], &[1.25, 2.5, 3.75]);
    resize(&[19, NEWEST], &symmetric, &[row(), None, floats(&[1.0, 0.8])], three);
}

#[test]
fn arithmetic_took_small_integers_since_14() {
    let small = |data: &[i8]| T::new(DataType::Int8, DType::I8, &[2], data, i8::to_le_bytes);
    let inputs = [Some(small(&[100, -3])), Some(small(&[27, -4]))];
    form("Add", &[], &inputs).gives([14, NEWEST], &[small(&[127, -7])]);
    let inputs = [Some(list(&[7, -7])), Some(list(&[2, 2]))];
    form("Div", &[], &inputs).gives([13, NEWEST], &[list(&[3, -3])]);
    let result = b(&[2], &[true, false]);
    form("GreaterOrEqual", &[], &inputs).gives([13, 16, NEWEST], &[result]);
}
