//! Reductions.

use super::*;

#[test]
fn over_any_axes() {
    use Reduction::*;
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let (shape, _) = shapes(r, 4);
        let axes: Vec<usize> = (0..4).filter(|_| r.bool()).collect();
        for f in [Sum, Mean, Max, Min, Prod] {
            case(&Op::Reduce { f, axes: axes.clone(), keep: r.bool() }, &[trained(r, &shape)]);
        }
    }
}

/// Two zeros in a row leave every product without its own element zero, one leaves one.
#[test]
fn products_with_zeros() {
    let values = vec![0.0, 2.0, 3.0, 0.0, 0.5, 0.0, 1.5, 1.25, -2.0];
    let op = Op::Reduce { f: Reduction::Prod, axes: vec![1], keep: false };
    case(&op, &[Operand::Trained(vec![3, 3], values)]);
}
