//! Convolutions and pools.

use super::*;
use crate::tiles::rounding;
use arenic_backends::cpu::tiling::{self, Conv, ConvTranspose, ConvWeight};
use arenic_ir::op::{PoolIndices, Window};

/// Calls `f(image, output position, tap, input position)` wherever a tap lies inside.
fn meetings(w: &Window, x: &[usize], y: &[usize], mut f: impl FnMut(&[usize], &[usize], &[usize])) {
    for o in indices(y) {
        for t in indices(&w.kernel) {
            let at: Option<Vec<usize>> = (0..w.rank())
                .map(|d| {
                    (o[d] * w.strides[d] + t[d] * w.dilations[d])
                        .checked_sub(w.pads_begin[d])
                        .filter(|&i| i < x[d])
                })
                .collect();
            if let Some(at) = at {
                f(&o, &t, &at);
            }
        }
    }
}

fn conv(
    w: &Window,
    group: usize,
    x: &Tensor,
    k: &Tensor,
    b: Option<&Tensor>,
    y: &TensorType,
) -> Vec<f64> {
    let (mut out, ys, xs) = (vec![0.0; y.elements()], &y.shape, &x.ty.shape);
    let (mg, cg) = (ys[1] / group, k.ty.shape[1]);
    let (py, px): (usize, usize) = (ys[2..].iter().product(), xs[2..].iter().product());
    let taps = w.taps();
    meetings(w, &xs[2..], &ys[2..], |o, t, i| {
        let (o, t, i) = (flat(o, &ys[2..]), flat(t, &w.kernel), flat(i, &xs[2..]));
        for n in 0..ys[0] {
            for m in 0..ys[1] {
                for c in 0..cg {
                    let from = (n * xs[1] + m / mg * cg + c) * px + i;
                    out[(n * ys[1] + m) * py + o] +=
                        x.values[from] * k.values[(m * cg + c) * taps + t];
                }
            }
        }
    });
    if let Some(b) = b {
        out.iter_mut().enumerate().for_each(|(at, v)| *v += b.values[at / py % ys[1]]);
    }
    out
}

fn conv_transpose(
    w: &Window,
    group: usize,
    x: &Tensor,
    k: &Tensor,
    b: Option<&Tensor>,
    y: &TensorType,
) -> Vec<f64> {
    let (mut out, ys, xs) = (vec![0.0; y.elements()], &y.shape, &x.ty.shape);
    let (mg, cg) = (ys[1] / group, xs[1] / group);
    let (py, px): (usize, usize) = (ys[2..].iter().product(), xs[2..].iter().product());
    let taps = w.taps();
    // The window slides over the result.
    meetings(w, &ys[2..], &xs[2..], |i, t, o| {
        let (o, t, i) = (flat(o, &ys[2..]), flat(t, &w.kernel), flat(i, &xs[2..]));
        for n in 0..ys[0] {
            for m in 0..ys[1] {
                for c in 0..cg {
                    let channel = m / mg * cg + c;
                    out[(n * ys[1] + m) * py + o] += x.values[(n * xs[1] + channel) * px + i]
                        * k.values[(channel * mg + m % mg) * taps + t];
                }
            }
        }
    });
    if let Some(b) = b {
        out.iter_mut().enumerate().for_each(|(at, v)| *v += b.values[at / py % ys[1]]);
    }
    out
}

fn conv_weight_grad(
    w: &Window,
    group: usize,
    x: &Tensor,
    dy: &Tensor,
    dw: &TensorType,
) -> Vec<f64> {
    let (mut out, ys, xs) = (vec![0.0; dw.elements()], &dy.ty.shape, &x.ty.shape);
    let (mg, cg) = (ys[1] / group, dw.shape[1]);
    let (py, px): (usize, usize) = (ys[2..].iter().product(), xs[2..].iter().product());
    let taps = w.taps();
    meetings(w, &xs[2..], &ys[2..], |o, t, i| {
        let (o, t, i) = (flat(o, &ys[2..]), flat(t, &w.kernel), flat(i, &xs[2..]));
        for n in 0..ys[0] {
            for m in 0..ys[1] {
                for c in 0..cg {
                    out[(m * cg + c) * taps + t] += dy.values[(n * ys[1] + m) * py + o]
                        * x.values[(n * xs[1] + m / mg * cg + c) * px + i];
                }
            }
        }
    });
    out
}

