//! `LayerNorm`: mean and variance of every row, in two passes over what its threads hold of it;
//! and its gradients. Steps that a normalisation is fused with are text in its last kernel; those that
//! make a gradient's `dy` are text wherever it is read.

use super::batch_norm;
use super::elementwise::{computed, stored};
use super::index::{broadcast_strides, offset};
use super::reduce::{Combination, combine, element};
use super::rows::{Each, StridedRows};
use super::site::{LaunchSite, Parameter, c_type, literal};
use arenic_backends::cuda::tiling::{channel_sums, row_sums};
use arenic_backends::reduce::ReducePlan;
use arenic_ir::Op;
use arenic_ir::op::Step;
use arenic_ir::op::families::Norm;
use arenic_ir::op::fused_norm::{DY, kept};
use std::fmt::Write;
use std::ops::Range;

/// Steps, and the operands that they alone read.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    steps: &'a [Step],
    /// The first one, and where they end.
    operands: [usize; 2],
    /// The result that what the last step gives is beside the first, as `bf16`.
    pub(super) rounded: Option<usize>,
}

/// The kernels of a normalisation or of one of its gradients.
pub(super) fn lower(site: &mut LaunchSite, op: Norm) {
    match op {
        Norm::FusedNorm { of, others, steps, rounded } => {
            let (first, all) = (site.inputs.len() - others, site.inputs.len());
            let rounded = rounded.then(|| site.outputs.len() - 1);
            let then = Some(Steps { steps, operands: [first, all], rounded });
            match &**of {
                Op::FusedNormGrad { of, steps } => {
                    let dy = Steps { steps, operands: [kept(of), first], rounded: None };
                    fused(site, of, Dy(Some(dy)), then);
                }
                of => fused(site, of, Dy(None), then),
            }
        }
        Norm::FusedNormGrad { of, steps } => {
            let operands = [kept(of), site.inputs.len()];
            fused(site, of, Dy(Some(Steps { steps, operands, rounded: None })), None);
        }
        Norm::LayerNorm { .. }
        | Norm::LayerNormParamGrad { .. }
        | Norm::LayerNormInputGrad { .. }
        | Norm::BatchNorm { .. }
        | Norm::BatchNormParamGrad
        | Norm::BatchNormInputGrad => fused(site, site.op, Dy(None), None),
    }
}

/// Those of an operator with what makes a gradient's `dy`, and the steps that follow its result.
fn fused(site: &mut LaunchSite, op: &Op, dy: Dy, then: Option<Steps>) {
    match *op {
        Op::LayerNorm { axis, epsilon } => forward(site, axis, epsilon, then),
        Op::LayerNormInputGrad { axis } => of_operand(site, axis, dy, then),
        Op::LayerNormParamGrad { axis } => {
            let plan = row_sums(site.inputs[0], axis);
            of_parameters(site, &plan, "t", dy);
        }
        Op::BatchNorm { epsilon } => batch_norm::forward(site, epsilon, then),
        Op::BatchNormParamGrad => {
            let plan = channel_sums(site.inputs[0]);
            of_parameters(site, &plan, "result", dy);
        }
        Op::BatchNormInputGrad => batch_norm::of_operand(site, dy, then),
        _ => unreachable!("`infer` takes no other operator"),
    }
}

impl Steps<'_> {
    fn operands(&self) -> Range<usize> {
        self.operands[0]..self.operands[1]
    }

    /// Statements that store what the steps make of an element that was computed, an expression, at this
    /// place.
    pub(super) fn store(&self, site: &LaunchSite, value: String, place: &str) -> String {
        let results: Vec<usize> = [0].into_iter().chain(self.rounded).collect();
        stored(site, self.steps, self.operands(), (value, &results), place)
    }

    /// The places of what they give, as parameters.
    fn results(&self, site: &LaunchSite) -> Vec<Parameter> {
        self.written(site).into_iter().filter_map(|o| site.output(o)).collect()
    }

    /// The results that they write.
    fn written(&self, site: &LaunchSite) -> Vec<usize> {
        [0].into_iter().chain(self.rounded).filter(|&o| site.outputs[o].is_some()).collect()
    }

    /// Which of their operands have an element for each of the first operand's.
    pub(super) fn whole(&self, site: &LaunchSite) -> impl Iterator<Item = usize> {
        self.operands().filter(|&k| site.inputs[k].elements() > 1)
    }
}

