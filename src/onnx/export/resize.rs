//! `Resize`. ONNX has scales, which are floats, or extents, from which scales follow; where one
//! scale is kept for several axes, it is that of an axis whose extents have it.

use super::ExportError;
use super::writer::{Tensor, Writer, float, int, ints, signed, text};
use arenic_ir::DType;
use arenic_ir::op::{Coordinates, Interpolation, NearestMode, ResizeSpec, Scale};

/// What says how far axes are resized.
enum Given {
    /// A scale for each axis.
    Scales(Vec<f64>),
    /// An extent for each axis.
    Sizes(Vec<i64>),
    /// Extents that axes are not to exceed; all have the least of their scales.
    Common { axes: Vec<usize>, sizes: Vec<i64> },
}

impl Given {
    /// `None` if ONNX has no words for it.
    fn of(spec: &ResizeSpec, old: &[usize]) -> Option<Given> {
        let fits = |i: usize| match spec.scales[i] {
            Scale::Number(scale) => f64::from(scale) * old[i] as f64 == spec.sizes[i] as f64,
            Scale::Ratio(to, from) => to as usize * old[i] == from as usize * spec.sizes[i],
        };
        let number = |scale: &Scale| match scale {
            Scale::Number(x) => Some(f64::from(*x)),
            Scale::Ratio(..) => None,
        };
        if old.contains(&0) || (0..old.len()).all(fits) {
            return Some(Given::Sizes(signed(&spec.sizes)));
        }
        if let Some(scales) = spec.scales.iter().map(number).collect() {
            return Some(Given::Scales(scales));
        }
        let is_ratio = |&i: &usize| matches!(spec.scales[i], Scale::Ratio(..));
        let axes: Vec<usize> = (0..old.len()).filter(is_ratio).collect();
        let &first = axes.first()?;
        let Scale::Ratio(to, from) = spec.scales[first] else { return None };
        let (to, from) = (u64::from(to), u64::from(from));
        let exact = |i: usize| to * old[i] as u64;
        let sound = axes.iter().any(|&i| exact(i).is_multiple_of(from))
            && axes.iter().all(|&i| {
                spec.scales[i] == spec.scales[first]
                    && spec.sizes[i] as u64 == (2 * exact(i) + from) / (2 * from)
            })
            && (0..old.len()).all(|i| axes.contains(&i) || fits(i));
        let sizes = axes.iter().map(|&i| exact(i).div_ceil(from) as i64).collect();
        sound.then_some(Given::Common { axes, sizes })
    }
}

impl Writer<'_> {
    /// Writes a resize.
    ///
    /// # Errors
    /// Scales that ONNX has no words for.
    pub(super) fn resize(
        &mut self,
        x: &Tensor,
        out: Vec<String>,
        spec: &ResizeSpec,
    ) -> Result<(), ExportError> {
        let given = Given::of(spec, &x.ty.shape);
        let given = given.ok_or_else(|| ExportError::Scales(self.label.clone()))?;
        let mut attributes = vec![
            text("coordinate_transformation_mode", coordinates(spec.coordinates)),
            int("exclude_outside", i64::from(spec.exclude_outside)),
            int("antialias", i64::from(spec.antialias)),
            float("extrapolation_value", spec.extrapolation),
        ];
        match spec.mode {
            Interpolation::Nearest(mode) => {
                attributes.push(text("mode", "nearest"));
                attributes.push(text("nearest_mode", nearest(mode)));
            }
            Interpolation::Linear => attributes.push(text("mode", "linear")),
            Interpolation::Cubic { a } => {
                attributes.push(text("mode", "cubic"));
                attributes.push(float("cubic_coeff_a", a));
            }
        }
        let mut on: Vec<usize> = (0..spec.sizes.len()).collect();
        let (scales, sizes) = match given {
            Given::Scales(list) => (self.numbers(DType::F32, &[list.len()], &list), None),
            Given::Sizes(list) => (String::new(), Some(self.list(&list))),
            Given::Common { axes, sizes } => {
                attributes.push(ints("axes", &axes));
                attributes.push(text("keep_aspect_ratio_policy", "not_larger"));
                on = axes;
                (String::new(), Some(self.list(&sizes)))
            }
        };
        let roi = if spec.roi.is_empty() {
            String::new()
        } else {
            let (starts, ends) =
                (on.iter().map(|&i| spec.roi[i].0), on.iter().map(|&i| spec.roi[i].1));
            let list: Vec<f64> = starts.chain(ends).map(f64::from).collect();
            self.numbers(DType::F32, &[list.len()], &list)
        };
        let mut operands = vec![x.name.as_str(), &roi, &scales];
        operands.extend(sizes.as_deref());
        self.node_into("Resize", &operands, out, attributes);
        Ok(())
    }
}

fn nearest(mode: NearestMode) -> &'static str {
    match mode {
        NearestMode::RoundPreferFloor => "round_prefer_floor",
        NearestMode::RoundPreferCeil => "round_prefer_ceil",
        NearestMode::Floor => "floor",
        NearestMode::Ceil => "ceil",
    }
}

fn coordinates(c: Coordinates) -> &'static str {
    match c {
        Coordinates::HalfPixel => "half_pixel",
        Coordinates::HalfPixelSymmetric => "half_pixel_symmetric",
        Coordinates::PytorchHalfPixel => "pytorch_half_pixel",
        Coordinates::AlignCorners => "align_corners",
        Coordinates::Asymmetric => "asymmetric",
        Coordinates::TfCropAndResize => "tf_crop_and_resize",
    }
}
