//! Results and gradients of operators that are made of several, at the edges: where a branch that
//! is not selected is infinite or no number, at kinks and zeros, and where a part overflows.

use super::model::*;
use crate::onnx::proto::{NodeProto, TensorProto, tensor_proto::DataType};

/// `op(x)` and the gradient of the sum of its elements.
fn slopes(op: NodeProto, lists: &[TensorProto], shape: &[i64], x: &[f32]) -> [Vec<f32>; 2] {
    let mut m = single(20, shape, op, lists);
    m = m.node(gradient("y", &["x"], &[], &["x"], &["d"])).output("d");
    let g = import(&m).unwrap().graph;
    ["y", "d"].map(|name| computed(&g, &[("x", x)], name))
}

fn close(what: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let g = f64::from(g);
        let equal = g == w || (g - w).abs() <= 2e-6 * w.abs().max(1e-30) + 1e-7;
        assert!(equal, "{what}, element {i}: {g} is not {w}; all are {got:?}");
    }
}

/// A function with its slope, both of doubles.
type Exact = fn(f64) -> [f64; 2];

fn elementwise(name: &str, attributes: &[(&str, f32)], points: &[f32], exact: Exact) {
    let mut op = node(name, &["x"], &["y"]);
    for &(attribute, value) in attributes {
        op = with(op, attribute, Attr::F(value));
    }
    let [y, d] = slopes(op, &[], &[points.len() as i64], points);
    for (i, &x) in points.iter().enumerate() {
        let [value, slope] = exact(x.into());
        close(&format!("{name} of {x}"), &y[i..=i], &[value]);
        close(&format!("the slope of {name} at {x}"), &d[i..=i], &[slope]);
    }
}

const ALPHA: f64 = 1.673_263_2_f32 as f64;
const GAMMA: f64 = 1.050_701_f32 as f64;

