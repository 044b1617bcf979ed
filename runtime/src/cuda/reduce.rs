//! `Reduce`: the terms of a result are shared by threads of a block and, where results are too
//! few to fill the device, by several blocks, whose partial results a second kernel combines.
//!
//! Who combines what follows from shapes, so the order of every sum does.

use super::elementwise::computed;
use super::index::{constant, index_type, offset};
use super::site::{LaunchSite, Parameter, THREADS, c_type};
use arenic_backends::cuda::tiling::{Sharing, Tiling, reduce as tiling};
use arenic_backends::reduce::{ReducePlan, reduce};
use arenic_ir::DType;
use arenic_ir::op::Reduction;
use arenic_ir::op::families::Reducing;
use arenic_ir::types::dense_strides;
use std::fmt::Write;

/// How elements are combined, and what is done with what comes of it.
pub(super) struct Combination {
    /// The functions by which elements combine.
    pub(super) combiner: String,
    /// The type that they combine in.
    pub(super) acc: String,
    /// Term `t` of `result`, read at `base`; see [`element`].
    pub(super) term: String,
    /// What is read by terms.
    pub(super) read: Vec<Parameter>,
    /// Operands of which term `t` reads the element at [`element`] and no other.
    pub(super) walked: Vec<usize>,
    /// What becomes of `acc`: statements that may read `result`.
    pub(super) store: String,
    /// What is read and written there.
    pub(super) written: Vec<Parameter>,
    /// Where partial results go in scratch.
    pub(super) partial: u64,
}

/// The place of the element that is term `t` of `result`.
pub(super) fn element(plan: &ReducePlan) -> String {
    format!("base + {}", place(plan, true, "t"))
}

/// The kernel of a reduction.
pub(super) fn lower(site: &mut LaunchSite, op: Reducing) {
    let (x, f, axes) = op.reduction(site.inputs);
    let Some(y) = site.output(0) else { return };
    let plan = reduce(&x, axes);
    let element = element(&plan);
    let value = match op {
        Reducing::PointwiseReduce { steps, .. } => {
            computed(site, steps, 0..site.inputs.len(), &element)
        }
        Reducing::Reduce { .. } => format!("x0[{element}]"),
    };
    let acc = match (f, x.dtype) {
        (Reduction::Mean, DType::U8 | DType::U16 | DType::U32) => c_type(DType::U64),
        (Reduction::Mean, d) if d.is_int() && d != DType::U64 => c_type(DType::I64),
        (_, d) => c_type(d),
    };
    let terms = if x.elements() == 0 { 0 } else { tiling(&plan).terms };
    // Those that are not broadcast.
    let walked = (0..site.inputs.len()).filter(|&k| site.inputs[k].elements() == x.elements());
    let walked: Vec<usize> = walked.filter(|&k| site.inputs[k].shape.ends_with(&x.shape)).collect();
    let combination = Combination {
        walked,
        combiner: combiner(f, x.dtype),
        acc: acc.into(),
        term: format!("F::lift({value})"),
        read: site.all_inputs(),
        store: format!("y0[result] = F::finish(acc, {})", constant(terms)),
        written: vec![y],
        partial: 0,
    };
    combine(site, &plan, x.elements(), combination);
}

/// The kernels that combine the elements of a tensor of so many.
pub(super) fn combine(site: &mut LaunchSite, plan: &ReducePlan, elements: usize, c: Combination) {
    if elements == 0 {
        let index = index_type(plan.results);
        let body = format!(
            "    typedef {} F;\n    const {index} result = i;\n    const {} acc = F::identity();\n    {};\n",
            c.combiner, c.acc, c.store
        );
        return site.for_each(plan.results, index, c.written, &body);
    }
    let tiling = tiling(plan);
    let is_packed = |&k: &usize| {
        let bytes = tiling.each as u64 * site.inputs[k].dtype.size();
        site.alignments[k].is_multiple_of(bytes)
    };
    let first = Stage {
        tiling: &tiling,
        packed: c.walked.iter().copied().filter(is_packed).map(|k| format!("x{k}")).collect(),
        at: place(plan, true, "t"),
        results: plan.results,
        combiner: &c.combiner,
        acc: &c.acc,
        index: index_type(elements),
        base: place(plan, false, "result"),
        term: c.term,
        store: match (tiling.parts, tiling.sharing) {
            (1, _) => c.store.clone(),
            (parts, Sharing::Lanes(_)) => {
                format!("partial[result * {} + part] = acc", constant(parts))
            }
            _ => format!("partial[part * {} + result] = acc", constant(plan.results)),
        },
    };
    let partial = Parameter::scratch(&c.acc, "partial", c.partial);
    if tiling.parts == 1 {
        return first.launch(site, c.read.into_iter().chain(c.written));
    }
    first.launch(site, c.read.into_iter().chain([partial.clone()]));
    let by_lanes = matches!(tiling.sharing, Sharing::Lanes(_));
    let second = Stage {
        tiling: &tiling.second(plan.results),
        index: index_type(tiling.parts * plan.results),
        base: if by_lanes {
            format!("result * {}", constant(tiling.parts))
        } else {
            "result".into()
        },
        // A thread has one result there.
        packed: Vec::new(),
        term: match by_lanes {
            true => "partial[base + t]".into(),
            false => format!("partial[base + t * {}]", constant(plan.results)),
        },
        store: c.store,
        ..first
    };
    second.launch(site, [partial].into_iter().chain(c.written));
}

