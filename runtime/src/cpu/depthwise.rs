//! Depthwise convolutions, each channel by itself (see [`arenic_backends::cpu::depthwise`]).
//!
//! A band's operand is copied to a buffer with its zeros; then every tap is a multiplication of many neighbours
//! in that buffer, across the ends of rows. Taps are added in order, bands and images too, so that the order of
//! every sum follows from shapes.

use super::address::Shared;
use super::number::Number;
use super::sliding::{copy_short, inside};
use super::tasks::for_ranges;
use super::wide::wide;
use arenic_backends::cpu::depthwise::{Depthwise, DepthwiseAxis, OPERAND, RESULT, TAPS};

/// Neighbours that a tap is multiplied with at a time.
const LANES: usize = 32;

/// The same of a gradient, for several taps at once.
const DOTS: usize = 8;

/// Elements of one task, so that making its buffers counts for little.
const TASK: usize = 1 << 16;

/// What is used for one plane after the other: a band's operand and its result, behind either of which blocks
/// of neighbours may reach, and taps.
struct Buffers<T> {
    operand: [T; OPERAND + LANES],
    result: [T; RESULT + LANES],
    taps: Taps<T>,
}

impl<T: Number> Buffers<T> {
    fn new() -> Self {
        let (operand, result) = ([T::ZERO; OPERAND + LANES], [T::ZERO; RESULT + LANES]);
        Buffers { operand, result, taps: Taps::none() }
    }
}

/// A tap: where it is in the operand's buffer, as seen from the first position, and its weight.
#[derive(Clone, Copy)]
struct Tap<T> {
    offset: usize,
    weight: T,
}

/// The taps of a window, or some of them.
struct Taps<T> {
    all: [Tap<T>; TAPS],
    count: usize,
}

impl<T: Number> Taps<T> {
    fn none() -> Self {
        Taps { all: [Tap { offset: 0, weight: T::ZERO }; TAPS], count: 0 }
    }

    fn push(&mut self, offset: usize, weight: T) {
        self.all[self.count] = Tap { offset, weight };
        self.count += 1;
    }

    fn as_slice(&self) -> &[Tap<T>] {
        &self.all[..self.count]
    }
}

/// Where a tap meets a band's operand.
#[derive(Clone, Copy, Default)]
struct Reach {
    /// Its element in the operand's buffer, as seen from the first position.
    offset: usize,
    /// The remainders of positions by the strides that it adds to, rows first; of a convolution there are none.
    remainder: [usize; 2],
}

/// Those of all taps of a window, which are the same for all planes.
struct Reaches {
    all: [Reach; TAPS],
    count: usize,
}

impl Reaches {
    fn new(plan: &Depthwise, of: impl Fn([DepthwiseAxis; 2], [usize; 2]) -> Reach) -> Self {
        let (mut all, count) = ([Reach::default(); TAPS], plan.taps());
        for (t, reach) in all[..count].iter_mut().enumerate() {
            *reach = of(plan.axes, [t / plan.axes[1].kernel, t % plan.axes[1].kernel]);
        }
        Reaches { all, count }
    }

    /// Of a convolution, whose operand lies in planes by its remainders.
    fn forward(plan: &Depthwise) -> Self {
        Reaches::new(plan, |[rows, columns], tap| {
            let [(row_rest, row), (column_rest, column)] = [rows.tap(tap[0]), columns.tap(tap[1])];
            let plane = row_rest * columns.stride + column_rest;
            let offset = plane * plan.plane() + row * plan.pitch + column;
            Reach { offset, remainder: [0; 2] }
        })
    }

    /// Of a transposed convolution, whose result does.
    fn back(plan: &Depthwise) -> Self {
        Reaches::new(plan, |[rows, columns], tap| {
            let [(row_rest, row), (column_rest, column)] = [rows.tap(tap[0]), columns.tap(tap[1])];
            let offset = (rows.halo() - row) * plan.pitch + columns.halo() - column;
            Reach { offset, remainder: [row_rest, column_rest] }
        })
    }

