//! `Resize`: for every axis a table says which source elements an output index reads and
//! with which weights; an element is the sum over the product of its axes' entries.
//!
//! Tables lie in scratch. Leading axes that stay as they are cost nothing but an offset.

use super::address::Shared;
use super::dispatch::for_number;
use super::number::Number;
use super::sliding::unflatten;
use super::tasks::for_each;
use super::terms::filled;
use super::wide::wide;
use crate::kernel::{Call, Destination};
use arenic_ir::DType;
use arenic_ir::op::{Interpolation, MAX_RANK, Position, ResizeSpec};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Runs a `Resize`.
pub(super) fn run(spec: &ResizeSpec, call: &Call) {
    for_number!(call.inputs[0].ty().dtype, T => typed::<T>(call, spec));
}

/// Source elements of one axis: (index, weight) of every output index and tap, index and
/// weight in tables of their own. An index of `OUTSIDE` gives the extrapolation value.
struct Axis<'a> {
    taps: usize,
    stride: usize,
    indices: &'a [u64],
    weights: &'a [f64],
    /// Nothing is outside, and the first index of all is the least, the last one the largest; so it is for every
    /// stretch of them.
    is_sorted: bool,
    period: Period,
}

/// Where positions so many apart read elements that are one apart, with the same weights: of a resize by a whole
/// factor all but those at the ends.
#[derive(Clone, Default)]
struct Period {
    positions: usize,
    within: Range<usize>,
}

impl Period {
    fn of(positions: usize, taps: usize, indices: &[u64], weights: &[f64]) -> Period {
        let count = indices.len() / taps;
        let is_next = |o: usize| {
            let [before, this] = [o - positions, o].map(|o| o * taps..(o + 1) * taps);
            let pairs = indices[before.clone()].iter().zip(&indices[this.clone()]);
            pairs.clone().all(|(before, &this)| before + 1 == this)
                && weights[before] == weights[this]
        };
        let mut within = count / 2..count / 2;
        while positions > 0 && within.start >= positions && is_next(within.start) {
            within.start -= 1;
        }
        while positions > 0 && within.end < count && within.end >= positions && is_next(within.end)
        {
            within.end += 1;
        }
        Period { positions, within }
    }
}

/// No index has this bit; without it, it is the index 0.
const OUTSIDE: u64 = 1 << 63;

