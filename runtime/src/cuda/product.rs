//! Matrix products by kernels of our own: tiles of results, a block for each.
//!
//! Whatever is a sum of products is a [`Contraction`]: expressions say where its operands'
//! elements are, so that nothing is transposed or unfolded in memory. Long sums of few results
//! are cut into parts, which a second kernel adds up in order: nothing is left to chance.

use super::elementwise::pointwise;
use super::index::{broadcast_strides, constant, index_type, offset};
use super::site::{LaunchSite, Parameter, c_type, literal};
use super::update::Update;
use super::work::Unsupported;
use arenic_backends::cuda::tiling::{PRODUCT_TILE, product_parts};
use arenic_ir::op::families::{Elementwise, Product};
use arenic_ir::op::{Extents, Family, ProductOperands, gelu};
use arenic_ir::{Op, TensorType};
use std::fmt::Write;

/// `Σ_k a(row, k) · b(k, column)` for every batch, row and column.
pub(super) struct Contraction {
    pub(super) batches: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    /// The expression of an element of `a` in `batch`, `row` and `k`.
    pub(super) a: Factor,
    /// The expression of an element of `b` in `batch`, `k` and `column`.
    pub(super) b: Factor,
    /// Statements before anything else, which name what `store` uses.
    pub(super) setup: String,
    /// Statements that store the finished `sum`, in `batch`, `row` and `column`.
    pub(super) store: String,
}

/// One factor of a contraction.
pub(super) struct Factor {
    /// An expression, or statements that return one.
    pub(super) element: String,
    /// Elements of neighbouring `k` lie together.
    pub(super) k_inner: bool,
}

/// Threads of the kernel, `PRODUCT_THREADS` in `product.cuh`.
const PRODUCT_THREADS: u32 = 256;

/// The kernels of a product.
///
/// # Errors
/// There is no kernel for what is done with the product.
pub(super) fn lower(site: &mut LaunchSite, op: Product) -> Result<(), Unsupported> {
    let contraction = match op {
        Product::MatMul { trans_a, trans_b } => mat_mul(site, *trans_a, *trans_b),
        Product::Gemm { alpha, beta, trans_a, trans_b } => {
            gemm(site, [*alpha, *beta], *trans_a, *trans_b)
        }
        Product::GemmGelu { trans_a, trans_b } => {
            let product = gemm(site, [1.0, 1.0], *trans_a, *trans_b);
            Contraction { store: gelu_store(site), ..product }
        }
        Product::GemmGeluGrad { trans_a, trans_b } => {
            let product = gemm(site, [1.0, 1.0], *trans_a, *trans_b);
            Contraction { store: gelu_slope_store(site), ..product }
        }
        Product::ProductUpdate { alpha, trans_a, trans_b, gradient, update } => {
            product_update(site, *alpha, [*trans_a, *trans_b], *gradient, update)?
        }
    };
    contract(site, &contraction);
    Ok(())
}

