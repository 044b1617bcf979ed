//! Convolutions by products at the points of tiles (`arenic_backends::cpu::winograd` has how and why):
//! `Conv`, `ConvTranspose` and, in `weight`, the gradient of weights.
//!
//! One side of the products, weights or what tiles see, is transformed into scratch for all tasks. Each task
//! transforms a part of the other side into room of its own and multiplies it while the core's nearer caches
//! have it; products at all points become outputs at once. A product sums over channels in blocks, in order.

mod products;
mod read;
mod transform;
mod weight;

use super::address::Shared;
use super::isa::Isa;
use super::tasks::{Queue, for_each};
use super::wide::wide;
use crate::kernel::Call;
use crate::workers;
use arenic_backends::cpu::shifted::LANES;
use arenic_backends::cpu::winograd::{Kept, OUTPUTS, PLACES, SEEN, TAPS, WIDTH, Winograd};
use products::{Factors, Products, ROWS};
use read::{Spot, read, spots};
use std::mem::MaybeUninit;
use transform::{Along, Block, Outputs, Places, Seen, Window, both, transposed};
pub(super) use weight::gradient;

/// A call's operands.
struct Layer<'a> {
    isa: Isa,
    plan: &'a Winograd,
    groups: usize,
    x: *const f32,
    w: *const f32,
    bias: Option<&'a [f32]>,
    y: Shared<f32>,
    /// True where the window is turned around, and weights lie by input channels.
    turned: bool,
}

// SAFETY: `x` and `w` are operands, which are only read.
unsafe impl Sync for Layer<'_> {}

/// Runs a `Conv`, or a `ConvTranspose`.
pub(super) fn conv(plan: &Winograd, groups: usize, turned: bool, call: &Call) {
    let y = call.outputs[0].as_ref();
    let layer = Layer {
        isa: Isa::of_machine(),
        plan,
        groups,
        x: call.inputs[0].ptr(),
        w: call.inputs[1].ptr(),
        // SAFETY: convolutions have no in-place pairs.
        bias: call.inputs.get(2).map(|b| unsafe { b.slice() }),
        y: Shared::new(y.map_or(std::ptr::null_mut(), |y| y.ptr())),
        turned,
    };
    // SAFETY: the only slice of this call's scratch.
    let scratch = unsafe { call.scratch.slice_mut(plan.elements()) };
    let (kept, slots) = scratch.split_at_mut(plan.keeps());
    layer.run(Shared::new(kept.as_mut_ptr()), Shared::new(slots.as_mut_ptr()));
}

/// First and count.
type Range = (usize, usize);

/// Ranges of at most `most` that cover `0..n`.
fn ranges(n: usize, most: usize) -> impl Iterator<Item = Range> {
    (0..n.div_ceil(most)).map(move |i| range(n, most, i))
}

/// The range `i` of these.
fn range(n: usize, most: usize, i: usize) -> Range {
    (i * most, most.min(n - i * most))
}

/// Runs units on as many threads as there are slots, each of so many elements: a thread has one for all its
/// units. Threads beyond them help with the parts of a unit.
fn in_slots(
    units: usize,
    (slots, elements): (usize, usize),
    first: Shared<f32>,
    f: impl Fn(usize, Shared<f32>) + Sync,
) {
    let queue = Queue::new(units);
    for_each(slots.min(workers::count()), units * elements, |slot| {
        let slot = Shared::new(first.ptr().wrapping_add(slot * elements));
        queue.rest().for_each(|unit| f(unit, slot));
    });
}

