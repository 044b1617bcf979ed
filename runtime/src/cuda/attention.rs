//! `Attention` and its gradient: tiles of queries against all keys, and of keys against all
//! queries, so that scores are never stored and every sum has one warp that adds it up in order.
//! Elements of `bf16` are multiplied by tensor cores, and those of `f32` where the target has TF32.

use super::index::{broadcast_strides, constant, index_type, offset};
use super::random::seed;
use super::site::{LaunchSite, Parameter, c_type, literal};
use super::work::{Unsupported, Work};
use arenic_backends::cuda::library;
use arenic_backends::cuda::tiling::{
    AttentionCore, AttentionTile, MaskSums, attention_core, attention_tile, mask_sums,
};
use arenic_ir::op::families::Attention;
use arenic_ir::op::{AttentionDropout, Matrices};
use arenic_ir::{DType, Math, TensorType};

/// Threads of a block for each row of its tile: a warp has 16 rows.
const THREADS_OF_ROW: usize = 2;

/// Bytes that are loaded at once where all rows begin at multiples of them.
const WIDE: usize = 16;

/// The kernels of one of the operators.
///
/// # Errors
/// Queries and values are so wide that no tile of them fits a block.
pub(super) fn lower(site: &mut LaunchSite, op: Attention, math: Math) -> Result<(), Unsupported> {
    let Some(tile) = attention_tile(op, site.inputs) else {
        let [q, v] = [site.inputs[0], site.inputs[2]];
        return Err(Unsupported(format!("attention of {q} and {v}, whose rows are too long")));
    };
    match op {
        Attention::Attention { .. } => {
            let tiles = Tiles::new(site, op, math, tile, &[0, 1, 2]);
            forward(site, &tiles);
        }
        Attention::AttentionGrad { has_result, .. } => {
            let tiles = Tiles::new(site, op, math, tile, &[0, 1, 2, 5]);
            gradients(site, op, &tiles, *has_result);
        }
    }
    Ok(())
}

/// Kernels before a library's call and after it. It knows of each row one number, the logarithm of the sum of
/// exponentials, which is the maximum beside a sum of 1. Gradients read it behind a workspace of so many bytes.
pub(super) fn beside_library(
    site: &mut LaunchSite,
    call: &library::Attention,
    workspace: u64,
) -> [Vec<Work>; 2] {
    let rows = call.batch * call.heads * call.queries;
    let index = index_type(rows);
    let mut made = [vec![], vec![]];
    if call.gradients {
        let statistics = Parameter::scratch("float", "statistics", workspace);
        let body = "    statistics[i] = x3[i] + log(x4[i]);\n";
        site.for_each(rows, index, [site.input(3), site.input(4), statistics], body);
        made[0] = std::mem::take(&mut site.work);
    } else if let Some(sum) = site.output(2).filter(|_| call.keeps_statistics) {
        site.for_each(rows, index, [sum], "    y2[i] = 1;\n");
        made[1] = std::mem::take(&mut site.work);
    }
    made
}

/// What the kernels of one attention have in common.
struct Tiles {
    /// Matrices of keys.
    batch: usize,
    /// Matrices of queries that share one of keys.
    group: usize,
    queries: usize,
    keys: usize,
    tile: AttentionTile,
    depth: usize,
    width: usize,
    /// Where matrices are: of queries, keys, values and results.
    layout: [Matrices; 4],
    /// Extents of the batch of queries, heads included.
    extents: Vec<usize>,
    index: &'static str,
    t: &'static str,
    /// Elements are `bf16`.
    narrow: bool,
    /// Statements that name `a`, what is fixed.
    fixed: String,
    /// Statements that name `score`, `slope` and `drop`. What they call `batch` is a matrix of queries.
    functions: String,
    drops: bool,
    /// Queries, keys and values are one tensor, and so are their gradients.
    packed: bool,
}

