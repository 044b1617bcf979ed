//! `Resize`.

use super::{Row, row};
use crate::onnx::context::{Built, Cx, axis, extents};
use crate::onnx::error::Fault;
use arenic_ir::Op;
use arenic_ir::op::{Coordinates, Interpolation, NearestMode, ResizeSpec, Scale};

const RESIZE: &[&str] = &[
    "antialias",
    "axes",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "extrapolation_value",
    "keep_aspect_ratio_policy",
    "mode",
    "nearest_mode",
];

pub(super) const ROWS: &[Row] =
    &[row("Resize", (1, 4), RESIZE, resize).note("scales, sizes, roi known when compiled")];

/// What a `sizes` operand does to the aspect ratio.
#[derive(Clone, Copy)]
enum Policy {
    Stretch,
    NotLarger,
    NotSmaller,
}

pub(super) fn resize(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let x = cx.input(0)?;
    let old = cx.ty(x).shape;
    let rank = old.len();
    let on = match a.ints("axes")? {
        Some(list) => list.iter().map(|&i| axis(i, rank)).collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).collect(),
    };
    if (0..on.len()).any(|i| on[..i].contains(&on[i])) {
        return Err("attribute `axes` names an axis twice".into());
    }
    let mode = mode(cx)?;
    let coordinates = a.one_of(
        "coordinate_transformation_mode",
        "half_pixel",
        &[
            ("half_pixel", Coordinates::HalfPixel),
            ("half_pixel_symmetric", Coordinates::HalfPixelSymmetric),
            ("pytorch_half_pixel", Coordinates::PytorchHalfPixel),
            ("align_corners", Coordinates::AlignCorners),
            ("asymmetric", Coordinates::Asymmetric),
            ("tf_crop_and_resize", Coordinates::TfCropAndResize),
        ],
    )?;
    let roi = if coordinates == Coordinates::TfCropAndResize {
        let list = cx.floats(1)?.unwrap_or_default();
        if list.len() != 2 * on.len() {
            return Err(Fault(format!("roi has {} entries for {} axes", list.len(), on.len())));
        }
        let mut roi = vec![(0.0, 1.0); rank];
        for (i, &at) in on.iter().enumerate() {
            roi[at] = (list[i] as f32, list[on.len() + i] as f32);
        }
        roi
    } else {
        Vec::new()
    };
    // Before there was a way to leave an operand out, exporters gave an empty one.
    let given = (
        cx.floats(2)?.filter(|list| !list.is_empty()),
        cx.ints(3)?.filter(|list| !list.is_empty()),
    );
    let (mut sizes, mut scales) = (old.clone(), vec![Scale::ONE; rank]);
    let fits = |n: usize| {
        if n == on.len() {
            Ok(())
        } else {
            Err(Fault(format!("{n} scales or sizes for {} axes", on.len())))
        }
    };
    match given {
        (Some(list), None) => {
            fits(list.len())?;
            for (&at, &scale) in on.iter().zip(&list) {
                // In single precision, as ONNX's own shape inference multiplies.
                let size = (old[at] as f32 * scale as f32).floor();
                if !(0.0..=(1u64 << 40) as f32).contains(&size) {
                    return Err(Fault(format!("scale {scale} of an extent of {}", old[at])));
                }
                (scales[at], sizes[at]) = (Scale::Number(scale as f32), size as usize);
            }
        }
        (None, Some(list)) => {
            let list = extents(&list)?;
            fits(list.len())?;
            // New and old extents; their quotients by products, which are exact.
            let ratios = on.iter().zip(&list).map(|(&at, &to)| (to, old[at]));
            let known = ratios.filter(|&(_, from)| from > 0);
            let order = |a: &(usize, usize), b: &(usize, usize)| {
                (a.0 as u128 * b.1 as u128).cmp(&(b.0 as u128 * a.1 as u128))
            };
            let common = match policy(cx)? {
                Policy::Stretch => None,
                Policy::NotLarger => known.min_by(order),
                Policy::NotSmaller => known.max_by(order),
            };
            for (&at, &to) in on.iter().zip(&list) {
                let ratio = common.unwrap_or((to, old[at]));
                sizes[at] = match common {
                    None => to,
                    // Rounded half up.
                    Some((to, from)) => {
                        let twice = 2 * to as u128 * old[at] as u128 + from as u128;
                        usize::try_from(twice / (2 * from as u128)).unwrap_or(usize::MAX)
                    }
                };
                scales[at] = scale(ratio)?;
            }
        }
        (Some(_), Some(_)) => return Err("both scales and sizes".into()),
        (None, None) => return Err("neither scales nor sizes".into()),
    }
    if old.contains(&0) {
        // Nothing is interpolated, and there is no scale of 0 ÷ 0.
        scales.fill(Scale::ONE);
    }
    let spec = ResizeSpec {
        sizes,
        scales,
        roi,
        mode,
        coordinates,
        exclude_outside: a.flag("exclude_outside", false)?,
        antialias: a.flag("antialias", false)?,
        extrapolation: a.float_or("extrapolation_value", 0.0)?,
    };
    cx.whole(Op::Resize { spec }, vec![x])
}

/// The quotient of a new and an old extent.
fn scale((to, from): (usize, usize)) -> Result<Scale, Fault> {
    if to == from {
        return Ok(Scale::ONE);
    }
    match (u32::try_from(to), u32::try_from(from)) {
        (Ok(to), Ok(from)) => Ok(Scale::Ratio(to, from)),
        _ => Err(Fault(format!("{from} elements are resized to {to}; 2^31 is the most"))),
    }
}

fn policy(cx: &Cx) -> Result<Policy, Fault> {
    cx.attributes().one_of(
        "keep_aspect_ratio_policy",
        "stretch",
        &[
            ("stretch", Policy::Stretch),
            ("not_larger", Policy::NotLarger),
            ("not_smaller", Policy::NotSmaller),
        ],
    )
}

fn mode(cx: &Cx) -> Result<Interpolation, Fault> {
    let a = cx.attributes();
    let nearest = a.one_of(
        "nearest_mode",
        "round_prefer_floor",
        &[
            ("round_prefer_floor", NearestMode::RoundPreferFloor),
            ("round_prefer_ceil", NearestMode::RoundPreferCeil),
            ("floor", NearestMode::Floor),
            ("ceil", NearestMode::Ceil),
        ],
    )?;
    let cubic = Interpolation::Cubic { a: a.float_or("cubic_coeff_a", -0.75)? };
    a.one_of(
        "mode",
        "nearest",
        &[
            ("nearest", Interpolation::Nearest(nearest)),
            ("linear", Interpolation::Linear),
            ("cubic", cubic),
        ],
    )
}
