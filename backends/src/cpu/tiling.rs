//! How the CPU's kernels share out their work.
//!
//! Types come from files. No product of extents of one type overflows (`checked_bytes`);
//! products of several types' extents saturate, so that no arena is large enough for them.

use super::depthwise::{self, Depthwise};
use super::shifted::{self, Shifted, ShiftedWeight};
use super::sums::PLAIN_ROWS;
use super::winograd::{self, Winograd, WinogradWeight};
use crate::reduce::{COLUMNS, SEGMENT};
use arenic_ir::op::{Extents, Recurrence, Window};
use arenic_ir::types::{DType, TensorType};

/// Bytes that one tile of columns aims at: large enough for products of full speed, small
/// enough that scratch stays a few MiB beside any real tensor.
const COLUMN_BYTES: usize = 4 << 20;

/// Bytes that the folded results of one tile aim at.
const RESULT_BYTES: usize = 2 << 20;

/// Bytes of a tile where a window has one tap, so that its columns are few and copied once.
const ONE_TAP_BYTES: usize = 1 << 20;

/// Least number of output positions for a product per image; fewer are folded, so that
/// the weights are not packed again for a handful of columns.
const FOLD: usize = 256;

/// The same for windows of one tap, whose weights are few: where no plain loop would take so few columns.
const ONE_TAP_FOLD: usize = PLAIN_ROWS + 1;

/// Least number of positions for a product per image, and elements of a tile of columns.
fn limits(taps: usize, dtype: DType) -> (usize, usize) {
    let (fold, bytes) =
        if taps == 1 { (ONE_TAP_FOLD, ONE_TAP_BYTES) } else { (FOLD, COLUMN_BYTES) };
    (fold, bytes / dtype.size() as usize)
}

/// True where plain loops beat building columns: each column element would serve few
/// channels on the `wide` side, or be one of few on the other.
fn direct(wide: usize, other: usize) -> bool {
    wide <= 2 || (wide <= 4 && other == 1)
}

/// Positions of a window in all images that are few beside its weights, which shifted views pack for them.
const FEW_POSITIONS: usize = 256;

/// Channels on either side from which a packing library multiplies columns fast.
const COLUMN_CHANNELS: usize = 32;

/// True where products of columns are faster than those of shifted views: at few positions, or where views gain
/// little from windows that overlap.
fn columns_win(positions: usize, channels: [usize; 2], gains_little: bool) -> bool {
    channels.iter().all(|&c| c >= COLUMN_CHANNELS) && (positions <= FEW_POSITIONS || gains_little)
}

/// Parts of the scratch of an LSTM, in states.
pub const LSTM_STATES: [usize; 3] = [4, 1, 1];

/// The same of its gradient.
pub const LSTM_GRAD_STATES: [usize; 2] = [4, 2];

/// The same of a GRU and of its gradient.
pub const GRU_STATES: [usize; 3] = [3, 1, 1];

/// The same of an RNN's gradient.
pub const RNN_GRAD_STATES: [usize; 2] = [1, 1];

/// Elements of the matrix of a step's product, packed for all steps; `None` where each step packs it
/// anew, or goes without. Packing pays where there are several rows and steps, and the packed matrix is no
/// larger than a gate of all steps.
pub fn packed_for_steps(of: Recurrence, dtype: DType, e: Extents) -> Option<usize> {
    let rows = of.batch.saturating_mul(of.steps);
    let pays = dtype == DType::F32 && of.batch > PLAIN_ROWS && of.steps >= 4 && rows >= of.hidden;
    (pays && e.k > 0 && e.n >= 8).then(|| e.k.saturating_mul(shifted::padded(e.n)))
}

/// Parts that the inner extent `k` of a product is cut into. A small result of a long sum
/// has too few tiles for many threads; its parts are summed in order afterwards.
pub fn product_parts(results: usize, k: usize) -> usize {
    if results == 0 || results > 1 << 14 {
        return 1;
    }
    (k / 4096).clamp(1, 16)
}

/// How the gradient of an [`Op::ProductUpdate`](arenic_ir::Op::ProductUpdate) is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductUpdate {
    /// Tiles of at most `tile` elements, on so many lanes that each work alone.
    Tiles {
        /// Lanes, each with a tile of scratch.
        lanes: usize,
        /// Elements of one tile.
        tile: usize,
    },
    /// A small gradient of a long sum: parts of the sum, then the whole gradient.
    Parts {
        /// Parts of the inner extent.
        parts: usize,
        /// Elements of the gradient.
        results: usize,
    },
}