/// A window that fits the extents, and is not only padding.
fn window(r: &mut Random, extents: &[usize]) -> Window {
    let mut w = Window {
        kernel: vec![],
        strides: vec![],
        dilations: vec![],
        pads_begin: vec![],
        pads_end: vec![],
    };
    for &n in extents {
        let (kernel, dilation) = (r.range(1, 4), r.range(1, 2));
        let span = (kernel - 1) * dilation + 1;
        let pads = [r.range(0, span - 1), r.range(0, span - 1)];
        let fits = n + pads[0] + pads[1] >= span;
        w.kernel.push(if fits { kernel } else { 1 });
        w.dilations.push(dilation);
        w.strides.push(r.range(1, 3));
        w.pads_begin.push(if fits { pads[0] } else { 0 });
        w.pads_end.push(if fits { pads[1] } else { 0 });
    }
    w
}

pub(crate) fn plain(kernel: &[usize], stride: usize, dilation: usize, pad: usize) -> Window {
    let all = |v: usize| vec![v; kernel.len()];
    Window {
        kernel: kernel.to_vec(),
        strides: all(stride),
        dilations: all(dilation),
        pads_begin: all(pad),
        pads_end: all(pad),
    }
}

pub(crate) fn check_conv(
    r: &mut Random,
    dtype: DType,
    window: &Window,
    group: usize,
    x: &[usize],
    m: usize,
) {
    let x = r.tensor(dtype, x);
    let k = [&[m, x.ty.shape[1] / group], &window.kernel[..]].concat();
    let (k, b) = (r.tensor(dtype, k), r.tensor(dtype, [m]));
    let op = Op::Conv { window: window.clone(), group };
    for b in [None, Some(&b)] {
        let operands: Vec<&Tensor> = [&x, &k].into_iter().chain(b).collect();
        let y = evaluate(&op, &operands);
        let want = conv(window, group, &x, &k, b, &y.ty);
        let way = tiling::conv(window, group, &x.ty, &k.ty, &y.ty);
        let rounding = rounding(k.ty.elements() / m.max(1), matches!(way, Conv::Winograd(_)));
        assert_close(&y, &want, rounding, &(&op, &x.ty, &k.ty));
    }
}

#[test]
fn conv_of_random_shapes() {
    let mut r = Random(10);
    for case in 0..300 {
        let rank = r.range(1, 3);
        let extents: Vec<usize> =
            (0..rank).map(|_| r.range(1, if rank == 1 { 60 } else { 12 })).collect();
        let window = window(&mut r, &extents);
        let group = r.choose(&[1, 1, 1, 2, 3]);
        let (c, m) = (group * r.range(1, 6), group * r.range(1, 18));
        let n = if case % 30 == 0 { 0 } else { r.range(1, 4) };
        let x = [&[n, c], &extents[..]].concat();
        let dtype = if r.range(0, 3) == 0 { DType::F64 } else { DType::F32 };
        check_conv(&mut r, dtype, &window, group, &x, m);
    }
}

/// The gradient of a convolution's weight, from as much of a result as the window gives.
pub(crate) fn check_weight(
    r: &mut Random,
    dtype: DType,
    w: &Window,
    group: usize,
    x: &[usize],
    m: usize,
) {
    let conv = Op::Conv { window: w.clone(), group };
    let x = r.tensor(dtype, x);
    let weight = [&[m, x.ty.shape[1] / group], &w.kernel[..]].concat();
    let weight = TensorType::new(dtype, weight);
    let dy = conv.infer(&[&x.ty, &weight]).unwrap().swap_remove(0);
    let dy = r.tensor(dtype, dy.shape);
    let op = Op::ConvWeightGrad { window: w.clone(), group };
    let dw = evaluate(&op, &[&x, &dy]);
    assert_eq!(dw.ty, weight);
    let want = conv_weight_grad(w, group, &x, &dy, &dw.ty);
    let way = tiling::conv_weight(w, group, &x.ty, &dy.ty);
    let rounding = rounding(dy.ty.elements() / m.max(1), matches!(way, ConvWeight::Winograd(_)));
    assert_close(&dw, &want, rounding, &(&op, &x.ty, &dy.ty));
}

