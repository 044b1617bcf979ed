//! `Resize`; expected values are those of ONNX's own node tests, or of its definition.

use super::*;
use arenic_ir::op::{Coordinates, Interpolation, NearestMode, ResizeSpec, Scale};

fn spec(mode: Interpolation, sizes: [usize; 2], scales: [f32; 2]) -> ResizeSpec {
    ResizeSpec {
        sizes: [&[1, 1], &sizes[..]].concat(),
        scales: [&[1.0, 1.0], &scales[..]].concat().into_iter().map(Scale::Number).collect(),
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

/// Keys' cubic of a = -0.75.
fn keys(x: f64) -> f64 {
    match x.abs() {
        x if x <= 1.0 => (1.25 * x - 2.25) * x * x + 1.0,
        x if x < 2.0 => ((-0.75 * x + 3.75) * x - 6.0) * x + 3.0,
        _ => 0.0,
    }
}

/// What lies at a place between elements, which are read by their indices.
type At = dyn Fn(f64, &dyn Fn(f64) -> f64) -> f64;

/// Whole factors repeat what they read, other ones do not; strips end anywhere.
#[test]
fn rows_of_any_width() {
    let mut r = Random(16);
    for width in [1, 2, 3, 5, 8, 31, 64, 65, 127, 150] {
        for factor in [1.0, 2.0, 2.5, 3.0, 4.0, 5.0] {
            let size = (width as f64 * factor) as usize;
            let x = r.tensor(DType::F32, vec![1, 1, 2, width]);
            let resized = |mode| {
                let spec = spec(mode, [2, size], [1.0, factor as f32]);
                evaluate(&Op::Resize { spec }, &[&x]).values
            };
            let wanted = |of: &At| -> Vec<f64> {
                let element = |row: usize, o: usize| {
                    let last = (width - 1) as f64;
                    let read = |i: f64| x.values[row * width + i.clamp(0.0, last) as usize];
                    of((o as f64 + 0.5) / factor - 0.5, &read)
                };
                (0..2 * size).map(|i| element(i / size, i % size)).collect()
            };
            let nearest = resized(Interpolation::Nearest(NearestMode::RoundPreferFloor));
            check(&nearest, &wanted(&|at, read| read((at - 0.5).ceil())));
            let linear = |at: f64, read: &dyn Fn(f64) -> f64| {
                let (i, part) = (at.floor(), at - at.floor());
                read(i) * (1.0 - part) + read(i + 1.0) * part
            };
            check(&resized(Interpolation::Linear), &wanted(&linear));
            let cubic = |at: f64, read: &dyn Fn(f64) -> f64| {
                let taps = [-1.0, 0.0, 1.0, 2.0].map(|t| at.floor() + t);
                taps.iter().map(|&tap| read(tap) * keys(at - tap)).sum()
            };
            check(&resized(Interpolation::Cubic { a: -0.75 }), &wanted(&cubic));
        }
    }
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

/// A fraction, whose denominator is positive.
#[derive(Clone, Copy, Debug)]
struct Fraction(i128, i128);

impl Fraction {
    fn floor(self) -> i128 {
        self.0.div_euclid(self.1)
    }

    fn plus(self, other: Fraction) -> Fraction {
        Fraction(self.0 * other.1 + other.0 * self.1, self.1 * other.1)
    }

    fn times(self, other: Fraction) -> Fraction {
        Fraction(self.0 * other.0, self.1 * other.1)
    }

    fn over(self, other: Fraction) -> Fraction {
        let sign = other.0.signum();
        Fraction(self.0 * other.1 * sign, self.1 * other.0 * sign)
    }

    fn number(self) -> f64 {
        self.floor() as f64 + self.0.rem_euclid(self.1) as f64 / self.1 as f64
    }
}

/// ONNX's formulas, word by word; `length` is the scale times the operand's extent.
fn original(c: Coordinates, o: usize, extents: [usize; 2], scale: Fraction) -> Fraction {
    let whole = |x: usize| Fraction(x as i128, 1);
    let (half, minus_half) = (Fraction(1, 2), Fraction(-1, 2));
    let [x, y] = extents;
    let length = scale.times(whole(x));
    let half_pixel = whole(o).plus(half).over(scale).plus(minus_half);
    match c {
        Coordinates::HalfPixel => half_pixel,
        Coordinates::HalfPixelSymmetric => {
            let adjustment = whole(y).over(length);
            let offset =
                whole(x).times(half).times(Fraction(adjustment.1 - adjustment.0, adjustment.1));
            offset.plus(half_pixel)
        }
        Coordinates::PytorchHalfPixel if y > 1 => half_pixel,
        Coordinates::AlignCorners if y > 1 => {
            whole(o).times(whole(x - 1)).over(length.plus(Fraction(-1, 1)))
        }
        Coordinates::PytorchHalfPixel | Coordinates::AlignCorners => whole(0),
        Coordinates::Asymmetric => whole(o).over(scale),
        Coordinates::TfCropAndResize => unreachable!("given by floats"),
    }
}

/// Which element is the nearest, and what lies linearly between two, of a row of elements that are
/// their own indices, are as exact arithmetic has them: for pairs of extents, where coordinates
/// lie on elements and half-way between them, and for scales in single precision.
#[test]
fn coordinates_are_exact() {
    use Coordinates::*;
    let all = [HalfPixel, HalfPixelSymmetric, PytorchHalfPixel, AlignCorners, Asymmetric];
    let modes = [
        NearestMode::RoundPreferFloor,
        NearestMode::RoundPreferCeil,
        NearestMode::Floor,
        NearestMode::Ceil,
    ];
    let mut r = Random(7);
    for case in 0..600 {
        let x = r.range(1, if case % 3 == 0 { 2000 } else { 40 });
        let (y, scale, exact) = if case % 2 == 0 {
            let y = r.range(1, if case % 5 == 0 { 2000 } else { 40 });
            (y, Scale::Ratio(y as u32, x as u32), Fraction(y as i128, x as i128))
        } else {
            let scale = r.choose(&[0.6f32, 1.0 / 3.0, 0.1, 1.7, 2.0, 2.5, 0.7, 3.3, 0.999]);
            let y = (x as f32 * scale).floor() as usize;
            // 2^48 times a float above 2^-24 is an integer.
            let numerator = (f64::from(scale) * (1u64 << 48) as f64) as i128;
            (y, Scale::Number(scale), Fraction(numerator, 1 << 48))
        };
        if y == 0 {
            continue;
        }
        let coordinates = all[case % all.len()];
        let spec = |mode| ResizeSpec {
            sizes: vec![y],
            scales: vec![scale],
            coordinates,
            ..spec(mode, [1, 1], [1.0, 1.0])
        };
        let row = Tensor::new(DType::F64, [x], (0..x).map(|i| i as f64).collect());
        let what = format!("{coordinates:?}, {x} to {y} by {scale}");
        let last = (x - 1) as i128;
        for mode in modes {
            let op = Op::Resize { spec: spec(Interpolation::Nearest(mode)) };
            for (o, &got) in evaluate(&op, &[&row]).values.iter().enumerate() {
                let at = original(coordinates, o, [x, y], exact);
                let minus_ceil = Fraction(-at.0, at.1).floor();
                let (up, down) =
                    (at.plus(Fraction(1, 2)), Fraction(-at.0, at.1).plus(Fraction(1, 2)));
                let nearest = match mode {
                    NearestMode::RoundPreferFloor => -down.floor(),
                    NearestMode::RoundPreferCeil => up.floor(),
                    NearestMode::Floor => at.floor(),
                    NearestMode::Ceil => -minus_ceil,
                };
                let kept = if x == y && exact.0 == exact.1 { o as i128 } else { nearest };
                assert_eq!(got, kept.clamp(0, last) as f64, "{what}, {mode:?}, index {o}");
            }
        }
        let op = Op::Resize { spec: spec(Interpolation::Linear) };
        for (o, &got) in evaluate(&op, &[&row]).values.iter().enumerate() {
            let want = original(coordinates, o, [x, y], exact).number().clamp(0.0, last as f64);
            assert!(
                (got - want).abs() <= 1e-12 * want.max(1.0),
                "{what}, index {o}: {got}, {want}"
            );
        }
    }
}

/// Rows that ONNX Runtime gives, too: corners are aligned, and one element is the first.
#[test]
fn corners_and_single_elements() {
    let nearest = |coordinates, mode, x: usize, y: usize| {
        let spec = ResizeSpec {
            sizes: vec![y],
            scales: vec![Scale::Ratio(y as u32, x as u32)],
            coordinates,
            ..spec(Interpolation::Nearest(mode), [1, 1], [1.0, 1.0])
        };
        let row = Tensor::new(DType::F32, [x], (0..x).map(|i| i as f64).collect());
        evaluate(&Op::Resize { spec }, &[&row]).values
    };
    assert_eq!(nearest(Coordinates::AlignCorners, NearestMode::Floor, 3, 2), [0.0, 2.0]);
    assert_eq!(nearest(Coordinates::PytorchHalfPixel, NearestMode::Ceil, 6, 1), [0.0]);
    let cubic = ResizeSpec {
        sizes: vec![1],
        scales: vec![Scale::Number(0.3)],
        coordinates: Coordinates::PytorchHalfPixel,
        ..spec(Interpolation::Cubic { a: -0.75 }, [1, 1], [1.0, 1.0])
    };
    let row = Tensor::new(DType::F32, [6], vec![3.0, 1.0, -4.0, 1.0, 5.0, 9.0]);
    assert_eq!(evaluate(&Op::Resize { spec: cubic }, &[&row]).values, [3.0]);
}