    fn as_slice(&self) -> &[Reach] {
        &self.all[..self.count]
    }
}

/// Operands of which each task reads some channels.
struct Operands<T> {
    x: *const T,
    w: *const T,
}

// SAFETY: operands, which are only read.
unsafe impl<T> Sync for Operands<T> {}

/// Calls `f` with ranges of `n` planes of so many elements, on all threads.
fn for_planes(n: usize, elements: usize, f: impl Fn(std::ops::Range<usize>) + Sync) {
    for_ranges(n, (TASK / elements.max(1)).max(1), &f);
}

/// `y` of a convolution of `images` with so many channels; operands are `x`, `w` and the bias.
pub(super) fn conv<T: Number>(
    plan: &Depthwise,
    all: [usize; 2],
    operands: (*const T, *const T, Option<&[T]>),
    y: Shared<T>,
) {
    let reaches = Reaches::forward(plan);
    each_plane(
        all,
        operands,
        y,
        [plan.source(), plan.positions(), plan.taps()],
        |x, w, start, buffers, y| {
            conv_plane(plan, &reaches, x, w, start, buffers, y);
        },
    );
}

/// `y` of a transposed convolution of `images` with so many channels.
pub(super) fn conv_transpose<T: Number>(
    plan: &Depthwise,
    all: [usize; 2],
    operands: (*const T, *const T, Option<&[T]>),
    y: Shared<T>,
) {
    let reaches = Reaches::back(plan);
    each_plane(
        all,
        operands,
        y,
        [plan.positions(), plan.source(), plan.taps()],
        |x, w, start, buffers, y| {
            transpose_plane(plan, &reaches, x, w, start, buffers, y);
        },
    );
}

/// Calls `f` for each channel of each image with its elements, its weights, what its sums begin with, and its
/// result; they have so many elements of `x`, of the result, and weights.
fn each_plane<T: Number>(
    [images, channels]: [usize; 2],
    (x, w, bias): (*const T, *const T, Option<&[T]>),
    y: Shared<T>,
    [source, result, taps]: [usize; 3],
    f: impl Fn(&[T], &[T], T, &mut Buffers<T>, &mut [T]) + Sync,
) {
    let from = Operands { x, w };
    for_planes(images * channels, result, |planes| {
        let (from, mut buffers) = (&from, Buffers::new());
        for plane in planes {
            let channel = plane % channels;
            let start = bias.map_or(T::ZERO, |b| b[channel]);
            // SAFETY: each plane of the result is of one task; operands have a plane and a window of each channel.
            unsafe {
                let w = std::slice::from_raw_parts(from.w.add(channel * taps), taps);
                let x = std::slice::from_raw_parts(from.x.add(plane * source), source);
                f(x, w, start, &mut buffers, y.slice(plane * result, result));
            }
        }
    });
}

/// The weight's gradient, of `x` and of the result's gradient `dy`; a task has channels of all images.
pub(super) fn gradient<T: Number>(
    plan: &Depthwise,
    [images, channels]: [usize; 2],
    (x, dy): (*const T, *const T),
    dw: Shared<T>,
) {
    let (source, result, count) = (plan.source(), plan.positions(), plan.taps());
    let (from, reaches) = (Operands { x, w: dy }, Reaches::forward(plan));
    for_planes(channels, images * result, |planes| {
        let (from, mut buffers) = (&from, Buffers::new());
        for channel in planes {
            // SAFETY: as above, for each channel of the gradient.
            let sums = unsafe { dw.slice(channel * count, count) };
            sums.fill(T::ZERO);
            for image in 0..images {
                let plane = image * channels + channel;
                // SAFETY: as above.
                unsafe {
                    let dy = std::slice::from_raw_parts(from.w.add(plane * result), result);
                    let x = std::slice::from_raw_parts(from.x.add(plane * source), source);
                    gradient_plane(plan, &reaches, x, dy, &mut buffers, sums);
                }
            }
        }
    });
}