#[test]
fn weight_gradients_of_random_shapes() {
    let mut r = Random(15);
    for case in 0..300 {
        let rank = r.range(1, 3);
        let extents: Vec<usize> =
            (0..rank).map(|_| r.range(1, if rank == 1 { 60 } else { 12 })).collect();
        let window = window(&mut r, &extents);
        let group = r.choose(&[1, 1, 1, 2, 3]);
        let (c, m) = (group * r.range(1, 6), group * r.range(1, 18));
        let n = if case % 30 == 0 { 0 } else { r.range(1, 4) };
        let x = [&[n, c], &extents[..]].concat();
        let dtype = if r.range(0, 3) == 0 { DType::F64 } else { DType::F32 };
        check_weight(&mut r, dtype, &window, group, &x, m);
    }
}

#[test]
fn weight_gradients_of_every_strategy() {
    let mut r = Random(16);
    let f = DType::F32;
    // Pointwise, one group and several.
    check_weight(&mut r, f, &plain(&[1, 1], 1, 1, 0), 1, &[3, 9, 20, 20], 12);
    check_weight(&mut r, f, &plain(&[1, 1], 1, 1, 0), 4, &[2, 8, 9, 9], 16);
    // In parts: of several images, of pieces of one, of pieces that do not divide them.
    for (group, x) in [(1, [9, 9, 60, 60]), (1, [1, 20, 150, 150]), (2, [3, 18, 101, 103])] {
        let (w, m) = (plain(&[1, 1], 1, 1, 0), 12 * group);
        let dy = TensorType::new(f, vec![x[0], m, x[2], x[3]]);
        let way = tiling::conv_weight(&w, group, &TensorType::new(f, x.to_vec()), &dy);
        assert!(matches!(way, ConvWeight::Pointwise(sum) if sum.parts > 1), "{way:?}");
        check_weight(&mut r, f, &w, group, &x, m);
    }
    // All groups of an image at once, some of them, positions in tiles.
    check_weight(&mut r, f, &plain(&[3, 3], 1, 1, 1), 24, &[2, 24, 14, 14], 24);
    check_weight(&mut r, f, &plain(&[3, 3], 1, 1, 1), 40, &[1, 80, 50, 50], 40);
    check_weight(&mut r, f, &plain(&[3, 3], 1, 1, 1), 1, &[2, 64, 60, 60], 20);
    check_weight(&mut r, f, &plain(&[7, 7], 2, 1, 3), 1, &[2, 3, 64, 64], 16);
    // Shifted views: tiles of images and of rows.
    check_weight(&mut r, f, &plain(&[3, 3], 1, 1, 1), 1, &[40, 32, 20, 20], 32);
    check_weight(&mut r, f, &plain(&[3, 3], 2, 1, 1), 2, &[1, 20, 200, 200], 16);
    check_weight(&mut r, f, &plain(&[3], 1, 2, 2), 1, &[2, 10, 50_000], 9);
    // Columns: a grid would be padding for the most part.
    check_weight(&mut r, f, &plain(&[3, 3], 1, 1, 1), 1, &[30, 40, 2, 2], 20);
}

