//! Normalisations and gradients against plain loops, and gradients against differences of what
//! they are the gradients of.

use super::*;

/// The slopes of `Σ dy · y` over operand `k`, where `y` is the operator's first result.
pub(super) fn slopes(op: &Op, inputs: &[&Tensor], k: usize, dy: &Tensor) -> Vec<f64> {
    let types: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let results = op.infer(&types).expect("operands fit").len();
    let wanted: Vec<bool> = (0..results).map(|o| o == 0).collect();
    let step = 1e-5;
    let at = |i: usize, step: f64| {
        let mut moved = inputs[k].clone();
        moved.values[i] += step;
        let mut operands = inputs.to_vec();
        operands[k] = &moved;
        let y = apply(op, &operands, None, &wanted).remove(0);
        y.values.iter().zip(&dy.values).map(|(y, dy)| y * dy).sum::<f64>()
    };
    (0..inputs[k].values.len()).map(|i| (at(i, step) - at(i, -step)) / (2.0 * step)).collect()
}

/// Numbers about `far`, as exact as the type has them.
fn about(r: &mut Random, dtype: DType, shape: &[usize], far: f64) -> Tensor {
    let mut x = r.tensor(dtype, shape);
    for v in &mut x.values {
        *v = if dtype == DType::F32 { f64::from((*v + far) as f32) } else { *v + far };
    }
    x
}

/// Mean, variance and inverse deviation of every group of elements.
fn statistics(
    x: &Tensor,
    groups: usize,
    group: impl Fn(usize) -> usize,
    epsilon: f64,
) -> [Vec<f64>; 3] {
    let m = x.values.len() as f64 / groups as f64;
    let (mut mean, mut var) = (vec![0.0; groups], vec![0.0; groups]);
    for (i, v) in x.values.iter().enumerate() {
        mean[group(i)] += v / m;
    }
    for (i, v) in x.values.iter().enumerate() {
        var[group(i)] += (v - mean[group(i)]).powi(2) / m;
    }
    let inv_std = var.iter().map(|v| 1.0 / (v + epsilon).sqrt()).collect();
    [mean, var, inv_std]
}

const SHAPES: &[&[usize]] = &[
    &[1, 1],
    &[6, 5],
    &[3, 4, 7],
    &[2, 3, 5, 6],
    &[4, 1, 1, 3],
    &[3000, 40],
    &[300, 600],
    &[40, 3, 30, 41],
    &[2, 2, 70_001],
    &[1, 300, 9, 17],
];

#[test]
fn batch_norm_and_its_gradients() {
    let mut r = Random(60);
    let epsilon = 1e-3f32;
    for dtype in [DType::F32, DType::F64] {
        for &shape in SHAPES {
            let far = r.choose(&[0.0, 30.0]);
            let (x, dy) = (about(&mut r, dtype, shape, far), r.tensor(dtype, shape));
            let (scale, bias) = (r.tensor(dtype, &shape[1..2]), r.tensor(dtype, &shape[1..2]));
            let (channels, inner) = (shape[1], shape[2..].iter().product::<usize>());
            let channel = |i: usize| i / inner % channels;
            let [mean, var, inv_std] = statistics(&x, channels, channel, epsilon.into());
            let normal = |i: usize| (x.values[i] - mean[channel(i)]) * inv_std[channel(i)];
            let all_of = |f: &dyn Fn(usize) -> f64| (0..x.values.len()).map(f).collect::<Vec<_>>();

            let op = Op::BatchNorm { epsilon };
            let found = all(&op, &[&x, &scale, &bias]);
            let y = all_of(&|i| normal(i) * scale.values[channel(i)] + bias.values[channel(i)]);
            for (found, want) in found.iter().zip([&y, &mean, &var, &inv_std]) {
                assert_close(found, want, 1e-4, &(&op, &x.ty, far));
            }

            let mut sums = [vec![0.0; channels], vec![0.0; channels]];
            for (i, dy) in dy.values.iter().enumerate() {
                sums[0][channel(i)] += dy * normal(i);
                sums[1][channel(i)] += dy;
            }
            let op = Op::BatchNormParamGrad;
            let parameters = all(&op, &[&x, &dy, &found[1], &found[3]]);
            for (found, want) in parameters.iter().zip(&sums) {
                assert_close(found, want, 1e-3, &(&op, &x.ty, far));
            }

            let op = Op::BatchNormInputGrad;
            let m = (x.values.len() / channels) as f64;
            let dx = all_of(&|i| {
                let c = channel(i);
                let rest = dy.values[i] - (sums[1][c] + normal(i) * sums[0][c]) / m;
                scale.values[c] * inv_std[c] * rest
            });
            let [dscale, dbias] = &parameters[..] else { unreachable!("two results") };
            let operands = [&x, &dy, &scale, &found[1], &found[3], dscale, dbias];
            assert_close(&all(&op, &operands)[0], &dx, 1e-3, &(&op, &x.ty, far));
        }
    }
}