fn typed<T: Number>(call: &Call, spec: &ResizeSpec) {
    let x = &call.inputs[0];
    let Some(y) = call.outputs[0].filter(|y: &Destination| y.ty().elements() > 0) else { return };
    let (shape, sizes) = (&x.ty().shape, &spec.sizes);
    let rank = shape.len();
    // SAFETY: a resize has no in-place pairs.
    let (x, y): (&[T], &mut [T]) = unsafe { (x.slice(), y.slice_mut()) };
    if rank == 0 {
        y.copy_from_slice(x);
        return;
    }
    let entries: usize = (0..rank).map(|a| spec.taps(a) * sizes[a]).sum();
    // SAFETY: the only slice of this call's scratch; both types have 8 bytes, any bits are
    // values of either, and the halves are split before they are used.
    let (mut indices, mut weights) = unsafe {
        let all = call.scratch.slice_mut::<u64>(2 * entries);
        let (indices, weights) = all.split_at_mut(entries);
        (indices, std::slice::from_raw_parts_mut(weights.as_mut_ptr().cast::<f64>(), entries))
    };
    let mut axes: [Axis; MAX_RANK] = std::array::from_fn(|_| Axis {
        taps: 1,
        stride: 0,
        indices: &[],
        weights: &[],
        is_sorted: false,
        period: Period::default(),
    });
    let mut stride = 1;
    for a in (0..rank).rev() {
        let taps = spec.taps(a);
        let (own_indices, rest) = indices.split_at_mut(taps * sizes[a]);
        indices = rest;
        let (own_weights, rest) = weights.split_at_mut(taps * sizes[a]);
        weights = rest;
        let places = spec.places(a, shape[a]).expect("a scale that was looked at");
        let keeps = spec.keeps(a, shape[a]);
        for o in 0..sizes[a] {
            let (i, w) =
                (&mut own_indices[o * taps..][..taps], &mut own_weights[o * taps..][..taps]);
            if keeps {
                (i[0], w[0]) = (o as u64, 1.0);
                i[1..].fill(0);
                w[1..].fill(0.0);
            } else {
                entry(spec, a, shape[a], places.at(o), i, w);
            }
        }
        let is_inside = own_indices.iter().all(|i| i & OUTSIDE == 0);
        let mut of_positions = own_indices.chunks_exact(taps);
        let rises = own_indices.iter().zip(&own_indices[taps..]).all(|(a, b)| a <= b);
        let is_sorted = is_inside && rises && of_positions.all(<[u64]>::is_sorted);
        let period = Period::of(sizes[a] / shape[a].max(1), taps, own_indices, own_weights);
        axes[a] =
            Axis { taps, stride, indices: own_indices, weights: own_weights, is_sorted, period };
        stride *= shape[a];
    }
    let axes = &axes[..rank];
    // Integers are truncated: there a sum in another order may give another one.
    let in_any_order = call.inputs[0].ty().dtype.is_float();
    let nearest = matches!(spec.mode, Interpolation::Nearest(_));
    let taps: usize = axes.iter().map(|a| a.taps).product();
    let width = sizes[rank - 1];
    // How often elements of the last axis are repeated, or 0 where they are read otherwise.
    let repeats = width.checked_div(shape[rank - 1]).unwrap_or(0);
    let is_repeated = |(o, &i): (usize, &u64)| repeats > 0 && i == (o / repeats) as u64;
    let all_repeated = axes[rank - 1].indices.iter().enumerate().all(is_repeated);
    let repeats = if all_repeated { repeats } else { 0 };
    let outside = T::from_f64(f64::from(spec.extrapolation));
    let y_len = y.len();
    let y = Shared::new(y.as_mut_ptr());
    for_each(y_len / width, y_len * taps, |row| {
        let mut at = [0; MAX_RANK];
        unflatten(row, &sizes[..rank - 1], &mut at[..rank - 1]);
        // SAFETY: each task has a row of its own.
        let to = unsafe { y.slice(row * width, width) };
        if nearest {
            let base = (0..rank - 1).try_fold(0, |base, d| {
                let i = axes[d].indices[at[d]];
                (i != OUTSIDE).then(|| base + i as usize * axes[d].stride)
            });
            match base {
                Some(base) if repeats > 0 => repeat(&x[base..], repeats, to),
                Some(base) => {
                    for (to, &i) in to.iter_mut().zip(axes[rank - 1].indices) {
                        *to = if i == OUTSIDE { outside } else { x[base + i as usize] };
                    }
                }
                None => to.fill(outside),
            }
            return;
        }
        let last = &axes[rank - 1];
        for (first, to) in (0..width).step_by(STRIP).zip(to.chunks_mut(STRIP)) {
            if in_any_order && last.is_sorted && sorted(axes, &at, x, first, to, outside) {
                continue;
            }
            let mut sums = [0.0; STRIP];
            let inside = match last.taps {
                1 => strip::<T, 1>(axes, &at, x, first, &mut sums[..to.len()]),
                2 => strip::<T, 2>(axes, &at, x, first, &mut sums[..to.len()]),
                4 => strip::<T, 4>(axes, &at, x, first, &mut sums[..to.len()]),
                _ => strip::<T, 0>(axes, &at, x, first, &mut sums[..to.len()]),
            };
            for (o, (to, sum)) in (first..).zip(to.iter_mut().zip(sums)) {
                let inside = inside && last.indices[o * last.taps] != OUTSIDE;
                *to = if inside { T::from_f64(sum) } else { outside };
            }
        }
    });
}

wide! {
    /// Fills a row with elements, each so many times.
    fn repeat<T: Number>(x: &[T], times: usize, to: &mut [T]) where T::IS_FLOAT; {
        match times {
            1 => to.copy_from_slice(&x[..to.len()]),
            2 => to.as_chunks_mut::<2>().0.iter_mut().zip(x).for_each(|(to, &x)| *to = [x; 2]),
            _ => to.chunks_mut(times).zip(x).for_each(|(to, &x)| to.fill(x)),
        }
    }
}

