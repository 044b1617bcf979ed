//! Gathers and scatters.
//!
//! A gather is a thread for each word of the result, which looks up its own index. A scatter
//! begins with a copy of its operand, and its updates combine in their order: those that can
//! meet at an element are walked by one thread or one warp. Whoever uses an index checks it
//! first, so nothing out of range is read or written.

use super::index::{constant, index_type, offset};
use super::movement::widest;
use super::site::{LaunchSite, Parameter, THREADS, c_type, word_type};
use arenic_ir::DType;
use arenic_ir::op::Scatter;
use arenic_ir::op::families::Indexing;
use arenic_ir::types::dense_strides;
use std::fmt::Write;

/// The kernels of a gather, of a scatter or of a choice of the largest.
pub(super) fn lower(site: &mut LaunchSite, op: Indexing) {
    match op {
        Indexing::Gather { axis } => gather(site, *axis),
        Indexing::GatherElements { axis } => gather_elements(site, *axis),
        Indexing::GatherNd { batch_dims } => gather_nd(site, *batch_dims),
        Indexing::TopK { axis, k, largest } => top_k(site, *axis, *k, *largest),
        Indexing::ScatterElements { axis, reduction } => {
            scatter_elements(site, *axis, *reduction);
        }
        Indexing::ScatterNd { reduction } => scatter_nd(site, *reduction),
    }
}

/// A thread for each element of the operand, which counts those that come before it.
fn top_k(site: &mut LaunchSite, axis: usize, k: usize, largest: bool) {
    let x = site.inputs[0];
    if k == 0 {
        return;
    }
    let index = index_type(x.elements());
    let (n, stride) = (x.shape[axis], x.shape[axis + 1..].iter().product::<usize>());
    let before = |a: &str, b: &str| match largest {
        true => format!("greater({a}, {b})"),
        false => format!("greater({b}, {a})"),
    };
    let t = c_type(x.dtype);
    let (first, second) = (before("other", "x"), before("x", "other"));
    let [group, n, stride, k] = [n * stride, n, stride, k].map(constant);
    let mut body = format!(
        "    const {index} own = i / {stride} % {n}, base = i / {group} * {group} + i % {stride};
    const {t} x = x0[i];
    {index} rank = 0;
    for ({index} j = 0; j < {n} && rank < {k}; j++) {{
        const {t} other = x0[base + j * {stride}];
        rank += j < own ? !{second} : {first};
    }}
    if (rank >= {k}) return;
    const {index} to = (i / {group} * {k} + rank) * {stride} + i % {stride};
"
    );
    let mut parameters = vec![site.input(0)];
    for (o, value) in ["x", "own"].into_iter().enumerate() {
        if let Some(y) = site.output(o) {
            parameters.push(y);
            // Writing to a string does not fail.
            let _ = writeln!(body, "    y{o}[to] = {value};");
        }
    }
    site.for_each(x.elements(), index, parameters, &body);
}

/// Looks index number `which` up as `at{k}`, and does something else where it is refused.
fn look_up(text: &mut String, k: usize, which: &str, extent: usize, otherwise: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "    i64 at{k} = x1[{which}];");
    let _ = writeln!(text, "    if (!resolve(at{k}, {extent}ll, refusal, node)) {otherwise};");
}

/// Indices into the leading axes of a shape.
struct Tuple {
    /// Extents of these axes and their strides, in what one tuple selects.
    axes: Vec<(usize, usize)>,
    /// Elements that one tuple selects.
    run: usize,
}

impl Tuple {
    fn new(shape: &[usize], depth: usize) -> Tuple {
        let (indexed, rest) = shape.split_at(depth);
        let axes = indexed.iter().copied().zip(dense_strides(indexed)).collect();
        Tuple { axes, run: rest.iter().product() }
    }

    /// Looks up all indices of the tuple of this number.
    fn look_up(&self, text: &mut String, number: &str, otherwise: &str) {
        let depth = constant(self.axes.len());
        for (k, &(extent, _)) in self.axes.iter().enumerate() {
            look_up(text, k, &format!("({number}) * {depth} + {k}u"), extent, otherwise);
        }
    }

    /// What the indices select, with an element of this size.
    fn place(&self, index: &str, size: usize) -> String {
        let term = |(k, &(_, stride)): (usize, &(usize, usize))| {
            format!("{index}(at{k}) * {}", constant(stride * size))
        };
        let terms: Vec<String> = self.axes.iter().enumerate().map(term).collect();
        if terms.is_empty() { "0u".into() } else { terms.join(" + ") }
    }
}

