//! Convolutions as products with shifted views of their input.
//!
//! The input is copied, padding and all, into a grid where each tap of the window is a constant
//! distance: what a tap sees at an output is the grid's element there, plus that distance. So a product
//! of weights and columns reads its columns in place, and none are built (im2col). A step of more than
//! one element splits the grid into phases, in which neighbours are one step apart.
//!
//! Sources: Zhang, Franchetti, Low 2018 (direct convolutions at full speed without columns); Dukhan 2019
//! (indirect convolution). The gradient of a strided convolution is one convolution of step one for
//! each of its phases, as in a polyphase filter.

use arenic_ir::op::Window;
use arenic_ir::types::{DType, TensorType};

/// Most channels that are summed side by side, one a lane of a vector.
pub const LANES: usize = 48;

/// Least channels that are worth it: half of the narrowest vectors.
const LEAST: usize = 8;

/// Outputs over which a gradient of weights sums before it adds to its result, in whole rows: few enough
/// for a core's cache and the precision of a long sum.
const OUTPUTS_AT_ONCE: usize = 512;

/// Channels that are summed side by side: as many vectors as leave the fewest lanes empty.
pub fn lanes(channels: usize) -> usize {
    match channels {
        0..=16 => 16,
        17..=32 => 32,
        _ if channels.div_ceil(48) * 48 <= channels.div_ceil(32) * 32 => LANES,
        _ => 32,
    }
}

/// Channels, of the last panel those that are none, too.
pub(super) fn padded(channels: usize) -> usize {
    channels.div_ceil(lanes(channels)).saturating_mul(lanes(channels))
}

/// Terms that a convolution sums before it adds them to its result, likewise.
const TERMS_AT_ONCE: usize = 768;

/// Elements that the grids of one tile aim at, at least and at most: an eighth of the input, so that they
/// are little beside the tensors of a step, and a part of a core's second cache.
const GRIDS: [usize; 2] = [8 << 10, 192 << 10];

/// The most where the result is a large gradient of weights, which every tile reads and writes.
const MOST_GRIDS: usize = 768 << 10;

/// Taps of the largest window that is taken.
const TAPS: usize = 128;

/// Phases of the largest step that is taken.
const PHASES: usize = 16;

/// A tap along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AxisTap {
    /// Its place in the window.
    weight: usize,
    /// Its phase, among those in use.
    phase: usize,
    /// Elements of the grid between an output position and what the tap sees there.
    shift: usize,
}

/// One spatial axis of a grid. Output `o` sees source elements `o · step + first` and later ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Extent of the source.
    pub source: usize,
    /// Extent of the output, of a tile where the axis is cut.
    pub output: usize,
    /// Source elements from one output position to the next.
    pub step: usize,
    /// The first source element that any tap sees at output 0; negative in the padding.
    pub first: isize,
    /// Remainders by `step` of what taps see, beyond `first`: there is a grid for each.
    pub phases: Vec<usize>,
    /// Extent of the grid.
    pub extent: usize,
    taps: Vec<AxisTap>,
}

impl Axis {
    /// `seen` are the source elements that the taps see at output 0.
    fn new(source: usize, output: usize, step: usize, seen: &[(usize, isize)]) -> Axis {
        let first = seen.iter().map(|&(_, at)| at).min().unwrap_or(0);
        let beyond = |at: isize| (at - first) as usize;
        let mut phases: Vec<usize> = seen.iter().map(|&(_, at)| beyond(at) % step).collect();
        phases.sort_unstable();
        phases.dedup();
        let tap = |&(weight, at): &(usize, isize)| AxisTap {
            weight,
            phase: phases.partition_point(|&phase| phase < beyond(at) % step),
            shift: beyond(at) / step,
        };
        let taps: Vec<AxisTap> = seen.iter().map(tap).collect();
        let mut axis = Axis { source, output, step, first, phases, extent: output, taps };
        axis.extent += axis.reach();
        axis
    }

