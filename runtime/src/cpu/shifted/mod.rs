//! Convolutions as products with shifted views of their input (`arenic_backends::cpu::shifted` has how
//! and why): `Conv`, `ConvTranspose` and, in `weight`, the gradient of weights.
//!
//! A block of input channels is copied to its grid, and its weights are packed, output channels side by
//! side. Tasks then take outputs, and all output channels for each, while what the outputs see is in the
//! core's nearest cache. An element's terms are added in the order of channels and taps, and so are the
//! sums of blocks, which follow from channels and taps alone: tiles have no say.

mod fill;
mod weight;

use super::address::Shared;
use super::isa::Isa;
use super::lane_sums::{POINTS, STRIPE, Sums, Terms, add_terms, lane_of};
use super::tasks::{both, for_each};
use crate::kernel::Call;
use arenic_backends::cpu::shifted::{Grid, LANES, Placed, Shifted, lanes};
use arenic_ir::op::MAX_RANK;
use fill::{Planes, Tile, fill};
pub(super) use weight::gradient;

/// Tasks that suffice for many threads.
const ENOUGH: usize = 16;

/// Outputs for which a panel of weights is read from a farther cache once.
const OUTPUTS: usize = 64;

/// Weights: elements from one output channel, input channel and group to the next.
#[derive(Clone, Copy)]
struct Weights {
    ptr: *const f32,
    channel: usize,
    input: usize,
    group: usize,
}

// SAFETY: an operand, which is only read.
unsafe impl Sync for Weights {}

/// A call's operands, for parts of a convolution.
struct Layer<'a> {
    isa: Isa,
    x: Planes,
    /// Input channels of one group.
    inputs: usize,
    images: usize,
    groups: usize,
    weights: Weights,
    bias: Option<&'a [f32]>,
    y: Shared<f32>,
    /// Elements of one channel of the result.
    size: usize,
}

/// Runs a `Conv`.
pub(super) fn conv(plan: &Shifted, groups: usize, call: &Call) {
    let (inputs, taps) = (call.inputs[1].ty().shape[1], plan.grid.taps.len());
    let strides = [inputs * taps, taps, plan.channels * inputs * taps];
    Layer::new(groups, inputs, strides, call).run(plan, call);
}

/// Runs a `ConvTranspose`.
pub(super) fn conv_transpose(parts: &[Shifted], groups: usize, call: &Call) {
    let w = &call.inputs[1].ty().shape;
    let (inputs, taps) = (w[0] / groups, w[2..].iter().product::<usize>());
    let strides = [taps, w[1] * taps, inputs * w[1] * taps];
    let layer = Layer::new(groups, inputs, strides, call);
    parts.iter().for_each(|part| layer.run(part, call));
}

