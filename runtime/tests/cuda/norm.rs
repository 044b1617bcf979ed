//! Layer normalisation of short rows and long ones, with broadcast scales and biases, and its
//! gradients.

use super::random::Random;
use super::{Case, Close, Tensor};
use arenic_ir::{DType, Op};

/// Shapes and first axes: rows of one thread up to a block's, held and read again.
const SHAPES: &[(&[usize], usize)] = &[
    (&[1], 0),
    (&[50, 3], 1),
    (&[40, 48], 1),
    (&[5, 7, 96], 2),
    (&[6, 4, 9, 11], 2),
    (&[4100, 260], 1),
    (&[7, 768], 1),
    (&[3, 5000], 1),
    (&[2, 9, 1300], 1),
    (&[20_001], 0),
    (&[3, 0], 1),
    (&[0, 4], 1),
];

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        for &(shape, axis) in SHAPES {
            // Many rows are dear to emulate.
            if dtype == DType::F32 || shape[0] < 4000 || axis == 0 {
                cases.push(case(r, dtype, shape, axis));
                cases.push(of_operand(r, dtype, shape, axis));
                cases.push(of_parameters(r, dtype, shape, axis));
            }
        }
        for _ in 0..10 {
            let mut shape = r.shape(4);
            shape.push(r.range(1, 40));
            let axis = r.range(0, shape.len() - 1);
            cases.push(case(r, dtype, &shape, axis));
            cases.push(of_operand(r, dtype, &shape, axis));
            cases.push(of_parameters(r, dtype, &shape, axis));
        }
    }
    cases
}

fn case(r: &mut Random, dtype: DType, shape: &[usize], axis: usize) -> Case {
    let row = &shape[axis..];
    // Some rows are far from zero, where a variance by squares would lose all digits.
    let far = r.choose(&[0.0, 0.0, 100.0]);
    let special = r.range(0, 9) == 0;
    let x = r.fill(dtype, shape, |r| match r.range(0, 40) {
        0 if special => r.choose(&[f64::NAN, f64::INFINITY]),
        _ => far + r.uniform(-2.0, 2.0),
    });
    let mut inputs = vec![x];
    for _ in 0..r.range(1, 2) {
        let shape = if r.chance() { row.to_vec() } else { r.broadcast_to(row) };
        inputs.push(r.tame(dtype.accumulated(), shape));
    }
    let op = Op::LayerNorm { axis, epsilon: r.choose(&[1e-5, 0.1]) };
    Case::new(op, inputs).close(Close::LONG_SUM)
}

/// An operand, the gradient of the result, and numbers that statistics of rows could be.
fn rows(r: &mut Random, dtype: DType, shape: &[usize], axis: usize) -> [Tensor; 4] {
    let mut stats = shape.to_vec();
    stats[axis..].fill(1);
    let [x, dy] = [0; 2].map(|_| r.tame(dtype, shape));
    let wide = dtype.accumulated();
    let mean = r.tame(wide, stats.clone());
    [x, dy, mean, r.fill(wide, stats, |r| r.uniform(0.5, 2.0))]
}

fn of_operand(r: &mut Random, dtype: DType, shape: &[usize], axis: usize) -> Case {
    let [x, dy, mean, inv_std] = rows(r, dtype, shape, axis);
    let row = &shape[axis..];
    let scale = if r.chance() { row.to_vec() } else { r.broadcast_to(row) };
    let inputs = [x, dy, r.tame(dtype.accumulated(), scale), mean, inv_std];
    Case::new(Op::LayerNormInputGrad { axis }, inputs).close(Close::SUM)
}

fn of_parameters(r: &mut Random, dtype: DType, shape: &[usize], axis: usize) -> Case {
    let inputs = rows(r, dtype, shape, axis);
    Case::new(Op::LayerNormParamGrad { axis }, inputs).close(Close::LONG_SUM)
}
