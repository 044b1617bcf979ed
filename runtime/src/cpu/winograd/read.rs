//! Where tiles lie, and what they see.

use super::transform::{Block, Lane, transposed};
use crate::cpu::sliding::copy_short;
use arenic_backends::cpu::winograd::{OUTPUTS, SEEN, Tiles, WIDTH};
use std::mem::MaybeUninit;

/// Where a tile is.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub(super) image: usize,
    /// Its first output.
    pub(super) output: [usize; 2],
    /// The first element to read, of what it sees or of its outputs.
    first: [isize; 2],
}

/// Finds `count` tiles from the `first` on, filled up to whole panels by the last one. What is read of
/// output 0 begins at `origin`.
pub(super) fn spots(
    tiles: &Tiles,
    origin: [isize; 2],
    (first, count): (usize, usize),
    lanes: usize,
) -> Vec<Spot> {
    let spot = |tile: usize| {
        let (image, output) = tiles.at(first + tile.min(count - 1));
        let first = [0, 1].map(|a| output[a] as isize + origin[a]);
        Spot { image, output, first }
    };
    (0..count.next_multiple_of(lanes)).map(spot).collect()
}

/// Elements of copies of what tiles see: rows of neighbours share what they see.
const COPIES: usize = SEEN * SEEN * WIDTH;

/// Reads `SIDE` rows and columns from each tile's first element on, of one channel. Of `x` are told the channel of the first image, elements from one
/// image to the next, and the extents of a channel.
///
/// # Safety
/// `x` has the tiles' images; `to` may be written.
#[inline(always)]
pub(super) unsafe fn read<const SIDE: usize>(
    (x, image, extents): (*const f32, usize, [usize; 2]),
    spots: &[Spot; WIDTH],
    to: *mut Block,
) {
    let mut copies = MaybeUninit::<[f32; COPIES]>::uninit();
    let copies = copies.as_mut_ptr().cast::<f32>();
    let (mut from, mut tile, mut copied) = ([(x, 0); WIDTH], 0, 0);
    while tile < WIDTH {
        let first = spots[tile];
        let neighbours = neighbours(&spots[tile..]);
        let seen = [SIDE, neighbours * OUTPUTS + (SIDE - OUTPUTS)];
        let x = x.wrapping_add(first.image * image);
        let x = x.wrapping_offset(first.first[0] * extents[1] as isize + first.first[1]);
        let inside = |a: usize| inside(first.first[a], seen[a], extents[a]);
        let (rows, cols) = (inside(0), inside(1));
        let (x, pitch) = if rows == (0, seen[0]) && cols == (0, seen[1]) {
            (x, extents[1])
        } else {
            // SAFETY: neighbours take no more than their own shares of the copies.
            let to = unsafe {
                let to = copies.add(copied);
                to.write_bytes(0, seen[0] * seen[1]);
                std::slice::from_raw_parts_mut(to, seen[0] * seen[1])
            };
            copied += to.len();
            for row in rows.0..rows.1 {
                let x = x.wrapping_add(row * extents[1] + cols.0);
                // SAFETY: inside of the channel.
                unsafe { copy_short(x, &mut to[row * seen[1]..][cols.0..cols.1]) };
            }
            (to.as_ptr(), seen[1])
        };
        for i in 0..neighbours {
            from[tile + i] = (x.wrapping_add(i * OUTPUTS), pitch);
        }
        tile += neighbours;
    }
    for (quad, from) in from.as_chunks::<4>().0.iter().enumerate() {
        for row in 0..SIDE {
            // SAFETY: these rows are inside, or copies.
            let (begin, end) = unsafe {
                let of_row = from.map(|(x, pitch)| x.add(row * pitch));
                let begin = of_row.map(|x| x.cast::<[f32; OUTPUTS]>().read_unaligned());
                let end = of_row.map(|x| match SIDE {
                    OUTPUTS => [0.0; SEEN - OUTPUTS],
                    _ => x.add(OUTPUTS).cast::<[f32; SEEN - OUTPUTS]>().read_unaligned(),
                });
                (begin, end.map(|[a, b]| [a, b, 0.0, 0.0]))
            };
            let (begin, end) = (transposed(begin), transposed(end));
            for col in 0..SIDE {
                let of_tiles = if col < OUTPUTS { begin[col] } else { end[col - OUTPUTS] };
                // SAFETY: lanes of the block.
                unsafe {
                    let to = to.cast::<Lane>().add(row * SEEN + col).cast::<[f32; 4]>();
                    to.add(quad).write(of_tiles);
                }
            }
        }
    }
}

/// Tiles from the first on that lie side by side in one row.
#[inline(always)]
fn neighbours(spots: &[Spot]) -> usize {
    let first = spots[0];
    let mut n = 1;
    while n < spots.len()
        && spots[n].image == first.image
        && spots[n].output == [first.output[0], first.output[1] + n * OUTPUTS]
    {
        n += 1;
    }
    n
}

/// Of `n` elements from `first` on, those that lie inside `0..extent`: from, to.
#[inline(always)]
fn inside(first: isize, n: usize, extent: usize) -> (usize, usize) {
    let from = (-first).clamp(0, n as isize);
    let to = (extent as isize - first).clamp(from, n as isize);
    (from as usize, to as usize)
}
