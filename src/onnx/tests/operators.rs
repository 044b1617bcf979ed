//! Differences between versions, defaults and shapes of single operators.

use super::model::*;
use crate::onnx::proto::{ModelProto, NodeProto, TensorProto, tensor_proto::DataType};
use arenic_ir::op::{Binary, Coordinates, Interpolation, Reduction, Scale, Unary, Window};
use arenic_ir::{DType, Op};

/// The shape of `y = op(x, initializers…)`.
fn shape(opset: i64, x: &[i64], op: NodeProto, lists: &[TensorProto]) -> Vec<usize> {
    imported(&single(opset, x, op, lists)).0
}

fn refused(opset: i64, x: &[i64], op: NodeProto, lists: &[TensorProto]) -> String {
    failure(&single(opset, x, op, lists))
}

fn xs(op: &str, more: &[&str]) -> NodeProto {
    node(op, &[&["x"], more].concat(), &["y"])
}

#[test]
fn reductions_take_axes_from_both_places() {
    let reduce = |axes: &[i64], keep| Op::Reduce {
        f: Reduction::Mean,
        axes: axes.iter().map(|&a| a as usize).collect(),
        keep,
    };
    let (y, op) = imported(&single(
        13,
        &[2, 3, 4],
        with(xs("ReduceMean", &[]), "axes", Attr::Is(&[-1])),
        &[],
    ));
    assert_eq!((y, op), (vec![2, 3, 1], vec![reduce(&[2], true)]));
    let no_keep = with(xs("ReduceMean", &["a"]), "keepdims", Attr::I(0));
    let (y, op) = imported(&single(18, &[2, 3, 4], no_keep, &[list("a", &[2, 0])]));
    assert_eq!((y, op), (vec![3], vec![reduce(&[0, 2], false)]));
    assert_eq!(shape(18, &[2, 3], xs("ReduceMean", &["a"]), &[list("a", &[])]), [1, 1]);
    let noop = with(xs("ReduceMean", &["a"]), "noop_with_empty_axes", Attr::I(1));
    assert_eq!(shape(18, &[2, 3], noop, &[list("a", &[])]), [2, 3]);
    let twice = refused(18, &[2, 3], xs("ReduceMean", &["a"]), &[list("a", &[1, -1])]);
    assert!(twice.contains("name one twice"), "{twice}");
    let outside = refused(18, &[2, 3], xs("ReduceMean", &["a"]), &[list("a", &[2])]);
    assert!(outside.contains("axis 2 of a tensor of rank 2"), "{outside}");
    for op in ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"] {
        let n = with(xs(op, &["a"]), "keepdims", Attr::I(0));
        assert_eq!(shape(18, &[2, 3], n, &[list("a", &[1])]), [2], "{op}");
    }
}

#[test]
fn reductions_of_bools_go_through_integers() {
    let m =
        model(20).input("x", DataType::Bool, &fixed([2])).node(xs("ReduceMax", &[])).output("y");
    let g = import(&m).unwrap().graph;
    assert_eq!(g.ty(output(&g, "y")).dtype, DType::Bool);
    assert_eq!(ops(&g).len(), 3);
}

#[test]
fn reshapes() {
    let to = |x: &[i64], s: &[i64]| shape(13, x, xs("Reshape", &["s"]), &[list("s", s)]);
    assert_eq!(to(&[2, 3, 4], &[0, -1]), [2, 12]);
    assert_eq!(to(&[2, 0], &[-1, 3]), [0, 3]);
    assert_eq!(to(&[1], &[]), Vec::<usize>::new());
    let zero = with(xs("Reshape", &["s"]), "allowzero", Attr::I(1));
    assert_eq!(shape(14, &[0, 3], zero, &[list("s", &[3, 0])]), [3, 0]);
    for bad in [&[-1, -1][..], &[4], &[-2, 3], &[0, 0, 0], &[i64::MAX, i64::MAX, -1], &[0, 4, -1]] {
        let text = refused(13, &[2, 3], xs("Reshape", &["s"]), &[list("s", bad)]);
        assert!(text.contains("does not reshape"), "{bad:?}: {text}");
    }
    assert_eq!(shape(13, &[2, 3, 4], xs("Flatten", &[]), &[]), [2, 12]);
    let all = with(xs("Flatten", &[]), "axis", Attr::I(3));
    assert_eq!(shape(13, &[2, 3, 4], all, &[]), [24, 1]);
    let squeeze = |x: &[i64], a: &[i64]| shape(13, x, xs("Squeeze", &["a"]), &[list("a", a)]);
    assert_eq!(squeeze(&[1, 2, 1], &[-1]), [1, 2]);
    assert_eq!(shape(13, &[1, 2, 1], xs("Squeeze", &[]), &[]), [2]);
    let unsqueeze = |a: &[i64]| shape(13, &[2, 3], xs("Unsqueeze", &["a"]), &[list("a", a)]);
    assert_eq!(unsqueeze(&[-1, 0]), [1, 2, 3, 1]);
    let text = refused(13, &[2], xs("Squeeze", &["a"]), &[list("a", &[0])]);
    assert!(text.contains("is not 1"), "{text}");
}