/// A thread for each of `words` words of the result: `look` looks indices up, and `from` is the
/// word of the operand that they select.
fn read(site: &mut LaunchSite, words: usize, word: &str, look: &str, from: &str) {
    let index = site.index();
    let mut parameters = vec![site.input_as(0, word), site.input(1)];
    parameters.extend(site.output_as(0, word));
    parameters.extend(Parameter::refusal());
    site.for_each(words, index, parameters, &format!("{look}    y0[i] = x0[{from}];\n"));
}

fn gather(site: &mut LaunchSite, axis: usize) {
    let (shape, count) = (&site.inputs[0].shape, site.inputs[1].elements());
    let run: usize = shape[axis + 1..].iter().product();
    let (word, together) = widest(site, 0, [run]);
    let run = run / together;
    let walked = [shape[..axis].iter().product(), count, run];
    let mut look = String::new();
    look_up(&mut look, 0, &offset(&walked, &[0, 1, 0], "i"), shape[axis], "return");
    let base = offset(&walked, &[(shape[axis] * run) as i64, 0, 1], "i");
    let from = format!("{base} + {}(at0) * {}", site.index(), constant(run));
    read(site, walked.iter().product(), word, &look, &from);
}

fn gather_elements(site: &mut LaunchSite, axis: usize) {
    let (x, indices) = (site.inputs[0], site.inputs[1]);
    let mut strides: Vec<i64> = dense_strides(&x.shape).into_iter().map(|s| s as i64).collect();
    let along = std::mem::take(&mut strides[axis]) as usize;
    let mut look = String::new();
    look_up(&mut look, 0, "i", x.shape[axis], "return");
    let base = offset(&indices.shape, &strides, "i");
    let from = format!("{base} + {}(at0) * {}", site.index(), constant(along));
    read(site, indices.elements(), word_type(x.dtype), &look, &from);
}

fn gather_nd(site: &mut LaunchSite, batch_dims: usize) {
    let (x, indices) = (site.inputs[0], site.inputs[1]);
    let Some((&depth, counts)) = indices.shape.split_last() else { return };
    let (batches, shape) = x.shape.split_at(batch_dims);
    let tuple = Tuple::new(shape, depth);
    let (word, together) = widest(site, 0, [tuple.run]);
    let run = tuple.run / together;
    let walked = [batches.iter().product(), counts[batch_dims..].iter().product(), run];
    let mut look = String::new();
    tuple.look_up(&mut look, &offset(&walked, &[walked[1] as i64, 1, 0], "i"), "return");
    let batch = shape.iter().product::<usize>() / together;
    let base = offset(&walked, &[batch as i64, 0, 1], "i");
    let from = format!("{base} + {}", tuple.place(site.index(), run));
    read(site, walked.iter().product(), word, &look, &from);
}

/// Warps that a scatter shares its updates between, where there are fewer lines to walk.
const WARPS: usize = 1024;

/// Lanes of a warp.
const LANES: usize = 32;

/// Columns of a row that one warp takes: four for each lane.
const COLUMNS: usize = 4 * LANES;

/// How many warps share `count` updates, of which each can do `each` at once: a power of two.
fn shares(walks: usize, count: usize, each: usize) -> usize {
    let wanted = (WARPS / walks).min(count.div_ceil(each)).max(1);
    1 << wanted.ilog2()
}

/// The type that updates have for the kernel, and how it combines them.
fn combine(reduction: Scatter, dtype: DType) -> (&'static str, String) {
    let ty = c_type(dtype);
    let name = match reduction {
        Scatter::Replace => {
            let word = word_type(dtype);
            return (word, format!("Replacement<{word}>"));
        }
        Scatter::Add if dtype == DType::Bool => return (ty, "Either".into()),
        Scatter::Add => "Sum",
        Scatter::Mul => "Product",
        Scatter::Min => "Smallest",
        Scatter::Max => "Largest",
    };
    (ty, format!("{name}<{ty}>"))
}

/// The result begins as the operand; what updates do to it has these parameters.
fn begin(site: &mut LaunchSite, ty: &str) -> Vec<Parameter> {
    if site.inputs[0].elements() > 0 {
        site.copy(0, 0);
    }
    let mut parameters = vec![site.input(1), site.input_as(2, ty)];
    parameters.extend(site.output_as(0, ty));
    parameters.extend(Parameter::refusal());
    parameters
}

/// A warp for each of `n` pieces of work; the body knows its own as `warp`.
fn for_each_warp(site: &mut LaunchSite, n: usize, parameters: Vec<Parameter>, body: &str) {
    let (index, warps) = (site.index(), THREADS as usize / LANES);
    let text = format!(
        "    const {index} warp = {index}(blockIdx.x) * {warps}u + threadIdx.x / WARP;\n    \
         if (warp >= {}) return;\n{body}",
        constant(n)
    );
    site.launch([n.div_ceil(warps), 1, 1], THREADS, parameters, text);
}

