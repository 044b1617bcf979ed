//! Elementwise operators, every function on every type that it takes.

use super::random::Random;
use super::{Case, Close, programs};
use arenic_ir::op::{Binary, Kind, Step, Unary};
use arenic_ir::{DType, Op};

const UNARY: [Unary; 18] = [
    Unary::Abs,
    Unary::Atan,
    Unary::Atanh,
    Unary::Ceil,
    Unary::Cos,
    Unary::Erf,
    Unary::Exp,
    Unary::Floor,
    Unary::Log,
    Unary::Neg,
    Unary::Not,
    Unary::Reciprocal,
    Unary::Relu,
    Unary::Sigmoid,
    Unary::Sign,
    Unary::Sin,
    Unary::Sqrt,
    Unary::Tanh,
];

const BINARY: [Binary; 16] = [
    Binary::Add,
    Binary::And,
    Binary::Div,
    Binary::Equal,
    Binary::Greater,
    Binary::GreaterOrEqual,
    Binary::Less,
    Binary::LessOrEqual,
    Binary::Max,
    Binary::Min,
    Binary::Mul,
    Binary::Or,
    Binary::Pow,
    Binary::Rem,
    Binary::Sub,
    Binary::Xor,
];

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for d in DType::ALL {
        for f in UNARY.into_iter().filter(|f| f.takes(d)) {
            let shape = r.shape(3);
            let exact = matches!(
                f,
                Unary::Abs
                    | Unary::Ceil
                    | Unary::Floor
                    | Unary::Neg
                    | Unary::Not
                    | Unary::Reciprocal
                    | Unary::Relu
                    | Unary::Sign
                    | Unary::Sqrt
            );
            let close = if exact { Close::EQUAL } else { Close::FUNCTION };
            // Large angles are reduced by each library in its own way.
            let x = match f {
                Unary::Cos | Unary::Sin => r.tame(d, shape),
                _ => r.wild(d, shape),
            };
            cases.push(Case::new(Op::Unary { f }, [x]).close(close));
        }
        for f in BINARY.into_iter().filter(|f| f.takes(d)) {
            for _ in 0..2 {
                cases.push(binary(r, f, d));
            }
        }
        for to in DType::ALL {
            let shape = r.shape(3);
            cases.push(Case::new(Op::Cast { to }, [r.wild(d, shape)]));
        }
        cases.push(choice(r, d));
        if d != DType::Bool {
            for (min, max) in [(false, false), (true, false), (false, true), (true, true)] {
                let shape = r.shape(3);
                let bounds = usize::from(min) + usize::from(max);
                let mut inputs = vec![r.wild(d, shape)];
                inputs.extend((0..bounds).map(|_| r.wild(d, [])));
                cases.push(Case::new(Op::Clip { min, max }, inputs));
            }
        }
        let shape = r.shape(4);
        cases.push(Case::new(Op::Copy, [r.wild(d, shape)]));
    }
    for d in [DType::F32, DType::F64] {
        cases.extend((0..6).map(|_| pointwise(r, d)));
    }
    cases.extend(large(r));
    cases
}

