//! Depthwise convolutions: each channel by itself, a band of rows at a time.
//!
//! A band's operand lies with its zeros around it in a buffer that a core's nearest cache holds. Elements that
//! the strides keep apart lie in planes of their own, so that every tap sees the neighbours of what it sees at
//! one position side by side; of a transposed convolution's result, those of a row likewise. Rows of the result
//! are as long as those of the operand: what a row's end then sees is not used.

use arenic_ir::op::Window;
use arenic_ir::types::TensorType;

/// Elements of the buffer of a band's operand.
pub const OPERAND: usize = 8 << 10;

/// Elements of that of its result.
pub const RESULT: usize = 4 << 10;

/// Taps of a window at most.
pub const TAPS: usize = 64;

/// The window along one axis; it slides over `source` and is at `positions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthwiseAxis {
    /// Elements that the window slides over.
    pub source: usize,
    /// Where it is.
    pub positions: usize,
    /// Its taps.
    pub kernel: usize,
    /// From one position to the next.
    pub stride: usize,
    /// From one tap to the next.
    pub dilation: usize,
    /// Zeros before the source.
    pub pad: usize,
}

impl DepthwiseAxis {
    /// Where a tap lies: its remainder by the stride, and the quotient.
    pub fn tap(&self, tap: usize) -> (usize, usize) {
        let at = tap * self.dilation;
        (at % self.stride, at / self.stride)
    }

    /// The largest of the quotients.
    pub fn halo(&self) -> usize {
        self.tap(self.kernel - 1).1
    }

    /// The quotients by the stride of what is not padding, from the first on, and how many.
    pub fn quotients(&self) -> (usize, usize) {
        let first = self.pad / self.stride;
        (first, ((self.source - 1 + self.pad) / self.stride + 1) - first)
    }
}

/// How a depthwise convolution is cut into bands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depthwise {
    /// Rows and columns.
    pub axes: [DepthwiseAxis; 2],
    /// Elements from one row to the next, of operand and result.
    pub pitch: usize,
    /// Rows of a band's result.
    pub band: usize,
}

impl Depthwise {
    /// Of a window that slides from `source` to `positions`; `None` where a row is too long for the buffers, the
    /// window has too many taps, or there is another number of axes.
    fn new(
        window: &Window,
        source: &TensorType,
        positions: &TensorType,
        back: bool,
    ) -> Option<Self> {
        let axis = |d: usize| DepthwiseAxis {
            source: source.shape[d + 2],
            positions: positions.shape[d + 2],
            kernel: window.kernel[d],
            stride: window.strides[d],
            dilation: window.dilations[d],
            pad: window.pads_begin[d],
        };
        let one =
            DepthwiseAxis { source: 1, positions: 1, kernel: 1, stride: 1, dilation: 1, pad: 0 };
        let axes = match window.rank() {
            1 => [one, axis(0)],
            2 => [axis(0), axis(1)],
            _ => return None,
        };
        let elements = |t: &TensorType| t.elements() > 0;
        if window.taps() > TAPS || window.taps() == 0 || !elements(source) || !elements(positions) {
            return None;
        }
        let [rows, columns] = axes;
        let (rows_of_result, columns_of_result) = match back {
            false => (rows.positions, columns.positions),
            true => (rows.quotients().1, columns.quotients().1),
        };
        // Planes of the operand, and of the result.
        let (planes, results) = match back {
            false => (rows.stride.checked_mul(columns.stride)?, 1),
            true => (1, columns.stride),
        };
        let pitch = columns_of_result.checked_add(columns.halo())?;
        let held = (OPERAND / planes / pitch).checked_sub(rows.halo())?;
        let band = held.min(RESULT / results / pitch).min(rows_of_result);
        (band > 0).then_some(Depthwise { axes, pitch, band })
    }

    /// Elements of what the window slides over.
    pub fn source(&self) -> usize {
        self.axes[0].source * self.axes[1].source
    }

    /// Where the window is.
    pub fn positions(&self) -> usize {
        self.axes[0].positions * self.axes[1].positions
    }

    /// Taps of the window.
    pub fn taps(&self) -> usize {
        self.axes[0].kernel * self.axes[1].kernel
    }

    /// Rows of a band's operand.
    pub fn rows(&self) -> usize {
        self.band + self.axes[0].halo()
    }

    /// Elements of one plane of a band's operand.
    pub fn plane(&self) -> usize {
        self.rows() * self.pitch
    }
}

/// A convolution from `x` to `y` with one channel in each group on either side.
pub fn conv(window: &Window, x: &TensorType, y: &TensorType) -> Option<Depthwise> {
    Depthwise::new(window, x, y, false)
}

/// A transposed convolution from `x` to `y`: the window slides over `y`.
pub fn conv_transpose(window: &Window, x: &TensorType, y: &TensorType) -> Option<Depthwise> {
    Depthwise::new(window, y, x, true)
}
