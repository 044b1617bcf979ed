//! `ConvWeightGrad`: products, over outputs, of the result's gradient and shifted views of the input.
//!
//! The gradient is packed, output channels side by side, and the input copied to its grid. Blocks of
//! rows add to the result one after another, images and rows in order, so that the order of every sum
//! follows from shapes.

use super::ENOUGH;
use super::fill::{Planes, Tile, fill};
use crate::cpu::address::Shared;
use crate::cpu::isa::Isa;
use crate::cpu::lane_sums::{POINTS, STRIPE, Terms, add_terms};
use crate::cpu::tasks::{both, for_each};
use crate::kernel::Call;
use arenic_backends::cpu::shifted::{LANES, ShiftedWeight, lanes};

/// Outputs that are packed at once, so that a panel of them stays in the core's nearest cache.
const PACKED: usize = 128;

/// Runs a `ConvWeightGrad`.
pub(in crate::cpu) fn gradient(plan: &ShiftedWeight, groups: usize, call: &Call) {
    let (x, dy) = (&call.inputs[0], &call.inputs[1]);
    let Some(dw) = call.outputs[0] else { return };
    let images = x.ty().shape[0];
    let planes = |x: *const f32, shape: &[usize]| {
        let channel = shape[2..].iter().product();
        Planes { x, channel, image: shape[1] * channel }
    };
    let (from_x, from_dy) = (planes(x.ptr(), &x.ty().shape), planes(dy.ptr(), &dy.ty().shape));
    // SAFETY: the only slice of this call's scratch.
    let scratch = unsafe { call.scratch.slice_mut(plan.elements()) };
    let (packed, grids) = scratch.split_at_mut(plan.packed());
    let (packed, grids) = (Shared::new(packed.as_mut_ptr()), Shared::new(grids.as_mut_ptr()));
    let rows = plan.grid.axes[0].output;
    for group in 0..groups {
        let columns = plan.inputs * plan.grid.taps.len();
        let dw = Shared::new(dw.ptr::<f32>().wrapping_add(group * plan.channels * columns));
        let x = Planes { x: from_x.of(0, group * plan.inputs), ..from_x };
        let dy = Planes { x: from_dy.of(0, group * plan.channels), ..from_dy };
        for image in (0..images).step_by(plan.images) {
            for row in (0..plan.rows).step_by(rows) {
                let tile = Tile {
                    images: (image, plan.images.min(images - image)),
                    rows: (row, rows.min(plan.rows - row)),
                };
                // SAFETY: channels of the operands; the scratch has room for as many images.
                both(
                    plan.elements(),
                    || unsafe { fill(&plan.grid, x, tile, plan.inputs, grids) },
                    || unsafe { pack(plan, dy, tile, packed) },
                );
                multiply(plan, tile, (packed, grids), (dw, image > 0 || row > 0));
            }
        }
    }
}

/// Outputs of one image between neighbours along the first axis.
fn inner(plan: &ShiftedWeight) -> usize {
    plan.grid.axes[1..].iter().map(|axis| axis.output).product()
}

/// Packs a tile of the result's gradient.
///
/// # Safety
/// The source has these images and channels; `to` has room for them, and nobody else uses it.
unsafe fn pack(plan: &ShiftedWeight, dy: Planes, tile: Tile, to: Shared<f32>) {
    let (lanes, inner) = (lanes(plan.channels), inner(plan));
    let (panels, outputs) = (plan.channels.div_ceil(lanes), tile.rows.1 * inner);
    let (images, pieces) = (tile.images.1, outputs.div_ceil(PACKED));
    let units = panels * images * pieces;
    for_each(units, units * lanes * outputs.min(PACKED), |unit| {
        let (panel, image, piece) =
            (unit / (images * pieces), unit / pieces % images, unit % pieces * PACKED);
        let count = PACKED.min(outputs - piece);
        for lane in 0..lanes {
            let channel = panel * lanes + lane;
            let stripe = panel * lanes + lane / STRIPE * STRIPE;
            let at = stripe * images * outputs + (image * outputs + piece) * STRIPE;
            // SAFETY: each unit has outputs of a panel of its own.
            let to = unsafe { to.slice(at, count * STRIPE) };
            let to = to.iter_mut().skip(lane % STRIPE).step_by(STRIPE);
            if channel >= plan.channels {
                to.for_each(|to| *to = 0.0);
                continue;
            }
            let from = dy.of(tile.images.0 + image, channel);
            let from = from.wrapping_add(tile.rows.0 * inner + piece);
            // SAFETY: outputs of one channel of one image.
            let from = unsafe { std::slice::from_raw_parts(from, count) };
            to.zip(from).for_each(|(to, from)| *to = *from);
        }
    });
}