impl Tiles {
    /// Of an operator that reads `matrices` in tiles, and masks behind all other operands, where there
    /// are some.
    fn new(
        site: &LaunchSite,
        op: Attention,
        math: Math,
        tile: AttentionTile,
        matrices: &[usize],
    ) -> Tiles {
        let (spec, first_mask) = (*op.spec(), op.first_mask());
        let [q, _, v] = &spec.heads_first(site.inputs);
        let matrix = |x: &TensorType| [x.shape[x.rank() - 2], x.shape[x.rank() - 1]];
        let ([queries, depth], [keys, width]) = (matrix(q), matrix(v));
        let batch = v.elements() / (keys * width);
        let most = site.inputs.iter().map(|x| x.elements()).max().unwrap_or(0);
        let group = spec.group;
        let scores = batch * group * queries * keys;
        let index = index_type(most.max(scores));
        let t = c_type(q.dtype);
        let (causal, zero, drops) = (spec.causal, spec.zero_rows, spec.dropout.is_some());
        let policy = match attention_core(q.dtype, math) {
            AttentionCore::Bf16 => "Bf16Core".to_owned(),
            AttentionCore::Tf32 => "Tf32Core".to_owned(),
            AttentionCore::Fma => format!("Fma<{t}>"),
        };
        let is_aligned = |&i: &usize| {
            let row = site.inputs[i].shape.last().map_or(0, |n| n * q.dtype.size() as usize);
            row.is_multiple_of(WIDE) && site.alignments[i].is_multiple_of(WIDE as u64)
        };
        let aligned = matrices.iter().all(is_aligned);
        let layout = spec.matrices(site.inputs);
        let scale = format!("{t}({})", literal(spec.scale));
        let mut score = format!("product * {scale}");
        let mut slope = scale.clone();
        if let Some(cap) = spec.softcap {
            let cap = format!("{t}({})", literal(cap));
            let part = format!("tanh_of({score} / {cap})");
            score = format!("{part} * {cap}");
            slope = format!("{slope} * ({t}(1) - {part} * {part})");
        }
        for (i, mask) in site.inputs.iter().enumerate().skip(first_mask) {
            let shape = [&q.shape[..q.rank() - 1], &[keys]].concat();
            let at = offset(&shape, &broadcast_strides(&mask.shape, shape.len()), "at");
            score = format!("{score} + x{i}[{at}]");
        }
        let (rows, columns) = (constant(queries), constant(keys));
        let AttentionTile { rows: of_block, columns: at_once, shared } = tile;
        let of_rows = layout.map(|of| of.row.to_string()).join(", ");
        let (query_head, result_head) = (layout[0].head, layout[3].head);
        let fixed = format!(
            "    typedef Attention<{policy}, {index}, {of_block}, {at_once}, {depth}, {width}, {shared}, \
             {aligned}, {causal}, {zero}, {group}, {of_rows}, {query_head}ull, {result_head}ull> A;
    const A a = {{{rows}, {columns}}};
"
        );
        let functions = format!(
            "    auto score = [=]({index} row, {index} column, {t} product) -> {t} {{
        const {index} at = (batch * {rows} + row) * {columns} + column;
        return {score};
    }};
    auto slope = [=]({t} product) -> {t} {{ return {slope}; }};
{drop}",
            drop = match spec.dropout {
                Some(dropout) => {
                    dropping(dropout, index, t, [&rows, &columns], scores)
                }
                None => format!("    auto drop = []({index}, {index}, {t} x) {{ return x; }};\n"),
            }
        );
        let narrow = q.dtype == DType::Bf16;
        Tiles {
            batch,
            group,
            queries,
            keys,
            tile,
            depth,
            width,
            layout,
            extents: q.shape[..q.rank() - 2].to_vec(),
            index,
            t,
            narrow,
            fixed,
            functions,
            drops,
            packed: spec.packed,
        }
    }

    /// Which result the gradient of queries, keys or values is in.
    fn gradient(&self, of: Tensor) -> usize {
        if self.packed { 0 } else { of as usize }
    }

    /// The address of a matrix of a parameter.
    fn matrix(&self, name: &str, of: Tensor) -> String {
        format!("{name} + {}", self.offset(of))
    }

    /// The first element of a matrix of a tensor.
    fn offset(&self, of: Tensor) -> String {
        let Matrices { first, heads, sequence, head, .. } = self.layout[of as usize];
        let name = of.owner().name();
        // Sequences follow one another as their matrices do.
        if first == 0 && head * heads == sequence {
            return format!("{name} * {}", constant(head));
        }
        let first = if first == 0 { String::new() } else { format!("{} + ", constant(first)) };
        let [heads, sequence, head] = [heads, sequence, head].map(constant);
        format!("({first}{name} / {heads} * {sequence} + {name} % {heads} * {head})")
    }

    /// The address of a matrix of queries' statistics.
    fn rows(&self, name: &str) -> String {
        format!("{name} + {} * {}", Of::Queries.name(), constant(self.queries))
    }

    /// A function that stores an element of a matrix of result `o`, where somebody reads it.
    fn store(&self, site: &LaunchSite, name: &str, o: usize, of: Tensor) -> String {
        let (index, t) = (self.index, self.t);
        let store = match site.outputs[o] {
            Some(_) => {
                let (first, row) = (self.offset(of), constant(self.layout[of as usize].row));
                format!("y{o}[{first} + row * {row} + column] = x;")
            }
            None => String::new(),
        };
        format!("    auto {name} = [=]({index} row, {index} column, {t} x) {{ {store} }};\n")
    }

    /// Launches a block for each tile of rows of every matrix of queries, or of keys. What the body
    /// calls `first` is the tile's first row. Of queries that share keys, `batch` is the first
    /// matrix.
    fn launch(&self, site: &mut LaunchSite, of: Of, mut parameters: Vec<Parameter>, body: &str) {
        parameters.extend(self.drops.then(Parameter::draw));
        let (tile, group) = (self.tile.rows, self.group);
        let (matrices, rows, other) = match of {
            Of::Queries => {
                (self.batch * group, self.queries, format!("of_keys = batch / {group}u"))
            }
            Of::Keys => (self.batch, self.keys, format!("batch = of_keys * {group}u")),
        };
        let tiles = rows.div_ceil(tile);
        // No queries, but gradients of keys, which are zero.
        if matrices * tiles == 0 {
            return;
        }
        let (index, fixed, functions, own) = (self.index, &self.fixed, &self.functions, of.name());
        // Those that take longest begin first: where queries meet no later keys, the last queries.
        let number = match of {
            Of::Queries => format!("{tiles}u - 1u - blockIdx.x / {matrices}u"),
            Of::Keys => format!("blockIdx.x / {matrices}u"),
        };
        let body = format!(
            "    const {index} {own} = blockIdx.x % {matrices}u;
    const {index} {other};
    const {index} first = {index}({number}) * {tile}u;
{fixed}{functions}{body}"
        );
        let threads = (tile * THREADS_OF_ROW) as u32;
        // What sums and tiles of short rows need fits the registers of so many blocks, but for a few of the keys'
        // gradients.
        let is_short = self.narrow && self.depth.max(self.width) <= 64;
        let resident = if is_short && threads == 128 { 4 } else { 0 };
        site.launch_resident([matrices * tiles, 1, 1], threads, resident, parameters, body);
    }
}

