//! `Resize`: tables in scratch of what every index of an axis reads, then a thread adds up each
//! element.

use super::index::{constant, offset};
use super::site::{LaunchSite, Parameter, c_type};
use super::taps::coordinate;
use arenic_ir::DType;
use arenic_ir::op::families::Resizing;
use arenic_ir::op::{Crop, Interpolation, NearestMode, Places, Positions, ResizeSpec};
use arenic_ir::types::dense_strides;
use std::fmt::Write;

/// The kernels of an interpolation.
pub(super) fn lower(site: &mut LaunchSite, op: Resizing) {
    let Resizing::Resize { spec } = op;
    resize(site, spec);
}

/// An axis that is resized: its tables of sources and weights in scratch.
struct Resized {
    axis: usize,
    taps: usize,
    sources: u64,
    weights: u64,
}

impl Resized {
    fn sources(&self) -> Parameter {
        Parameter::scratch("i64", &format!("sources{}", self.axis), self.sources)
    }

    fn weights(&self) -> Parameter {
        Parameter::scratch("double", &format!("weights{}", self.axis), self.weights)
    }
}

fn resize(site: &mut LaunchSite, spec: &ResizeSpec) {
    let x = site.inputs[0];
    let mut scratch = 0;
    let mut axes = Vec::new();
    if spec.sizes.contains(&0) {
        return;
    }
    for axis in (0..x.rank()).filter(|&a| !spec.keeps(a, x.shape[a])) {
        let taps = spec.taps(axis);
        let bytes = 8 * (taps * spec.sizes[axis]) as u64;
        axes.push(Resized { axis, taps, sources: scratch, weights: scratch + bytes });
        scratch += 2 * bytes;
    }
    if axes.is_empty() {
        site.copy(0, 0);
        return;
    }
    for a in &axes {
        let body = format!(
            "    resize_entry({}, i, {}, sources{axis}, weights{axis});\n",
            described(spec, a.axis, x.shape[a.axis]),
            constant(a.taps),
            axis = a.axis
        );
        site.for_each(spec.sizes[a.axis], "u64", [a.sources(), a.weights()], &body);
    }
    if matches!(spec.mode, Interpolation::Nearest(_)) {
        nearest(site, spec, &axes);
    } else {
        weighted(site, spec, &axes);
    }
}

/// A `ResizeAxis` of `windows.cuh`.
fn described(spec: &ResizeSpec, axis: usize, extent: usize) -> String {
    let a = if let Interpolation::Cubic { a } = spec.mode { a } else { 0.0 };
    let interpolation = match spec.mode {
        Interpolation::Nearest(NearestMode::RoundPreferFloor) => "round_prefer_floor",
        Interpolation::Nearest(NearestMode::RoundPreferCeil) => "round_prefer_ceil",
        Interpolation::Nearest(NearestMode::Floor) => "floor",
        Interpolation::Nearest(NearestMode::Ceil) => "ceil",
        Interpolation::Linear => "linear",
        Interpolation::Cubic { .. } => "cubic",
    };
    let places = match spec.places(axis, extent).expect("a scale that was looked at") {
        Places::Exact(Positions { step, start, divisor }) => format!(
            "Positions{{{}, {}ull, {}, {}ull, {divisor}ull}}",
            signed(step.0),
            step.1,
            signed(start.0),
            start.1
        ),
        Places::Crop(Crop { start, length, last, span, centred }) => {
            let numbers = [start, length, last, span].map(double).join(", ");
            format!("Crop{{{numbers}, {centred}, {}ull}}", Crop::DIVISOR)
        }
    };
    format!(
        "{places}, ResizeAxis{{{}, {}, {}, Interpolation::{interpolation}, {}, {}}}",
        signed(extent as i64 - 1),
        double(spec.stretch(axis)),
        double(a.into()),
        spec.exclude_outside,
        spec.antialias
    )
}

/// A signed integer in C.
fn signed(x: i64) -> String {
    format!("i64({x}ll)")
}

/// A number in C.
fn double(x: f64) -> String {
    match x {
        _ if x.is_nan() => "double(NAN)".into(),
        f64::INFINITY => "double(INFINITY)".into(),
        f64::NEG_INFINITY => "-double(INFINITY)".into(),
        _ => format!("{x:e}"),
    }
}

