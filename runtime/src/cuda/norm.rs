//! `LayerNorm`: mean and variance of every row, in two passes over what its threads hold of it;
//! and its gradients.

use super::batch_norm;
use super::index::{broadcast_strides, offset};
use super::reduce::{Combination, combine, element};
use super::rows::StridedRows;
use super::site::{LaunchSite, Parameter, c_type, literal};
use arenic_backends::cuda::tiling::{channel_sums, row_sums};
use arenic_backends::reduce::ReducePlan;
use arenic_ir::op::families::Norm;
use std::fmt::Write;

/// The kernels of a normalisation or of one of its gradients.
pub(super) fn lower(site: &mut LaunchSite, op: Norm) {
    match op {
        Norm::LayerNorm { axis, epsilon } => forward(site, *axis, *epsilon),
        Norm::LayerNormInputGrad { axis } => of_operand(site, *axis),
        Norm::LayerNormParamGrad { axis } => {
            let plan = row_sums(site.inputs[0], *axis);
            of_parameters(site, &plan, "t");
        }
        Norm::BatchNorm { epsilon } => batch_norm::forward(site, *epsilon),
        Norm::BatchNormParamGrad => {
            let plan = channel_sums(site.inputs[0]);
            of_parameters(site, &plan, "result");
        }
        Norm::BatchNormInputGrad => batch_norm::of_operand(site),
    }
}

/// The element `i` of a row of a scale or bias, operand `k`.
fn factor(site: &LaunchSite, row: &[usize], k: usize) -> String {
    let strides = broadcast_strides(&site.inputs[k].shape, row.len());
    format!("x{k}[{}]", offset(row, &strides, "i"))
}

fn forward(site: &mut LaunchSite, axis: usize, epsilon: f32) {
    let x = site.inputs[0];
    let rows = StridedRows::new(x, axis..x.rank());
    let row = &x.shape[axis..];
    let (t, index, n) = (c_type(x.dtype), rows.index, row.iter().product::<usize>());
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
    if let Some(y) = site.output(0) {
        parameters.push(y);
        let mut value = format!("(x - mean) * inv_std * {}", factor(site, row, 1));
        if site.inputs.len() > 2 {
            value = format!("{value} + {}", factor(site, row, 2));
        }
        let _ = writeln!(
            body,
            "    x.each([&]({index} i, T x) {{ y0[{}] = {value}; }});",
            rows.element()
        );
    }
    rows.launch(site, parameters, &body);
}

fn of_operand(site: &mut LaunchSite, axis: usize) {
    let Some(y) = site.output(0) else { return };
    let x = site.inputs[0];
    let rows = StridedRows::of_two(x, axis..x.rank());
    let (t, index, place) = (c_type(x.dtype), rows.index, rows.element());
    let row = &x.shape[axis..];
    let sums = rows.sums(&format!(
        "x.template combine<Sums<T>>(other, [=]({index} i, T x, T dy) {{
        const T g = dy * {scale};
        return Pair<T>{{g, g * ((x - mean) * inv_std)}};
    }})",
        scale = factor(site, row, 2)
    ));
    let body = format!(
        "    typedef {t} T;
    const T mean = live ? x3[row] : T(0), inv_std = live ? x4[row] : T(0);
    const Pair<T> sums = {sums};
    const T of_gradient = sums.first / T({n}), of_product = sums.second / T({n});
    x.each(other, [&]({index} i, T x, T dy) {{
        const T rest = dy * {scale} - of_gradient - (x - mean) * inv_std * of_product;
        y0[{place}] = inv_std * rest;
    }});
",
        n = row.iter().product::<usize>(),
        scale = factor(site, row, 2)
    );
    let parameters = site.all_inputs().into_iter().chain([y]);
    rows.launch(site, parameters, &body);
}

/// Gradients of scale and bias: sums by this plan of `x, dy, mean, inv_std`, where `group` is
/// the number of an element's mean.
pub(super) fn of_parameters(site: &mut LaunchSite, plan: &ReducePlan, group: &str) {
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
    let combination = Combination {
        combiner: format!("Sums<{t}>"),
        acc: format!("Pair<{t}>"),
        term: format!("Pair<{t}>{{x1[{at}] * ((x0[{at}] - x2[{group}]) * x3[{group}]), x1[{at}]}}"),
        read: site.all_inputs(),
        store: store.join("; "),
        written,
        partial: 0,
    };
    combine(site, plan, site.inputs[0].elements(), combination);
}
