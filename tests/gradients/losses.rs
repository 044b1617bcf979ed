//! Losses that the pass writes down with their gradients.

use super::*;
use arenic_passes::Purpose;
use arenic_passes::differentiate::Reduction as Over;

/// A graph whose output is a weight.
fn weight(shape: &[usize], values: &[f64]) -> Graph {
    let mut g = Graph::default();
    let ty = TensorType::new(DType::F64, shape);
    let state = g.add_state("x", ty, Some(Data::Bytes(doubles(values).into())));
    let x = g.states[state].enter;
    let y = g.add_node("", Op::Copy, vec![x]).unwrap();
    let y = g.result(y).unwrap();
    g.outputs.push(Output { name: "y".into(), value: y });
    g
}

/// Holds the pass against differences of the loss `expected`, and what evaluates against its mean
/// over so many.
fn holds(
    name: &str,
    pass: &Differentiate,
    (shape, values): (&[usize], &[f64]),
    target: Vec<u8>,
    count: usize,
    expected: impl Fn(&[f64]) -> f64,
) {
    let g = weight(shape, values);
    let loss = |states: &[Vec<f64>]| expected(&states[0]);
    check(name, &g, pass, &[("target", target.clone())], &loss);
    let divisor = if pass.reduction == Over::Sum { count as f64 } else { 1.0 };
    let value = evaluated(&g, pass, values, target, "loss");
    assert!((value - expected(values) / divisor).abs() < 1e-12, "{name}: evaluated {value}");
}

/// An output of what evaluates a graph.
fn evaluated(g: &Graph, pass: &Differentiate, x: &[f64], target: Vec<u8>, output: &str) -> f64 {
    let mut forward = g.clone();
    let cx = Cx { purpose: Purpose::Evaluation, ..Cx::new(CPU.target()) };
    pass.run(&mut forward, &cx).unwrap();
    verify(&forward).unwrap();
    forward.outputs.retain(|o| o.name == output);
    run(&forward, &[x.to_vec()], &[("target", target)]).0
}

/// As PyTorch's `(logits.argmax(1) == target)[target != ignored]` has them.
#[test]
fn the_first_of_equal_logits_is_the_class() {
    let row = |target: [i64; 4]| target.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<u8>>();
    let pass = pass("cross_entropy", Over::Mean);
    let x = [0.5, 0.5, 0.5, 0.1, 0.9, 0.9, 0.3, 0.2, 0.1, f64::NEG_INFINITY, 0.0, 1.0];
    let g = weight(&[4, 3], &x);
    for (target, accuracy, counted) in [
        ([0, 1, 0, 2], 1.0, 4),
        ([1, 2, 1, 1], 0.0, 4),
        ([2, 1, -100, -100], 0.5, 2),
        ([-100; 4], 0.0, 0),
    ] {
        let figure = |name: &str| evaluated(&g, &pass, &x, row(target), name);
        assert_eq!(figure("accuracy"), accuracy, "{target:?}");
        // The bits of an integer.
        assert_eq!(figure("counted").to_bits(), counted, "{target:?}");
        assert!(figure("loss").is_finite(), "{target:?}");
    }
    // A batch in which nothing counts has no loss.
    assert_eq!(evaluated(&g, &pass, &x, row([-100; 4]), "loss"), 0.0);
}

fn pass(loss: &str, reduction: Over) -> Differentiate {
    Differentiate { loss: loss.into(), reduction, ..Differentiate::default() }
}

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
    row.iter().map(|x| x - max - sum.ln()).collect()
}

/// Of `x[N, C, D]` and `target[N, D]`, by the definition.
fn cross_entropy(
    x: &[f64],
    [n, c, d]: [usize; 3],
    target: &[i64],
    ignored: i64,
    over: Over,
    log: impl Fn(&[f64]) -> Vec<f64>,
) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for i in 0..n {
        for j in 0..d {
            let class = target[i * d + j];
            if class != ignored {
                let row: Vec<f64> = (0..c).map(|k| x[(i * c + k) * d + j]).collect();
                sum -= log(&row)[class as usize];
                count += 1.0;
            }
        }
    }
    if over == Over::Mean { sum / count } else { sum }
}

#[test]
fn of_classes() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let size = [r.usize(1..4), r.usize(2..5), r.usize(1..4)];
        let [n, c, d] = size;
        let values = apart(r, n * c * d, false);
        let ignored = if r.bool() { -100 } else { 1 };
        let mut target: Vec<i64> = (0..n * d)
            .map(|_| if r.u8(0..4) == 0 { ignored } else { r.i64(0..c as i64) })
            .collect();
        // One that counts, whatever the others do.
        target[0] = 0;
        let bytes: Vec<u8> = target.iter().flat_map(|t| t.to_le_bytes()).collect();
        for over in [Over::Mean, Over::Sum] {
            for loss in ["cross_entropy", "nll"] {
                let pass = Differentiate { ignore_index: Some(ignored), ..pass(loss, over) };
                let log = |row: &[f64]| {
                    if loss == "nll" { row.to_vec() } else { log_softmax(row) }
                };
                let expected = |x: &[f64]| cross_entropy(x, size, &target, ignored, over, log);
                let counted = target.iter().filter(|&&t| t != ignored).count();
                holds(loss, &pass, (&size, &values), bytes.clone(), counted, expected);
            }
        }
    }
}

#[test]
fn classes_last() {
    let values = [0.3, -1.2, 0.8, 2.0, 0.1, -0.4];
    let pass = Differentiate { class_axis: Some(1), ..pass("cross_entropy", Over::Mean) };
    let target: Vec<u8> = [2i64, 0].iter().flat_map(|t| t.to_le_bytes()).collect();
    let expected = |x: &[f64]| -(log_softmax(&x[..3])[2] + log_softmax(&x[3..])[0]) / 2.0;
    holds("two axes", &pass, (&[2, 3], &values), target, 2, expected);
}

#[test]
fn of_numbers() {
    let values = [0.3, -1.2, 0.8, 40.0, 0.1, -40.0];
    let targets = [0.0, 1.0, 0.25, 1.0, 0.5, 0.0];
    for over in [Over::Mean, Over::Sum] {
        let divisor = if over == Over::Mean { 6.0 } else { 1.0 };
        let squares = |x: &[f64]| {
            x.iter().zip(&targets).map(|(x, t)| (x - t) * (x - t)).sum::<f64>() / divisor
        };
        holds("mse", &pass("mse", over), (&[2, 3], &values), doubles(&targets), 6, squares);
        let entropy = |x: &[f64]| {
            let each = |(&x, &t): (&f64, &f64)| x.max(0.0) - x * t + (-x.abs()).exp().ln_1p();
            x.iter().zip(&targets).map(each).sum::<f64>() / divisor
        };
        holds("bce", &pass("bce", over), (&[2, 3], &values), doubles(&targets), 6, entropy);
    }
}