#[test]
fn expansions() {
    let expand = |x: &[i64], s: &[i64]| shape(13, x, xs("Expand", &["s"]), &[list("s", s)]);
    assert_eq!(expand(&[3, 1], &[2, 1, 4]), [2, 3, 4]);
    let tile = |x: &[i64], s: &[i64]| shape(13, x, xs("Tile", &["s"]), &[list("s", s)]);
    assert_eq!(tile(&[2, 3], &[2, 1]), [4, 3]);
    assert_eq!(tile(&[2, 3], &[0, 2]), [0, 6]);
}

#[test]
fn slices_clamp_as_numpy_does() {
    let cut = |start, end, step| {
        let lists = [list("s", &[start]), list("e", &[end]), list("a", &[-1]), list("t", &[step])];
        let (_, ops) = imported(&single(13, &[2, 5], xs("Slice", &["s", "e", "a", "t"]), &lists));
        let [Op::Slice { starts, steps, shape }] = &ops[..] else { panic!() };
        (starts[1], steps[1], shape[1])
    };
    assert_eq!(cut(1, i64::MAX, 2), (1, 2, 2));
    assert_eq!(cut(-2, 100, 1), (3, 1, 2));
    assert_eq!(cut(4, i64::MIN, -1), (4, -1, 5));
    assert_eq!(cut(100, 1, -2), (4, -2, 2));
    assert_eq!(cut(-100, 2, 1), (0, 1, 2));
    assert_eq!(cut(3, 1, 1), (0, 1, 0));
    assert_eq!(cut(0, 0, -1), (0, -1, 0));
    assert_eq!(cut(0, i64::MIN, i64::MIN), (0, i64::MIN, 1));
    let zero = [list("s", &[0]), list("e", &[1]), list("a", &[0]), list("t", &[0])];
    let text = refused(13, &[2], xs("Slice", &["s", "e", "a", "t"]), &zero);
    assert!(text.contains("step is zero"), "{text}");
}

#[test]
fn splits() {
    let split = |opset, attrs: &[(&str, i64)], sizes: Option<&[i64]>, n: usize| {
        let names: Vec<String> = (0..n).map(|i| format!("y{i}")).collect();
        let results: Vec<&str> = names.iter().map(String::as_str).collect();
        let inputs: &[&str] = if sizes.is_some() { &["x", "s"] } else { &["x"] };
        let mut op = node("Split", inputs, &results);
        for &(name, value) in attrs {
            op = with(op, name, Attr::I(value));
        }
        let mut m = model(opset).input("x", DataType::Float, &fixed([7, 2])).node(op);
        if let Some(sizes) = sizes {
            m = m.initializer(list("s", sizes));
        }
        // The first part is left unread.
        for name in &results[1..] {
            m = m.output(name);
        }
        import(&m).map_err(|e| e.to_string()).map(|i| {
            assert_eq!(i.graph.nodes.len(), n - 1);
            let part = |name: &&str| i.graph.ty(output(&i.graph, name)).shape[0];
            results[1..].iter().map(part).collect::<Vec<_>>()
        })
    };
    assert_eq!(split(13, &[], Some(&[1, 4, 2]), 3).unwrap(), [4, 2]);
    assert_eq!(split(18, &[("num_outputs", 3)], None, 3).unwrap(), [3, 1]);
    assert!(split(13, &[], None, 3).unwrap_err().contains("3 equal parts"));
    assert!(split(13, &[], Some(&[1, 4]), 2).unwrap_err().contains("do not make up"));
    assert!(split(18, &[("num_outputs", 2)], None, 3).unwrap_err().contains("has 3 results"));
}

