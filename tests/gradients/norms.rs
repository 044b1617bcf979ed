//! Softmax and normalisations.

use super::*;

#[test]
fn softmax_along_any_axis() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let (shape, _) = shapes(r, 3);
        let axis = r.usize(0..3);
        case(&Op::Softmax { axis }, &[trained(r, &shape)]);
        case(&Op::LogSoftmax { axis }, &[trained(r, &shape)]);
    }
}

#[test]
fn layers() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let shape: Vec<usize> = (0..3).map(|_| r.usize(2..5)).collect();
        let axis = r.usize(0..3);
        let op = Op::LayerNorm { axis, epsilon: 1e-2 };
        let own = &shape[axis..];
        case(&op, &[trained(r, &shape), trained(r, own), trained(r, own)]);
        case(&op, &[trained(r, &shape), trained(r, own)]);
        case(&op, &[trained(r, &shape), trained(r, &[]), trained(r, &[1])]);
    }
}

#[test]
fn batches() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let rank = r.usize(2..5);
        let shape: Vec<usize> = (0..rank).map(|_| r.usize(2..4)).collect();
        let own = [shape[1]];
        let operands = [trained(r, &shape), trained(r, &own), trained(r, &own)];
        case(&Op::BatchNorm { epsilon: 1e-2 }, &operands);
    }
}
