//! Batch normalisation and its gradients: few channels and many, with and without what lies
//! behind them.

use super::random::Random;
use super::{Case, Close, Tensor};
use arenic_ir::{DType, Op};

/// Channels of one thread up to many blocks', side by side and apart.
const SHAPES: &[&[usize]] = &[
    &[1, 1],
    &[5, 1],
    &[1, 5],
    &[40, 3],
    &[600, 40],
    &[2048, 64],
    &[3, 300],
    &[2, 3, 5],
    &[4, 6, 9, 9],
    &[8, 16, 32, 32],
    &[2, 4, 50, 41],
    &[1, 2, 9000],
    &[2, 1, 70_001],
    &[9, 70, 2],
    &[3, 2, 2, 3, 2],
    &[0, 3, 4],
    &[3, 0, 4],
    &[3, 4, 0],
];

/// So many that a thread has several rounds, the last of which not all have.
pub(super) fn large(r: &mut Random) -> Vec<Case> {
    [(DType::Bf16, 34_000), (DType::F32, 17_000)]
        .into_iter()
        .flat_map(|(dtype, rows)| of_shape(r, dtype, &[rows, 64]))
        .collect()
}

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        for &shape in SHAPES {
            cases.extend(of_shape(r, dtype, shape));
        }
        for _ in 0..6 {
            let mut shape = vec![r.range(1, 6), r.range(1, 9)];
            shape.extend(r.shape(3));
            cases.extend(of_shape(r, dtype, &shape));
        }
    }
    cases
}

fn of_shape(r: &mut Random, dtype: DType, shape: &[usize]) -> [Case; 3] {
    let wide = dtype.accumulated();
    // Some channels are far from zero, where a variance by squares would lose all digits.
    let far = r.choose(&[0.0, 0.0, 100.0]);
    let special = r.range(0, 9) == 0;
    let x = r.fill(dtype, shape, |r| match r.range(0, 40) {
        0 if special => r.choose(&[f64::NAN, f64::INFINITY]),
        _ => far + r.uniform(-2.0, 2.0),
    });
    let [scale, bias, dscale, dbias] = [0; 4].map(|_| r.tame(wide, &shape[1..2]));
    let op = Op::BatchNorm { epsilon: r.choose(&[1e-5, 0.1]) };
    let forward = Case::new(op, [x, scale.clone(), bias]).close(Close::LONG_SUM);
    let [x, dy]: [Tensor; 2] = [0; 2].map(|_| r.tame(dtype, shape));
    let mean = r.tame(wide, &shape[1..2]);
    let inv_std = r.fill(wide, &shape[1..2], |r| r.uniform(0.5, 2.0));
    let inputs = [x.clone(), dy.clone(), mean.clone(), inv_std.clone()];
    let of_parameters = Case::new(Op::BatchNormParamGrad, inputs).close(Close::LONG_SUM);
    let inputs = [x, dy, scale, mean, inv_std, dscale, dbias];
    let of_operand = Case::new(Op::BatchNormInputGrad, inputs).close(Close::SUM);
    [forward, of_parameters, of_operand]
}
