//! Matrix products: every transposition and broadcast, and sums in parts.

use super::random::Random;
use super::{Case, Close, Tensor};
use arenic_ir::op::{Binary, Step};
use arenic_ir::types::bf16;
use arenic_ir::{DType, Op};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::evaluate;

const TYPES: [DType; 7] =
    [DType::Bf16, DType::F32, DType::F64, DType::I32, DType::I64, DType::U32, DType::U64];

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for d in TYPES {
        for _ in 0..10 {
            cases.push(mat_mul(r, d));
            cases.push(gemm(r, d));
        }
        let small = [r.tame(d, [5, 3000]), r.tame(d, [3000, 70])];
        let op = Op::MatMul { trans_a: false, trans_b: false };
        cases.push(Case::new(op, small).close(Close::LONG_SUM));
        let vectors = [r.tame(d, [7]), r.tame(d, [7])];
        let op = Op::MatMul { trans_a: false, trans_b: false };
        cases.push(Case::new(op, vectors).close(Close::SUM));
    }
    for d in [DType::F32, DType::F64, DType::Bf16] {
        // Few results of long sums, tiles that end within a warp, libraries' and others' columns.
        for extents in [[5, 7, 9], [70, 30, 65], [3, 2000, 4], [33, 40, 48]] {
            for bias in [false, true] {
                cases.push(gelu(r, d, extents, bias));
            }
            cases.push(gelu_gradient(r, d, extents));
        }
        for extents in [[5, 7, 9], [70, 30, 65], [3, 2000, 4]] {
            cases.extend((0..4).map(|kind| product_update(r, d, kind, extents)));
        }
    }
    cases
}

/// An update whose gradient is a product.
fn product_update(r: &mut Random, factors: DType, kind: usize, [m, k, n]: [usize; 3]) -> Case {
    let d = factors.accumulated();
    let [rate, decay] = [r.fill(d, [], |_| 0.125), r.fill(d, [], |_| 0.5)];
    let step = r.fill(DType::I64, [], |r| r.range(0, 3) as f64);
    let mut moment = || r.fill(d, [m, n], |r| r.uniform(0.5, 2.0));
    let (x, v, h) = (moment(), moment(), moment());
    let (update, gradient, mut inputs) = match kind {
        0 => (
            Op::Momentum { alpha: 0.9, beta: 1.0, nesterov: true, norm_coefficient: 0.01 },
            3,
            vec![rate, step, x, v],
        ),
        1 => (
            Op::Adagrad { decay_factor: 0.1, epsilon: 1e-6, norm_coefficient: 0.0 },
            3,
            vec![rate, step, x, h],
        ),
        2 => (
            Op::Adam {
                alpha: 0.9,
                beta: 0.999,
                epsilon: 1e-6,
                norm_coefficient: 0.01,
                norm_coefficient_post: 0.0,
            },
            3,
            vec![rate, step, x, v, h],
        ),
        _ => {
            let steps = vec![
                Step::Binary(Binary::Mul, 0, 2),
                Step::Binary(Binary::Add, 4, 1),
                Step::Binary(Binary::Mul, 5, 3),
                Step::Binary(Binary::Sub, 0, 6),
            ];
            (Op::Pointwise { steps, results: vec![7, 5] }, 1, vec![x, decay, rate])
        }
    };
    let (trans_a, trans_b) = (r.chance(), r.chance());
    inputs.push(r.tame(factors, if trans_a { [k, m] } else { [m, k] }));
    inputs.push(r.tame(factors, if trans_b { [n, k] } else { [k, n] }));
    let alpha = r.choose(&[1.0, 0.5]);
    let op = Op::ProductUpdate { alpha, trans_a, trans_b, gradient, update: Box::new(update) };
    Case::new(op, inputs).close(Close::LONG_SUM)
}

/// The factors of a product, transposed or not.
fn factors(r: &mut Random, d: DType, [m, k, n]: [usize; 3]) -> ([bool; 2], Vec<Tensor>) {
    let (trans_a, trans_b) = (r.chance(), r.chance());
    let a = r.tame(d, if trans_a { [k, m] } else { [m, k] });
    let b = r.tame(d, if trans_b { [n, k] } else { [k, n] });
    ([trans_a, trans_b], vec![a, b])
}