/// Launches a contraction: one kernel, or one for parts of the sums and one that adds them.
pub(super) fn contract(site: &mut LaunchSite, c: &Contraction) {
    let Some(y) = site.outputs.iter().copied().flatten().next() else { return };
    let t = c_type(y.dtype);
    let results = c.batches * c.m * c.n;
    let largest = site.inputs.iter().map(|x| x.elements()).fold(results.max(c.k), usize::max);
    let index = index_type(largest);
    let parts = product_parts(c.batches, [c.m, c.n, c.k]);
    let (rows, columns) = (c.m.div_ceil(PRODUCT_TILE), c.n.div_ceil(PRODUCT_TILE));
    let depth = c.k.div_ceil(parts);
    let (m, n) = (constant(c.m), constant(c.n));
    let mut body = if parts == 1 { c.setup.clone() } else { String::new() };
    // Writing to a string does not fail.
    let _ = write!(
        body,
        "    const {index} tile = blockIdx.x / {parts}u, part = blockIdx.x % {parts}u;
    const {index} batch = tile / {tiles}u;
    const {index} row0 = tile / {columns}u % {rows}u * PRODUCT_TILE;
    const {index} column0 = tile % {columns}u * PRODUCT_TILE;
    const {index} first = part * {depth}u;
    const {index} last = part == {end}u ? {k} : first + {depth}u;
    auto a = [=]({index} row, {index} k) -> {t} {{ {a} }};
    auto b = [=]({index} k, {index} column) -> {t} {{ {b} }};
",
        tiles = rows * columns,
        end = parts - 1,
        k = constant(c.k),
        a = returned(&c.a.element),
        b = returned(&c.b.element),
    );
    let store = match parts {
        1 => c.store.clone(),
        _ => format!(
            "partial[((part * {} + batch) * {m} + row) * {n} + column] = sum;",
            constant(c.batches)
        ),
    };
    let _ = write!(
        body,
        "    auto store = [=]({index} row, {index} column, {t} sum) {{ {store} }};
    product_tile<{t}, {}, {}, {index}>({m}, {n}, first, last, row0, column0, a, b, store);
",
        c.a.k_inner, c.b.k_inner,
    );
    let mut parameters = site.all_inputs();
    match parts {
        1 => parameters.extend(site.all_outputs()),
        _ => parameters.push(Parameter::scratch(t, "partial", 0)),
    }
    let blocks = c.batches * rows * columns * parts;
    site.launch([blocks, 1, 1], PRODUCT_THREADS, parameters, body);
    if parts > 1 {
        let mut parameters = site.all_inputs();
        parameters.extend(site.all_outputs());
        parameters.push(Parameter::scratch(t, "partial", 0));
        let each = constant(results);
        let body = format!(
            "{setup}    {t} sum = partial[i];
    for ({index} part = 1; part < {parts}u; part++) sum = add(sum, partial[part * {each} + i]);
    const {index} batch = i / {all}, row = i / {n} % {m}, column = i % {n};
    {{ {store} }}
",
            setup = c.setup,
            all = constant(c.m * c.n),
            store = c.store,
        );
        site.for_each(results, index, parameters, &body);
    }
}

/// An expression as a statement.
fn returned(element: &str) -> String {
    if element.contains("return") { element.to_owned() } else { format!("return {element};") }
}

/// The matrix of an operand as an expression: its first element, then strides of rows and of
/// columns, exchanged where it is transposed.
fn matrix(x: &TensorType, name: &str, first: &str, trans: bool, by: [&str; 2]) -> String {
    let columns = match x.shape[..] {
        [_] | [] => 1,
        [.., columns] => columns,
    };
    let [row, column] = if trans { [by[1], by[0]] } else { by };
    // A vector on the left is one row, on the right one column.
    let at = match x.rank() {
        1 if name == "x0" => column.to_owned(),
        1 => row.to_owned(),
        _ => format!("{row} * {} + {column}", constant(columns)),
    };
    if first == "0u" { format!("{name}[{at}]") } else { format!("{name}[{first} + {at}]") }
}

fn mat_mul(site: &LaunchSite, trans_a: bool, trans_b: bool) -> Contraction {
    let (a, b) = (site.inputs[0], site.inputs[1]);
    let Some(y) = site.outputs[0] else { unreachable!("a product has one result") };
    let (batches, e) = Extents::of_mat_mul([a, b, y], trans_a, trans_b);
    let vectors = usize::from(a.rank() == 1) + usize::from(b.rank() == 1);
    let batch = &y.shape[..(y.rank() + vectors).saturating_sub(2)];
    // Where the rows of all batches are rows of one product, there is one batch.
    let first = |x: &TensorType, matrix: usize| {
        if batches <= 1 || x.rank() <= 2 {
            return "0u".to_owned();
        }
        let strides = broadcast_strides(&x.shape[..x.rank() - 2], batch.len());
        let strides: Vec<i64> = strides.iter().map(|s| s * matrix as i64).collect();
        match &offset(batch, &strides, "batch")[..] {
            "0u" => "0u".to_owned(),
            text => format!("({text})"),
        }
    };
    let store =
        format!("y0[(batch * {} + row) * {} + column] = sum;", constant(e.m), constant(e.n));
    Contraction {
        batches: batches.max(1),
        m: e.m,
        n: e.n,
        k: e.k,
        a: Factor {
            element: matrix(a, "x0", &first(a, e.m * e.k), trans_a, ["row", "k"]),
            k_inner: !trans_a,
        },
        b: Factor {
            element: matrix(b, "x1", &first(b, e.k * e.n), trans_b, ["k", "column"]),
            k_inner: trans_b,
        },
        setup: String::new(),
        store,
    }
}

