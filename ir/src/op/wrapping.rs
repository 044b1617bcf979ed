//! Operators that hold another one: on tensors with their channels last ([`channels_last`]), or on several lots of
//! operands.

use super::error::ensure;
use super::families::Wrapping;
use super::family::Row;
use super::{Cut, Narrowing, Op, TypeError, Work, channels_last};
use crate::types::TensorType;

impl Op {
    /// True for operators that [`Op::ForEach`] may hold: those that make each element of their results of as many of
    /// their operands, and need nothing beside them.
    pub fn may_be_for_each(&self) -> bool {
        matches!(
            self,
            Op::Pointwise { .. } | Op::Adam { .. } | Op::Adagrad { .. } | Op::Momentum { .. }
        )
    }
}

impl Row for Wrapping<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Wrapping::ChannelsLast { of } => of.arity(),
            Wrapping::ForEach { of, lots } => {
                let (least, most) = of.arity();
                (least.saturating_mul(**lots), most.saturating_mul(**lots))
            }
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        match self {
            Wrapping::ChannelsLast { of } => channels_last::infer(of, x),
            Wrapping::ForEach { of, lots } => {
                ensure!(of.may_be_for_each(), "{} is not for lots of operands", of.name());
                ensure!(**lots > 0 && x.len().is_multiple_of(**lots), "{} operands", x.len());
                let first = &x[..x.len() / **lots];
                let are_alike = x.chunks(first.len().max(1)).all(|lot| lot == first);
                ensure!(are_alike, "lots of operands of several types");
                let y = of.infer(first)?;
                Ok(vec![y; **lots].concat())
            }
        }
    }

    fn in_place(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            // No operator with a window has pairs.
            Wrapping::ChannelsLast { .. } => vec![],
            // Of other lots nothing is said: they may run before or after.
            Wrapping::ForEach { of, lots } => {
                let [inputs, outputs] = [x.len(), y.len()].map(|n| n / (**lots).max(1));
                let pairs = of.in_place_pairs(&x[..inputs], &y[..outputs]);
                let of_lot = |lot: usize| {
                    pairs.iter().map(move |(i, o)| (lot * inputs + i, lot * outputs + o))
                };
                (0..**lots).flat_map(of_lot).collect()
            }
        }
    }

    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        match self {
            Wrapping::ChannelsLast { of } => channels_last::cuts(of, x, y),
            Wrapping::ForEach { .. } => vec![],
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        match self {
            Wrapping::ChannelsLast { of } => channels_last::work(of, x, y),
            Wrapping::ForEach { of, lots } => {
                let [inputs, outputs] = [x.len(), y.len()].map(|n| n / (**lots).max(1));
                let one = of.work(&x[..inputs], &y[..outputs]);
                let all = |n: u64| n.saturating_mul(**lots as u64);
                Work { flops: all(one.flops), bytes: all(one.bytes), ..one }
            }
        }
    }

    fn moves_elements(&self) -> bool {
        match self {
            Wrapping::ChannelsLast { of } => of.moves_elements(),
            Wrapping::ForEach { .. } => false,
        }
    }

    fn narrowing(&self, operands: usize) -> Narrowing {
        match self {
            Wrapping::ChannelsLast { of } => of.narrowing(operands),
            // Passes that run later make them.
            Wrapping::ForEach { .. } => Narrowing::wide(),
        }
    }
}
