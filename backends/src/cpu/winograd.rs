//! Convolutions by Winograd's minimal filtering, F(4 × 4, 3 × 3).
//!
//! A tile of 4 × 4 outputs sees 6 × 6 inputs. Both the window and what a tile sees are evaluated at 6 × 6
//! points (0, ±3/4, ±3/2 and infinity along each axis), where a convolution is a product for each point
//! over all channels: 36 multiplications for 144. The outputs are interpolated from these products. The
//! points are those whose results are about as exact as plain sums are: rounding adds twice the error of a
//! long sum of `f32` (Lavin and Gray 2016, arXiv:1509.09308; Barabasz et al. 2018, arXiv:1803.10986, on
//! points).
//!
//! A tile's products sum over all channels in one order, so that neither how many tiles nor how many
//! channels are at work at once changes a bit.

use super::shifted::lanes;
use arenic_ir::op::Window;
use arenic_ir::types::{DType, TensorType};

/// Extent of a window, of a tile's outputs, and of what it sees.
pub const TAPS: usize = 3;
/// See [`TAPS`].
pub const OUTPUTS: usize = 4;
/// See [`TAPS`].
pub const SEEN: usize = OUTPUTS + TAPS - 1;

/// Points at which a tile is evaluated.
pub const PLACES: usize = SEEN * SEEN;

/// Lanes that a transform works on at once.
pub const WIDTH: usize = 16;

/// Elements of scratch at most; nor is it more than operands and result and a quarter of them.
const ROOM: usize = 3 << 19;

/// Multiplications that take the time of transforming what one tile has of one channel.
const OF_TILE: usize = 1500;

/// The same of one window.
const OF_WINDOW: usize = 900;

/// Tasks that suffice for many threads.
const TASKS: usize = 16;

/// Tasks that get room of their own, if there is enough: more threads help with these.
const SLOTS: usize = 4;

/// Terms that are summed one by one: input channels, or tiles of a gradient of weights. Longer sums round
/// more.
const SUMMED: usize = 128;

/// Least channels on either side.
const LEAST: usize = 16;

/// The tiles of a convolution's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Images.
    pub images: usize,
    /// Tiles of one image along each axis.
    pub extents: [usize; 2],
    /// Extents of the source and of the result.
    pub source: [usize; 2],
    /// See `source`.
    pub output: [usize; 2],
    /// What the first tap sees at output 0; negative in the padding.
    pub first: [isize; 2],
}

impl Tiles {
    fn new(images: usize, source: &[usize], output: &[usize], first: [isize; 2]) -> Tiles {
        let (source, output) = ([source[0], source[1]], [output[0], output[1]]);
        let extents = output.map(|extent| extent.div_ceil(OUTPUTS));
        Tiles { images, extents, source, output, first }
    }

    /// Tiles of all images.
    pub fn count(&self) -> usize {
        self.images.saturating_mul(self.extents[0]).saturating_mul(self.extents[1])
    }

    /// Image of a tile, and its first output along each axis.
    pub fn at(&self, tile: usize) -> (usize, [usize; 2]) {
        let [down, across] = self.extents;
        let (image, tile) = (tile / (down * across), tile % (down * across));
        (image, [tile / across * OUTPUTS, tile % across * OUTPUTS])
    }

    /// Outputs of all images.
    fn outputs(&self) -> usize {
        self.images.saturating_mul(self.output[0]).saturating_mul(self.output[1])
    }

    /// Elements that scratch may have beside so many channels and their weights.
    fn room(&self, inputs: usize, channels: usize) -> usize {
        let planes = |[height, width]: [usize; 2], channels: usize| {
            self.images.saturating_mul(height).saturating_mul(width).saturating_mul(channels)
        };
        let (x, y) = (planes(self.source, inputs), planes(self.output, channels));
        let weights = inputs.saturating_mul(channels).saturating_mul(TAPS * TAPS);
        let operands = x.saturating_add(y).saturating_add(weights);
        operands.saturating_add(operands / 4).min(ROOM)
    }

    /// False where there are too few tiles or channels.
    fn suffice(&self, inputs: usize, channels: usize) -> bool {
        inputs.min(channels) >= LEAST && self.count() >= WIDTH
    }

    /// True where products at points are worth it, with transforms of what so many tiles have of one
    /// channel, and of so many windows.
    fn pays(&self, [inputs, channels]: [usize; 2], transforms: [usize; 2]) -> bool {
        let pairs = inputs.saturating_mul(channels);
        let products = PLACES.saturating_mul(pairs).saturating_mul(self.count());
        let plain = (TAPS * TAPS).saturating_mul(pairs).saturating_mul(self.outputs());
        products.saturating_add(cost(transforms)) < plain
    }
}

/// Multiplications that take the time of transforms, of what tiles have of one channel and of windows.
fn cost([tiles, windows]: [usize; 2]) -> usize {
    OF_TILE.saturating_mul(tiles).saturating_add(OF_WINDOW.saturating_mul(windows))
}