/// So many elements that a thread has several of them, with operands of other sizes and shapes
/// beside them; each once more, where operands begin at any element.
fn large(r: &mut Random) -> Vec<Case> {
    let shape = [4, 128, 256];
    let mut cases = Vec::new();
    for d in [DType::F32, DType::F64, DType::Bf16, DType::I64, DType::U8] {
        let add = Op::Binary { f: Binary::Add };
        cases.push(Case::new(add.clone(), [r.wild(d, shape), r.wild(d, shape)]));
        cases.push(Case::new(add.clone(), [r.wild(d, [128, 1]), r.wild(d, shape)]));
        cases.push(Case::new(add, [r.wild(d, shape), r.wild(d, [])]));
        let condition = r.wild(DType::Bool, shape);
        cases.push(Case::new(Op::Where, [condition, r.wild(d, [256]), r.wild(d, shape)]));
    }
    for (from, to) in
        [(DType::F32, DType::Bf16), (DType::Bf16, DType::F32), (DType::F64, DType::U8)]
    {
        cases.push(Case::new(Op::Cast { to }, [r.wild(from, shape)]));
    }
    // An odd number of elements, and twice an odd one.
    for shape in [[3, 211, 211], [2, 257, 257]] {
        let x = r.wild(DType::F32, shape);
        cases.push(Case::new(Op::Unary { f: Unary::Relu }, [x]));
    }
    let steps = vec![
        Step::Binary(Binary::Mul, 0, 1),
        Step::Binary(Binary::Add, 4, 2),
        Step::Where(3, 5, 0),
        Step::Round(6),
    ];
    let inputs = [
        r.wild(DType::Bf16, shape),
        r.wild(DType::F32, shape),
        r.wild(DType::F32, [128, 1]),
        r.wild(DType::Bool, shape),
    ];
    cases.push(Case::new(Op::Pointwise { steps, results: vec![7, 5] }, inputs));
    cases.into_iter().flat_map(|case| [case.clone(), case]).collect()
}

fn binary(r: &mut Random, f: Binary, d: DType) -> Case {
    let shape = r.shape(4);
    let other = r.broadcast_to(&shape);
    let whole = r.wild(d, shape);
    // Mostly without zeros, which integers refuse to be divided by.
    let part = match f {
        Binary::Div | Binary::Rem if !d.is_float() && r.range(0, 3) > 0 => {
            r.fill(d, other, |r| r.range(1, 9) as f64)
        }
        Binary::Pow => r.tame(d, other),
        _ => r.wild(d, other),
    };
    let close = if f == Binary::Pow { Close::FUNCTION } else { Close::EQUAL };
    let divides = matches!(f, Binary::Div | Binary::Rem);
    let inputs = if r.chance() || divides { [whole, part] } else { [part, whole] };
    Case::new(Op::Binary { f }, inputs).close(close)
}

fn choice(r: &mut Random, d: DType) -> Case {
    let shape = r.shape(3);
    let [condition, a, b] = [0, 1, 2].map(|_| r.broadcast_to(&shape));
    let inputs = [r.wild(DType::Bool, condition), r.wild(d, a), r.wild(d, b)];
    Case::new(Op::Where, inputs)
}

/// Steps on operands that broadcast, some of them conditions.
fn pointwise(r: &mut Random, d: DType) -> Case {
    let shape = [r.range(1, 5), r.range(1, 4), r.range(1, 40)];
    let mut inputs = vec![r.wild(d, shape)];
    for _ in 0..r.range(0, 3) {
        // Beside `f32` there may be `bf16`, of which a program computes in `f32`.
        let narrow = if d == DType::F32 { DType::Bf16 } else { d };
        let (other, dtype) = (r.broadcast_to(&shape), r.choose(&[d, narrow, DType::Bool]));
        inputs.push(r.wild(dtype, other));
    }
    let kinds: Vec<Kind> = inputs.iter().filter_map(|t| Kind::of(t.ty.dtype)).collect();
    let count = r.range(1, 8);
    let mut steps = programs::steps(r, &kinds, count, true);
    if r.chance() {
        steps.push(Step::Binary(Binary::Pow, 0, inputs.len() - 1));
        if steps.last().and_then(|s| s.kind(|s| kinds.get(s).copied())).is_none() {
            steps.pop();
        }
    }
    if d == DType::F32 {
        steps.push(Step::Round(r.range(0, inputs.len() - 1)));
        let kind = |s: usize| Kind::of(inputs.get(s)?.ty.dtype);
        if steps.last().and_then(|s| s.kind(kind)).is_none() {
            steps.pop();
        }
    }
    let last = inputs.len() + steps.len() - 1;
    let results = if r.chance() { vec![last] } else { vec![last, inputs.len()] };
    let power = |step: &Step| matches!(step, Step::Binary(Binary::Pow, ..));
    let close = if steps.iter().any(power) { Close::FUNCTION } else { Close::EQUAL };
    Case::new(Op::Pointwise { steps, results }, inputs).close(close)
}