/// A tensor of matrices, or its gradient, by its place in `AttentionSpec::matrices`.
#[derive(Clone, Copy)]
enum Tensor {
    Queries,
    Keys,
    Values,
    Result,
}

impl Tensor {
    fn owner(self) -> Of {
        match self {
            Tensor::Queries | Tensor::Result => Of::Queries,
            Tensor::Keys | Tensor::Values => Of::Keys,
        }
    }
}

/// What a matrix belongs to.
#[derive(Clone, Copy)]
enum Of {
    Queries,
    /// Keys and values.
    Keys,
}

impl Of {
    /// The number of the matrix.
    fn name(self) -> &'static str {
        match self {
            Of::Queries => "batch",
            Of::Keys => "of_keys",
        }
    }
}

/// Statements that name `drop`; it counts all `n` scores, those that a causal attention leaves out,
/// too.
fn dropping(
    dropout: AttentionDropout,
    index: &str,
    t: &str,
    [rows, columns]: [&str; 2],
    n: usize,
) -> String {
    let AttentionDropout { ratio, rng } = dropout;
    // As it is rounded where the CPU multiplies by it.
    let scale = match t {
        "double" => 1.0 / (1.0 - ratio),
        _ => f64::from(1.0 / (1.0 - ratio as f32)),
    };
    format!(
        "    const Dropped<{t}> dropped = {{{seed}, {stream}ull, draw->step, draw->first_counter({n}ull),
                                   {threshold}ull, {t}({scale})}};
    auto drop = [=]({index} row, {index} column, {t} x) {{
        return dropped.of((batch * {rows} + row) * {columns} + column, x);
    }};