/// A product with a GELU.
fn gelu(r: &mut Random, d: DType, extents: [usize; 3], bias: bool) -> Case {
    let ([trans_a, trans_b], mut inputs) = factors(r, d, extents);
    if bias {
        inputs.push(r.tame(d, [extents[2]]));
    }
    let case = Case::new(Op::GemmGelu { trans_a, trans_b }, inputs).close(Close::LONG_SUM);
    match d {
        DType::Bf16 => rounded_between(case),
        _ => case,
    }
}

/// GELU's slope is nowhere above this.
const GELU_SLOPE: f64 = 1.13;

/// A product and a pass after it store what the pass reads: each of those elements is off by 2⁻⁹ of
/// itself, and the result by that times the slope.
fn rounded_between(case: Case) -> Case {
    let operands: Vec<_> = case.inputs.iter().map(|t| (&t.ty, &t.bytes[..])).collect();
    let results = evaluate(&case.op, &operands, Draw::default()).unwrap();
    let z = results[1].1.as_chunks().0.iter().map(|&b| bf16::to_f32(u16::from_le_bytes(b)).abs());
    let largest = f64::from(z.fold(0.0, f32::max));
    let Close { relative, absolute } = case.close;
    case.close(Close { relative, absolute: absolute + GELU_SLOPE * largest / 512.0 })
}

/// The gradient of what a GELU was applied to.
fn gelu_gradient(r: &mut Random, d: DType, [m, k, n]: [usize; 3]) -> Case {
    let ([trans_a, trans_b], mut inputs) = factors(r, d, [m, k, n]);
    inputs.push(r.fill(d, [m, n], |r| r.uniform(-4.0, 4.0)));
    Case::new(Op::GemmGeluGrad { trans_a, trans_b }, inputs).close(Close::LONG_SUM)
}

fn mat_mul(r: &mut Random, d: DType) -> Case {
    let [m, k, n] = [0; 3].map(|_| r.choose(&[1, 2, 5, 17, 64, 70]));
    let (trans_a, trans_b) = (r.chance(), r.chance());
    let batch: Vec<usize> = (0..r.range(0, 2)).map(|_| r.range(1, 3)).collect();
    let [on_a, on_b] = [0; 2].map(|_| r.broadcast_to(&batch));
    let vector_a = on_a.is_empty() && !trans_a && r.range(0, 4) == 0;
    let vector_b = on_b.is_empty() && !trans_b && r.range(0, 4) == 0;
    let mut a = on_a;
    a.extend(if vector_a {
        vec![k]
    } else if trans_a {
        vec![k, m]
    } else {
        vec![m, k]
    });
    let mut b = on_b;
    b.extend(if vector_b {
        vec![k]
    } else if trans_b {
        vec![n, k]
    } else {
        vec![k, n]
    });
    let inputs = [r.tame(d, a), r.tame(d, b)];
    Case::new(Op::MatMul { trans_a, trans_b }, inputs).close(Close::SUM)
}

fn gemm(r: &mut Random, d: DType) -> Case {
    let [m, k, n] = [0; 3].map(|_| r.choose(&[0, 1, 2, 5, 17, 64, 70]));
    let (trans_a, trans_b) = (r.chance(), r.chance());
    let (alpha, beta) = match d.is_float() {
        true => (r.choose(&[1.0, 0.5, -2.0]), r.choose(&[1.0, 0.0, 0.25])),
        false => (r.choose(&[1.0, 2.0]), r.choose(&[1.0, 0.0, 3.0])),
    };
    let mut inputs = vec![
        r.tame(d, if trans_a { [k, m] } else { [m, k] }),
        r.tame(d, if trans_b { [n, k] } else { [k, n] }),
    ];
    if r.chance() {
        let bias = r.broadcast_to(&[m, n]);
        inputs.push(r.tame(d, bias));
    }
    Case::new(Op::Gemm { alpha, beta, trans_a, trans_b }, inputs).close(Close::SUM)
}
