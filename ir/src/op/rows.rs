//! What every operator says of itself, by its family's row.

use super::error::{ensure, sized};
use super::{Family, Narrowing, Op, Reduction, Rng, TypeError, Work};
use crate::types::TensorType;

/// The most operations for each element that an operator reads or writes, beside those for
/// 2^16 elements. No real operator comes near: a product has as many as its shortest extent.
const MOST_FLOPS: u64 = 1 << 20;

impl Op {
    /// How many operands the operator takes: (least, most).
    pub fn arity(&self) -> (usize, usize) {
        self.family().row().arity()
    }

    /// The types of all results, in order.
    ///
    /// # Errors
    /// Says which operand does not fit and why; every attribute is checked too, so that
    /// a kernel can run what `infer` accepts without checks of its own. No size that follows
    /// from the types overflows, and the kernel's work is bounded (see [`Op::work`]).
    pub fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let (least, most) = self.arity();
        ensure!(
            (least..=most).contains(&x.len()),
            "{} takes {} operands, not {}",
            self.name(),
            if least == most { least.to_string() } else { format!("{least} or more") },
            x.len()
        );
        for t in x {
            sized("an operand", t)?;
        }
        let outputs = self.family().row().infer(x)?;
        for t in &outputs {
            sized("a result", t)?;
        }
        let flops = self.work(x, &outputs.iter().collect::<Vec<_>>()).flops;
        let elements = x.iter().copied().chain(&outputs).map(|t| t.elements() as u64);
        let most = elements.fold(1 << 16, u64::saturating_add).saturating_mul(MOST_FLOPS);
        ensure!(flops <= most, "{} would take {flops} operations", self.name());
        Ok(outputs)
    }

    /// The (input, output) pairs for which the output may take the input's bytes, given operand
    /// and result types.
    ///
    /// Both members of a pair have equal bytes. Which pairs a plan uses is its choice;
    /// that the input is dead afterwards is the plan's duty.
    ///
    /// A declared pair is a promise of the kernels: they give the same bits when the output's
    /// range *is* the input's range. Every kernel that declares one reads an element (or
    /// all it needs of a row) before it writes there. The traps of the MXNet note ("Squeeze
    /// the Memory Consumption of Deep Learning", in-place rules) are closed here: a
    /// broadcast operand is read again after its first element was overwritten, so only an
    /// operand of the output's own shape is declared.
    pub fn in_place_pairs(
        &self,
        inputs: &[&TensorType],
        outputs: &[&TensorType],
    ) -> Vec<(usize, usize)> {
        let mut pairs = self.family().row().in_place(inputs, outputs);
        pairs.retain(|&(i, o)| match (inputs.get(i), outputs.get(o)) {
            (Some(x), Some(y)) => {
                let same_shape = x.shape == y.shape || matches!(self, Op::Reshape { .. });
                same_shape && x.dtype.size() == y.dtype.size()
            }
            _ => false,
        });
        pairs
    }

    /// The operator's work on operands and results of these types, as `infer` gives them.
    ///
    /// Gathers read as many elements as they write; a product counts its multiply-adds,
    /// so that a convolution's gradients come to what the convolution itself does.
    pub fn work(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> Work {
        self.family().row().work(inputs, outputs)
    }

    /// True where elements are moved and none is looked at.
    pub fn moves_elements(&self) -> bool {
        self.family().row().moves_elements()
    }

    /// What the operator has to do with `bf16`, for so many operands.
    pub fn narrowing(&self, operands: usize) -> Narrowing {
        self.family().row().narrowing(operands)
    }

    /// What a reduction reduces, how, and along which axes; `None` for other operators.
    pub fn reduction(&self, x: &[&TensorType]) -> Option<(TensorType, Reduction, &[usize])> {
        match self.family() {
            Family::Reducing(op) => Some(op.reduction(x)),
            _ => None,
        }
    }

    /// The generator's key of an operator that draws; a gradient that draws again has that of the
    /// operator that it is of.
    pub fn rng(&self) -> Option<&Rng> {
        match self {
            Op::Dropout { rng } | Op::RandomUniform { rng, .. } => Some(rng),
            Op::Attention { spec } | Op::AttentionGrad { spec, .. } => {
                spec.dropout.as_ref().map(|dropout| &dropout.rng)
            }
            _ => None,
        }
    }

    /// The same, to be changed.
    pub fn rng_mut(&mut self) -> Option<&mut Rng> {
        match self {
            Op::Dropout { rng } | Op::RandomUniform { rng, .. } => Some(rng),
            Op::Attention { spec } | Op::AttentionGrad { spec, .. } => {
                spec.dropout.as_mut().map(|dropout| &mut dropout.rng)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Binary;
    use crate::types::DType;

    #[test]
    fn not_broadcast_operands_nor_wider_elements() {
        let op = Op::Binary { f: Binary::Add };
        let (full, row) = (TensorType::new(DType::F32, [4, 3]), TensorType::new(DType::F32, [3]));
        assert_eq!(op.in_place_pairs(&[&full, &row], &[&full]), [(0, 0)]);
        assert_eq!(op.in_place_pairs(&[&row, &full], &[&full]), [(1, 0)]);
        let (bools, ints) = (TensorType::new(DType::Bool, [8]), TensorType::new(DType::I32, [8]));
        assert_eq!(Op::Cast { to: DType::I32 }.in_place_pairs(&[&bools], &[&ints]), []);
    }
}
