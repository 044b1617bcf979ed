//! Pools and resizes: loops over taps.
//!
//! A thread or, for a large window, a warp computes one element of a pool. A resize first fills
//! tables in scratch of what every index of an axis reads, then a thread adds up each element.

use super::index::{constant, offset};
use super::lower::{Parameter, Site, THREADS, c_type};
use arenic_ir::op::{Crop, Interpolation, NearestMode, Places, Positions, ResizeSpec, Window};
use arenic_ir::types::dense_strides;
use arenic_ir::{DType, Op};
use std::fmt::Write;

pub(super) fn lower(site: &mut Site) {
    match site.op {
        Op::MaxPool { window, column_major, .. } => max_pool(site, window, *column_major),
        Op::AveragePool { window, count_include_pad, .. } => {
            average_pool(site, window, *count_include_pad);
        }
        Op::Resize { spec } => resize(site, spec),
        _ => {}
    }
}

/// Index `d` of element `i` of a shape.
pub(super) fn coordinate(shape: &[usize], d: usize, i: &str) -> String {
    let mut strides = vec![0; shape.len()];
    strides[d] = 1;
    offset(shape, &strides, i)
}

/// Index `d` of the element of a tensor of this shape that is stored as the `i`-th.
pub(super) fn stored_coordinate(site: &Site, shape: &[usize], d: usize, i: &str) -> String {
    let mut strides = vec![0; shape.len()];
    strides[d] = 1;
    offset(&site.stored(shape), &site.stored(&strides), i)
}

/// The plane, of all channels of all images, of the element of a tensor of this shape that is
/// stored as the `i`-th.
pub(super) fn plane(site: &Site, shape: &[usize], i: &str) -> String {
    let mut strides = vec![0; shape.len()];
    (strides[0], strides[1]) = (shape[1] as i64, 1);
    offset(&site.stored(shape), &site.stored(&strides), i)
}

/// The element at a place of a plane, of so many places and channels, as it is stored.
pub(super) fn in_plane(site: &Site, channels: usize, plane: &str, place: [&str; 2]) -> String {
    let channels = constant(channels);
    match site.channels_last {
        true => site.element(
            &format!("{plane} / {channels}"),
            [&format!("{plane} % {channels}"), &channels],
            place,
        ),
        false => format!("{plane} * {} + {}", place[1], place[0]),
    }
}

/// The type of a place along an axis that may lie outside.
pub(super) fn place_type(input: &[usize], window: &Window) -> &'static str {
    let reach = |d: usize| {
        input[d] + window.pads_begin[d] + window.pads_end[d] + window.strides[d] + window.span(d)
    };
    let near = (0..window.rank()).all(|d| reach(d) < 1 << 31);
    if near { "int" } else { "i64" }
}

/// How many taps of axis `d` count in an average, where the window begins at `at`. Beyond the
/// end padding, where a window hangs over because extents were rounded up, nothing counts.
pub(super) fn taps_counted(
    window: &Window,
    input: &[usize],
    count_include_pad: bool,
    d: usize,
    place: &str,
    at: &str,
) -> String {
    let pad = window.pads_begin[d];
    let (origin, room) = match count_include_pad {
        true => (format!("{at} + {pad}"), input[d] + pad + window.pads_end[d]),
        false => (at.into(), input[d]),
    };
    let (dilation, taps) = (window.dilations[d], window.kernel[d]);
    format!("i64(taps_inside<{place}>({origin}, {dilation}, {taps}, {room}))")
}

/// Most taps of a window that one thread walks.
const FEW_TAPS: usize = 64;

/// A pool: what is common to both.
struct Pool<'a> {
    window: &'a Window,
    channels: usize,
    /// Spatial extents of the operand.
    input: &'a [usize],
    /// Whole shape of the results.
    output: &'a [usize],
    /// The type of an index, and of one that may lie outside.
    index: &'static str,
    place: &'static str,
}

