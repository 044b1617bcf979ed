//! Convolutions and their transposes by kernels of our own: contractions whose second factor is
//! read through the window, so that no columns are built in memory.

use super::index::constant;
use super::product::{Contraction, Factor, contract};
use super::site::LaunchSite;
use arenic_ir::TensorType;
use arenic_ir::op::Window;
use arenic_ir::op::families::Convolution;
use std::fmt::Write;

/// The kernels of a convolution or of a gradient of one.
pub(super) fn lower(site: &mut LaunchSite, op: Convolution) {
    let Some(y) = site.outputs[0] else { return };
    let contraction = match op {
        Convolution::Conv { window, group } => convolution(site, window, *group, y),
        Convolution::ConvTranspose { window, group, .. } => transposed(site, window, *group, y),
        Convolution::ConvWeightGrad { window, group } => weight_gradient(site, window, *group, y),
    };
    contract(site, &contraction);
}

/// `y[image, channel, position] = Σ x[image, input, position · stride + tap · dilation − pad] ·
/// w[channel, input, tap]`: rows are a group's output channels, columns positions of all images.
fn convolution(site: &LaunchSite, window: &Window, group: usize, y: &TensorType) -> Contraction {
    let (x, w) = (site.inputs[0], site.inputs[1]);
    let (channels, inputs) = (w.shape[0] / group, w.shape[1]);
    let (sources, positions) = (&x.shape[2..], &y.shape[2..]);
    let mut b = Walk::named(site, window, positions, [inputs * group, inputs], ["k", "column"]);
    b.sources(window, sources);
    let taps = constant(window.taps());
    let weight = site.element(
        &format!("batch * {} + row", constant(channels)),
        [&format!("k / {taps}"), &constant(inputs)],
        [&format!("k % {taps}"), &taps],
    );
    Contraction {
        batches: group,
        m: channels,
        n: y.shape[0] * positions.iter().product::<usize>(),
        k: inputs * window.taps(),
        a: Factor { element: format!("x1[{weight}]"), k_inner: true },
        b: Factor { element: b.text, k_inner: false },
        setup: String::new(),
        store: store(site, channels, group, positions),
    }
}

/// `y[image, channel, position] = Σ x[image, input, (position + pad − tap · dilation) / stride] ·
/// w[input, channel, tap]` over the taps for which the quotient is whole.
fn transposed(site: &LaunchSite, window: &Window, group: usize, y: &TensorType) -> Contraction {
    let (x, w) = (site.inputs[0], site.inputs[1]);
    let (channels, inputs, taps) = (w.shape[1], x.shape[1] / group, window.taps());
    let (sources, positions) = (&x.shape[2..], &y.shape[2..]);
    let mut b = Walk::named(site, window, positions, [x.shape[1], inputs], ["k", "column"]);
    for (d, &extent) in sources.iter().enumerate() {
        let (pad, stride) = (constant(window.pads_begin[d]), window.strides[d]);
        let dilation = constant(window.dilations[d]);
        b.line(&format!("const auto r{d} = p{d} + {pad}, d{d} = t{d} * {dilation};"));
        let off =
            if stride > 1 { format!(" || (r{d} - d{d}) % {stride}u != 0") } else { "".into() };
        b.line(&format!("if (r{d} < d{d}{off}) return 0;"));
        b.line(&format!("const auto s{d} = (r{d} - d{d}) / {}; ", constant(stride)));
        b.line(&format!("if (s{d} >= {}) return 0;", constant(extent)));
    }
    b.element(sources);
    let taps_of = constant(taps);
    let weight = site.element(
        &format!("batch * {} + k / {taps_of}", constant(inputs)),
        ["row", &constant(channels)],
        [&format!("k % {taps_of}"), &taps_of],
    );
    Contraction {
        batches: group,
        m: channels,
        n: y.shape[0] * positions.iter().product::<usize>(),
        k: inputs * taps,
        a: Factor { element: format!("x1[{weight}]"), k_inner: true },
        b: Factor { element: b.text, k_inner: false },
        setup: String::new(),
        store: store(site, channels, group, positions),
    }
}