/// Adds up what elements of a row of the result, from `first` on, read. `TAPS` is the
/// number of taps of the last axis, or 0. False where the whole row lies outside.
fn strip<T: Number, const TAPS: usize>(
    axes: &[Axis],
    at: &[usize],
    x: &[T],
    first: usize,
    sums: &mut [f64],
) -> bool {
    let (last, outer) = axes.split_last().expect("an axis");
    let taps = if TAPS == 0 { last.taps } else { TAPS };
    let entries = first * taps..(first + sums.len()) * taps;
    let (indices, weights) = (&last.indices[entries.clone()], &last.weights[entries]);
    let mut inside = true;
    rows(outer, at, 0, 1.0, &mut |place| {
        let Some((base, weight)) = place else { return inside = false };
        let x = &x[base..];
        for (o, sum) in sums.iter_mut().enumerate() {
            let (indices, weights) = (&indices[o * taps..][..taps], &weights[o * taps..][..taps]);
            let mut row = 0.0;
            for t in 0..taps {
                row += weights[t] * x[(indices[t] & !OUTSIDE) as usize].to_f64();
            }
            *sum += weight * row;
        }
    });
    inside
}

/// Elements of a row summed at a time, and those of a row of the source that they are read from at most.
const STRIP: usize = 128;
const SPAN: usize = 512;

/// Fills a part of a row, from `first` on, where indices of the last axis are sorted: rows of the source are
/// added up before what they have in common is read. False, and nothing done, where they are too long for that.
fn sorted<T: Number>(
    axes: &[Axis],
    at: &[usize],
    x: &[T],
    first: usize,
    to: &mut [T],
    outside: T,
) -> bool {
    let (last, outer) = axes.split_last().expect("an axis");
    let (low, high) = match &last.indices[first * last.taps..(first + to.len()) * last.taps] {
        [low, .., high] => (*low as usize, *high as usize),
        [only] => (*only as usize, *only as usize),
        [] => return true,
    };
    let width = high + 1 - low;
    if width > SPAN || ![2, 4].contains(&last.taps) {
        return false;
    }
    let (mut room, mut inside) = ([const { MaybeUninit::uninit() }; SPAN], true);
    let sums = filled(&mut room, width, 0.0);
    rows(outer, at, low, 1.0, &mut |place| match place {
        Some((base, weight)) => add_row(&x[base..][..width], weight, sums),
        None => inside = false,
    });
    if !inside {
        to.fill(outside);
        return true;
    }
    read_periods(last, first, low, sums, to);
    true
}

/// Fills part of a row, from `first` on, with what its taps read of sums, which begin with that of index `low`: whole
/// periods at once.
fn read_periods<T: Number>(axis: &Axis, first: usize, low: usize, sums: &[f64], to: &mut [T]) {
    let Period { positions, within } = &axis.period;
    let end = first + to.len();
    let begin = within.start.clamp(first, end);
    let count = (within.end.clamp(begin, end) - begin) / positions.max(&1);
    let periodic = match positions {
        2 => periodic::<T, 2>,
        3 => periodic::<T, 3>,
        4 => periodic::<T, 4>,
        _ => return read_from(axis, first, low, sums, to),
    };
    let (before, to) = to.split_at_mut(begin - first);
    let (periods, after) = to.split_at_mut(count * positions);
    read_from(axis, first, low, sums, before);
    if count > 0 {
        periodic(axis, begin, low, sums, periods);
    }
    read_from(axis, begin + count * positions, low, sums, after);
}

/// The same of elements one by one.
fn read_from<T: Number>(axis: &Axis, first: usize, low: usize, sums: &[f64], to: &mut [T]) {
    let entries = first * axis.taps..(first + to.len()) * axis.taps;
    let (indices, weights) = (&axis.indices[entries.clone()], &axis.weights[entries]);
    match axis.taps {
        2 => read::<T, 2>(indices, weights, low, sums, to),
        _ => read::<T, 4>(indices, weights, low, sums, to),
    }
}

