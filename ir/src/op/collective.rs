//! Rows of operators that exchange tensors between ranks.
//!
//! All ranks run one program, each on its own bytes. A tensor of `e` elements has one part for each of
//! `n` ranks: part `r` is elements `r·⌈e/n⌉` to `(r+1)·⌈e/n⌉` in row-major order, with zeros where the
//! tensor has ended. Sums are taken by rank, the first rank's term first, whatever the level of sharding:
//! an all-reduce has the bits of a reduce-scatter followed by an all-gather.

use super::error::{ensure, sized};
use super::families::Collective;
use super::family::Row;
use super::{Cut, Narrowing, Op, TypeError, Work};
use crate::types::{DType, TensorType};

/// More ranks than this are refused: every one has messages from every other.
pub const MAX_RANKS: usize = 1 << 16;

/// The type of a rank's part of a tensor.
pub fn part_type(whole: &TensorType, ranks: usize) -> TensorType {
    TensorType::new(whole.dtype, [whole.elements().div_ceil(ranks.max(1))])
}

impl Op {
    /// True for operators that wait for the other ranks, so that all ranks must run them in one order.
    pub fn communicates(&self) -> bool {
        self.ranks().is_some() && !matches!(self, Op::OwnPart { .. })
    }

    /// How many ranks the operator is for; `None` for operators that know of none.
    pub fn ranks(&self) -> Option<usize> {
        match self {
            Op::AllReduce { ranks }
            | Op::ReduceScatter { ranks }
            | Op::AllGather { ranks, .. }
            | Op::OwnPart { ranks } => Some(*ranks),
            _ => None,
        }
    }
}

impl Row for Collective<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Collective::AllReduce { .. } | Collective::ReduceScatter { .. } => (1, usize::MAX),
            Collective::AllGather { shapes, .. } => (shapes.len(), shapes.len()),
            Collective::OwnPart { .. } => (1, 1),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let (Collective::AllReduce { ranks }
        | Collective::ReduceScatter { ranks }
        | Collective::AllGather { ranks, .. }
        | Collective::OwnPart { ranks }) = *self;
        let ranks = *ranks;
        let one_type = x.iter().all(|t| t.dtype == x[0].dtype);
        ensure!(one_type, "operands of several element types cannot be exchanged together");
        ensure!((1..=MAX_RANKS).contains(&ranks), "{ranks} ranks; 1 to {MAX_RANKS} can be");
        let summed = |t: &&TensorType| {
            let sums = matches!(t.dtype, DType::F32 | DType::Bf16 | DType::F64 | DType::I64);
            ensure!(sums, "ranks do not sum {}", t.dtype);
            Ok(())
        };
        match self {
            Collective::AllReduce { .. } => {
                x.iter().try_for_each(summed)?;
                Ok(x.iter().map(|&t| t.clone()).collect())
            }
            Collective::ReduceScatter { .. } => {
                x.iter().try_for_each(summed)?;
                Ok(x.iter().map(|t| part_type(t, ranks)).collect())
            }
            Collective::AllGather { shapes, .. } => {
                let whole = |(part, shape): (&&TensorType, &Vec<usize>)| {
                    let whole = TensorType::new(part.dtype, shape.as_slice());
                    sized("a gathered tensor", &whole)?;
                    ensure!(**part == part_type(&whole, ranks), "{part} is no part of {whole}");
                    Ok(whole)
                };
                x.iter().zip(*shapes).map(whole).collect()
            }
            Collective::OwnPart { .. } => Ok(vec![part_type(x[0], ranks)]),
        }
    }

    fn in_place(&self, x: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Collective::AllReduce { .. } => (0..x.len()).map(|i| (i, i)).collect(),
            Collective::ReduceScatter { .. }
            | Collective::AllGather { .. }
            | Collective::OwnPart { .. } => vec![],
        }
    }

    /// A part of a tensor is another tensor's part.
    fn cuts(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<Cut> {
        match self {
            Collective::AllReduce { .. }
            | Collective::ReduceScatter { .. }
            | Collective::AllGather { .. }
            | Collective::OwnPart { .. } => vec![],
        }
    }

    /// What one rank adds and moves in its own memory; the links' time is the device's to say.
    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let elements = x.iter().fold(0u64, |sum, t| sum.saturating_add(t.elements() as u64));
        match self {
            Collective::AllReduce { .. } | Collective::ReduceScatter { .. } => {
                Work::new(elements, x, y)
            }
            Collective::AllGather { .. } => Work::new(0, x, y),
            Collective::OwnPart { .. } => Work::new(0, x, y).reading(y, y),
        }
    }

    fn moves_elements(&self) -> bool {
        match self {
            Collective::AllReduce { .. } | Collective::ReduceScatter { .. } => false,
            Collective::AllGather { .. } | Collective::OwnPart { .. } => true,
        }
    }

    fn narrowing(&self, _: usize) -> Narrowing {
        match self {
            Collective::AllReduce { .. }
            | Collective::ReduceScatter { .. }
            | Collective::AllGather { .. }
            | Collective::OwnPart { .. } => Narrowing::wide(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_tensor_and_gathers_take_nothing_else() {
        let whole = TensorType::new(DType::F32, [3, 5]);
        let part = part_type(&whole, 4);
        assert_eq!(part, TensorType::new(DType::F32, [4]));
        let scatter = Op::ReduceScatter { ranks: 4 };
        assert_eq!(scatter.infer(&[&whole]).unwrap(), std::slice::from_ref(&part));
        let gather = Op::AllGather { ranks: 4, shapes: vec![vec![3, 5]] };
        assert_eq!(gather.infer(&[&part]).unwrap(), std::slice::from_ref(&whole));
        let other = TensorType::new(DType::F32, [5]);
        assert!(gather.infer(&[&other]).is_err());
        assert!(Op::AllReduce { ranks: 0 }.infer(&[&whole]).is_err());
        let bools = TensorType::new(DType::Bool, [2]);
        assert!(Op::AllReduce { ranks: 2 }.infer(&[&bools]).is_err());
        assert!(scatter.communicates() && !Op::OwnPart { ranks: 4 }.communicates());
    }
}