/// How many operands a normalisation has that steps follow, or none.
fn own(site: &LaunchSite, then: Option<&Steps>) -> usize {
    then.map_or(site.inputs.len(), |then| then.operands[0])
}

/// The places of the first result, or of what steps after it give; none where nobody reads it.
pub(super) fn results(site: &LaunchSite, then: Option<&Steps>) -> Vec<Parameter> {
    match then {
        Some(then) => then.results(site),
        None => site.output(0).into_iter().collect(),
    }
}

/// The gradient of a normalisation's result: an operand, or what steps give.
#[derive(Clone, Copy)]
pub(super) struct Dy<'a>(Option<Steps<'a>>);

impl Dy<'_> {
    /// Its element at this place, as an expression.
    pub(super) fn element(self, site: &LaunchSite, place: &str) -> String {
        match &self.0 {
            Some(dy) => computed(site, dy.steps, dy.operands(), place),
            None => format!("x{DY}[{place}]"),
        }
    }

    /// The parameter that is the gradient's operand `k`, which comes after `dy`.
    pub(super) fn after(self, k: usize) -> String {
        format!("x{}", if self.0.is_some() { k - 1 } else { k })
    }

    /// Which operands have an element for each of the first one's.
    pub(super) fn whole(self, site: &LaunchSite) -> Vec<usize> {
        match &self.0 {
            Some(steps) => [0].into_iter().chain(steps.whole(site)).collect(),
            None => vec![0, DY],
        }
    }
}

/// The element `i` of a row of a scale or bias, operand `k`.
fn factor(site: &LaunchSite, row: &[usize], k: usize) -> String {
    let strides = broadcast_strides(&site.inputs[k].shape, row.len());
    format!("x{k}[{}]", offset(row, &strides, "i"))
}

/// What the last loop of a kernel does with each element of a row of this shape, where it reads these operands
/// along the row.
fn each<'a>(
    site: &LaunchSite,
    row: &[usize],
    factors: Range<usize>,
    then: Option<&Steps>,
    body: &'a str,
) -> Each<'a> {
    let n: usize = row.iter().product();
    let whole = then.map_or(Vec::new(), |then| then.whole(site).collect());
    let of_row = factors.filter(|&k| site.inputs[k].elements() == n).collect();
    let results = then.map_or(vec![0], |then| then.written(site));
    Each { whole, of_row, results, body }
}

fn forward(site: &mut LaunchSite, axis: usize, epsilon: f32, then: Option<Steps>) {
    let x = site.inputs[0];
    let rows = StridedRows::new(x, axis..x.rank()).in_groups();
    let row = &x.shape[axis..];
    let (t, n) = (c_type(x.dtype), row.iter().product::<usize>());
    let sum = rows.sum("x.template combine<Sum<T>>([](T x) { return x; })");
    let squares =
        rows.sum("x.template combine<Sum<T>>([=](T x) { return (x - mean) * (x - mean); })");
    let epsilon = literal(f64::from(epsilon));
    let mut body = format!(
        "    typedef {t} T;
    const T mean = {sum} / T({n});
    const T squares = {squares};
    const T inv_std = T(1) / sqrt_of(squares / T({n}) + T({epsilon}));
"
    );
    let mut parameters = site.all_inputs();
    for (o, value) in [(1, "mean"), (2, "inv_std")] {
        if let Some(y) = site.output(o) {
            parameters.push(y);
            // Writing to a string does not fail.
            let _ = writeln!(body, "    if (live && lane == 0) y{o}[row] = {value};");
        }
    }
    let results = results(site, then.as_ref());
    if !results.is_empty() {
        parameters.extend(results);
        let mut value = format!("(x - mean) * inv_std * {}", factor(site, row, 1));
        if own(site, then.as_ref()) > 2 {
            value = format!("{value} + {}", factor(site, row, 2));
        }
        let place = rows.element();
        let store = match &then {
            Some(then) => then.store(site, value, &place),
            None => format!("    y0[{place}] = {value};\n"),
        };
        let factors = 1..own(site, then.as_ref());
        body += &rows.each(site, &each(site, row, factors, then.as_ref(), &store));
    }
    rows.launch(site, parameters, &body);
}