impl<'a> Pool<'a> {
    fn new(site: &Site<'a>, window: &'a Window) -> Option<Pool<'a>> {
        let (x, y) = (site.inputs[0], site.outputs.iter().copied().flatten().next()?);
        let input = &x.shape[2..];
        let place = place_type(input, window);
        let (channels, output) = (x.shape[1], &y.shape[..]);
        Some(Pool { window, channels, input, output, index: site.index(), place })
    }

    fn by_warps(&self) -> bool {
        self.window.taps() > FEW_TAPS
    }

    /// Where the window of element `i` begins along each axis, and the `plane` that it sees.
    fn origin(&self, site: &Site) -> String {
        let (w, place, index) = (self.window, self.place, self.index);
        let mut text = String::new();
        for d in 0..w.rank() {
            let at = stored_coordinate(site, self.output, d + 2, "i");
            let (stride, pad) = (w.strides[d], w.pads_begin[d]);
            // Writing to a string does not fail.
            let _ = writeln!(text, "    const {place} at{d} = {place}({at}) * {stride} - {pad};");
        }
        let _ = writeln!(text, "    const {index} plane = {};", plane(site, self.output, "i"));
        text
    }

    /// Where the element at `place` of the plane is stored.
    fn source(&self, site: &Site) -> String {
        in_plane(site, self.channels, "plane", ["place", &self.size()])
    }

    /// Places of a plane.
    fn size(&self) -> String {
        constant(self.input.iter().product())
    }

    /// For every tap inside, in order, `seen` of its `place` in the plane.
    fn taps(&self, seen: &str) -> String {
        let (w, place, index) = (self.window, self.place, self.index);
        let taps = constant(w.taps());
        let mut text = match self.by_warps() {
            true => {
                format!("    for (u32 tap = threadIdx.x % WARP; tap < {taps}; tap += WARP) {{\n")
            }
            false => format!("#pragma unroll\n    for (u32 tap = 0; tap < {taps}; tap++) {{\n"),
        };
        let mut flat = String::new();
        for d in 0..w.rank() {
            let tap = coordinate(&w.kernel, d, "tap");
            let (dilation, extent) = (w.dilations[d], self.input[d]);
            let _ = writeln!(text, "    const {place} p{d} = at{d} + {place}({tap}) * {dilation};");
            let reach = (self.output[d + 2] - 1) * w.strides[d] + w.span(d);
            if w.pads_begin[d] > 0 || reach > extent + w.pads_begin[d] {
                let _ = writeln!(text, "    if (p{d} < 0 || p{d} >= {extent}) continue;");
            }
            flat = match d {
                0 => format!("{index}(p0)"),
                _ => format!("({flat}) * {} + {index}(p{d})", constant(extent)),
            };
        }
        let _ = writeln!(text, "    const {index} place = {flat};\n    {seen}\n    }}");
        text
    }

    /// A thread or a warp for each element of the results.
    fn launch(&self, site: &mut Site, body: &str) {
        let mut parameters = site.all_inputs();
        parameters.extend((0..site.outputs.len()).filter_map(|o| site.output(o)));
        let n: usize = self.output.iter().product();
        if !self.by_warps() {
            site.for_each(n, self.index, parameters, body);
            return;
        }
        let (index, warps) = (self.index, THREADS as usize / 32);
        let text = format!(
            "    const {index} i = {index}(blockIdx.x) * {warps}u + threadIdx.x / WARP;\n    \
             if (i >= {}) return;\n{body}",
            constant(n)
        );
        site.launch([n.div_ceil(warps), 1, 1], THREADS, parameters, text);
    }

    /// Who writes a result that all lanes of a warp know.
    fn writer(&self) -> &'static str {
        if self.by_warps() { "    if (threadIdx.x % WARP != 0) return;\n" } else { "" }
    }
}

fn max_pool(site: &mut Site, window: &Window, column_major: bool) {
    let Some(pool) = Pool::new(site, window) else { return };
    let t = c_type(site.inputs[0].dtype);
    let (mut body, source) = (pool.origin(site), pool.source(site));
    if site.outputs[1].is_none() {
        let _ = writeln!(body, "    {t} best = Number<{t}>::lowest();");
        body += &pool.taps(&format!("best = larger(x0[{source}], best);"));
        if pool.by_warps() {
            let _ = writeln!(body, "    best = combine_warp<Largest<{t}>>(best);");
        }
        let _ = writeln!(body, "{}    y0[i] = best;", pool.writer());
        pool.launch(site, &body);
        return;
    }
    let _ = writeln!(body, "    Best<{t}> best = {{Number<{t}>::lowest(), -1}};");
    body += &pool.taps(&format!("best.see(x0[{source}], i64(place));"));
    if pool.by_warps() {
        body += "    best.join_warp();\n";
    }
    body += pool.writer();
    if site.outputs[0].is_some() {
        body += "    y0[i] = best.value;\n";
    }
    // A window with every tap in padding, by dilation, names its plane's start.
    let _ = writeln!(
        body,
        "    const {index} place = best.place < 0 ? 0 : {index}(best.place);",
        index = pool.index
    );
    let place = if column_major {
        let strides = pool.input.iter().scan(1, |dense, &n| {
            let stride = *dense;
            *dense *= n as i64;
            Some(stride)
        });
        offset(pool.input, &strides.collect::<Vec<i64>>(), "place")
    } else {
        "place".into()
    };
    let _ = writeln!(body, "    y1[i] = i64(plane * {} + {place});", pool.size());
    pool.launch(site, &body);
}

