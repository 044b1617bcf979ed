//! Kernels of the operators that exchange tensors between ranks.
//!
//! The ranks' parts of all operands, one after another, are exchanged a piece at a time: packed into
//! messages in scratch, received beside them, summed by rank, unpacked. Sums of `bf16` are taken in `f32`
//! and rounded once. The first rank's term comes first, on every rank and in every kind of exchange, so
//! that an element's sum has the same bits wherever it is taken.

use super::{Communicator, RankError};
use crate::cpu;
use crate::kernel::{Call, KernelError};
use arenic_backends::cpu::collective::Exchange;
use arenic_ir::op::Family;
use arenic_ir::op::families::Collective;
use arenic_ir::op::part_type;
use arenic_ir::types::{DType, bf16};

/// Runs one operator on one of several ranks; `None` for a program that is run alone.
///
/// # Errors
/// The operands' contents do not fit; another rank has ended or is silent.
pub(crate) fn run(call: &Call, ranks: Option<&dyn Communicator>) -> Result<(), KernelError> {
    let Family::Collective(op) = call.op.family() else { return cpu::run(call) };
    let count = call.op.ranks().unwrap_or(1);
    let known = ranks.filter(|ranks| ranks.ranks() == count);
    let alone = count == 1;
    let (rank, ranks) = match (known, alone) {
        (Some(ranks), _) => (ranks.rank(), Some(ranks)),
        (None, true) => (0, None),
        (None, false) => return Err(RankError::Alone { ranks: count }.into()),
    };
    let types: Vec<_> = call.inputs.iter().map(|x| x.ty()).collect();
    // Results of an exchange may be their operands' bytes, of which each is read before it is written.
    let tensors = Tensors { call, size: types[0].dtype.size() as usize };
    match (op, Exchange::new(op, &types), ranks) {
        (Collective::OwnPart { .. }, _, _) => tensors.own_part(count, rank),
        (_, Some(exchange), Some(ranks)) => tensors.exchange(op, exchange, ranks)?,
        (_, _, _) => tensors.unchanged(),
    }
    Ok(())
}

/// Operands and results as bytes.
struct Tensors<'a> {
    call: &'a Call<'a>,
    /// Bytes of an element.
    size: usize,
}

/// A run of elements of one tensor: which tensor, its first element, and how many.
#[derive(Clone, Copy)]
struct Run {
    tensor: usize,
    first: usize,
    len: usize,
}

