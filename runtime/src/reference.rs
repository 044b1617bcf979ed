//! The reference interpreter: definition order, one allocation per value, nothing shared.

use crate::cpu;
use crate::executor::{StepError, node_label};
use crate::kernel::{Call, Destination, Draw, KernelError, Operand, Scratch};
use crate::memory::{AlignedBytes, OutOfMemory};
use crate::ranks::{self, Communicator};
use arenic_backends::CPU;
use arenic_ir::op::TypeError;
use arenic_ir::{Def, Graph, Op, TensorType, ValueId};
use cranelift_entity::PrimaryMap;
use std::sync::Arc;

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
    let copies: Vec<AlignedBytes> =
        inputs.iter().map(|(_, bytes)| AlignedBytes::copy_of(bytes)).collect();
    let ((), results) = alone(op, &types, &copies, draw, cpu::run)?;
    let dense = |(ty, bytes): (TensorType, AlignedBytes)| {
        let len = ty.bytes() as usize;
        (ty, bytes.as_slice()[..len].to_vec())
    };
    Ok(results.into_iter().map(dense).collect())
}

/// Hands `run` the call of one operator on these operands, with results and scratch in
/// memory of their own; gives the results, too.
///
/// # Panics
/// An operand is shorter than its type.
pub(crate) fn alone<R>(
    op: &Op,
    types: &[&TensorType],
    operands: &[AlignedBytes],
    draw: Draw,
    run: impl FnOnce(&Call) -> Result<R, KernelError>,
) -> Result<(R, Vec<(TensorType, AlignedBytes)>), EvaluateError> {
    let fits =
        |(ty, bytes): (&&TensorType, &AlignedBytes)| bytes.as_slice().len() as u64 >= ty.bytes();
    assert!(types.iter().zip(operands).all(fits), "an operand of {} is too short", op.name());
    let results = op.infer(types)?;
    let outputs =
        results.iter().map(|ty| AlignedBytes::zeroed(ty.bytes())).collect::<Result<Vec<_>, _>>()?;
    let scratch_bytes = op.scratch_bytes(CPU.target(), types, &results.iter().collect::<Vec<_>>());
    let scratch = AlignedBytes::zeroed(scratch_bytes)?;

    let inputs: Vec<Operand> = types
        .iter()
        .zip(operands)
        // SAFETY: aligned bytes of the operand's length that outlive the call.
        .map(|(ty, bytes)| unsafe { Operand::new(ty, bytes.as_ptr()) })
        .collect();
    let targets: Vec<Option<Destination>> = results
        .iter()
        .zip(&outputs)
        // SAFETY: an aligned allocation of the result's length that outlives the call.
        .map(|(ty, bytes)| Some(unsafe { Destination::new(ty, bytes.as_ptr()) }))
        .collect();
    let made = run(&Call {
        op,
        inputs: &inputs,
        outputs: &targets,
        // SAFETY: an aligned allocation of this length, used by this call alone.
        scratch: unsafe { Scratch::new(scratch.as_ptr(), scratch_bytes as usize) },
        draw,
    })?;
    Ok((made, results.into_iter().zip(outputs).collect()))
}

/// A graph run in definition order with one allocation per value.
pub struct Reference<'g> {
    graph: &'g Graph,
    /// Bytes of every root value.
    values: PrimaryMap<ValueId, Option<AlignedBytes>>,
    /// The other ranks that run the graph, too.
    ranks: Option<Arc<dyn Communicator>>,
}

impl<'g> Reference<'g> {
    /// Allocates every root value of a verified graph.
    ///
    /// # Errors
    /// Memory ran out.
    pub fn new(graph: &'g Graph) -> Result<Self, OutOfMemory> {
        let mut values = PrimaryMap::new();
        for value in graph.values.values() {
            let owns = !matches!(value.def, Def::View { .. });
            values.push(if owns { Some(AlignedBytes::zeroed(value.ty.bytes())?) } else { None });
        }
        Ok(Reference { graph, values, ranks: None })
    }

    /// Runs the graph as one of several ranks.
    pub fn join(&mut self, ranks: Arc<dyn Communicator>) {
        self.ranks = Some(ranks);
    }

    /// The bytes of a root value: an input, a constant, a state's enter value.
    pub fn value_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        let len = self.graph.ty(v).bytes() as usize;
        self.values[v].as_mut().map(|b| &mut b.as_mut_slice()[..len])
    }

    /// The bytes of any value, views included.
    pub fn value(&self, v: ValueId) -> &[u8] {
        let at = self.graph.resolve(v);
        let first = at.offset as usize;
        let len = self.graph.ty(v).bytes() as usize;
        self.values[at.root].as_ref().map_or(&[], |b| &b.as_slice()[first..first + len])
    }

    fn address(&self, v: ValueId) -> *mut u8 {
        let at = self.graph.resolve(v);
        let base = self.values[at.root].as_ref().map_or(std::ptr::null_mut(), AlignedBytes::as_ptr);
        base.wrapping_add(at.offset as usize)
    }

    /// Runs every node, then carries all states over at once.
    ///
    /// # Errors
    /// A kernel refused its operands' contents.
    pub fn step(&mut self, draw: Draw) -> Result<(), StepError> {
        let g = self.graph;
        for (n, node) in &g.nodes {
            let types = g.output_types(n).unwrap_or_default();
            let bytes = node.op.scratch_bytes(
                CPU.target(),
                &g.input_types(n),
                &types.iter().collect::<Vec<_>>(),
            );
            let scratch = AlignedBytes::zeroed(bytes)
                .map_err(|e| StepError { node: node_label(g, n), error: e.into() })?;
            // SAFETY: every root has an allocation of its own and views lie inside of
            // their root, so nothing a node writes is something it reads.
            let operand = |&v: &ValueId| unsafe { Operand::new(g.ty(v), self.address(v)) };
            // SAFETY: as above.
            let target = |v: ValueId| unsafe { Destination::new(g.ty(v), self.address(v)) };
            let inputs: Vec<Operand> = node.inputs.iter().map(operand).collect();
            let outputs: Vec<Option<Destination>> =
                node.outputs.iter().map(|v| v.map(target)).collect();
            // SAFETY: an aligned allocation of this length, used by this call alone.
            let scratch = unsafe { Scratch::new(scratch.as_ptr(), bytes as usize) };
            let (inputs, outputs) = (&inputs[..], &outputs[..]);
            let call = Call { op: &node.op, inputs, outputs, scratch, draw };
            ranks::run(&call, self.ranks.as_deref())
                .map_err(|error| StepError { node: node_label(g, n), error })?;
        }
        let exits: Vec<(ValueId, Vec<u8>)> =
            g.states.values().map(|s| (s.enter, self.value(s.exit).to_vec())).collect();
        for (enter, bytes) in exits {
            if let Some(home) = self.value_mut(enter) {
                home.copy_from_slice(&bytes);
            }
        }
        Ok(())
    }
}
