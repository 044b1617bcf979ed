//! Updates: the bits of the CPU backend, which the same roundings in the same order give. The
//! powers of Adam's rate are the standard library's on both sides.

use super::random::Random;
use super::{Case, Tensor};
use arenic_ir::{DType, Op};

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F64] {
        for _ in 0..8 {
            let adam = Op::Adam {
                alpha: r.choose(&[0.9, 0.0]),
                beta: r.choose(&[0.999, 0.5]),
                epsilon: r.choose(&[1e-6, 0.1]),
                norm_coefficient: r.choose(&[0.0, 0.01]),
                norm_coefficient_post: r.choose(&[0.0, 0.02]),
            };
            cases.push(case(r, adam, dtype, 2));
            let adagrad = Op::Adagrad {
                decay_factor: r.choose(&[0.0, 0.1]),
                epsilon: r.choose(&[1e-6, 0.1]),
                norm_coefficient: r.choose(&[0.0, 0.01]),
            };
            cases.push(case(r, adagrad, dtype, 1));
            let momentum = Op::Momentum {
                alpha: r.choose(&[0.9, 0.0]),
                beta: r.choose(&[1.0, 0.1]),
                nesterov: r.chance(),
                norm_coefficient: r.choose(&[0.0, 0.01]),
            };
            cases.push(case(r, momentum, dtype, 1));
        }
    }
    let lots = 1..4;
    for (lots, i) in lots.zip([0, 4, 8]) {
        let one = cases[i].clone();
        cases.push(for_each(r, &one, lots));
    }
    cases
}

/// The operator of a case on several lots of such operands, with one rate and count.
fn for_each(r: &mut Random, case: &Case, lots: usize) -> Case {
    let mut inputs = Vec::new();
    for _ in 0..lots {
        inputs.extend_from_slice(&case.inputs[..2]);
        let positive = |x: &Tensor, r: &mut Random| {
            r.fill(x.ty.dtype, x.ty.shape.clone(), |r| r.uniform(0.0, 2.0))
        };
        inputs.extend(case.inputs[2..].iter().map(|x| positive(x, r)));
    }
    let shared = |i: usize| if i % case.inputs.len() < 2 { i % case.inputs.len() } else { i };
    let shared = (0..inputs.len()).map(shared).collect();
    let op = Op::ForEach { of: Box::new(case.op.clone()), lots };
    Case { op, inputs, shared, ..case.clone() }
}

fn case(r: &mut Random, op: Op, dtype: DType, slots: usize) -> Case {
    let shape = match r.range(0, 3) {
        0 => vec![r.range(4000, 9000)],
        _ => r.shape(4),
    };
    let lr = r.fill(dtype, [], |r| r.uniform(0.0, 0.1));
    let t = r.fill(DType::I64, [], |r| r.choose(&[0.0, 1.0, 7.0, 100_000.0]));
    let mut inputs: Vec<Tensor> = vec![lr, t];
    inputs.extend((0..2).map(|_| r.wild(dtype, shape.clone())));
    // The last slot is a sum of squares.
    inputs.extend((0..slots).map(|_| r.fill(dtype, shape.clone(), |r| r.uniform(0.0, 2.0))));
    Case::new(op, inputs)
}
