//! A backend whose kernels are those of the CPU, in wider lines and without a library.

use crate::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::backend::{Kernels, SumOrder};
use arenic_ir::op::Op;
use arenic_ir::types::TensorType;

/// The example.
pub(crate) struct Example;

impl Kernels for Example {
    fn takes(&self, op: &Op, x: &[&TensorType], y: &[&TensorType]) -> bool {
        CPU.kernels.takes(op, x, y)
    }

    fn scratch_bytes(
        &self,
        op: &Op,
        target: TargetInfo,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> u64 {
        CPU.kernels.scratch_bytes(op, target, x, y)
    }

    fn sum_order(&self, op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Option<SumOrder> {
        CPU.kernels.sum_order(op, x, y)
    }

    fn sum_grain(&self) -> usize {
        CPU.kernels.sum_grain()
    }

    fn continues_sums(&self, order: &SumOrder) -> bool {
        CPU.kernels.continues_sums(order)
    }

    fn may_use_library(&self, _: &Op, _: TargetInfo, _: &[&TensorType], _: &[&TensorType]) -> bool {
        false
    }
}
