//! Normalisations and their gradients, by themselves and fused with elementwise steps.
//!
//! What the steps read and write beside a stored operand or result of the operator exists a strip at
//! a time. Every element is computed by the same functions as by the operators apart, and sums
//! are taken in the same order, so that the bits are the same.

use super::address::Shared;
use super::number::Float;
use super::pointwise::{Computed, Following};
use super::terms::{Room, Terms};
use super::{batch_norm, norm, norm_grad, param_grad};
use crate::kernel::{Call, Destination, Operand};
use arenic_ir::Op;
use arenic_ir::op::fused_norm::{DY, kept};
use arenic_ir::op::{MAX_OPERANDS, Step};
use std::mem::MaybeUninit;

/// Steps with the operands that they alone read.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    steps: &'a [Step],
    read: &'a [Operand<'a>],
    /// Where what the last step gives is also written as `bf16`.
    rounded: Option<&'a Destination<'a>>,
}

/// Runs a normalisation or one of its gradients, without steps.
pub(super) fn alone(call: &Call) {
    run(None, None, call);
}

/// Runs a `FusedNorm`.
pub(super) fn followed(of: &Op, others: usize, steps: &[Step], rounded: bool, call: &Call) {
    let (inputs, read) = call.inputs.split_at(call.inputs.len() - others);
    let rounded = if rounded { call.outputs.last().and_then(Option::as_ref) } else { None };
    let then = Some(Steps { steps, read, rounded });
    let call = &Call { op: of, inputs, ..*call };
    match of {
        Op::FusedNormGrad { of, steps } => gradient(of, steps, then, call),
        _ => run(None, then, call),
    }
}

/// Runs a `FusedNormGrad`, perhaps with steps that follow.
pub(super) fn gradient(of: &Op, steps: &[Step], then: Option<Steps>, call: &Call) {
    /// Most operands of a gradient.
    const MOST: usize = 7;
    let (own, read) = call.inputs.split_at(kept(of));
    // The operand in the place of `dy` has its type. Nobody reads it there.
    let mut inputs = [own[0]; MOST];
    inputs[DY + 1..=own.len()].copy_from_slice(&own[DY..]);
    let inputs = &inputs[..=own.len()];
    run(Some(Steps { steps, read, rounded: None }), then, &Call { op: of, inputs, ..*call });
}

/// Runs the operator of a call, with the steps that give a gradient's `dy`, and those that follow.
fn run(dy: Option<Steps>, then: Option<Steps>, call: &Call) {
    match *call.op {
        Op::LayerNorm { axis, epsilon } => norm::run(axis, epsilon, then, call),
        Op::LayerNormInputGrad { axis } => norm_grad::run(axis, dy, then, call),
        Op::LayerNormParamGrad { axis } => param_grad::of_rows(axis, dy, call),
        Op::BatchNorm { epsilon } => batch_norm::run(epsilon, then, call),
        Op::BatchNormInputGrad => batch_norm::input_gradient(dy, then, call),
        Op::BatchNormParamGrad => param_grad::of_channels(dy, call),
        _ => unreachable!("`infer` takes no other operator"),
    }
}

/// Room for a strip of elements.
pub(super) fn room<T: Float>() -> Room<T> {
    [const { MaybeUninit::uninit() }; _]
}

impl<'a> Steps<'a> {
    /// The steps, which follow what is computed as elements of the type `T` of `x`; none where nobody reads what
    /// they give.
    pub(super) fn following<T: Float>(
        &self,
        x: &Operand,
        y: Option<&Destination>,
    ) -> Option<Following<'a>> {
        let mut operands = [*x; MAX_OPERANDS];
        operands[1..=self.read.len()].copy_from_slice(self.read);
        Following::new::<T>(self.steps, &operands[..=self.read.len()], [y, self.rounded])
    }

    /// What the last step gives of each of so many elements.
    pub(super) fn computed<T: Float>(&self, elements: usize) -> Computed<'a> {
        Computed::new::<T>(self.steps, elements, self.read)
    }
}

/// The gradient of a normalisation's result.
#[allow(clippy::large_enum_variant, reason = "a call has one")]
pub(super) enum Dy<'a, T> {
    /// A tensor, in whose place the result may be.
    Stored(Shared<T>),
    /// What steps give.
    Computed(Computed<'a>),
}

impl<'a, T: Float> Dy<'a, T> {
    /// That of a gradient's call.
    pub(super) fn new(steps: Option<Steps<'a>>, call: &Call) -> Self {
        match steps {
            Some(steps) => Dy::Computed(steps.computed::<T>(call.inputs[0].ty().elements())),
            None => Dy::Stored(Shared::new(call.inputs[DY].ptr::<T>().cast_mut())),
        }
    }

    /// The first of `n` elements from `at` on, at most a segment: where they are, or in `room`.
    pub(super) fn strip(&self, at: usize, n: usize, room: &mut Room<T>) -> *const T {
        match self {
            Dy::Stored(dy) => dy.ptr().wrapping_add(at).cast_const(),
            Dy::Computed(dy) => Terms::<T>::run(dy, at, n, room).as_ptr(),
        }
    }
}