fn of_operand(site: &mut LaunchSite, axis: usize, dy: Dy, then: Option<Steps>) {
    let results = results(site, then.as_ref());
    if results.is_empty() {
        return;
    }
    let x = site.inputs[0];
    let rows = StridedRows::new(x, axis..x.rank()).in_groups();
    let place = rows.element();
    let rows = match &dy.0 {
        Some(steps) => rows.and_computed(dy.element(site, &place), steps.whole(site).collect()),
        None => rows.and_second(),
    };
    let (t, index) = (c_type(x.dtype), rows.index);
    let row = &x.shape[axis..];
    let [mean, inv_std] = [3, 4].map(|k| dy.after(k));
    let scale = if dy.0.is_some() { 1 } else { 2 };
    let factor = factor(site, row, scale);
    let sums = rows.sums(&format!(
        "x.template combine<Sums<T>>(other, [=]({index} i, T x, T dy) {{
        const T g = dy * {factor};
        return Pair<T>{{g, g * ((x - mean) * inv_std)}};
    }})"
    ));
    let store = match &then {
        Some(then) => then.store(site, "inv_std * rest".into(), &place),
        None => format!("    y0[{place}] = inv_std * rest;\n"),
    };
    let rest = format!(
        "    const T rest = dy * {factor} - of_gradient - (x - mean) * inv_std * of_product;\n{store}"
    );
    let each = rows.each(site, &each(site, row, scale..scale + 1, then.as_ref(), &rest));
    let body = format!(
        "    typedef {t} T;
    const T mean = live ? {mean}[row] : T(0), inv_std = live ? {inv_std}[row] : T(0);
    const Pair<T> sums = {sums};
    const T of_gradient = sums.first / T({n}), of_product = sums.second / T({n});
{each}",
        n = row.iter().product::<usize>(),
    );
    let parameters = site.all_inputs().into_iter().chain(results);
    rows.launch(site, parameters, &body);
}

/// Gradients of scale and bias: sums by this plan of `x, dy, mean, inv_std`, where `group` is
/// the number of an element's mean.
fn of_parameters(site: &mut LaunchSite, plan: &ReducePlan, group: &str, dy: Dy) {
    let t = c_type(site.inputs[0].dtype);
    let at = element(plan);
    let mut written: Vec<Parameter> = Vec::new();
    let mut store = Vec::new();
    for (o, sum) in [(0, "first"), (1, "second")] {
        if let Some(y) = site.output(o) {
            written.push(y);
            store.push(format!("y{o}[result] = acc.{sum}"));
        }
    }
    let [mean, inv_std] = [2, 3].map(|k| dy.after(k));
    let pair = |dy: &str| {
        format!("Pair<{t}>{{{dy} * ((x0[{at}] - {mean}[{group}]) * {inv_std}[{group}]), {dy}}}")
    };
    let stored = dy.element(site, &at);
    let term = match &dy.0 {
        Some(_) => format!("[=] {{ const {t} dy = {stored};\n    return {}; }}()", pair("dy")),
        None => pair(&stored),
    };
    let combination = Combination {
        combiner: format!("Sums<{t}>"),
        acc: format!("Pair<{t}>"),
        term,
        read: site.all_inputs(),
        walked: dy.whole(site),
        store: store.join("; "),
        written,
        partial: 0,
    };
    combine(site, plan, site.inputs[0].elements(), combination);
}
