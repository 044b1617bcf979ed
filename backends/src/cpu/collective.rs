//! How exchanges between ranks are cut into messages.
//!
//! Each rank's part of all operands, one after another, is a row of elements; it is exchanged a piece at a
//! time, so that what ranks pack and receive has a bounded place in the arena. The pieces change no bit:
//! every element is summed by itself, by rank.

use arenic_ir::op::families::Collective;
use arenic_ir::op::part_type;
use arenic_ir::types::TensorType;

/// Bytes that the messages of one exchange to all ranks have together at most, unless a piece would be
/// less than one element.
const MESSAGES: usize = 256 << 10;

/// A sum of which every rank sends all, so that it takes one exchange instead of two, has at most so many
/// bytes in the messages to all ranks.
const DIRECT: usize = 8 << 10;

/// The messages of a collective operator. Sizes are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Elements of one message.
    pub piece: usize,
    /// Messages that differ from rank to rank, or 1 where all ranks are sent the same.
    pub sent: usize,
    /// Every rank sends all of its terms, and sums for itself.
    pub is_direct: bool,
    /// How many ranks there are.
    pub ranks: usize,
}

impl Exchange {
    /// That of an operator on operands of these types; `None` where nothing is exchanged.
    pub fn new(op: Collective, x: &[&TensorType]) -> Option<Exchange> {
        let size = x.first()?.dtype.size() as usize;
        let all = |of: &dyn Fn(&TensorType) -> usize| {
            x.iter().fold(0usize, |sum, t| sum.saturating_add(of(t)))
        };
        let (ranks, part, sent) = match op {
            Collective::OwnPart { .. } => return None,
            Collective::AllReduce { ranks } | Collective::ReduceScatter { ranks } => {
                (*ranks, all(&|t| part_type(t, *ranks).elements()), *ranks)
            }
            Collective::AllGather { ranks, .. } => (*ranks, all(&|t| t.elements()), 1),
        };
        if ranks < 2 || part == 0 {
            return None;
        }
        let whole = all(&|t| t.elements());
        let fits = whole.saturating_mul(size).saturating_mul(ranks) <= DIRECT;
        if fits && matches!(op, Collective::AllReduce { .. }) {
            return Some(Exchange { piece: whole, sent: 1, is_direct: true, ranks });
        }
        let piece = part.min((MESSAGES / size / ranks).max(1));
        Some(Exchange { piece, sent, is_direct: false, ranks })
    }

    /// Elements of what is packed and of what is received.
    pub fn elements(&self) -> u64 {
        (self.sent as u64 + self.ranks as u64).saturating_mul(self.piece as u64)
    }
}
