//! How exchanges between ranks are cut into messages.
//!
//! Each rank's part of all operands, one after another, is a row of elements; it is exchanged a piece at a
//! time, so that what ranks pack and receive has a bounded place in the arena. The pieces change no bit:
//! every element is summed by itself, by rank.

use arenic_ir::op::families::Collective;
use arenic_ir::op::part_type;
use arenic_ir::types::TensorType;

/// How large messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes that the messages of one exchange to all ranks have together at most, unless a piece would be
    /// less than one element.
    pub messages: usize,
    /// A sum of which every rank sends all, so that it takes one exchange instead of two, has at most so many
    /// bytes in the messages to all ranks.
    pub direct: usize,
}

/// The messages of a collective operator. Sizes are in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Elements of one message.
    pub piece: usize,
    /// Messages that differ from rank to rank, or 1 where all ranks are sent the same.
    pub sent: usize,
    /// Every rank sends all of its terms, and sums for itself.
    pub is_direct: bool,
    /// How many ranks there are.
    pub ranks: usize,
    /// Of each operand what every rank has one of: its part, or all of it where sums are direct.
    pub parts: Vec<usize>,
}

/// Elements of one operand in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The operand.
    pub operand: usize,
    /// Its first element within a rank's part.
    pub within: usize,
    /// How many.
    pub len: usize,
    /// Where they begin in a message.
    pub at: usize,
}

impl Exchange {
    /// That of an operator on operands of these types; `None` where nothing is exchanged.
    pub fn new(op: Collective, x: &[&TensorType], sizes: Sizes) -> Option<Exchange> {
        let size = x.first()?.dtype.size() as usize;
        let of_each = |of: &dyn Fn(&TensorType) -> usize| x.iter().map(|t| of(t)).collect();
        let total = |parts: &Vec<usize>| parts.iter().copied().fold(0, usize::saturating_add);
        let wholes: Vec<usize> = of_each(&TensorType::elements);
        let (ranks, parts, sent) = match op {
            Collective::OwnPart { .. } => return None,
            Collective::AllReduce { ranks } | Collective::ReduceScatter { ranks } => {
                (*ranks, of_each(&|t| part_type(t, *ranks).elements()), *ranks)
            }
            Collective::AllGather { ranks, .. } => (*ranks, wholes.clone(), 1),
        };
        if ranks < 2 || total(&parts) == 0 {
            return None;
        }
        let whole = total(&wholes);
        let fits = whole.saturating_mul(size).saturating_mul(ranks) <= sizes.direct;
        if fits && matches!(op, Collective::AllReduce { .. }) {
            return Some(Exchange { piece: whole, sent: 1, is_direct: true, ranks, parts: wholes });
        }
        let piece = total(&parts).min((sizes.messages / size / ranks).max(1));
        Some(Exchange { piece, sent, is_direct: false, ranks, parts })
    }

    /// First element and length of each piece of a rank's parts.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, usize)> {
        let (total, piece) = (self.parts.iter().sum(), self.piece);
        (0..total).step_by(piece).map(move |first| (first, piece.min(total - first)))
    }

    /// What of each operand is in a piece.
    pub fn runs(&self, (first, len): (usize, usize)) -> impl Iterator<Item = Run> {
        let mut before = 0;
        let run = move |(operand, &part): (usize, &usize)| {
            let (begin, end) = (first.max(before), (first + len).min(before + part));
            let within = begin.saturating_sub(before);
            before += part;
            let len = end.saturating_sub(begin);
            (len > 0).then(|| Run { operand, within, len, at: begin - first })
        };
        self.parts.iter().enumerate().filter_map(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arenic_ir::Op;
    use arenic_ir::op::Family;
    use arenic_ir::types::DType;

    #[test]
    fn pieces_cover_every_rank_s_part_once() {
        let types = [3, 10, 1].map(|n| TensorType::new(DType::F32, [n]));
        let types: Vec<&TensorType> = types.iter().collect();
        let op = Op::ReduceScatter { ranks: 2 };
        let Family::Collective(of) = op.family() else { unreachable!() };
        let exchange = Exchange::new(of, &types, Sizes { messages: 32, direct: 8 }).unwrap();
        assert_eq!((exchange.piece, &exchange.parts[..]), (4, &[2, 5, 1][..]));
        let mut seen = [0; 3];
        for piece in exchange.pieces() {
            let mut at = 0;
            for run in exchange.runs(piece) {
                assert_eq!((run.within, run.at), (seen[run.operand], at));
                seen[run.operand] += run.len;
                at += run.len;
            }
            assert_eq!(at, piece.1);
        }
        assert_eq!(seen, [2, 5, 1]);
    }
}
