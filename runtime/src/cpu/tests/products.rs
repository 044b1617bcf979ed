use super::{Tensor, run, run_all_ways};
use crate::cpu;
use crate::cpu::library::{Scalar, packed};
use crate::cpu::product::{Mat, MatMut};
use crate::kernel::Draw;
use arenic_ir::op::Extents;
use arenic_ir::types::bf16;
use arenic_ir::{DType, Op, TensorType};

/// A product as the library's kernels compute it, of operands and a result that lie row by row or column by column.
fn product<T: Scalar>(
    e: Extents,
    alpha: f64,
    add: bool,
    across: [bool; 3],
    part: [[usize; 2]; 2],
) -> Vec<T> {
    let number = |i: usize| T::from_f64((i * 2_654_435_761 % 1000) as f64 / 1000.0 - 0.5);
    let numbers = |n: usize| (0..n).map(number).collect::<Vec<_>>();
    let strides = |rows, cols, across: bool| if across { (1, rows) } else { (cols, 1) };
    let (a, b, mut c) = (numbers(e.m * e.k), numbers(e.k * e.n), numbers(e.m * e.n));
    let (rows, cols) = strides(e.m, e.k, across[0]);
    let a = Mat::new(a.as_ptr(), rows, cols);
    let (rows, cols) = strides(e.k, e.n, across[1]);
    let b = Mat::new(b.as_ptr(), rows, cols);
    let (rows, cols) = strides(e.m, e.n, across[2]);
    let to = MatMut::new(c.as_mut_ptr(), rows, cols);
    let [[top, bottom], [left, right]] = part;
    let e = Extents { m: bottom - top, k: e.k, n: right - left };
    // SAFETY: a part of three matrices that lie apart.
    unsafe {
        packed(e, T::from_f64(alpha), (a.at(top, 0), b.at(0, left)), add, to.at(top, left));
    }
    (top..bottom)
        .flat_map(|i| (left..right).map(move |j| (i, j)))
        .map(|(i, j)| c[i * rows + j * cols])
        .collect()
}

fn parts_have_the_bits_of_the_whole<T: Scalar + PartialEq + std::fmt::Debug>() {
    for [m, k, n] in [[70, 300, 130], [9, 2, 40], [33, 600, 5]] {
        let e = Extents { m, k, n };
        for case in 0..32 {
            let is = |bit: usize| case >> bit & 1 == 1;
            let of = |part| {
                let across = [is(0), is(1), is(2)];
                product::<T>(e, if is(3) { 0.3 } else { 1.0 }, is(4), across, part)
            };
            let whole = of([[0, m], [0, n]]);
            for [[top, bottom], [left, right]] in [
                [[0, 1], [0, n]],
                [[1, m], [0, n]],
                [[0, m], [n - 1, n]],
                [[m - 1, m], [1, 2]],
                [[2, 9], [1, 5]],
            ] {
                let rows = (top..bottom).flat_map(|i| &whole[i * n + left..i * n + right]);
                let part = of([[top, bottom], [left, right]]);
                assert!(part.iter().eq(rows), "{e:?} {case:b} {top}..{bottom} {left}..{right}");
            }
        }
    }
}

#[test]
fn parts_of_a_product_have_its_bits() {
    parts_have_the_bits_of_the_whole::<f32>();
    parts_have_the_bits_of_the_whole::<f64>();
}

/// Numbers that a `bf16` holds, as such and as `f32`.
fn both(shape: &[usize]) -> [Tensor; 2] {
    let elements: usize = shape.iter().product();
    let number = |i: usize| (i * 2_654_435_761 % 1000) as f32 / 1000.0 - 0.5;
    let narrow: Vec<u16> = (0..elements).map(|i| bf16::from_f32(number(i))).collect();
    let wide: Vec<f32> = narrow.iter().map(|&x| bf16::to_f32(x)).collect();
    let bytes = narrow.iter().flat_map(|x| x.to_le_bytes()).collect();
    [Tensor { ty: TensorType::new(DType::Bf16, shape), bytes }, Tensor::new(shape, &wide)]
}

