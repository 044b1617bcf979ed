//! Pools over one to three axes, their gradients, both also with channels last, and resizes in every
//! mode.

use super::random::Random;
use super::{Case, Close, Tensor};
use arenic_ir::op::{
    Coordinates, Interpolation, NearestMode, PoolIndices, ResizeSpec, Scale, Window,
};
use arenic_ir::{DType, Op, TensorType};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::evaluate;

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for d in [DType::F32, DType::F64, DType::Bf16, DType::U8, DType::I16, DType::I64] {
        for _ in 0..16 {
            cases.push(max_pool(r, d));
        }
    }
    for d in [DType::F32, DType::F64, DType::Bf16] {
        for _ in 0..24 {
            cases.push(average_pool(r, d));
            cases.push(average_pool_grad(r, d));
            cases.push(max_pool_grad(r, d));
        }
    }
    let last: Vec<Case> = cases.iter().map(Case::channels_last).collect();
    cases.extend(last);
    cases.extend(large(r));
    for d in [DType::F32, DType::F64, DType::I32, DType::U8] {
        for _ in 0..40 {
            cases.push(resize(r, d));
        }
    }
    cases
}

/// So many elements that a thread has several channels, where they are last; each once more, where operands begin
/// at any element.
fn large(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for (d, channels) in [
        (DType::F32, 16),
        (DType::Bf16, 16),
        (DType::Bf16, 12),
        (DType::F64, 6),
        (DType::F32, 7),
        (DType::U8, 8),
    ] {
        let side = (1usize << 17).div_ceil(2 * channels * 40) + r.range(1, 4);
        let window = Window {
            kernel: vec![3, 3],
            strides: vec![2, r.range(1, 2)],
            dilations: vec![1, 1],
            pads_begin: vec![1, 0],
            pads_end: vec![1, 1],
        };
        let x = r.wild(d, [2, channels, side, 40]);
        let (ceil, indices) = (r.chance(), PoolIndices::Taps);
        let forward = Op::MaxPool { window: window.clone(), ceil, indices };
        let made = evaluate(&forward, &[(&x.ty, &x.bytes)], Draw::default()).unwrap().remove(1);
        if d.is_float() {
            let dy = r.tame(d, made.0.shape.clone());
            let taps = Tensor { ty: made.0, bytes: made.1 };
            let op = Op::MaxPoolGrad { window, ceil, indices, shape: x.ty.shape.clone() };
            cases.push(Case::new(op, [dy, taps]).channels_last());
        }
        cases.push(Case::new(forward, [x]).channels_last());
    }
    cases.into_iter().flat_map(|case| [case.clone(), case]).collect()
}

/// A window and an operand that it fits, with more taps than one thread walks now and then.
fn window(r: &mut Random, d: DType, ceil: bool) -> (Window, Tensor) {
    let rank = r.range(1, 3);
    let large = r.range(0, 3) == 0;
    let mut list = |low: usize, high: usize| (0..rank).map(|_| r.range(low, high)).collect();
    let kernel: Vec<usize> = match (large, rank) {
        (false, _) => list(1, 3),
        (true, 1) => list(65, 80),
        (true, 2) => list(9, 11),
        (true, _) => list(4, 6),
    };
    let (strides, dilations): (Vec<usize>, Vec<usize>) = (list(1, 3), list(1, 2));
    let span = |i: usize| (kernel[i] - 1) * dilations[i] + 1;
    let mut pads = || (0..rank).map(|i| r.range(0, (span(i) - 1).min(3))).collect::<Vec<_>>();
    let (pads_begin, pads_end) = (pads(), pads());
    let least: Vec<usize> = (0..rank).map(span).collect();
    let window = Window { kernel, strides, dilations, pads_begin, pads_end };
    let mut shape = vec![r.range(0, 8).min(2), r.range(1, 3)];
    for (i, &least) in least.iter().enumerate() {
        let padding = window.pads_begin[i] + window.pads_end[i];
        shape.push((least + r.range(0, 7)).saturating_sub(padding).max(1));
    }
    assert!(window.slide(&shape[2..], ceil).is_ok());
    let x = if r.chance() { r.wild(d, shape) } else { r.tame(d, shape) };
    (window, x)
}

fn max_pool(r: &mut Random, d: DType) -> Case {
    let (ceil, indices) = (r.chance(), r.choose(&PoolIndices::ALL));
    let (window, x) = window(r, d, ceil);
    Case::new(Op::MaxPool { window, ceil, indices }, [x])
}

