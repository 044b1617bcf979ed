//! Operators on `bf16` against those on `f32`: the same numbers, rounded once. Those on `f32` are
//! held against sums in `f64` elsewhere.

use super::random::Random;
use super::{Tensor, apply, assert_same, evaluate};
use arenic_ir::op::{AttentionSpec, Binary, Reduction, Rng, Scatter, Unary, Window};
use arenic_ir::types::bf16;
use arenic_ir::{DType, Op};

/// What the kernel of `f32` gives for the same numbers, as the operator's result types hold it.
fn expected(op: &Op, inputs: &[&Tensor]) -> Vec<Tensor> {
    let wide: Vec<Tensor> = inputs
        .iter()
        .map(|t| Tensor { ty: t.ty.accumulated(), values: t.values.clone() })
        .collect();
    let wide: Vec<&Tensor> = wide.iter().collect();
    let types = op.infer(&inputs.iter().map(|t| &t.ty).collect::<Vec<_>>()).expect("operands fit");
    let found = apply(op, &wide, None, &vec![true; types.len()]);
    let rounded = |(mut t, ty): (Tensor, _)| {
        t.ty = ty;
        if t.ty.dtype == DType::Bf16 {
            t.values.iter_mut().for_each(|x| *x = bf16::round(*x as f32).into());
        }
        t
    };
    found.into_iter().zip(types).map(rounded).collect()
}

/// All results are as expected; the first one also on several threads and in place.
fn hold(op: &Op, inputs: &[&Tensor]) {
    let expected = expected(op, inputs);
    let found = apply(op, inputs, None, &vec![true; expected.len()]);
    for (found, expected) in found.iter().zip(&expected) {
        assert_same(found, expected, op);
    }
    if expected.len() == 1 {
        assert_same(&evaluate(op, inputs), &expected[0], op);
    }
    // With results that nobody reads.
    for o in 0..expected.len() {
        let wanted: Vec<bool> = (0..expected.len()).map(|i| i == o).collect();
        assert_same(&apply(op, inputs, None, &wanted)[0], &expected[o], op);
    }
}

/// Numbers that a type holds.
fn tensor(r: &mut Random, dtype: DType, shape: &[usize]) -> Tensor {
    let mut t = r.tensor(dtype, shape);
    let round = |x: f64| {
        if dtype == DType::Bf16 { bf16::round(x as f32).into() } else { f64::from(x as f32) }
    };
    t.values.iter_mut().for_each(|x| *x = round(*x));
    t
}

fn indices(r: &mut Random, shape: &[usize], extent: usize) -> Tensor {
    let count = shape.iter().product();
    let values = (0..count).map(|_| r.range(0, extent - 1) as f64).collect();
    Tensor::new(DType::I64, shape, values)
}

#[test]
fn elementwise_operators_round_once() {
    let mut r = Random(41);
    let (x, y) = (tensor(&mut r, DType::Bf16, &[5, 70]), tensor(&mut r, DType::Bf16, &[5, 70]));
    let row = tensor(&mut r, DType::Bf16, &[70]);
    for f in [Unary::Exp, Unary::Tanh, Unary::Relu, Unary::Abs, Unary::Sign, Unary::Neg] {
        hold(&Op::Unary { f }, &[&x]);
    }
    for f in [Binary::Add, Binary::Mul, Binary::Div, Binary::Max, Binary::Less, Binary::Equal] {
        hold(&Op::Binary { f }, &[&x, &y]);
        hold(&Op::Binary { f }, &[&row, &x]);
    }
    let condition = evaluate(&Op::Binary { f: Binary::Less }, &[&x, &y]);
    hold(&Op::Where, &[&condition, &x, &row]);
    hold(&Op::Clip { min: true, max: false }, &[&x, &tensor(&mut r, DType::Bf16, &[])]);
    let ratio = Tensor::new(DType::F32, [], vec![0.25]);
    hold(&Op::Dropout { rng: Rng { stream: 3, seed: None } }, &[&x, &ratio]);
}

#[test]
fn products_and_convolutions_round_their_sums_once() {
    let mut r = Random(42);
    for [m, k, n] in [[3, 5, 7], [70, 300, 65], [4, 9000, 2]] {
        let (a, b) = (tensor(&mut r, DType::Bf16, &[m, k]), tensor(&mut r, DType::Bf16, &[k, n]));
        hold(&Op::MatMul { trans_a: false, trans_b: false }, &[&a, &b]);
        let bias = tensor(&mut r, DType::Bf16, &[n]);
        let gemm = Op::Gemm { alpha: 0.5, beta: 1.0, trans_a: false, trans_b: false };
        hold(&gemm, &[&a, &b, &bias]);
        hold(&gemm, &[&a, &b, &tensor(&mut r, DType::Bf16, &[m, n])]);
        // A GELU is one of what was not rounded yet.
        hold(&Op::GemmGelu { trans_a: false, trans_b: false }, &[&a, &b, &bias]);
        let z = tensor(&mut r, DType::Bf16, &[m, n]);
        hold(&Op::GemmGeluGrad { trans_a: false, trans_b: false }, &[&a, &b, &z]);
        // The gradient in an update is never rounded.
        let [lr, x, v] = [&[][..], &[m, n], &[m, n]].map(|s| tensor(&mut r, DType::F32, s));
        let step = Tensor::new(DType::I64, [], vec![1.0]);
        let update = Op::Momentum { alpha: 0.5, beta: 1.0, nesterov: false, norm_coefficient: 0.0 };
        let op = Op::ProductUpdate {
            alpha: 1.0,
            trans_a: false,
            trans_b: false,
            gradient: 3,
            update: Box::new(update),
        };
        hold(&op, &[&lr, &step, &x, &v, &a, &b]);
    }
    let window = Window {
        kernel: vec![3, 3],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads_begin: vec![1, 1],
        pads_end: vec![1, 1],
    };
    let x = tensor(&mut r, DType::Bf16, &[2, 4, 9, 8]);
    let w = tensor(&mut r, DType::Bf16, &[6, 4, 3, 3]);
    let dy = tensor(&mut r, DType::Bf16, &[2, 6, 9, 8]);
    let bias = tensor(&mut r, DType::Bf16, &[6]);
    hold(&Op::Conv { window: window.clone(), group: 1 }, &[&x, &w, &bias]);
    hold(&Op::ConvWeightGrad { window: window.clone(), group: 1 }, &[&x, &dy]);
    hold(&Op::ConvTranspose { window, group: 1, output_padding: vec![0, 0] }, &[&dy, &w]);
}

