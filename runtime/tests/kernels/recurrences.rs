//! Recurrences against plain loops, and their gradients against differences of these.

use super::*;
use arenic_ir::op::Activation;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The results of a recurrence, an element at a time.
fn plain(op: &Op, x: &[&Tensor]) -> Vec<Vec<f64>> {
    let (pre, r) = (x[0], x[1]);
    let (steps, batch, n) = (pre.ty.shape[0], pre.ty.shape[1], r.ty.shape[1]);
    let gates = pre.ty.shape[2] / n;
    let reverse = matches!(
        op,
        Op::Lstm { reverse: true } | Op::Gru { reverse: true, .. } | Op::Rnn { reverse: true, .. }
    );
    let (mut y, mut kept) = (vec![0.0; steps * batch * n], vec![0.0; pre.values.len()]);
    let mut cells = y.clone();
    for b in 0..batch {
        let mut h = x[2].values[b * n..][..n].to_vec();
        let mut c = match op {
            Op::Lstm { .. } => x[3].values[b * n..][..n].to_vec(),
            _ => Vec::new(),
        };
        for i in 0..steps {
            let t = if reverse { steps - 1 - i } else { i };
            let at = |gate: usize, j: usize| (t * batch + b) * gates * n + gate * n + j;
            let given = |gate, j| pre.values[at(gate, j)];
            let product = |gate: usize, j: usize, h: &[f64]| -> f64 {
                (0..n).map(|k| r.values[(gate * n + j) * n + k] * h[k]).sum()
            };
            let sum = |gate, j| given(gate, j) + product(gate, j, &h);
            let mut next = h.clone();
            for j in 0..n {
                match op {
                    Op::Lstm { .. } => {
                        let p = |k: usize| x.get(4).map_or(0.0, |p| p.values[k * n + j]);
                        let i = sigmoid(sum(0, j) + p(0) * c[j]);
                        let f = sigmoid(sum(2, j) + p(2) * c[j]);
                        let g = sum(3, j).tanh();
                        c[j] = f * c[j] + i * g;
                        let o = sigmoid(sum(1, j) + p(1) * c[j]);
                        next[j] = o * c[j].tanh();
                        [i, o, f, g].iter().enumerate().for_each(|(k, v)| kept[at(k, j)] = *v);
                    }
                    Op::Gru { linear_before_reset, .. } => {
                        let (z, reset) = (sigmoid(sum(0, j)), sigmoid(sum(1, j)));
                        let new = if *linear_before_reset {
                            given(2, j) + reset * (product(2, j, &h) + x[3].values[j])
                        } else {
                            let turned: Vec<f64> =
                                (0..n).map(|k| sigmoid(sum(1, k)) * h[k]).collect();
                            given(2, j) + product(2, j, &turned)
                        };
                        let new = new.tanh();
                        next[j] = (1.0 - z) * new + z * h[j];
                        [z, reset, new].iter().enumerate().for_each(|(k, v)| kept[at(k, j)] = *v);
                    }
                    Op::Rnn { activation: Activation::Tanh, .. } => next[j] = sum(0, j).tanh(),
                    _ => next[j] = sum(0, j).max(0.0),
                }
            }
            h = next;
            let row = (t * batch + b) * n;
            y[row..row + n].copy_from_slice(&h);
            if !c.is_empty() {
                cells[row..row + n].copy_from_slice(&c);
            }
        }
    }
    match op {
        Op::Lstm { .. } => vec![y, kept, cells],
        Op::Gru { .. } => vec![y, kept],
        _ => vec![y],
    }
}

/// A recurrence with its operands: steps, batch, hidden units.
fn recurrence(r: &mut Random, dtype: DType, [t, b, n]: [usize; 3]) -> (Op, Vec<Tensor>) {
    let reverse = r.chance();
    let (op, gates) = match r.range(0, 4) {
        0 | 1 => (Op::Lstm { reverse }, 4),
        2 => (Op::Gru { reverse, linear_before_reset: false }, 3),
        3 => (Op::Gru { reverse, linear_before_reset: true }, 3),
        _ => {
            let activation = r.choose(&[Activation::Tanh, Activation::Relu]);
            (Op::Rnn { reverse, activation }, 1)
        }
    };
    let mut weight = r.tensor(dtype, [gates * n, n]);
    let scale = 1.5 / (n as f64).sqrt();
    weight.values.iter_mut().for_each(|v| *v = narrow(dtype, *v * scale));
    let mut x = vec![r.tensor(dtype, [t, b, gates * n]), weight, r.tensor(dtype, [b, n])];
    if let Op::Lstm { .. } = op {
        x.push(r.tensor(dtype, [b, n]));
        if r.chance() {
            x.push(r.tensor(dtype, [3 * n]));
        }
    }
    if let Op::Gru { linear_before_reset: true, .. } = op {
        x.push(r.tensor(dtype, [n]));
    }
    (op, x)
}

/// A number that the type holds.
fn narrow(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F32 { f64::from(x as f32) } else { x }
}

/// Small ones, and some whose products go by the packing library or are cut into tiles.
fn extents(r: &mut Random, case: usize) -> [usize; 3] {
    match case {
        0 => [1, 1, 1],
        1 => [3, 40, 70],
        2 => [2, 9, 130],
        // Of `f32`, with a packed weight: several blocks of rows and of columns.
        3..10 => [5, 11, 53],
        _ => [r.range(1, 5), r.range(0, 6), r.range(1, 20)],
    }
}