    fn reach(&self) -> usize {
        self.taps.iter().map(|tap| tap.shift).max().unwrap_or(0)
    }

    /// The axis of a tile of at most so many outputs.
    fn cut(&self, output: usize) -> Axis {
        let output = self.output.min(output);
        Axis { output, extent: output + self.reach(), ..self.clone() }
    }
}

/// A tap of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tap {
    /// Its place among the window's weights.
    pub weight: usize,
    /// The phase of the grid that it sees.
    pub phase: usize,
    /// Elements of the grid from an output position to what it sees there.
    pub offset: usize,
}

/// The layout of one channel: for each phase the images of a tile, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Spatial axes; the first may be cut into tiles.
    pub axes: Vec<Axis>,
    /// Elements of one image in one phase.
    pub plane: usize,
    /// Phases of all axes.
    pub phases: usize,
    /// Taps in the order of their weights.
    pub taps: Vec<Tap>,
}

impl Grid {
    fn new(axes: Vec<Axis>) -> Grid {
        let plane = product(axes.iter().map(|axis| axis.extent));
        let phases = product(axes.iter().map(|axis| axis.phases.len()));
        let mut taps = vec![Tap { weight: 0, phase: 0, offset: 0 }];
        for (a, axis) in axes.iter().enumerate() {
            let stride = product(axes[a + 1..].iter().map(|axis| axis.extent));
            let along = |tap: &Tap| {
                let (tap, last) = (*tap, stride);
                axis.taps.iter().map(move |at| Tap {
                    weight: tap.weight + at.weight,
                    phase: tap.phase * axis.phases.len() + at.phase,
                    offset: tap.offset.saturating_add(at.shift.saturating_mul(last)),
                })
            };
            taps = taps.iter().flat_map(along).collect();
        }
        taps.sort_unstable_by_key(|tap| tap.weight);
        Grid { axes, plane, phases, taps }
    }

    fn cut(&self, rows: usize) -> Grid {
        let mut axes = self.axes.clone();
        axes[0] = axes[0].cut(rows);
        Grid::new(axes)
    }

    /// Elements of one phase of one channel for a tile of so many images.
    pub fn region(&self, images: usize) -> usize {
        images.saturating_mul(self.plane)
    }

    /// Elements of a channel for a tile of so many images.
    fn channel(&self, images: usize) -> usize {
        self.region(images).saturating_mul(self.phases)
    }

    /// Outputs of one image of a tile.
    pub fn outputs(&self) -> usize {
        product(self.axes.iter().map(|axis| axis.output))
    }

    /// Elements of the grid from one output to the next, by axis.
    pub fn strides(&self) -> Vec<usize> {
        let inner = |a: usize| product(self.axes[a + 1..].iter().map(|axis| axis.extent));
        (0..self.axes.len()).map(inner).collect()
    }

    /// True where it is not for the most part padding.
    fn is_dense(&self) -> bool {
        self.plane <= self.outputs().saturating_mul(4)
    }
}

/// See [`GRIDS`].
fn room(x: &TensorType) -> usize {
    (x.elements() / 8).clamp(GRIDS[0], GRIDS[1])
}

fn product(extents: impl Iterator<Item = usize>) -> usize {
    extents.fold(1, usize::saturating_mul)
}

/// Images and outputs along the first axis of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    images: usize,
    rows: usize,
}

/// The largest tile whose grids take `room` elements, where `elements` gives what a tile takes.
fn tile(images: usize, rows: usize, room: usize, elements: impl Fn(Tile) -> usize) -> Tile {
    let one = elements(Tile { images: 1, rows });
    if one <= room {
        // Tiles of equal size: a last one of a few images would serve its threads badly.
        let most = (room / one.max(1)).clamp(1, images.max(1));
        return Tile { images: images.div_ceil(images.div_ceil(most).max(1)).max(1), rows };
    }
    let fits = |rows: &usize| elements(Tile { images: 1, rows: *rows }) <= room;
    let pieces = (2..=rows.max(2)).map(|pieces| rows.div_ceil(pieces));
    Tile { images: 1, rows: pieces.take(64).find(fits).unwrap_or(rows.div_ceil(64)).max(1) }
}