/// The side of a convolution's products that is transformed once for all tasks. What a task multiplies it
/// by, it transforms itself, into room of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Weights; a task transforms what one panel of tiles sees.
    Weights,
    /// What tiles see; a task transforms the weights of [`WIDTH`] output channels.
    Tiles,
}

/// A convolution by tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Winograd {
    /// The tiles.
    pub tiles: Tiles,
    /// Input and output channels of one group.
    pub inputs: usize,
    /// See `inputs`.
    pub channels: usize,
    /// Tiles side by side in a product: a panel.
    pub lanes: usize,
    /// What is transformed for all tasks.
    pub kept: Kept,
    /// Output channels, or panels of tiles, that are kept at once.
    pub some: usize,
    /// Tasks that have room of their own.
    pub slots: usize,
}

impl Winograd {
    fn new(tiles: Tiles, inputs: usize, channels: usize) -> Option<Winograd> {
        if !tiles.suffice(inputs, channels) {
            return None;
        }
        let way = [lanes(tiles.count()), WIDTH].into_iter().find_map(|lanes| {
            let ways = [Kept::Weights, Kept::Tiles].into_iter().flat_map(|kept| {
                let rounds = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64].into_iter();
                rounds.filter_map(move |n| Winograd::of(tiles, [inputs, channels], lanes, kept, n))
            });
            let key =
                |way: &Winograd| (cost(way.transforms()), way.tasks() < TASKS, way.elements());
            ways.min_by_key(key)
        });
        way.filter(|way| tiles.pays([inputs, channels], way.transforms()))
    }

    /// The way that keeps one side in so many rounds.
    fn of(
        tiles: Tiles,
        [inputs, channels]: [usize; 2],
        lanes: usize,
        kept: Kept,
        rounds: usize,
    ) -> Option<Winograd> {
        let mut way = Winograd { tiles, inputs, channels, lanes, kept, some: 0, slots: 0 };
        way.some = match kept {
            Kept::Weights => channels.div_ceil(rounds).next_multiple_of(WIDTH),
            Kept::Tiles => way.panels().div_ceil(rounds),
        };
        let left = tiles.room(inputs, channels).checked_sub(way.elements())?;
        let (units, tasks) = match kept {
            Kept::Weights => (way.panels(), way.some / WIDTH),
            Kept::Tiles => (channels.div_ceil(WIDTH), way.some),
        };
        let wanted = SLOTS.max(TASKS.div_ceil(tasks.max(1)));
        way.slots = wanted.min(units).min(left / way.slot());
        (way.slots > 0).then_some(way)
    }

    /// Panels of all tiles.
    pub fn panels(&self) -> usize {
        self.tiles.count().div_ceil(self.lanes)
    }

    /// How often what a tile has of one channel is transformed, and a window.
    fn transforms(&self) -> [usize; 2] {
        let (seen, windows) = match self.kept {
            Kept::Weights => (self.channels.div_ceil(self.some), 1),
            Kept::Tiles => (1, self.panels().div_ceil(self.some)),
        };
        let of_tile = self.inputs.saturating_mul(seen).saturating_add(self.channels);
        let pairs = self.inputs.saturating_mul(self.channels);
        [self.tiles.count().saturating_mul(of_tile), pairs.saturating_mul(windows)]
    }

    /// Products of a panel and [`WIDTH`] channels that may go at once.
    fn tasks(&self) -> usize {
        self.slots.saturating_mul(match self.kept {
            Kept::Weights => self.some / WIDTH,
            Kept::Tiles => self.some,
        })
    }

    /// Input channels that are summed one by one; their sums are added in order.
    pub fn summed(&self) -> usize {
        self.inputs.div_ceil(self.inputs.div_ceil(SUMMED))
    }

    /// Elements from one point of a panel to the next: points of one tile and channel would else share few
    /// sets of a cache.
    pub fn panel(&self) -> usize {
        self.inputs.saturating_mul(self.lanes).saturating_add(WIDTH)
    }

    /// The same for the weights of so many output channels.
    pub fn weights(&self, channels: usize) -> usize {
        let inputs = self.inputs.next_multiple_of(WIDTH);
        inputs.saturating_mul(channels.next_multiple_of(WIDTH)).saturating_add(WIDTH)
    }

    /// Elements that are kept.
    pub fn keeps(&self) -> usize {
        PLACES.saturating_mul(match self.kept {
            Kept::Weights => self.weights(self.some),
            Kept::Tiles => self.panel().saturating_mul(self.some),
        })
    }

    /// Elements of a task's own room.
    pub fn slot(&self) -> usize {
        PLACES.saturating_mul(match self.kept {
            Kept::Weights => self.panel(),
            Kept::Tiles => self.weights(WIDTH),
        })
    }

    /// Elements of scratch: what is kept, and the tasks' rooms.
    pub fn elements(&self) -> usize {
        self.keeps().saturating_add(self.slots.saturating_mul(self.slot()))
    }
}

