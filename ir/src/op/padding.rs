//! The axes of an [`Op::Pad`](super::Op::Pad), as few as they can be.

use super::MAX_RANK;
use crate::types::TensorType;

/// An axis: index `i` of the operand goes to `start + i · step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaddedAxis {
    /// The operand's extent.
    pub from: usize,
    /// The result's extent.
    pub to: usize,
    /// Where the first element goes.
    pub start: usize,
    /// From one element to the next.
    pub step: usize,
}

/// Axes with those that are not padded merged into the one before.
#[derive(Clone, Copy, Debug)]
pub struct Padding {
    rank: usize,
    axes: [PaddedAxis; MAX_RANK],
}

impl Padding {
    /// The axes of an operand of type `x`, padded to `shape`.
    pub fn new(x: &TensorType, starts: &[usize], steps: &[usize], shape: &[usize]) -> Padding {
        let none = PaddedAxis { from: 1, to: 1, start: 0, step: 1 };
        let mut padding = Padding { rank: 1, axes: [none; MAX_RANK] };
        for i in 0..shape.len() {
            let (from, to, start) = (x.shape[i], shape[i], starts[i]);
            let step = if from > 1 { steps[i] } else { 1 };
            let last = &mut padding.axes[padding.rank - 1];
            if from == to && last.step == 1 {
                *last = PaddedAxis {
                    from: last.from * from,
                    to: last.to * to,
                    start: last.start * to,
                    step: 1,
                };
            } else if *last == none {
                *last = PaddedAxis { from, to, start, step };
            } else {
                padding.axes[padding.rank] = PaddedAxis { from, to, start, step };
                padding.rank += 1;
            }
        }
        padding
    }

    /// The axes, at least one, outermost first.
    pub fn axes(&self) -> &[PaddedAxis] {
        &self.axes[..self.rank]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DType;

    #[test]
    fn what_is_not_padded_joins_the_axis_before() {
        let x = TensorType::new(DType::F32, [2, 3, 4, 5, 6]);
        let padding = Padding::new(&x, &[0, 0, 1, 0, 2], &[1, 1, 1, 1, 2], &[2, 3, 7, 5, 14]);
        let axis = |from, to, start, step| PaddedAxis { from, to, start, step };
        assert_eq!(padding.axes(), [axis(6, 6, 0, 1), axis(20, 35, 5, 1), axis(6, 14, 2, 2)]);
        let scalar = TensorType::new(DType::F32, []);
        assert_eq!(Padding::new(&scalar, &[], &[], &[]).axes(), [axis(1, 1, 0, 1)]);
    }
}
