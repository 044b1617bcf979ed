//! Operators on tensors whose channels are last: these are turned into scratch, and what the
//! operator's kernel makes of them there is turned back, so that it has the same bits.

use super::address::Dst;
use super::transpose::transpose;
use crate::kernel::{Call, Destination, KernelError, Operand};
use arenic_backends::cpu::moved_bytes;
use arenic_ir::op::channels_last::{first, is_turned, to_first, to_last};
use arenic_ir::{Op, TensorType};

/// Runs an operator whose kernel wants channels second.
///
/// # Errors
/// The kernel's.
pub(super) fn run(of: &Op, call: &Call) -> Result<(), KernelError> {
    let operand_types: Vec<TensorType> = call.inputs.iter().map(|x| first(x.ty())).collect();
    let result_types: Vec<Option<TensorType>> =
        call.outputs.iter().map(|y| y.as_ref().map(|y| first(y.ty()))).collect();
    let mut scratch = call.scratch;
    let mut take = |ty: &TensorType| {
        let (own, rest) = scratch.split(moved_bytes(ty) as usize);
        scratch = rest;
        own
    };
    let inputs: Vec<Operand> = call
        .inputs
        .iter()
        .zip(&operand_types)
        .map(|(x, ty)| {
            if !is_turned(ty) {
                return *x;
            }
            let own = take(ty);
            // SAFETY: scratch of the operand's size, of this call alone; it is read when it was
            // written.
            let (turned, to) = unsafe { (Operand::new(ty, own), Destination::new(ty, own)) };
            transpose(&to_first(&axes(ty)), x, &to);
            turned
        })
        .collect();
    let outputs: Vec<Option<Destination>> = call
        .outputs
        .iter()
        .zip(&result_types)
        .map(|(y, ty)| {
            let (y, ty) = ((*y)?, ty.as_ref()?);
            // SAFETY: scratch of the result's size, of this call alone.
            Some(if is_turned(ty) { unsafe { Destination::new(ty, take(ty)) } } else { y })
        })
        .collect();
    super::wide_enough(&Call { op: of, inputs: &inputs, outputs: &outputs, scratch, ..*call })?;
    for (y, made) in call.outputs.iter().zip(&outputs) {
        if let (Some(y), Some(made)) = (y, made)
            && is_turned(y.ty())
        {
            // SAFETY: scratch that the kernel has written.
            let from = unsafe { Operand::new(made.ty(), Dst::of(made).0.cast_const()) };
            transpose(&to_last(&axes(made.ty())), &from, y);
        }
    }
    Ok(())
}

fn axes(ty: &TensorType) -> Vec<usize> {
    (0..ty.rank()).collect()
}