/// `dw[channel, input, tap] = Σ dy[image, channel, position] · x[image, input, position · stride +
/// tap · dilation − pad]` over the positions of all images: rows are a group's output channels,
/// columns its filters' taps.
fn weight_gradient(
    site: &LaunchSite,
    window: &Window,
    group: usize,
    dw: &TensorType,
) -> Contraction {
    let (x, dy) = (site.inputs[0], site.inputs[1]);
    let (channels, inputs) = (dw.shape[0] / group, dw.shape[1]);
    let (sources, positions) = (&x.shape[2..], &dy.shape[2..]);
    let mut b = Walk::named(site, window, positions, [inputs * group, inputs], ["column", "k"]);
    b.sources(window, sources);
    let (size, taps) = (constant(positions.iter().product()), constant(window.taps()));
    let channel = format!("batch * {} + row", constant(channels));
    let gradient = site.element(
        &format!("k / {size}"),
        [&channel, &constant(dy.shape[1])],
        [&format!("k % {size}"), &size],
    );
    let weight = site.element(
        &channel,
        [&format!("column / {taps}"), &constant(inputs)],
        [&format!("column % {taps}"), &taps],
    );
    Contraction {
        batches: group,
        m: channels,
        n: inputs * window.taps(),
        k: dy.shape[0] * positions.iter().product::<usize>(),
        a: Factor { element: format!("x1[{gradient}]"), k_inner: true },
        b: Factor { element: b.text, k_inner: true },
        setup: String::new(),
        store: format!("y0[{weight}] = sum;"),
    }
}

/// Statements that find an element of `x` for a filter's tap and a position.
struct Walk<'a> {
    site: &'a LaunchSite<'a>,
    text: String,
    /// The variables that hold a channel and a tap, and an image and a position.
    names: [&'static str; 2],
    /// Channels of `x`, those of all groups and of one.
    channels: [usize; 2],
    taps: usize,
    positions: usize,
}

impl<'a> Walk<'a> {
    /// Names the coordinates of two variables: of a channel and a tap `t0`, `t1`, …, and of an
    /// image and a position `p0`, `p1`, ….
    fn named(
        site: &'a LaunchSite<'a>,
        window: &Window,
        positions: &[usize],
        channels: [usize; 2],
        names: [&'static str; 2],
    ) -> Walk<'a> {
        let (text, taps) = (String::new(), window.taps());
        let mut walk = Walk { site, text, names, channels, taps, positions: 1 };
        let [filter, place] = names;
        for d in (0..window.rank()).rev() {
            let below = constant(walk.positions);
            let extent = constant(positions[d]);
            walk.line(&format!("const auto p{d} = {place} / {below} % {extent};"));
            walk.positions *= positions[d];
        }
        let mut below = 1;
        for d in (0..window.rank()).rev() {
            let extent = constant(window.kernel[d]);
            walk.line(&format!("const auto t{d} = {filter} / {} % {extent};", constant(below)));
            below *= window.kernel[d];
        }
        walk
    }

    fn line(&mut self, line: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "\n        {line}");
    }

    /// Returns the element of `x` that a tap meets at a position, zero where that is outside.
    fn sources(&mut self, window: &Window, sources: &[usize]) {
        for (d, &extent) in sources.iter().enumerate() {
            let (from, stride) = (constant(window.pads_begin[d]), constant(window.strides[d]));
            let dilation = constant(window.dilations[d]);
            self.line(&format!("const auto s{d} = p{d} * {stride} + t{d} * {dilation} - {from};"));
            // What lies before the first element has wrapped and is beyond the last one, too.
            self.line(&format!("if (s{d} >= {}) return 0;", constant(extent)));
        }
        self.element(sources);
    }

    /// Returns the element of `x` at `s0`, `s1`, …, of the group's channel that is named.
    fn element(&mut self, sources: &[usize]) {
        let [all, inputs] = self.channels.map(constant);
        let [filter, place] = self.names;
        let channel = format!("batch * {inputs} + {filter} / {}", constant(self.taps));
        let mut source = String::from("s0");
        for (d, &extent) in sources.iter().enumerate().skip(1) {
            source = format!("({source}) * {} + s{d}", constant(extent));
        }
        let at = self.site.element(
            &format!("{place} / {}", constant(self.positions)),
            [&channel, &all],
            [&source, &constant(sources.iter().product())],
        );
        self.line(&format!("return x0[{at}];\n    "));
    }
}

/// Stores a sum, with the bias of its channel.
fn store(site: &LaunchSite, channels: usize, group: usize, positions: &[usize]) -> String {
    let positions = constant(positions.iter().product());
    let channel = format!("batch * {} + row", constant(channels));
    let sum = match site.inputs.len() {
        3 => format!("add(sum, x2[{channel}])"),
        _ => "sum".into(),
    };
    let at = site.element(
        &format!("column / {positions}"),
        [&channel, &constant(channels * group)],
        [&format!("column % {positions}"), &positions],
    );
    format!("y0[{at}] = {sum};")
}
