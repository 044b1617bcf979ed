//! Regions of images, sampled on a grid of their own.

use super::compose::Made;
use super::{Row, row};
use crate::onnx::context::{Built, Cx, extents};
use crate::onnx::error::Fault;
use crate::onnx::fold::scalar_bytes;
use arenic_ir::op::{Binary, Reduction, Unary};
use arenic_ir::{DType, Op, TensorType, ValueId};

const ROI_ALIGN: &[&str] = &[
    "coordinate_transformation_mode",
    "mode",
    "output_height",
    "output_width",
    "sampling_ratio",
    "spatial_scale",
];

pub(super) const ROWS: &[Row] =
    &[row("RoiAlign", (3, 3), ROI_ALIGN, roi_align).since(16).note("sampling_ratio above 0")];

/// Places along one axis of an image, `[regions, samples, 1]` each: the element before, the one after, the share
/// of that, and whether the place is in the image.
struct Samples {
    before: ValueId,
    after: ValueId,
    share: ValueId,
    is_inside: ValueId,
}

/// The mean of samples in each cell of a region's grid (He et al., 2017, "Mask R-CNN"), or, as ONNX defines
/// it, the largest of the weighted elements around the samples.
fn roi_align(cx: &mut Cx) -> Built {
    let (x, regions, batches) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (ty, of, at) = (cx.ty(x), cx.ty(regions), cx.ty(batches));
    let a = cx.attributes();
    let cells = [a.int_or("output_height", 1)?, a.int_or("output_width", 1)?];
    let cells = extents(&cells)?;
    let ratio = usize::try_from(a.int_or("sampling_ratio", 0)?).ok().filter(|&r| r > 0);
    let ratio = ratio
        .ok_or("its sampling_ratio is 0: how many samples a region has depends on what is fed")?;
    let half = a.one_of(
        "coordinate_transformation_mode",
        "half_pixel",
        &[("half_pixel", true), ("output_half_pixel", false)],
    )?;
    let is_mean = a.one_of("mode", "avg", &[("avg", true), ("max", false)])?;
    let scale = f64::from(a.float_or("spatial_scale", 1.0)?);
    let (&[n, channels, height, width], &[count, 4]) = (&ty.shape[..], &of.shape[..]) else {
        return Err(Fault(format!("{of} are no regions of {ty}")));
    };
    let fits = of.dtype == ty.dtype && ty.dtype.is_float() && at.shape == [count];
    if !fits || at.dtype != DType::I64 || height == 0 || width == 0 || cells.contains(&0) {
        return Err(Fault(format!("{of} of the images {at} are no regions of {ty}")));
    }
    let rows = cx.transposed(x, vec![0, 2, 3, 1])?;
    let rows = cx.reshape(rows, vec![n * height * width, channels])?;
    let offset = if half { -0.5 } else { 0.0 };
    let mut axes = Vec::with_capacity(2);
    // Of a region the first corner is (x, y).
    for (i, extent) in [height, width].into_iter().enumerate() {
        let corner = |cx: &mut Cx, at: usize| -> Made {
            let edge = super::position::part(cx, regions, 1, at, 1, 1)?;
            let edge = cx.times(edge, scale)?;
            cx.plus(edge, offset)
        };
        let (first, last) = (corner(cx, 1 - i)?, corner(cx, 3 - i)?);
        let mut size = cx.sub(last, first)?;
        if !half {
            size = cx.with(Binary::Max, size, 1.0)?;
        }
        let places = cells[i] * ratio;
        let element = |k: usize| (k as f64 + 0.5) / places as f64;
        let bytes =
            (0..places).flat_map(|k| scalar_bytes(ty.dtype, element(k))).collect::<Vec<_>>();
        let along = cx.b.constant(TensorType::new(ty.dtype, [1, places]), bytes);
        let along = cx.mul(size, along)?;
        let place = cx.add(first, along)?;
        axes.push(samples(cx, place, extent)?);
    }
    let [down, right] = &axes[..] else { return Err("it has two axes".into()) };
    // Regions, places down, places to the right.
    let shape = |down: usize, right: usize| vec![count, down, right];
    let (tall, wide) = (cells[0] * ratio, cells[1] * ratio);
    let of_down = |cx: &mut Cx, v| cx.reshape(v, shape(tall, 1));
    let of_right = |cx: &mut Cx, v| cx.reshape(v, shape(1, wide));
    let (below, beside) = (of_down(cx, down.is_inside)?, of_right(cx, right.is_inside)?);
    let is_inside = cx.both(Binary::And, below, beside)?;
    let is_inside = cx.cast(is_inside, ty.dtype)?;
    let base = cx.times(batches, (height * width) as f64)?;
    let base = cx.reshape(base, vec![count, 1, 1])?;
    let mut corners = Vec::with_capacity(4);
    for (row, is_after) in [(down.before, false), (down.after, true)] {
        let row = of_down(cx, row)?;
        let row = cx.times(row, width as f64)?;
        let row = cx.add(base, row)?;
        let weight = of_down(cx, down.share)?;
        let weight = if is_after { weight } else { cx.number_minus(1.0, weight)? };
        let weight = cx.mul(is_inside, weight)?;
        for (column, is_after) in [(right.before, false), (right.after, true)] {
            let column = of_right(cx, column)?;
            let index = cx.add(row, column)?;
            let taken = cx.emit1(Op::Gather { axis: 0 }, vec![rows, index])?;
            let share = of_right(cx, right.share)?;
            let share = if is_after { share } else { cx.number_minus(1.0, share)? };
            let share = cx.mul(weight, share)?;
            let share = cx.reshape(share, vec![count, tall, wide, 1])?;
            corners.push(cx.mul(taken, share)?);
        }
    }
    let (join, f) = match is_mean {
        true => (Binary::Add, Reduction::Mean),
        false => (Binary::Max, Reduction::Max),
    };
    let mut corners = corners.into_iter();
    let mut all = corners.next().ok_or("it has no samples")?;
    for corner in corners {
        all = cx.both(join, all, corner)?;
    }
    let split = vec![count, cells[0], ratio, cells[1], ratio, channels];
    let all = cx.reshape(all, split)?;
    let pooled = cx.without(f, all, &[2, 4])?;
    Ok(vec![Some(cx.transposed(pooled, vec![0, 3, 1, 2])?)])
}

/// The elements around places `[regions, samples]` along an axis. Up to one element beside the image, the nearest one counts.
fn samples(cx: &mut Cx, place: ValueId, extent: usize) -> Result<Samples, Fault> {
    let (last, end) = (extent as f64 - 1.0, extent as f64);
    let from = cx.with(Binary::GreaterOrEqual, place, -1.0)?;
    let to = cx.with(Binary::LessOrEqual, place, end)?;
    let is_inside = cx.both(Binary::And, from, to)?;
    let place = cx.with(Binary::Max, place, 0.0)?;
    let place = cx.with(Binary::Min, place, last)?;
    let before = cx.map(Unary::Floor, place)?;
    let share = cx.sub(place, before)?;
    let after = cx.plus(before, 1.0)?;
    let after = cx.with(Binary::Min, after, last)?;
    let (before, after) = (cx.cast(before, DType::I64)?, cx.cast(after, DType::I64)?);
    Ok(Samples { before, after, share, is_inside })
}
