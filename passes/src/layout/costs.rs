//! What is compared: times on a device.

use super::Convolutions;
use crate::turn::{self, Form};
use arenic_ir::TargetInfo;
use arenic_ir::cost::Device;
use arenic_ir::op::Op;
use arenic_ir::op::channels_last::last;
use arenic_ir::types::TensorType;

/// Picoseconds, in which times are whole.
const PER_SECOND: f64 = 1e12;

/// Times of operators and transposes, in picoseconds.
#[derive(Clone, Copy)]
pub(super) struct Costs<'a> {
    pub(super) device: &'a Device,
    pub(super) target: TargetInfo,
    pub(super) convolutions: Convolutions,
}

impl turn::Costs for Costs<'_> {
    fn gain(&self, x: &[&TensorType], form: &Form) -> Option<i64> {
        match &form.op {
            Op::ChannelsLast { of } => {
                let seconds = self.of_convolution(of, x, &form.op)?;
                Some((seconds * PER_SECOND).round() as i64)
            }
            _ => Some(0),
        }
    }

    fn moving(&self, ty: &TensorType, perm: Vec<usize>) -> u64 {
        let seconds = self.device.roofline_seconds(&Op::Transpose { perm }, &[ty]).unwrap_or(0.0);
        (seconds * PER_SECOND).round() as u64
    }
}

impl Costs<'_> {
    /// Seconds that a convolution or a pool gains; `None` where more than all transposes cost.
    fn of_convolution(self, of: &Op, x: &[&TensorType], turned: &Op) -> Option<f64> {
        let is_convolution =
            matches!(of, Op::Conv { .. } | Op::ConvTranspose { .. } | Op::ConvWeightGrad { .. });
        match self.convolutions {
            Convolutions::All if is_convolution => return None,
            Convolutions::All => return Some(0.0),
            Convolutions::Gaining => {}
        }
        let Ok(y) = of.infer(x) else { return Some(0.0) };
        if !of.may_use_library(self.target, x, &y.iter().collect::<Vec<_>>()) {
            return Some(0.0);
        }
        let last: Vec<TensorType> = x.iter().map(|t| last(t)).collect();
        let seconds = |op, x: &[&TensorType]| self.device.roofline_seconds(op, x).unwrap_or(0.0);
        Some(seconds(of, x) - seconds(turned, &last.iter().collect::<Vec<_>>()))
    }
}
