//! Reductions: every function on every type, and every way to share out the terms.

use super::random::Random;
use super::{Case, Close, Tensor};
use arenic_ir::op::{Binary, Reduction, Step, Unary};
use arenic_ir::{DType, Op};

const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Mean, Reduction::Min, Reduction::Max, Reduction::Prod];

/// Shapes and axes: lanes of all numbers, columns of all widths, one kernel and two, runs of
/// terms that do not end where shares do.
const SHARED: &[(&[usize], &[usize])] = &[
    (&[300, 7], &[1]),
    (&[90, 50], &[1]),
    (&[5, 3, 100], &[0, 2]),
    (&[3, 1500], &[1]),
    (&[1, 5000], &[1]),
    (&[2, 40_000], &[1]),
    (&[70_001], &[0]),
    (&[9000, 6], &[1]),
    (&[8200, 33], &[1]),
    (&[6, 5, 31, 41], &[0, 2, 3]),
    (&[8, 2, 64, 64], &[0, 2, 3]),
    (&[100, 3], &[0]),
    (&[5000, 2], &[0]),
    (&[40_000, 3], &[0]),
    (&[4096, 48], &[0]),
    (&[700, 33], &[0]),
    (&[20, 700], &[0]),
    (&[5, 1000], &[0]),
    (&[4, 90, 31], &[1]),
    (&[3, 50, 4, 20], &[0, 2]),
    (&[40, 9, 6, 70], &[0, 2]),
    // Several results of a thread.
    (&[2100, 64], &[0]),
    (&[17_000, 8], &[0]),
    (&[40, 60, 64], &[0, 1]),
    (&[3, 1000, 48], &[1]),
];

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        for f in REDUCTIONS {
            for _ in 0..2 {
                let shape = r.shape(5);
                let axes = (0..shape.len()).filter(|_| r.chance()).collect();
                let keep = r.chance();
                cases.push(case(r, f, dtype, &shape, axes, keep));
            }
        }
    }
    for (k, &(shape, axes)) in SHARED.iter().enumerate() {
        let kinds = [
            (Reduction::Sum, DType::F32),
            match k % 3 {
                0 => (Reduction::Mean, DType::U8),
                1 => (Reduction::Max, DType::F64),
                _ => (Reduction::Mean, DType::I32),
            },
        ];
        for (f, dtype) in kinds {
            cases.push(case(r, f, dtype, shape, axes.to_vec(), false));
        }
    }
    for &(shape, axes) in SHARED {
        let (f, d) = (r.choose(&REDUCTIONS), r.choose(&[DType::F32, DType::F64, DType::Bf16]));
        cases.push(computed(r, f, d, shape, axes));
    }
    for f in REDUCTIONS {
        let d = r.choose(&[DType::F32, DType::F64]);
        cases.push(computed(r, f, d, &[0, 3], &[0]));
        cases.push(computed(r, f, d, &[1], &[0]));
        for (shape, axes) in
            [(vec![0, 3], vec![0]), (vec![2, 0], vec![0, 1]), (vec![4, 0], vec![0])]
        {
            let dtype = r.choose(&[DType::F32, DType::F64, DType::I8, DType::U64]);
            cases.push(case(r, f, dtype, &shape, axes, true));
        }
    }
    cases
}

/// A reduction of what steps compute of tensors, a scalar and a condition.
fn computed(r: &mut Random, f: Reduction, d: DType, shape: &[usize], axes: &[usize]) -> Case {
    let keep = r.chance();
    let plain = case(r, f, d, shape, axes.to_vec(), keep);
    let condition = r.wild(DType::Bool, shape.to_vec());
    let Op::Reduce { axes, keep, .. } = plain.op else { unreachable!() };
    let [x] = &plain.inputs[..] else { unreachable!() };
    let zero = r.fill(d, vec![], |_| 0.0);
    // |x| where the condition holds, else 0.
    let steps = vec![
        Step::Where(1, 0, 2),
        Step::Unary(Unary::Abs, 0),
        Step::Where(1, 4, 3),
        Step::Binary(Binary::Sub, 5, 2),
    ];
    let inputs = vec![x.clone(), condition, zero];
    Case { op: Op::PointwiseReduce { steps, f, axes, keep }, inputs, ..plain }
}

fn case(
    r: &mut Random,
    f: Reduction,
    dtype: DType,
    shape: &[usize],
    axes: Vec<usize>,
    keep: bool,
) -> Case {
    let chosen = matches!(f, Reduction::Min | Reduction::Max);
    let close = if chosen || !dtype.is_float() { Close::EQUAL } else { Close::SUM };
    let x = match f {
        _ if close.relative == 0.0 => r.wild(dtype, shape),
        // Products of many terms neither vanish nor overflow.
        Reduction::Prod => some_wild(r, dtype, shape, 0.8, 1.25),
        _ => some_wild(r, dtype, shape, -1.0, 4.0),
    };
    Case::new(Op::Reduce { f, axes, keep }, [x]).close(close)
}

/// Numbers from a range and, in some tensors, a few infinities and NaN.
fn some_wild(r: &mut Random, dtype: DType, shape: &[usize], low: f64, high: f64) -> Tensor {
    let special = r.range(0, 3) == 0;
    r.fill(dtype, shape, |r| match r.range(0, 40) {
        0 if special => r.choose(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0]),
        _ => r.uniform(low, high),
    })
}
