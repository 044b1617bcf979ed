//! Images out of patches, and images sampled at points.

use super::compose::Made;
use super::position::{part, rounded};
use super::{Row, row};
use crate::onnx::attributes::Access;
use crate::onnx::context::{Built, Cx, extents};
use crate::onnx::error::Fault;
use crate::onnx::fold::scalar_bytes;
use arenic_ir::op::{Binary, Unary};
use arenic_ir::{DType, Op, TensorType, ValueId};

pub(super) const ROWS: &[Row] = &[
    row("AffineGrid", (2, 2), &["align_corners"], affine_grid)
        .since(20)
        .note("size known when compiled"),
    row("Col2Im", (3, 3), &["dilations", "pads", "strides"], col2im)
        .since(18)
        .note("shapes known when compiled"),
    row("GridSample", (2, 2), &["align_corners", "mode", "padding_mode"], grid_sample)
        .since(16)
        .note("cubic in two dimensions"),
];

/// Most places in a patch: each is a node.
const MOST_PLACES: usize = 4096;

/// One extent per axis of an image, or a default for each.
pub(super) fn each(a: &Access, name: &str, n: usize, default: usize) -> Result<Vec<usize>, Fault> {
    match a.ints(name)? {
        None => Ok(vec![default; n]),
        Some(list) if list.len() == n => extents(list),
        Some(list) => Err(Fault(format!("attribute `{name}` has {} entries, not {n}", list.len()))),
    }
}

/// Patches added where they were taken from: for each place in a patch, the elements of all patches
/// there lie as far apart as patches do.
fn col2im(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let image = extents(&cx.ints(1)?.ok_or("its image's shape is missing")?)?;
    let block = extents(&cx.ints(2)?.ok_or("its block's shape is missing")?)?;
    let (a, n, ty) = (cx.attributes(), image.len(), cx.ty(x));
    let (strides, dilations) = (each(&a, "strides", n, 1)?, each(&a, "dilations", n, 1)?);
    let pads = each(&a, "pads", 2 * n, 0)?;
    let places = block.iter().try_fold(1usize, |all, &b| all.checked_mul(b));
    let places = places.filter(|&p| p > 0 && p <= MOST_PLACES);
    let places =
        places.ok_or_else(|| Fault(format!("a block of {block:?} is too large or empty")))?;
    if block.len() != n || n == 0 || strides.contains(&0) || dilations.contains(&0) {
        return Err(Fault(format!("a block of {block:?} does not fit an image of {image:?}")));
    }
    let mut padded = Vec::with_capacity(n);
    let mut counts = Vec::with_capacity(n);
    for i in 0..n {
        let whole = [pads[i], pads[n + i]].iter().try_fold(image[i], |sum, &p| sum.checked_add(p));
        let span = dilations[i].checked_mul(block[i] - 1).and_then(|s| s.checked_add(1));
        let (Some(whole), Some(span)) = (whole, span) else {
            return Err("its pads or dilations are too large".into());
        };
        let free = whole.checked_sub(span);
        let free =
            free.ok_or_else(|| Fault(format!("a block of {block:?} is larger than the image")))?;
        padded.push(whole);
        counts.push(free / strides[i] + 1);
    }
    let fits = |&[_, channels, length]: &[usize; 3]| {
        channels.is_multiple_of(places) && counts.iter().product::<usize>() == length
    };
    let shape = <[usize; 3]>::try_from(&ty.shape[..]).ok().filter(fits);
    let [batch, channels, _] = shape
        .ok_or_else(|| Fault(format!("{ty} does not hold blocks of {block:?} of {image:?}")))?;
    let channels = channels / places;
    let split: Vec<usize> =
        [batch, channels, places].into_iter().chain(counts.iter().copied()).collect();
    let x = cx.reshape(x, split)?;
    let one: Vec<usize> = [batch, channels].into_iter().chain(counts.iter().copied()).collect();
    let whole: Vec<usize> = [batch, channels].into_iter().chain(padded.iter().copied()).collect();
    let mut sum: Option<ValueId> = None;
    for place in 0..places {
        let elements = part(cx, x, 2, place, 1, 1)?;
        let elements = cx.reshape(elements, one.clone())?;
        let (mut starts, mut steps) = (vec![0; n + 2], vec![1; n + 2]);
        let mut rest = place;
        for i in (0..n).rev() {
            starts[i + 2] = rest % block[i] * dilations[i];
            steps[i + 2] = strides[i];
            rest /= block[i];
        }
        let op = Op::Pad { starts, steps, shape: whole.clone(), value: 0.0 };
        let spread = cx.emit1(op, vec![elements])?;
        sum = Some(match sum {
            None => spread,
            Some(sum) => cx.add(sum, spread)?,
        });
    }
    let sum = sum.ok_or("its block is empty")?;
    let starts = [0, 0].into_iter().chain(pads[..n].iter().copied()).collect();
    let shape = [batch, channels].into_iter().chain(image).collect();
    let y = cx.emit1(Op::Slice { starts, steps: vec![1; n + 2], shape }, vec![sum])?;
    Ok(vec![Some(y)])
}