wide! {
    /// One plane of a convolution's result.
    fn conv_plane<T: Number>(
        plan: &Depthwise, reaches: &Reaches, x: &[T], w: &[T], start: T, buffers: &mut Buffers<T>,
        y: &mut [T],
    ) {
        let [rows, columns] = plan.axes;
        let Buffers { operand, result, taps } = buffers;
        taps.count = 0;
        for (reach, &weight) in reaches.as_slice().iter().zip(w) {
            taps.push(reach.offset, weight);
        }
        for first in (0..rows.positions).step_by(plan.band) {
            let band = plan.band.min(rows.positions - first);
            spread(plan, x, first, band, operand);
            let count = (band - 1) * plan.pitch + columns.positions;
            // SAFETY: a tap of a position is an element of the buffer, and a block reaches behind it by less than
            // its length.
            unsafe { add_taps(operand, taps.as_slice(), start, result, count) };
            for row in 0..band {
                let from = &result[row * plan.pitch..][..columns.positions];
                let to = &mut y[(first + row) * columns.positions..][..columns.positions];
                // SAFETY: slices of one length.
                unsafe { copy_short(from.as_ptr(), to) };
            }
        }
    }
}

wide! {
    /// One plane of a transposed convolution's result.
    fn transpose_plane<T: Number>(
        plan: &Depthwise, reaches: &Reaches, x: &[T], w: &[T], start: T, buffers: &mut Buffers<T>,
        y: &mut [T],
    ) {
        let [rows, columns] = plan.axes;
        let [(row, height), (column, width)] = [rows.quotients(), columns.quotients()];
        let halo = [rows.halo(), columns.halo()];
        let origin = column as isize - halo[1] as isize;
        let across = Across::new(origin, 1, plan.pitch, columns.positions);
        let Buffers { operand, result, taps } = buffers;
        for first in (0..height).step_by(plan.band) {
            let band = plan.band.min(height - first);
            // Row `r` of the buffer is row `first + row - halo + r` of `x`, columns likewise.
            for r in 0..band + halo[0] {
                let to = &mut operand[r * plan.pitch..][..plan.pitch];
                let from = (first + row + r).checked_sub(halo[0]).filter(|&r| r < rows.positions);
                let from = from.map(|r| &x[r * columns.positions..][..columns.positions]);
                across.spread(from, to);
            }
            let (each, count) = (band * plan.pitch, (band - 1) * plan.pitch + width);
            for row_rest in 0..rows.stride {
                for column_rest in 0..columns.stride {
                    taps.count = 0;
                    for (reach, &weight) in reaches.as_slice().iter().zip(w) {
                        if reach.remainder == [row_rest, column_rest] {
                            taps.push(reach.offset, weight);
                        }
                    }
                    // SAFETY: as in `conv_plane`; what a block writes behind its plane is written again.
                    unsafe {
                        let to = &mut result[column_rest * each..];
                        add_taps(operand, taps.as_slice(), start, to, count);
                    }
                }
                for r in 0..band {
                    let to = ((first + row + r) * rows.stride + row_rest).checked_sub(rows.pad);
                    let Some(to) = to.filter(|&to| to < rows.source) else { continue };
                    let to = &mut y[to * columns.source..][..columns.source];
                    join(columns, column, [r * plan.pitch, each, width], result, to);
                }
            }
        }
    }
}

