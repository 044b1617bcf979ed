//! Matrix products and convolutions: gradients of either operand are products again.

use super::{Local, Rule};
use crate::differentiate::tape::Tape;
use arenic_ir::graph::ValueId;
use arenic_ir::op::families::{Convolution, Product};
use arenic_ir::op::{Op, TypeError};

pub(super) fn rule(op: Product) -> Option<Rule> {
    Some(match op {
        Product::MatMul { .. } => Rule::Passes(mat_mul),
        Product::Gemm { .. } => Rule::Passes(gemm),
        // Passes that run later make them.
        Product::GemmGelu { .. } | Product::GemmGeluGrad { .. } | Product::ProductUpdate { .. } => {
            return None;
        }
    })
}

pub(super) fn rule_of_convolution(op: Convolution) -> Option<Rule> {
    Some(match op {
        Convolution::Conv { .. } => Rule::Passes(conv),
        Convolution::ConvTranspose { .. } => Rule::Passes(conv_transpose),
        // Gradients are made of it.
        Convolution::ConvWeightGrad { .. } => return None,
    })
}

/// A factor of a product.
#[derive(Clone, Copy)]
struct Factor {
    v: ValueId,
    transposed: bool,
}

fn product(t: &mut Tape, a: Factor, b: Factor, alpha: f32) -> Result<ValueId, TypeError> {
    let (trans_a, trans_b) = (a.transposed, b.transposed);
    let op = match alpha {
        1.0 => Op::MatMul { trans_a, trans_b },
        alpha => Op::Gemm { alpha, beta: 0.0, trans_a, trans_b },
    };
    t.emit(op, vec![a.v, b.v])
}

/// The gradients of `alpha · a' b'`, each of the shape of all batches; `dy` is of the result.
fn factors(
    t: &mut Tape,
    (a, b): (Factor, Factor),
    dy: ValueId,
    alpha: f32,
    wanted: [bool; 2],
) -> Result<[Option<ValueId>; 2], TypeError> {
    let plain = |v| Factor { v, transposed: false };
    let turned = |v| Factor { v, transposed: true };
    let not = |f: Factor| Factor { transposed: !f.transposed, ..f };
    let mut found = [None; 2];
    if wanted[0] {
        found[0] = Some(match a.transposed {
            false => product(t, plain(dy), not(b), alpha)?,
            true => product(t, b, turned(dy), alpha)?,
        });
    }
    if wanted[1] {
        found[1] = Some(match b.transposed {
            false => product(t, not(a), plain(dy), alpha)?,
            true => product(t, turned(dy), a, alpha)?,
        });
    }
    Ok(found)
}

fn mat_mul(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::MatMul { trans_a, trans_b } = l.op else { return Ok(()) };
    let (mut a, mut b, mut dy) = (l.x[0], l.x[1], l.dy()?);
    // A vector is a matrix of one row or column.
    let (shape_a, shape_b, mut of_y) = (t.shape(a), t.shape(b), t.shape(dy));
    if let &[n] = &shape_b[..] {
        b = t.reshape(b, &[n, 1])?;
        of_y.push(1);
    }
    if let &[n] = &shape_a[..] {
        a = t.reshape(a, &[1, n])?;
        of_y.insert(of_y.len() - 1, 1);
    }
    dy = t.reshape(dy, &of_y)?;
    // Batches of rows that meet one matrix are one matrix of more rows, so that the gradient of
    // the one matrix is a single product.
    let (of_a, of_b) = (t.shape(a), t.shape(b));
    let single = |shape: &[usize]| shape.iter().rev().skip(2).all(|&d| d == 1);
    let rows = |shape: &[usize]| shape.iter().rev().skip(1).product::<usize>();
    if single(&of_b) && !single(&of_a) && !trans_a && of_a.len() >= of_b.len() {
        let flat = |shape: &[usize]| [rows(shape), shape[shape.len() - 1]];
        a = t.reshape(a, &flat(&of_a))?;
        dy = t.reshape(dy, &flat(&of_y))?;
        b = t.reshape(b, &of_b[of_b.len() - 2..])?;
    }
    let factor = |v, transposed| Factor { v, transposed };
    let wanted = [l.wants(0), l.wants(1)];
    let found = factors(t, (factor(a, trans_a), factor(b, trans_b)), dy, 1.0, wanted)?;
    for (i, (d, of)) in found.into_iter().zip([of_a, of_b]).enumerate() {
        let Some(d) = d else { continue };
        let count: usize = of.iter().product();
        let d = if t.ty(d).elements() == count { t.reshape(d, &of)? } else { t.sum_to(d, &of)? };
        let shape = t.shape(l.x[i]);
        let d = t.reshape(d, &shape)?;
        t.give(l.x[i], d);
    }
    Ok(())
}

