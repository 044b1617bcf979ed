//! Pools: loops over taps. A thread or, for a large window, a warp computes one element; where channels are last,
//! a thread computes several neighbouring channels, which share where the taps are and are loaded at once.

use super::index::{constant, offset};
use super::pool_grad;
use super::site::{LaunchSite, THREADS, c_type};
use super::taps::{
    coordinate, each_lane, in_plane, lanes, place_type, plane, stored_coordinate, taps_counted,
};
use arenic_ir::op::{PoolIndices, Window, families};
use std::fmt::Write;

/// The kernels of a pool or of the gradient of one.
pub(super) fn lower(site: &mut LaunchSite, op: families::Pool) {
    match op {
        families::Pool::MaxPool { window, indices, .. } => max_pool(site, window, *indices),
        families::Pool::AveragePool { window, count_include_pad, .. } => {
            average_pool(site, window, *count_include_pad);
        }
        families::Pool::MaxPoolGrad { window, indices: PoolIndices::Taps, shape, .. } => {
            pool_grad::of_taps(site, window, shape);
        }
        families::Pool::MaxPoolGrad { window, indices, shape, .. } => {
            pool_grad::of_positions(site, window, shape, *indices);
        }
        families::Pool::AveragePoolGrad { window, count_include_pad, shape, .. } => {
            pool_grad::average(site, window, shape, *count_include_pad);
        }
    }
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
    /// Neighbouring channels of a thread.
    lanes: usize,
}

impl<'a> Pool<'a> {
    fn new(site: &LaunchSite<'a>, window: &'a Window) -> Option<Pool<'a>> {
        let (x, y) = (site.inputs[0], site.outputs.iter().copied().flatten().next()?);
        let input = &x.shape[2..];
        let place = place_type(input, window);
        let (channels, output) = (x.shape[1], &y.shape[..]);
        Some(Pool { window, channels, input, output, index: site.index(), place, lanes: 1 })
    }

    /// The same by as many channels at once as can be loaded so.
    fn of_lanes(self, site: &LaunchSite) -> Pool<'a> {
        let lanes = if self.by_warps() { 1 } else { lanes(site, self.channels) };
        Pool { lanes, ..self }
    }

    fn by_warps(&self) -> bool {
        self.window.taps() > FEW_TAPS
    }

    /// Where the window of element `i` begins along each axis, and the `plane` that it sees.
    fn origin(&self, site: &LaunchSite) -> String {
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
    fn source(&self, site: &LaunchSite) -> String {
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
    fn launch(&self, site: &mut LaunchSite, body: &str) {
        let mut parameters = site.all_inputs();
        parameters.extend((0..site.outputs.len()).filter_map(|o| site.output(o)));
        let n: usize = self.output.iter().product();
        if !self.by_warps() {
            site.for_each_group(n, self.lanes, self.index, parameters, body);
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

fn max_pool(site: &mut LaunchSite, window: &Window, indices: PoolIndices) {
    let Some(pool) = Pool::new(site, window) else { return };
    let t = c_type(site.inputs[0].dtype);
    if site.outputs[1].is_none() || indices == PoolIndices::Taps {
        of_taps(site, &pool.of_lanes(site), indices);
        return;
    }
    let (mut body, source) = (pool.origin(site), pool.source(site));
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
    let place = if indices == PoolIndices::ColumnMajorPositions {
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

/// A max pool that says which taps it took, or only their values.
fn of_taps(site: &mut LaunchSite, pool: &Pool, indices: PoolIndices) {
    let (t, lanes) = (c_type(site.inputs[0].dtype), pool.lanes);
    let (mut body, source) = (pool.origin(site), pool.source(site));
    let each = |statement: &str| each_lane(lanes, statement);
    let load = format!("const auto seen = load_pack<{lanes}>(x0 + ({source}));\n");
    let (unseen, see, joined) = match site.outputs[1] {
        None => {
            let _ = writeln!(body, "    {t} best[{lanes}];");
            let larger = "best[lane] = larger(lane_of(seen, lane)[0], best[lane]);";
            let joined = format!("best[lane] = combine_warp<Largest<{t}>>(best[lane]);");
            (format!("best[lane] = Number<{t}>::lowest();"), larger, joined)
        }
        Some(_) => {
            let _ = writeln!(body, "    Best<{t}> best[{lanes}];");
            let see = "best[lane].see(lane_of(seen, lane)[0], i64(tap));";
            let unseen = format!("best[lane] = {{Number<{t}>::lowest(), -1}};");
            (unseen, see, "best[lane].join_warp();".into())
        }
    };
    body += &each(&unseen);
    body += &pool.taps(&(load + &each(see)));
    if pool.by_warps() {
        body += &each(&joined);
    }
    body += pool.writer();
    let mut store = |o: usize, made: &str| {
        let _ = writeln!(body, "    auto made{o} = pack_of<{lanes}>(y{o});");
        body += &each(&format!("lane_of(made{o}, lane)[0] = {made};"));
        let _ = writeln!(body, "    store_pack(y{o} + i, made{o});");
    };
    if site.outputs[0].is_some() {
        let value = if site.outputs[1].is_some() { ".value" } else { "" };
        store(0, &format!("best[lane]{value}"));
    }
    if site.outputs[1].is_some() {
        // A window with every tap in padding, by dilation, names tap 0.
        let tap = c_type(indices.dtype(pool.window.taps()));
        store(1, &format!("best[lane].place < 0 ? {tap}(0) : {tap}(best[lane].place)"));
    }
    pool.launch(site, &body);
}

fn average_pool(site: &mut LaunchSite, window: &Window, count_include_pad: bool) {
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