/// The value outside of the region of interest.
fn outside(spec: &ResizeSpec, dtype: DType) -> String {
    format!("cast<{}>({})", c_type(dtype), double(spec.extrapolation.into()))
}

/// The strides of the operand, and of its axes that stay the offset of element `i`.
fn kept(site: &LaunchSite, spec: &ResizeSpec, axes: &[Resized]) -> (Vec<usize>, String) {
    let dense = dense_strides(&site.inputs[0].shape);
    let mut strides: Vec<i64> = dense.iter().map(|&s| s as i64).collect();
    axes.iter().for_each(|a| strides[a.axis] = 0);
    let offset = offset(&spec.sizes, &strides, "i");
    (dense, offset)
}

fn nearest(site: &mut LaunchSite, spec: &ResizeSpec, axes: &[Resized]) {
    let index = site.index();
    let (dense, kept) = kept(site, spec, axes);
    let mut body = String::new();
    let (mut inside, mut from) = (Vec::new(), kept);
    for a in axes {
        let (axis, at) = (a.axis, coordinate(&spec.sizes, a.axis, "i"));
        let _ = writeln!(body, "    const i64 source{axis} = sources{axis}[{at}];");
        inside.push(format!("source{axis} >= 0"));
        let _ = write!(from, " + {index}(source{axis}) * {}", constant(dense[axis]));
    }
    let outside = outside(spec, site.inputs[0].dtype);
    let _ = writeln!(body, "    y0[i] = {} ? x0[{from}] : {outside};", inside.join(" && "));
    let mut parameters = site.all_inputs();
    parameters.extend(axes.iter().map(Resized::sources));
    parameters.extend(site.output(0));
    site.for_each(spec.sizes.iter().product(), index, parameters, &body);
}

/// Sums of products of weights: the outer axes' first, then a sum along the last axis.
fn weighted(site: &mut LaunchSite, spec: &ResizeSpec, axes: &[Resized]) {
    let index = site.index();
    let (dense, kept) = kept(site, spec, axes);
    let t = c_type(site.inputs[0].dtype);
    let last = spec.sizes.len() - 1;
    let mut body = String::new();
    for a in axes {
        let at = coordinate(&spec.sizes, a.axis, "i");
        let _ = writeln!(
            body,
            "    const {index} entry{axis} = ({at}) * {};",
            constant(a.taps),
            axis = a.axis
        );
    }
    let inside: Vec<String> =
        axes.iter().map(|a| format!("sources{0}[entry{0}] < 0", a.axis)).collect();
    let _ = writeln!(
        body,
        "    if ({}) {{\n    y0[i] = {};\n    return;\n    }}\n    double sum = 0;",
        inside.join(" || "),
        outside(spec, site.inputs[0].dtype)
    );
    let (mut base, mut weight, mut closing) = (kept, String::from("1.0"), String::new());
    for a in axes {
        let (axis, taps) = (a.axis, constant(a.taps));
        if axis == last {
            body += "    double row = 0;\n";
        }
        let _ = writeln!(body, "    for (u32 t{axis} = 0; t{axis} < {taps}; t{axis}++) {{");
        let of = format!("[entry{axis} + t{axis}]");
        let _ = writeln!(
            body,
            "    const {index} base{axis} = {base} + {index}(sources{axis}{of}) * {};",
            constant(dense[axis])
        );
        if axis == last {
            let _ =
                writeln!(body, "    row += weights{axis}{of} * double(x0[base{axis}]);\n    }}");
            let _ = writeln!(body, "    sum += {weight} * row;");
        } else {
            let _ = writeln!(body, "    const double weight{axis} = {weight} * weights{axis}{of};");
            let _ = writeln!(body, "    if (weight{axis} == 0) continue;");
            (base, weight) = (format!("base{axis}"), format!("weight{axis}"));
            closing += "    }\n";
        }
    }
    if axes.last().is_some_and(|a| a.axis != last) {
        let _ = writeln!(body, "    sum += {weight} * double(x0[{base}]);");
    }
    let _ = writeln!(body, "{closing}    y0[i] = cast<{t}>(sum);");
    let mut parameters = site.all_inputs();
    parameters.extend(axes.iter().flat_map(|a| [a.sources(), a.weights()]));
    parameters.extend(site.output(0));
    site.for_each(spec.sizes.iter().product(), index, parameters, &body);
}
