//! Straight-line elementwise programs, [`Op::Pointwise`](super::Op::Pointwise): what graph
//! passes make of chains of elementwise operators.

use super::error::{broadcast, ensure};
use super::{Binary, TypeError, Unary};
use crate::types::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// One elementwise step of a program. Numbers name sources: the operands from zero on, then
/// the results of earlier steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// `f(x)`.
    Unary(Unary, usize),
    /// `f(a, b)`.
    Binary(Binary, usize, usize),
    /// `c ? a : b`.
    Where(usize, usize, usize),
    /// 1 where the condition holds, else 0.
    Cast(usize),
    /// The nearest number that a `bf16` holds; as a result a `bf16`. Programs of `f32` have it.
    Round(usize),
}

/// What a source of a step holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Numbers, in the one float type that the program computes in.
    Number,
    /// `bool`.
    Condition,
}

impl Kind {
    /// That of an element type; `None` for integers, which no program has.
    pub fn of(d: DType) -> Option<Kind> {
        match d {
            DType::Bool => Some(Kind::Condition),
            d if d.is_float() => Some(Kind::Number),
            _ => None,
        }
    }
}

impl Step {
    /// The sources it reads.
    pub fn sources(&self) -> impl Iterator<Item = usize> + use<> {
        let all = match *self {
            Step::Unary(_, x) | Step::Cast(x) | Step::Round(x) => [Some(x), None, None],
            Step::Binary(_, a, b) => [Some(a), Some(b), None],
            Step::Where(c, a, b) => [Some(c), Some(a), Some(b)],
        };
        all.into_iter().flatten()
    }

    /// The same step of sources by other numbers.
    pub fn over(&self, number: impl Fn(usize) -> usize) -> Step {
        match *self {
            Step::Unary(f, x) => Step::Unary(f, number(x)),
            Step::Binary(f, a, b) => Step::Binary(f, number(a), number(b)),
            Step::Where(c, a, b) => Step::Where(number(c), number(a), number(b)),
            Step::Cast(x) => Step::Cast(number(x)),
            Step::Round(x) => Step::Round(number(x)),
        }
    }

    /// True where it costs several nanoseconds an element on a CPU.
    pub fn is_dear(&self) -> bool {
        match self {
            Step::Unary(f, _) => f.row().is_dear,
            Step::Binary(f, ..) => f.row().is_dear,
            Step::Where(..) | Step::Cast(_) | Step::Round(_) => false,
        }
    }

    /// What it gives, from what its sources hold; `None` if it does not take them.
    pub fn kind(&self, of: impl Fn(usize) -> Option<Kind>) -> Option<Kind> {
        use Kind::{Condition, Number};
        let logical = |f| matches!(f, Binary::And | Binary::Or | Binary::Xor);
        match *self {
            Step::Unary(Unary::Not, x) => (of(x)? == Condition).then_some(Condition),
            Step::Unary(_, x) | Step::Round(x) => (of(x)? == Number).then_some(Number),
            Step::Cast(x) => (of(x)? == Condition).then_some(Number),
            Step::Where(c, a, b) => (of(c)? == Condition && of(a)? == of(b)?).then_some(of(a)?),
            Step::Binary(f, a, b) => match (of(a)?, of(b)?) {
                (Number, Number) if f.row().is_comparison => Some(Condition),
                (Number, Number) => (!logical(f)).then_some(Number),
                (Condition, Condition) => (logical(f) || f == Binary::Equal).then_some(Condition),
                _ => None,
            },
        }
    }
}

/// Most steps of one program; the CPU's kernel keeps a block of each on its stack.
pub const MAX_STEPS: usize = 64;

/// Most operands, and most results, of a program.
pub const MAX_OPERANDS: usize = 16;

/// What every source of a program holds: operands, then results of steps.
///
/// # Errors
/// A step reads what there is not, or does not take it.
pub fn kinds(steps: &[Step], operands: &[&TensorType]) -> Result<Vec<Kind>, TypeError> {
    let mut kinds = Vec::with_capacity(operands.len() + steps.len());
    for t in operands {
        let Some(kind) = Kind::of(t.dtype) else {
            return Err(TypeError(format!("pointwise does not take {t}")));
        };
        kinds.push(kind);
    }
    for step in steps {
        ensure!(
            step.sources().all(|s| s < kinds.len()),
            "{step:?} reads what no operand and no earlier step gives"
        );
        let Some(kind) = step.kind(|s| kinds.get(s).copied()) else {
            return Err(TypeError(format!("{step:?} does not take its sources")));
        };
        kinds.push(kind);
    }
    Ok(kinds)
}

/// What a [`Op::PointwiseReduce`](super::Op::PointwiseReduce) of these operands reduces.
pub(super) fn terms(x: &[&TensorType]) -> TensorType {
    let dtype =
        x.iter().map(|t| t.dtype.accumulated()).find(|d| d.is_float()).unwrap_or(DType::F32);
    TensorType::new(dtype, broadcast(x).unwrap_or_default())
}

/// What the last step gives, where each operand has an element for each of its, or one for all.
pub(super) fn infer_terms(steps: &[Step], x: &[&TensorType]) -> Result<TensorType, TypeError> {
    let terms = terms(x);
    let last = infer_last(steps, x, &terms.shape)?;
    ensure!(last == terms, "the last step of a pointwise_reduce gives no numbers");
    Ok(terms)
}

/// The type of what the last step gives, of this shape, as are all operands of more than one element.
pub(super) fn infer_last(
    steps: &[Step],
    x: &[&TensorType],
    shape: &[usize],
) -> Result<TensorType, TypeError> {
    let last = (x.len() + steps.len()).saturating_sub(1);
    let y = infer(steps, &[last], x)?.swap_remove(0);
    ensure!(
        y.shape == shape && x.iter().all(|t| t.elements() == 1 || t.shape == shape),
        "steps take operands of one shape, or of one element"
    );
    Ok(y)
}

/// The results: of the shape that all operands broadcast to.
pub(super) fn infer(
    steps: &[Step],
    results: &[usize],
    x: &[&TensorType],
) -> Result<Vec<TensorType>, TypeError> {
    ensure!(!steps.is_empty() && steps.len() <= MAX_STEPS, "{} steps", steps.len());
    let kinds = kinds(steps, x)?;
    ensure!(
        (1..=MAX_OPERANDS).contains(&results.len())
            && results.iter().all(|r| (x.len()..kinds.len()).contains(r)),
        "results {results:?} are not results of steps"
    );
    let mut floats = x.iter().map(|t| t.dtype.accumulated()).filter(|d| d.is_float());
    let Some(dtype) = floats.next() else {
        return Err(TypeError("pointwise has no operand of floats".into()));
    };
    ensure!(floats.all(|d| d == dtype), "pointwise computes in one type of floats");
    let rounds = |step: &Step| matches!(step, Step::Round(_));
    ensure!(dtype == DType::F32 || !steps.iter().any(rounds), "{dtype} is not rounded to bf16");
    let shape = broadcast(x)?;
    let of = |&r: &usize| match kinds[r] {
        Kind::Number if rounds(&steps[r - x.len()]) => TensorType::new(DType::Bf16, shape.clone()),
        Kind::Number => TensorType::new(dtype, shape.clone()),
        Kind::Condition => TensorType::new(DType::Bool, shape.clone()),
    };
    Ok(results.iter().map(of).collect())
}