#[test]
fn conv_of_every_strategy() {
    let mut r = Random(11);
    let f = DType::F32;
    // Pointwise: per image and folded; strided 1×1.
    check_conv(&mut r, f, &plain(&[1, 1], 1, 1, 0), 1, &[2, 9, 20, 20], 12);
    check_conv(&mut r, f, &plain(&[1, 1], 1, 1, 0), 2, &[5, 64, 3, 3], 64);
    check_conv(&mut r, f, &plain(&[1, 1], 1, 1, 0), 2, &[5, 64, 2, 2], 64);
    check_conv(&mut r, f, &plain(&[1, 1], 2, 1, 0), 1, &[3, 8, 11, 11], 8);
    check_conv(&mut r, f, &plain(&[1, 1], 2, 1, 0), 1, &[5, 70, 3, 3], 64);
    check_conv(&mut r, f, &plain(&[1, 1], 2, 1, 0), 2, &[2, 500, 41, 41], 30);
    // The whole input, with a sum long enough for parts.
    check_conv(&mut r, f, &plain(&[30, 30], 1, 1, 0), 1, &[3, 10, 30, 30], 5);
    // Weight gradients: a window of an image's size, few positions, strided forward.
    check_conv(&mut r, f, &plain(&[14, 14], 1, 1, 1), 1, &[20, 6, 14, 14], 16);
    check_conv(&mut r, f, &plain(&[8, 8], 1, 2, 1), 1, &[20, 6, 15, 15], 16);
    check_conv(&mut r, f, &plain(&[40, 40], 1, 1, 1), 1, &[3, 4, 40, 40], 6);
    // Depthwise, forward and its weight gradient.
    check_conv(&mut r, f, &plain(&[3, 3], 1, 1, 1), 12, &[2, 12, 33, 37], 12);
    check_conv(&mut r, f, &plain(&[3, 3], 2, 1, 1), 12, &[2, 12, 33, 37], 24);
    check_conv(&mut r, f, &plain(&[5, 5], 1, 2, 4), 12, &[1, 12, 40, 40], 12);
    check_conv(&mut r, f, &plain(&[31, 29], 1, 1, 1), 6, &[1, 24, 31, 29], 6);
    // Shifted views: blocks of channels, tiles of images and of rows, one axis and three.
    check_conv(&mut r, f, &plain(&[3, 3], 1, 1, 1), 1, &[3, 1500, 4, 5], 24);
    check_conv(&mut r, f, &plain(&[3, 3], 1, 1, 1), 1, &[50, 64, 15, 15], 11);
    check_conv(&mut r, f, &plain(&[3, 3], 2, 1, 1), 1, &[1, 10, 331, 333], 8);
    check_conv(&mut r, f, &plain(&[7], 3, 1, 2), 1, &[2, 6, 300_000], 8);
    check_conv(&mut r, f, &plain(&[3, 3, 3], 1, 1, 1), 2, &[2, 12, 24, 20, 22], 32);
    // Columns: a grid would be padding for the most part.
    check_conv(&mut r, f, &plain(&[3, 3], 1, 1, 1), 1, &[30, 40, 2, 2], 20);
    // Tiles of positions and of depth.
    check_conv(&mut r, f, &plain(&[3, 3], 1, 1, 1), 1, &[1, 300, 40, 40], 8);
    check_conv(&mut r, f, &plain(&[5, 5], 1, 1, 2), 1, &[2, 20, 80, 80], 5);
}

pub(crate) fn check_transpose(
    r: &mut Random,
    dtype: DType,
    window: &Window,
    group: usize,
    output_padding: Vec<usize>,
    x: &[usize],
    m: usize,
) {
    let x = r.tensor(dtype, x);
    let k = [&[x.ty.shape[1], m / group], &window.kernel[..]].concat();
    let (k, b) = (r.tensor(dtype, k), r.tensor(dtype, [m]));
    let op = Op::ConvTranspose { window: window.clone(), group, output_padding };
    if op.infer(&[&x.ty, &k.ty]).is_err() {
        return;
    }
    for b in [None, Some(&b)] {
        let operands: Vec<&Tensor> = [&x, &k].into_iter().chain(b).collect();
        let y = evaluate(&op, &operands);
        let want = conv_transpose(window, group, &x, &k, b, &y.ty);
        let way = tiling::conv_transpose(window, group, &x.ty, &k.ty, &y.ty);
        let by_tiles = matches!(way, ConvTranspose::Winograd(_));
        let rounding = rounding(k.ty.elements() / (m / group).max(1), by_tiles);
        assert_close(&y, &want, rounding.max(4e-5), &(&op, &x.ty, &k.ty));
    }
}

#[test]
fn conv_transpose_of_random_shapes() {
    let mut r = Random(12);
    for case in 0..300 {
        let rank = r.range(1, 3);
        let extents: Vec<usize> =
            (0..rank).map(|_| r.range(1, if rank == 1 { 60 } else { 9 })).collect();
        let mut window = window(&mut r, &vec![50; rank]);
        if r.chance() {
            window.strides.fill(1);
        }
        let padding = (0..rank).map(|d| r.range(0, window.strides[d] - 1)).collect();
        let group = r.choose(&[1, 1, 1, 2, 3]);
        let (c, m) = (group * r.range(1, 8), group * r.range(1, 12));
        let n = if case % 30 == 0 { 0 } else { r.range(1, 3) };
        let x = [&[n, c], &extents[..]].concat();
        let dtype = if r.range(0, 3) == 0 { DType::F64 } else { DType::F32 };
        check_transpose(&mut r, dtype, &window, group, padding, &x, m);
    }
}