/// The function that says where an update goes, of its number `k`.
fn place(index: &str, look: &str, place: &str) -> String {
    format!("    const auto place = [=]({index} k) -> i64 {{\n{look}    return {place};\n    }};\n")
}

/// Updates with one index off the axis are a line; lines do not meet.
fn scatter_elements(site: &mut LaunchSite, axis: usize, reduction: Scatter) {
    let (x, indices) = (site.inputs[0], site.inputs[1]);
    let (ty, combine) = combine(reduction, x.dtype);
    let parameters = begin(site, ty);
    if indices.elements() == 0 {
        return;
    }
    let index = site.index();
    let (extent, steps) = (x.shape[axis], indices.shape[axis]);
    let off_axis = |list: &[usize]| [&list[..axis], &list[axis + 1..]].concat();
    let signed = |list: Vec<usize>| list.into_iter().map(|s| s as i64).collect::<Vec<_>>();
    let walked = off_axis(&indices.shape);
    let (dense, dense_updates) = (dense_strides(&x.shape), dense_strides(&indices.shape));
    let to = offset(&walked, &signed(off_axis(&dense)), "line");
    let from = offset(&walked, &signed(off_axis(&dense_updates)), "line");
    let [along, inner] = [dense[axis], dense_updates[axis]].map(constant);
    let lines: usize = walked.iter().product();
    let count = constant(steps);

    // Neighbouring threads read neighbouring updates where the axis is not the last one.
    if steps <= 4 || (dense_updates[axis] >= LANES && lines >= LANES * WARPS) {
        let mut look = String::new();
        look_up(&mut look, 0, "update", extent, "continue");
        let body = format!(
            "    const {index} line = i;\n    \
             for ({index} k = 0; k < {count}; k++) {{\n    \
             const {index} update = {from} + k * {inner};\n{look}    \
             {ty}* const to = y0 + ({to} + {index}(at0) * {along});\n    \
             *to = {combine}::combine(*to, x2[update]);\n    }}\n"
        );
        site.for_each(lines, index, parameters, &body);
        return;
    }
    let shares = shares(lines, steps, LANES);
    let mut look = String::new();
    look_up(&mut look, 0, &format!("first + k * {inner}"), extent, "return -1");
    let body = format!(
        "    const {index} line = warp / {shares}u, first = {from};\n{place}    \
         scatter_elements<{combine}, {shares}>(\n        \
         y0 + ({to}), {index}({along}), x2 + first, {index}({inner}), {index}({count}),\n        \
         u32(warp % {shares}u), place);\n",
        place = place(index, &look, "at0"),
    );
    for_each_warp(site, lines * shares, parameters, &body);
}

fn scatter_nd(site: &mut LaunchSite, reduction: Scatter) {
    let (x, indices) = (site.inputs[0], site.inputs[1]);
    let Some((&depth, counts)) = indices.shape.split_last() else { return };
    let tuple = Tuple::new(&x.shape, depth);
    let count: usize = counts.iter().product();
    let (ty, combine) = combine(reduction, x.dtype);
    let parameters = begin(site, ty);
    if count == 0 {
        return;
    }
    let index = site.index();
    let mut look = String::new();
    tuple.look_up(&mut look, "k", "return -1");
    let place = place(index, &look, &tuple.place(index, 1));
    let (run, n) = (constant(tuple.run), constant(count));
    if tuple.run == 1 {
        let shares = shares(1, count, LANES);
        let body = format!(
            "{place}    scatter_elements<{combine}, {shares}>(\n        \
             y0, {index}(1), x2, {index}(1), {index}({n}), u32(warp), place);\n"
        );
        for_each_warp(site, shares, parameters, &body);
        return;
    }
    // Rows of no elements have indices all the same.
    let pieces = tuple.run.div_ceil(COLUMNS).max(1);
    let shares = shares(pieces, count, 1);
    let body = format!(
        "    const {index} column = warp / {shares}u * {COLUMNS}u;\n    \
         const {index} left = {run} - column;\n{place}    \
         scatter_rows<{combine}, {shares}>(\n        \
         y0 + column, x2 + column, {index}({run}), left < {COLUMNS}u ? left : {COLUMNS}u,\n        \
         {index}({n}), u32(warp % {shares}u), place);\n"
    );
    for_each_warp(site, pieces * shares, parameters, &body);
}
