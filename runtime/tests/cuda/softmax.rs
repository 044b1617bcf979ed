//! Softmax and its relatives: short rows and long ones, columns, extremes, and targets that
//! are in range or not.

use super::random::Random;
use super::{Case, Close, Tensor};
use arenic_ir::{DType, Op};

/// Shapes and axes: rows of one thread up to a block's, held and read again, few and many, and
/// columns.
const SHAPES: &[(&[usize], usize)] = &[
    (&[1], 0),
    (&[40, 1], 1),
    (&[700, 3], 1),
    (&[130, 17], 1),
    (&[33, 64], 1),
    (&[3, 5, 130], 2),
    (&[4100, 258], 1),
    (&[9, 700], 1),
    (&[3, 5000], 1),
    (&[2, 9000], 1),
    (&[1, 20_001], 1),
    (&[7, 5], 0),
    (&[3, 31, 40], 1),
    (&[2, 33, 9, 4], 1),
    (&[300, 7], 0),
    (&[4, 0, 3], 1),
    (&[0, 5], 1),
];

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        for &(shape, axis) in SHAPES {
            // Many rows are dear to emulate.
            if dtype == DType::F32 || shape[0] < 4000 {
                cases.push(softmax(r, dtype, shape, axis));
                cases.push(of_operand(r, dtype, shape, axis));
            }
        }
        for _ in 0..6 {
            let mut shape = r.shape(4);
            shape.push(r.range(1, 9));
            let axis = r.range(0, shape.len() - 1);
            cases.push(softmax(r, dtype, &shape, axis));
            cases.push(of_operand(r, dtype, &shape, axis));
        }
        for shape in [
            vec![5, 1],
            vec![20, 9],
            vec![2, 3, 40],
            vec![300],
            vec![3, 9000],
            vec![512, 256],
            vec![2, 20000],
        ] {
            let x = logits(r, dtype, &shape);
            let stats = Case::new(Op::LogSoftmaxStats, [x]).close(Close::FUNCTION);
            cases.push(stats);
            cases.push(of_stats(r, dtype, &shape));
            let n = shape[shape.len() - 1] as i64;
            for (from, to) in [(-n, n - 1), (-n, n - 1), (-n, n), (-n - 1, n - 1)] {
                cases.push(gradient(r, dtype, &shape, from, to));
            }
        }
    }
    cases
}

fn softmax(r: &mut Random, dtype: DType, shape: &[usize], axis: usize) -> Case {
    let op = if r.chance() { Op::Softmax { axis } } else { Op::LogSoftmax { axis } };
    Case::new(op, [logits(r, dtype, shape)]).close(Close::FUNCTION)
}

fn of_operand(r: &mut Random, dtype: DType, shape: &[usize], axis: usize) -> Case {
    let op = if r.chance() { Op::SoftmaxGrad { axis } } else { Op::LogSoftmaxGrad { axis } };
    let inputs = [r.tame(dtype, shape), r.tame(dtype, shape)];
    Case::new(op, inputs).close(Close::LONG_SUM)
}

/// Logits; in some tensors infinities, in some NaN, and rows of -inf alone.
fn logits(r: &mut Random, dtype: DType, shape: &[usize]) -> Tensor {
    let kind = r.range(0, 6);
    let often = if kind == 6 { 1 } else { 60 };
    r.fill(dtype, shape, |r| match (kind, r.range(0, often)) {
        (3, 0) => r.choose(&[f64::NAN, 1.0]),
        (4, 0) => f64::INFINITY,
        (5 | 6, 0) => f64::NEG_INFINITY,
        _ => r.uniform(-9.0, 9.0),
    })
}

/// Rows and numbers that statistics of them could be.
fn rows(r: &mut Random, dtype: DType, shape: &[usize]) -> [Tensor; 3] {
    let mut short = shape.to_vec();
    short[shape.len() - 1] = 1;
    let wide = dtype.accumulated();
    let max = r.fill(wide, short.clone(), |r| r.uniform(4.0, 6.0));
    let ln_sum = r.fill(wide, short, |r| r.uniform(0.0, 6.0));
    [logits(r, dtype, shape), max, ln_sum]
}

fn of_stats(r: &mut Random, dtype: DType, shape: &[usize]) -> Case {
    Case::new(Op::SoftmaxOfStats, rows(r, dtype, shape)).close(Close::FUNCTION)
}

/// Targets from a range that may leave the rows' extent.
fn gradient(r: &mut Random, dtype: DType, shape: &[usize], from: i64, to: i64) -> Case {
    let [x, max, ln_sum] = rows(r, dtype, shape);
    let short = max.ty.shape.clone();
    let kind = r.choose(&[DType::I32, DType::I64]);
    let target = r.fill(kind, short.clone(), |r| {
        // Both ends in particular.
        match r.range(0, 5) {
            0 => from as f64,
            1 => to as f64,
            _ => (from + r.range(0, (to - from) as usize) as i64) as f64,
        }
    });
    let w = r.fill(dtype.accumulated(), short, |r| r.choose(&[0.0, -0.0, 1.0, 0.01, -3.0]));
    Case::new(Op::CrossEntropyGrad, [x, max, ln_sum, target, w]).close(Close::FUNCTION)
}