fn gemm(site: &LaunchSite, [alpha, beta]: [f32; 2], trans_a: bool, trans_b: bool) -> Contraction {
    let t = c_type(site.inputs[0].dtype);
    let (a, b) = (site.inputs[0], site.inputs[1]);
    let e = Extents::of_gemm(a, b, trans_a, trans_b);
    let scaled = |x: f32, of: String| {
        if x == 1.0 { of } else { format!("mul(cast<{t}>({}), {of})", float_constant(x)) }
    };
    let mut sum = scaled(alpha, "sum".into());
    if let Some(c) = site.inputs.get(2).filter(|_| beta != 0.0) {
        let strides = broadcast_strides(&c.shape, 2);
        let at = offset(&[e.m, e.n], &strides, &format!("(row * {} + column)", constant(e.n)));
        sum = format!("add({sum}, {})", scaled(beta, format!("x2[{at}]")));
    }
    Contraction {
        batches: 1,
        m: e.m,
        n: e.n,
        k: e.k,
        a: Factor { element: matrix(a, "x0", "0u", trans_a, ["row", "k"]), k_inner: !trans_a },
        b: Factor { element: matrix(b, "x1", "0u", trans_b, ["k", "column"]), k_inner: trans_b },
        setup: String::new(),
        store: format!("y0[row * {} + column] = {sum};", constant(e.n)),
    }
}

/// GELU's factors as constants of a C type.
fn gelu_constants(t: &str) -> [String; 3] {
    [gelu::SCALE, gelu::CUBIC, 3.0 * gelu::CUBIC].map(|x| format!("cast<{t}>({})", literal(x)))
}

/// How a product with a GELU, or with its slope, is computed where a library has the product alone:
/// by that, and a pass over its result.
pub(super) struct GeluApart {
    /// The product.
    pub(super) product: Op,
    /// How many of the operands it has, the first ones.
    pub(super) operands: usize,
    /// Which of the results it gives.
    pub(super) output: usize,
    is_gradient: bool,
}

impl GeluApart {
    /// `None` for other operators. Of `bf16` the product is rounded before the pass reads it.
    pub(super) fn of(site: &LaunchSite) -> Option<GeluApart> {
        let (trans_a, trans_b, is_gradient) = match *site.op {
            Op::GemmGelu { trans_a, trans_b } => (trans_a, trans_b, false),
            Op::GemmGeluGrad { trans_a, trans_b } => (trans_a, trans_b, true),
            _ => return None,
        };
        let operands = if is_gradient { 2 } else { site.inputs.len() };
        let keeps_z = site.outputs.get(1).is_some_and(Option::is_some);
        let product = Op::Gemm { alpha: 1.0, beta: 1.0, trans_a, trans_b };
        Some(GeluApart { product, operands, output: usize::from(keeps_z), is_gradient })
    }

    /// The pass.
    pub(super) fn pass(&self, site: &mut LaunchSite) {
        let Some(y) = site.outputs[0] else { return };
        let t = c_type(y.dtype);
        let [scale, cubic, slope] = gelu_constants(t);
        let mut parameters = site.all_outputs();
        let body = match self.is_gradient {
            true => {
                parameters.push(site.input(2));
                format!(
                    "    const {t} dy = y0[i];
    y0[i] = mul(dy, gelu_slope<{t}>(x2[i], {scale}, {cubic}, {slope}));
"
                )
            }
            false => format!(
                "    const {t} z = y{}[i];\n    y0[i] = gelu_of(z, {scale}, {cubic});\n",
                self.output
            ),
        };
        site.for_each(y.elements(), index_type(y.elements()), parameters, &body);
    }
}

