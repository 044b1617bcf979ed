//! Backends: what planner and checker ask of whoever has the kernels.
//!
//! An operator says what is true everywhere ([`Op`]). How much scratch a kernel needs, in which
//! order it adds, what a library computes instead, and which types it takes is for a backend to
//! say: [`Kernels`] is all that is asked of one. A backend's folder holds its answers and the
//! tilings that they follow from, which its kernels go by, too, so that the two cannot disagree.
//! To add a backend is to add a folder and its line in [`Backend::ALL`].

pub mod cpu;
pub mod cuda;
mod kernels;
pub mod library;
pub mod reduce;

use crate::op::{Assembly, Cut, Op};
use crate::types::{DType, TensorType};
pub use kernels::{Backend, Kernels, Math, SumOrder, TargetInfo};
use library::LibraryCall;

impl Backend {
    /// The CPU's.
    pub const CPU: Backend = Backend::new("cpu", &cpu::Cpu);

    /// Those for GPUs, by CUDA.
    pub const CUDA: Backend = Backend::new("cuda", &cuda::Cuda);

    /// All of them.
    pub const ALL: [Backend; 2] = [Backend::CPU, Backend::CUDA];
}

impl Default for Backend {
    fn default() -> Backend {
        Backend::CPU
    }
}

impl TargetInfo {
    /// What the CPU backend needs at least.
    pub const CPU: TargetInfo = cpu::TARGET;

    /// What the CUDA backend needs at least.
    pub const CUDA: TargetInfo = cuda::TARGET;

    /// What a backend needs at least.
    pub fn of(backend: Backend) -> TargetInfo {
        backend.kernels().target()
    }
}

impl Op {
    /// Bytes of scratch that this operator needs on the target while it runs: see
    /// [`Kernels::scratch_bytes`].
    pub fn scratch_bytes(&self, target: TargetInfo, x: &[&TensorType], y: &[&TensorType]) -> u64 {
        target.backend.kernels().scratch_bytes(self, target, x, y)
    }

    /// The order of this operator's sums by a backend's kernels: see [`Kernels::sum_order`].
    pub fn sum_order(
        &self,
        backend: Backend,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> Option<SumOrder> {
        backend.kernels().sum_order(self, x, y)
    }

    /// The call by which a library may compute this operator on this target: see
    /// [`Kernels::library_call`].
    pub fn library_call(
        &self,
        target: TargetInfo,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> Option<LibraryCall> {
        target.backend.kernels().library_call(self, target, x, y)
    }

    /// True where the whole that is put together from the parts of a cut, which end at
    /// `ends`, has the bits of the uncut operator.
    pub fn cut_keeps_bits(
        &self,
        backend: Backend,
        cut: &Cut,
        ends: &[usize],
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> bool {
        if !cut.keeps_bits {
            return false;
        }
        let kernels = backend.kernels();
        let Some(whole) = kernels.sum_order(self, x, y) else { return false };
        let mut first = 0;
        let mut extents: Vec<usize> =
            ends.iter().map(|&end| end - std::mem::replace(&mut first, end)).collect();
        if cut.results.contains(&Assembly::Accumulate) {
            // A part of a sum in `bf16` is rounded before the next is added.
            let is_rounded = y.iter().any(|t| t.dtype == DType::Bf16);
            let grain = kernels.sum_grain();
            let at_grains = extents.iter().rev().skip(1).all(|e| e.is_multiple_of(grain));
            if is_rounded || !at_grains || !kernels.continues_sums(&whole) {
                return false;
            }
        }
        extents.sort_unstable();
        extents.dedup();
        extents.into_iter().all(|extent| {
            let part = |(t, &axis): (&&TensorType, &Option<usize>)| match axis {
                Some(axis) => t.with_extent(axis, extent),
                None => (*t).clone(),
            };
            let operands: Vec<TensorType> = x.iter().zip(&cut.operands).map(part).collect();
            let operands: Vec<&TensorType> = operands.iter().collect();
            let op = self.part(cut, extent);
            let Ok(results) = op.infer(&operands) else { return false };
            let order = op.sum_order(backend, &operands, &results.iter().collect::<Vec<_>>());
            order.is_some_and(|order| order == whole)
        })
    }
}
