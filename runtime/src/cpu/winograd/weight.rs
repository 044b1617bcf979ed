//! `ConvWeightGrad`: products, over tiles, of what tiles see and the gradient of their outputs, at all
//! points.
//!
//! What a block's tiles see is transformed for all tasks. Each transforms a panel of the gradient, output
//! channels side by side, into room of its own. Blocks of tiles add to the result one after another, so that
//! the order of every sum follows from shapes.

use super::products::{Factors, Products, ROWS};
use super::read::{Spot, read, spots};
use super::transform::{Along, Block, OutputsGrad, Places, Seen, WindowGrad, both, transposed};
use super::{Range, in_slots, range, ranges, seen};
use crate::cpu::address::Shared;
use crate::cpu::isa::Isa;
use crate::cpu::tasks::for_each;
use crate::cpu::wide::wide;
use crate::kernel::Call;
use arenic_backends::cpu::shifted::{LANES, lanes};
use arenic_backends::cpu::winograd::{OUTPUTS, PLACES, SEEN, TAPS, WIDTH, WinogradWeight};
use std::mem::MaybeUninit;

/// A call's operands.
struct Layer<'a> {
    isa: Isa,
    plan: &'a WinogradWeight,
    /// Output channels side by side.
    lanes: usize,
    groups: usize,
    x: *const f32,
    dy: *const f32,
    dw: Shared<f32>,
}

// SAFETY: `x` and `dy` are operands, which are only read.
unsafe impl Sync for Layer<'_> {}

/// Runs a `ConvWeightGrad`.
pub(in crate::cpu) fn gradient(plan: &WinogradWeight, groups: usize, call: &Call) {
    let dw = call.outputs[0].as_ref();
    let layer = Layer {
        isa: Isa::of_machine(),
        plan,
        lanes: lanes(plan.channels),
        groups,
        x: call.inputs[0].ptr(),
        dy: call.inputs[1].ptr(),
        dw: Shared::new(dw.map_or(std::ptr::null_mut(), |dw| dw.ptr())),
    };
    // SAFETY: the only slice of this call's scratch.
    let scratch = unsafe { call.scratch.slice_mut(plan.elements()) };
    let (seen, slots) = scratch.split_at_mut(plan.blocks().min(2) * plan.seen());
    layer.run(Shared::new(seen.as_mut_ptr()), Shared::new(slots.as_mut_ptr()));
}