/// A mean far from zero costs the variance no digits.
#[test]
fn variance_far_from_zero() {
    let values = (0..64).map(|i| 4096.0 + f64::from(i % 2)).collect();
    let x = Tensor::new(DType::F32, [64, 1], values);
    let one = Tensor::new(DType::F32, [1], vec![1.0]);
    let found = all(&Op::BatchNorm { epsilon: 0.0 }, &[&x, &one, &one]);
    assert_eq!([found[1].values[0], found[2].values[0], found[3].values[0]], [4096.5, 0.25, 2.0]);
}

#[test]
fn batch_norm_of_nothing() {
    let x = Tensor::new(DType::F32, [0, 2, 3], vec![]);
    let two = Tensor::new(DType::F32, [2], vec![1.0; 2]);
    let found = all(&Op::BatchNorm { epsilon: 1e-5 }, &[&x, &two, &two]);
    assert!(found[1].values.iter().chain(&found[3].values).all(|v| v.is_nan()));
    let sums = all(&Op::BatchNormParamGrad, &[&x, &x, &two, &two]);
    assert_eq!([&sums[0].values[..], &sums[1].values[..]], [[0.0; 2], [0.0; 2]]);
}

#[test]
fn gradients_of_a_batch_norm_are_slopes() {
    let mut r = Random(61);
    for shape in [&[5, 3][..], &[2, 3, 4], &[3, 2, 2, 3]] {
        let [x, dy] = [0; 2].map(|_| r.tensor(DType::F64, shape));
        let [scale, bias] = [0; 2].map(|_| r.tensor(DType::F64, &shape[1..2]));
        let forward = Op::BatchNorm { epsilon: 1e-2 };
        let operands = [&x, &scale, &bias];
        let y = all(&forward, &operands);
        let found = all(&Op::BatchNormParamGrad, &[&x, &dy, &y[1], &y[3]]);
        assert_close(&found[0], &slopes(&forward, &operands, 1, &dy), 1e-6, &shape);
        assert_close(&found[1], &slopes(&forward, &operands, 2, &dy), 1e-6, &shape);
        let operands_of_grad = [&x, &dy, &scale, &y[1], &y[3], &found[0], &found[1]];
        let dx = all(&Op::BatchNormInputGrad, &operands_of_grad);
        assert_close(&dx[0], &slopes(&forward, &operands, 0, &dy), 1e-6, &shape);
    }
}

/// The element of a factor that broadcasts to rows of this shape, for place `i` of a row.
fn broadcast(factor: &Tensor, row: &[usize], i: usize) -> f64 {
    let at = indices(row).nth(i).expect("a place of the row");
    let lead = row.len() - factor.ty.rank();
    let at: Vec<usize> = factor
        .ty
        .shape
        .iter()
        .zip(&at[lead..])
        .map(|(&d, &i)| if d == 1 { 0 } else { i })
        .collect();
    factor.values[flat(&at, &factor.ty.shape)]
}

#[test]
fn gradients_of_a_layer_norm() {
    let mut r = Random(62);
    let shapes: &[(&[usize], usize)] = &[
        (&[1], 0),
        (&[5, 7], 1),
        (&[4, 3, 33], 2),
        (&[6, 5, 4], 1),
        (&[3, 40], 0),
        (&[2000, 70], 1),
        (&[3, 5000], 1),
        (&[9000, 4], 1),
        (&[30, 20, 768], 2),
    ];
    for dtype in [DType::F32, DType::F64] {
        for &(shape, axis) in shapes {
            let row = &shape[axis..];
            let n: usize = row.iter().product();
            let rows: usize = shape[..axis].iter().product();
            let (x, dy) = (about(&mut r, dtype, shape, 3.0), r.tensor(dtype, shape));
            let narrow: Vec<usize> = row.iter().map(|&d| if r.chance() { d } else { 1 }).collect();
            let scale = r.choose(&[row, &narrow, &[]]);
            let scale = r.tensor(dtype, scale);
            let epsilon = 1e-3;
            let op = Op::LayerNorm { axis, epsilon };
            let y = apply(&op, &[&x, &scale], None, &[false, true, true]);
            let [mean, _, inv_std] = statistics(&x, rows, |i| i / n, epsilon.into());
            let factors: Vec<f64> = (0..n).map(|i| broadcast(&scale, row, i)).collect();
            let normal = |i: usize| (x.values[i] - mean[i / n]) * inv_std[i / n];

            let mut sums = [vec![0.0; n], vec![0.0; n]];
            let mut means = [vec![0.0; rows], vec![0.0; rows]];
            for (i, dy) in dy.values.iter().enumerate() {
                sums[0][i % n] += dy * normal(i);
                sums[1][i % n] += dy;
                let g = dy * factors[i % n] / n as f64;
                means[0][i / n] += g;
                means[1][i / n] += g * normal(i);
            }
            let op = Op::LayerNormParamGrad { axis };
            let found = all(&op, &[&x, &dy, &y[0], &y[1]]);
            for (found, want) in found.iter().zip(&sums) {
                assert_close(found, want, 1e-3, &(&op, &x.ty));
            }

            let op = Op::LayerNormInputGrad { axis };
            let dx: Vec<f64> = (0..x.values.len())
                .map(|i| {
                    let g = dy.values[i] * factors[i % n];
                    inv_std[i / n] * (g - means[0][i / n] - normal(i) * means[1][i / n])
                })
                .collect();
            let found = all(&op, &[&x, &dy, &scale, &y[0], &y[1]]);
            assert_close(&found[0], &dx, 1e-4, &(&op, &x.ty, &scale.ty));
        }
    }
}

