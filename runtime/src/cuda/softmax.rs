//! `Softmax`, `LogSoftmax`, their gradients, and what is computed with the statistics of rows.
//!
//! The maximum is subtracted first, so that nothing overflows. With known statistics every
//! element stands for itself.

use super::index::{constant, index_type};
use super::packs::{Elements, MOST_LANES, Read};
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
    StridedRows::new(x, axis..axis + 1).streamed(x.dtype).launch(site, parameters, &body);
}

fn of_stats(site: &mut LaunchSite) {
    let Some(y) = site.output(0) else { return };
    let row = RowOf::new(site);
    let common = format!("{}    const auto max = x1[row]; const auto log = x2[row];\n", row.text);
    let parameters = site.all_inputs().into_iter().chain([y]).collect();
    row.launch(site, parameters, &common, "    y0[i] = exp_of((x0[i] - max) - log);\n");
}

fn gradient(site: &mut LaunchSite) {
    let Some(y) = site.output(0) else { return };
    let row = RowOf::new(site);
    let t = c_type(site.inputs[0].dtype);
    // A sum of `w` and zeros, which the gradient of a row is, is never −0.
    let common = format!(
        "{}    i64 target = x3[row];
    if (!resolve(target, {n}, refusal, node)) return;
    const {t} w = x4[row], sum = {t}(0) + w, max = x1[row], log = x2[row];
    const {index} here = row * {n_text} + {index}(target);
",
        row.text,
        n = row.extent,
        n_text = constant(row.extent),
        index = row.index,
    );
    let body = format!(
        "    const {t} part = exp_of((x0[i] - max) - log) * sum;
    y0[i] = i == here ? w - part : {t}(0) - part;
"
    );
    let parameters = site.all_inputs().into_iter().chain([y]).chain(Parameter::refusal()).collect();
    row.launch(site, parameters, &common, &body);
}

/// Elements of rows of so many, of which a thread's are all of one row, or are one.
struct RowOf {
    extent: usize,
    index: &'static str,
    /// Text that finds the row.
    text: String,
    is_shared: bool,
}

impl RowOf {
    fn new(site: &LaunchSite) -> RowOf {
        let x = site.inputs[0];
        let extent = x.shape.last().copied().unwrap_or(1);
        let index = index_type(x.elements());
        let is_shared = extent.is_multiple_of(MOST_LANES);
        let of = if is_shared { "first" } else { "i" };
        let text = format!("    const {index} row = {of} / {};\n", constant(extent));
        RowOf { extent, index, text, is_shared }
    }

    /// Launches a thread for each element, or for several; `common` is what those of a row share.
    fn launch(&self, site: &mut LaunchSite, parameters: Vec<Parameter>, common: &str, body: &str) {
        let (reads, count) = ([Read::operand(site, 0)], site.inputs[0].elements());
        let all = format!("{common}{body}");
        let (common, body) = if self.is_shared { (common, body) } else { ("", &*all) };
        let (index, reads, results) = (self.index, &reads, &[0]);
        site.for_elements(parameters, &Elements { count, index, reads, results, common, body });
    }
}
