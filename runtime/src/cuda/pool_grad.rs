//! Gradients of pools: a thread for each element of the operand adds up what the windows that
//! cover it give, in their order. Where channels are last, a thread has several neighbouring ones.

use super::index::{constant, offset};
use super::site::{LaunchSite, Parameter, c_type};
use super::taps::{each_lane, in_plane, lanes, place_type, plane, stored_coordinate, taps_counted};
use arenic_ir::op::{PoolIndices, Window};
use arenic_ir::types::dense_strides;
use std::fmt::Write;

/// For every window that covers element `i`, in order, `seen` of its place `from` in `dy`;
/// `each` is what is done with its position `o` along an axis before.
fn windows(
    site: &LaunchSite,
    window: &Window,
    shape: &[usize],
    each: impl Fn(usize) -> String,
    seen: &str,
) -> String {
    let (index, output) = (site.index(), &site.inputs[0].shape[2..]);
    let place = place_type(&shape[2..], window);
    let mut text = format!("    const {index} plane = {};\n", plane(site, shape, "i"));
    for (d, extent) in output.iter().enumerate() {
        let at = stored_coordinate(site, shape, d + 2, "i");
        let (pad, span, stride) = (window.pads_begin[d], window.span(d), window.strides[d]);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "    const {place} p{d} = {place}({at}) + {pad};
    const {place} first{d} = p{d} < {span} ? 0 : (p{d} - {span}) / {stride} + 1;
    const {place} end{d} = p{d} / {stride} < {extent} ? p{d} / {stride} + 1 : {extent};",
        );
    }
    let mut flat = String::new();
    for (d, &extent) in output.iter().enumerate() {
        let (stride, dilation) = (window.strides[d], window.dilations[d]);
        let _ = writeln!(text, "    for ({place} o{d} = first{d}; o{d} < end{d}; o{d}++) {{");
        if dilation > 1 {
            let _ = writeln!(text, "    if ((p{d} - o{d} * {stride}) % {dilation} != 0) continue;");
        }
        text += &each(d);
        flat = match d {
            0 => format!("{index}(o0)"),
            _ => format!("({flat}) * {} + {index}(o{d})", constant(extent)),
        };
    }
    let size = constant(output.iter().product());
    let from = in_plane(site, shape[1], "plane", [&flat, &size]);
    let _ = writeln!(text, "    const {index} from = {from};\n    {seen}");
    text += &"    }\n".repeat(window.rank());
    text
}

/// Of a max pool whose indices are taps.
pub(super) fn of_taps(site: &mut LaunchSite, window: &Window, shape: &[usize]) {
    let Some(y) = site.output(0) else { return };
    let (t, index) = (c_type(site.inputs[0].dtype), site.index());
    // The tap of the window at `o` that sees the element.
    let each = |d: usize| {
        let before = match d {
            0 => String::new(),
            _ => format!("tap{} * {} + ", d - 1, constant(window.kernel[d])),
        };
        let (stride, dilation) = (window.strides[d], window.dilations[d]);
        format!("    const u32 tap{d} = {before}u32((p{d} - o{d} * {stride}) / {dilation});\n")
    };
    let lanes = lanes(site, shape[1]);
    let load = |k: usize| format!("const auto seen{k} = load_pack<{lanes}>(x{k} + from);\n");
    let sum = format!(
        "if (lane_of(seen1, lane)[0] == tap{}) sum[lane] += lane_of(seen0, lane)[0];",
        window.rank() - 1
    );
    let seen = load(1) + "    " + &load(0) + &each_lane(lanes, &sum);
    let body = format!(
        "    {t} sum[{lanes}];\n{}{}    auto made = pack_of<{lanes}>(y0);\n{}    store_pack(y0 + i, made);\n",
        each_lane(lanes, "sum[lane] = 0;"),
        windows(site, window, shape, each, &seen),
        each_lane(lanes, "lane_of(made, lane)[0] = sum[lane];")
    );
    let parameters = site.all_inputs().into_iter().chain([y]);
    site.for_each_group(shape.iter().product(), lanes, index, parameters, &body);
}

/// Of a max pool whose indices are positions.
pub(super) fn of_positions(
    site: &mut LaunchSite,
    window: &Window,
    shape: &[usize],
    indices: PoolIndices,
) {
    let Some(y) = site.output(0) else { return };
    let (t, index) = (c_type(site.inputs[0].dtype), site.index());
    let [count, total] = [site.inputs[0].elements(), shape.iter().product::<usize>()];
    if count.max(total) == 0 {
        return;
    }
    let mut body = format!(
        "    if (i < {count}) {{
        i64 index = x1[i];
        resolve(index, {total}ll, refusal, node);
    }}
",
        count = constant(count),
    );
    if total > 0 {
        let own = position(site, shape, indices == PoolIndices::ColumnMajorPositions);
        let seen = format!(
            "i64 index = x1[from];
    if (index < 0) index += {total}ll;
    if (index == own) sum += x0[from];"
        );
        let windows = windows(site, window, shape, |_| String::new(), &seen);
        let _ = write!(
            body,
            "    if (i >= {end}) return;
    const i64 own = i64({own});
    {t} sum = 0;
{windows}    y0[i] = sum;
",
            end = constant(total),
        );
    }
    let parameters = site.all_inputs().into_iter().chain([y]).chain(Parameter::refusal());
    site.for_each(count.max(total), index, parameters, &body);
}

/// The flat position of the element that is stored as the `i`-th.
fn position(site: &LaunchSite, shape: &[usize], column_major: bool) -> String {
    let mut strides: Vec<i64> = dense_strides(shape).iter().map(|&s| s as i64).collect();
    if column_major {
        strides[2] = 1;
        for d in 3..shape.len() {
            strides[d] = strides[d - 1] * shape[d - 1] as i64;
        }
    }
    offset(&site.stored(shape), &site.stored(&strides), "i")
}

pub(super) fn average(
    site: &mut LaunchSite,
    window: &Window,
    shape: &[usize],
    count_include_pad: bool,
) {
    let Some(y) = site.output(0) else { return };
    let (t, index) = (c_type(site.inputs[0].dtype), site.index());
    let input = &shape[2..];
    let place = place_type(input, window);
    let each = |d: usize| {
        let at = format!("o{d} * {} - {}", window.strides[d], window.pads_begin[d]);
        let counted = taps_counted(window, input, count_include_pad, d, place, &at);
        let before = if d == 0 { String::new() } else { format!("count{} * ", d - 1) };
        format!("    const i64 count{d} = {before}{counted};\n")
    };
    let last = window.rank() - 1;
    let seen = format!("sum += x0[from] / {t}(count{last} > 0 ? count{last} : 1);");
    let body = format!(
        "    {t} sum = 0;\n{}    y0[i] = sum;\n",
        windows(site, window, shape, each, &seen)
    );
    let parameters = [site.input(0), y];
    site.for_each(shape.iter().product(), index, parameters, &body);
}
