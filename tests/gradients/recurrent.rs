//! Recurrences, in both directions, with and without peepholes and both forms of a GRU's reset.

use super::*;
use arenic_ir::op::Activation;

/// Steps, a batch and hidden units.
fn extents(r: &mut Rng) -> [usize; 3] {
    [r.usize(1..5), r.usize(1..4), r.usize(1..5)]
}

/// A state before the first step: trained, or zeros.
fn initial(r: &mut Rng, shape: &[usize]) -> Operand {
    match r.bool() {
        true => trained(r, shape),
        false => zeros(shape),
    }
}

fn zeros(shape: &[usize]) -> Operand {
    let ty = TensorType::new(DType::F64, shape);
    let bytes = vec![0; ty.bytes() as usize];
    Operand::Fixed(ty, bytes)
}

#[test]
fn lstms() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let [t, b, n] = extents(r);
        let shapes = [vec![t, b, 4 * n], vec![4 * n, n], vec![b, n], vec![b, n], vec![3 * n]];
        let count = 4 + usize::from(r.bool());
        let mut operands: Vec<Operand> = shapes[..count].iter().map(|s| trained(r, s)).collect();
        operands[2] = initial(r, &shapes[2]);
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
        let mut operands: Vec<Operand> = shapes[..count].iter().map(|s| trained(r, s)).collect();
        operands[2] = initial(r, &shapes[2]);
        case(&Op::Gru { reverse: r.bool(), linear_before_reset }, &operands);
    }
}

#[test]
fn rnns() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let [t, b, n] = extents(r);
        let shapes = [vec![t, b, n], vec![n, n], vec![b, n]];
        let mut operands: Vec<Operand> = shapes.iter().map(|s| trained(r, s)).collect();
        operands[2] = initial(r, &shapes[2]);
        let activation = if r.bool() { Activation::Tanh } else { Activation::Relu };
        case(&Op::Rnn { reverse: r.bool(), activation }, &operands);
    }
}

#[test]
fn a_first_step_that_begins_with_zeros_adds_nothing_to_the_weight() {
    let r = &mut Rng::with_seed(0);
    let [t, b, n] = [3, 2, 4];
    let products = |first: Operand, r: &mut Rng| {
        let [pre, weight] = [&[t, b, 4 * n][..], &[4 * n, n]].map(|s| trained(r, s));
        let mut g =
            forward(&Op::Lstm { reverse: false }, &[pre, weight, first, zeros(&[b, n])], &[0]);
        let train = vec!["*".parse().unwrap()];
        let pass = Differentiate { loss: "y".into(), train, ..Differentiate::default() };
        pass.run(&mut g, &Cx::new(CPU.target())).unwrap();
        let of_weight = |op: &Op| matches!(op, Op::MatMul { .. } | Op::Gemm { .. });
        g.nodes.values().filter(|node| of_weight(&node.op)).count()
    };
    let trained = trained(r, &[b, n]);
    assert_eq!((products(trained, r), products(zeros(&[b, n]), r)), (2, 1));
}
