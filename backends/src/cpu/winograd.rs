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

/// Elements of scratch at most; it is no more than operands and result, either.
const ROOM: usize = 3 << 19;

/// Multiplications that take the time of transforming what one tile has of one channel.
const OF_TILE: usize = 1500;

/// The same of one window.
const OF_WINDOW: usize = 900;

/// Tasks that suffice for many threads.
const TASKS: usize = 16;

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
        x.saturating_add(y).saturating_add(weights).min(ROOM)
    }

    /// True where products at points are worth it, with transforms of what so many tiles have of one
    /// channel, and of so many windows.
    fn pays(&self, [inputs, channels]: [usize; 2], transforms: [usize; 2]) -> bool {
        let pairs = inputs.saturating_mul(channels);
        let products = PLACES.saturating_mul(pairs).saturating_mul(self.count());
        let plain = (TAPS * TAPS).saturating_mul(pairs).saturating_mul(self.outputs());
        self.count() >= WIDTH && products.saturating_add(cost(transforms)) < plain
    }
}

/// Multiplications that take the time of transforms, of what tiles have of one channel and of windows.
fn cost([tiles, windows]: [usize; 2]) -> usize {
    OF_TILE.saturating_mul(tiles).saturating_add(OF_WINDOW.saturating_mul(windows))
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
    /// Tiles side by side in a product.
    pub lanes: usize,
    /// Tiles at once, a multiple of `lanes`.
    pub some_tiles: usize,
    /// Output channels at once.
    pub some_channels: usize,
    /// True where the weights of some channels are transformed once, and tiles for each of these blocks;
    /// false where some tiles are, and weights for each block of tiles.
    pub channels_first: bool,
}

impl Winograd {
    fn new(tiles: Tiles, inputs: usize, channels: usize) -> Option<Winograd> {
        if inputs.min(channels) < LEAST {
            return None;
        }
        let way = [lanes(tiles.count()), WIDTH].into_iter().find_map(|lanes| {
            let panels = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64].into_iter();
            let ways = panels.filter_map(|n| Winograd::of(tiles, [inputs, channels], lanes, n));
            let key =
                |way: &Winograd| (cost(way.transforms()), way.tasks() < TASKS, way.elements());
            ways.min_by_key(key)
        });
        way.filter(|way| tiles.pays([inputs, channels], way.transforms()))
    }

    /// The way with so many panels of tiles at once, at most, and as many channels as there is room for.
    fn of(
        tiles: Tiles,
        [inputs, channels]: [usize; 2],
        lanes: usize,
        panels: usize,
    ) -> Option<Winograd> {
        let all = tiles.count().div_ceil(lanes).max(1);
        let some_tiles = all.div_ceil(all.div_ceil(panels)) * lanes;
        let room = tiles.room(inputs, channels) / PLACES;
        let left = room.checked_sub(inputs.checked_mul(some_tiles)?)?;
        let fit = left / inputs.next_multiple_of(WIDTH) / WIDTH * WIDTH;
        if fit == 0 {
            return None;
        }
        let rounds = channels.div_ceil(fit.min(channels));
        let some_channels = channels.div_ceil(rounds).next_multiple_of(WIDTH);
        let way = |channels_first: bool| Winograd {
            tiles,
            inputs,
            channels,
            lanes,
            some_tiles,
            some_channels,
            channels_first,
        };
        [true, false].map(way).into_iter().min_by_key(|way| cost(way.transforms()))
    }

    /// How often what a tile has of one channel is transformed, and a window: what is complete is kept.
    fn transforms(&self) -> [usize; 2] {
        let rounds_of_tiles = self.tiles.count().div_ceil(self.some_tiles);
        let rounds = self.channels.div_ceil(self.some_channels);
        let (seen, windows) = match self.channels_first {
            true => (if rounds_of_tiles == 1 { 1 } else { rounds }, 1),
            false => (1, if rounds == 1 { 1 } else { rounds_of_tiles }),
        };
        let of_tile = self.inputs.saturating_mul(seen).saturating_add(self.channels);
        let pairs = self.inputs.saturating_mul(self.channels);
        [self.tiles.count().saturating_mul(of_tile), pairs.saturating_mul(windows)]
    }

    /// Products of some tiles and channels.
    fn tasks(&self) -> usize {
        self.some_tiles / self.lanes * (self.some_channels / WIDTH)
    }

    /// Input channels that are summed one by one; their sums are added in order.
    pub fn summed(&self) -> usize {
        self.inputs.div_ceil(self.inputs.div_ceil(SUMMED))
    }

    /// Elements of transformed weights.
    pub fn weights(&self) -> usize {
        let inputs = self.inputs.next_multiple_of(WIDTH);
        PLACES.saturating_mul(inputs).saturating_mul(self.some_channels)
    }

    /// Elements of scratch: transformed weights and tiles.
    pub fn elements(&self) -> usize {
        let tiles = PLACES.saturating_mul(self.inputs).saturating_mul(self.some_tiles);
        self.weights().saturating_add(tiles)
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
    /// Output channels at once, a multiple of [`lanes`].
    pub some_channels: usize,
}

impl WinogradWeight {
    fn new(tiles: Tiles, inputs: usize, channels: usize) -> Option<WinogradWeight> {
        if inputs.min(channels) < LEAST {
            return None;
        }
        let (all, lanes) = (tiles.count().next_multiple_of(WIDTH), lanes(channels));
        let room = tiles.room(inputs, channels) / PLACES;
        let most = (room / inputs.saturating_add(lanes) / WIDTH * WIDTH).min(SUMMED);
        if most == 0 {
            return None;
        }
        let rounds = all.div_ceil(most);
        let some_tiles = all.div_ceil(rounds.max(1)).next_multiple_of(WIDTH);
        let fit = (room / some_tiles.max(1)).saturating_sub(inputs) / lanes * lanes;
        let some_channels = channels.div_ceil(channels.div_ceil(fit.max(lanes)));
        let some_channels = some_channels.next_multiple_of(lanes);
        let seen = tiles.count().saturating_mul(inputs.saturating_add(channels));
        let windows = inputs.saturating_mul(channels).saturating_mul(rounds);
        let pays = tiles.pays([inputs, channels], [seen, windows]);
        pays.then_some(WinogradWeight { tiles, inputs, channels, some_tiles, some_channels })
    }

    /// Elements of what tiles see.
    pub fn seen(&self) -> usize {
        PLACES.saturating_mul(self.inputs).saturating_mul(self.some_tiles)
    }

    /// Elements of scratch: what tiles see, and the gradient of the result.
    pub fn elements(&self) -> usize {
        let gradient = PLACES.saturating_mul(self.some_channels).saturating_mul(self.some_tiles);
        self.seen().saturating_add(gradient)
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
