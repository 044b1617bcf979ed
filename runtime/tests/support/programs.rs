//! Random programs of `Pointwise`.

use super::random::Random;
use arenic_ir::op::{Binary, Kind, Step, Unary};

/// Functions that are rounded in one way alone.
const EXACT: [Unary; 9] = [
    Unary::Abs,
    Unary::Ceil,
    Unary::Floor,
    Unary::Neg,
    Unary::Not,
    Unary::Reciprocal,
    Unary::Relu,
    Unary::Sign,
    Unary::Sqrt,
];

/// Functions of which each library has its own last bits.
const OTHERS: [Unary; 7] =
    [Unary::Cos, Unary::Erf, Unary::Exp, Unary::Log, Unary::Sigmoid, Unary::Sin, Unary::Tanh];

const BINARY: [Binary; 14] = [
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
    Binary::Sub,
    Binary::Xor,
];

/// So many steps that operands of these kinds can go through; without the functions that differ
/// in last bits where it is to be `exact`.
pub(crate) fn steps(r: &mut Random, operands: &[Kind], count: usize, exact: bool) -> Vec<Step> {
    let mut kinds = operands.to_vec();
    let mut steps = Vec::new();
    while steps.len() < count {
        let [a, b, c] = [0; 3].map(|_| r.range(0, kinds.len() - 1));
        let step = match r.range(0, 9) {
            0 => Step::Cast(a),
            1 | 2 => Step::Where(a, b, c),
            3 if !exact => Step::Unary(r.choose(&OTHERS), a),
            3 | 4 => Step::Unary(r.choose(&EXACT), a),
            _ => Step::Binary(r.choose(&BINARY), a, b),
        };
        if let Some(kind) = step.kind(|s| Some(kinds[s])) {
            kinds.push(kind);
            steps.push(step);
        }
    }
    steps
}
