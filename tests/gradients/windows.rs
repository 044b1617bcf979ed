//! Pools and resizing.

use super::*;
use arenic_ir::op::{
    Coordinates, Interpolation, NearestMode, PoolIndices, ResizeSpec, Scale, Window,
};

fn window(r: &mut Rng, rank: usize) -> Window {
    let kernel: Vec<usize> = (0..rank).map(|_| r.usize(1..4)).collect();
    let dilations: Vec<usize> = (0..rank).map(|_| r.usize(1..3)).collect();
    let pads = |r: &mut Rng| kernel.iter().map(|&k| r.usize(0..k)).collect();
    Window {
        strides: (0..rank).map(|_| r.usize(1..4)).collect(),
        pads_begin: pads(r),
        pads_end: pads(r),
        kernel,
        dilations,
    }
}

#[test]
fn pools() {
    for seed in 0..2 * CASES {
        let r = &mut Rng::with_seed(seed);
        let rank = r.usize(1..3);
        let window = window(r, rank);
        let mut x = vec![r.usize(1..3), r.usize(1..3)];
        x.extend((0..rank).map(|i| window.span(i) + r.usize(0..4)));
        let (ceil, count_include_pad) = (r.bool(), r.bool());
        let operand = trained(r, &x);
        let max = Op::MaxPool {
            window: window.clone(),
            ceil,
            indices: *r.choice(&PoolIndices::ALL).expect("some"),
        };
        case(&max, std::slice::from_ref(&operand));
        case(&Op::AveragePool { window, ceil, count_include_pad }, &[operand]);
    }
}

#[test]
fn resized() {
    let modes = [
        Interpolation::Nearest(NearestMode::RoundPreferFloor),
        Interpolation::Nearest(NearestMode::Ceil),
        Interpolation::Linear,
        Interpolation::Cubic { a: -0.75 },
    ];
    let coordinates = [
        Coordinates::HalfPixel,
        Coordinates::PytorchHalfPixel,
        Coordinates::AlignCorners,
        Coordinates::Asymmetric,
    ];
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let x = vec![r.usize(1..3), r.usize(1..3), r.usize(2..5), r.usize(2..5)];
        let mut sizes = x.clone();
        sizes[2] = r.usize(1..8);
        sizes[3] = r.usize(1..8);
        let scales =
            x.iter().zip(&sizes).map(|(&i, &o)| Scale::Ratio(o as u32, i as u32)).collect();
        let mode = modes[r.usize(0..modes.len())];
        let spec = ResizeSpec {
            sizes,
            scales,
            roi: Vec::new(),
            mode,
            coordinates: coordinates[r.usize(0..coordinates.len())],
            exclude_outside: r.bool() && matches!(mode, Interpolation::Cubic { .. }),
            antialias: false,
            extrapolation: 0.0,
        };
        case(&Op::Resize { spec }, &[trained(r, &x)]);
    }
}