fn average_pool(site: &mut Site, window: &Window, count_include_pad: bool) {
    let Some(pool) = Pool::new(site, window) else { return };
    let t = c_type(site.inputs[0].dtype);
    let (mut body, source) = (pool.origin(site), pool.source(site));
    let _ = writeln!(body, "    {t} sum = 0;");
    body += &pool.taps(&format!("sum = add(x0[{source}], sum);"));
    if pool.by_warps() {
        let _ = writeln!(body, "    sum = combine_warp<Sum<{t}>>(sum);");
    }
    let counted = |d: usize| {
        taps_counted(window, pool.input, count_include_pad, d, pool.place, &format!("at{d}"))
    };
    let counts: Vec<String> = (0..window.rank()).map(counted).collect();
    let _ = writeln!(body, "    const i64 count = {};", counts.join(" * "));
    let _ = writeln!(body, "{}    y0[i] = sum / {t}(count > 0 ? count : 1);", pool.writer());
    pool.launch(site, &body);
}

/// An axis that is resized: its tables of sources and weights in scratch.
struct Resized {
    axis: usize,
    taps: usize,
    sources: u64,
    weights: u64,
}

impl Resized {
    fn sources(&self) -> Parameter {
        Parameter::scratch("i64", &format!("sources{}", self.axis), self.sources)
    }

    fn weights(&self) -> Parameter {
        Parameter::scratch("double", &format!("weights{}", self.axis), self.weights)
    }
}

fn resize(site: &mut Site, spec: &ResizeSpec) {
    let x = site.inputs[0];
    let mut scratch = 0;
    let mut axes = Vec::new();
    if spec.sizes.contains(&0) {
        return;
    }
    for axis in (0..x.rank()).filter(|&a| !spec.keeps(a, x.shape[a])) {
        let taps = spec.taps(axis);
        let bytes = 8 * (taps * spec.sizes[axis]) as u64;
        axes.push(Resized { axis, taps, sources: scratch, weights: scratch + bytes });
        scratch += 2 * bytes;
    }
    if axes.is_empty() {
        site.copy(0, 0);
        return;
    }
    for a in &axes {
        let body = format!(
            "    resize_entry({}, i, {}, sources{axis}, weights{axis});\n",
            described(spec, a.axis, x.shape[a.axis]),
            constant(a.taps),
            axis = a.axis
        );
        site.for_each(spec.sizes[a.axis], "u64", [a.sources(), a.weights()], &body);
    }
    if matches!(spec.mode, Interpolation::Nearest(_)) {
        nearest(site, spec, &axes);
    } else {
        weighted(site, spec, &axes);
    }
}

/// A `ResizeAxis` of `windows.cuh`.
fn described(spec: &ResizeSpec, axis: usize, extent: usize) -> String {
    let a = if let Interpolation::Cubic { a } = spec.mode { a } else { 0.0 };
    let interpolation = match spec.mode {
        Interpolation::Nearest(NearestMode::RoundPreferFloor) => "round_prefer_floor",
        Interpolation::Nearest(NearestMode::RoundPreferCeil) => "round_prefer_ceil",
        Interpolation::Nearest(NearestMode::Floor) => "floor",
        Interpolation::Nearest(NearestMode::Ceil) => "ceil",
        Interpolation::Linear => "linear",
        Interpolation::Cubic { .. } => "cubic",
    };
    let places = match spec.places(axis, extent).expect("a scale that was looked at") {
        Places::Exact(Positions { step, start, divisor }) => format!(
            "Positions{{{}, {}ull, {}, {}ull, {divisor}ull}}",
            signed(step.0),
            step.1,
            signed(start.0),
            start.1
        ),
        Places::Crop(Crop { start, length, last, span, centred }) => {
            let numbers = [start, length, last, span].map(double).join(", ");
            format!("Crop{{{numbers}, {centred}, {}ull}}", Crop::DIVISOR)
        }
    };
    format!(
        "{places}, ResizeAxis{{{}, {}, {}, Interpolation::{interpolation}, {}, {}}}",
        signed(extent as i64 - 1),
        double(spec.stretch(axis)),
        double(a.into()),
        spec.exclude_outside,
        spec.antialias
    )
}

/// A signed integer in C.
fn signed(x: i64) -> String {
    format!("i64({x}ll)")
}

