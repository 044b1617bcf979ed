//! `Pad`: a thread for each element of the result finds what goes there.

use super::index::constant;
use super::site::{LaunchSite, c_type, literal};
use arenic_ir::DType;
use arenic_ir::op::Padding;
use std::fmt::Write;

/// The kernel of a padding.
pub(super) fn lower(
    site: &mut LaunchSite,
    starts: &[usize],
    steps: &[usize],
    shape: &[usize],
    value: f64,
) {
    let Some(y) = site.output(0) else { return };
    let x = site.inputs[0];
    let (t, index) = (c_type(x.dtype), site.index());
    let padding = Padding::new(x, starts, steps, shape);
    let (mut body, mut inside, mut from) = (String::new(), Vec::new(), Vec::new());
    let (mut below, mut stride) = (1, 1);
    for (k, axis) in padding.axes().iter().enumerate().rev() {
        let mut at = String::from("i");
        if below > 1 {
            at = format!("{at} / {}", constant(below));
        }
        if k > 0 {
            at = format!("{at} % {}", constant(axis.to));
        }
        // What lies before the start wraps to large numbers.
        // Writing to a string does not fail.
        let _ = writeln!(body, "    const {index} p{k} = {at} - {};", constant(axis.start));
        let place = match axis.step {
            1 => format!("p{k}"),
            step => {
                inside.push(format!("p{k} % {} == 0", constant(step)));
                format!("p{k} / {}", constant(step))
            }
        };
        if axis.from < axis.to {
            inside.push(format!("{place} < {}", constant(axis.from)));
        }
        from.push(format!("({place}) * {}", constant(stride)));
        below *= axis.to;
        stride *= axis.from;
    }
    let value = match x.dtype {
        DType::Bool => u8::from(value != 0.0).to_string(),
        _ => format!("cast<{t}>({})", literal(value)),
    };
    let inside = if inside.is_empty() { "true".into() } else { inside.join(" && ") };
    let _ = writeln!(body, "    y0[i] = {inside} ? x0[{}] : {t}({value});", from.join(" + "));
    site.for_each(shape.iter().product(), index, [site.input(0), y], &body);
}
