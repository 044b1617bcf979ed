//! Elementwise operators.

use super::*;
use arenic_ir::op::Unary;

#[test]
fn functions_of_one_operand() {
    use Unary::*;
    let smooth = [Abs, Cos, Erf, Exp, Neg, Reciprocal, Relu, Sigmoid, Sin, Tanh];
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let rank = r.usize(0..4);
        let (shape, _) = shapes(r, rank);
        for f in smooth {
            case(&Op::Unary { f }, &[trained(r, &shape)]);
        }
        for f in [Log, Sqrt] {
            case(&Op::Unary { f }, &[positive(r, &shape)]);
        }
    }
}

#[test]
fn functions_of_two_operands_broadcast() {
    use Binary::*;
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let rank = r.usize(0..4);
        let (whole, part) = shapes(r, rank);
        for f in [Add, Sub, Mul, Div, Max, Min, Rem] {
            // One draw for both, so that no two elements are equal.
            let (m, n) = (whole.iter().product(), part.iter().product::<usize>());
            let mut all = apart(r, m + n, false);
            let b = Operand::Trained(part.clone(), all.split_off(m));
            let a = Operand::Trained(whole.clone(), all);
            let operands = if r.bool() { [a, b] } else { [b, a] };
            case(&Op::Binary { f }, &operands);
        }
        let operands = [positive(r, &whole), trained(r, &part)];
        case(&Op::Binary { f: Pow }, &operands);
    }
}

#[test]
fn constant_exponents() {
    for exponent in [2.0, 0.5, 3.0, -1.0, 1.0, 0.0] {
        let r = &mut Rng::with_seed(7);
        let scalar = Operand::Fixed(TensorType::scalar(DType::F64), doubles(&[exponent]));
        case(&Op::Binary { f: Binary::Pow }, &[positive(r, &[2, 3]), scalar]);
    }
}

#[test]
fn a_choice_between_two() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let rank = r.usize(1..4);
        let (whole, part) = shapes(r, rank);
        let bits: Vec<u8> = (0..whole.iter().product()).map(|_| u8::from(r.bool())).collect();
        let condition = Operand::Fixed(TensorType::new(DType::Bool, whole.clone()), bits);
        case(&Op::Where, &[condition, trained(r, &whole), trained(r, &part)]);
    }
}

#[test]
fn bounds() {
    for (min, max) in [(true, true), (true, false), (false, true), (false, false)] {
        let r = &mut Rng::with_seed(3);
        let mut operands = vec![trained(r, &[5, 4])];
        if min {
            operands.push(Operand::Trained(vec![], vec![-0.91]));
        }
        if max {
            operands.push(Operand::Trained(vec![], vec![0.93]));
        }
        case(&Op::Clip { min, max }, &operands);
    }
}

#[test]
fn dropout_passes_what_it_kept() {
    let rng = arenic_ir::op::Rng { stream: 5, seed: None };
    let r = &mut Rng::with_seed(1);
    let ratio = Operand::Fixed(TensorType::scalar(DType::F64), doubles(&[0.4]));
    case(&Op::Dropout { rng }, &[trained(r, &[4, 5]), ratio]);
}