#[test]
fn powers_take_mixed_types() {
    let pow = |base: DataType, exponent: DataType| {
        let m = model(15)
            .input("x", base, &fixed([2]))
            .input("e", exponent, &fixed([2]))
            .node(xs("Pow", &["e"]))
            .output("y");
        let g = import(&m).unwrap().graph;
        (g.ty(output(&g, "y")).dtype, ops(&g).into_iter().cloned().collect::<Vec<_>>())
    };
    let power = Op::Binary { f: Binary::Pow };
    let cast = |to| Op::Cast { to };
    use DataType::{Float, Int32, Int64};
    assert_eq!(pow(Float, Float), (DType::F32, vec![power.clone()]));
    assert_eq!(pow(Float, Int64), (DType::F32, vec![cast(DType::F32), power.clone()]));
    assert_eq!(pow(Int64, Int32), (DType::I64, vec![cast(DType::I64), power.clone()]));
    assert_eq!(
        pow(Int32, Float),
        (DType::I32, vec![cast(DType::F64), cast(DType::F64), power, cast(DType::I32)])
    );
}

#[test]
fn casts() {
    let cast = |to| with(xs("Cast", &[]), "to", Attr::I(to));
    let (_, ops) = imported(&single(19, &[2], with(cast(7), "saturate", Attr::I(1)), &[]));
    assert_eq!(ops, [Op::Cast { to: DType::I64 }]);
    let (_, ops) = imported(&single(19, &[2], cast(16), &[]));
    assert_eq!(ops, [Op::Cast { to: DType::Bf16 }]);
    assert!(refused(19, &[2], cast(10), &[]).contains("FLOAT16 is not supported"));
    assert!(refused(19, &[2], cast(1 << 40), &[]).contains("unknown"));
    assert!(refused(19, &[2], xs("Cast", &[]), &[]).contains("`to` is missing"));
}

#[test]
fn clips_leave_bounds_out() {
    let clip = |inputs: &[&str]| {
        let bounds = [floats("lo", &[], &[0.0]), floats("hi", &[], &[1.0])];
        imported(&single(13, &[2], node("Clip", inputs, &["y"]), &bounds)).1
    };
    assert_eq!(clip(&["x", "lo", "hi"]), [Op::Clip { min: true, max: true }]);
    assert_eq!(clip(&["x", "", "hi"]), [Op::Clip { min: false, max: true }]);
    assert_eq!(clip(&["x", "lo", ""]), [Op::Clip { min: true, max: false }]);
    assert!(matches!(clip(&["x"])[..], [Op::Reshape { .. }]));
}

#[test]
fn variadic_operators_become_chains() {
    let add = Op::Binary { f: Binary::Add };
    assert_eq!(imported(&single(13, &[2], xs("Sum", &["x", "x"]), &[])).1, [add.clone(), add]);
    assert_eq!(shape(13, &[2], xs("Max", &[]), &[]), [2]);
}

#[test]
fn dropout_out_of_training_is_the_identity() {
    let m = |mode: Option<bool>, seed: Option<i64>| -> ModelProto {
        let flag = TensorProto {
            name: Some("t".into()),
            data_type: Some(DataType::Bool as i32),
            int32_data: vec![i32::from(mode == Some(true))],
            ..TensorProto::default()
        };
        let inputs: &[&str] = if mode.is_some() { &["x", "", "t"] } else { &["x"] };
        let mut op = node("Dropout", inputs, &["y", "mask"]);
        if let Some(seed) = seed {
            op = with(op, "seed", Attr::I(seed));
        }
        single(13, &[20, 100], op, &[flag]).output("mask")
    };
    for mode in [None, Some(false)] {
        let ops = imported(&m(mode, None)).1;
        assert!(matches!(ops[..], [Op::Reshape { .. }, Op::Expand { .. }]), "{ops:?}");
    }
    let ops = imported(&m(Some(true), Some(7))).1;
    let [Op::Dropout { rng }] = &ops[..] else { panic!("{ops:?}") };
    // FNV-1a of "y".
    assert_eq!((rng.stream, rng.seed), (0xaf63_f44c_8602_1554, Some(7)));
}