",
        seed = seed(&rng),
        stream = rng.stream,
        threshold = dropout.threshold(),
        scale = literal(scale),
    )
}

fn forward(site: &mut LaunchSite, tiles: &Tiles) {
    let &Tiles { queries, index, t, .. } = tiles;
    let row = format!("batch * {} + row", constant(queries));
    let stores: String = [(1, "max"), (2, "sum")]
        .into_iter()
        .filter(|&(o, _)| site.outputs[o].is_some())
        .map(|(o, x)| format!("y{o}[{row}] = {x}; "))
        .collect();
    let body = format!(
        "{store}    auto store_row = [=]({index} row, {t} max, {t} sum) {{ {stores}}};
    attention_rows(a, {q}, {k}, {v}, first, score, drop, store, store_row);
",
        store = tiles.store(site, "store", 0, Tensor::Result),
        q = tiles.matrix("x0", Tensor::Queries),
        k = tiles.matrix("x1", Tensor::Keys),
        v = tiles.matrix("x2", Tensor::Values),
    );
    let mut parameters = site.all_inputs();
    parameters.extend(site.all_outputs());
    tiles.launch(site, Of::Queries, parameters, &body);
}

fn gradients(site: &mut LaunchSite, op: Attention, tiles: &Tiles, has_result: bool) {
    let t = tiles.t;
    let operands = [
        tiles.matrix("x0", Tensor::Queries),
        tiles.matrix("x1", Tensor::Keys),
        tiles.matrix("x2", Tensor::Values),
        tiles.rows("x3"),
        tiles.rows("x4"),
        tiles.matrix("x5", Tensor::Result),
        tiles.rows("delta"),
    ]
    .join(", ");
    // Where there is no result, its gradient stands for it.
    let result = tiles.matrix(if has_result { "x6" } else { "x5" }, Tensor::Result);
    let results = [Tensor::Queries, Tensor::Keys, Tensor::Values].map(|of| tiles.gradient(of));
    let wanted = results.map(|o| site.outputs[o].is_some());
    let of_mask = site.outputs.get(results[2] + 1).copied().flatten();
    let delta = Parameter::scratch(t, "delta", 0);
    // Gradients of values alone do without the sums of rows.
    if wanted[0] || wanted[1] || of_mask.is_some() {
        let body = format!(
            "{store}    attention_query_gradients(a, {operands}, {result}, Known<{has_result}>{{}}, first, score,
        slope, drop, store, {});
",
            wanted[0],
            store = tiles.store(site, "store", results[0], Tensor::Queries),
        );
        let mut parameters = site.all_inputs();
        parameters.extend(site.output(results[0]));
        parameters.push(delta.clone());
        tiles.launch(site, Of::Queries, parameters, &body);
    }
    if wanted[1] || wanted[2] {
        let body = format!(
            "{store_key}{store_value}    attention_key_gradients(a, {operands}, first, score, slope, drop,
        store_key, store_value);
",
            store_key = tiles.store(site, "store_key", results[1], Tensor::Keys),
            store_value = tiles.store(site, "store_value", results[2], Tensor::Values),
        );
        let mut parameters = site.all_inputs();
        let mut written = results[1..].to_vec();
        written.dedup();
        parameters.extend(written.into_iter().filter_map(|o| site.output(o)));
        parameters.push(delta.clone());
        tiles.launch(site, Of::Keys, parameters, &body);
    }
    let mask = site.inputs.get(op.first_mask()).copied();
    if let (Some(of_mask), Some(mask), Some(sums)) = (of_mask, mask, mask_sums(op, site.inputs)) {
        mask_gradient(site, tiles, &operands, delta, [mask, of_mask], sums);
    }
}

