//! `Reduce`: the terms of a result are shared by threads of a block and, where results are too
//! few to fill the device, by several blocks, whose partial results a second kernel combines.
//!
//! Who combines what follows from shapes, so the order of every sum does.

use super::index::{constant, index_type, offset};
use super::lower::{Parameter, Site, THREADS, c_type};
use arenic_ir::op::Reduction;
use arenic_ir::op::scratch::cuda::{Sharing, Tiling, reduce as tiling};
use arenic_ir::op::scratch::{ReducePlan, reduce};
use arenic_ir::types::dense_strides;
use arenic_ir::{DType, Op};
use std::fmt::Write;

/// One kernel that combines terms.
struct Stage<'a> {
    tiling: &'a Tiling,
    results: usize,
    /// The functions by which elements combine.
    combiner: &'a str,
    /// The type that they combine in.
    acc: &'a str,
    index: &'a str,
    /// Where the terms of `result` begin.
    base: String,
    /// Term `t`, read at `base`.
    term: String,
    /// What becomes of `acc`.
    store: String,
}

/// The kernels of a reduction.
pub(super) fn lower(site: &mut Site) {
    let Op::Reduce { f, axes, .. } = site.op else { return };
    let Some(y) = site.output(0) else { return };
    let x = site.inputs[0];
    let plan = reduce(x, axes);
    let combiner = combiner(*f, x.dtype);
    if x.elements() == 0 {
        let body = format!("    typedef {combiner} F;\n    y0[i] = F::finish(F::identity(), 0);\n");
        return site.for_each(plan.results, index_type(plan.results), [y], &body);
    }
    let tiling = tiling(&plan);
    let acc = match (f, x.dtype) {
        (Reduction::Mean, DType::U8 | DType::U16 | DType::U32) => c_type(DType::U64),
        (Reduction::Mean, d) if d.is_int() && d != DType::U64 => c_type(DType::I64),
        (_, d) => c_type(d),
    };
    let finish = format!("y0[result] = F::finish(acc, {})", constant(tiling.terms));
    let first = Stage {
        tiling: &tiling,
        results: plan.results,
        combiner: &combiner,
        acc,
        index: index_type(x.elements()),
        base: place(&plan, false, "result"),
        term: format!("F::lift(x0[base + {}])", place(&plan, true, "t")),
        store: match (tiling.parts, tiling.sharing) {
            (1, _) => finish.clone(),
            (parts, Sharing::Lanes(_)) => {
                format!("partial[result * {} + part] = acc", constant(parts))
            }
            _ => format!("partial[part * {} + result] = acc", constant(plan.results)),
        },
    };
    let partial = Parameter::scratch(acc, "partial", 0);
    if tiling.parts == 1 {
        return first.launch(site, [site.input(0), y]);
    }
    first.launch(site, [site.input(0), partial.clone()]);
    let by_lanes = matches!(tiling.sharing, Sharing::Lanes(_));
    let second = Stage {
        tiling: &tiling.second(plan.results),
        index: index_type(tiling.parts * plan.results),
        base: if by_lanes {
            format!("result * {}", constant(tiling.parts))
        } else {
            "result".into()
        },
        term: match by_lanes {
            true => "partial[base + t]".into(),
            false => format!("partial[base + t * {}]", constant(plan.results)),
        },
        store: finish,
        ..first
    };
    second.launch(site, [partial, y]);
}

/// The functions by which elements combine.
fn combiner(f: Reduction, d: DType) -> String {
    let t = c_type(d);
    match f {
        Reduction::Sum => format!("Plain<{t}, Sum<{t}>>"),
        Reduction::Mean => format!("Mean<{t}>"),
        Reduction::Min => format!("Plain<{t}, Smallest<{t}>>"),
        Reduction::Max => format!("Plain<{t}, Largest<{t}>>"),
        Reduction::Prod => format!("Plain<{t}, Product<{t}>>"),
    }
}

/// The offset of index `i` of the axes of one kind.
fn place(plan: &ReducePlan, reduced: bool, i: &str) -> String {
    let extents = &plan.extents[..plan.rank];
    let axes = dense_strides(extents).into_iter().zip(extents).enumerate();
    let (extents, strides): (Vec<usize>, Vec<i64>) = axes
        .filter(|&(axis, _)| plan.reduced(axis) == reduced)
        .map(|(_, (stride, &extent))| (extent, stride as i64))
        .unzip();
    offset(&extents, &strides, i)
}

impl Stage<'_> {
    fn launch(&self, site: &mut Site, parameters: [Parameter; 2]) {
        let &Stage { tiling, results, combiner, acc, index, .. } = self;
        let Tiling { terms, sharing, parts, share } = *tiling;
        let threads = match sharing {
            Sharing::Lanes(_) => THREADS as usize,
            Sharing::Columns { width, height } => (width * height).next_multiple_of(32),
        };
        let (per_block, step, lane, mine, live, combine) = match sharing {
            Sharing::Lanes(lanes) => (
                threads / lanes,
                lanes,
                format!("threadIdx.x % {lanes}u"),
                format!("threadIdx.x / {lanes}u"),
                String::new(),
                format!("combine_lanes<F, {lanes}>(acc)"),
            ),
            Sharing::Columns { width, height } => (
                width,
                height,
                format!("threadIdx.x / {width}u"),
                format!("threadIdx.x % {width}u"),
                format!(" && lane < {height}u"),
                format!("combine_columns<F, {width}, {height}>(acc)"),
            ),
        };
        let strips = results.div_ceil(per_block);
        let [strips_text, share_text, terms, results] =
            [strips, share, terms, results].map(constant);
        let mut body = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            body,
            "    typedef {combiner} F;
    const u32 lane = {lane};
    const {index} part = blockIdx.x / {strips_text};
    const {index} result = {index}(blockIdx.x % {strips_text}) * {per_block}u + {mine};
    {acc} acc = F::identity();
    const bool live = result < {results}{live};
    if (live) {{
        const {index} base = {}, first = part * {share_text}, rest = {terms} - first;
        const {index} end = first + (rest < {share_text} ? rest : {share_text});
        acc = strided<F, {acc}, {index}>(first + lane, end, {step}u, [=]({index} t) {{
            return {};
        }});
    }}
    acc = {combine};
    if (live && lane == 0) {};
",
            self.base, self.term, self.store
        );
        site.launch([strips * parts, 1, 1], threads as u32, parameters, body);
    }
}
