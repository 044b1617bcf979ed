//! Convolutions and their transposes with every kind of window, also with channels last.

use super::random::Random;
use super::{Case, Close};
use arenic_ir::op::Window;
use arenic_ir::{DType, Op};

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for d in [DType::F32, DType::F64, DType::Bf16] {
        for _ in 0..16 {
            let window = any_window(r);
            cases.extend(convolution(r, d, window));
            let window = any_window(r);
            cases.extend(transposed(r, d, window));
            let window = any_window(r);
            cases.extend(weight_gradient(r, d, window));
        }
    }
    // Those that libraries have words for.
    for i in 0..24 {
        let d = if i % 3 == 0 { DType::Bf16 } else { DType::F32 };
        let window = even_window(r);
        cases.extend(convolution(r, d, window));
        let window = even_window(r);
        cases.extend(transposed(r, d, window));
        let window = even_window(r);
        cases.extend(weight_gradient(r, d, window));
    }
    // As a gradient of weights: few results of long sums.
    let large = window(r, &[20, 30], true);
    let inputs = [r.tame(DType::F32, [3, 16, 22, 32]), r.tame(DType::F32, [5, 16, 20, 30])];
    cases.push(Case::new(Op::Conv { window: large, group: 1 }, inputs).close(Close::LONG_SUM));
    let window = window(r, &[3, 3], true);
    let inputs = [r.tame(DType::F32, [16, 5, 22, 32]), r.tame(DType::F32, [16, 3, 20, 30])];
    cases.push(Case::new(Op::ConvWeightGrad { window, group: 1 }, inputs).close(Close::LONG_SUM));
    let last: Vec<Case> = cases.iter().map(Case::channels_last).collect();
    cases.extend(last);
    cases
}

/// A window of this extent, or of a random one of this rank.
fn window(r: &mut Random, kernel: &[usize], plain: bool) -> Window {
    let mut of = |low, high| -> Vec<usize> {
        kernel.iter().map(|_| if plain { 1 } else { r.range(low, high) }).collect()
    };
    let (strides, dilations) = (of(1, 3), of(1, 2));
    let mut pads = || if plain { vec![0; kernel.len()] } else { of(0, 2) };
    let (pads_begin, pads_end) = (pads(), pads());
    Window { kernel: kernel.to_vec(), strides, dilations, pads_begin, pads_end }
}

fn any_window(r: &mut Random) -> Window {
    let kernel: Vec<usize> = (0..r.range(1, 3)).map(|_| r.range(1, 3)).collect();
    let plain = r.range(0, 3) == 0;
    window(r, &kernel, plain)
}

/// A window over one or two axes with the same padding on both sides.
fn even_window(r: &mut Random) -> Window {
    let kernel: Vec<usize> = (0..r.range(1, 2)).map(|_| r.range(1, 3)).collect();
    let window = window(r, &kernel, false);
    Window { pads_end: window.pads_begin.clone(), ..window }
}

/// `None` if the window does not fit.
fn convolution(r: &mut Random, d: DType, window: Window) -> Option<Case> {
    let group = r.choose(&[1, 1, 2, 3]);
    let (inputs, channels) = (r.range(1, 4), r.range(1, 4));
    let spatial =
        |r: &mut Random| -> Vec<usize> { window.kernel.iter().map(|_| r.range(3, 9)).collect() };
    let x = [vec![r.range(1, 3), inputs * group], spatial(r)].concat();
    let w = [vec![channels * group, inputs], window.kernel.clone()].concat();
    let mut operands = vec![r.tame(d, x), r.tame(d, w)];
    if r.chance() {
        operands.push(r.tame(d, [channels * group]));
    }
    let op = Op::Conv { window, group };
    let types: Vec<_> = operands.iter().map(|t| &t.ty).collect();
    op.infer(&types).ok()?;
    Some(Case::new(op, operands).close(Close::SUM))
}

/// Of a convolution of random extents; `None` if its window does not fit.
fn weight_gradient(r: &mut Random, d: DType, window: Window) -> Option<Case> {
    let forward = convolution(r, d, window)?;
    let Op::Conv { window, group } = forward.op.clone() else { return None };
    let types: Vec<_> = forward.inputs.iter().map(|t| &t.ty).collect();
    let dy = forward.op.infer(&types).ok()?.swap_remove(0);
    let inputs = [forward.inputs[0].clone(), r.tame(d, dy.shape)];
    Some(Case::new(Op::ConvWeightGrad { window, group }, inputs).close(Close::SUM))
}

fn transposed(r: &mut Random, d: DType, window: Window) -> Option<Case> {
    let group = r.choose(&[1, 1, 2, 3]);
    let (inputs, channels) = (r.range(1, 4), r.range(1, 4));
    let spatial: Vec<usize> = window.kernel.iter().map(|_| r.range(1, 6)).collect();
    let x = [vec![r.range(1, 3), inputs * group], spatial].concat();
    let w = [vec![inputs * group, channels], window.kernel.clone()].concat();
    let output_padding = window.kernel.iter().map(|_| r.range(0, 1)).collect();
    let mut operands = vec![r.tame(d, x), r.tame(d, w)];
    if r.chance() {
        operands.push(r.tame(d, [channels * group]));
    }
    let op = Op::ConvTranspose { window, group, output_padding };
    let types: Vec<_> = operands.iter().map(|t| &t.ty).collect();
    op.infer(&types).ok()?;
    Some(Case::new(op, operands).close(Close::SUM))
}