fn elu(x: f64, alpha: f64) -> [f64; 2] {
    if x < 0.0 { [alpha * x.exp_m1(), alpha * x.exp()] } else { [x, 1.0] }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[test]
fn functions_of_one_operand_have_their_slopes_everywhere() {
    let wide = [0.0, -0.0, 0.5, -0.5, 16.0, 19.0, 88.0, 89.0, -89.0, 1e4, -1e4, 1e30, -1e30];
    let hyperbolic = [0.0, 0.5, -0.5, 0.999, 1.0, 16.0, 17.0, 18.0, 19.0, 20.0, 88.0, 89.0, -89.0];
    elementwise("Softplus", &[], &wide, |x| [softplus(x), sigmoid(x)]);
    elementwise("Mish", &[], &wide, |x| {
        let gate = softplus(x).tanh();
        [x * gate, gate + x * (1.0 - gate * gate) * sigmoid(x)]
    });
    elementwise("Elu", &[], &wide, |x| elu(x, 1.0));
    elementwise("Celu", &[("alpha", 2.0)], &wide, |x| {
        let [y, d] = elu(x / 2.0, 1.0);
        [2.0 * y, d]
    });
    elementwise("Selu", &[], &wide, |x| elu(x, ALPHA).map(|y| y * GAMMA));
    elementwise("Softsign", &[], &wide, |x| [x / (1.0 + x.abs()), 1.0 / (1.0 + x.abs()).powi(2)]);
    elementwise("Sinh", &[], &hyperbolic, |x| [x.sinh(), x.cosh()]);
    elementwise("Cosh", &[], &hyperbolic, |x| [x.cosh(), x.sinh()]);
    elementwise("Tan", &[], &[0.0, 1.0, -1.5], |x| [x.tan(), 1.0 + x.tan().powi(2)]);
    elementwise("Abs", &[], &[0.0, 2.0, -2.0], |x| {
        [x.abs(), if x == 0.0 { 0.0 } else { x.signum() }]
    });
}

#[test]
fn norms_of_nothing_have_the_slope_zero() {
    let x = [0.0, 0.0, 3.0, -4.0];
    let along = || [list("a", &[1])];
    for keep in [0, 1] {
        let op = with(node("ReduceL2", &["x", "a"], &["y"]), "keepdims", Attr::I(keep));
        let [y, d] = slopes(op, &along(), &[2, 2], &x);
        close("l2", &y, &[0.0, 5.0]);
        close("the slope of l2", &d, &[0.0, 0.0, 0.6, -0.8]);
    }
    let [y, d] = slopes(node("ReduceL1", &["x", "a"], &["y"]), &along(), &[2, 2], &x);
    close("l1", &y, &[0.0, 7.0]);
    close("the slope of l1", &d, &[0.0, 0.0, 1.0, -1.0]);
    // Of [3, −4] by x: y = x / ‖x‖, whose sum has the slope (1 − y Σy) / ‖x‖.
    let p = |p| with(node("LpNormalization", &["x"], &["y"]), "p", Attr::I(p));
    let [y, d] = slopes(p(2), &[], &[2, 2], &x);
    close("l2 normalised", &y, &[0.0, 0.0, 0.6, -0.8]);
    close("the slope of l2 normalised", &d, &[0.0, 0.0, 0.224, 0.168]);
    let [y, d] = slopes(p(1), &[], &[2, 2], &x);
    close("l1 normalised", &y, &[0.0, 0.0, 3.0 / 7.0, -4.0 / 7.0]);
    close("the slope of l1 normalised", &d, &[0.0, 0.0, 8.0 / 49.0, 6.0 / 49.0]);
    // A row of equal elements: its deviations are zero, and so is the slope of their sum.
    let op = with(node("MeanVarianceNormalization", &["x"], &["y"]), "axes", Attr::Is(&[1]));
    let [y, d] = slopes(op, &[], &[2, 2], &[7.0, 7.0, 1.0, 3.0]);
    close("mean and variance normalised", &y, &[0.0, 0.0, -1.0, 1.0]);
    assert!(d[..2].iter().all(|d| d.is_finite()), "{d:?}");
}

#[test]
fn the_logarithm_of_a_sum_of_exponentials_knows_infinities() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let rows: [([f32; 2], f64, [f64; 2]); 7] = [
        ([inf, 1.0], f64::INFINITY, [1.0, 0.0]),
        ([inf, inf], f64::INFINITY, [0.5, 0.5]),
        ([inf, -inf], f64::INFINITY, [1.0, 0.0]),
        ([-inf, -inf], f64::NEG_INFINITY, [0.5, 0.5]),
        ([-inf, 1.0], 1.0, [0.0, 1.0]),
        ([1e30, 1e30], 1e30, [0.5, 0.5]),
        ([1.0, 3.0], 3.126_928_011, [0.119_202_922, 0.880_797_078]),
    ];
    for keep in [0, 1] {
        let op = with(node("ReduceLogSumExp", &["x", "a"], &["y"]), "keepdims", Attr::I(keep));
        let x: Vec<f32> = rows.iter().flat_map(|(x, ..)| *x).chain([nan, 1.0]).collect();
        let [y, d] = slopes(op, &[list("a", &[1])], &[rows.len() as i64 + 1, 2], &x);
        for (i, (row, value, slope)) in rows.iter().enumerate() {
            close(&format!("{row:?}"), &y[i..=i], &[*value]);
            close(&format!("the slope at {row:?}"), &d[2 * i..2 * i + 2], slope);
        }
        assert!(y.last().unwrap().is_nan());
    }
}

#[test]
fn powers_are_flat_where_their_exponent_is_zero() {
    let x = [0.0, 0.0, 0.0, 2.0, -2.0];
    let power = |exponents: &[f32]| {
        let n = exponents.len() as i64;
        let m = with(node("Constant", &[], &["e"]), "value", {
            Attr::T(Box::new(floats("", if n == 1 { &[] } else { &[5] }, exponents)))
        });
        let m = model(20)
            .input("x", DataType::Float, &fixed([5]))
            .node(m)
            .node(node("Pow", &["x", "e"], &["y"]))
            .node(gradient("y", &["x"], &[], &["x"], &["d"]))
            .output("y")
            .output("d");
        let g = import(&m).unwrap().graph;
        computed(&g, &[("x", &x)], "d")
    };
    close("of exponent 0", &power(&[0.0]), &[0.0; 5]);
    close("of exponent 1", &power(&[1.0]), &[1.0; 5]);
    close("of exponents", &power(&[0.0, 1.0, 2.0, 3.0, 2.0]), &[0.0, 1.0, 0.0, 12.0, -4.0]);
}