wide! {
    /// The same of whole periods of `K` positions, from `first` on.
    fn periodic<T: Number; const K: usize>(
        axis: &Axis,
        first: usize,
        low: usize,
        sums: &[f64],
        to: &mut [T],
    ) where T::IS_FLOAT; {
        let (count, taps) = (to.len() / K, axis.taps);
        let mut made = [0.0; STRIP];
        for (p, made) in made.chunks_exact_mut(count).take(K).enumerate() {
            for entry in (first + p) * taps..(first + p + 1) * taps {
                let (index, weight) = (axis.indices[entry] as usize, axis.weights[entry]);
                for (made, sum) in made.iter_mut().zip(&sums[index - low..][..count]) {
                    *made += weight * sum;
                }
            }
        }
        for (i, to) in to.as_chunks_mut::<K>().0.iter_mut().enumerate() {
            for (p, to) in to.iter_mut().enumerate() {
                *to = T::from_f64(made[p * count + i]);
            }
        }
    }
}

wide! {
    /// Adds a row of the source, times its weight.
    fn add_row<T: Number>(x: &[T], weight: f64, sums: &mut [f64]) where T::IS_FLOAT; {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += weight * x.to_f64();
        }
    }
}

wide! {
    /// Fills part of a row with what its taps read of sums, which begin with that of index `low`.
    fn read<T: Number; const TAPS: usize>(
        indices: &[u64],
        weights: &[f64],
        low: usize,
        sums: &[f64],
        to: &mut [T],
    ) where T::IS_FLOAT; {
        let (indices, weights) = (indices.as_chunks::<TAPS>().0, weights.as_chunks::<TAPS>().0);
        for ((to, indices), weights) in to.iter_mut().zip(indices).zip(weights) {
            let mut sum = 0.0;
            for (index, weight) in indices.iter().zip(weights) {
                sum += weight * sums[*index as usize - low];
            }
            *to = T::from_f64(sum);
        }
    }
}

/// Calls `f` with offset and weight of every source row that a row of the result reads, or
/// with nothing where an axis is outside.
fn rows(
    axes: &[Axis],
    at: &[usize],
    base: usize,
    weight: f64,
    f: &mut impl FnMut(Option<(usize, f64)>),
) {
    let Some((axis, rest)) = axes.split_first() else { return f(Some((base, weight))) };
    let entries = at[0] * axis.taps..(at[0] + 1) * axis.taps;
    for (&i, &w) in axis.indices[entries.clone()].iter().zip(&axis.weights[entries]) {
        if i == OUTSIDE {
            return f(None);
        }
        if w != 0.0 {
            rows(rest, &at[1..], base + i as usize * axis.stride, weight * w, f);
        }
    }
}

/// Fills the entries of an index that lies at this place, of an axis of this extent.
fn entry(
    spec: &ResizeSpec,
    axis: usize,
    extent: usize,
    at: Option<Position>,
    indices: &mut [u64],
    weights: &mut [f64],
) {
    indices.fill(0);
    weights.fill(0.0);
    let Some(at) = at else {
        indices.fill(OUTSIDE);
        return;
    };
    let last = extent as i64 - 1;
    if let Interpolation::Nearest(mode) = spec.mode {
        (indices[0], weights[0]) = (at.nearest(mode).clamp(0, last) as u64, 1.0);
        return;
    }
    let stretch = spec.stretch(axis);
    let first = at.ceil() - (indices.len() / 2) as i64;
    for (i, (index, weight)) in indices.iter_mut().zip(weights.iter_mut()).enumerate() {
        let tap = first + i as i64;
        let distance = at.distance(tap) * stretch;
        *weight = match spec.mode {
            Interpolation::Cubic { a } => cubic(distance, a.into()),
            _ => (1.0 - distance).max(0.0),
        };
        if spec.exclude_outside && !(0..=last).contains(&tap) {
            *weight = 0.0;
        }
        *index = tap.clamp(0, last) as u64;
    }
    if spec.antialias || spec.exclude_outside {
        let total: f64 = weights.iter().sum();
        if total != 0.0 {
            weights.iter_mut().for_each(|w| *w /= total);
        }
    }
}

/// Keys' cubic.
fn cubic(x: f64, a: f64) -> f64 {
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}
