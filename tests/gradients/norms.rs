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

/// A loss of statistics, too, has another gradient than the rules pass on.
#[test]
fn statistics_are_refused() {
    let r = &mut Rng::with_seed(4);
    let own = [trained(r, &[3]), trained(r, &[3])];
    let operands = [vec![trained(r, &[2, 3])], own.into_iter().collect()].concat();
    let train: Vec<_> = vec!["*".parse().unwrap()];
    let pass = Differentiate { loss: "y".into(), train, ..Differentiate::default() };
    let layer = Op::LayerNorm { axis: 1, epsilon: 1e-2 };
    for (op, name) in [(layer, "layer_norm"), (Op::BatchNorm { epsilon: 1e-2 }, "batch_norm")] {
        let g = forward(&op, &operands, &[0, 1]);
        let found = differences::check(&g, &pass, &[], &|states| run(&g, states, &[]).0);
        let refusal = format!("only the first result of {name} has a gradient");
        assert_eq!(found, Err(refusal));
    }
}