fn average_pool(r: &mut Random, d: DType) -> Case {
    let (ceil, count_include_pad) = (r.chance(), r.chance());
    let (window, Tensor { ty, .. }) = window(r, d, ceil);
    let x = r.tame(d, ty.shape);
    Case::new(Op::AveragePool { window, ceil, count_include_pad }, [x]).close(Close::SUM)
}

fn average_pool_grad(r: &mut Random, d: DType) -> Case {
    let (ceil, count_include_pad) = (r.chance(), r.chance());
    let (window, Tensor { ty, .. }) = window(r, d, ceil);
    let forward = Op::AveragePool { window: window.clone(), ceil, count_include_pad };
    let y = forward.infer(&[&ty]).unwrap().remove(0);
    let op = Op::AveragePoolGrad { window, ceil, count_include_pad, shape: ty.shape };
    Case::new(op, [r.tame(d, y.shape)]).close(Close::SUM)
}

/// Indices of the pool itself, some of them moved: to another window, or out of bounds.
fn max_pool_grad(r: &mut Random, d: DType) -> Case {
    let (ceil, indices) = (r.chance(), r.choose(&PoolIndices::ALL));
    let (window, x) = window(r, d, ceil);
    let forward = Op::MaxPool { window: window.clone(), ceil, indices };
    let (ty, mut bytes) =
        evaluate(&forward, &[(&x.ty, &x.bytes)], Draw::default()).unwrap().remove(1);
    let total = x.ty.elements() as i64;
    let moved = r.range(0, 3);
    if indices == PoolIndices::Taps && moved > 0 {
        for byte in &mut bytes {
            *byte = if r.range(0, 8) == 0 { r.bits() as u8 } else { *byte };
        }
    }
    let positions = if indices == PoolIndices::Taps { &mut [] } else { &mut bytes[..] };
    for index in positions.as_chunks_mut().0 {
        let old = i64::from_le_bytes(*index);
        let new = match (moved, r.range(0, 8)) {
            (1 | 2, 0) => old - total,
            (1 | 2, 1) => r.range(0, total as usize - 1) as i64,
            (2, 2) => r.choose(&[total, -total - 1]),
            _ => old,
        };
        *index = new.to_le_bytes();
    }
    let dy = r.tame(d, ty.shape.clone());
    let op = Op::MaxPoolGrad { window, ceil, indices, shape: x.ty.shape };
    Case::new(op, [dy, Tensor { ty, bytes }])
}

fn resize(r: &mut Random, d: DType) -> Case {
    let shape: Vec<usize> = (0..r.range(0, 4)).map(|_| r.range(1, 9)).collect();
    let coordinates = r.choose(&[
        Coordinates::HalfPixel,
        Coordinates::HalfPixelSymmetric,
        Coordinates::PytorchHalfPixel,
        Coordinates::AlignCorners,
        Coordinates::Asymmetric,
        Coordinates::TfCropAndResize,
    ]);
    let mode = r.choose(&[
        Interpolation::Nearest(NearestMode::RoundPreferFloor),
        Interpolation::Nearest(NearestMode::RoundPreferCeil),
        Interpolation::Nearest(NearestMode::Floor),
        Interpolation::Nearest(NearestMode::Ceil),
        Interpolation::Linear,
        Interpolation::Linear,
        Interpolation::Cubic { a: -0.75 },
        Interpolation::Cubic { a: -0.5 },
    ]);
    let (mut sizes, mut scales) = (Vec::new(), Vec::new());
    for &n in &shape {
        let scale: f32 = r.choose(&[1.0, 1.0, 2.0, 0.5, 1.7, 0.3, 2.5]);
        let size = (n as f64 * f64::from(scale)).floor() as usize;
        // Where the extent is given, the scale follows from it.
        let given = size == 0 || r.chance();
        let size = if given { r.range(1, 14) } else { size };
        sizes.push(size);
        let ratio = Scale::Ratio(size as u32, n as u32);
        scales.push(if given { ratio } else { Scale::Number(scale) });
    }
    let crops = coordinates == Coordinates::TfCropAndResize && r.chance();
    let corner = |r: &mut Random| (r.uniform(-0.2, 0.6) as f32, r.uniform(0.5, 1.2) as f32);
    let roi = if crops { shape.iter().map(|_| corner(r)).collect() } else { Vec::new() };
    let spec = ResizeSpec {
        sizes,
        scales,
        roi,
        mode,
        coordinates,
        exclude_outside: r.chance(),
        antialias: r.range(0, 2) == 0,
        extrapolation: 3.5,
    };
    let op = Op::Resize { spec };
    let x = r.tame(d, shape);
    assert!(op.infer(&[&TensorType::new(d, x.ty.shape.clone())]).is_ok());
    Case::new(op, [x]).close(Close::SUM)
}
