//! The reference interpreter: definition order, one allocation per value, nothing shared.

use crate::cpu;
use crate::kernel::{Call, Draw, KernelError, Operand, Scratch, Target};
use crate::memory::{AlignedBytes, OutOfMemory};
use arenic_ir::op::TypeError;
use arenic_ir::{Op, TensorType};

/// Why a single operator could not be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluateError {
    /// Operand types.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// Operand contents.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// An operand's bytes do not have its type's length.
    #[error("an operand of type {0} has {1} bytes")]
    Length(TensorType, usize),
}

/// Applies one operator to dense little-endian tensors and gives all of its results.
///
/// # Errors
/// The operands do not fit the operator, or memory ran out.
pub fn evaluate(
    op: &Op,
    inputs: &[(&TensorType, &[u8])],
    draw: Draw,
) -> Result<Vec<(TensorType, Vec<u8>)>, EvaluateError> {
    for (ty, bytes) in inputs {
        if ty.bytes() != bytes.len() as u64 {
            return Err(EvaluateError::Length((*ty).clone(), bytes.len()));
        }
    }
    let types: Vec<&TensorType> = inputs.iter().map(|(ty, _)| *ty).collect();
    let results = op.infer(&types)?;
    let copies: Vec<AlignedBytes> =
        inputs.iter().map(|(_, bytes)| AlignedBytes::copy_of(bytes)).collect();
    let outputs = results
        .iter()
        .map(|ty| AlignedBytes::zeroed(ty.bytes()))
        .collect::<Result<Vec<_>, _>>()?;
    let scratch_bytes = op.scratch_bytes(&types, &results.iter().collect::<Vec<_>>());
    let scratch = AlignedBytes::zeroed(scratch_bytes)?;

    let operands: Vec<Operand> = types
        .iter()
        .zip(&copies)
        // SAFETY: an aligned copy of the operand's length that outlives the call.
        .map(|(ty, bytes)| unsafe { Operand::new(ty, bytes.as_ptr()) })
        .collect();
    let targets: Vec<Option<Target>> = results
        .iter()
        .zip(&outputs)
        // SAFETY: an aligned allocation of the result's length that outlives the call.
        .map(|(ty, bytes)| Some(unsafe { Target::new(ty, bytes.as_ptr()) }))
        .collect();
    cpu::run(&Call {
        op,
        inputs: &operands,
        outputs: &targets,
        // SAFETY: an aligned allocation of this length, used by this call alone.
        scratch: unsafe { Scratch::new(scratch.as_ptr(), scratch_bytes as usize) },
        draw,
    })?;
    Ok(results
        .iter()
        .cloned()
        .zip(&outputs)
        .map(|(ty, bytes)| {
            let len = ty.bytes() as usize;
            (ty, bytes.as_slice()[..len].to_vec())
        })
        .collect())
}
