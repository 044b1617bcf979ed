//! Optimizer updates, against the formulas of the ONNX reference in double precision.

use super::{Draw, Setting, Source, Tensor, run_all_ways, run_as};
use arenic_ir::Op;

/// Elements of a parameter, its gradient and a slot.
fn values(source: &mut Source, n: usize, sign: bool) -> Vec<f64> {
    (0..n).map(|_| source.below(2000) as f64 / 1000.0 - if sign { 1.0 } else { 0.0 }).collect()
}

/// Runs an update in single and double precision and compares every result.
fn check(op: &Op, t: i64, slots: usize, n: usize, want: impl Fn([f64; 4]) -> [f64; 3]) {
    let mut source = Source(t as u64 ^ n as u64);
    let mut x: Vec<Vec<f64>> = (0..2).map(|_| values(&mut source, n, true)).collect();
    x.extend((0..slots).map(|_| values(&mut source, n, false)));
    let narrow = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
    let t = Tensor::new(&[], &[t]);
    let mut inputs = vec![Tensor::new(&[], &[0.01f64]), t.clone()];
    inputs.extend(x.iter().map(|x| Tensor::new(&[n], x)));
    let mut narrow_inputs = vec![Tensor::new(&[1], &[0.01f32]), t];
    narrow_inputs.extend(x.iter().map(|x| Tensor::new(&[n], &narrow(x))));
    let y = run_all_ways(op, &inputs, Draw::default());
    let narrow_y = run_all_ways(op, &narrow_inputs, Draw::default());
    #[allow(clippy::needless_range_loop)] // element `i` of every tensor
    for i in 0..n {
        let want = want([0, 1, 2, slots + 1].map(|k| x[k][i]));
        for k in 0..=slots {
            let (got, narrow) = (y[k].values::<f64>()[i], narrow_y[k].values::<f32>()[i]);
            assert!((got - want[k]).abs() < 1e-14, "{op:?}: {got}, not {}", want[k]);
            assert!((f64::from(narrow) - want[k]).abs() < 2e-6, "{op:?}: {narrow}");
        }
    }
    for k in 0..=slots {
        let setting = Setting { unread: &[k], ..Setting::default() };
        let others = run_as(op, &inputs, setting).unwrap();
        (0..=slots).filter(|&o| o != k).for_each(|o| assert_eq!(others[o], y[o]));
    }
}

#[test]
fn adam() {
    let (alpha, beta, epsilon, norm, post) = (0.9f32, 0.999f32, 1e-6f32, 0.1f32, 0.05f32);
    let op = Op::Adam { alpha, beta, epsilon, norm_coefficient: norm, norm_coefficient_post: post };
    let [alpha, beta, epsilon, norm, post] = [alpha, beta, epsilon, norm, post].map(f64::from);
    for (t, n) in [(0, 5), (1, 100), (1000, 1), (7, 40)] {
        check(&op, t, 2, n, |[x, g, v, h]| {
            let g = norm * x + g;
            let v = alpha * v + (1.0 - alpha) * g;
            let h = beta * h + (1.0 - beta) * g * g;
            let lr = match t {
                0 => 0.01,
                _ => 0.01 * (1.0 - beta.powi(t as i32)).sqrt() / (1.0 - alpha.powi(t as i32)),
            };
            [(1.0 - post) * (x - lr * (v / (h.sqrt() + epsilon))), v, h]
        });
    }
}

#[test]
fn adagrad() {
    let (decay, epsilon, norm) = (0.1f32, 1e-5f32, 0.2f32);
    let op = Op::Adagrad { decay_factor: decay, epsilon, norm_coefficient: norm };
    for (t, n) in [(0, 5), (3, 100), (3, 33)] {
        check(&op, t, 1, n, |[x, g, h, _]| {
            let g = f64::from(norm) * x + g;
            let h = h + g * g;
            let lr = 0.01 / (1.0 + t as f64 * f64::from(decay));
            [x - lr * g / (h.sqrt() + f64::from(epsilon)), h, h]
        });
    }
}

#[test]
fn momentum() {
    let (alpha, beta, norm) = (0.9f32, 0.5f32, 0.1f32);
    for nesterov in [false, true] {
        let op = Op::Momentum { alpha, beta, nesterov, norm_coefficient: norm };
        let [alpha, beta, norm] = [alpha, beta, norm].map(f64::from);
        for (t, n) in [(0, 5), (1, 100)] {
            check(&op, t, 1, n, |[x, g, v, _]| {
                let g = norm * x + g;
                let v = alpha * v + if t > 0 { beta } else { 1.0 } * g;
                [x - 0.01 * if nesterov { g + alpha * v } else { v }, v, v]
            });
        }
    }
}
