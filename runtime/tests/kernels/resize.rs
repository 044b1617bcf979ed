//! `Resize`; expected values are those of ONNX's own node tests.

use super::*;
use arenic_ir::op::{Coordinates, Interpolation, NearestMode, ResizeSpec};

fn spec(mode: Interpolation, sizes: [usize; 2], scales: [f32; 2]) -> ResizeSpec {
    ResizeSpec {
        sizes: [&[1, 1], &sizes[..]].concat(),
        scales: [&[1.0, 1.0], &scales[..]].concat(),
        roi: vec![],
        mode,
        coordinates: Coordinates::HalfPixel,
        exclude_outside: false,
        antialias: false,
        extrapolation: 0.0,
    }
}

fn resized(dtype: DType, shape: [usize; 2], spec: ResizeSpec) -> Vec<f64> {
    let values = (0..shape[0] * shape[1]).map(|i| (i + 1) as f64).collect();
    let x = Tensor::new(dtype, [1, 1, shape[0], shape[1]], values);
    evaluate(&Op::Resize { spec }, &[&x]).values
}

fn check(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() < 1e-5, "{got:?} is not {want:?}");
    }
}

#[test]
fn nearest() {
    let s = spec(Interpolation::Nearest(NearestMode::RoundPreferFloor), [4, 6], [2.0, 3.0]);
    let want = [
        [1.0, 1.0, 1.0, 2.0, 2.0, 2.0],
        [1.0, 1.0, 1.0, 2.0, 2.0, 2.0],
        [3.0, 3.0, 3.0, 4.0, 4.0, 4.0],
        [3.0, 3.0, 3.0, 4.0, 4.0, 4.0],
    ];
    for dtype in [DType::F32, DType::F64, DType::U8, DType::I32] {
        check(&resized(dtype, [2, 2], s.clone()), want.as_flattened());
    }
}

#[test]
fn linear_and_its_extensions() {
    let s = spec(Interpolation::Linear, [4, 4], [2.0, 2.0]);
    let want = [
        [1.0, 1.25, 1.75, 2.0],
        [1.5, 1.75, 2.25, 2.5],
        [2.5, 2.75, 3.25, 3.5],
        [3.0, 3.25, 3.75, 4.0],
    ];
    check(&resized(DType::F32, [2, 2], s.clone()), want.as_flattened());
    let corners = ResizeSpec { coordinates: Coordinates::AlignCorners, ..s };
    let got = resized(DType::F64, [2, 2], corners);
    check(&[got[0], got[1], got[5], got[15]], &[1.0, 4.0 / 3.0, 2.0, 4.0]);
    let mut s = spec(Interpolation::Linear, [1, 2], [0.6, 0.6]);
    check(&resized(DType::F32, [2, 4], s.clone()), &[2.666_666_5, 4.333_333]);
    s.antialias = true;
    s.sizes[2..].copy_from_slice(&[2, 2]);
    check(&resized(DType::F32, [4, 4], s), &[2.875, 4.5, 9.375, 11.0]);
}

#[test]
fn cubic_excluding_what_lies_outside() {
    let mut s = spec(Interpolation::Cubic { a: -0.5 }, [8, 8], [2.0, 2.0]);
    s.exclude_outside = true;
    let got = resized(DType::F32, [4, 4], s);
    check(&got[..4], &[0.558_823_5, 0.814_942, 1.356_982_4, 1.897_058_8]);
}

#[test]
fn crops_extrapolate() {
    let mut s = spec(Interpolation::Linear, [3, 3], [0.75, 0.75]);
    s.coordinates = Coordinates::TfCropAndResize;
    s.roi = vec![(0.0, 1.0), (0.0, 1.0), (0.4, 1.2), (0.6, 1.7)];
    s.extrapolation = 10.0;
    let got = resized(DType::F32, [4, 4], s);
    check(&got, &[7.6, 10.0, 10.0, 12.4, 10.0, 10.0, 10.0, 10.0, 10.0]);
}
