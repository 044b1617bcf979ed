//! Means and variances over all axes but one, whose indices are channels.
//!
//! Elements are read from memory once: a block of pieces, which a cache holds, has moments of its own, and
//! those of two sets follow from theirs (Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm
//! for Computing Sample Variances", 1979). Blocks follow from shapes, so that bits do not depend on threads.

use super::address::Shared;
use super::channels::{Terms, add_pieces, in_parts};
use super::number::Float;
use super::terms::Room;
use arenic_backends::cpu::tiling::ChannelSums;
use arenic_backends::reduce::{COLUMNS, SEGMENT};
use std::ops::Range;

/// Hands the mean of every channel's elements, and the sum of their squared distances from it, to `finish`.
/// `scratch` is the place of two partial sums.
pub(super) fn moments<T: Float>(
    tiling: &ChannelSums,
    x: Shared<T>,
    scratch: &mut [T],
    finish: impl Fn(usize, T, T) + Sync,
) {
    let of_pieces = |pieces: Range<usize>, strip: Range<usize>| {
        let mut all = Moments::of_nothing();
        all.add(tiling, x, pieces, strip);
        if tiling.pieces == 0 {
            // No element has a mean.
            all.mean = [T::ZERO.div(T::ZERO); COLUMNS];
        }
        [all.mean, all.squares]
    };
    let join = |all: [T; 2], more: [T; 2], pieces: Range<usize>| {
        let before = elements(tiling, &(0..pieces.start));
        match elements(tiling, &pieces) {
            0 => all,
            count => joined(all, more, &Shares::new(before, count)),
        }
    };
    in_parts(tiling, scratch, of_pieces, join, |channel, [mean, squares]| {
        finish(channel, mean, squares);
    });
}

/// Moments of a strip's channels.
struct Moments<T> {
    /// Elements of each.
    count: usize,
    mean: [T; COLUMNS],
    squares: [T; COLUMNS],
}

impl<T: Float> Moments<T> {
    fn of_nothing() -> Self {
        Moments { count: 0, mean: [T::ZERO; COLUMNS], squares: [T::ZERO; COLUMNS] }
    }

    /// Takes in pieces of the channels `strip`.
    fn add(
        &mut self,
        tiling: &ChannelSums,
        x: Shared<T>,
        pieces: Range<usize>,
        strip: Range<usize>,
    ) {
        let width = strip.len().min(COLUMNS);
        // Blocks are the same for any number of channels, so that a part of these has the same bits.
        let inner = tiling.extents[2].max(1);
        let per_block = (SEGMENT / (inner.min(SEGMENT) * (COLUMNS / inner).max(1))).max(1);
        for first in pieces.clone().step_by(per_block) {
            let block = first..pieces.end.min(first + per_block);
            let more = elements(tiling, &block);
            let mut sums = [[T::ZERO; COLUMNS]];
            add_pieces(&Elements(x), tiling, block.clone(), strip.clone(), &mut sums);
            let [mut means] = sums;
            let count = T::of_count(more);
            for mean in &mut means[..width] {
                *mean = mean.div(count);
            }
            let terms = Squares { x, means: &means, first: strip.start };
            let mut squares = [[T::ZERO; COLUMNS]];
            add_pieces(&terms, tiling, block, strip.clone(), &mut squares);
            let shares = Shares::new(self.count, more);
            for j in 0..width {
                let (of, other) = ([self.mean[j], self.squares[j]], [means[j], squares[0][j]]);
                [self.mean[j], self.squares[j]] = joined(of, other, &shares);
            }
            self.count += more;
        }
    }
}

/// The elements.
struct Elements<T>(Shared<T>);

impl<T: Float> Terms<T, 1> for Elements<T> {
    #[inline(always)]
    fn made<'a>(&'a self, _: usize, _: usize, _: &'a mut Room<T>) -> &'a [T] {
        &[]
    }

    #[inline(always)]
    unsafe fn of(&self, i: usize, _: (&[T], usize), _: usize, _: usize) -> [T; 1] {
        // SAFETY: the caller's promise.
        [unsafe { *self.0.ptr().add(i) }]
    }
}

/// Squares of the elements' distances from their channel's mean.
struct Squares<'a, T> {
    x: Shared<T>,
    means: &'a [T; COLUMNS],
    /// The channel of the first mean.
    first: usize,
}

impl<T: Float> Terms<T, 1> for Squares<'_, T> {
    #[inline(always)]
    fn made<'a>(&'a self, _: usize, _: usize, _: &'a mut Room<T>) -> &'a [T] {
        &[]
    }

    #[inline(always)]
    unsafe fn of(&self, i: usize, _: (&[T], usize), _: usize, channel: usize) -> [T; 1] {
        // SAFETY: the caller's promise; a strip has no more channels than there are means.
        let (x, mean) =
            unsafe { (*self.x.ptr().add(i), *self.means.get_unchecked(channel - self.first)) };
        [x.sub(mean).mul(x.sub(mean))]
    }
}

/// How many elements of a channel so many of its pieces have.
fn elements(tiling: &ChannelSums, pieces: &Range<usize>) -> usize {
    let inner = tiling.extents[2];
    let per_row = inner.div_ceil(SEGMENT).max(1);
    let before = |piece: usize| piece / per_row * inner + (piece % per_row * SEGMENT).min(inner);
    before(pieces.end) - before(pieces.start)
}

/// What two sets of elements have to do with their union.
struct Shares<T> {
    /// The share of the second one.
    second: T,
    /// Elements of the first one, times that.
    product: T,
}

impl<T: Float> Shares<T> {
    fn new(first: usize, second: usize) -> Self {
        let share = T::of_count(second).div(T::of_count(first + second));
        Shares { second: share, product: T::of_count(first).mul(share) }
    }
}

/// Mean and squares of two sets' union.
#[inline(always)]
fn joined<T: Float>([mean, squares]: [T; 2], [other, more]: [T; 2], of: &Shares<T>) -> [T; 2] {
    let apart = other.sub(mean);
    [mean.add(apart.mul(of.second)), squares.add(more).add(apart.mul(apart).mul(of.product))]
}