/// True for windows of 3 × 3 taps that go step by step.
fn fits(window: &Window, dtype: DType) -> bool {
    dtype == DType::F32
        && window.kernel[..] == [TAPS; 2]
        && window.strides[..] == [1; 2]
        && window.dilations[..] == [1; 2]
}

/// How a convolution goes by tiles, if it is worth it.
pub fn conv(window: &Window, group: usize, [x, w, y]: [&TensorType; 3]) -> Option<Winograd> {
    if !fits(window, y.dtype) {
        return None;
    }
    let first = [0, 1].map(|a| -(window.pads_begin[a] as isize));
    let tiles = Tiles::new(x.shape[0], &x.shape[2..], &y.shape[2..], first);
    Winograd::new(tiles, w.shape[1], w.shape[0] / group)
}

/// How a transposed convolution goes by tiles, if it is worth it: a convolution with the window turned
/// around.
pub fn conv_transpose(
    window: &Window,
    group: usize,
    [x, w, y]: [&TensorType; 3],
) -> Option<Winograd> {
    if !fits(window, y.dtype) {
        return None;
    }
    let first = [0, 1].map(|a| window.pads_begin[a] as isize - (TAPS - 1) as isize);
    let tiles = Tiles::new(x.shape[0], &x.shape[2..], &y.shape[2..], first);
    Winograd::new(tiles, x.shape[1] / group, w.shape[1])
}

/// The gradient of a convolution's weights by tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WinogradWeight {
    /// The tiles of the result's gradient.
    pub tiles: Tiles,
    /// Input and output channels of one group.
    pub inputs: usize,
    /// See `inputs`.
    pub channels: usize,
    /// Tiles that are summed before they are added to the result, a multiple of [`WIDTH`].
    pub some_tiles: usize,
    /// Panels of [`lanes`] output channels whose gradient has room at once; see [`Winograd::slots`].
    pub slots: usize,
}

impl WinogradWeight {
    fn new(tiles: Tiles, inputs: usize, channels: usize) -> Option<WinogradWeight> {
        if !tiles.suffice(inputs, channels) {
            return None;
        }
        let way = (1..=SUMMED / WIDTH).rev().find_map(|n| {
            let blocks = tiles.count().div_ceil(n * WIDTH);
            let some_tiles = tiles.count().div_ceil(blocks).next_multiple_of(WIDTH);
            let mut way = WinogradWeight { tiles, inputs, channels, some_tiles, slots: 0 };
            let left = tiles.room(inputs, channels).checked_sub(way.elements())?;
            let wanted = SLOTS.max(TASKS.div_ceil(inputs.div_ceil(WIDTH)));
            way.slots = wanted.min(way.panels()).min(left / way.slot());
            (way.slots >= way.panels().min(2)).then_some(way)
        })?;
        let seen = tiles.count().saturating_mul(inputs.saturating_add(channels));
        let windows = inputs.saturating_mul(channels).saturating_mul(way.blocks());
        tiles.pays([inputs, channels], [seen, windows]).then_some(way)
    }

    /// Blocks of tiles.
    pub fn blocks(&self) -> usize {
        self.tiles.count().div_ceil(self.some_tiles)
    }

    /// Panels of the gradient of the result: of its channels, so many side by side.
    pub fn panels(&self) -> usize {
        self.channels.div_ceil(lanes(self.channels))
    }

    /// Elements from one point of what tiles see to the next; see [`Winograd::panel`].
    pub fn of_point(&self) -> usize {
        self.inputs.saturating_mul(self.some_tiles).saturating_add(WIDTH)
    }

    /// The same of a panel of the gradient of the result.
    pub fn panel(&self) -> usize {
        self.some_tiles.saturating_mul(lanes(self.channels)).saturating_add(WIDTH)
    }

    /// Elements of what a block's tiles see.
    pub fn seen(&self) -> usize {
        PLACES.saturating_mul(self.of_point())
    }

    /// Elements of a panel of the gradient of the result.
    pub fn slot(&self) -> usize {
        PLACES.saturating_mul(self.panel())
    }

    /// Elements of scratch: what tiles see, of two blocks where there are more than one, and panels.
    pub fn elements(&self) -> usize {
        let seen = self.seen().saturating_mul(self.blocks().min(2));
        seen.saturating_add(self.slots.saturating_mul(self.slot()))
    }
}

/// How the gradient of a convolution's weights goes by tiles, if it is worth it.
pub fn conv_weight(
    window: &Window,
    group: usize,
    [x, dy]: [&TensorType; 2],
) -> Option<WinogradWeight> {
    if !fits(window, dy.dtype) {
        return None;
    }
    let first = [0, 1].map(|a| -(window.pads_begin[a] as isize));
    let tiles = Tiles::new(x.shape[0], &x.shape[2..], &dy.shape[2..], first);
    WinogradWeight::new(tiles, x.shape[1] / group, dy.shape[1] / group)
}