/// Launches a block for each tile of rows and columns of every matrix of a mask's gradient, which
/// adds up what the batches give that share the matrix, or a part of them; and adds up parts.
fn mask_gradient(
    site: &mut LaunchSite,
    tiles: &Tiles,
    operands: &str,
    delta: Parameter,
    [mask, of_mask]: [&TensorType; 2],
    sums: MaskSums,
) {
    let &Tiles { index, t, tile, ref fixed, ref functions, .. } = tiles;
    let MaskSums { matrices, tiles: [down, across], parts, elements } = sums;
    if elements == 0 {
        return;
    }
    let batch = &tiles.extents;
    let own = &mask.shape[..mask.rank().saturating_sub(2)];
    let of_batch = offset(batch, &broadcast_strides(own, batch.len()), "batch");
    let (all, group) = (tiles.batch * tiles.group, tiles.group);
    let [queries, keys] = [tiles.queries, tiles.keys].map(constant);
    let o = tiles.gradient(Tensor::Values) + 1;
    let blocks = matrices * down * across;
    let statistics = tiles.batch * tiles.group * tiles.queries;
    let partial = Parameter::scratch(t, "partial", statistics as u64 * of_mask.dtype.size());
    let place = match parts {
        1 => format!("y{o}["),
        _ => format!("partial[part * {} + ", constant(elements)),
    };
    let body = format!(
        "    const {index} part = blockIdx.x / {blocks}u;
    const {index} matrix = blockIdx.x % {matrices}u;
    const {index} row0 = {index}(blockIdx.x / {matrices}u % {down}u) * {rows}u;
    const {index} column0 = {index}(blockIdx.x / {matrices}u / {down}u % {across}u) * {columns}u;
{fixed}    {t} sums[A::PIECES][4];
    clear(sums);
    const {index} end = {index}((part + 1) * {all}ull / {parts}u);
    for ({index} batch = {index}(part * {all}ull / {parts}u); batch < end; batch++) {{
        if ({of_batch} != matrix) continue;
        const {index} of_keys = batch / {group}u;
{functions}        attention_mask_gradients(a, {operands}, row0, column0, score, drop, sums);
    }}
    auto store = [=]({index} row, {index} column, {t} x) {{
        {place}(matrix * {queries} + row) * {keys} + column0 + column] = x;
    }};
    store_rows(sums, row0 + A::warp_row(), a.queries, u32(a.keys - column0), store);
",
        rows = tile.rows,
        columns = tile.columns,
    );
    let mut parameters = site.all_inputs();
    match parts {
        1 => parameters.extend(site.output(o)),
        _ => parameters.push(partial.clone()),
    }
    parameters.push(delta);
    parameters.extend(tiles.drops.then(Parameter::draw));
    let threads = (tile.rows * THREADS_OF_ROW) as u32;
    site.launch_resident([blocks * parts, 1, 1], threads, 0, parameters, body);
    if parts > 1 {
        let n = constant(elements);
        let body = format!(
            "    {t} sum = partial[i];
    for (u32 part = 1; part < {parts}u; part++) sum += partial[part * {n} + i];
    y{o}[i] = sum;
"
        );
        let parameters = [Some(partial), site.output(o)].into_iter().flatten();
        site.for_each(elements, index, parameters, &body);
    }
}