impl Layer<'_> {
    fn run(&self, kept: Shared<f32>, slots: Shared<f32>) {
        let plan = self.plan;
        let (all, of_slots) = (plan.tiles.count(), (plan.slots, plan.slot()));
        let spots = |tiles| spots(&plan.tiles, plan.tiles.first, tiles, plan.lanes);
        for group in 0..self.groups {
            match plan.kept {
                Kept::Weights => ranges(plan.channels, plan.some).for_each(|channels| {
                    self.transform_weights(group, channels, (kept, plan.weights(plan.some)));
                    in_slots(plan.panels(), of_slots, slots, |panel, slot| {
                        let tiles = range(all, plan.lanes, panel);
                        let spots = spots(tiles);
                        self.transform_seen(group, &spots, slot);
                        let weights = (kept, plan.weights(plan.some));
                        self.multiply(group, (tiles, &spots), channels, (weights, slot));
                    });
                }),
                Kept::Tiles => ranges(all, plan.some * plan.lanes).for_each(|tiles| {
                    let spots = spots(tiles);
                    self.transform_seen(group, &spots, kept);
                    in_slots(plan.channels.div_ceil(ROWS), of_slots, slots, |unit, slot| {
                        let channels = range(plan.channels, ROWS, unit);
                        let weights = (slot, plan.weights(ROWS));
                        self.transform_weights(group, channels, weights);
                        self.multiply(group, (tiles, &spots), channels, (weights, kept));
                    });
                }),
            }
        }
    }

    /// Where a weight lies among those at one point: [`ROWS`] output channels after another, and in
    /// these a row for each output channel or, turned around, for each input channel.
    fn weight(&self, output: usize, input: usize) -> usize {
        let inputs = self.plan.inputs.next_multiple_of(WIDTH);
        match self.turned {
            false => output * inputs + input,
            true => (output - output % ROWS) * inputs + input * ROWS + output % ROWS,
        }
    }

    /// Transforms the weights of some output channels. Those of neighbours in the operand lie side by side;
    /// points are `pitch` elements apart.
    fn transform_weights(
        &self,
        group: usize,
        (first, count): Range,
        (to, pitch): (Shared<f32>, usize),
    ) {
        let plan = self.plan;
        // Windows of the operand: rows, of which neighbours lie side by side.
        let (rows, cols, all) = match self.turned {
            false => ((first, count), (0, plan.inputs), plan.inputs),
            true => ((0, plan.inputs), (first, count), plan.channels),
        };
        let across = cols.1.div_ceil(WIDTH);
        let of_group = group * plan.inputs * plan.channels;
        for_each(rows.1 * across, rows.1 * cols.1 * PLACES, |unit| {
            let (row, col) = (unit / across, unit % across * WIDTH);
            let n = WIDTH.min(cols.1 - col);
            let from = of_group + (rows.0 + row) * all + cols.0 + col;
            let at = if self.turned { self.weight(col, row) } else { self.weight(row, col) };
            // SAFETY: windows of the operand; each unit has lanes of its own at every point.
            unsafe {
                let from = self.w.add(from * TAPS * TAPS);
                let from = std::slice::from_raw_parts(from, n * TAPS * TAPS);
                windows::<Window>(from, self.turned, to.ptr().add(at), pitch);
            }
        });
    }

    /// Transforms what some tiles see of all input channels. At a point, a channel's tiles lie side by
    /// side.
    fn transform_seen(&self, group: usize, spots: &[Spot], to: Shared<f32>) {
        let plan = self.plan;
        let plane = plan.tiles.source[0] * plan.tiles.source[1];
        let panel = plan.panel();
        let parts = spots.len() / WIDTH;
        for_each(parts * plan.inputs, spots.len() * plan.inputs * PLACES, |unit| {
            let (input, part) = (unit % plan.inputs, unit / plan.inputs * WIDTH);
            let x = self.x.wrapping_add((group * plan.inputs + input) * plane);
            let (of_panel, lane) = (part / plan.lanes, part % plan.lanes);
            let at = of_panel * PLACES * panel + lane * plan.inputs + input * WIDTH;
            let Some(spots) = spots[part..].first_chunk() else { return };
            // SAFETY: a channel of the operand; each unit has lanes of its own at every point.
            unsafe {
                let image = self.groups * plan.inputs * plane;
                seen::<Seen, SEEN>((x, image, plan.tiles.source), spots, to.ptr().add(at), panel);
            }
        });
    }

    /// Gives some tiles their outputs of some channels.
    fn multiply(
        &self,
        group: usize,
        ((_, tiles), spots): (Range, &[Spot]),
        (first, channels): Range,
        ((weights, pitch), seen): ((Shared<f32>, usize), Shared<f32>),
    ) {
        let plan = self.plan;
        let terms: Vec<usize> = (0..plan.inputs).map(|i| self.weight(0, i)).collect();
        let (isa, lanes, summed) = (self.isa, plan.lanes, plan.summed());
        let factors = Factors { isa, lanes, room: plan.inputs, terms: &terms, summed };
        let (panels, across) = (tiles.div_ceil(plan.lanes), channels.div_ceil(ROWS));
        let panel = plan.panel();
        let work = panels * panel * channels * PLACES / 16;
        for_each(panels * across, work, |unit| {
            let (tile, channel) = (unit / across * plan.lanes, unit % across * ROWS);
            let mut products = MaybeUninit::<Products>::uninit();
            let products = products.as_mut_ptr();
            let panel_of = |place| {
                seen.ptr().cast_const().wrapping_add((unit / across * PLACES + place) * panel)
            };
            let row = |place, row: usize| {
                let output = channel + row.min(channels - channel - 1);
                let at = place * pitch + self.weight(output, 0);
                weights.ptr().cast_const().wrapping_add(at)
            };
            // SAFETY: the machine's own instructions; both have been transformed.
            unsafe { factors.multiply(panel_of, row, products) };
            let count = ROWS.min(channels - channel);
            let spots = &spots[tile..][..plan.lanes.min(tiles - tile)];
            let channel = group * plan.channels + first + channel;
            let size = plan.tiles.output[0] * plan.tiles.output[1];
            let y = self.y.ptr().wrapping_add(channel * size);
            let image = self.groups * plan.channels * size;
            let bias = self.bias.map(|bias| &bias[channel..][..count]);
            // SAFETY: tiles of these channels, which no other unit has.
            unsafe {
                let y = (y, image, plan.tiles.output);
                outputs::<Outputs>(products, count, spots, bias, y);
            }
        });
    }
}