impl Tensors<'_> {
    fn own_part(&self, count: usize, rank: usize) {
        let (x, Some(y)) = (&self.call.inputs[0], &self.call.outputs[0]) else { return };
        let part = y.ty().elements();
        let first = (rank * part).min(x.ty().elements());
        let len = part.min(x.ty().elements() - first);
        debug_assert_eq!(*y.ty(), part_type(x.ty(), count));
        // SAFETY: both are as long as their types say, and the operator has no pair in place.
        unsafe {
            let from = x.bytes().add(first * self.size);
            std::ptr::copy_nonoverlapping(from, y.bytes_mut(), len * self.size);
            y.bytes_mut().add(len * self.size).write_bytes(0, (part - len) * self.size);
        }
    }

    /// One rank has all there is.
    fn unchanged(&self) {
        for (x, y) in self.call.inputs.iter().zip(self.call.outputs) {
            let Some(y) = y else { continue };
            // SAFETY: of one rank both have the same size; they are the same bytes or share none.
            unsafe { std::ptr::copy(x.bytes(), y.bytes_mut(), y.ty().bytes() as usize) };
        }
    }

    fn exchange(
        &self,
        op: Collective,
        exchange: Exchange,
        ranks: &dyn Communicator,
    ) -> Result<(), KernelError> {
        let Exchange { piece, sent, is_direct, ranks: count } = exchange;
        let (rank, message) = (ranks.rank(), piece * self.size);
        // SAFETY: the call's scratch, of which no other slice is alive.
        let all = unsafe { self.call.scratch.slice_mut::<u8>((sent + count) * message) };
        let (packed, room) = all.split_at_mut(sent * message);
        let of_operands = |i: usize| self.call.inputs[i].ty().elements();
        let parts: Vec<usize> = match (is_direct, op) {
            (true, _) | (_, Collective::AllGather { .. }) => {
                (0..self.call.inputs.len()).map(of_operands).collect()
            }
            _ => (0..self.call.inputs.len()).map(|i| of_operands(i).div_ceil(count)).collect(),
        };
        let total: usize = parts.iter().sum();
        for first in (0..total).step_by(piece) {
            let len = piece.min(total - first);
            let bytes = len * self.size;
            // What is sent to each rank: its part of the terms, or the same to all.
            for (to, message) in packed.chunks_exact_mut(message).enumerate() {
                let of_rank = if sent == 1 { 0 } else { to };
                self.pack(&parts, of_rank, first, &mut message[..bytes]);
            }
            let own = if sent == 1 { 0 } else { rank };
            room[rank * message..][..bytes].copy_from_slice(&packed[own * message..][..bytes]);
            self.send(packed, room, message, bytes, ranks)?;
            if matches!(op, Collective::AllGather { .. }) {
                for (from, message) in room.chunks_exact(message).enumerate() {
                    self.unpack(&parts, from, first, &message[..bytes]);
                }
                continue;
            }
            self.sum(room, message, bytes);
            match op {
                Collective::AllReduce { .. } if is_direct => {
                    self.unpack(&parts, 0, first, &room[..bytes]);
                }
                Collective::AllReduce { .. } => {
                    // The sum of the own part goes to all, and theirs come.
                    packed[..bytes].copy_from_slice(&room[..bytes]);
                    room[rank * message..][..bytes].copy_from_slice(&packed[..bytes]);
                    self.send(&packed[..message], room, message, bytes, ranks)?;
                    for (from, message) in room.chunks_exact(message).enumerate() {
                        self.unpack(&parts, from, first, &message[..bytes]);
                    }
                }
                _ => self.unpack(&parts, 0, first, &room[..bytes]),
            }
        }
        Ok(())
    }

    /// Sends a message to each other rank and receives theirs, `bytes` of each `message` bytes of room.
    fn send(
        &self,
        packed: &[u8],
        room: &mut [u8],
        message: usize,
        bytes: usize,
        ranks: &dyn Communicator,
    ) -> Result<(), KernelError> {
        let sent: Vec<&[u8]> = packed.chunks_exact(message).map(|m| &m[..bytes]).collect();
        let mut received: Vec<&mut [u8]> =
            room.chunks_exact_mut(message).map(|m| &mut m[..bytes]).collect();
        Ok(ranks.exchange(&sent, &mut received)?)
    }

    /// Adds up the ranks' messages in the first one.
    fn sum(&self, room: &mut [u8], message: usize, bytes: usize) {
        let dtype = self.call.inputs[0].ty().dtype;
        let (sum, others) = room.split_at_mut(message);
        let sum = &mut sum[..bytes];
        let others = others.chunks_exact(message).map(|m| &m[..bytes]);
        match dtype {
            DType::F32 => add_up(sum, others, |a, b| {
                (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes()
            }),
            DType::F64 => add_up(sum, others, |a, b| {
                (f64::from_le_bytes(a) + f64::from_le_bytes(b)).to_le_bytes()
            }),
            DType::I64 => add_up(sum, others, |a, b| {
                i64::from_le_bytes(a).wrapping_add(i64::from_le_bytes(b)).to_le_bytes()
            }),
            // One element after another, so that it is rounded once.
            _ => {
                let others: Vec<&[u8]> = others.collect();
                for (i, element) in sum.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let wide = |b: &[u8]| bf16::to_f32(u16::from_le_bytes([b[0], b[1]]));
                    let terms = others.iter().map(|m| wide(&m[2 * i..2 * i + 2]));
                    let all = terms.fold(wide(element), |sum, term| sum + term);
                    *element = bf16::from_f32(all).to_le_bytes();
                }
            }
        }
    }

    /// Elements `first…` of a rank's parts, with zeros where a tensor has ended.
    fn pack(&self, parts: &[usize], rank: usize, first: usize, message: &mut [u8]) {
        let mut at = 0;
        for run in runs(parts, rank, first, message.len() / self.size) {
            let x = &self.call.inputs[run.tensor];
            let there = x.ty().elements().saturating_sub(run.first).min(run.len);
            let (of_run, there) = (run.len * self.size, there * self.size);
            let place = &mut message[at..at + of_run];
            // SAFETY: the elements are the operand's, and the message lies in scratch.
            unsafe {
                let from = x.bytes().wrapping_add(run.first * self.size);
                std::ptr::copy_nonoverlapping(from, place.as_mut_ptr(), there);
            }
            place[there..].fill(0);
            at += of_run;
        }
    }

    /// Puts elements `first…` of a rank's parts where they are in the results.
    fn unpack(&self, parts: &[usize], rank: usize, first: usize, message: &[u8]) {
        let mut at = 0;
        for run in runs(parts, rank, first, message.len() / self.size) {
            let of_run = run.len * self.size;
            if let Some(y) = &self.call.outputs[run.tensor] {
                let there = y.ty().elements().saturating_sub(run.first).min(run.len) * self.size;
                // SAFETY: the elements are the result's, and the message lies in scratch.
                unsafe {
                    let to = y.bytes_mut().wrapping_add(run.first * self.size);
                    std::ptr::copy_nonoverlapping(message[at..].as_ptr(), to, there);
                }
            }
            at += of_run;
        }
    }
}

/// Where elements `first` to `first + len` of a rank's parts, one after another, are in the tensors.
fn runs(parts: &[usize], rank: usize, first: usize, len: usize) -> impl Iterator<Item = Run> {
    let mut before = 0;
    let run = move |(tensor, &part): (usize, &usize)| {
        let (begin, end) = (first.max(before), (first + len).min(before + part));
        let within = begin.saturating_sub(before);
        before += part;
        let len = end.saturating_sub(begin);
        (len > 0).then_some(Run { tensor, first: rank * part + within, len })
    };
    parts.iter().enumerate().filter_map(run)
}

fn add_up<'m, const N: usize>(
    sum: &mut [u8],
    others: impl Iterator<Item = &'m [u8]>,
    add: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    for other in others {
        let elements = sum.as_chunks_mut::<N>().0.iter_mut().zip(other.as_chunks::<N>().0);
        elements.for_each(|(a, b)| *a = add(*a, *b));
    }
}