/// Coordinates of an image's elements along an axis, from −1 to 1.
fn coordinates(extent: usize, corners: bool) -> Vec<f64> {
    let n = extent as f64;
    let at = |i: usize| match corners {
        true if extent > 1 => -1.0 + 2.0 * i as f64 / (n - 1.0),
        true => -1.0,
        false => -1.0 + (2.0 * i as f64 + 1.0) / n,
    };
    (0..extent).map(at).collect()
}

/// The points that an affine map makes of an image's.
fn affine_grid(cx: &mut Cx) -> Built {
    let theta = cx.input(0)?;
    let size = extents(&cx.ints(1)?.ok_or("its size is missing")?)?;
    let corners = cx.attributes().flag("align_corners", false)?;
    let ty = cx.ty(theta);
    let n = size.len().saturating_sub(2);
    if !(2..=3).contains(&n) || ty.shape != [size[0], n, n + 1] || !ty.dtype.is_float() {
        return Err(Fault(format!("{ty} is no affine map of an image of {size:?}")));
    }
    let image = &size[2..];
    let points = image.iter().try_fold(1usize, |all, &d| all.checked_mul(d));
    let bytes = points.and_then(|p| p.checked_mul((n + 1) * ty.dtype.size() as usize));
    let Some(points) = points.filter(|_| bytes.is_some_and(|b| cx.b.spend(b as u64))) else {
        return Err("its grid takes too much memory".into());
    };
    let along: Vec<Vec<f64>> = image.iter().map(|&d| coordinates(d, corners)).collect();
    let mut data = Vec::new();
    for point in 0..points {
        let mut rest = point;
        let mut at = vec![0.0; n];
        for i in (0..n).rev() {
            at[i] = along[i][rest % image[i]];
            rest /= image[i];
        }
        // The last axis is the first coordinate.
        let row = at.iter().rev().copied().chain([1.0]);
        data.extend(row.flat_map(|x| scalar_bytes(ty.dtype, x)));
    }
    let grid = cx.b.constant(TensorType::new(ty.dtype, [points, n + 1]), data);
    let y = cx.emit1(Op::MatMul { trans_a: false, trans_b: true }, vec![grid, theta])?;
    let shape = [size[0]].into_iter().chain(image.iter().copied()).chain([n]).collect();
    Ok(vec![Some(cx.reshape(y, shape)?)])
}

/// What is beyond an image's borders.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Beyond {
    Zeros,
    Border,
    Reflection,
}

/// How an element between others is made of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Between {
    Nearest,
    Linear,
    Cubic,
}