/// Shapes of the factors of an `m × k × n` product, and which of them are transposed.
fn factors([m, k, n]: [usize; 3]) -> impl Iterator<Item = ([bool; 2], [[usize; 2]; 2])> {
    (0..4).map(move |case| {
        let (trans_a, trans_b) = (case & 1 == 1, case & 2 == 2);
        let a = if trans_a { [k, m] } else { [m, k] };
        ([trans_a, trans_b], [a, if trans_b { [n, k] } else { [k, n] }])
    })
}

/// More rows and columns than are widened at once, products of a few rows, and long sums of few results.
const SIZES: [[usize; 3]; 6] =
    [[520, 300, 530], [70, 513, 40], [3, 40, 100], [90, 257, 2], [5, 4000, 6], [30, 0, 40]];

/// Both have the same bits; where oneDNN multiplies `bf16`, they are as near as a unit in the last place of it.
fn hold(narrow: impl Iterator<Item = f32>, wide: impl Iterator<Item = f32>, what: &str) {
    let exact = !cpu::multiplies_bf16();
    for (at, (x, y)) in narrow.zip(wide).enumerate() {
        let near = (x - y).abs() <= y.abs() / 128.0 + 1e-4;
        assert!(if exact { x.to_bits() == y.to_bits() } else { near }, "{what} at {at}: {x}, {y}");
    }
}

#[test]
fn products_of_bf16_have_the_bits_of_widened_ones() {
    for [m, k, n] in SIZES {
        for ([trans_a, trans_b], [a, b]) in factors([m, k, n]) {
            let ([a, wide_a], [b, wide_b], [c, wide_c]) = (both(&a), both(&b), both(&[n]));
            let holds = |op: &Op, narrow: &[&Tensor], wide: &[&Tensor]| {
                let [narrow, wide] = [narrow, wide]
                    .map(|x| run(op, &x.iter().map(|&x| x.clone()).collect::<Vec<_>>()));
                let narrow = narrow.values::<u16>().into_iter().map(bf16::to_f32);
                let wide = wide.values::<f32>().into_iter().map(bf16::round);
                hold(narrow, wide, &format!("{op:?} {m} {k} {n}"));
            };
            holds(&Op::MatMul { trans_a, trans_b }, &[&a, &b], &[&wide_a, &wide_b]);
            let gemm = Op::Gemm { alpha: 0.5, beta: 1.0, trans_a, trans_b };
            holds(&gemm, &[&a, &b, &c], &[&wide_a, &wide_b, &wide_c]);
        }
    }
}

#[test]
fn updates_by_products_of_bf16_have_the_bits_of_widened_ones() {
    for [m, k, n] in SIZES {
        for ([trans_a, trans_b], [a, b]) in factors([m, k, n]) {
            let update =
                Op::Momentum { alpha: 0.9, beta: 1.0, nesterov: false, norm_coefficient: 0.0 };
            let op = Op::ProductUpdate {
                alpha: 1.0,
                trans_a,
                trans_b,
                gradient: 3,
                update: Box::new(update),
            };
            let [_, state] = both(&[m, n]);
            let [rate, time] = [Tensor::new(&[], &[0.1f32]), Tensor::new(&[], &[1i64])];
            let ([a, wide_a], [b, wide_b]) = (both(&a), both(&b));
            let of = |a, b| {
                run_all_ways(
                    &op,
                    &[rate.clone(), time.clone(), state.clone(), state.clone(), a, b],
                    Draw::default(),
                )
            };
            for (narrow, wide) in of(a, b).iter().zip(of(wide_a, wide_b)) {
                let [narrow, wide] = [narrow, &wide].map(|y| y.values::<f32>().into_iter());
                hold(narrow, wide, &format!("{m} {k} {n}"));
            }
        }
    }
}
