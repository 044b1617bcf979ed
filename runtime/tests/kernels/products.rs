//! `MatMul` and `Gemm`.

use super::*;

/// NumPy's matmul, element by element.
fn naive(a: &Tensor, b: &Tensor, trans_a: bool, trans_b: bool, shape: &[usize]) -> Vec<f64> {
    let get = |t: &Tensor, trans: bool, batch: &[usize], i: usize, j: usize| {
        let shape = &t.ty.shape;
        let lead = shape.len() - 2;
        let mut at: Vec<usize> = (0..lead)
            .map(|d| if shape[d] == 1 { 0 } else { batch[batch.len() - lead + d] })
            .collect();
        at.extend(if trans { [j, i] } else { [i, j] });
        t.values[flat(&at, shape)]
    };
    let widen = |t: &Tensor, row: bool| match t.ty.shape[..] {
        [n] => Tensor::new(t.ty.dtype, if row { [1, n] } else { [n, 1] }, t.values.clone()),
        _ => t.clone(),
    };
    let (row, column) = (a.ty.rank() == 1, b.ty.rank() == 1);
    let (a, b) = (&widen(a, true), &widen(b, false));
    let k = a.ty.shape[a.ty.rank() - if trans_a { 2 } else { 1 }];
    indices(shape)
        .map(|mut at| {
            let j = if column { 0 } else { at.pop().unwrap() };
            let i = if row { 0 } else { at.pop().unwrap() };
            (0..k).map(|p| get(a, trans_a, &at, i, p) * get(b, trans_b, &at, p, j)).sum()
        })
        .collect()
}

fn check(a: &Tensor, b: &Tensor, trans_a: bool, trans_b: bool) {
    let op = Op::MatMul { trans_a, trans_b };
    let y = evaluate(&op, &[a, b]);
    let what = (&op, &a.ty, &b.ty);
    assert_close(&y, &naive(a, b, trans_a, trans_b, &y.ty.shape), 2e-5, &what);
}

fn swapped(swap: bool, rows: usize, cols: usize) -> [usize; 2] {
    if swap { [cols, rows] } else { [rows, cols] }
}

#[test]
fn mat_mul_of_random_shapes() {
    let mut r = Random(1);
    for case in 0..160 {
        let dtype = r.choose(&[DType::F32, DType::F64, DType::I32, DType::I64, DType::U32]);
        let large = if case % 20 == 0 { 8 } else { 1 };
        let sizes = [0, 1, 2, 3, 4, 5, 17, 33, 64];
        let (m, k, n) = (
            r.choose(&sizes) * r.range(1, large),
            r.choose(&sizes),
            r.choose(&sizes) * r.range(1, large),
        );
        let (ta, tb) = (r.chance(), r.chance());
        let batch: Vec<usize> = (0..r.range(0, 3)).map(|_| r.range(1, 3)).collect();
        let mut own = |matrix: [usize; 2]| {
            let drop = r.range(0, batch.len());
            let mut shape = batch[drop..].to_vec();
            for d in &mut shape {
                *d = if r.range(0, 3) == 0 { 1 } else { *d };
            }
            shape.extend(matrix);
            shape
        };
        let (a, b) = (own(swapped(ta, m, k)), own(swapped(tb, k, n)));
        let (a, b) = (r.tensor(dtype, a), r.tensor(dtype, b));
        check(&a, &b, ta, tb);
    }
}

#[test]
fn vectors_and_long_sums() {
    let mut r = Random(2);
    for (a, b, ta, tb) in [
        (vec![7], vec![7], false, false),
        (vec![5], vec![3, 5, 4], false, false),
        (vec![2, 3, 5], vec![5], false, false),
        (vec![1, 900], vec![900, 700], false, false),
        (vec![1, 900], vec![700, 900], false, true),
        (vec![700, 900], vec![900, 1], false, false),
        (vec![900, 700], vec![900, 2], true, false),
        (vec![3, 20000], vec![20000, 5], false, false),
        (vec![20000, 3], vec![20000, 5], true, false),
        (vec![2, 3, 9001], vec![2, 9001, 5], false, false),
        (vec![300, 40], vec![40, 500], false, false),
        (vec![4, 300, 40], vec![500, 40], false, true),
    ] {
        let (a, b) = (r.tensor(DType::F32, a), r.tensor(DType::F32, b));
        check(&a, &b, ta, tb);
    }
}

#[test]
fn gemm_of_random_shapes() {
    let mut r = Random(3);
    for _ in 0..200 {
        let dtype = r.choose(&[DType::F32, DType::F64, DType::I64]);
        let sizes = [0, 1, 2, 5, 17, 40, 70, 130];
        let (m, k, n) = (r.choose(&sizes), r.choose(&sizes), r.choose(&sizes));
        let (trans_a, trans_b) = (r.chance(), r.chance());
        let (alpha, beta) = (r.choose(&[1.0, 2.0, -3.0]), r.choose(&[1.0, 0.0, 2.0]));
        let op = Op::Gemm { alpha, beta, trans_a, trans_b };
        let a = r.tensor(dtype, swapped(trans_a, m, k));
        let b = r.tensor(dtype, swapped(trans_b, k, n));
        let shapes = [vec![], vec![1], vec![n], vec![1, n], vec![m, 1], vec![m, n]];
        let c = shapes[r.range(0, 5)].clone();
        let c = r.tensor(dtype, c);
        let mut want = naive(&a, &b, trans_a, trans_b, &[m, n]);
        let y = evaluate(&op, &[&a, &b]);
        want.iter_mut().for_each(|w| *w *= f64::from(alpha));
        assert_close(&y, &want, 2e-5, &(&op, m, k, n));
        for (w, at) in want.iter_mut().zip(indices(&[m, n])) {
            let lead = 2 - c.ty.rank();
            let at: Vec<usize> = (0..c.ty.rank())
                .map(|d| if c.ty.shape[d] == 1 { 0 } else { at[lead + d] })
                .collect();
            *w += f64::from(beta) * c.values[flat(&at, &c.ty.shape)];
        }
        assert_close(&evaluate(&op, &[&a, &b, &c]), &want, 2e-5, &(&op, m, k, n, &c.ty));
    }
}