/// An image at the points of a grid: the nearest element, or the mean of those around by their distance.
fn grid_sample(cx: &mut Cx) -> Built {
    let (x, grid) = (cx.input(0)?, cx.input(1)?);
    let (ty, of) = (cx.ty(x), cx.ty(grid));
    let a = cx.attributes();
    let corners = a.flag("align_corners", false)?;
    let between = a.one_of(
        "mode",
        "linear",
        &[
            ("linear", Between::Linear),
            ("bilinear", Between::Linear),
            ("nearest", Between::Nearest),
            ("cubic", Between::Cubic),
            ("bicubic", Between::Cubic),
        ],
    )?;
    let beyond = a.one_of(
        "padding_mode",
        "zeros",
        &[("zeros", Beyond::Zeros), ("border", Beyond::Border), ("reflection", Beyond::Reflection)],
    )?;
    let n = ty.rank().saturating_sub(2);
    let points = of.shape.get(1..n + 1).map(|p| p.iter().product::<usize>());
    let fits = of.rank() == n + 2 && of.shape[0] == ty.shape[0] && of.shape[n + 1] == n;
    let points = points.filter(|_| (1..=3).contains(&n) && fits && of.dtype == ty.dtype);
    let points = points.ok_or_else(|| Fault(format!("points {of} are not in an image {ty}")))?;
    if !ty.dtype.is_float() || ty.shape[2..].contains(&0) {
        return Err(Fault(format!("it does not take {ty}")));
    }
    let (batch, channels, image) = (ty.shape[0], ty.shape[1], ty.shape[2..].to_vec());
    let elements: usize = image.iter().product();
    // Rows of channels, of which points take some.
    let rows = cx.reshape(x, vec![batch, channels, elements])?;
    let rows = cx.transposed(rows, vec![0, 2, 1])?;
    let grid = cx.reshape(grid, vec![batch, points, n])?;
    if between == Between::Cubic && n != 2 {
        return Err(Fault(format!("cubic sampling is of two dimensions, not of {n}")));
    }
    let mut axes = Vec::with_capacity(n);
    for (i, &extent) in image.iter().enumerate() {
        let at = part(cx, grid, 2, n - 1 - i, 1, 1)?;
        let edges = Edges { extent, corners, beyond };
        let at = edges.placed(cx, at)?;
        axes.push((edges, taps(cx, edges, at, between)?));
    }
    let sum = sampled(cx, rows, &axes)?;
    let y = cx.transposed(sum, vec![0, 2, 1])?;
    let shape = [batch, channels].into_iter().chain(of.shape[1..n + 1].iter().copied()).collect();
    Ok(vec![Some(cx.reshape(y, shape)?)])
}

/// Rows of channels `[batch, elements, channels]` of an image at places along its axes, each
/// `[batch, points, 1]`: the sum of those around by their shares, `[batch, points, channels]`.
pub(super) fn sampled(cx: &mut Cx, rows: ValueId, axes: &[(Edges, Taps)]) -> Made {
    let dtype = cx.ty(rows).dtype;
    let corners = axes.iter().map(|(_, taps)| taps.len()).product::<usize>();
    let mut sum: Option<ValueId> = None;
    for corner in 0..corners {
        let mut index: Option<ValueId> = None;
        let mut weight: Option<ValueId> = None;
        let mut rest = corner;
        for (edges, taps) in axes {
            let (place, mut share) = taps[rest % taps.len()];
            rest /= taps.len();
            let inside = edges.clipped(cx, place)?;
            if edges.beyond == Beyond::Zeros {
                let there = cx.both(Binary::Equal, inside, place)?;
                let there = cx.cast(there, dtype)?;
                share = Some(match share {
                    Some(share) => cx.mul(share, there)?,
                    None => there,
                });
            }
            let inside = cx.cast(inside, DType::I64)?;
            index = Some(match index {
                None => inside,
                Some(index) => {
                    let index = cx.times(index, edges.extent as f64)?;
                    cx.add(index, inside)?
                }
            });
            weight = match (weight, share) {
                (Some(a), Some(b)) => Some(cx.mul(a, b)?),
                (a, b) => a.or(b),
            };
        }
        let index = index.ok_or("its image has no axes")?;
        let taken = cx.emit1(Op::GatherNd { batch_dims: 1 }, vec![rows, index])?;
        let term = match weight {
            Some(weight) => cx.mul(taken, weight)?,
            None => taken,
        };
        sum = Some(match sum {
            Some(sum) => cx.add(sum, term)?,
            None => term,
        });
    }
    sum.ok_or_else(|| "its image has no axes".into())
}

/// An axis of an image, and what is beyond it.
#[derive(Clone, Copy)]
pub(super) struct Edges {
    pub(super) extent: usize,
    /// Coordinates −1 and 1 are the centres of the first and the last element, not their borders.
    pub(super) corners: bool,
    pub(super) beyond: Beyond,
}

/// Elements along an axis that a place between them is made of, and the share of each; one alone has none.
pub(super) type Taps = Vec<(ValueId, Option<ValueId>)>;