#[test]
fn recurrences() {
    let mut r = Random(90);
    for case in 0..160 {
        let dtype = r.choose(&[DType::F32, DType::F64]);
        let extents = extents(&mut r, case % 40);
        let (op, x) = recurrence(&mut r, dtype, extents);
        let x: Vec<&Tensor> = x.iter().collect();
        let tolerance = if dtype == DType::F32 { 1e-5 } else { 1e-12 };
        for (found, want) in all(&op, &x).iter().zip(plain(&op, &x)) {
            assert_close(found, &want, tolerance, &(&op, extents));
        }
    }
}

/// The gradient of a recurrence with its operands, from results and gradients of these.
fn gradient(op: &Op, x: &[&Tensor], dy: &Tensor, dcells: Option<&Tensor>) -> (Op, Vec<Tensor>) {
    let dtype = x[0].ty.dtype;
    let results = plain(op, x);
    let like = |values: &[f64], ty: &TensorType| {
        let values = values.iter().map(|&v| narrow(dtype, v)).collect();
        Tensor { ty: ty.clone(), values }
    };
    match *op {
        Op::Lstm { reverse } => {
            let [gates, cells] = [(1, &x[0].ty), (2, &dy.ty)].map(|(i, ty)| like(&results[i], ty));
            let mut operands = vec![gates, cells, x[1].clone(), x[3].clone(), dy.clone()];
            operands.extend(dcells.cloned());
            operands.extend(x.get(4).map(|p| (*p).clone()));
            (Op::LstmGrad { reverse, dcells: dcells.is_some() }, operands)
        }
        Op::Gru { reverse, linear_before_reset } => {
            let (y, gates) = (like(&results[0], &dy.ty), like(&results[1], &x[0].ty));
            let mut operands = vec![gates, y, x[1].clone(), x[2].clone(), dy.clone()];
            if linear_before_reset {
                operands.push(like(&reset_products(x, &results[0], reverse), &dy.ty));
            }
            (Op::GruGrad { reverse, linear_before_reset }, operands)
        }
        Op::Rnn { reverse, activation } => {
            let operands = vec![like(&results[0], &dy.ty), x[1].clone(), dy.clone()];
            (Op::RnnGrad { reverse, activation }, operands)
        }
        _ => unreachable!("no recurrence"),
    }
}

/// What the reset gates of a GRU multiplied, where that is the product.
fn reset_products(x: &[&Tensor], y: &[f64], reverse: bool) -> Vec<f64> {
    let (steps, batch, n) = (x[0].ty.shape[0], x[0].ty.shape[1], x[1].ty.shape[1]);
    let mut m = Vec::new();
    for t in 0..steps {
        for b in 0..batch {
            let first = if reverse { steps - 1 } else { 0 };
            let before = if reverse { t + 1 } else { t.wrapping_sub(1) };
            let h = match t == first {
                true => &x[2].values[b * n..][..n],
                false => &y[(before * batch + b) * n..][..n],
            };
            for j in 0..n {
                let row = &x[1].values[(2 * n + j) * n..][..n];
                let product: f64 = row.iter().zip(h).map(|(a, b)| a * b).sum();
                m.push(product + x[3].values[j]);
            }
        }
    }
    m
}

#[test]
fn gradients_are_the_slopes_of_recurrences() {
    let mut r = Random(91);
    for case in 0..120 {
        let dtype = r.choose(&[DType::F32, DType::F64]);
        let extents = match case {
            0 => [2, 20, 40],
            // With a packed weight.
            1..8 => [4, 9, 34],
            _ => [r.range(1, 4), r.range(1, 3), r.range(1, 18)],
        };
        let (op, x) = recurrence(&mut r, dtype, extents);
        let [t, b, n] = extents;
        let dy = r.tensor(dtype, [t, b, n]);
        let dcells =
            (matches!(op, Op::Lstm { .. }) && r.chance()).then(|| r.tensor(dtype, [t, b, n]));
        let x: Vec<&Tensor> = x.iter().collect();
        let (of_op, operands) = gradient(&op, &x, &dy, dcells.as_ref());
        let found = all(&of_op, &operands.iter().collect::<Vec<_>>());
        let loss = |x: &[&Tensor]| {
            let results = plain(&op, x);
            let dot =
                |y: &[f64], dy: &Tensor| y.iter().zip(&dy.values).map(|(a, b)| a * b).sum::<f64>();
            dot(&results[0], &dy) + dcells.as_ref().map_or(0.0, |d| dot(&results[2], d))
        };
        // Of large ones a few elements.
        for (found, k) in found.iter().zip([0, 2, 3]) {
            for _ in 0..found.values.len().min(25) {
                let i = r.range(0, found.values.len() - 1);
                let at = |by: f64| {
                    let mut moved = x[k].clone();
                    moved.values[i] += by;
                    let mut operands = x.clone();
                    operands[k] = &moved;
                    loss(&operands)
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                let off = (found.values[i] - slope).abs() / slope.abs().max(1.0);
                let tolerance = if dtype == DType::F32 { 1e-4 } else { 1e-8 };
                assert!(off <= tolerance, "{of_op:?}: {k}, {i}: {}, not {slope}", found.values[i]);
            }
        }
    }
}

/// Operands for the tests of cuts.
pub(super) fn any(r: &mut Random) -> (Op, Vec<Tensor>) {
    let extents = [r.range(1, 5), r.range(20, 40), r.range(1, 50)];
    let (op, x) = recurrence(r, DType::F32, extents);
    if r.chance() {
        return (op, x);
    }
    let [t, b, n] = extents;
    let (dy, dcells) = (r.tensor(DType::F32, [t, b, n]), r.tensor(DType::F32, [t, b, n]));
    gradient(&op, &x.iter().collect::<Vec<_>>(), &dy, r.chance().then_some(&dcells))
}
