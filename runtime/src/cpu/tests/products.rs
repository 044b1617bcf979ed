use crate::cpu::library::{Scalar, packed};
use crate::cpu::product::{Mat, MatMut};
use arenic_ir::op::Extents;

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
