//! Operators as calls of libraries.

use super::*;

fn described(op: &Op, shapes: &[&[usize]]) -> Option<LibraryCall> {
    let x: Vec<TensorType> = shapes.iter().map(|&s| TensorType::new(DType::F32, s)).collect();
    let x: Vec<&TensorType> = x.iter().collect();
    let y = op.infer(&x).unwrap_or_else(|e| panic!("{e}"));
    describe(op, Math::F32, &x, &y.iter().collect::<Vec<_>>()).ok()
}

fn product_of(op: &Op, shapes: &[&[usize]]) -> Option<Product> {
    match described(op, shapes)? {
        LibraryCall::Product(product) => Some(product),
        other => panic!("{other:?}"),
    }
}

const MAT_MUL: Op = Op::MatMul { trans_a: false, trans_b: false };

#[test]
fn a_product_is_computed_as_its_transpose() {
    for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let op = Op::Gemm { alpha: 0.5, beta: 1.0, trans_a, trans_b };
        let a: &[usize] = if trans_a { &[3, 2] } else { &[2, 3] };
        let b: &[usize] = if trans_b { &[5, 3] } else { &[3, 5] };
        let p = product_of(&op, &[a, b]).unwrap();
        assert_eq!((p.m, p.n, p.k, p.batches, p.alpha), (5, 2, 3, 1, 0.5));
        // Columns as stored are rows of the operands, and their extents follow.
        assert_eq!((p.a.rows, p.a.columns, p.a.leading), (b[1], b[0], b[1]));
        assert_eq!((p.b.rows, p.b.columns, p.b.leading), (a[1], a[0], a[1]));
        assert_eq!((p.a.transposed, p.b.transposed), (trans_b, trans_a));
        assert_eq!((p.d.rows, p.d.columns, p.d.leading), (5, 2, 5));
    }
}

#[test]
fn only_f32_is_rounded_where_the_target_says_so() {
    for (dtype, expected) in [(DType::F32, Math::Tf32), (DType::F64, Math::F32)] {
        let x = TensorType::new(dtype, [64, 64]);
        let call = call(&MAT_MUL, Math::Tf32, &[&x, &x], &[&x]).unwrap();
        let LibraryCall::Product(product) = call else { panic!("{call:?}") };
        assert_eq!((product.dtype, product.math), (dtype, expected));
    }
}

#[test]
fn batches_have_one_stride_or_go_without_a_library() {
    let strides = |a: &[usize], b: &[usize]| {
        let p = product_of(&MAT_MUL, &[a, b])?;
        // The operator's order.
        Some((p.batches, [p.b.stride, p.a.stride, p.d.stride]))
    };
    assert_eq!(strides(&[4, 6, 2, 3], &[4, 6, 3, 5]), Some((24, [6, 15, 10])));
    assert_eq!(strides(&[2, 3], &[4, 6, 3, 5]), Some((24, [0, 15, 10])));
    assert_eq!(strides(&[4, 1, 2, 3], &[4, 1, 3, 5]), Some((4, [6, 15, 10])));
    assert_eq!(strides(&[1, 6, 2, 3], &[6, 3, 5]), Some((6, [6, 15, 10])));
    // One product of all rows.
    assert_eq!(strides(&[4, 6, 2, 3], &[3, 5]), Some((1, [0, 0, 0])));
    // Neither one stride for both axes nor none.
    assert_eq!(strides(&[4, 1, 2, 3], &[4, 6, 3, 5]), None);
    assert_eq!(strides(&[4, 6, 2, 3], &[1, 6, 3, 5]), None);
}

#[test]
fn what_a_gemm_adds_is_a_matrix_a_bias_or_too_much_for_a_library() {
    let added = |beta: f32, c: &[usize]| {
        let op = Op::Gemm { alpha: 1.0, beta, trans_a: false, trans_b: false };
        Some(product_of(&op, &[&[2, 3], &[3, 5], c])?.added)
    };
    assert_eq!(added(0.5, &[2, 5]), Some(Added::Matrix(0.5)));
    assert_eq!(added(1.0, &[5]), Some(Added::Bias));
    assert_eq!(added(1.0, &[1, 5]), Some(Added::Bias));
    assert_eq!(added(0.0, &[2, 1]), Some(Added::Nothing));
    assert_eq!(added(0.5, &[5]), None);
    assert_eq!(added(1.0, &[2, 1]), None);
    assert_eq!(added(1.0, &[]), None);
}