impl Layer<'_> {
    /// Threads that find no panel of a block transform what the next block's tiles see, so that none waits.
    fn run(&self, seen: Shared<f32>, slots: Shared<f32>) {
        let plan = self.plan;
        let blocks: Vec<Range> = ranges(plan.tiles.count(), plan.some_tiles).collect();
        let seen_of = |block: usize| Shared::new(seen.ptr().wrapping_add(block % 2 * plan.seen()));
        let spots = |origin, tiles| spots(&plan.tiles, origin, tiles, WIDTH);
        for group in 0..self.groups {
            let see = |spots: &[Spot], input, block| {
                self.transform_seen(group, spots, input, seen_of(block));
            };
            let first = spots(plan.tiles.first, blocks[0]);
            for_each(plan.inputs, plan.seen(), |input| see(&first, input, 0));
            for (block, &tiles) in blocks.iter().enumerate() {
                let outputs = spots([0, 0], tiles);
                let next = blocks.get(block + 1).map(|&tiles| spots(plan.tiles.first, tiles));
                let units = plan.panels() + next.as_ref().map_or(0, |_| plan.inputs);
                in_slots(units, (plan.slots, plan.slot()), slots, |unit, dy| {
                    match (unit.checked_sub(plan.panels()), &next) {
                        (Some(input), Some(next)) => see(next, input, block + 1),
                        _ => {
                            let channels = range(plan.channels, self.lanes, unit);
                            self.transform_gradient(group, &outputs, channels, dy);
                            self.multiply(group, tiles, channels, (seen_of(block), dy));
                        }
                    }
                });
            }
        }
    }

    /// Transforms what some tiles see of an input channel. At a point, a channel's tiles lie side by side.
    fn transform_seen(&self, group: usize, spots: &[Spot], input: usize, to: Shared<f32>) {
        let plan = self.plan;
        let plane = plan.tiles.source[0] * plan.tiles.source[1];
        let image = self.groups * plan.inputs * plane;
        let x = self.x.wrapping_add((group * plan.inputs + input) * plane);
        for (part, spots) in spots.as_chunks().0.iter().enumerate() {
            let at = input * plan.some_tiles + part * WIDTH;
            // SAFETY: a channel of the operand; it has lanes of its own at every point.
            unsafe {
                let x = (x, image, plan.tiles.source);
                seen::<Seen, SEEN>(x, spots, to.ptr().add(at), plan.of_point());
            }
        }
    }

    /// Transforms the gradient of some tiles' outputs, of some channels. At a point, a tile's channels lie
    /// side by side.
    fn transform_gradient(
        &self,
        group: usize,
        spots: &[Spot],
        (first, channels): Range,
        to: Shared<f32>,
    ) {
        let plan = self.plan;
        let plane = plan.tiles.output[0] * plan.tiles.output[1];
        let image = self.groups * plan.channels * plane;
        let spots = spots.as_chunks::<WIDTH>().0;
        let (parts, pitch) = (channels.div_ceil(WIDTH), plan.panel());
        let work = channels * spots.len() * WIDTH * PLACES;
        for_each(parts * spots.len(), work, |unit| {
            let (channel, part) = (unit / spots.len() * WIDTH, unit % spots.len());
            let (panel, lane) = (channel / self.lanes, channel % self.lanes);
            let at = panel * PLACES * pitch + lane * plan.some_tiles + part * WIDTH * WIDTH;
            let count = WIDTH.min(channels - channel);
            let dy = (group * plan.channels + first + channel) * plane;
            let dy = (self.dy.wrapping_add(dy), image, plan.tiles.output);
            // SAFETY: channels of the operand; each unit has tiles and lanes of its own at every point.
            unsafe {
                let to = (to.ptr().add(at), pitch);
                gradients::<OutputsGrad>(dy, count, &spots[part], to);
            }
        });
    }

    /// Adds what some tiles give to the gradient of some output channels, or begins it.
    fn multiply(
        &self,
        group: usize,
        (tile, tiles): Range,
        (first, channels): Range,
        (seen, dy): (Shared<f32>, Shared<f32>),
    ) {
        let plan = self.plan;
        let terms: Vec<usize> = (0..tiles).collect();
        let factors = Factors {
            isa: self.isa,
            lanes: self.lanes,
            room: plan.some_tiles,
            terms: &terms,
            summed: plan.some_tiles,
        };
        let (panels, across) = (channels.div_ceil(self.lanes), plan.inputs.div_ceil(ROWS));
        let pitch = plan.panel();
        let work = panels * self.lanes * plan.inputs * PLACES * tiles / 16;
        for_each(panels * across, work, |unit| {
            let (panel, input) = (unit / across, unit % across * ROWS);
            let mut products = MaybeUninit::<Products>::uninit();
            let products = products.as_mut_ptr();
            let panel_of =
                |place| dy.ptr().cast_const().wrapping_add((panel * PLACES + place) * pitch);
            let row = |place, row: usize| {
                let input = (input + row).min(plan.inputs - 1);
                let at = place * plan.of_point() + input * plan.some_tiles;
                seen.ptr().cast_const().wrapping_add(at)
            };
            // SAFETY: the machine's own instructions; both have been transformed.
            unsafe { factors.multiply(panel_of, row, products) };
            let inputs = ROWS.min(plan.inputs - input);
            let channel = panel * self.lanes;
            let channels = self.lanes.min(channels - channel);
            let at = (group * plan.channels + first + channel) * plan.inputs + input;
            let row = plan.inputs * TAPS * TAPS;
            let dw = self.dw.ptr().wrapping_add(at * TAPS * TAPS);
            // SAFETY: windows of these channels, which no other unit has.
            unsafe { windows::<WindowGrad>(products, [inputs, channels], tile > 0, (dw, row)) };
        });
    }
}

