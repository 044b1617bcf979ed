//! Matrix products and convolutions.

use super::*;
use arenic_ir::op::Window;

fn turned(shape: &[usize], is_transposed: bool) -> Vec<usize> {
    let mut shape = shape.to_vec();
    let rank = shape.len();
    if is_transposed && rank >= 2 {
        shape.swap(rank - 1, rank - 2);
    }
    shape
}

#[test]
fn matrices_with_batches() {
    for seed in 0..4 * CASES {
        let r = &mut Rng::with_seed(seed);
        let (m, k, n) = (r.usize(1..4), r.usize(1..4), r.usize(1..4));
        let rank = r.usize(0..3);
        let (batch, part) = shapes(r, rank);
        let (trans_a, trans_b) = (r.bool(), r.bool());
        let join = |batch: &[usize], matrix: [usize; 2]| [batch, &matrix[..]].concat();
        let (a, b) = if r.bool() { (&batch, &part) } else { (&part, &batch) };
        let a = turned(&join(a, [m, k]), trans_a);
        let b = turned(&join(b, [k, n]), trans_b);
        case(&Op::MatMul { trans_a, trans_b }, &[trained(r, &a), trained(r, &b)]);
    }
}

#[test]
fn vectors() {
    let op = Op::MatMul { trans_a: false, trans_b: false };
    for (a, b) in [
        (vec![3], vec![3]),
        (vec![3], vec![3, 2]),
        (vec![2, 3], vec![3]),
        (vec![4, 2, 3], vec![3]),
        (vec![3], vec![4, 3, 2]),
    ] {
        let r = &mut Rng::with_seed(2);
        case(&op, &[trained(r, &a), trained(r, &b)]);
    }
}

#[test]
fn general_products() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let (m, k, n) = (r.usize(1..4), r.usize(1..4), r.usize(1..4));
        let (trans_a, trans_b) = (r.bool(), r.bool());
        let op = Op::Gemm { alpha: 0.5, beta: 1.5, trans_a, trans_b };
        let (a, b) = (turned(&[m, k], trans_a), turned(&[k, n], trans_b));
        let c = [vec![m, n], vec![n], vec![1, n], vec![m, 1], vec![]];
        let c = &c[r.usize(0..c.len())];
        case(&op, &[trained(r, &a), trained(r, &b), trained(r, c)]);
        let op = Op::Gemm { alpha: 1.0, beta: 0.0, trans_a, trans_b };
        case(&op, &[trained(r, &a), trained(r, &b)]);
    }
}

/// A window over `rank` axes.
fn window(r: &mut Rng, rank: usize) -> Window {
    let mut list =
        |range: std::ops::Range<usize>| (0..rank).map(|_| r.usize(range.clone())).collect();
    Window {
        kernel: list(1..4),
        strides: list(1..4),
        dilations: list(1..3),
        pads_begin: list(0..3),
        pads_end: list(0..3),
    }
}

#[test]
fn convolutions() {
    for seed in 0..3 * CASES {
        let r = &mut Rng::with_seed(seed);
        let rank = r.usize(1..3);
        let window = window(r, rank);
        let (group, images) = (r.usize(1..3), r.usize(1..3));
        let (c, m) = (group * r.usize(1..3), group * r.usize(1..3));
        let mut x = vec![images, c];
        x.extend((0..rank).map(|i| window.span(i) + r.usize(0..4)));
        let w = [vec![m, c / group], window.kernel.clone()].concat();
        let mut operands = vec![trained(r, &x), trained(r, &w)];
        if r.bool() {
            operands.push(trained(r, &[m]));
        }
        case(&Op::Conv { window, group }, &operands);
    }
}

#[test]
fn transposed_convolutions() {
    for seed in 0..3 * CASES {
        let r = &mut Rng::with_seed(seed);
        let rank = r.usize(1..3);
        let window = window(r, rank);
        let (group, images) = (r.usize(1..3), r.usize(1..3));
        let (c, m) = (group * r.usize(1..3), group * r.usize(1..3));
        let mut x = vec![images, c];
        x.extend((0..rank).map(|_| r.usize(2..5)));
        let output_padding: Vec<usize> = (0..rank).map(|_| r.usize(0..4)).collect();
        if window.unslide(&x[2..], &output_padding).is_err() {
            continue;
        }
        let w = [vec![c, m / group], window.kernel.clone()].concat();
        let mut operands = vec![trained(r, &x), trained(r, &w)];
        if r.bool() {
            operands.push(trained(r, &[m]));
        }
        let op = Op::ConvTranspose { window, group, output_padding };
        if forward_fits(&op, &operands) {
            case(&op, &operands);
        }
    }
}

fn forward_fits(op: &Op, operands: &[Operand]) -> bool {
    let types: Vec<TensorType> = operands
        .iter()
        .map(|o| match o {
            Operand::Trained(shape, _) => TensorType::new(DType::F64, shape.clone()),
            Operand::Fixed(ty, _) => ty.clone(),
        })
        .collect();
    op.infer(&types.iter().collect::<Vec<_>>()).is_ok()
}
