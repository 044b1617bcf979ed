//! Operators on tensors whose channels are last give what they give otherwise, element by element.

use super::random::Random;
use super::{Tensor, apply, assert_same, evaluate};
use arenic_ir::op::channels_last::{is_turned, last, last_axis};
use arenic_ir::op::{PoolIndices, Window};
use arenic_ir::types::dense_strides;
use arenic_ir::{DType, Op, TensorType};

/// The tensor with its channels last, moved index by index.
fn turned(t: &Tensor) -> Tensor {
    if !is_turned(&t.ty) {
        return t.clone();
    }
    let (rank, ty) = (t.ty.rank(), last(&t.ty));
    let (from, to) = (dense_strides(&t.ty.shape), dense_strides(&ty.shape));
    let mut values = vec![0.0; t.values.len()];
    for (i, &x) in t.values.iter().enumerate() {
        let index = |axis: usize| i / from[axis] % t.ty.shape[axis];
        values[(0..rank).map(|axis| index(axis) * to[last_axis(rank, axis)]).sum::<usize>()] = x;
    }
    Tensor { ty, values }
}

/// All results have the bits of those with channels second; the first one on several threads, too.
fn hold(of: Op, inputs: &[&Tensor]) {
    let types: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let count = of.infer(&types).expect("operands fit").len();
    let expected: Vec<Tensor> = apply(&of, inputs, None, &vec![true; count]);
    let expected: Vec<Tensor> = expected.iter().map(turned).collect();
    let last: Vec<Tensor> = inputs.iter().map(|t| turned(t)).collect();
    let last: Vec<&Tensor> = last.iter().collect();
    let op = Op::ChannelsLast { of: Box::new(of) };
    assert_same(&evaluate(&op, &last), &expected[0], &op);
    for (o, expected) in expected.iter().enumerate() {
        let wanted: Vec<bool> = (0..count).map(|i| i == o).collect();
        assert_same(&apply(&op, &last, None, &wanted)[0], expected, &op);
    }
}

fn window(r: &mut Random, rank: usize) -> Window {
    let mut of = |low, high| -> Vec<usize> { (0..rank).map(|_| r.range(low, high)).collect() };
    let (kernel, strides, dilations) = (of(1, 3), of(1, 2), of(1, 2));
    let (pads_begin, pads_end) = (of(0, 1), of(0, 1));
    Window { kernel, strides, dilations, pads_begin, pads_end }
}

#[test]
fn convolutions_and_their_gradients() {
    let mut r = Random(90);
    for i in 0..60 {
        let dtype = [DType::F32, DType::F64, DType::Bf16][i % 3];
        let (window, group) = (window(&mut r, 1 + i % 3), r.choose(&[1, 2]));
        let spatial: Vec<usize> = (0..window.rank()).map(|_| r.range(5, 8)).collect();
        let channels = 2 * r.range(1, 3);
        let x = r.tensor(dtype, [&[2, channels], &spatial[..]].concat());
        let w = r.tensor(dtype, [&[4, channels / group], &window.kernel[..]].concat());
        let bias = r.tensor(dtype, [4]);
        let conv = Op::Conv { window: window.clone(), group };
        let y = evaluate(&conv, &[&x, &w, &bias]);
        hold(conv, &[&x, &w, &bias]);
        hold(Op::ConvWeightGrad { window: window.clone(), group }, &[&x, &y]);
        let output_padding = vec![0; window.rank()];
        hold(Op::ConvTranspose { window, group, output_padding }, &[&y, &w]);
    }
}

#[test]
fn pools_and_their_gradients() {
    let mut r = Random(91);
    for i in 0..60 {
        let dtype = [DType::F32, DType::F64, DType::Bf16][i % 3];
        let mut window = window(&mut r, 1 + i % 3);
        // Padding is less than what the window spans.
        for d in 0..window.rank() {
            let most = (window.kernel[d] - 1) * window.dilations[d];
            window.pads_begin[d] = window.pads_begin[d].min(most);
            window.pads_end[d] = window.pads_end[d].min(most);
        }
        let (ceil, count_include_pad) = (r.chance(), r.chance());
        let indices = PoolIndices::ALL[i % 3];
        let spatial: Vec<usize> = (0..window.rank()).map(|_| r.range(5, 8)).collect();
        let channels = r.range(1, 5);
        let x = r.tensor(dtype, [&[2, channels], &spatial[..]].concat());
        let shape = x.ty.shape.clone();
        let max = Op::MaxPool { window: window.clone(), ceil, indices };
        let pooled = apply(&max, &[&x], None, &[true, true]);
        let dy = r.tensor(dtype, pooled[0].ty.shape.clone());
        hold(max, &[&x]);
        let of = window.clone();
        let max = Op::MaxPoolGrad { window: of, ceil, indices, shape: shape.clone() };
        hold(max, &[&dy, &pooled[1]]);
        hold(Op::AveragePool { window: window.clone(), ceil, count_include_pad }, &[&x]);
        hold(Op::AveragePoolGrad { window, ceil, count_include_pad, shape }, &[&dy]);
    }
}