#[test]
fn conv_transpose_in_tiles() {
    let mut r = Random(13);
    let f = DType::F32;
    check_transpose(&mut r, f, &plain(&[3, 3], 2, 1, 1), 1, vec![1, 1], &[2, 16, 60, 60], 40);
    check_transpose(&mut r, f, &plain(&[9, 9], 1, 1, 4), 1, vec![0, 0], &[1, 6, 130, 130], 2);
    check_transpose(&mut r, f, &plain(&[9, 9], 1, 1, 4), 1, vec![0, 0], &[1, 6, 130, 130], 9);
    check_transpose(&mut r, f, &plain(&[3, 3], 1, 1, 1), 1, vec![0, 0], &[40, 32, 20, 20], 32);
    check_transpose(&mut r, f, &plain(&[4, 4], 2, 1, 1), 1, vec![0, 0], &[1, 12, 150, 150], 10);
    check_transpose(&mut r, f, &plain(&[1, 1], 2, 1, 0), 1, vec![1, 1], &[3, 600, 9, 9], 64);
    check_transpose(&mut r, f, &plain(&[1, 1], 2, 1, 0), 1, vec![0, 1], &[2, 24, 90, 90], 70);
    check_transpose(&mut r, f, &plain(&[1, 1], 1, 1, 0), 3, vec![0, 0], &[3, 30, 17, 19], 96);
    check_transpose(&mut r, f, &plain(&[1, 1], 1, 1, 0), 1, vec![0, 0], &[2, 300, 9, 9], 64);
    check_transpose(&mut r, f, &plain(&[3, 3], 1, 1, 1), 24, vec![0, 0], &[2, 24, 30, 30], 24);
    check_transpose(&mut r, f, &plain(&[2, 2], 2, 1, 0), 24, vec![0, 0], &[2, 24, 15, 15], 24);
}

/// One channel in each group: of rows that fill several bands, and of some with few elements.
#[test]
fn depthwise_of_random_shapes() {
    let mut r = Random(17);
    for case in 0..200 {
        let rank = r.range(1, 2);
        let most = r.choose(&[4, 20, 140]);
        let extents: Vec<usize> = (0..rank).map(|_| r.range(1, most)).collect();
        let mut window = window(&mut r, &extents);
        if r.chance() {
            window.strides.fill(r.range(1, 2));
        }
        let groups = r.range(1, 4);
        let n = if case % 30 == 0 { 0 } else { r.range(1, 3) };
        let x = [&[n, groups], &extents[..]].concat();
        let dtype = if r.range(0, 3) == 0 { DType::F64 } else { DType::F32 };
        check_conv(&mut r, dtype, &window, groups, &x, groups);
        check_weight(&mut r, dtype, &window, groups, &x, groups);
        let padding = (0..rank).map(|d| r.range(0, window.strides[d] - 1)).collect();
        check_transpose(&mut r, dtype, &window, groups, padding, &x, groups);
    }
    // Many taps, and a row that is longer than the buffers.
    let f = DType::F32;
    check_weight(&mut r, f, &plain(&[7, 7], 1, 1, 3), 3, &[2, 3, 56, 56], 3);
    check_weight(&mut r, f, &plain(&[9, 9], 1, 1, 4), 3, &[2, 3, 30, 30], 3);
    check_conv(&mut r, f, &plain(&[3], 1, 1, 1), 2, &[1, 2, 20_000], 2);
    check_transpose(&mut r, f, &plain(&[3], 3, 1, 1), 2, vec![0], &[1, 2, 2_000], 2);
}