wide! {
    /// Transforms neighbouring windows, side by side; points are `pitch` elements apart.
    ///
    /// # Safety
    /// `to` has the lanes of all points, which nobody else uses.
    unsafe fn windows<M: Along>(from: &[f32], turned: bool, to: *mut f32, pitch: usize) {
        let mut block = [[[0.0; WIDTH]; TAPS]; TAPS];
        for (lane, window) in from.as_chunks::<{ TAPS * TAPS }>().0.iter().enumerate() {
            for (tap, lanes) in block.as_flattened_mut().iter_mut().enumerate() {
                lanes[lane] = window[if turned { TAPS * TAPS - 1 - tap } else { tap }];
            }
        }
        let from = Places::new(block.as_ptr().cast(), TAPS, WIDTH);
        // SAFETY: the caller's promise.
        unsafe { both::<M>(from, Places::new(to, SEEN, pitch)) };
    }
}

wide! {
    /// Transforms what tiles see; points are `pitch` elements apart.
    ///
    /// # Safety
    /// As for [`read`]; `to` has the lanes of all points, which nobody else uses.
    unsafe fn seen<M: Along; const SIDE: usize>(
        x: (*const f32, usize, [usize; 2]),
        spots: &[Spot; WIDTH],
        to: *mut f32,
        pitch: usize,
    ) {
        let mut block = MaybeUninit::<Block>::uninit();
        // SAFETY: the caller's promise.
        unsafe {
            read::<SIDE>(x, spots, block.as_mut_ptr());
            let from = Places::new(block.as_ptr().cast(), SEEN, WIDTH);
            both::<M>(from, Places::new(to, SEEN, pitch));
        }
    }
}

wide! {
    /// Writes the outputs of some tiles, of so many channels. Of `y` are told the first channel of the
    /// first image, elements from one image to the next, and the extents of a channel.
    ///
    /// # Safety
    /// The tiles are of these channels, which nobody else uses meanwhile.
    unsafe fn outputs<M: Along>(
        products: *const Products,
        channels: usize,
        spots: &[Spot],
        bias: Option<&[f32]>,
        y: (*mut f32, usize, [usize; 2]),
    ) {
        let (y, image, extents) = y;
        let size = extents[0] * extents[1];
        for channel in 0..channels {
            let bias = bias.map_or(0.0, |bias| bias[channel]);
            for (part, spots) in spots.chunks(WIDTH).enumerate() {
                let mut block = MaybeUninit::<Block>::uninit();
                // SAFETY: the caller's promise; what is not written is not read.
                let block: &Block = unsafe {
                    let first = products.cast::<f32>().add(channel * LANES + part * WIDTH);
                    let to = Places::new(block.as_mut_ptr().cast(), SEEN, WIDTH);
                    both::<M>(Places::new(first, SEEN, ROWS * LANES), to);
                    &*block.as_ptr()
                };
                for (quad, spots) in spots.chunks(4).enumerate() {
                    for (row, outputs) in block[..OUTPUTS].iter().enumerate() {
                        let cols: [[f32; 4]; 4] = std::array::from_fn(|col| {
                            std::array::from_fn(|tile| outputs[col][quad * 4 + tile] + bias)
                        });
                        let tiles = transposed(cols);
                        for (spot, tile) in spots.iter().zip(tiles) {
                            let [down, across] = spot.output;
                            if down + row >= extents[0] {
                                continue;
                            }
                            let at = spot.image * image + channel * size;
                            let to = y.wrapping_add(at + (down + row) * extents[1] + across);
                            // SAFETY: outputs of this tile.
                            unsafe {
                                if across + OUTPUTS <= extents[1] {
                                    to.cast::<[f32; OUTPUTS]>().write_unaligned(tile);
                                } else {
                                    for (col, &output) in tile[..extents[1] - across].iter().enumerate() {
                                        *to.add(col) = output;
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