/// One kernel that combines terms.
struct Stage<'a> {
    tiling: &'a Tiling,
    results: usize,
    combiner: &'a str,
    acc: &'a str,
    index: &'a str,
    /// Where the terms of `result` begin.
    base: String,
    /// From there to term `t`.
    at: String,
    /// What is read there, by its name, and loaded at once for neighbouring results.
    packed: Vec<String>,
    /// Term `t`, read at `base`.
    term: String,
    /// What becomes of `acc`.
    store: String,
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

/// Text that differs between threads of one result and those of several.
struct Share {
    /// The name of the result, or of the first one.
    name: &'static str,
    /// The functions by which a thread's sums combine, and their type.
    combiner: String,
    sums: String,
    /// What names the result before its base.
    before: &'static str,
    /// Statements that return term `t` of all that the thread has.
    term: String,
    /// Statements that store all of it.
    store: String,
}

impl Stage<'_> {
    fn of_one(&self) -> Share {
        let (acc, term, store) = (self.acc, &self.term, &self.store);
        Share {
            name: "result",
            combiner: self.combiner.into(),
            sums: acc.into(),
            before: "",
            term: format!("return {term};"),
            store: format!("const {acc} acc = all; {store};"),
        }
    }

    /// Neighbours, whose terms are loaded at once and then looked at one by one.
    fn of_several(&self, each: usize) -> Share {
        let &Stage { combiner, acc, index, ref base, ref at, ref term, ref store, .. } = self;
        let [mut loads, mut lanes] = [String::new(), String::new()];
        // Writing to a string does not fail.
        for x in &self.packed {
            let _ = writeln!(
                loads,
                "            const auto {x}_read = load_pack<{each}>({x} + (base + {at}));"
            );
            let _ = writeln!(lanes, "                const auto {x} = lane_of({x}_read, of);");
        }
        let loop_over = format!("\n#pragma unroll\n    for (u32 of = 0; of < {each}u; of++)");
        Share {
            name: "first_result",
            combiner: format!("ForMany<{combiner}, {acc}, {each}>"),
            sums: format!("Many<{acc}, {each}>"),
            before: "result = first_result, ",
            term: format!(
                "Many<{acc}, {each}> many;
{loads}{loop_over} many.at[of] = [&](const {index} result) -> {acc} {{
                const {index} base = {base};
{lanes}                typedef {combiner} F;
                return {term};
            }}(first_result + of);
            return many;"
            ),
            store: format!(
                "{loop_over} {{
        const {index} result = first_result + of;
        const {acc} acc = all.at[of];
        typedef {combiner} F;
        {store};
    }}"
            ),
        }
    }

    fn launch(&self, site: &mut LaunchSite, parameters: impl IntoIterator<Item = Parameter>) {
        let &Stage { tiling, results, index, .. } = self;
        let Tiling { terms, sharing, parts, share, each } = *tiling;
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
                // One thread has nobody to combine with.
                (lanes > 1).then(|| format!("combine_lanes<F, {lanes}>(all)")),
            ),
            Sharing::Columns { width, height } => (
                width,
                height,
                format!("threadIdx.x / {width}u"),
                format!("threadIdx.x % {width}u"),
                format!(" && lane < {height}u"),
                Some(format!("combine_columns<F, {width}, {height}>(all)")),
            ),
        };
        let strips = (results / each).div_ceil(per_block);
        let [strips_text, share_text, terms, results, of_block] =
            [strips, share, terms, results, per_block * each].map(constant);
        let Share { name, combiner, sums, before, term, store } = match each {
            1 => self.of_one(),
            _ => self.of_several(each),
        };
        let base = &self.base;
        let combined = combine.map_or(String::new(), |combine| format!("    all = {combine};\n"));
        let mut body = String::new();
        let _ = write!(
            body,
            "    typedef {combiner} F;
    const u32 lane = {lane};
    const {index} part = blockIdx.x / {strips_text};
    const {index} {name} = {index}(blockIdx.x % {strips_text}) * {of_block} + ({mine}) * {each}u;
    {sums} all = F::identity();
    const bool live = {name} < {results}{live};
    if (live) {{
        const {index} {before}base = {base}, first = part * {share_text}, rest = {terms} - first;
        const {index} end = first + (rest < {share_text} ? rest : {share_text});
        all = strided<F, {sums}, {index}>(first + lane, end, {step}u, [=]({index} t) {{
            {term}
        }});
    }}
{combined}    if (live && lane == 0) {{ {store} }}
",
        );
        site.launch([strips * parts, 1, 1], threads as u32, parameters, body);
    }
}