impl ProductUpdate {
    /// Elements of scratch.
    pub fn elements(&self) -> usize {
        match *self {
            ProductUpdate::Tiles { lanes, tile } => lanes.saturating_mul(tile),
            ProductUpdate::Parts { parts, results } => (parts + 1).saturating_mul(results),
        }
    }
}

/// Chooses how a gradient of so many results with inner extent `k` is cut: tiles fit a
/// core's cache, and all of them together are a small part of a gradient that is worth it.
pub fn product_update(results: usize, k: usize) -> ProductUpdate {
    let parts = product_parts(results, k);
    if parts > 1 {
        return ProductUpdate::Parts { parts, results };
    }
    let lanes = (results.saturating_mul(k) >> 19).clamp(1, 16);
    let tile = (results / (4 * lanes)).clamp(LEAST_TILE, 128 << 10);
    ProductUpdate::Tiles { lanes, tile: tile.min(results) }
}

/// Elements below which tiles of a gradient are not cut further.
pub const LEAST_TILE: usize = 1 << 10;

/// How a convolution is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conv {
    /// A product per image and group, straight from `x` to `y`.
    Pointwise,
    /// The window covers the whole input: a product per group, images are its columns.
    Whole,
    /// Each channel by itself.
    Depthwise(Depthwise),
    /// Plain loops.
    Direct,
    /// Products at the points of tiles.
    Winograd(Winograd),
    /// Products with shifted views of the input.
    Shifted(Shifted),
    /// Tiles of columns (im2col) and products with them.
    Columns(ConvColumns),
}

/// Tiles of a convolution by columns. A column is what the window sees at one output
/// position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvColumns {
    /// (Image, group) pairs of one tile; images of one group where `folded`.
    pub items: usize,
    /// Output positions of one tile.
    pub positions: usize,
    /// Channels times taps of one tile.
    pub depth: usize,
    /// Output channels of one group.
    pub channels: usize,
    /// One product serves all items; its results go through scratch to their images.
    pub folded: bool,
}

impl ConvColumns {
    /// The product of a tile.
    pub fn extents(&self) -> Extents {
        let items = if self.folded { self.items } else { 1 };
        Extents { m: self.channels, k: self.depth, n: items * self.positions }
    }

    /// Elements of scratch: a tile of columns and, where folded, one of results.
    pub fn elements(&self) -> usize {
        let results = if self.folded { self.channels } else { 0 };
        let positions = self.items.saturating_mul(self.positions);
        positions.saturating_mul(self.depth.saturating_add(results))
    }
}

/// Chooses how a convolution is computed.
pub fn conv(window: &Window, group: usize, x: &TensorType, w: &TensorType, y: &TensorType) -> Conv {
    let (images, channels, inputs) = (x.shape[0], w.shape[0] / group, w.shape[1]);
    let positions: usize = y.shape[2..].iter().product();
    let taps = window.taps();
    let unpadded = window.pads_begin.iter().chain(&window.pads_end).all(|&p| p == 0);
    if unpadded && positions == 1 && window.kernel[..] == x.shape[2..] {
        return Conv::Whole;
    }
    // Folding copies (inputs + channels) · positions elements of every image; without it
    // the inputs · channels weights are packed for every image.
    let copied = inputs.saturating_add(channels).saturating_mul(positions);
    let (fold, budget) = limits(taps, y.dtype);
    let folds = images > 1 && positions < fold;
    if window.is_pointwise() && !(folds && inputs.saturating_mul(channels) > copied) {
        return Conv::Pointwise;
    }
    if (channels, inputs) == (1, 1)
        && let Some(plan) = depthwise::conv(window, x, y)
    {
        return Conv::Depthwise(plan);
    }
    if direct(channels, inputs) {
        return Conv::Direct;
    }
    if let Some(plan) = winograd::conv(window, group, [x, w, y]) {
        return Conv::Winograd(plan);
    }
    // A strided window that sees nothing twice copies as much into columns as into a grid.
    let apart = window.strides.iter().zip(&window.kernel).all(|(step, taps)| step >= taps);
    if taps > 1
        && !columns_win(images.saturating_mul(positions), [inputs, channels], apart)
        && let Some(plan) = shifted::conv(window, group, [x, w, y])
    {
        return Conv::Shifted(plan);
    }
    let all = inputs.saturating_mul(taps).max(1);
    if folds {
        let wanted = (2 * FOLD).div_ceil(positions.max(1));
        let results = channels.saturating_mul(positions).max(1);
        let items = wanted.min(RESULT_BYTES / y.dtype.size() as usize / results).clamp(1, images);
        let depth = depth(all, budget / items.saturating_mul(positions).max(1));
        return Conv::Columns(ConvColumns { items, positions, depth, channels, folded: true });
    }
    let wide = (budget / all.min(2048)).clamp(1, positions.max(1));
    let depth = depth(all, budget / wide);
    let items = if wide == positions && depth == all {
        (budget / wide.saturating_mul(depth)).clamp(1, images.saturating_mul(group).max(1))
    } else {
        1
    };
    Conv::Columns(ConvColumns { items, positions: wide, depth, channels, folded: false })
}