#[test]
fn pools_of_random_shapes() {
    let mut r = Random(14);
    for _ in 0..300 {
        let rank = r.range(1, 3);
        let extents: Vec<usize> =
            (1..=rank).map(|d| r.range(1, if d == rank { 40 } else { 12 })).collect();
        let window = window(&mut r, &extents);
        let dtype = r.choose(&[DType::F32, DType::F64, DType::U8, DType::I8, DType::I32]);
        let x = [&[r.range(0, 3), r.range(1, 3)], &extents[..]].concat();
        let x = r.tensor(dtype, x);
        let (ceil, kind) = (r.chance(), r.choose(&PoolIndices::ALL));
        let op = Op::MaxPool { window: window.clone(), ceil, indices: kind };
        let [y, places] = &apply(&op, &[&x], None, &[true, true])[..] else {
            panic!("two results")
        };
        assert_same(&evaluate(&op, &[&x]), y, &op);
        assert_same(&apply(&op, &[&x], None, &[false, true])[0], places, &op);
        let (inner, outer) = (&x.ty.shape[2..], &y.ty.shape[2..]);
        let (px, py): (usize, usize) = (inner.iter().product(), outer.iter().product());
        let planes = x.ty.shape[0] * x.ty.shape[1];
        let mut best = vec![(f64::NEG_INFINITY, 0); py * planes];
        let (mut sums, mut counts) = (vec![0.0; py * planes], vec![0.0; py]);
        meetings(&window, inner, outer, |o, tap, i| {
            let column = flat(
                &i.iter().rev().copied().collect::<Vec<_>>(),
                &inner.iter().rev().copied().collect::<Vec<_>>(),
            );
            let (o, i) = (flat(o, outer), flat(i, inner));
            counts[o] += 1.0;
            for p in 0..planes {
                let value = x.values[p * px + i];
                sums[p * py + o] += value;
                if value > best[p * py + o].0 {
                    let index = match kind {
                        PoolIndices::Positions => p * px + i,
                        PoolIndices::ColumnMajorPositions => p * px + column,
                        PoolIndices::Taps => flat(tap, &window.kernel),
                    };
                    best[p * py + o] = (value, index);
                }
            }
        });
        if counts.contains(&0.0) {
            continue; // all taps of a dilated window in padding
        }
        assert_close(y, &best.iter().map(|b| b.0).collect::<Vec<_>>(), 0.0, &op);
        assert_close(places, &best.iter().map(|b| b.1 as f64).collect::<Vec<_>>(), 0.0, &op);
        if !dtype.is_float() {
            continue;
        }
        let mut padded = vec![0.0; py];
        for o in indices(outer) {
            padded[flat(&o, outer)] = indices(&window.kernel)
                .filter(|t| {
                    (0..rank).all(|d| {
                        o[d] * window.strides[d] + t[d] * window.dilations[d]
                            < inner[d] + window.pads_begin[d] + window.pads_end[d]
                    })
                })
                .count() as f64;
        }
        for (count_include_pad, counts) in [(false, &counts), (true, &padded)] {
            let op = Op::AveragePool { window: window.clone(), ceil, count_include_pad };
            let want: Vec<f64> =
                sums.iter().enumerate().map(|(at, s)| s / counts[at % py]).collect();
            assert_close(&evaluate(&op, &[&x]), &want, 1e-5, &(&op, &x.ty));
        }
    }
}

#[test]
fn a_pool_keeps_nan() {
    let x = Tensor::new(DType::F32, [1, 1, 5], vec![1.0, f64::NAN, 3.0, 4.0, 5.0]);
    for (indices, want) in
        [(PoolIndices::Positions, [1.0, 1.0, 4.0]), (PoolIndices::Taps, [1.0, 0.0, 2.0])]
    {
        let op = Op::MaxPool { window: plain(&[3], 1, 1, 0), ceil: false, indices };
        let y = apply(&op, &[&x], None, &[true, true]);
        assert_close(&y[0], &[f64::NAN, f64::NAN, 5.0], 0.0, &op);
        assert_eq!(y[1].values, want);
    }
}

