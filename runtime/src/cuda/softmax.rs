//! `Softmax`, `LogSoftmax`, their gradients, and what is computed with the statistics of rows.
//!
//! The maximum is subtracted first, so that nothing overflows. With known statistics every
//! element stands for itself.

use super::index::{constant, index_type};
use super::packs::{Elements, Read};
use super::rows::StridedRows;
use super::site::{LaunchSite, Parameter, c_type};
use arenic_ir::op::families::Softmax;
use std::fmt::Write;

/// The kernel of one of the operators.
pub(super) fn lower(site: &mut LaunchSite, op: Softmax) {
    match op {
        Softmax::Softmax { axis } => softmax(site, *axis, false),
        Softmax::LogSoftmax { axis } => softmax(site, *axis, true),
        Softmax::SoftmaxGrad { axis } => of_operand(site, *axis, "x * dy", "x * (dy - total)"),
        Softmax::LogSoftmaxGrad { axis } => {
            of_operand(site, *axis, "dy", "dy - exp_of(x) * total");
        }
        Softmax::LogSoftmaxStats => stats(site),
        Softmax::SoftmaxOfStats => of_stats(site),
        Softmax::CrossEntropyGrad => gradient(site),
    }
}

fn softmax(site: &mut LaunchSite, axis: usize, log: bool) {
    let Some(y) = site.output(0) else { return };
    let x = site.inputs[0];
    let rows = StridedRows::new(x, axis..axis + 1);
    let (t, index, place) = (c_type(x.dtype), rows.index, rows.element());
    let (last, value) = match log {
        true => ("log_of(e.sum)".into(), "(x - e.max) - last"),
        false => (format!("{t}(1) / e.sum"), "exp_of(x - e.max) * last"),
    };
    let body = format!(
        "    const Exponentials<{t}> e = exponentials(x);
    const {t} last = {last};
    x.each([&]({index} i, {t} x) {{ y0[{place}] = {value}; }});
"
    );
    rows.launch(site, [site.input(0), y], &body);
}

/// The gradient of the operand: `term` is summed over a row of the result, `x`, and its
/// gradient, `dy`, and `value` is what becomes of an element.
fn of_operand(site: &mut LaunchSite, axis: usize, term: &str, value: &str) {
    let Some(y) = site.output(0) else { return };
    let x = site.inputs[0];
    let rows = StridedRows::new(x, axis..axis + 1).and_second();
    let (t, index, place) = (c_type(x.dtype), rows.index, rows.element());
    let total = rows.sum(&format!(
        "x.template combine<Sum<{t}>>(other, []({index}, {t} x, {t} dy) {{ return {term}; }})"
    ));
    let body = format!(
        "    const {t} total = {total};
    x.each(other, [&]({index} i, {t} x, {t} dy) {{ y0[{place}] = {value}; }});
"
    );
    rows.launch(site, [site.input(0), site.input(1), y], &body);
}

fn stats(site: &mut LaunchSite) {
    let x = site.inputs[0];
    let axis = x.rank() - 1;
    if x.elements() == 0 {
        return;
    }
    let mut body = format!("    const Exponentials<{}> e = exponentials(x);\n", c_type(x.dtype));
    let mut parameters = vec![site.input(0)];
    for (o, value) in ["e.max", "log_of(e.sum)"].into_iter().enumerate() {
        if let Some(y) = site.output(o) {
            parameters.push(y);
            // Writing to a string does not fail.
            let _ = writeln!(body, "    if (live && lane == 0) y{o}[row] = {value};");
        }
    }
    StridedRows::new(x, axis..axis + 1).launch(site, parameters, &body);
}

/// The softmax of element `i`.
const OF_STATS: &str = "exp_of((x0[i] - x1[row]) - x2[row])";

fn of_stats(site: &mut LaunchSite) {
    let Some(y) = site.output(0) else { return };
    let (row, elements, index) = row_of_element(site);
    let body = format!("{row}    y0[i] = {OF_STATS};\n");
    let parameters = site.all_inputs().into_iter().chain([y]);
    let reads = [Read { operand: 0, period: elements }];
    let elements = Elements { count: elements, index, reads: &reads, results: &[0], body: &body };
    site.for_elements(parameters, &elements);
}

fn gradient(site: &mut LaunchSite) {
    let Some(y) = site.output(0) else { return };
    let (row, elements, index) = row_of_element(site);
    let t = c_type(site.inputs[0].dtype);
    let n = site.inputs[0].shape.last().copied().unwrap_or(1);
    // A sum of `w` and zeros, which the gradient of a row is, is never −0.
    let body = format!(
        "{row}    i64 target = x3[row];
    if (!resolve(target, {n}, refusal, node)) return;
    const {t} w = x4[row], sum = {t}(0) + w;
    const {t} part = {OF_STATS} * sum;
    y0[i] = i % {} == {index}(target) ? w - part : {t}(0) - part;
",
        constant(n)
    );
    let parameters = site.all_inputs().into_iter().chain([y]).chain(Parameter::refusal());
    let reads = [Read { operand: 0, period: elements }];
    let elements = Elements { count: elements, index, reads: &reads, results: &[0], body: &body };
    site.for_elements(parameters, &elements);
}

/// Text that finds the row of element `i`, the number of elements, their index type.
fn row_of_element(site: &LaunchSite) -> (String, usize, &'static str) {
    let x = site.inputs[0];
    let n = x.shape.last().copied().unwrap_or(1);
    let index = index_type(x.elements());
    (format!("    const {index} row = i / {};\n", constant(n)), x.elements(), index)
}