#[test]
fn random_numbers_take_type_and_shape_from_the_operand() {
    let op = with(xs("RandomUniformLike", &[]), "seed", Attr::F(5.0));
    let ops = imported(&single(13, &[2, 3], op, &[])).1;
    let [Op::RandomUniform { dtype, shape, low, high, rng }] = &ops[..] else { panic!() };
    assert_eq!((*dtype, &shape[..], *low, *high), (DType::F32, &[2, 3][..], 0.0, 1.0));
    assert_eq!(rng.seed, Some(5));
}

fn window_of(ops: &[Op]) -> &Window {
    match ops {
        [Op::Conv { window, .. } | Op::ConvTranspose { window, .. }] => window,
        [Op::MaxPool { window, .. } | Op::AveragePool { window, .. }] => window,
        other => panic!("{other:?}"),
    }
}

#[test]
fn convolutions_resolve_their_padding() {
    let conv = |attrs: Vec<(&str, Attr)>, x: &[i64]| {
        let mut op = xs("Conv", &["w"]);
        for (name, value) in attrs {
            op = with(op, name, value);
        }
        imported(&single(13, x, op, &[floats("w", &[2, 1, 3, 3], &[0.0; 18])]))
    };
    let (y, ops) = conv(vec![], &[1, 1, 5, 5]);
    assert_eq!((&y[..], &window_of(&ops).kernel[..]), (&[1, 2, 3, 3][..], &[3, 3][..]));
    let same = |mode| vec![("auto_pad", Attr::S(mode)), ("strides", Attr::Is(&[2, 2]))];
    let (y, ops) = conv(same("SAME_UPPER"), &[1, 1, 6, 5]);
    let w = window_of(&ops);
    assert_eq!(y, [1, 2, 3, 3]);
    assert_eq!((&w.pads_begin[..], &w.pads_end[..]), (&[0, 1][..], &[1, 1][..]));
    let (_, ops) = conv(same("SAME_LOWER"), &[1, 1, 6, 5]);
    assert_eq!(window_of(&ops).pads_begin, [1, 1]);
    assert_eq!(conv(vec![("auto_pad", Attr::S("VALID"))], &[1, 1, 5, 5]).0, [1, 2, 3, 3]);
    let bad = |name: &str, value: Attr| {
        let op = with(xs("Conv", &["w"]), name, value);
        refused(13, &[1, 1, 5, 5], op, &[floats("w", &[2, 1, 3, 3], &[0.0; 18])])
    };
    assert!(bad("pads", Attr::Is(&[-1, 0, 0, 0])).contains("negative"));
    assert!(bad("pads", Attr::Is(&[1, 1])).contains("2 entries"));
    assert!(bad("strides", Attr::Is(&[0, 1])).contains("zero"));
    assert!(bad("strides", Attr::Is(&[1])).contains("`strides` has 1 entries"));
    assert!(bad("group", Attr::I(-1)).contains("group"));
    assert!(bad("kernel_shape", Attr::Is(&[2, 2])).contains("differs from weights"));
    assert!(bad("auto_pad", Attr::S("SOME")).contains("not one of"));
    assert!(bad("dilations", Attr::Is(&[i64::MAX, 1])).contains("2^31"));
}

#[test]
fn transposed_convolutions_resolve_their_output_shape() {
    let conv = |attrs: Vec<(&str, Attr)>| {
        let mut op = with(xs("ConvTranspose", &["w"]), "strides", Attr::Is(&[3, 2]));
        for (name, value) in attrs {
            op = with(op, name, value);
        }
        imported(&single(13, &[1, 1, 3, 3], op, &[floats("w", &[1, 2, 3, 3], &[0.0; 18])]))
    };
    assert_eq!(conv(vec![]).0, [1, 2, 9, 7]);
    assert_eq!(conv(vec![("output_shape", Attr::Is(&[10, 8]))]).0, [1, 2, 10, 8]);
    let (y, ops) = conv(vec![("output_shape", Attr::Is(&[8, 6]))]);
    assert_eq!(y, [1, 2, 8, 6]);
    assert_eq!(window_of(&ops).pads_begin, [1, 1]);
    let upper = ("auto_pad", Attr::S("SAME_UPPER"));
    let (y, ops) = conv(vec![upper]);
    assert_eq!(y, [1, 2, 9, 6]);
    assert_eq!(
        (&window_of(&ops).pads_begin[..], &window_of(&ops).pads_end[..]),
        (&[0, 0][..], &[0, 1][..])
    );
}