/// `all` where it fits, else the largest multiple of 256, the library's own inner tile.
fn depth(all: usize, room: usize) -> usize {
    if all <= room { all } else { (room / 256 * 256).max(256).min(all) }
}

/// How a transposed convolution is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvTranspose {
    /// A product per image and group, straight from `x` to `y`.
    Pointwise,
    /// Each channel by itself.
    Depthwise(Depthwise),
    /// Plain loops.
    Direct,
    /// Products at the points of tiles.
    Winograd(Winograd),
    /// Products with shifted views of the input, for each remainder of positions by the strides.
    Shifted(Vec<Shifted>),
    /// Products into tiles of columns, gathered into `y` (col2im).
    Columns(TransposeColumns),
}

/// Tiles of a transposed convolution by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransposeColumns {
    /// (Image, group) pairs of one tile.
    pub items: usize,
    /// Output channels of one group in one tile.
    pub channels: usize,
    /// Extent of one tile along the first spatial axis of `x`.
    pub rows: usize,
    /// Elements of one column tile per item, channel and row.
    pub row: usize,
}

impl TransposeColumns {
    /// The product of a tile, for `x` and weights `w`.
    pub fn extents(&self, group: usize, x: &TensorType, w: &TensorType) -> Extents {
        let taps: usize = w.shape[2..].iter().product();
        let inner: usize = x.shape[3..].iter().product();
        Extents { m: self.channels * taps, k: x.shape[1] / group, n: self.rows * inner }
    }

    /// Elements of scratch.
    pub fn elements(&self) -> usize {
        [self.channels, self.rows, self.row].into_iter().fold(self.items, usize::saturating_mul)
    }
}

/// Chooses how a transposed convolution is computed.
pub fn conv_transpose(
    window: &Window,
    group: usize,
    x: &TensorType,
    w: &TensorType,
    y: &TensorType,
) -> ConvTranspose {
    if window.is_pointwise() && x.shape[2..] == y.shape[2..] {
        return ConvTranspose::Pointwise;
    }
    if (x.shape[1] / group, w.shape[1]) == (1, 1)
        && let Some(plan) = depthwise::conv_transpose(window, x, y)
    {
        return ConvTranspose::Depthwise(plan);
    }
    if direct(x.shape[1] / group, w.shape[1]) {
        return ConvTranspose::Direct;
    }
    if let Some(plan) = winograd::conv_transpose(window, group, [x, w, y]) {
        return ConvTranspose::Winograd(plan);
    }
    let taps = window.taps();
    let positions = x.shape[2..].iter().fold(x.shape[0], |n, &extent| n.saturating_mul(extent));
    // Phases of a strided window are convolutions of few taps each, which fill panels badly.
    let strided = window.strides.iter().any(|&step| step > 1);
    if taps > 1
        && !columns_win(positions, [x.shape[1] / group, w.shape[1]], strided)
        && let Some(parts) = shifted::conv_transpose(window, group, [x, w, y])
    {
        return ConvTranspose::Shifted(parts);
    }
    let (_, budget) = limits(taps, x.dtype);
    let row = taps.saturating_mul(x.shape[3..].iter().product::<usize>()).max(1);
    let rows = (budget / row).clamp(1, x.shape[2].max(1));
    let tile = row.saturating_mul(rows);
    let channels = (budget / tile).clamp(1, w.shape[1].max(1));
    let whole = rows >= x.shape[2] && channels >= w.shape[1];
    let items = if whole {
        (budget / tile.saturating_mul(channels)).clamp(1, x.shape[0].saturating_mul(group).max(1))
    } else {
        1
    };
    ConvTranspose::Columns(TransposeColumns { items, channels, rows, row })
}

/// How the gradient of a convolution's weight is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvWeight {
    /// Products of each group, straight from the operands.
    Pointwise(PointwiseWeight),
    /// Each channel by itself.
    Depthwise(Depthwise),
    /// Products at the points of tiles.
    Winograd(WinogradWeight),
    /// Inner products with shifted views of the input.
    Shifted(ShiftedWeight),
    /// Tiles of columns (im2col) and products with them.
    Columns(WeightColumns),
}