#[test]
fn gradients_of_a_layer_norm_are_slopes() {
    let mut r = Random(63);
    for (shape, axis) in [(&[4, 5][..], 1), (&[2, 3, 4], 1), (&[3, 2, 17], 2), (&[2, 3], 0)] {
        let [x, dy] = [0; 2].map(|_| r.tensor(DType::F64, shape));
        let [scale, bias] = [0; 2].map(|_| r.tensor(DType::F64, &shape[axis..]));
        let forward = Op::LayerNorm { axis, epsilon: 1e-2 };
        let operands = [&x, &scale, &bias];
        let y = apply(&forward, &operands, None, &[true; 3]);
        let found = all(&Op::LayerNormParamGrad { axis }, &[&x, &dy, &y[1], &y[2]]);
        assert_close(&found[0], &slopes(&forward, &operands, 1, &dy), 1e-6, &shape);
        assert_close(&found[1], &slopes(&forward, &operands, 2, &dy), 1e-6, &shape);
        let dx = all(&Op::LayerNormInputGrad { axis }, &[&x, &dy, &scale, &y[1], &y[2]]);
        assert_close(&dx[0], &slopes(&forward, &operands, 0, &dy), 1e-6, &shape);
    }
}

#[test]
fn gradients_of_softmax_along_any_axis() {
    let mut r = Random(64);
    for _ in 0..80 {
        let shape: Vec<usize> =
            (0..r.range(1, 4)).map(|_| r.choose(&[0, 1, 2, 5, 31, 70])).collect();
        if shape.iter().product::<usize>() > 200_000 {
            continue;
        }
        let axis = r.range(0, shape.len() - 1);
        let dtype = r.choose(&[DType::F32, DType::F64]);
        let [y, dy] = [0; 2].map(|_| r.tensor(dtype, shape.clone()));
        let (extent, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let sum = |at: usize, term: &dyn Fn(usize) -> f64| {
            let base = at / (extent * inner) * extent * inner + at % inner;
            (0..extent).map(|i| term(base + i * inner)).sum::<f64>()
        };
        let of = |f: &dyn Fn(usize) -> f64| (0..y.values.len()).map(f).collect::<Vec<_>>();
        let (u, du) = (&y.values, &dy.values);
        let op = Op::SoftmaxGrad { axis };
        let want = of(&|i| u[i] * (du[i] - sum(i, &|i| u[i] * du[i])));
        assert_close(&all(&op, &[&y, &dy])[0], &want, 1e-5, &(&op, &shape));
        let op = Op::LogSoftmaxGrad { axis };
        let want = of(&|i| du[i] - u[i].exp() * sum(i, &|i| du[i]));
        assert_close(&all(&op, &[&y, &dy])[0], &want, 1e-5, &(&op, &shape));
    }
}

#[test]
fn gradients_of_softmax_are_slopes() {
    let mut r = Random(65);
    for (shape, axis) in [(&[3, 5][..], 1), (&[2, 4, 3], 1), (&[6], 0), (&[4, 20], 1)] {
        let [x, dy] = [0; 2].map(|_| r.tensor(DType::F64, shape));
        for (forward, gradient) in [
            (Op::Softmax { axis }, Op::SoftmaxGrad { axis }),
            (Op::LogSoftmax { axis }, Op::LogSoftmaxGrad { axis }),
        ] {
            let y = evaluate(&forward, &[&x]);
            let dx = all(&gradient, &[&y, &dy]);
            assert_close(&dx[0], &slopes(&forward, &[&x], 0, &dy), 1e-6, &(&forward, shape));
        }
    }
}