/// The elements around a place along an axis.
pub(super) fn taps(
    cx: &mut Cx,
    edges: Edges,
    at: ValueId,
    between: Between,
) -> Result<Taps, Fault> {
    if between == Between::Nearest {
        let at = edges.kept(cx, at)?;
        return Ok(vec![(rounded(cx, at)?, None)]);
    }
    // A cubic goes by elements, each of which is kept within the image.
    let at = if between == Between::Linear { edges.kept(cx, at)? } else { at };
    let floor = cx.map(Unary::Floor, at)?;
    let above = cx.sub(at, floor)?;
    let below = cx.number_minus(1.0, above)?;
    let next = cx.plus(floor, 1.0)?;
    if between == Between::Linear {
        return Ok(vec![(floor, Some(below)), (next, Some(above))]);
    }
    let (before, last) = (cx.plus(floor, -1.0)?, cx.plus(floor, 2.0)?);
    let mut taps = Vec::new();
    for (place, distance, far) in
        [(before, above, true), (floor, above, false), (next, below, false), (last, below, true)]
    {
        let share = cubic(cx, distance, far)?;
        taps.push((edges.kept(cx, place)?, Some(share)));
    }
    Ok(taps)
}

/// The cubic kernel at a distance below one, or one above that.
fn cubic(cx: &mut Cx, distance: ValueId, far: bool) -> Result<ValueId, Fault> {
    const A: f64 = -0.75;
    // By Horner's rule, from the highest power down.
    let (x, factors) = match far {
        true => (cx.plus(distance, 1.0)?, [A, -5.0 * A, 8.0 * A, -4.0 * A]),
        false => (distance, [A + 2.0, -(A + 3.0), 0.0, 1.0]),
    };
    let mut sum = cx.times(x, factors[0])?;
    for factor in &factors[1..3] {
        let inner = cx.plus(sum, *factor)?;
        sum = cx.mul(inner, x)?;
    }
    cx.plus(sum, factors[3])
}

impl Edges {
    /// A coordinate from −1 to 1 as a place among elements.
    fn placed(self, cx: &mut Cx, at: ValueId) -> Result<ValueId, Fault> {
        let n = self.extent as f64;
        let at = cx.plus(at, 1.0)?;
        if self.corners {
            return cx.times(at, (n - 1.0) / 2.0);
        }
        let at = cx.times(at, n / 2.0)?;
        cx.plus(at, -0.5)
    }

    /// The nearest place within the image.
    fn clipped(self, cx: &mut Cx, at: ValueId) -> Result<ValueId, Fault> {
        let dtype = cx.ty(at).dtype;
        let (low, high) = (cx.scalar(dtype, 0.0), cx.scalar(dtype, (self.extent - 1) as f64));
        cx.emit1(Op::Clip { min: true, max: true }, vec![at, low, high])
    }

    /// A place that is kept within the image, unless zeros are beyond it.
    fn kept(self, cx: &mut Cx, at: ValueId) -> Result<ValueId, Fault> {
        let n = self.extent as f64;
        match self.beyond {
            Beyond::Zeros => Ok(at),
            Beyond::Border => self.clipped(cx, at),
            Beyond::Reflection => {
                let (low, high) = if self.corners { (0.0, n - 1.0) } else { (-0.5, n - 0.5) };
                let span = high - low;
                if span <= 0.0 {
                    return cx.times(at, 0.0);
                }
                // Forwards in every even stretch of that length, backwards in every odd one.
                let from = cx.plus(at, -low)?;
                let from = cx.map(Unary::Abs, from)?;
                let stretch = cx.times(from, 1.0 / span)?;
                let stretch = cx.map(Unary::Floor, stretch)?;
                let before = cx.times(stretch, span)?;
                let rest = cx.sub(from, before)?;
                let half = cx.times(stretch, 0.5)?;
                let half = cx.map(Unary::Floor, half)?;
                let even = cx.times(half, 2.0)?;
                let even = cx.both(Binary::Equal, even, stretch)?;
                let back = cx.number_minus(span, rest)?;
                let at = cx.select(even, rest, back)?;
                let at = cx.plus(at, low)?;
                self.clipped(cx, at)
            }
        }
    }
}