/// Grid elements of the first output of every row of a tile.
fn rows_of(plan: &ShiftedWeight, tile: Tile) -> Vec<usize> {
    let (axes, strides) = (&plan.grid.axes, plan.grid.strides());
    let last = axes.len() - 1;
    let mut rows: Vec<usize> = (0..tile.images.1).map(|image| image * plan.grid.plane).collect();
    for (a, axis) in axes[..last].iter().enumerate() {
        let count = if a == 0 { tile.rows.1 } else { axis.output };
        let along = |row: usize| (0..count).map(move |at| (row, at));
        let moved = |(row, at): (usize, usize)| row + at * strides[a];
        rows = rows.into_iter().flat_map(along).map(moved).collect();
    }
    rows
}

/// Adds a tile's share to the gradient of one group, or begins it.
fn multiply(
    plan: &ShiftedWeight,
    tile: Tile,
    (packed, grids): (Shared<f32>, Shared<f32>),
    (dw, add): (Shared<f32>, bool),
) {
    let (isa, lanes) = (Isa::of_machine(), lanes(plan.channels));
    let (grid, taps) = (&plan.grid, &plan.grid.taps);
    let region = grid.region(tile.images.1);
    let columns = plan.inputs * taps.len();
    let starts = rows_of(plan, tile);
    let row =
        if grid.axes.len() == 1 { tile.rows.1 } else { grid.axes[grid.axes.len() - 1].output };
    let along: Vec<usize> = (0..row).collect();
    let outputs = starts.len() * row;
    let (across, panels) = (columns.div_ceil(POINTS), plan.channels.div_ceil(lanes));
    let long = across.div_ceil(4 * ENOUGH).max(1);
    let pieces = across.div_ceil(long);
    let work = panels * lanes * columns * outputs / 16;
    for_each(pieces * panels, work, |task| {
        let (panel, left) = (task / pieces, task % pieces * long);
        let channels = lanes.min(plan.channels - panel * lanes);
        let mut sums = [[0.0; LANES]; POINTS];
        for (b, block) in starts.chunks(plan.block()).enumerate() {
            let first = panel * outputs * lanes + b * plan.block() * row * STRIPE;
            for column in left..(left + long).min(across) {
                let column = column * POINTS;
                let t = Terms {
                    start: &[0.0; LANES],
                    panel: packed.ptr().wrapping_add(first),
                    stripe: outputs * STRIPE,
                    lanes,
                    points: std::array::from_fn(|p| {
                        let column = (column + p).min(columns - 1);
                        let (tap, channel) = (taps[column % taps.len()], column / taps.len());
                        let at = (channel * grid.phases + tap.phase) * region + tap.offset;
                        grids.ptr().cast_const().wrapping_add(at)
                    }),
                    starts: block,
                    offsets: &along,
                };
                // SAFETY: the machine's own instructions; the grid has every element that a tap sees at
                // an output.
                unsafe { add_terms(isa, t, &mut sums) };
                let count = POINTS.min(columns - column);
                for channel in 0..channels {
                    let at = (panel * lanes + channel) * columns + column;
                    // SAFETY: each task has channels and columns of its own.
                    let to = unsafe { dw.slice(at, count) };
                    for (to, sums) in to.iter_mut().zip(&sums) {
                        *to = if add || b > 0 { *to + sums[channel] } else { sums[channel] };
                    }
                }
            }
        }
    });
}