#[test]
fn pools() {
    let pool = |op: &str, attrs: &[(&str, i64)], x: &[i64]| {
        let mut op = with(xs(op, &[]), "kernel_shape", Attr::Is(&[2, 2]));
        op = with(op, "strides", Attr::Is(&[2, 2]));
        for &(name, value) in attrs {
            op = with(op, name, Attr::I(value));
        }
        shape(22, x, op, &[])
    };
    assert_eq!(pool("MaxPool", &[], &[1, 2, 5, 5]), [1, 2, 2, 2]);
    assert_eq!(pool("AveragePool", &[("ceil_mode", 1)], &[1, 2, 5, 5]), [1, 2, 3, 3]);
    assert_eq!(shape(13, &[1, 2, 5, 5], xs("GlobalAveragePool", &[]), &[]), [1, 2, 1, 1]);
    assert_eq!(shape(13, &[1, 2, 5, 5], xs("GlobalMaxPool", &[]), &[]), [1, 2, 1, 1]);
    let text = refused(13, &[1, 2], with(xs("MaxPool", &[]), "kernel_shape", Attr::Is(&[])), &[]);
    assert!(text.contains("no spatial axes"), "{text}");
}

#[test]
fn scalars_have_a_softmax() {
    let m = single(13, &[], xs("Softmax", &[]), &[]);
    assert_eq!(imported(&m).0, Vec::<usize>::new());
}

#[test]
fn resizes() {
    let resize = |inputs: &[&str], attrs: Vec<(&str, Attr)>, more: &[TensorProto]| {
        let mut op = node("Resize", inputs, &["y"]);
        for (name, value) in attrs {
            op = with(op, name, value);
        }
        let ops = imported(&single(19, &[1, 1, 4, 6], op, more)).1;
        let [Op::Resize { spec }] = &ops[..] else { panic!("{ops:?}") };
        spec.clone()
    };
    let scales = floats("s", &[4], &[1.0, 1.0, 2.0, 0.7]);
    let spec = resize(&["x", "", "s"], vec![("mode", Attr::S("linear"))], &[scales]);
    assert_eq!((&spec.sizes[..], spec.mode), (&[1, 1, 8, 4][..], Interpolation::Linear));
    assert_eq!(spec.coordinates, Coordinates::HalfPixel);
    assert_eq!(spec.scales, [1.0, 1.0, 2.0, 0.7].map(Scale::Number));
    let on = || ("axes", Attr::Is(&[2, 3]));
    let spec = resize(&["x", "", "", "z"], vec![on()], &[list("z", &[2, 9])]);
    assert_eq!(spec.sizes, [1, 1, 2, 9]);
    assert_eq!(spec.scales, [Scale::ONE, Scale::ONE, Scale::Ratio(2, 4), Scale::Ratio(9, 6)]);
    let policy = ("keep_aspect_ratio_policy", Attr::S("not_larger"));
    let spec = resize(&["x", "", "", "z"], vec![on(), policy], &[list("z", &[2, 9])]);
    assert_eq!(spec.sizes, [1, 1, 2, 3]);
    assert_eq!(spec.scales[2..], [Scale::Ratio(2, 4); 2]);
    let crop = ("coordinate_transformation_mode", Attr::S("tf_crop_and_resize"));
    let roi = floats("r", &[4], &[0.25, 0.5, 0.75, 1.0]);
    let spec = resize(&["x", "r", "", "z"], vec![on(), crop], &[roi, list("z", &[2, 2])]);
    assert_eq!(spec.roi[2..], [(0.25, 0.75), (0.5, 1.0)]);
    let text = refused(19, &[1, 1, 4, 6], xs("Resize", &[]), &[]);
    assert!(text.contains("neither scales nor sizes"), "{text}");
}

#[test]
fn gemm_has_onnx_defaults() {
    let m = single(13, &[2, 3], xs("Gemm", &["w"]), &[floats("w", &[3, 4], &[0.0; 12])]);
    let gemm = Op::Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: false };
    assert_eq!(imported(&m), (vec![2, 4], vec![gemm]));
}

#[test]
fn mismatched_types_name_the_node() {
    let m = model(18)
        .input("x", DataType::Float, &fixed([2]))
        .input("n", DataType::Int64, &fixed([2]))
        .node(xs("Add", &["n"]))
        .output("y");
    let text = failure(&m);
    assert_eq!(text, "node `n_y` (Add): operands of different element types, f32 and i64");
    assert_eq!(imported(&single(18, &[2], xs("Erf", &[]), &[])).1, [Op::Unary { f: Unary::Erf }]);
}

