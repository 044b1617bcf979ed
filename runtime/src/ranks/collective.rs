//! Kernels of the operators that exchange tensors between ranks.
//!
//! The ranks' parts of all operands, one after another, are exchanged a piece at a time: packed into
//! messages in scratch, received beside them, summed by rank, unpacked. Sums of `bf16` are taken in `f32`
//! and rounded once. The first rank's term comes first, on every rank and in every kind of exchange, so
//! that an element's sum has the same bits wherever it is taken.

use super::{Communicator, RankError};
use crate::cpu;
use crate::kernel::{Call, KernelError};
use arenic_backends::cpu::MESSAGES;
use arenic_backends::exchange::{Exchange, Run};
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
    match (op, Exchange::new(op, &types, MESSAGES), ranks) {
        (Collective::OwnPart { .. }, _, _) => tensors.own_part(count, rank),
        (_, Some(exchange), Some(ranks)) => tensors.exchange(op, &exchange, ranks)?,
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
        exchange: &Exchange,
        ranks: &dyn Communicator,
    ) -> Result<(), KernelError> {
        let Exchange { piece, sent, is_direct, ranks: count, .. } = *exchange;
        let (rank, message) = (ranks.rank(), piece * self.size);
        // SAFETY: the call's scratch, of which no other slice is alive.
        let all = unsafe { self.call.scratch.slice_mut::<u8>((sent + count) * message) };
        let (packed, room) = all.split_at_mut(sent * message);
        // The first element of a run in a rank's part.
        let of = |run: Run, rank: usize| rank * exchange.parts[run.operand] + run.within;
        for piece in exchange.pieces() {
            let bytes = piece.1 * self.size;
            let pack = |rank, message: &mut [u8]| {
                exchange.runs(piece).for_each(|run| self.pack(run, of(run, rank), message));
            };
            let unpack = |rank, message: &[u8]| {
                exchange.runs(piece).for_each(|run| self.unpack(run, of(run, rank), message));
            };
            // What is sent to each rank: its part of the terms, or the same to all.
            for (to, message) in packed.chunks_exact_mut(message).enumerate() {
                let of_rank = if sent == 1 { 0 } else { to };
                pack(of_rank, message);
            }
            let own = if sent == 1 { 0 } else { rank };
            room[rank * message..][..bytes].copy_from_slice(&packed[own * message..][..bytes]);
            self.send(packed, room, message, bytes, ranks)?;
            if matches!(op, Collective::AllGather { .. }) {
                room.chunks_exact(message).enumerate().for_each(|(from, m)| unpack(from, m));
                continue;
            }
            self.sum(room, message, bytes);
            match op {
                Collective::AllReduce { .. } if is_direct => unpack(0, room),
                Collective::AllReduce { .. } => {
                    // The sum of the own part goes to all, and theirs come.
                    packed[..bytes].copy_from_slice(&room[..bytes]);
                    room[rank * message..][..bytes].copy_from_slice(&packed[..bytes]);
                    self.send(&packed[..message], room, message, bytes, ranks)?;
                    room.chunks_exact(message).enumerate().for_each(|(from, m)| unpack(from, m));
                }
                _ => unpack(0, room),
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

    /// Puts a run of an operand, from this element on, into a message, with zeros where the tensor has ended.
    fn pack(&self, run: Run, first: usize, message: &mut [u8]) {
        let x = &self.call.inputs[run.operand];
        let there = x.ty().elements().saturating_sub(first).min(run.len) * self.size;
        let place = &mut message[run.at * self.size..][..run.len * self.size];
        // SAFETY: the elements are the operand's, and the message lies in scratch.
        unsafe {
            let from = x.bytes().wrapping_add(first * self.size);
            std::ptr::copy_nonoverlapping(from, place.as_mut_ptr(), there);
        }
        place[there..].fill(0);
    }

    /// Puts a run of a message where it is in the result, from this element on.
    fn unpack(&self, run: Run, first: usize, message: &[u8]) {
        let Some(y) = &self.call.outputs[run.operand] else { return };
        let there = y.ty().elements().saturating_sub(first).min(run.len) * self.size;
        let from = &message[run.at * self.size..][..there];
        // SAFETY: the elements are the result's, and the message lies in scratch.
        unsafe {
            let to = y.bytes_mut().wrapping_add(first * self.size);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, there);
        }
    }
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
