//! Reductions, softmax and layer normalisation.

use super::*;
use arenic_ir::op::Reduction;

fn reduced(f: Reduction, x: &Tensor, axes: &[usize], y: &TensorType) -> Vec<f64> {
    let identity = match f {
        Reduction::Sum | Reduction::Mean => 0.0,
        Reduction::Prod => 1.0,
        Reduction::Min => f64::INFINITY,
        Reduction::Max => f64::NEG_INFINITY,
    };
    let mut out = vec![identity; y.elements()];
    let kept: Vec<usize> = (0..x.ty.rank()).filter(|a| !axes.contains(a)).collect();
    let shape: Vec<usize> = kept.iter().map(|&a| x.ty.shape[a]).collect();
    for (at, &v) in indices(&x.ty.shape).zip(&x.values) {
        let at: Vec<usize> = kept.iter().map(|&a| at[a]).collect();
        let to = &mut out[flat(&at, &shape)];
        *to = match f {
            Reduction::Sum | Reduction::Mean => *to + v,
            Reduction::Prod => *to * v,
            Reduction::Min if v.is_nan() || v < *to => v,
            Reduction::Max if v.is_nan() || v > *to => v,
            _ => *to,
        };
    }
    if f == Reduction::Mean {
        let count = x.values.len() as f64 / out.len() as f64;
        for v in &mut out {
            *v /= count;
            if x.ty.dtype.is_int() {
                *v = v.trunc();
            }
        }
    }
    out
}

const ALL: [Reduction; 5] =
    [Reduction::Sum, Reduction::Mean, Reduction::Min, Reduction::Max, Reduction::Prod];

#[test]
fn reductions_of_random_shapes() {
    let mut r = Random(20);
    for _ in 0..400 {
        let rank = r.range(0, 5);
        let shape: Vec<usize> = (0..rank).map(|_| r.choose(&[1, 2, 3, 7, 11])).collect();
        let axes: Vec<usize> = (0..rank).filter(|_| r.chance()).collect();
        let f = r.choose(&ALL);
        let dtype = r.choose(&[DType::F32, DType::F64, DType::I32, DType::I64]);
        let x = r.tensor(dtype, shape);
        let op = Op::Reduce { f, axes: axes.clone(), keep: r.chance() };
        let y = evaluate(&op, &[&x]);
        let want = reduced(f, &x, &axes, &y.ty);
        if want.iter().all(|w| dtype.is_float() || w.abs() < 2e9) {
            assert_close(&y, &want, 1e-5, &(&op, &x.ty));
        }
    }
}

#[test]
fn large_reductions_are_accurate() {
    let mut r = Random(21);
    for (shape, axes) in [
        (vec![3_000_001], vec![0]),
        (vec![70_000, 10], vec![0]),
        (vec![70_000, 300], vec![0]),
        (vec![3, 1_000_003], vec![1]),
        (vec![8, 64, 30, 30], vec![0, 2, 3]),
        (vec![40, 3, 70, 70], vec![0, 2, 3]),
        (vec![9, 20, 5, 400], vec![0, 2]),
    ] {
        for f in [Reduction::Sum, Reduction::Mean, Reduction::Max] {
            let mut x = r.tensor(DType::F32, shape.clone());
            x.values.iter_mut().for_each(|v| *v = f64::from((*v + 1.0) as f32));
            let op = Op::Reduce { f, axes: axes.clone(), keep: false };
            let y = evaluate(&op, &[&x]);
            assert_close(&y, &reduced(f, &x, &axes, &y.ty), 1e-6, &(&op, &x.ty));
        }
    }
}

#[test]
fn means_of_small_integers_do_not_wrap() {
    let x = Tensor::new(DType::U8, [4], vec![250.0, 250.0, 251.0, 250.0]);
    let op = Op::Reduce { f: Reduction::Mean, axes: vec![0], keep: false };
    assert_eq!(evaluate(&op, &[&x]).values, [250.0]);
    let x = Tensor::new(DType::I8, [2], vec![-120.0, -121.0]);
    assert_eq!(evaluate(&op, &[&x]).values, [-120.0]);
}

#[test]
fn empty_reductions_give_identities() {
    let of = |dtype, f| {
        let x = Tensor::new(dtype, [2, 0], vec![]);
        evaluate(&Op::Reduce { f, axes: vec![1], keep: false }, &[&x]).values[0]
    };
    let f = DType::F32;
    assert_eq!(ALL.map(|r| of(f, r)).map(|v| v.to_string()), ["0", "NaN", "inf", "-inf", "1"]);
    assert_eq!(of(DType::I32, Reduction::Max), f64::from(i32::MIN));
    assert_eq!(of(DType::I32, Reduction::Min), f64::from(i32::MAX));
}