wide! {
    /// Transforms the gradient of tiles' outputs, of so many neighbouring channels. Of `to` are told the
    /// first lane, and elements from one point to the next; a tile has a stripe's width.
    ///
    /// # Safety
    /// As for [`read`]; `to` has these lanes of all points and tiles, which nobody else uses.
    unsafe fn gradients<M: Along>(
        dy: (*const f32, usize, [usize; 2]),
        channels: usize,
        spots: &[Spot; WIDTH],
        to: (*mut f32, usize),
    ) {
        let (dy, image, extents) = dy;
        let (to, pitch) = to;
        let mut blocks = [[[[0.0f32; WIDTH]; SEEN]; SEEN]; WIDTH];
        for (channel, block) in blocks[..channels].iter_mut().enumerate() {
            let mut outputs = MaybeUninit::<Block>::uninit();
            let dy = dy.wrapping_add(channel * extents[0] * extents[1]);
            // SAFETY: the caller's promise.
            unsafe {
                read::<OUTPUTS>((dy, image, extents), spots, outputs.as_mut_ptr());
                let from = Places::new(outputs.as_ptr().cast(), SEEN, WIDTH);
                both::<M>(from, Places::new(block.as_mut_ptr().cast(), SEEN, WIDTH));
            }
        }
        for place in 0..PLACES {
            for channel in (0..WIDTH).step_by(4) {
                for tile in (0..WIDTH).step_by(4) {
                    let of_channel = |i: usize| {
                        let tiles = &blocks[channel + i].as_flattened()[place];
                        std::array::from_fn(|j| tiles[tile + j])
                    };
                    let tiles = transposed(std::array::from_fn(of_channel));
                    for (i, channels) in tiles.into_iter().enumerate() {
                        let at = place * pitch + (tile + i) * WIDTH + channel;
                        // SAFETY: the caller's promise.
                        unsafe { to.add(at).cast::<[f32; 4]>().write_unaligned(channels) };
                    }
                }
            }
        }
    }
}

wide! {
    /// Writes the gradients of windows, or adds them, of so many input channels and lanes. Of `dw` are
    /// told the first window, and elements from one output channel to the next.
    ///
    /// # Safety
    /// Nobody else uses these windows, which are written where they are added to.
    unsafe fn windows<M: Along>(
        products: *const Products,
        extents: [usize; 2],
        add: bool,
        dw: (*mut f32, usize),
    ) {
        let [inputs, channels] = extents;
        for input in 0..inputs {
            for part in (0..channels).step_by(WIDTH) {
                let mut block = MaybeUninit::<[[[f32; WIDTH]; TAPS]; TAPS]>::uninit();
                // SAFETY: the caller's promise; all lanes of all taps are written.
                let taps = unsafe {
                    let first = products.cast::<f32>().add(input * LANES + part);
                    let to = Places::new(block.as_mut_ptr().cast(), TAPS, WIDTH);
                    both::<M>(Places::new(first, SEEN, ROWS * LANES), to);
                    block.assume_init_ref().as_flattened()
                };
                for lane in 0..WIDTH.min(channels - part) {
                    let to = dw.0.wrapping_add((part + lane) * dw.1 + input * TAPS * TAPS);
                    for (tap, lanes) in taps.iter().enumerate() {
                        // SAFETY: a tap of this window.
                        unsafe {
                            let to = to.add(tap);
                            *to = if add { *to + lanes[lane] } else { lanes[lane] };
                        }
                    }
                }
            }
        }
    }
}
