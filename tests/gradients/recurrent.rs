//! Recurrences, in both directions, with and without peepholes and both forms of a GRU's reset.

use super::*;
use arenic_ir::op::Activation;

/// Steps, a batch and hidden units.
fn extents(r: &mut Rng) -> [usize; 3] {
    [r.usize(1..5), r.usize(1..4), r.usize(1..5)]
}

#[test]
fn lstms() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let [t, b, n] = extents(r);
        let shapes = [vec![t, b, 4 * n], vec![4 * n, n], vec![b, n], vec![b, n], vec![3 * n]];
        let count = 4 + usize::from(r.bool());
        let operands: Vec<Operand> = shapes[..count].iter().map(|s| trained(r, s)).collect();
        let op = Op::Lstm { reverse: r.bool() };
        // The loss reads the states, the cells, or both.
        for read in [&[0][..], &[2], &[0, 2]] {
            case_of(&op, &operands, read);
        }
    }
}

#[test]
fn grus() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let [t, b, n] = extents(r);
        let linear_before_reset = r.bool();
        let shapes = [vec![t, b, 3 * n], vec![3 * n, n], vec![b, n], vec![n]];
        let count = 3 + usize::from(linear_before_reset);
        let operands: Vec<Operand> = shapes[..count].iter().map(|s| trained(r, s)).collect();
        case(&Op::Gru { reverse: r.bool(), linear_before_reset }, &operands);
    }
}

#[test]
fn rnns() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let [t, b, n] = extents(r);
        let shapes = [vec![t, b, n], vec![n, n], vec![b, n]];
        let operands: Vec<Operand> = shapes.iter().map(|s| trained(r, s)).collect();
        let activation = if r.bool() { Activation::Tanh } else { Activation::Relu };
        case(&Op::Rnn { reverse: r.bool(), activation }, &operands);
    }
}