/// Names the element `i` of a result where a sum is stored.
fn stored_element(site: &LaunchSite) -> String {
    let columns = site.outputs.iter().flatten().next().map_or(1, |y| y.shape[1]);
    format!("const auto i = row * {} + column;\n", constant(columns))
}

/// Each finished sum times the slope of a GELU in its tanh form.
fn gelu_slope_store(site: &LaunchSite) -> String {
    let t = c_type(site.inputs[0].dtype);
    let [scale, cubic, slope] = gelu_constants(t);
    let value = format!("mul(sum, gelu_slope<{t}>(x2[i], {scale}, {cubic}, {slope}))");
    format!("{}y0[i] = {value};", stored_element(site))
}

/// GELU in its tanh form of each finished sum.
fn gelu_store(site: &LaunchSite) -> String {
    let t = c_type(site.inputs[0].dtype);
    let [scale, cubic, _] = gelu_constants(t);
    let mut text = stored_element(site);
    let z = if site.inputs.len() > 2 { "add(sum, x2[column])" } else { "sum" };
    text += &format!("const {t} z = {z};\n");
    if site.outputs[0].is_some() {
        text += &format!("y0[i] = gelu_of(z, {scale}, {cubic});\n");
    }
    if site.outputs[1].is_some() {
        text += "y1[i] = z;";
    }
    text
}

/// The product is the gradient of an update, which follows where each sum is finished: the
/// gradient is nowhere in memory.
fn product_update(
    site: &LaunchSite,
    alpha: f32,
    [trans_a, trans_b]: [bool; 2],
    gradient: usize,
    update: &Op,
) -> Result<Contraction, Unsupported> {
    let place = ProductOperands { gradient, others: site.inputs.len() - 2 };
    let [a, b] = [place.others, place.others + 1];
    let e = Extents::of_gemm(site.inputs[a], site.inputs[b], trans_a, trans_b);
    let t = c_type(site.inputs[a].dtype);
    let sum = match alpha {
        1.0 => "sum".to_owned(),
        alpha => format!("mul(cast<{t}>({}), sum)", float_constant(alpha)),
    };
    let operand = |i: usize| match place.of_update(i) {
        None => sum.clone(),
        Some(k) if site.inputs[k].elements() == 1 => format!("x{k}[0]"),
        Some(k) => format!("x{k}[i]"),
    };
    let mut store = format!("const auto i = row * {} + column;\n", constant(e.n));
    let mut setup = String::new();
    match update.family() {
        Family::Elementwise(Elementwise::Pointwise { steps, results }) => {
            let product = site.outputs.iter().copied().flatten().next();
            let types = place.operands(site.inputs, product.unwrap_or(site.inputs[a]));
            let operands: Vec<_> = types.into_iter().zip((0..=place.others).map(operand)).collect();
            pointwise(&mut store, &operands, steps, results, site);
        }
        Family::Update(update) => {
            let update = Update::of(update);
            setup = update.setup(t, [&operand(0), &operand(1)]);
            store.push_str(&update.element(site, t, operand));
        }
        _ => return Err(Unsupported(format!("product_update of {}", update.name()))),
    }
    let factor = |x: usize, trans, by, k_inner| Factor {
        element: matrix(site.inputs[x], &format!("x{x}"), "0u", trans, by),
        k_inner,
    };
    Ok(Contraction {
        batches: 1,
        m: e.m,
        n: e.n,
        k: e.k,
        a: factor(a, trans_a, ["row", "k"], !trans_a),
        b: factor(b, trans_b, ["k", "column"], trans_b),
        setup,
        store,
    })
}

/// A float as C writes it.
pub(super) fn float_constant(x: f32) -> String {
    match x {
        x if x.is_nan() => "NAN".into(),
        f32::INFINITY => "INFINITY".into(),
        f32::NEG_INFINITY => "-INFINITY".into(),
        x => format!("{x:?}f"),
    }
}
