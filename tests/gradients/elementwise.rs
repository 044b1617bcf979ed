//! Elementwise operators.

use super::differences::weighted;
use super::*;
use arenic_ir::op::Unary;

#[test]
fn functions_of_one_operand() {
    use Unary::*;
    let smooth = [Abs, Atan, Cos, Erf, Exp, Neg, Reciprocal, Relu, Sigmoid, Sin, Tanh];
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
        // Between −1 and 1.
        let count = shape.iter().product();
        let numbers = apart(r, count, true).into_iter().map(|x| x / 4.0).collect();
        case(&Op::Unary { f: Atanh }, &[Operand::Trained(shape, numbers)]);
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

/// A graph that grows by one operator at a time.
struct Build(Graph);

impl Build {
    fn state(&mut self, shape: &[usize], values: &[f64]) -> ValueId {
        let init = Some(Data::Bytes(doubles(values).into()));
        let name = format!("x{}", self.0.states.len());
        let state = self.0.add_state(name, TensorType::new(DType::F64, shape), init);
        self.0.states[state].enter
    }

    fn bools(&mut self, shape: &[usize], values: &[u8]) -> ValueId {
        self.0.add_const(
            "",
            TensorType::new(DType::Bool, shape),
            Data::Bytes(values.to_vec().into()),
        )
    }

    fn number(&mut self, x: f64) -> ValueId {
        self.0.add_const("", TensorType::scalar(DType::F64), Data::Bytes(doubles(&[x]).into()))
    }

    fn op(&mut self, op: Op, x: &[ValueId]) -> ValueId {
        let n = self.0.add_node("", op, x.to_vec()).unwrap();
        self.0.result(n).unwrap()
    }

    fn unary(&mut self, f: Unary, x: ValueId) -> ValueId {
        self.op(Op::Unary { f }, &[x])
    }

    fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.op(Op::Binary { f }, &[a, b])
    }

    /// Where the condition holds, the branch, else three times `x`; and the other way around.
    fn guarded(&self, name: &str, x: ValueId, condition: ValueId, branch: ValueId) {
        for first in [true, false] {
            let mut b = Build(self.0.clone());
            let three = b.number(3.0);
            let other = b.binary(Binary::Mul, x, three);
            let y = if first {
                b.op(Op::Where, &[condition, branch, other])
            } else {
                let not = b.unary(Unary::Not, condition);
                b.op(Op::Where, &[not, other, branch])
            };
            let value = weighted(&mut b.0, y);
            b.0.outputs.push(Output { name: "y".into(), value });
            let pass = Differentiate { loss: "y".into(), ..Differentiate::default() };
            check(name, &b.0, &pass, &[], &|states| run(&b.0, states, &[]).0);
        }
    }
}

/// Two rows, of which the second is selected; the first has the given element.
fn rows(at: f64) -> (Build, ValueId, ValueId) {
    let mut b = Build(Graph::default());
    let x = b.state(&[2, 2], &[at, at, 0.7, 1.3]);
    let condition = b.bools(&[2, 1], &[0, 1]);
    (b, x, condition)
}

#[test]
fn what_is_not_selected_passes_nothing_on() {
    use Binary::{Add, Div, Mul, Pow, Rem};
    use Unary::{Exp, Log, Reciprocal, Sin, Sqrt};
    for (f, at) in [(Log, 0.0), (Sqrt, 0.0), (Reciprocal, 0.0), (Exp, 1000.0)] {
        let (mut b, x, condition) = rows(at);
        let inner = b.unary(f, x);
        let branch = b.unary(Unary::Neg, inner);
        b.guarded(&format!("{f:?}"), x, condition, branch);
    }
    for (f, at) in [(Div, 0.0), (Rem, 0.0), (Pow, 0.0)] {
        let (mut b, x, condition) = rows(at);
        let y = b.state(&[2], &[-1.5, -2.3]);
        let branch = match f {
            Pow => b.binary(Pow, x, y),
            _ => b.binary(f, y, x),
        };
        b.guarded(&format!("{f:?}"), x, condition, branch);
    }
    // Several readers of what is in the branch, and a factor that overflows.
    let (mut b, x, condition) = rows(1000.0);
    let exp = b.unary(Exp, x);
    let both = b.binary(Mul, exp, x);
    let both = b.binary(Add, both, exp);
    b.guarded("x exp(x) + exp(x)", x, condition, both);
    // A norm: through a sum whose elements the condition broadcasts to.
    let (mut b, x, condition) = rows(0.0);
    let square = b.binary(Mul, x, x);
    let sum = b.op(Op::Reduce { f: Reduction::Sum, axes: vec![1], keep: true }, &[square]);
    let root = b.unary(Sqrt, sum);
    let branch = b.binary(Div, x, root);
    b.guarded("a norm", x, condition, branch);
    // A choice within a choice, neither of which alone leaves out all.
    let mut b = Build(Graph::default());
    let x = b.state(&[3], &[0.0, 0.0, 0.7]);
    let (outer, inner) = (b.bools(&[3], &[0, 1, 1]), b.bools(&[3], &[1, 0, 1]));
    let log = b.unary(Log, x);
    let chosen = b.op(Op::Where, &[inner, log, x]);
    let branch = b.unary(Sin, chosen);
    b.guarded("a choice within a choice", x, outer, branch);
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