/// Of equal elements the first one is found, and of NaNs the last one, however rows are cut into vectors.
#[test]
fn pools_of_rows_of_any_width() {
    let mut r = Random(15);
    let widths = (1..40).chain([126, 127, 254, 255, 600]);
    let cases = widths.flat_map(|width| (1..4).map(move |step| (width, step)));
    for ((width, step), size) in cases.flat_map(|c| [2, 3, 4].map(|taps| (c, taps))) {
        let values = [f64::NEG_INFINITY, 0.0, 1.0, 1.0, 2.0, f64::NAN];
        let x: Vec<f64> = (0..(width - 1) * step + size).map(|_| r.choose(&values)).collect();
        let window = Window { strides: vec![step], ..plain(&[size], 1, 1, 0) };
        let op = Op::MaxPool { window, ceil: false, indices: PoolIndices::Taps };
        let (mut best, mut taps) = (Vec::new(), Vec::new());
        for first in (0..width).map(|o| o * step) {
            let mut found = (x[first], 0);
            for (tap, &x) in x[first..first + size].iter().enumerate() {
                if x > found.0 || x.is_nan() {
                    found = (x, tap);
                }
            }
            best.push(found.0);
            taps.push(found.1 as f64);
        }
        let x = Tensor::new(DType::F32, [1, 1, x.len()], x);
        let y = apply(&op, &[&x], None, &[true, true]);
        assert_close(&y[0], &best, 0.0, &op);
        assert_eq!(y[1].values, taps, "{op:?} of {}", x.ty);
        assert_close(&evaluate(&op, &[&x]), &best, 0.0, &op);
    }
}

#[test]
fn whole_planes_of_any_number() {
    let mut r = Random(17);
    for (planes, size) in [(1, 1), (3, 49), (16, 7), (33, 49), (40, 130)] {
        let x = r.tensor(DType::F32, vec![1, planes, size]);
        let window = plain(&[size], 1, 1, 0);
        let of_planes = x.values.chunks(size);
        let average =
            Op::AveragePool { window: window.clone(), ceil: false, count_include_pad: true };
        let averages: Vec<f64> =
            of_planes.clone().map(|p| p.iter().sum::<f64>() / size as f64).collect();
        assert_close(&evaluate(&average, &[&x]), &averages, 1e-5, &average);
        let max = Op::MaxPool { window, ceil: false, indices: PoolIndices::Positions };
        let maxima: Vec<f64> =
            of_planes.map(|p| p.iter().copied().fold(f64::NEG_INFINITY, f64::max)).collect();
        assert_close(&evaluate(&max, &[&x]), &maxima, 0.0, &max);
    }
}

#[test]
fn taps_have_the_smallest_type() {
    for (taps, dtype) in
        [(256, DType::U8), (257, DType::U16), (65_536, DType::U16), (65_537, DType::U32)]
    {
        let indices = PoolIndices::Taps;
        let window = plain(&[taps], 1, 1, 0);
        let pool = Op::MaxPool { window: window.clone(), ceil: false, indices };
        let mut x = Tensor::new(DType::F32, [1, 1, taps + 1], vec![0.0; taps + 1]);
        x.values[taps - 1] = 1.0;
        let found = apply(&pool, &[&x], None, &[false, true]).remove(0);
        assert_eq!(found.ty.dtype, dtype);
        assert_eq!(found.values, [(taps - 1) as f64, (taps - 2) as f64]);
        let shape = x.ty.shape.clone();
        let dy = Tensor::new(DType::F32, [1, 1, 2], vec![2.0, 3.0]);
        let op = Op::MaxPoolGrad { window, ceil: false, indices, shape };
        let dx = evaluate(&op, &[&dy, &found]);
        assert_eq!((dx.values[taps - 1], dx.values.iter().sum::<f64>()), (5.0, 5.0));
    }
}

#[test]
fn a_dilated_window_as_large_as_its_operand_skips_elements() {
    let window = Window { pads_end: vec![2], ..plain(&[3], 1, 2, 0) };
    let x = Tensor::new(DType::F32, [1, 1, 3], vec![1.0, 9.0, 5.0]);
    let indices = PoolIndices::Positions;
    let max = Op::MaxPool { window: window.clone(), ceil: false, indices };
    assert_close(&evaluate(&max, &[&x]), &[5.0], 0.0, &max);
    let average = Op::AveragePool { window, ceil: false, count_include_pad: false };
    assert_close(&evaluate(&average, &[&x]), &[3.0], 0.0, &average);
}
