//! Sums over all axes but one, whose indices are channels: `BatchNorm` and the gradients of
//! scales and biases.
//!
//! A channel is pieces of neighbours. Those of a strip of channels are summed piece by piece,
//! in blocks of pieces; where channels are too few for many threads, parts go to scratch and
//! are added afterwards, always in one order.

use super::address::Shared;
use super::blocks;
use super::fused_norm::room;
use super::number::Float;
use super::tasks::for_each;
use super::terms::Room;
use super::wide::wide;
use arenic_backends::cpu::tiling::ChannelSums;
use arenic_backends::reduce::{COLUMNS, SEGMENT};
use std::array;
use std::ops::Range;

/// `K` terms for every element.
pub(super) trait Terms<T, const K: usize>: Sync {
    /// What the terms of `len` neighbours from `at` on are made of beside what is stored for each:
    /// an element for each, or none.
    fn made<'a>(&'a self, at: usize, len: usize, room: &'a mut Room<T>) -> &'a [T];

    /// The terms of element `i`, of channel `channel` and, where nothing lies behind the
    /// channels, of row `row`; it is neighbour `j` of those that `made` are of.
    ///
    /// # Safety
    /// They are in bounds.
    unsafe fn of(&self, i: usize, made: (&[T], usize), row: usize, channel: usize) -> [T; K];
}

/// Hands the sums of every channel to `finish`. `scratch` is the partial sums' place.
pub(super) fn sums<T: Float, F: Terms<T, K>, const K: usize>(
    tiling: &ChannelSums,
    terms: &F,
    scratch: &mut [T],
    finish: impl Fn(usize, [T; K]) + Sync,
) {
    let of_pieces = |pieces: Range<usize>, strip: Range<usize>| {
        let mut acc = [[T::ZERO; COLUMNS]; K];
        add_pieces::<T, F, K>(terms, tiling, pieces, strip, &mut acc);
        acc
    };
    let join =
        |sums: [T; K], more: [T; K], _: Range<usize>| array::from_fn(|k| sums[k].add(more[k]));
    in_parts(tiling, scratch, of_pieces, join, finish);
}

/// Shares channels out: `of_pieces` gives the numbers that a range of pieces has for every channel of a strip, `join`
/// those of more pieces beside those of all before them, of none at first, and `finish` takes a channel's. `scratch`
/// is the place of what parts of the pieces have.
pub(super) fn in_parts<T: Float, const K: usize>(
    tiling: &ChannelSums,
    scratch: &mut [T],
    of_pieces: impl Fn(Range<usize>, Range<usize>) -> [[T; COLUMNS]; K] + Sync,
    join: impl Fn([T; K], [T; K], Range<usize>) -> [T; K] + Sync,
    finish: impl Fn(usize, [T; K]) + Sync,
) {
    let &ChannelSums { extents: [outer, channels, inner], strip, pieces, parts } = tiling;
    let work = 2 * outer * channels * inner;
    let strips = channels.div_ceil(strip);
    let partial = Shared::new(scratch.as_mut_ptr());
    let share = pieces.div_ceil(parts);
    let pieces_of = |part: usize| (part * share).min(pieces)..((part + 1) * share).min(pieces);
    for_each(strips * parts, work, |task| {
        let (first, part) = (task / parts * strip, task % parts);
        let width = strip.min(channels - first);
        let all = of_pieces(pieces_of(part), first..first + width);
        for j in 0..width {
            let of_channel = all.each_ref().map(|all| all[j]);
            if parts == 1 {
                finish(first + j, of_channel);
                continue;
            }
            for (k, number) in of_channel.into_iter().enumerate() {
                // SAFETY: every number of a part is written by one task.
                unsafe { *partial.ptr().add((part * K + k) * channels + first + j) = number };
            }
        }
    });
    if parts == 1 {
        return;
    }
    for_each(channels, K * channels * parts, |channel| {
        let mut all = [T::ZERO; K];
        for part in 0..parts {
            // SAFETY: complete by now.
            let of = |k| unsafe { *partial.ptr().add((part * K + k) * channels + channel) };
            all = join(all, array::from_fn(of), pieces_of(part));
        }
        finish(channel, all);
    });
}

/// Neighbours of one channel from `from + at` on; those from `from` on are made.
struct Piece<'a, T, F> {
    terms: &'a F,
    from: usize,
    at: usize,
    made: &'a [T],
    row: usize,
    channel: usize,
}

impl<T, F: Terms<T, K>, const K: usize> blocks::Terms<T, K> for Piece<'_, T, F> {
    #[inline(always)]
    fn of(&self, i: usize) -> [T; K] {
        let at = self.at + i;
        // SAFETY: part of a channel's neighbours.
        unsafe { self.terms.of(self.from + at, (self.made, at), self.row, self.channel) }
    }
}

wide! {
    /// Adds the pieces of a strip's channels up.
    pub(super) fn add_pieces<T: Float, F: Terms<T, K>; const K: usize>(
        terms: &F,
        tiling: &ChannelSums,
        pieces: Range<usize>,
        strip: Range<usize>,
        acc: &mut [[T; COLUMNS]; K],
    ) {
        /// Pieces added up before they join the rest.
        const BLOCK: usize = 64;
        let [_, channels, inner] = tiling.extents;
        let per_row = inner.div_ceil(SEGMENT);
        let (first_channel, width) = (strip.start, strip.len());
        let mut room = room();
        let mut first = pieces.start;
        while first < pieces.end {
            let end = (first + BLOCK).min(pieces.end);
            let mut block = [[T::ZERO; COLUMNS]; K];
            for piece in first..end {
                if inner == 1 {
                    let at = piece * channels + first_channel;
                    let made = terms.made(at, width.min(COLUMNS), &mut room);
                    for j in 0..width.min(COLUMNS) {
                        // SAFETY: element `channel` of row `piece`.
                        let term = unsafe { terms.of(at + j, (made, j), piece, first_channel + j) };
                        for (block, term) in block.iter_mut().zip(term) {
                            block[j] = block[j].add(term);
                        }
                    }
                    continue;
                }
                let (row, segment) = (piece / per_row, piece % per_row * SEGMENT);
                let n = SEGMENT.min(inner - segment);
                // Channels of a strip are neighbours: there are several where they are short.
                let from = (row * channels + first_channel) * inner + segment;
                let made = terms.made(from, (width - 1) * inner + n, &mut room);
                for j in 0..width.min(COLUMNS) {
                    let at = j * inner;
                    let piece = Piece { terms, from, at, made, row, channel: first_channel + j };
                    let sums = blocks::sums(n, &piece);
                    for (block, sum) in block.iter_mut().zip(sums) {
                        block[j] = block[j].add(sum);
                    }
                }
            }
            for (acc, block) in acc.iter_mut().zip(&block) {
                for (acc, &sum) in acc.iter_mut().zip(block).take(width) {
                    *acc = acc.add(sum);
                }
            }
            first = end;
        }
    }
}