impl<'a> Layer<'a> {
    fn new(
        groups: usize,
        inputs: usize,
        [channel, input, group]: [usize; 3],
        call: &'a Call,
    ) -> Layer<'a> {
        let (x, y) = (&call.inputs[0], call.outputs[0].as_ref());
        let plane = x.ty().shape[2..].iter().product();
        Layer {
            isa: Isa::of_machine(),
            x: Planes { x: x.ptr(), channel: plane, image: groups * inputs * plane },
            inputs,
            images: x.ty().shape[0],
            groups,
            weights: Weights { ptr: call.inputs[1].ptr(), channel, input, group },
            // SAFETY: convolutions have no in-place pairs.
            bias: call.inputs.get(2).map(|b| unsafe { b.slice() }),
            y: Shared::new(y.map_or(std::ptr::null_mut(), |y| y.ptr())),
            size: y.map_or(0, |y| y.ty().shape[2..].iter().product()),
        }
    }

    fn run(&self, plan: &Shifted, call: &Call) {
        // SAFETY: parts take turns with the scratch, each for the time of this call alone.
        let scratch = unsafe { call.scratch.slice_mut(plan.elements()) };
        let (packed, grids) = scratch.split_at_mut(plan.weights());
        let (packed, grids) = (Shared::new(packed.as_mut_ptr()), Shared::new(grids.as_mut_ptr()));
        let rows = plan.grid.axes[0].output.max(1);
        for group in 0..self.groups {
            // Where nothing is multiplied there is the bias, or zero.
            let inputs = if plan.grid.taps.is_empty() { 1 } else { self.inputs.max(1) };
            for first in (0..inputs).step_by(plan.inputs) {
                let count = plan.inputs.min(self.inputs - first);
                for image in (0..self.images).step_by(plan.images) {
                    for row in (0..plan.rows).step_by(rows) {
                        let tile = Tile {
                            images: (image, plan.images.min(self.images - image)),
                            rows: (row, rows.min(plan.rows - row)),
                        };
                        let from = self.x.of(0, group * self.inputs + first);
                        let from = Planes { x: from, ..self.x };
                        // SAFETY: channels of the operand; the scratch has room for as many images.
                        let fill = || unsafe { fill(&plan.grid, from, tile, count, grids) };
                        if image == 0 && row == 0 {
                            let pack = || self.pack(plan, (group, first, count), packed);
                            both(plan.elements(), fill, pack);
                        } else {
                            fill();
                        }
                        self.multiply(plan, (group, first, count), tile, (packed, grids));
                    }
                }
            }
        }
    }

    /// Packs the weights of `count` input channels from `first` on.
    fn pack(&self, plan: &Shifted, (group, first, count): (usize, usize, usize), to: Shared<f32>) {
        let (taps, lanes) = (&plan.grid.taps, lanes(plan.channels));
        let (panels, terms) = (plan.channels.div_ceil(lanes), count * taps.len());
        for_each(panels, panels * lanes * terms, |panel| {
            // SAFETY: each unit has a panel of its own.
            let to = unsafe { to.slice(panel * terms * lanes, terms * lanes) };
            for lane in 0..lanes {
                let channel = panel * lanes + lane;
                let w = self.weights;
                let at = group * w.group + channel * w.channel + first * w.input;
                let mut to = lane_of(to, terms * STRIPE, lane);
                for input in 0..count {
                    for (tap, to) in taps.iter().zip(to.by_ref()) {
                        *to = if channel < plan.channels {
                            // SAFETY: a weight of the operand.
                            unsafe { *w.ptr.add(at + input * w.input + tap.weight) }
                        } else {
                            0.0
                        };
                    }
                }
            }
        });
    }

    /// Adds what a tile's block of channels gives to its outputs, or begins them.
    fn multiply(
        &self,
        plan: &Shifted,
        (group, first, count): (usize, usize, usize),
        tile: Tile,
        (packed, grids): (Shared<f32>, Shared<f32>),
    ) {
        let (grid, lanes) = (&plan.grid, lanes(plan.channels));
        let region = grid.region(tile.images.1);
        let taps: Vec<usize> = grid.taps.iter().map(|t| t.phase * region + t.offset).collect();
        let channels: Vec<usize> = (0..count).map(|c| c * grid.phases * region).collect();
        let terms = count * taps.len();
        let outputs = Outputs::new(grid, tile);
        let (strips, panels) = (outputs.count.div_ceil(OUTPUTS), plan.channels.div_ceil(lanes));
        // Strips first: all panels of a strip find what it sees in the cache.
        let long = strips.div_ceil(4 * ENOUGH).max(1);
        let across = strips.div_ceil(long);
        let high = panels.div_ceil(ENOUGH.div_ceil(across.max(1))).max(1);
        let down = panels.div_ceil(high);
        let work = outputs.count * panels * lanes * terms / 16;
        for_each(across * down, work, |task| {
            let (top, left) = (task / across * high, task % across * long);
            for strip in left..(left + long).min(strips) {
                let mut places = [Place::default(); OUTPUTS];
                let mut sums = [[0.0; LANES]; POINTS];
                let image = self.size * self.groups * plan.channels;
                let places = outputs.find(strip * OUTPUTS, &plan.placed, image, &mut places);
                for panel in top..(top + high).min(panels) {
                    let channel = panel * lanes;
                    let rows = lanes.min(plan.channels - channel);
                    let channel = group * plan.channels + channel;
                    let mut start = [0.0; LANES];
                    if let Some(bias) = self.bias.filter(|_| first == 0) {
                        start[..rows].copy_from_slice(&bias[channel..][..rows]);
                    }
                    let y = self.y.ptr().wrapping_add(channel * self.size);
                    for places in places.chunks(POINTS) {
                        let seen = |p: usize| places[p.min(places.len() - 1)].grid;
                        let t = Terms {
                            start: &start,
                            panel: packed.ptr().wrapping_add(panel * terms * lanes),
                            stripe: terms * STRIPE,
                            lanes,
                            points: std::array::from_fn(|p| {
                                grids.ptr().cast_const().wrapping_add(seen(p))
                            }),
                            starts: &channels,
                            offsets: &taps,
                        };
                        // SAFETY: the machine's own instructions; the grid has every element that a tap
                        // sees at an output, and these are outputs of this task alone.
                        unsafe {
                            add_terms(self.isa, t, &mut sums);
                            write(&sums, places, first > 0, (y, self.size), rows);
                        }
                    }
                }
            }
        });
    }
}

