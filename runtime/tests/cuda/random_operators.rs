//! Random operators: the very bits of the CPU backend.

use super::random::Random;
use super::{Case, Tensor};
use arenic_ir::op::Rng;
use arenic_ir::{DType, Op};

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F64] {
        for (low, high) in [(0.0, 1.0), (-2.5, 7.0), (1.0, 1.000_000_1), (3.0, 3.0), (2.0, -1.0)] {
            for _ in 0..3 {
                let (shape, rng) = (shape(r), rng(r));
                cases.push(Case::new(Op::RandomUniform { dtype, shape, low, high, rng }, []));
            }
        }
    }
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        for ratio in [DType::F32, DType::F64] {
            for p in [0.0, -0.0, 0.1, 0.5, 0.999_999] {
                let shape = shape(r);
                cases.push(dropout(r, dtype, ratio, shape, p));
            }
            for p in [1.0, -0.1, 2.0, f64::NAN, f64::INFINITY] {
                cases.push(dropout(r, dtype, ratio, vec![9], p));
            }
        }
    }
    cases
}

/// Shapes of all numbers of elements beyond a multiple of four, some of several blocks.
fn shape(r: &mut Random) -> Vec<usize> {
    match r.range(0, 3) {
        0 => r.shape(4),
        1 => vec![r.range(1000, 3000)],
        _ => vec![r.range(1, 9), r.range(1, 30)],
    }
}

fn rng(r: &mut Random) -> Rng {
    Rng { stream: r.bits(), seed: if r.chance() { Some(r.bits()) } else { None } }
}

fn dropout(r: &mut Random, dtype: DType, ratio: DType, shape: Vec<usize>, p: f64) -> Case {
    let x: Tensor = r.wild(dtype, shape);
    let ratio = r.fill(ratio, [], |_| p);
    Case::new(Op::Dropout { rng: rng(r) }, [x, ratio])
}