#[test]
fn extremes_keep_nan() {
    for at in [0, 3, 40, 99] {
        let mut x = Random(22).tensor(DType::F32, [100]);
        x.values[at] = f64::NAN;
        for f in [Reduction::Min, Reduction::Max] {
            let op = Op::Reduce { f, axes: vec![0], keep: false };
            assert!(evaluate(&op, &[&x]).values[0].is_nan());
        }
    }
}

#[test]
fn softmax_along_any_axis() {
    let mut r = Random(23);
    for _ in 0..120 {
        let shape: Vec<usize> =
            (0..r.range(1, 4)).map(|_| r.choose(&[0, 1, 2, 5, 31, 70])).collect();
        if shape.iter().product::<usize>() > 200_000 {
            continue;
        }
        let axis = r.range(0, shape.len() - 1);
        let dtype = r.choose(&[DType::F32, DType::F64]);
        let mut x = r.tensor(dtype, shape.clone());
        x.values.iter_mut().for_each(|v| *v = f64::from((*v * 90.0) as f32));
        let (extent, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let (mut soft, mut log) = (x.values.clone(), x.values.clone());
        for at in 0..x.values.len() {
            let base = at / (extent * inner) * extent * inner + at % inner;
            let column = || (0..extent).map(|i| x.values[base + i * inner]);
            let max = column().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = column().map(|v| (v - max).exp()).sum();
            soft[at] = (x.values[at] - max).exp() / total;
            log[at] = x.values[at] - max - total.ln();
        }
        let op = Op::Softmax { axis };
        assert_close(&evaluate(&op, &[&x]), &soft, 1e-6, &(&op, &shape));
        let op = Op::LogSoftmax { axis };
        assert_close(&evaluate(&op, &[&x]), &log, 1e-6, &(&op, &shape));
    }
}

#[test]
fn layer_norm_with_broadcast_scale() {
    let mut r = Random(24);
    for _ in 0..120 {
        let shape: Vec<usize> = (0..r.range(1, 4)).map(|_| r.choose(&[1, 2, 5, 31, 70])).collect();
        let axis = r.range(0, shape.len() - 1);
        let dtype = r.choose(&[DType::F32, DType::F64]);
        let x = r.tensor(dtype, shape.clone());
        let row = &shape[axis..];
        let n: usize = row.iter().product();
        let mut factor = || {
            let mut own = row[if r.chance() { 0 } else { r.range(0, row.len()) }..].to_vec();
            for d in &mut own {
                *d = if r.range(0, 3) == 0 { 1 } else { *d };
            }
            r.tensor(dtype, own)
        };
        let (scale, bias) = (factor(), factor());
        let factor_at = |t: &Tensor, at: &[usize]| {
            let lead = at.len() - t.ty.rank();
            let at: Vec<usize> = (0..t.ty.rank())
                .map(|d| if t.ty.shape[d] == 1 { 0 } else { at[lead + d] })
                .collect();
            t.values[flat(&at, &t.ty.shape)]
        };
        let epsilon = 1e-3;
        let (mut want, mut means, mut inv_stds) = (vec![], vec![], vec![]);
        for x in x.values.chunks(n) {
            let mean = x.iter().sum::<f64>() / n as f64;
            let var = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            let inv_std = 1.0 / (var + f64::from(epsilon)).sqrt();
            means.push(mean);
            inv_stds.push(inv_std);
            for (&v, at) in x.iter().zip(indices(row)) {
                want.push((v - mean) * inv_std * factor_at(&scale, &at) + factor_at(&bias, &at));
            }
        }
        let op = Op::LayerNorm { axis, epsilon };
        let operands = [&x, &scale, &bias];
        let y = evaluate(&op, &operands);
        assert_close(&y, &want, 1e-5, &(&op, &x.ty, &scale.ty));
        let all = apply(&op, &operands, Some((0, 0)), &[true; 3]);
        assert_same(&all[0], &y, &op);
        assert_close(&all[1], &means, 1e-5, &op);
        assert_close(&all[2], &inv_stds, 1e-5, &op);
        let statistics = apply(&op, &operands, None, &[false, true, true]);
        assert_same(&statistics[0], &all[1], &op);
    }
}