/// Where an output lies along an axis of the result: every `step`-th element from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The result's element of output 0.
    pub first: usize,
    /// Elements from one output to the next.
    pub step: usize,
    /// Extent of the result.
    pub extent: usize,
}

/// A convolution by shifted views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shifted {
    /// The grid of a tile.
    pub grid: Grid,
    /// Images of a tile.
    pub images: usize,
    /// Outputs along the first axis, of all tiles.
    pub rows: usize,
    /// Input channels of a block.
    pub inputs: usize,
    /// Output channels of one group.
    pub channels: usize,
    /// Where outputs go, by axis.
    pub placed: Vec<Placed>,
}

impl Shifted {
    /// For `x` of so many input channels a group, and output channels.
    fn new(
        grid: &Grid,
        placed: Vec<Placed>,
        x: &TensorType,
        [inputs, channels]: [usize; 2],
    ) -> Shifted {
        let rows = grid.axes[0].output;
        // Output channels have no say: some of them get the bits that they get among all.
        let blocks = inputs.div_ceil((TERMS_AT_ONCE / grid.taps.len().max(1)).max(1)).max(1);
        let inputs = inputs.div_ceil(blocks).max(1);
        let taken = |t: Tile| grid.cut(t.rows).channel(t.images).saturating_mul(inputs);
        let tile = tile(x.shape[0], rows, room(x), taken);
        Shifted { grid: grid.cut(tile.rows), images: tile.images, rows, inputs, channels, placed }
    }

    /// Elements of a block of packed weights.
    pub fn weights(&self) -> usize {
        padded(self.channels).saturating_mul(self.inputs).saturating_mul(self.grid.taps.len())
    }

    /// Elements of scratch: packed weights and grids.
    pub fn elements(&self) -> usize {
        let grids = self.grid.channel(self.images).saturating_mul(self.inputs);
        self.weights().saturating_add(grids)
    }
}

/// True for windows, types and channels that are worth a grid.
fn fits(window: &Window, dtype: DType, channels: usize) -> bool {
    dtype == DType::F32
        && channels >= LEAST
        && window.taps() <= TAPS
        && product(window.strides.iter().copied()) <= PHASES
}

/// What the taps of an axis see at output 0.
fn seen(window: &Window, axis: usize) -> Vec<(usize, isize)> {
    let weight: usize = window.kernel[axis + 1..].iter().product();
    let at = |t: usize| (t * window.dilations[axis]) as isize - window.pads_begin[axis] as isize;
    (0..window.kernel[axis]).map(|t| (t * weight, at(t))).collect()
}

/// The grid of a window that slides over `x`.
fn grid(window: &Window, x: &TensorType, y: &TensorType) -> Grid {
    let axis =
        |a: usize| Axis::new(x.shape[2 + a], y.shape[2 + a], window.strides[a], &seen(window, a));
    Grid::new((0..window.rank()).map(axis).collect())
}

/// How a convolution goes by shifted views, if it is worth it.
pub fn conv(window: &Window, group: usize, [x, w, y]: [&TensorType; 3]) -> Option<Shifted> {
    let channels = w.shape[0] / group;
    if !fits(window, y.dtype, channels) {
        return None;
    }
    let grid = grid(window, x, y);
    let placed = y.shape[2..].iter().map(|&extent| Placed { first: 0, step: 1, extent }).collect();
    let dense = grid.is_dense();
    dense.then(|| Shifted::new(&grid, placed, x, [w.shape[1], channels]))
}