/// Fills a row whose elements lie in planes by their remainder by the stride, with quotients from `first` on. The
/// row is `width` long in each plane and begins at `at` in the first of them, which are `each` elements apart.
#[inline(always)]
fn join<T: Number>(
    axis: DepthwiseAxis,
    first: usize,
    [at, each, width]: [usize; 3],
    from: &[T],
    to: &mut [T],
) {
    let skipped = axis.pad - first * axis.stride;
    match axis.stride {
        // SAFETY: as many elements.
        1 => unsafe { copy_short(from[at..][..to.len()].as_ptr(), to) },
        2 => {
            let (even, odd) = (&from[at..][..width], &from[at + each..][..width]);
            let (head, to) = to.split_at_mut(skipped % 2);
            if let Some(head) = head.first_mut() {
                *head = odd[0];
            }
            let rest = even[skipped % 2..].iter().zip(&odd[skipped % 2..]);
            let (pairs, last) = to.as_chunks_mut::<2>();
            for (pair, (&even, &odd)) in pairs.iter_mut().zip(rest) {
                *pair = [even, odd];
            }
            if let Some(last) = last.first_mut() {
                *last = even[skipped % 2 + pairs.len()];
            }
        }
        stride => {
            for (i, to) in to.iter_mut().enumerate() {
                let i = i + skipped;
                *to = from[at + i % stride * each + i / stride];
            }
        }
    }
}

wide! {
    /// Adds what one plane gives to the weight's gradient.
    fn gradient_plane<T: Number>(
        plan: &Depthwise, reaches: &Reaches, x: &[T], dy: &[T], buffers: &mut Buffers<T>,
        sums: &mut [T],
    ) {
        let ([rows, columns], reaches) = (plan.axes, reaches.as_slice());
        let across = Across::new(0, 1, plan.pitch, columns.positions);
        for first in (0..rows.positions).step_by(plan.band) {
            let band = plan.band.min(rows.positions - first);
            spread(plan, x, first, band, &mut buffers.operand);
            let count = (band - 1) * plan.pitch + columns.positions;
            for row in 0..band {
                let to = &mut buffers.result[row * plan.pitch..][..plan.pitch];
                let from = &dy[(first + row) * columns.positions..][..columns.positions];
                across.spread(Some(from), to);
            }
            buffers.result[count..count + DOTS].fill(T::ZERO);
            let mut t = 0;
            // SAFETY: as in `conv_plane`; what a block has behind the last position is multiplied by zeros.
            unsafe {
                while t + 9 <= sums.len() {
                    dots::<T, 9>(buffers, count, |i| reaches[t + i].offset, &mut sums[t..]);
                    t += 9;
                }
                while t + 3 <= sums.len() {
                    dots::<T, 3>(buffers, count, |i| reaches[t + i].offset, &mut sums[t..]);
                    t += 3;
                }
                for t in t..sums.len() {
                    dots::<T, 1>(buffers, count, |_| reaches[t].offset, &mut sums[t..]);
                }
            }
        }
    }
}

/// Fills the planes of a band's operand from what the window slides over, for results from row `first` on.
#[inline(always)]
fn spread<T: Number>(plan: &Depthwise, x: &[T], first: usize, band: usize, to: &mut [T]) {
    let [rows, columns] = plan.axes;
    for row_rest in 0..rows.stride {
        for column_rest in 0..columns.stride {
            let plane = (row_rest * columns.stride + column_rest) * plan.plane();
            let origin = column_rest as isize - columns.pad as isize;
            let across = Across::new(origin, columns.stride, plan.pitch, columns.source);
            for r in 0..band + rows.halo() {
                let to = &mut to[plane + r * plan.pitch..][..plan.pitch];
                let row = ((first + r) * rows.stride + row_rest).checked_sub(rows.pad);
                let from = row.filter(|&row| row < rows.source);
                let from = from.map(|row| &x[row * columns.source..][..columns.source]);
                across.spread(from, to);
            }
            // A block may reach behind the last row, and finds no other plane's elements there.
            let end = plane + (band + rows.halo()) * plan.pitch;
            to[end..end + DOTS].fill(T::ZERO);
        }
    }
}

