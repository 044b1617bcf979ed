//! Convolutions by products at the points of tiles.

use crate::windows::{check_conv, check_transpose, check_weight, plain};
use crate::{Random, Tensor, evaluate};
use arenic_backends::CPU;
use arenic_backends::cpu::tiling::{
    Conv, ConvTranspose, ConvWeight, conv, conv_transpose, conv_weight,
};
use arenic_backends::cpu::winograd::Kept;
use arenic_ir::Op;
use arenic_ir::op::Window;
use arenic_ir::types::{DType, TensorType};

fn ty(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape.to_vec())
}

/// What rounding may change of sums of so many terms between -1 and 1: four times as much where numbers
/// are evaluated at points, as their own sizes count and not that of the sum.
pub(crate) fn rounding(terms: usize, by_tiles: bool) -> f64 {
    let of_term = if by_tiles { 4e-6 } else { 1e-6 };
    of_term * (terms as f64).sqrt().max(4.0)
}

/// True where a convolution, its transposed one and its weight's gradient are computed so.
fn ways(w: &Window, group: usize, x: &[usize], m: usize) -> [bool; 3] {
    let (x, weight) = (ty(x), ty(&[m, x[1] / group, 3, 3]));
    let op = Op::Conv { window: w.clone(), group };
    let y = op.infer(&[&x, &weight]).unwrap().swap_remove(0);
    [
        matches!(conv(w, group, &x, &weight, &y), Conv::Winograd(_)),
        matches!(conv_transpose(w, group, &y, &weight, &x), ConvTranspose::Winograd(_)),
        matches!(conv_weight(w, group, &x, &y), ConvWeight::Winograd(_)),
    ]
}

fn check(r: &mut Random, w: &Window, group: usize, x: &[usize], m: usize) {
    let f = DType::F32;
    check_conv(r, f, w, group, x, m);
    check_weight(r, f, w, group, x, m);
    let y = Op::Conv { window: w.clone(), group };
    let y = y.infer(&[&ty(x), &ty(&[m, x[1] / group, 3, 3])]).unwrap().swap_remove(0);
    check_transpose(r, f, w, group, vec![0, 0], &y.shape, x[1]);
}

#[test]
fn of_random_shapes() {
    let mut r = Random(31);
    let mut taken = [0; 3];
    // The plain loops that they are compared with take seconds for each.
    let shapes = if std::env::var_os("ARENIC_WIDE").is_some() { 24 } else { 12 };
    for _ in 0..shapes {
        let mut w = plain(&[3, 3], 1, 1, 0);
        let group = r.choose(&[1, 1, 2]);
        let x = [r.range(3, 8), group * r.range(32, 70), r.range(8, 22), r.range(8, 22)];
        for pads in [&mut w.pads_begin, &mut w.pads_end] {
            pads.iter_mut().for_each(|pad| *pad = r.range(0, 3));
        }
        let m = group * r.range(32, 70);
        for (taken, way) in taken.iter_mut().zip(ways(&w, group, &x, m)) {
            *taken += usize::from(way);
        }
        check(&mut r, &w, group, &x, m);
    }
    assert!(taken.iter().all(|&n| 4 * n >= shapes), "{taken:?}");
}

#[test]
fn some_at_a_time() {
    let mut r = Random(32);
    let w = plain(&[3, 3], 1, 1, 1);
    // More units than slots, blocks of input channels, one panel of tiles.
    for (x, m) in [([1, 48, 90, 50], 40), ([4, 520, 8, 8], 120), ([4, 33, 16, 16], 300)] {
        assert_eq!(ways(&w, 1, &x, m), [true; 3], "{x:?} {m}");
        check(&mut r, &w, 1, &x, m);
    }
    // What is kept in rounds: weights, and tiles.
    for (x, m, side) in [([34, 48, 4, 4], 64, Kept::Weights), ([1, 120, 32, 32], 40, Kept::Tiles)] {
        let (x_type, weight) = (ty(&x), ty(&[m, x[1], 3, 3]));
        let y = ty(&[x[0], m, x[2], x[3]]);
        let Conv::Winograd(plan) = conv(&w, 1, &x_type, &weight, &y) else { panic!("{x:?}") };
        let all = if side == Kept::Weights { m } else { plan.panels() };
        assert!(plan.kept == side && plan.some < all, "{plan:?}");
        check(&mut r, &w, 1, &x, m);
    }
    // A gradient of one panel in several blocks of tiles, and of several.
    for (x, m, panels) in [([2, 290, 28, 28], 30, 1), ([8, 64, 20, 20], 64, 2)] {
        let y = ty(&[x[0], m, x[2], x[3]]);
        let ConvWeight::Winograd(plan) = conv_weight(&w, 1, &ty(&x), &y) else { panic!("{x:?}") };
        assert!(plan.blocks() > 1 && plan.panels() == panels, "{plan:?}");
        check_weight(&mut r, DType::F32, &w, 1, &x, m);
    }
}

/// Some images, and some output channels, get the bits that they get among all.
#[test]
fn parts_have_the_bits_of_the_whole() {
    let mut r = Random(33);
    let window = plain(&[3, 3], 1, 1, 1);
    let op = Op::Conv { window, group: 1 };
    let (x, w) = (r.tensor(DType::F32, [8, 64, 14, 14]), r.tensor(DType::F32, [96, 64, 3, 3]));
    let whole = evaluate(&op, &[&x, &w]);
    let order = |x: &TensorType, w: &TensorType| {
        let y = op.infer(&[x, w]).unwrap();
        op.sum_order(CPU, &[x, w], &[&y[0]])
    };
    let (images, channels) = (5, 64);
    let first = |of: &Tensor, n: usize| {
        let shape = [&[n], &of.ty.shape[1..]].concat();
        let n = shape.iter().product();
        Tensor::new(DType::F32, shape, of.values[..n].to_vec())
    };
    let (x, w) = (first(&x, images), first(&w, channels));
    assert_eq!(order(&x.ty, &w.ty), order(&ty(&[8, 64, 14, 14]), &ty(&[96, 64, 3, 3])));
    let part = evaluate(&op, &[&x, &w]);
    for image in 0..images {
        let n = channels * 14 * 14;
        let of_whole = &whole.values[image * 96 * 14 * 14..][..n];
        assert_eq!(&part.values[image * n..][..n], of_whole, "image {image}");
    }
}