/// Writes sums of `rows` neighbouring channels, `size` elements apart, or adds them.
///
/// # Safety
/// The places are elements of channels, which nobody else uses; they are written where they are added
/// to.
unsafe fn write(
    sums: &Sums,
    places: &[Place],
    add: bool,
    (y, size): (*mut f32, usize),
    rows: usize,
) {
    let first = places[0].result;
    let dense = places.len() == POINTS && places[POINTS - 1].result == first + POINTS - 1;
    for row in 0..rows {
        let y = y.wrapping_add(row * size);
        // SAFETY: the caller's promise.
        unsafe {
            if dense {
                let to = y.add(first).cast::<[f32; POINTS]>();
                let mut all: [f32; POINTS] = std::array::from_fn(|p| sums[p][row]);
                if add {
                    let before = to.read_unaligned();
                    all = std::array::from_fn(|p| before[p] + all[p]);
                }
                to.write_unaligned(all);
            } else {
                for (sums, place) in sums.iter().zip(places) {
                    let to = y.add(place.result);
                    *to = if add { *to + sums[row] } else { sums[row] };
                }
            }
        }
    }
}

/// Where an output is.
#[derive(Clone, Copy, Default)]
struct Place {
    /// What a tap of offset 0 sees, of the first channel.
    grid: usize,
    /// The element of the first channel of the result.
    result: usize,
}

/// The outputs of a tile in order: images, then rows.
struct Outputs<'g> {
    grid: &'g Grid,
    tile: Tile,
    strides: Vec<usize>,
    /// Outputs of one image, and of all.
    image: usize,
    count: usize,
}

impl<'g> Outputs<'g> {
    fn new(grid: &'g Grid, tile: Tile) -> Self {
        let image = grid.axes[1..].iter().map(|axis| axis.output).product::<usize>() * tile.rows.1;
        Outputs { grid, tile, strides: grid.strides(), image, count: image * tile.images.1 }
    }

    /// Finds outputs from the `first` on, as many as there are places. An image of the result has
    /// `size` elements.
    fn find<'p>(
        &self,
        first: usize,
        placed: &[Placed],
        size: usize,
        places: &'p mut [Place],
    ) -> &'p [Place] {
        let rank = self.grid.axes.len();
        let extent = |a: usize| if a == 0 { self.tile.rows.1 } else { self.grid.axes[a].output };
        let (mut image, mut rest, mut at) = (first / self.image, first % self.image, [0; MAX_RANK]);
        for a in (0..rank).rev() {
            at[a] = rest % extent(a);
            rest /= extent(a);
        }
        let n = places.len().min(self.count - first);
        for place in &mut places[..n] {
            let mut result = 0;
            place.grid = image * self.grid.plane;
            for a in 0..rank {
                let row = if a == 0 { self.tile.rows.0 } else { 0 };
                place.grid += at[a] * self.strides[a];
                let along = placed[a];
                result = result * along.extent + along.first + (at[a] + row) * along.step;
            }
            place.result = (self.tile.images.0 + image) * size + result;
            for a in (0..rank).rev() {
                at[a] += 1;
                if at[a] < extent(a) {
                    break;
                }
                at[a] = 0;
                image += usize::from(a == 0);
            }
        }
        &places[..n]
    }
}