/// Which elements of a row are every `step`-th of another one, and which are zeros.
#[derive(Clone, Copy)]
struct Across {
    step: usize,
    /// Those that have an element of the other row, which is its `source`-th for the first of them.
    begin: usize,
    end: usize,
    source: usize,
}

impl Across {
    /// Of a row of `len` elements whose first one is element `origin` of `source` others.
    #[inline(always)]
    fn new(origin: isize, step: usize, len: usize, source: usize) -> Self {
        match inside(origin, step, len, source) {
            (begin, end) if begin < end => {
                Across { step, begin, end, source: (origin + (begin * step) as isize) as usize }
            }
            _ => Across { step, begin: 0, end: 0, source: 0 },
        }
    }

    /// Fills a row from another one; with zeros where there is none.
    #[inline(always)]
    fn spread<T: Number>(self, from: Option<&[T]>, to: &mut [T]) {
        let Some(from) = from.filter(|_| self.begin < self.end) else { return to.fill(T::ZERO) };
        to[..self.begin].fill(T::ZERO);
        to[self.end..].fill(T::ZERO);
        let (from, to) = (&from[self.source..], &mut to[self.begin..self.end]);
        match self.step {
            1 => {
                let from = &from[..to.len()];
                // SAFETY: slices of one length.
                unsafe { copy_short(from.as_ptr(), to) };
            }
            2 => {
                let (pairs, last) = from[..2 * to.len() - 1].as_chunks::<2>();
                for (to, &[x, _]) in to.iter_mut().zip(pairs) {
                    *to = x;
                }
                to[pairs.len()] = last[0];
            }
            step => {
                for (to, &x) in to.iter_mut().zip(from.iter().step_by(step)) {
                    *to = x;
                }
            }
        }
    }
}

/// Sums of all taps at the first `count` positions, and at some behind them.
///
/// # Safety
/// `x` has elements for every tap of every position up to the end of a block.
#[inline(always)]
unsafe fn add_taps<T: Number>(x: &[T], taps: &[Tap<T>], start: T, sums: &mut [T], count: usize) {
    let blocks = sums[..count.next_multiple_of(LANES)].as_chunks_mut::<LANES>().0;
    for (i, sums) in blocks.iter_mut().enumerate() {
        let mut acc = [start; LANES];
        for tap in taps {
            // SAFETY: the caller's promise.
            let x = unsafe { &*x.as_ptr().add(tap.offset + i * LANES).cast::<[T; LANES]>() };
            for (acc, &x) in acc.iter_mut().zip(x) {
                *acc = acc.add(tap.weight.mul(x));
            }
        }
        *sums = acc;
    }
}

/// Adds to `N` sums the products of the result's buffer with the operand's as `N` taps see it.
///
/// # Safety
/// As for [`add_taps`].
#[inline(always)]
unsafe fn dots<T: Number, const N: usize>(
    buffers: &Buffers<T>,
    count: usize,
    offset: impl Fn(usize) -> usize,
    sums: &mut [T],
) {
    let (x, mut acc) = (buffers.operand.as_ptr(), [[T::ZERO; DOTS]; N]);
    let offsets: [usize; N] = std::array::from_fn(offset);
    for (i, dy) in
        buffers.result[..count.next_multiple_of(DOTS)].as_chunks::<DOTS>().0.iter().enumerate()
    {
        for (acc, offset) in acc.iter_mut().zip(offsets) {
            // SAFETY: the caller's promise.
            let x = unsafe { &*x.add(offset + i * DOTS).cast::<[T; DOTS]>() };
            for ((acc, &x), &dy) in acc.iter_mut().zip(x).zip(dy) {
                *acc = acc.add(dy.mul(x));
            }
        }
    }
    for (sum, acc) in sums.iter_mut().zip(acc) {
        let [a, b, c, d, e, f, g, h] = acc;
        *sum = sum.add(((a.add(b)).add(c.add(d))).add((e.add(f)).add(g.add(h))));
    }
}
