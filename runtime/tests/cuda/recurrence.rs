//! Recurrences and their gradients: both directions, few units and many, one step and several.

use super::random::Random;
use super::{Case, Close, Tensor};
use arenic_ir::op::Activation;
use arenic_ir::{DType, Op};

/// Steps, batch and hidden units: of a lane up to a warp, of a block and several, and none.
const EXTENTS: &[[usize; 3]] = &[[1, 1, 1], [4, 2, 3], [2, 2, 40], [2, 1, 130], [3, 0, 4]];

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F64] {
        for &extents in EXTENTS {
            // Many units are dear to emulate.
            if dtype == DType::F32 || extents[2] < 40 {
                let directions: &[bool] = if extents[2] < 40 { &[false, true] } else { &[true] };
                for &reverse in directions {
                    of_extents(r, dtype, extents, reverse, &mut cases);
                }
            }
        }
    }
    cases
}

fn of_extents(
    r: &mut Random,
    dtype: DType,
    [t, b, n]: [usize; 3],
    reverse: bool,
    cases: &mut Vec<Case>,
) {
    let steps = |r: &mut Random, k: usize| r.tame(dtype, [t, b, k * n]);
    let state = |r: &mut Random| r.tame(dtype, [b, n]);
    // Small ones, so that no step magnifies what the one before rounded.
    let scale = 1.0 / (n as f64).sqrt();
    let weight = |r: &mut Random, k: usize| r.fill(dtype, [k * n, n], |r| r.uniform(-scale, scale));
    let peephole = |r: &mut Random| r.chance().then(|| r.tame(dtype, [3 * n]));
    let mut add = |op: Op, inputs: Vec<Tensor>| cases.push(Case::new(op, inputs).close(Close::SUM));

    let mut x = vec![steps(r, 4), weight(r, 4), state(r), state(r)];
    x.extend(peephole(r));
    add(Op::Lstm { reverse }, x);
    let dcells = r.chance();
    let mut x = vec![steps(r, 4), steps(r, 1), weight(r, 4), state(r), steps(r, 1)];
    x.extend(dcells.then(|| steps(r, 1)));
    x.extend(peephole(r));
    add(Op::LstmGrad { reverse, dcells }, x);

    for linear_before_reset in [false, true] {
        let mut x = vec![steps(r, 3), weight(r, 3), state(r)];
        x.extend(linear_before_reset.then(|| r.tame(dtype, [n])));
        add(Op::Gru { reverse, linear_before_reset }, x);
        let mut x = vec![steps(r, 3), steps(r, 1), weight(r, 3), state(r), steps(r, 1)];
        x.extend(linear_before_reset.then(|| steps(r, 1)));
        add(Op::GruGrad { reverse, linear_before_reset }, x);
    }

    let activation = if reverse { Activation::Relu } else { Activation::Tanh };
    add(Op::Rnn { reverse, activation }, vec![steps(r, 1), weight(r, 1), state(r)]);
    add(Op::RnnGrad { reverse, activation }, vec![steps(r, 1), weight(r, 1), steps(r, 1)]);
}
