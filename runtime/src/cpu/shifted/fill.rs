//! Copies of an input, padding and all, on the grid of its window.

use crate::cpu::address::Shared;
use crate::cpu::sliding::{copy_short, inside};
use crate::cpu::tasks::for_each;
use arenic_backends::cpu::shifted::Grid;
use arenic_ir::op::MAX_RANK;

/// What a tile covers: images, and outputs along the first axis, both as (first, count).
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) images: (usize, usize),
    pub(super) rows: (usize, usize),
}

/// Planes of the source: elements from one channel to the next, and from one image to the next.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) x: *const f32,
    pub(super) channel: usize,
    pub(super) image: usize,
}

// SAFETY: operands, which are only read.
unsafe impl Sync for Planes {}

impl Planes {
    pub(super) fn of(&self, image: usize, channel: usize) -> *const f32 {
        self.x.wrapping_add(image * self.image + channel * self.channel)
    }
}

/// Copies `channels` channels of a tile to `to`, each phase by phase.
///
/// # Safety
/// The source has these images and channels, of the grid's axes; `to` has room for all, and nobody else
/// uses it.
pub(super) unsafe fn fill(grid: &Grid, from: Planes, tile: Tile, channels: usize, to: Shared<f32>) {
    let (image, images) = tile.images;
    let (units, region) = (channels * images, grid.region(images));
    for_each(units, units * grid.phases * grid.plane, |unit| {
        let (channel, i) = (unit / images, unit % images);
        let x = from.of(image + i, channel);
        for phase in 0..grid.phases {
            let at = (channel * grid.phases + phase) * region + i * grid.plane;
            // SAFETY: each unit has an image of its own in every phase of a channel.
            unsafe { one(grid, x, (phase, tile.rows.0), to.slice(at, grid.plane)) };
        }
    });
}

/// Fills one image of one phase, of a tile that begins at output `row`.
///
/// # Safety
/// `x` is a plane of the source.
unsafe fn one(grid: &Grid, x: *const f32, (phase, row): (usize, usize), to: &mut [f32]) {
    let (rank, last) = (grid.axes.len(), grid.axes.len() - 1);
    // Source elements of grid element 0, by axis.
    let (mut origin, mut rest) = ([0isize; MAX_RANK], phase);
    for a in (0..rank).rev() {
        let axis = &grid.axes[a];
        let before = if a == 0 { row * axis.step } else { 0 };
        origin[a] = (axis.phases[rest % axis.phases.len()] + before) as isize + axis.first;
        rest /= axis.phases.len();
    }
    let along = &grid.axes[last];
    let (begin, end) = inside(origin[last], along.step, along.extent, along.source);
    let begin = begin.min(end);
    let mut at = [0usize; MAX_RANK];
    for to in to.chunks_exact_mut(along.extent) {
        let (mut offset, mut exists) = (0, begin < end);
        for a in 0..last {
            let axis = &grid.axes[a];
            let source = origin[a] + (at[a] * axis.step) as isize;
            exists &= (0..axis.source as isize).contains(&source);
            offset = (offset + source) * grid.axes[a + 1].source as isize;
        }
        if exists {
            let x = x.wrapping_offset(offset + origin[last] + (begin * along.step) as isize);
            to[..begin].fill(0.0);
            to[end..].fill(0.0);
            let to = &mut to[begin..end];
            // SAFETY: `inside` gave elements of this row of the source.
            unsafe {
                if along.step == 1 {
                    copy_short(x, to);
                } else {
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = *x.add(i * along.step);
                    }
                }
            }
        } else {
            to.fill(0.0);
        }
        for a in (0..last).rev() {
            at[a] += 1;
            if at[a] < grid.axes[a].extent {
                break;
            }
            at[a] = 0;
        }
    }
}
