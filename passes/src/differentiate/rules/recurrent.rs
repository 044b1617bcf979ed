//! Recurrences: their gradients go back step by step, those of weights are products over all
//! steps at once.
//!
//! What is kept are the gates and, of an LSTM, the cells; of an RNN the result alone. What the
//! reset gates of a GRU multiplied is computed again, as one product.

use super::{Local, Rule};
use crate::differentiate::tape::Tape;
use crate::rewrite::is_zero;
use arenic_ir::graph::ValueId;
use arenic_ir::op::families::Recurrent;
use arenic_ir::op::{Op, TypeError};

pub(super) fn rule(op: Recurrent) -> Option<Rule> {
    Some(match op {
        Recurrent::Lstm { .. } => Rule::Passes(lstm),
        Recurrent::Gru { .. } => Rule::Passes(gru),
        Recurrent::Rnn { .. } => Rule::Passes(rnn),
        // Gradients are made of them.
        Recurrent::LstmGrad { .. } | Recurrent::GruGrad { .. } | Recurrent::RnnGrad { .. } => {
            return None;
        }
    })
}

/// Refuses gradients of what is there for gradients alone.
fn only_states(l: &Local) -> Result<(), TypeError> {
    match l.dy.get(1) {
        Some(Some(_)) => {
            Err(TypeError(format!("the second result of {} has no gradient", l.op.name())))
        }
        _ => Ok(()),
    }
}

/// `count` indices of an axis from `first` on.
fn part(
    t: &mut Tape,
    x: ValueId,
    axis: usize,
    first: usize,
    count: usize,
) -> Result<ValueId, TypeError> {
    let mut shape = t.shape(x);
    let mut starts = vec![0; shape.len()];
    (starts[axis], shape[axis]) = (first, count);
    let steps = vec![1; shape.len()];
    t.emit(Op::Slice { starts, steps, shape }, vec![x])
}

/// All but the last axis as one.
fn rows(t: &mut Tape, x: ValueId) -> Result<ValueId, TypeError> {
    let shape = t.shape(x);
    let width = shape.last().copied().unwrap_or(1);
    let count = shape.iter().rev().skip(1).product();
    t.reshape(x, &[count, width])
}

/// Steps before which there is a step, and these: as parts of `x` and of `y`, in the same order.
fn later(
    t: &mut Tape,
    x: ValueId,
    y: ValueId,
    reverse: bool,
) -> Result<(ValueId, ValueId), TypeError> {
    let rest = t.shape(x)[0] - 1;
    let (of_x, of_y) = if reverse { (0, 1) } else { (1, 0) };
    Ok((part(t, x, 0, of_x, rest)?, part(t, y, 0, of_y, rest)?))
}

/// The step that comes first.
fn first(t: &mut Tape, x: ValueId, reverse: bool) -> Result<ValueId, TypeError> {
    let last = t.shape(x)[0] - 1;
    part(t, x, 0, if reverse { last } else { 0 }, 1)
}

/// What came before each step: `initial` before the first one.
fn before(
    t: &mut Tape,
    all: ValueId,
    initial: ValueId,
    reverse: bool,
) -> Result<ValueId, TypeError> {
    let mut shape = t.shape(all);
    let rest = shape[0] - 1;
    shape[0] = 1;
    let initial = t.reshape(initial, &shape)?;
    if rest == 0 {
        return Ok(initial);
    }
    let others = part(t, all, 0, usize::from(reverse), rest)?;
    let parts = if reverse { vec![others, initial] } else { vec![initial, others] };
    t.emit(Op::Concat { axis: 0 }, parts)
}

/// `Σ dᵀ·h` over all steps, where `h` is the state before: `initial`, then those of `y`. Parts
/// along the steps are no copies. The first step adds nothing where it begins with zeros.
fn of_weight(
    t: &mut Tape,
    d: ValueId,
    y: ValueId,
    initial: ValueId,
    reverse: bool,
) -> Result<ValueId, TypeError> {
    let product = Op::MatMul { trans_a: true, trans_b: false };
    let (has_later, has_first) = (t.shape(d)[0] > 1, !is_zero(t.g, initial));
    let of_first = first(t, d, reverse)?;
    let (of_first, initial) = (rows(t, of_first)?, rows(t, initial)?);
    if !has_later {
        return t.emit(product, vec![of_first, initial]);
    }
    let (of_later, states) = later(t, d, y, reverse)?;
    let (of_later, states) = (rows(t, of_later)?, rows(t, states)?);
    let sum = t.emit(product, vec![of_later, states])?;
    if !has_first {
        return Ok(sum);
    }
    let onto = Op::Gemm { alpha: 1.0, beta: 1.0, trans_a: true, trans_b: false };
    t.emit(onto, vec![of_first, initial, sum])
}