/// A number in C.
fn double(x: f64) -> String {
    match x {
        _ if x.is_nan() => "double(NAN)".into(),
        f64::INFINITY => "double(INFINITY)".into(),
        f64::NEG_INFINITY => "-double(INFINITY)".into(),
        _ => format!("{x:e}"),
    }
}

/// The value outside of the region of interest.
fn outside(spec: &ResizeSpec, dtype: DType) -> String {
    format!("cast<{}>({})", c_type(dtype), double(spec.extrapolation.into()))
}

/// The strides of the operand, and of its axes that stay the offset of element `i`.
fn kept(site: &Site, spec: &ResizeSpec, axes: &[Resized]) -> (Vec<usize>, String) {
    let dense = dense_strides(&site.inputs[0].shape);
    let mut strides: Vec<i64> = dense.iter().map(|&s| s as i64).collect();
    axes.iter().for_each(|a| strides[a.axis] = 0);
    let offset = offset(&spec.sizes, &strides, "i");
    (dense, offset)
}

fn nearest(site: &mut Site, spec: &ResizeSpec, axes: &[Resized]) {
    let index = site.index();
    let (dense, kept) = kept(site, spec, axes);
    let mut body = String::new();
    let (mut inside, mut from) = (Vec::new(), kept);
    for a in axes {
        let (axis, at) = (a.axis, coordinate(&spec.sizes, a.axis, "i"));
        let _ = writeln!(body, "    const i64 source{axis} = sources{axis}[{at}];");
        inside.push(format!("source{axis} >= 0"));
        let _ = write!(from, " + {index}(source{axis}) * {}", constant(dense[axis]));
    }
    let outside = outside(spec, site.inputs[0].dtype);
    let _ = writeln!(body, "    y0[i] = {} ? x0[{from}] : {outside};", inside.join(" && "));
    let mut parameters = site.all_inputs();
    parameters.extend(axes.iter().map(Resized::sources));
    parameters.extend(site.output(0));
    site.for_each(spec.sizes.iter().product(), index, parameters, &body);
}

/// Sums of products of weights: the outer axes' first, then a sum along the last axis.
fn weighted(site: &mut Site, spec: &ResizeSpec, axes: &[Resized]) {
    let index = site.index();
    let (dense, kept) = kept(site, spec, axes);
    let t = c_type(site.inputs[0].dtype);
    let last = spec.sizes.len() - 1;
    let mut body = String::new();
    for a in axes {
        let at = coordinate(&spec.sizes, a.axis, "i");
        let _ = writeln!(
            body,
            "    const {index} entry{axis} = ({at}) * {};",
            constant(a.taps),
            axis = a.axis
        );
    }
    let inside: Vec<String> =
        axes.iter().map(|a| format!("sources{0}[entry{0}] < 0", a.axis)).collect();
    let _ = writeln!(
        body,
        "    if ({}) {{\n    y0[i] = {};\n    return;\n    }}\n    double sum = 0;",
        inside.join(" || "),
        outside(spec, site.inputs[0].dtype)
    );
    let (mut base, mut weight, mut closing) = (kept, String::from("1.0"), String::new());
    for a in axes {
        let (axis, taps) = (a.axis, constant(a.taps));
        if axis == last {
            body += "    double row = 0;\n";
        }
        let _ = writeln!(body, "    for (u32 t{axis} = 0; t{axis} < {taps}; t{axis}++) {{");
        let of = format!("[entry{axis} + t{axis}]");
        let _ = writeln!(
            body,
            "    const {index} base{axis} = {base} + {index}(sources{axis}{of}) * {};",
            constant(dense[axis])
        );
        if axis == last {
            let _ =
                writeln!(body, "    row += weights{axis}{of} * double(x0[base{axis}]);\n    }}");
            let _ = writeln!(body, "    sum += {weight} * row;");
        } else {
            let _ = writeln!(body, "    const double weight{axis} = {weight} * weights{axis}{of};");
            let _ = writeln!(body, "    if (weight{axis} == 0) continue;");
            (base, weight) = (format!("base{axis}"), format!("weight{axis}"));
            closing += "    }\n";
        }
    }
    if axes.last().is_some_and(|a| a.axis != last) {
        let _ = writeln!(body, "    sum += {weight} * double(x0[{base}]);");
    }
    let _ = writeln!(body, "{closing}    y0[i] = cast<{t}>(sum);");
    let mut parameters = site.all_inputs();
    parameters.extend(axes.iter().flat_map(|a| [a.sources(), a.weights()]));
    parameters.extend(site.output(0));
    site.for_each(spec.sizes.iter().product(), index, parameters, &body);
}
