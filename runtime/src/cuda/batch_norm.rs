//! `BatchNorm`: mean, then variance of every channel, as reductions, then a pass over the
//! elements, with the steps that follow; and the gradient of its operand.

use super::index::{index_type, offset};
use super::norm::{Dy, Steps, results};
use super::packs::{Elements, Read};
use super::reduce::{Combination, combine, element};
use super::site::{LaunchSite, Parameter, c_type, literal};
use arenic_backends::cpu::tiling::channels;
use arenic_backends::cuda::tiling::{channel_sums, partial_sums};
use std::fmt::Write;

/// Elements of every channel.
fn count(site: &LaunchSite) -> usize {
    let [outer, _, inner] = channels(site.inputs[0]);
    outer * inner
}

/// The channel of element `i`.
fn channel(site: &LaunchSite) -> String {
    offset(&channels(site.inputs[0]), &[0, 1, 0], "i")
}

/// True where a channel's elements are one behind another's, none behind itself.
fn is_last(site: &LaunchSite) -> bool {
    channels(site.inputs[0])[2] == 1
}

/// How an element reads the operands: those that are as large as `x`, and the channels' ones, one
/// after another where nothing lies behind them.
fn reads(site: &LaunchSite, whole: &[usize]) -> Vec<Read> {
    let (x, last) = (site.inputs[0], is_last(site));
    let is_read = |k: &usize| whole.contains(k) || last && site.inputs[*k].elements() == x.shape[1];
    (0..site.inputs.len()).filter(is_read).map(|k| Read::operand(site, k)).collect()
}

/// Which results an element is stored in.
fn of_steps(site: &LaunchSite, then: Option<&Steps>) -> Vec<usize> {
    let all = [0].into_iter().chain(then.and_then(|then| then.rounded));
    all.filter(|&o| site.outputs[o].is_some()).collect()
}

/// The kernels of a batch norm.
pub(super) fn forward(site: &mut LaunchSite, epsilon: f32, then: Option<Steps>) {
    let x = site.inputs[0];
    let (t, size, count) = (c_type(x.dtype), x.dtype.accumulated().size(), count(site));
    let plan = channel_sums(x);
    let at = element(&plan);
    // The statistics follow the partial sums.
    let means = partial_sums(&plan) * size;
    let mean = Parameter::scratch(t, "mean", means);
    let deviations = means + x.shape[1] as u64 * size;
    let inv_std = Parameter::scratch(t, "inv_std", deviations);
    let sum = |term: String, read: Vec<Parameter>| Combination {
        combiner: format!("Plain<{t}, Sum<{t}>>"),
        acc: t.into(),
        term,
        read,
        walked: vec![0],
        store: String::new(),
        written: Vec::new(),
        partial: 0,
    };

    let mut first = sum(format!("x0[{at}]"), vec![site.input(0)]);
    first.store = format!("mean[result] = acc / {t}({count})");
    first.written.push(mean.clone());
    if let Some(y) = site.output(1) {
        first.written.push(y);
        first.store += "; y1[result] = mean[result]";
    }
    combine(site, &plan, x.elements(), first);

    let distance = format!("(x0[{at}] - mean[result])");
    let mut second = sum(format!("{distance} * {distance}"), vec![site.input(0), mean.clone()]);
    second.store = format!("const {t} variance = acc / {t}({count})");
    if let Some(y) = site.output(2) {
        second.written.push(y);
        second.store += "; y2[result] = variance";
    }
    second.written.push(inv_std.clone());
    let _ = write!(
        second.store,
        "; inv_std[result] = {t}(1) / sqrt_of(variance + {t}({}))",
        literal(epsilon.into())
    );
    if let Some(y) = site.output(3) {
        second.written.push(y);
        second.store += "; y3[result] = inv_std[result]";
    }
    combine(site, &plan, x.elements(), second);

    let written = results(site, then.as_ref());
    if written.is_empty() || x.elements() == 0 {
        return;
    }
    let index = index_type(x.elements());
    let value = "(x0[i] - mean[c]) * inv_std[c] * x1[c] + x2[c]";
    let store = match &then {
        Some(then) => then.store(site, value.into(), "i"),
        None => format!("    y0[i] = {value};\n"),
    };
    let body = format!("    const {index} c = {};\n{store}", channel(site));
    let others = then.iter().flat_map(|then| then.whole(site));
    let whole: Vec<usize> = [0].into_iter().chain(others).collect();
    let mut reads = reads(site, &whole);
    if is_last(site) {
        let of_channels = |(name, offset)| Read::scratch(name, offset, size as usize, x.shape[1]);
        reads.extend([("mean", means), ("inv_std", deviations)].map(of_channels));
    }
    let parameters = site.all_inputs().into_iter().chain([mean, inv_std]).chain(written);
    let results = &of_steps(site, then.as_ref());
    let (count, body, common) = (x.elements(), &body, "");
    site.for_elements(parameters, &Elements { count, index, reads: &reads, results, common, body });
}

/// The kernel of the gradient of a batch norm's operand, with the steps that follow.
pub(super) fn of_operand(site: &mut LaunchSite, dy: Dy, then: Option<Steps>) {
    let written = results(site, then.as_ref());
    if written.is_empty() {
        return;
    }
    let x = site.inputs[0];
    let (t, index) = (c_type(x.dtype), index_type(x.elements()));
    let [scale, mean, inv_std, dscale, dbias] = [2, 3, 4, 5, 6].map(|k| dy.after(k));
    let value = format!(
        "{scale}[c] * {inv_std}[c] * ({dy} - ({dbias}[c] + slope) * ({t}(1) / {t}({count})))",
        dy = dy.element(site, "i"),
        count = count(site)
    );
    let store = match &then {
        Some(then) => then.store(site, value, "i"),
        None => format!("    y0[i] = {value};\n"),
    };
    let body = format!(
        "    const {index} c = {channel};
    const {t} slope = (x0[i] - {mean}[c]) * {inv_std}[c] * {dscale}[c];
{store}",
        channel = channel(site),
    );
    let others = then.iter().flat_map(|then| then.whole(site));
    let whole: Vec<usize> = dy.whole(site).into_iter().chain(others).collect();
    let parameters = site.all_inputs().into_iter().chain(written);
    site.for_elements(
        parameters,
        &Elements {
            count: x.elements(),
            index,
            reads: &reads(site, &whole),
            results: &of_steps(site, then.as_ref()),
            common: "",
            body: &body,
        },
    );
}
