//! Normalisations and gradients of their operands with the elementwise steps that follow their result,
//! and gradients of normalisations with the steps that make their `dy`.
//!
//! [`Op::FusedNorm`] and [`Op::FusedNormGrad`] hold the operator that they are without the steps. It
//! has an operand or a result of which no tensor exists: [`own`] and [`own_of_gradient`] have the
//! types of what it would be applied to by itself.

use super::error::ensure;
use super::pointwise::infer_last;
use super::{Cut, MAX_OPERANDS, Op, Step, TypeError};
use crate::types::{DType, TensorType};

/// The operands of the normalisation itself, and those of the steps alone.
pub fn own<'a, 'b>(
    others: usize,
    x: &'a [&'b TensorType],
) -> (&'a [&'b TensorType], &'a [&'b TensorType]) {
    x.split_at(x.len().saturating_sub(others))
}

/// The operands of the gradient itself, with one of the type of its first one for its `dy`, and
/// those of the steps.
pub fn own_of_gradient<'a, 'b>(
    of: &Op,
    x: &'a [&'b TensorType],
) -> (Vec<&'b TensorType>, &'a [&'b TensorType]) {
    let (own, read) = x.split_at(kept(of).min(x.len()));
    let mut own = own.to_vec();
    if let Some(&first) = own.first() {
        own.insert(DY, first);
    }
    (own, read)
}

/// Position of `dy` among a gradient's operands.
pub const DY: usize = 1;

/// How many operands of a gradient there are without its `dy`; the others' first position.
pub fn kept(of: &Op) -> usize {
    of.arity().0.saturating_sub(1)
}

pub(super) fn arity(of: &Op, others: usize) -> (usize, usize) {
    let (least, most) = of.arity();
    (least.saturating_add(others), most.saturating_add(others))
}

pub(super) fn arity_of_gradient(of: &Op) -> (usize, usize) {
    let kept = kept(of);
    (kept.saturating_add(1), kept.saturating_add(MAX_OPERANDS))
}

pub(super) fn infer(
    of: &Op,
    (others, steps, rounded): (usize, &[Step], bool),
    x: &[&TensorType],
) -> Result<Vec<TensorType>, TypeError> {
    ensure!(
        is_followed(of),
        "fused_norm holds {}, which is no normalisation and no gradient of a normalised operand",
        of.name()
    );
    ensure!(others < MAX_OPERANDS, "fused_norm of steps with {others} operands more");
    let (own, read) = own(others, x);
    let mut y = of.infer(own)?;
    let normal = y[0].accumulated();
    let operands: Vec<&TensorType> = [&normal].into_iter().chain(read.iter().copied()).collect();
    y[0] = infer_last(steps, &operands, &normal.shape)?;
    if rounded {
        ensure!(y[0].dtype == DType::F32, "{} is not rounded to bf16", y[0]);
        y.push(TensorType::new(DType::Bf16, &y[0].shape[..]));
    }
    Ok(y)
}

/// True for operators that steps may follow: they give an element for each of their first operand.
fn is_followed(of: &Op) -> bool {
    let is_of_operand =
        |of: &Op| matches!(of, Op::LayerNormInputGrad { .. } | Op::BatchNormInputGrad);
    match of {
        Op::LayerNorm { .. } | Op::BatchNorm { .. } => true,
        Op::FusedNormGrad { of, .. } => is_of_operand(of),
        of => is_of_operand(of),
    }
}

pub(super) fn infer_gradient(
    of: &Op,
    steps: &[Step],
    x: &[&TensorType],
) -> Result<Vec<TensorType>, TypeError> {
    ensure!(
        matches!(
            of,
            Op::LayerNormParamGrad { .. }
                | Op::LayerNormInputGrad { .. }
                | Op::BatchNormParamGrad
                | Op::BatchNormInputGrad
        ),
        "fused_norm_grad holds {}, which is no gradient of a normalisation",
        of.name()
    );
    let (mut own, read) = own_of_gradient(of, x);
    let dy = match (steps, read) {
        // As it is read: what is stored as `bf16` is widened.
        ([], [one]) if one.dtype.is_float() && one.shape == x[0].shape => one.accumulated(),
        _ => infer_last(steps, read, &x[0].shape)?,
    };
    own[DY] = &dy;
    of.infer(&own)
}

/// The result may take the bytes that it might without steps, or those of another operand of its shape:
/// statistics are complete before an element is written, and of each place all operands are read before.
pub(super) fn in_place(
    of: &Op,
    others: usize,
    x: &[&TensorType],
    y: &[&TensorType],
) -> Vec<(usize, usize)> {
    let (own, _) = own(others, x);
    let pairs = of.family().row().in_place(own, y);
    (own.len()..x.len()).map(|i| (i, 0)).chain(pairs).collect()
}

/// Of an operand's gradient what `dy` is made of has the pairs that `dy` has.
pub(super) fn in_place_of_gradient(
    of: &Op,
    x: &[&TensorType],
    y: &[&TensorType],
) -> Vec<(usize, usize)> {
    let (own, _) = own_of_gradient(of, x);
    let pairs = of.family().row().in_place(&own, y);
    let first = kept(of);
    let moved = |(i, o): (usize, usize)| match i {
        DY => (first..x.len()).map(|k| (k, o)).collect(),
        0 => vec![(0, o)],
        _ => vec![(i - 1, o)],
    };
    pairs.into_iter().flat_map(moved).collect()
}

/// Where the normalisation is cut, with the others along the same axis.
pub(super) fn cuts(of: &Op, others: usize, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
    let (own, read) = own(others, x);
    of.family().row().cuts(own, y).into_iter().map(|cut| with_others(cut, x[0], read)).collect()
}

pub(super) fn cuts_of_gradient(of: &Op, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
    let (own, read) = own_of_gradient(of, x);
    let without_dy = |mut cut: Cut| {
        cut.operands.remove(DY);
        with_others(cut, x[0], read)
    };
    of.family().row().cuts(&own, y).into_iter().map(without_dy).collect()
}

/// The cut with operands of steps: of the shape of the first operand, and cut as that is, or of one
/// element.
fn with_others(mut cut: Cut, first: &TensorType, read: &[&TensorType]) -> Cut {
    let axis = cut.operands[0];
    cut.operands.extend(read.iter().map(|t| axis.filter(|_| t.shape == first.shape)));
    cut
}

#[cfg(test)]
mod tests {
    use super::super::{Assembly, Binary, Unary};
    use super::*;

    fn ty(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType::new(dtype, shape)
    }

    fn norm(others: usize, steps: Vec<Step>) -> Op {
        let of = Box::new(Op::BatchNorm { epsilon: 0.1 });
        Op::FusedNorm { of, others, steps, rounded: false }
    }

    #[test]
    fn the_result_is_what_the_last_step_gives() {
        let (x, c) = (ty(DType::F32, &[4, 3, 5]), ty(DType::F32, &[3]));
        let (r, one) = (ty(DType::Bf16, &[4, 3, 5]), ty(DType::F32, &[]));
        let op = norm(2, vec![Step::Binary(Binary::Add, 0, 1), Step::Binary(Binary::Mul, 3, 2)]);
        let y = op.infer(&[&x, &c, &c, &r, &one]).unwrap();
        assert_eq!(y, [x.clone(), c.clone(), c.clone(), c.clone()]);
        let y: Vec<&TensorType> = y.iter().collect();
        // Not in the place of a tensor with elements of another size.
        assert_eq!(op.in_place_pairs(&[&x, &c, &c, &r, &one], &y), [(0, 0)]);
        assert_eq!(op.in_place_pairs(&[&x, &c, &c, &x, &one], &y), [(3, 0), (0, 0)]);
        let cut = &op.cuts(&[&x, &c, &c, &r, &one], &y)[0];
        assert_eq!(cut.operands, [Some(1), Some(0), Some(0), Some(1), None]);
        let narrow = norm(0, vec![Step::Unary(Unary::Relu, 0), Step::Round(1)]);
        assert_eq!(narrow.infer(&[&x, &c, &c]).unwrap()[0], r);
        let of = Op::FusedNormGrad { of: Box::new(Op::BatchNormInputGrad), steps: vec![] };
        let steps = vec![Step::Binary(Binary::Add, 0, 1)];
        let of = Box::new(of);
        let of_operand = Op::FusedNorm { of, others: 1, steps: steps.clone(), rounded: true };
        let operands = [&x, &c, &c, &c, &c, &c, &r, &x];
        assert_eq!(of_operand.infer(&operands).unwrap(), [x.clone(), r.clone()]);
        assert_eq!(of_operand.in_place_pairs(&operands, &[&x, &r]), [(7, 0), (0, 0)]);
        let cut = &of_operand.cuts(&operands, &[&x, &r])[0];
        assert_eq!(cut.operands[4..], [Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(cut.results, [Assembly::Concat(1); 2]);
        let sums = Op::FusedNormGrad { of: Box::new(Op::BatchNormParamGrad), steps: vec![] };
        for (op, operands) in [
            // Sums have no element for each of an operand.
            (
                Op::FusedNorm { of: Box::new(sums), others: 1, steps, rounded: false },
                vec![&x, &c, &c, &r, &x],
            ),
            // A row for all, too few operands, no steps, what is no normalisation.
            (norm(1, vec![Step::Binary(Binary::Add, 0, 1)]), vec![&x, &c, &c, &c]),
            (norm(2, vec![Step::Binary(Binary::Add, 0, 1)]), vec![&x, &c, &c, &x]),
            (norm(0, vec![]), vec![&x, &c, &c]),
            (
                Op::FusedNorm {
                    of: Box::new(narrow),
                    others: 0,
                    steps: vec![Step::Unary(Unary::Relu, 0)],
                    rounded: false,
                },
                vec![&x, &c, &c],
            ),
        ] {
            assert!(op.infer(&operands).is_err(), "{op:?}");
        }
    }

    #[test]
    fn a_gradient_is_that_of_what_the_steps_give() {
        let (x, c) = (ty(DType::F32, &[4, 3, 5]), ty(DType::F32, &[3]));
        let (mask, zero) = (ty(DType::Bool, &[4, 3, 5]), ty(DType::F32, &[]));
        let of = |of: Op| Op::FusedNormGrad { of: Box::new(of), steps: vec![Step::Where(0, 1, 2)] };
        let sums = of(Op::BatchNormParamGrad);
        let operands = [&x, &c, &c, &mask, &x, &zero];
        assert_eq!(sums.infer(&operands).unwrap(), [c.clone(), c.clone()]);
        assert_eq!(sums.in_place_pairs(&operands, &[&c, &c]), []);
        let dx = of(Op::BatchNormInputGrad);
        let operands = [&x, &c, &c, &c, &c, &c, &mask, &x, &zero];
        assert_eq!(dx.infer(&operands).unwrap(), std::slice::from_ref(&x));
        assert_eq!(dx.in_place_pairs(&operands, &[&x]), [(7, 0), (0, 0)]);
        let cut = &dx.cuts(&operands, &[&x])[0];
        assert_eq!(cut.operands[5..], [Some(0), Some(1), Some(1), None]);
        // A mask is no gradient.
        let mask_of = vec![Step::Binary(Binary::Greater, 0, 1)];
        let op = Op::FusedNormGrad { of: Box::new(Op::BatchNormParamGrad), steps: mask_of };
        assert!(op.infer(&[&x, &c, &c, &x, &zero]).is_err());
        let widened = Op::FusedNormGrad { of: Box::new(Op::BatchNormParamGrad), steps: vec![] };
        let narrow = ty(DType::Bf16, &[4, 3, 5]);
        assert_eq!(widened.infer(&[&x, &c, &c, &narrow]).unwrap(), [c.clone(), c.clone()]);
        assert!(widened.infer(&[&x, &c, &c, &mask]).is_err());
        assert!(widened.infer(&[&x, &c, &c, &x, &x]).is_err());
        let wrong = of(Op::BatchNorm { epsilon: 0.1 });
        assert!(wrong.infer(&[&x, &c, &mask, &x, &zero]).is_err());
    }
}
