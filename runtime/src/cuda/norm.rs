//! `LayerNorm`: mean and variance of every row, in two passes over what its threads hold of it.

use super::index::{broadcast_strides, offset};
use super::lower::{Site, c_type, literal};
use super::rows::Rows;
use arenic_ir::Op;
use std::fmt::Write;

/// The kernel of a normalisation.
pub(super) fn lower(site: &mut Site) {
    let Op::LayerNorm { axis, epsilon } = *site.op else { return };
    let x = site.inputs[0];
    let rows = Rows::new(x, axis..x.rank());
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
        let factor = |k: usize| {
            let strides = broadcast_strides(&site.inputs[k].shape, row.len());
            format!("x{k}[{}]", offset(row, &strides, "i"))
        };
        let mut value = format!("(x - mean) * inv_std * {}", factor(1));
        if site.inputs.len() > 2 {
            value = format!("{value} + {}", factor(2));
        }
        let _ = writeln!(
            body,
            "    x.each([&]({index} i, T x) {{ y0[{}] = {value}; }});",
            rows.element()
        );
    }
    rows.launch(site, parameters, &body);
}
