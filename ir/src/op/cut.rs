//! Where an operator may be cut into parts that run one after another.
//!
//! tvDNN (Park et al., "memory-object sectioning") runs a data-parallel task several times,
//! each time on a section of its operands. A cut says along which axes an operator's operands are
//! divided, and how each result is put together; a family's row says which cuts an operator has. A cut keeps every bit where each
//! element of a result is computed by one part as it is by the whole, or by one part after
//! another in the whole's order. Kernels choose that order by extents, so that it depends on
//! where the parts end: see [`Op::cut_keeps_bits`]. Other cuts add up partial sums and so
//! round otherwise.

use super::{Op, channels_last};
use crate::types::TensorType;

/// How the parts of a result become the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assembly {
    /// One after another along an axis.
    Concat(usize),
    /// As `Concat` along the first axis; the elements are positions in the operand, and each
    /// part counts from its own first element: so many elements for each index cut off.
    Positions(usize),
    /// They are added.
    Sum,
    /// Each part adds its share to the sum of those before it, as [`Op::onto`] says.
    Accumulate,
}

impl Assembly {
    /// The axis along which the parts of the result follow one another.
    pub fn axis(self) -> Option<usize> {
        match self {
            Assembly::Concat(axis) => Some(axis),
            Assembly::Positions(_) => Some(0),
            Assembly::Sum | Assembly::Accumulate => None,
        }
    }
}

/// One way to cut an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Indices along the axis that is cut.
    pub extent: usize,
    /// The axis along which each operand is cut; `None` where every part reads all of it.
    pub operands: Vec<Option<usize>>,
    /// How each result is put together.
    pub results: Vec<Assembly>,
    /// Partial sums are never added up by themselves, so that bits may be kept; whether they
    /// are depends on where the parts end ([`Op::cut_keeps_bits`]).
    pub keeps_bits: bool,
}

impl Op {
    /// All cuts, those that may keep every bit first; empty for an operator that cannot be cut.
    pub fn cuts(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> Vec<Cut> {
        if outputs.is_empty() {
            return Vec::new();
        }
        let mut cuts = self.family().row().cuts(inputs, outputs);
        cuts.retain(|cut| cut.extent > 1 && cut.operands.len() == inputs.len());
        cuts.sort_by_key(|cut| !cut.keeps_bits);
        cuts
    }

    /// The operator of a part that has `extent` indices of the cut's.
    pub fn part(&self, cut: &Cut, extent: usize) -> Op {
        if let Op::ChannelsLast { of } = self {
            return channels_last::part(of, cut, extent);
        }
        let mut op = self.clone();
        if let (
            Op::Reshape { shape }
            | Op::Expand { shape }
            | Op::Pad { shape, .. }
            | Op::MaxPoolGrad { shape, .. }
            | Op::AveragePoolGrad { shape, .. },
            Some(axis),
        ) = (&mut op, cut.results.first().and_then(|r| r.axis()))
        {
            shape[axis] = extent;
        }
        op
    }

    /// The operator that adds its result to one operand more, the last one; `None` where
    /// there is no such operator.
    pub fn onto(&self) -> Option<Op> {
        match *self {
            Op::MatMul { trans_a, trans_b } => {
                Some(Op::Gemm { alpha: 1.0, beta: 1.0, trans_a, trans_b })
            }
            Op::Gemm { alpha, trans_a, trans_b, .. } => {
                Some(Op::Gemm { alpha, beta: 1.0, trans_a, trans_b })
            }
            _ => None,
        }
    }
}

impl Assembly {
    /// Parts of each of the results `y`, one after another along an axis.
    pub(super) fn concat(y: &[&TensorType], axis: usize) -> Vec<Assembly> {
        vec![Assembly::Concat(axis); y.len()]
    }
}

impl Cut {
    /// A cut of so many indices.
    pub(super) fn along(
        extent: usize,
        operands: Vec<Option<usize>>,
        results: Vec<Assembly>,
    ) -> Cut {
        let keeps_bits = !results.contains(&Assembly::Sum);
        Cut { extent, operands, results, keeps_bits }
    }

    /// Operands that broadcast to the result, cut along its axis `d`.
    pub(super) fn broadcast(x: &[&TensorType], y: &[&TensorType], d: usize) -> Cut {
        let (rank, extent) = (y[0].rank(), y[0].shape[d]);
        let operand = |t: &&TensorType| {
            let axis = (d + t.rank()).checked_sub(rank)?;
            (t.shape[axis] == extent).then_some(axis)
        };
        Cut::along(extent, x.iter().map(operand).collect(), Assembly::concat(y, d))
    }
}