#[test]
fn statistics_beside_bf16_are_f32() {
    let mut r = Random(43);
    let (x, dy) = (tensor(&mut r, DType::Bf16, &[6, 40]), tensor(&mut r, DType::Bf16, &[6, 40]));
    let [scale, bias] = [0; 2].map(|_| tensor(&mut r, DType::F32, &[40]));
    let [mean, inv_std] = [0; 2].map(|_| tensor(&mut r, DType::F32, &[6, 1]));
    hold(&Op::LayerNorm { axis: 1, epsilon: 1e-5 }, &[&x, &scale, &bias]);
    hold(&Op::LayerNormParamGrad { axis: 1 }, &[&x, &dy, &mean, &inv_std]);
    hold(&Op::LayerNormInputGrad { axis: 1 }, &[&x, &dy, &scale, &mean, &inv_std]);
    let of_channels = |r: &mut Random| tensor(r, DType::F32, &[40]);
    let [mean, inv_std, dscale, dbias] = [0; 4].map(|_| of_channels(&mut r));
    hold(&Op::BatchNorm { epsilon: 1e-5 }, &[&x, &scale, &bias]);
    hold(&Op::BatchNormParamGrad, &[&x, &dy, &mean, &inv_std]);
    let operands = [&x, &dy, &scale, &mean, &inv_std, &dscale, &dbias];
    hold(&Op::BatchNormInputGrad, &operands);
    for op in [Op::Softmax { axis: 1 }, Op::LogSoftmax { axis: 0 }, Op::LogSoftmaxStats] {
        hold(&op, &[&x]);
    }
    let [max, ln_sum, w] = [0; 3].map(|_| tensor(&mut r, DType::F32, &[6, 1]));
    let target = indices(&mut r, &[6, 1], 40);
    hold(&Op::SoftmaxOfStats, &[&x, &max, &ln_sum]);
    hold(&Op::CrossEntropyGrad, &[&x, &max, &ln_sum, &target, &w]);
    for f in [Reduction::Sum, Reduction::Mean, Reduction::Max] {
        hold(&Op::Reduce { f, axes: vec![0], keep: false }, &[&x]);
    }
    let rows = |r: &mut Random, n: usize, d: usize| tensor(r, DType::Bf16, &[2, n, d]);
    let (q, k, v) = (rows(&mut r, 9, 8), rows(&mut r, 7, 8), rows(&mut r, 7, 5));
    let mask = tensor(&mut r, DType::F32, &[9, 7]);
    let spec = AttentionSpec::scaled(0.5);
    hold(&Op::Attention { spec }, &[&q, &k, &v, &mask]);
    let stats = apply(&Op::Attention { spec }, &[&q, &k, &v, &mask], None, &[false, true, true]);
    let dy = rows(&mut r, 9, 5);
    let o = rows(&mut r, 9, 5);
    let operands = [&q, &k, &v, &stats[0], &stats[1], &dy, &o, &mask];
    hold(&Op::AttentionGrad { spec, of_mask: true, has_result: true }, &operands);
    let without = [&operands[..6], &[&mask]].concat();
    hold(&Op::AttentionGrad { spec, of_mask: true, has_result: false }, &without);
}

#[test]
fn elements_that_are_moved_keep_their_bits() {
    let mut r = Random(44);
    let x = tensor(&mut r, DType::Bf16, &[4, 6]);
    hold(&Op::Transpose { perm: vec![1, 0] }, &[&x]);
    hold(&Op::Concat { axis: 0 }, &[&x, &x]);
    hold(&Op::Gather { axis: 1 }, &[&x, &indices(&mut r, &[3], 6)]);
    hold(&Op::Slice { starts: vec![1, 5], steps: vec![1, -2], shape: vec![2, 3] }, &[&x]);
    let at = indices(&mut r, &[2, 6], 4);
    let updates = tensor(&mut r, DType::Bf16, &[2, 6]);
    for reduction in [Scatter::Replace, Scatter::Max] {
        hold(&Op::ScatterElements { axis: 0, reduction }, &[&x, &at, &updates]);
    }
    let pad = Op::Pad { starts: vec![1, 0], steps: vec![1, 1], shape: vec![6, 7], value: 0.1 };
    hold(&pad, &[&x]);
}