fn gemm(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Gemm { alpha, beta, trans_a, trans_b } = l.op else { return Ok(()) };
    let (a, b) = (l.x[0], l.x[1]);
    let (a, b) = (Factor { v: a, transposed: trans_a }, Factor { v: b, transposed: trans_b });
    let found = factors(t, (a, b), l.dy()?, alpha, [l.wants(0), l.wants(1)])?;
    for (i, d) in found.into_iter().enumerate() {
        if let Some(d) = d {
            t.give(l.x[i], d);
        }
    }
    if l.wants(2) {
        let shape = t.shape(l.x[2]);
        let d = t.sum_to(l.dy()?, &shape)?;
        let d = t.scaled(d, f64::from(beta))?;
        t.give(l.x[2], d);
    }
    Ok(())
}

/// The gradient of a bias: one sum per channel.
fn bias(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    if l.wants(2) {
        let dy = l.dy()?;
        let axes = (0..t.shape(dy).len()).filter(|&i| i != 1).collect();
        let d = t.sum(dy, axes, false)?;
        t.give(l.x[2], d);
    }
    Ok(())
}

fn conv(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Conv { window, group } = &l.op else { return Ok(()) };
    let (x, w, dy) = (l.x[0], l.x[1], l.dy()?);
    if l.wants(0) {
        let (input, output) = (t.shape(x)[2..].to_vec(), t.shape(dy)[2..].to_vec());
        // What the last window did not reach has no gradient.
        let unreached = |i: usize| {
            let padded = input[i] + window.pads_begin[i] + window.pads_end[i];
            padded - (window.strides[i] * (output[i] - 1) + window.span(i))
        };
        let output_padding = (0..window.rank()).map(unreached).collect();
        let op = Op::ConvTranspose { window: window.clone(), group: *group, output_padding };
        let d = t.emit(op, vec![dy, w])?;
        t.give(x, d);
    }
    if l.wants(1) {
        let op = Op::ConvWeightGrad { window: window.clone(), group: *group };
        let d = t.emit(op, vec![x, dy])?;
        t.give(w, d);
    }
    bias(t, l)
}

/// A transposed convolution is the gradient of a convolution, whose gradients these are.
fn conv_transpose(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::ConvTranspose { window, group, .. } = &l.op else { return Ok(()) };
    let (x, w, mut dy) = (l.x[0], l.x[1], l.dy()?);
    bias(t, l)?;
    // As a convolution of `dy` it has to reach exactly as far as the windows did: not to elements
    // that were added to the result's end beyond them, which have no operand.
    let (mut window, mut shape) = (window.clone(), t.shape(dy));
    for (i, &extent) in t.shape(x)[2..].iter().enumerate() {
        let covered = window.strides[i] * extent.saturating_sub(1) + window.span(i);
        let reached = covered.saturating_sub(window.pads_begin[i]);
        window.pads_end[i] = reached.saturating_sub(shape[2 + i]);
        shape[2 + i] = shape[2 + i].min(reached);
    }
    if shape.contains(&0) {
        // Padding took away all that the windows wrote.
        for i in (0..2).filter(|&i| l.wants(i)) {
            let ty = t.ty(l.x[i]);
            let d = t.zeros(&ty)?;
            t.give(l.x[i], d);
        }
        return Ok(());
    }
    if shape != t.shape(dy) {
        let (starts, steps) = (vec![0; shape.len()], vec![1; shape.len()]);
        dy = t.emit(Op::Slice { starts, steps, shape }, vec![dy])?;
    }
    if l.wants(0) {
        let d = t.emit(Op::Conv { window: window.clone(), group: *group }, vec![dy, w])?;
        t.give(x, d);
    }
    if l.wants(1) {
        let d = t.emit(Op::ConvWeightGrad { window, group: *group }, vec![dy, x])?;
        t.give(w, d);
    }
    Ok(())
}