#[test]
fn pads_cut_off_before_they_add() {
    let pad = |pads: &[i64]| single(18, &[3, 4], xs("Pad", &["p"]), &[list("p", pads)]);
    let (y, ops) = imported(&pad(&[1, -1, 0, 2]));
    let cut = Op::Slice { starts: vec![0, 1], steps: vec![1, 1], shape: vec![3, 3] };
    let (starts, steps) = (vec![1, 0], vec![1, 1]);
    let added = Op::Pad { starts, steps, shape: vec![4, 5], value: 0.0 };
    assert_eq!((y, ops), (vec![4, 5], vec![cut, added]));
    assert!(matches!(imported(&pad(&[0; 4])).1[..], [Op::Reshape { .. }]));
    let fault = failure(&pad(&[-2, 0, -2, 0]));
    assert!(fault.contains("cut more than there is off axis 0"), "{fault}");
    let fault = failure(&pad(&[i64::MIN, 0, 0, 0]));
    assert!(fault.contains("cut more than there is off axis 0"), "{fault}");
    let fault = failure(&pad(&[1, 1]));
    assert!(fault.contains("2 pads for 2 axes"), "{fault}");
    let fault = failure(&pad(&[i64::MAX, 0, i64::MAX, 0]));
    assert!(fault.contains("too large"), "{fault}");
}

#[test]
fn pads_of_some_axes_have_values() {
    let lists = [list("p", &[1, 2]), floats("v", &[], &[f32::NEG_INFINITY]), list("a", &[-1])];
    let (y, ops) = imported(&single(18, &[3, 4], xs("Pad", &["p", "v", "a"]), &lists));
    let (starts, steps, value) = (vec![0, 1], vec![1, 1], f64::NEG_INFINITY);
    assert_eq!((y, ops), (vec![3, 7], vec![Op::Pad { starts, steps, shape: vec![3, 7], value }]));
    let fault = refused(18, &[3, 4], xs("Pad", &["p", "p", "a"]), &lists);
    assert!(fault.contains("no scalar"), "{fault}");
    let wide = TensorProto {
        name: Some("v".into()),
        data_type: Some(DataType::Int64 as i32),
        int64_data: vec![(1 << 53) + 1],
        ..TensorProto::default()
    };
    let lists = [list("p", &[1, 1]), wide];
    let fault = refused(18, &[3], xs("Pad", &["p", "v"]), &lists);
    assert!(fault.contains("but it pads f32"), "{fault}");
    let m = model(18).input("x", DataType::Int64, &fixed([3])).node(xs("Pad", &["p", "v"]));
    let m = lists.into_iter().fold(m, Add::initializer).output("y");
    let fault = failure(&m);
    assert!(fault.contains("no double holds exactly"), "{fault}");
}

#[test]
fn other_pads_gather() {
    let pad = |mode, extent, pads: &[i64]| {
        let op = with(xs("Pad", &["p"]), "mode", Attr::S(mode));
        single(19, &[extent], op, &[list("p", pads)])
    };
    let sources = |mode, extent, pads: &[i64]| {
        let g = import(&pad(mode, extent, pads)).unwrap().graph;
        assert!(matches!(ops(&g)[..], [Op::Gather { axis: 0 }]));
        let indices = g.nodes.values().next().unwrap().inputs[1];
        let arenic_ir::Def::Const(data) = &g.values[indices].def else { panic!() };
        let bytes = data.bytes().unwrap();
        bytes.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect::<Vec<_>>()
    };
    assert_eq!(sources("edge", 3, &[2, 1]), [0, 0, 0, 1, 2, 2]);
    assert_eq!(sources("reflect", 3, &[3, 2]), [1, 2, 1, 0, 1, 2, 1, 0]);
    assert_eq!(sources("reflect", 1, &[1, 1]), [0, 0, 0]);
    assert_eq!(sources("wrap", 3, &[2, 4]), [1, 2, 0, 1, 2, 0, 1, 2, 0]);
    let fault = failure(&pad("wrap", 0, &[1, 0]));
    assert!(fault.contains("nothing to repeat"), "{fault}");
    let fault = failure(&pad("edge", 3, &[1 << 40, 0]));
    assert!(fault.contains("too much memory"), "{fault}");
    let fault = failure(&pad("around", 3, &[1, 0]));
    assert!(fault.contains("around"), "{fault}");
}