/// The gradient of a result; zeros where the loss does not depend on it.
fn given(t: &mut Tape, l: &Local, i: usize, like: ValueId) -> Result<ValueId, TypeError> {
    match l.dy.get(i).copied().flatten() {
        Some(dy) => Ok(dy),
        None => {
            let ty = t.ty(like);
            t.zeros(&ty)
        }
    }
}

/// Gives operands that need one their gradient.
fn give(t: &mut Tape, l: &Local, gradients: &[(usize, ValueId)]) {
    for &(i, d) in gradients {
        if l.wants(i) {
            t.give(l.x[i], d);
        }
    }
}

fn results<const N: usize>(found: Vec<ValueId>) -> Result<[ValueId; N], TypeError> {
    found.try_into().map_err(|_| TypeError("a recurrence's gradient has other results".into()))
}

fn lstm(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Lstm { reverse } = l.op else { return Ok(()) };
    only_states(l)?;
    let (gates, cells) = (t.result(l.node, 1)?, t.result(l.node, 2)?);
    let (r, h0, c0) = (l.x[1], l.x[2], l.x[3]);
    let dy = given(t, l, 0, cells)?;
    let dcells = l.dy.get(2).copied().flatten();
    let mut operands = vec![gates, cells, r, c0, dy];
    operands.extend(dcells);
    operands.extend(l.x.get(4));
    let op = Op::LstmGrad { reverse, dcells: dcells.is_some() };
    let [dpre, dh0, dc0] = results(t.node(op, operands)?)?;
    give(t, l, &[(0, dpre), (2, dh0), (3, dc0)]);
    if l.wants(1) {
        let y = t.result(l.node, 0)?;
        let d = of_weight(t, dpre, y, h0, reverse)?;
        t.give(r, d);
    }
    if l.wants(4) {
        // Input and forget gates see the cells before, output gates those after.
        let n = t.shape(h0)[1];
        let earlier = before(t, cells, c0, reverse)?;
        let mut sums = Vec::new();
        for (gate, seen) in [(0, earlier), (1, cells), (2, earlier)] {
            let d = part(t, dpre, 2, gate * n, n)?;
            let product = t.mul(d, seen)?;
            sums.push(t.sum(product, vec![0, 1], false)?);
        }
        let d = t.emit(Op::Concat { axis: 0 }, sums)?;
        t.give(l.x[4], d);
    }
    Ok(())
}

fn gru(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Gru { reverse, linear_before_reset } = l.op else { return Ok(()) };
    only_states(l)?;
    let (y, gates) = (t.result(l.node, 0)?, t.result(l.node, 1)?);
    let (r, h0) = (l.x[1], l.x[2]);
    let n = t.shape(h0)[1];
    let mut operands = vec![gates, y, r, h0, l.dy()?];
    if linear_before_reset {
        let weight = part(t, r, 0, 2 * n, n)?;
        let states = before(t, y, h0, reverse)?;
        let states = rows(t, states)?;
        let product = Op::Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: true };
        let m = t.emit(product, vec![states, weight, l.x[3]])?;
        let shape = t.shape(y);
        operands.push(t.reshape(m, &shape)?);
    }
    let op = Op::GruGrad { reverse, linear_before_reset };
    let [dpre, dh0] = results(t.node(op, operands)?)?;
    give(t, l, &[(0, dpre), (2, dh0)]);
    if !l.wants(1) && !l.wants(3) {
        return Ok(());
    }
    let reset = part(t, gates, 2, n, n)?;
    let of_hidden = part(t, dpre, 2, 2 * n, n)?;
    // The gradient of the product that was reset; else the product is that of a state which was.
    let of_product = if linear_before_reset { t.mul(of_hidden, reset)? } else { of_hidden };
    if l.wants(3) {
        let d = t.sum(of_product, vec![0, 1], false)?;
        t.give(l.x[3], d);
    }
    if l.wants(1) {
        let of_gates = part(t, dpre, 2, 0, 2 * n)?;
        let of_gates = of_weight(t, of_gates, y, h0, reverse)?;
        let of_rest = if linear_before_reset {
            of_weight(t, of_product, y, h0, reverse)?
        } else {
            let states = before(t, y, h0, reverse)?;
            let states = t.mul(reset, states)?;
            let (d, states) = (rows(t, of_product)?, rows(t, states)?);
            t.emit(Op::MatMul { trans_a: true, trans_b: false }, vec![d, states])?
        };
        let d = t.emit(Op::Concat { axis: 0 }, vec![of_gates, of_rest])?;
        t.give(r, d);
    }
    Ok(())
}

fn rnn(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Rnn { reverse, activation } = l.op else { return Ok(()) };
    let y = t.result(l.node, 0)?;
    let (r, h0) = (l.x[1], l.x[2]);
    let op = Op::RnnGrad { reverse, activation };
    let [dpre, dh0] = results(t.node(op, vec![y, r, l.dy()?])?)?;
    give(t, l, &[(0, dpre), (2, dh0)]);
    if l.wants(1) {
        let d = of_weight(t, dpre, y, h0, reverse)?;
        t.give(r, d);
    }
    Ok(())
}