/// How a transposed convolution goes by shifted views, if it is worth it: a convolution for each
/// remainder of `y`'s positions by the strides.
pub fn conv_transpose(
    window: &Window,
    group: usize,
    [x, w, y]: [&TensorType; 3],
) -> Option<Vec<Shifted>> {
    let (inputs, channels) = (x.shape[1] / group, w.shape[1]);
    if !fits(window, y.dtype, channels) {
        return None;
    }
    let mut parts: Vec<Vec<(Axis, Placed)>> = vec![Vec::new()];
    for a in 0..window.rank() {
        let (step, extent) = (window.strides[a], y.shape[2 + a]);
        let of_remainder = |first: usize| {
            // The window slides over `y`: element `first` meets a tap where `x` has an element.
            let at = |(weight, at): (usize, isize)| (weight, first as isize - at);
            let met = |&(_, at): &(usize, isize)| at.rem_euclid(step as isize) == 0;
            let seen: Vec<_> = seen(window, a).into_iter().map(at).filter(met).collect();
            let seen: Vec<_> = seen
                .into_iter()
                .map(|(weight, at)| (weight, at.div_euclid(step as isize)))
                .collect();
            let output = extent.saturating_sub(first).div_ceil(step);
            (Axis::new(x.shape[2 + a], output, 1, &seen), Placed { first, step, extent })
        };
        let along: Vec<_> = (0..step.min(extent)).map(of_remainder).collect();
        parts = parts
            .iter()
            .flat_map(|part| {
                along.iter().map(|at| [part.as_slice(), std::slice::from_ref(at)].concat())
            })
            .collect();
    }
    let part = |part: Vec<(Axis, Placed)>| {
        let (axes, placed) = part.into_iter().unzip();
        let grid = Grid::new(axes);
        let dense = grid.is_dense();
        dense.then(|| Shifted::new(&grid, placed, x, [inputs, channels]))
    };
    parts.into_iter().map(part).collect()
}

/// The gradient of a convolution's weights by shifted views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShiftedWeight {
    /// The grid of a tile of the input.
    pub grid: Grid,
    /// Images of a tile.
    pub images: usize,
    /// Outputs along the first axis, of all tiles.
    pub rows: usize,
    /// Input channels of one group.
    pub inputs: usize,
    /// Output channels of one group.
    pub channels: usize,
}

impl ShiftedWeight {
    /// Rows of outputs, along the last axis, that are summed before they are added to the result.
    pub fn block(&self) -> usize {
        let row = self.grid.axes.last().map_or(1, |axis| axis.output);
        OUTPUTS_AT_ONCE.div_ceil(row.max(1))
    }

    /// Elements of the packed gradient of the result in a tile.
    pub fn packed(&self) -> usize {
        let outputs = self.images.saturating_mul(self.grid.outputs());
        outputs.saturating_mul(padded(self.channels))
    }

    /// Elements of scratch: the grids of the input, and the packed gradient of the result.
    pub fn elements(&self) -> usize {
        let inputs = self.inputs.saturating_mul(self.grid.channel(self.images));
        inputs.saturating_add(self.packed())
    }
}

/// How the gradient of a convolution's weights goes by shifted views, if it is worth it.
pub fn conv_weight(
    window: &Window,
    group: usize,
    [x, dy]: [&TensorType; 2],
) -> Option<ShiftedWeight> {
    let (inputs, channels) = (x.shape[1] / group, dy.shape[1] / group);
    if !fits(window, dy.dtype, channels) {
        return None;
    }
    let grid = grid(window, x, dy);
    if !grid.is_dense() {
        return None;
    }
    let rows = grid.axes[0].output;
    let of = |t: Tile| {
        let (grid, images) = (grid.cut(t.rows), t.images);
        ShiftedWeight { grid, images, rows, inputs, channels }
    };
    let gradient = inputs.saturating_mul(channels).saturating_mul(window.taps());
    let room = gradient.clamp(room(x), MOST_GRIDS);
    Some(of(tile(x.shape[0], rows, room, |t| of(t).elements())))
}
