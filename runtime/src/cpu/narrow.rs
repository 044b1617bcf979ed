//! Operators on `bf16` by kernels of `f32`: operands are widened into scratch, but for those that products
//! multiply, and results rounded out of it.
//!
//! All operands are read before any result in `bf16` is written, and no factor of a product shares bytes with a
//! result, so that every pair that is declared in place is sound here, too.

use super::address::{Dst, Src};
use super::tasks::{CHEAP, for_ranges};
use crate::kernel::{Call, Destination, KernelError, Operand};
use arenic_backends::cpu::{takes_bf16, widened_bytes, widens};
use arenic_ir::types::bf16;
use arenic_ir::types::has_bf16;
use arenic_ir::{DType, TensorType};

/// True for operators on `bf16` whose kernels take none.
pub(super) fn applies(call: &Call) -> bool {
    let inputs = call.inputs.iter().map(|x| x.ty().dtype);
    let outputs = call.outputs.iter().flatten().map(|y| y.ty().dtype);
    has_bf16(inputs.chain(outputs)) && !takes_bf16(call.op)
}

/// Runs an operator whose kernel is one of `f32`.
pub(super) fn run(call: &Call) -> Result<(), KernelError> {
    let wide = |ty: &TensorType| ty.accumulated();
    let operand_types: Vec<TensorType> = call.inputs.iter().map(|x| wide(x.ty())).collect();
    let result_types: Vec<Option<TensorType>> =
        call.outputs.iter().map(|y| y.as_ref().map(|y| wide(y.ty()))).collect();
    let mut scratch = call.scratch;
    let mut take = |ty: &TensorType| {
        let (own, rest) = scratch.split(widened_bytes(ty) as usize);
        scratch = rest;
        own
    };
    let inputs: Vec<Operand> = call
        .inputs
        .iter()
        .zip(&operand_types)
        .enumerate()
        .map(|(i, (x, ty))| {
            if x.ty().dtype != DType::Bf16 || !widens(call.op, call.inputs.len(), i) {
                return *x;
            }
            let own = take(ty);
            widen(x, Dst(own));
            // SAFETY: scratch of the operand's size, of this call alone, just written.
            unsafe { Operand::new(ty, own) }
        })
        .collect();
    let outputs: Vec<Option<Destination>> = call
        .outputs
        .iter()
        .zip(&result_types)
        .map(|(y, ty)| {
            let (y, ty) = ((*y)?, ty.as_ref()?);
            if y.ty().dtype != DType::Bf16 {
                return Some(y);
            }
            // SAFETY: scratch of the result's size, of this call alone.
            Some(unsafe { Destination::new(ty, take(ty)) })
        })
        .collect();
    super::wide_enough(&Call { inputs: &inputs, outputs: &outputs, scratch, ..*call })?;
    for (y, made) in call.outputs.iter().zip(&outputs) {
        if let (Some(y), Some(made)) = (y, made)
            && y.ty().dtype == DType::Bf16
        {
            round(Src(made.ptr::<f32>().cast_const().cast()), y);
        }
    }
    Ok(())
}

/// Writes a `bf16` operand as `f32`.
fn widen(x: &Operand, to: Dst) {
    let from = Src::of(x);
    for_ranges(x.ty().elements(), CHEAP, &|range| {
        for i in range {
            // SAFETY: an element of the operand and its place in scratch, which is apart.
            unsafe {
                let element = from.at(2 * i).0.cast::<u16>().read();
                to.at(4 * i).0.cast::<f32>().write(bf16::to_f32(element));
            }
        }
    });
}

/// Writes `f32` elements as a `bf16` result.
fn round(from: Src, y: &Destination) {
    let to = Dst::of(y);
    for_ranges(y.ty().elements(), CHEAP, &|range| {
        for i in range {
            // SAFETY: an element in scratch and its place in the result, which is apart.
            unsafe {
                let element = from.at(4 * i).0.cast::<f32>().read();
                to.at(2 * i).0.cast::<u16>().write(bf16::from_f32(element));
            }
        }
    });
}
