//! A backend whose kernels are those of the CPU, without a library.

use super::library::LibraryCall;
use super::{Backend, Kernels, Math, SumOrder, TargetInfo};
use crate::op::Op;
use crate::types::TensorType;

/// The example.
pub(super) struct Example;

impl Kernels for Example {
    fn target(&self) -> TargetInfo {
        TargetInfo { backend: Backend::EXAMPLE, align: 128, workspace: 0, math: Math::F32 }
    }

    fn takes(&self, op: &Op, _: &[&TensorType], _: &[&TensorType]) -> bool {
        !matches!(op, Op::Opaque { .. })
    }

    fn scratch_bytes(
        &self,
        op: &Op,
        target: TargetInfo,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> u64 {
        Backend::CPU.kernels().scratch_bytes(op, target, x, y)
    }

    fn sum_order(&self, op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Option<SumOrder> {
        Backend::CPU.kernels().sum_order(op, x, y)
    }

    fn sum_grain(&self) -> usize {
        Backend::CPU.kernels().sum_grain()
    }

    fn continues_sums(&self, order: &SumOrder) -> bool {
        Backend::CPU.kernels().continues_sums(order)
    }

    fn library_call(
        &self,
        _: &Op,
        _: TargetInfo,
        _: &[&TensorType],
        _: &[&TensorType],
    ) -> Option<LibraryCall> {
        None
    }
}