#[test]
fn a_gelu_is_an_epilogue_beside_aligned_columns() {
    let (m, k) = (2, 3);
    let described = |op: &Op, dtype: DType, n: usize, bias: bool, results: usize| {
        let shapes = [vec![m, k], vec![k, n], if bias { vec![n] } else { vec![m, n] }];
        let x = shapes.map(|shape| TensorType::new(dtype, shape));
        let is_gradient = matches!(op, Op::GemmGeluGrad { .. });
        let count = if bias || is_gradient { 3 } else { 2 };
        let x = &x.iter().collect::<Vec<_>>()[..count];
        let y = op.infer(x).unwrap();
        let y = y.iter().take(results).collect::<Vec<_>>();
        let call = describe(op, Math::F32, x, &y).ok()?;
        let (operands, results) = (call.operands(), call.results());
        let LibraryCall::Product(p) = call else { panic!("{call:?}") };
        Some((p.added, p.epilogue, operands, results))
    };
    let forward = Op::GemmGelu { trans_a: false, trans_b: false };
    let backward = Op::GemmGeluGrad { trans_a: false, trans_b: false };
    let gelu = |keeps_z| Epilogue::Gelu { keeps_z };
    for d in [DType::F32, DType::Bf16] {
        let with_bias = Some((Added::Bias, gelu(true), &[1, 0, 2][..], &[0, 1][..]));
        assert_eq!(described(&forward, d, 16, true, 2), with_bias);
        let without = Some((Added::Nothing, gelu(true), &[1, 0][..], &[0, 1][..]));
        assert_eq!(described(&forward, d, 16, false, 2), without);
        let gradient = Some((Added::Nothing, Epilogue::GeluGradient, &[1, 0, 2][..], &[0][..]));
        assert_eq!(described(&backward, d, 16, false, 1), gradient);
        // Columns of the matrix beside it would begin anywhere.
        assert_eq!(described(&forward, d, 12, true, 2), None);
        assert_eq!(described(&backward, d, 12, false, 1), None);
        let alone = Some((Added::Bias, gelu(false), &[1, 0, 2][..], &[0][..]));
        assert_eq!(described(&forward, d, 12, true, 1), alone);
    }
    assert_eq!(described(&forward, DType::F64, 16, true, 2), None);
    assert_eq!(described(&backward, DType::F64, 16, false, 1), None);
}

fn window(kernel: &[usize], stride: usize, pads: [usize; 2]) -> Window {
    let each = |n: usize| vec![n; kernel.len()];
    Window {
        kernel: kernel.to_vec(),
        strides: each(stride),
        dilations: each(1),
        pads_begin: each(pads[0]),
        pads_end: each(pads[1]),
    }
}

fn convolution_of(op: &Op, shapes: &[&[usize]]) -> Option<Convolution> {
    match described(op, shapes)? {
        LibraryCall::Convolution(convolution) => Some(convolution),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_transposed_convolution_is_the_gradient_of_one() {
    let forward = Op::Conv { window: window(&[3, 3], 2, [1, 1]), group: 2 };
    let c = convolution_of(&forward, &[&[2, 4, 8, 8], &[6, 2, 3, 3], &[6]]).unwrap();
    let sides = (c.input, c.filter, c.output);
    assert_eq!(sides, ([2, 4, 8, 8], [6, 2, 3, 3], [2, 6, 4, 4]));
    assert_eq!((c.direction, c.bias, c.group), (Direction::Forward, true, 2));
    for (output_padding, extent) in [(0, 7), (1, 8)] {
        let gradient = Op::ConvTranspose {
            window: window(&[3, 3], 2, [1, 1]),
            group: 2,
            output_padding: vec![output_padding; 2],
        };
        let c = convolution_of(&gradient, &[&[2, 6, 4, 4], &[6, 2, 3, 3]]).unwrap();
        let sides = (c.input, c.filter, c.output);
        assert_eq!(sides, ([2, 4, extent, extent], [6, 2, 3, 3], [2, 6, 4, 4]));
        assert_eq!((c.direction, c.bias), (Direction::InputGradient, false));
    }
}

#[test]
fn a_weight_gradient_has_the_sides_of_its_convolution() {
    let gradient = Op::ConvWeightGrad { window: window(&[3, 3], 2, [1, 1]), group: 2 };
    let c = convolution_of(&gradient, &[&[2, 4, 8, 8], &[2, 6, 4, 4]]).unwrap();
    let sides = (c.input, c.filter, c.output);
    assert_eq!(sides, ([2, 4, 8, 8], [6, 2, 3, 3], [2, 6, 4, 4]));
    assert_eq!((c.direction, c.bias), (Direction::FilterGradient, false));
}

#[test]
fn extents_are_the_same_where_channels_are_last() {
    let of = Op::Conv { window: window(&[3, 3], 2, [1, 1]), group: 2 };
    let c = convolution_of(&of, &[&[2, 4, 8, 6], &[6, 2, 3, 3], &[6]]).unwrap();
    let turned = Op::ChannelsLast { of: Box::new(of) };
    let last = convolution_of(&turned, &[&[2, 8, 6, 4], &[6, 3, 3, 2], &[6]]).unwrap();
    assert_eq!(last, Convolution { channels_last: true, ..c });
}

#[test]
fn one_axis_is_two_and_three_are_too_many() {
    let op = |kernel: &[usize], pads| Op::Conv { window: window(kernel, 1, pads), group: 1 };
    let c = convolution_of(&op(&[3], [1, 1]), &[&[2, 4, 8], &[5, 4, 3]]).unwrap();
    assert_eq!((c.input, c.filter, c.output), ([2, 4, 1, 8], [5, 4, 1, 3], [2, 5, 1, 8]));
    assert_eq!((c.pads, c.strides, c.dilations), ([0, 1], [1, 1], [1, 1]));
    let unequal = convolution_of(&op(&[3], [0, 1]), &[&[2, 4, 8], &[5, 4, 3]]);
    assert_eq!(unequal, None);
    let cube = convolution_of(&op(&[3, 3, 3], [0, 0]), &[&[2, 4, 8, 8, 8], &[5, 4, 3, 3, 3]]);
    assert_eq!(cube, None);
}