/// A sum of products: of each image or, where it is cut, of pieces of its positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointwiseWeight {
    /// Positions of a piece; the last piece of an image may have fewer.
    pub positions: usize,
    /// Parts that the sum is cut into; see [`product_parts`].
    pub parts: usize,
    /// Elements of the gradient.
    pub results: usize,
}

impl PointwiseWeight {
    fn new(results: usize, images: usize, size: usize) -> PointwiseWeight {
        let parts = product_parts(results, images.saturating_mul(size));
        let positions = size.div_ceil(parts.div_ceil(images.max(1))).max(1);
        PointwiseWeight { positions, parts, results }
    }

    /// Elements of scratch: the partial sums.
    pub fn elements(&self) -> usize {
        if self.parts == 1 { 0 } else { self.parts.saturating_mul(self.results) }
    }
}

/// Tiles of columns of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightColumns {
    /// Groups of one tile.
    pub groups: usize,
    /// Output positions of one tile.
    pub positions: usize,
    /// Input channels of one group times taps.
    pub depth: usize,
}

impl WeightColumns {
    /// Elements of scratch.
    pub fn elements(&self) -> usize {
        self.groups.saturating_mul(self.positions).saturating_mul(self.depth)
    }
}

/// Chooses how the gradient of a convolution's weight is computed.
pub fn conv_weight(window: &Window, group: usize, x: &TensorType, dy: &TensorType) -> ConvWeight {
    let size = dy.shape[2..].iter().product::<usize>().max(1);
    if window.is_pointwise() {
        let results = (x.shape[1] / group).saturating_mul(dy.shape[1]);
        return ConvWeight::Pointwise(PointwiseWeight::new(results, x.shape[0], size));
    }
    if (x.shape[1] / group, dy.shape[1] / group) == (1, 1)
        && let Some(plan) = depthwise::conv(window, x, dy)
    {
        return ConvWeight::Depthwise(plan);
    }
    if let Some(plan) = winograd::conv_weight(window, group, [x, dy]) {
        return ConvWeight::Winograd(plan);
    }
    if let Some(plan) = shifted::conv_weight(window, group, [x, dy]) {
        return ConvWeight::Shifted(plan);
    }
    let depth = (x.shape[1] / group).saturating_mul(window.taps()).max(1);
    let budget = COLUMN_BYTES / x.dtype.size() as usize;
    let positions = (budget / depth).clamp(1, size);
    let tile = depth.saturating_mul(size);
    let groups = if positions == size { (budget / tile).clamp(1, group) } else { 1 };
    ConvWeight::Columns(WeightColumns { groups, positions, depth })
}

/// How sums over all axes but one, the channels, are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelSums {
    /// Extents before the channels, of them, and behind them.
    pub extents: [usize; 3],
    /// Channels that one task sums.
    pub strip: usize,
    /// Pieces of at most [`SEGMENT`] neighbours that every channel consists of.
    pub pieces: usize,
    /// Parts that the pieces are cut into; each gives partial sums.
    pub parts: usize,
}

impl ChannelSums {
    /// Elements of the partial sums, where every channel has so many; 0 for one part.
    pub fn elements(&self, sums: usize) -> u64 {
        let [parts, sums, channels] = [self.parts, sums, self.extents[1]].map(|n| n as u64);
        if parts == 1 { 0 } else { parts.saturating_mul(sums).saturating_mul(channels) }
    }
}

/// The extents of a tensor's channels, its second axis, for [`channel_sums`].
pub fn channels(x: &TensorType) -> [usize; 3] {
    [x.shape[0], x.shape[1], x.shape[2..].iter().product()]
}

/// The same where what follows from `axis` on is the channels.
pub fn rows(x: &TensorType, axis: usize) -> [usize; 3] {
    let (before, row) = x.shape.split_at(axis);
    [before.iter().product(), row.iter().product(), 1]
}

/// Shares sums over all axes but the middle one out, in parts where channels are too few for
/// many threads.
pub fn channel_sums(extents: [usize; 3]) -> ChannelSums {
    let [outer, channels, inner] = extents;
    let strip = (COLUMNS / inner.max(1)).clamp(1, channels.max(1));
    let pieces = outer * inner.div_ceil(SEGMENT);
    let tasks = channels.div_ceil(strip);
    let mut parts = 1;
    if tasks < 16 {
        let pays = (outer * channels * inner) >> 15;
        parts = 32usize.div_ceil(tasks.max(1)).min(pieces).min(pays).max(1);
    }
    ChannelSums { extents, strip, pieces, parts }
}
