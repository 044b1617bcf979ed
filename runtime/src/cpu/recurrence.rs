//! `Lstm`, `Gru` and `Rnn`: of every step a product with the state, then a pass over the gates.
//!
//! A step's gates are copied to their place unless they are there already, and then worked on
//! in place: both cases are one.

use super::address::Shared;
use super::blocks::{BLOCK, read, write};
use super::library::Scalar;
use super::number::Float;
use super::product::{Mat, MatMut};
use super::step_product::StepProduct;
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::Call;
use arenic_backends::cpu::tiling::{GRU_STATES, LSTM_STATES};
use arenic_ir::op::{Activation, Extents, Recurrence};

/// Where results begin; `None` if nobody reads one.
pub(super) fn results<T: Float, const K: usize>(call: &Call) -> [Option<*mut T>; K] {
    std::array::from_fn(|o| call.outputs.get(o).copied().flatten().map(|y| y.ptr::<T>()))
}

/// Where operands begin. Results that take their bytes write a step's after they were read.
pub(super) fn operands<T: Float, const K: usize>(call: &Call) -> [*const T; K] {
    std::array::from_fn(|i| call.inputs[i].ptr::<T>())
}

/// A kernel's scratch: parts of so many states, and its products with their matrices.
///
/// # Safety
/// No other slice of the call's scratch is alive. The matrices have the products' extents and are only
/// read.
pub(super) unsafe fn scratch<'a, T: Scalar, const K: usize, const P: usize>(
    call: &Call,
    of: Recurrence,
    states: [usize; K],
    products: [(Extents, Mat<T>); P],
) -> ([&'a mut [T]; K], [StepProduct<T>; P]) {
    let room = |e| StepProduct::<T>::room(of, call.inputs[0].ty().dtype, e);
    let all = states.iter().sum::<usize>() * of.state();
    let packed: usize = products.iter().map(|(e, _)| room(*e)).sum();
    // SAFETY: the caller's promise.
    let mut rest = unsafe { call.scratch.slice_mut::<T>(all + packed) };
    let mut take = |n| rest.split_off_mut(..n).unwrap_or_default();
    let states = states.map(|k| take(k * of.state()));
    // SAFETY: the caller's promise.
    (states, products.map(|(e, b)| unsafe { StepProduct::new(e, b, take(room(e))) }))
}

/// Copies a step's gates to where they are worked on.
///
/// # Safety
/// Both are valid for `n` elements, and equal or disjoint.
unsafe fn bring<T: Float>(from: *const T, to: *mut T, n: usize) {
    if from != to.cast_const() {
        // SAFETY: the caller's promise.
        unsafe { to.copy_from_nonoverlapping(from, n) };
    }
}

/// Runs a recurrence on floats of a type.
pub(super) fn lstm<T: Float + Scalar>(call: &Call, reverse: bool) {
    let of = Recurrence::new(4, call.inputs[0].ty());
    let (n, state) = (of.hidden, of.state());
    let [pre, r, mut h, mut c] = operands::<T, 4>(call);
    let peephole = call.inputs.get(4).map(|p| Shared::new(p.ptr::<T>().cast_mut()));
    let [y, gates, cells] = results::<T, 3>(call);
    let e = Extents { m: of.batch, k: n, n: 4 * n };
    let of_rows = Mat::new(r, n, 1).transposed();
    // SAFETY: the scratch of one call; the weight is only read.
    let ([room, h_room, c_room], [product]) =
        unsafe { scratch(call, of, LSTM_STATES, [(e, of_rows)]) };
    for t in of.order(reverse) {
        let place = |all: Option<*mut T>, each: usize, room: &mut [T]| match all {
            Some(all) => all.wrapping_add(t * each),
            None => room.as_mut_ptr(),
        };
        let a = place(gates, 4 * state, room);
        let (h_next, c_next) = (place(y, state, h_room), place(cells, state, c_room));
        // SAFETY: within the tensors; gates of this step alone may lie where they come from. The
        // product has read the state before it is written.
        unsafe {
            bring(pre.wrapping_add(4 * t * state), a, 4 * state);
            product.multiply(Mat::new(h, n, 1), MatMut::new(a, 4 * n, 1), true);
        }
        let places = [c.cast_mut(), a, c_next, h_next].map(Shared::new);
        for_each(of.batch, 16 * 4 * state, |b| {
            let [c, a, c_next, h_next] = places.map(Shared::ptr);
            let peephole = peephole.map(|p| p.ptr().cast_const());
            let (c, to) = (c.wrapping_add(b * n).cast_const(), [c_next, h_next]);
            // SAFETY: each task has a row of its own.
            unsafe {
                lstm_row(a.add(4 * b * n), c, to.map(|p| p.wrapping_add(b * n)), peephole, n);
            }
        });
        (h, c) = (h_next.cast_const(), c_next.cast_const());
    }
}

wide! {
    /// The gates of one sequence, from sums to activated ones, its next cells and state.
    ///
    /// # Safety
    /// The gates are valid for `4 · n` elements, the others for `n`, peepholes for `3 · n`; what
    /// is written is nobody else's.
    unsafe fn lstm_row<T: Float>(
        a: *mut T,
        c: *const T,
        to: [*mut T; 2],
        peephole: Option<*const T>,
        n: usize,
    ) {
        let gates = [0, 1, 2, 3].map(|k| a.wrapping_add(k * n));
        for at in (0..n).step_by(BLOCK) {
            let count = BLOCK.min(n - at);
            // SAFETY: the caller's promise.
            let ([mut i, mut o, mut f, mut g], [mut c]) =
                unsafe { (read(gates.map(|p| p.cast_const()), at, count), read([c], at, count)) };
            let mut of_o = [T::ZERO; BLOCK];
            if let Some(p) = peephole {
                // SAFETY: as above.
                let p = unsafe { read([0, 1, 2].map(|k| p.wrapping_add(k * n)), at, count) };
                of_o = p[1];
                for l in 0..BLOCK {
                    i[l] = i[l].add(p[0][l].mul(c[l]));
                    f[l] = f[l].add(p[2][l].mul(c[l]));
                }
            }
            for l in 0..BLOCK {
                i[l] = i[l].sigmoid();
                f[l] = f[l].sigmoid();
                g[l] = g[l].tanh();
                c[l] = f[l].mul(c[l]).add(i[l].mul(g[l]));
            }
            if peephole.is_some() {
                for l in 0..BLOCK {
                    o[l] = o[l].add(of_o[l].mul(c[l]));
                }
            }
            let mut h = [T::ZERO; BLOCK];
            for l in 0..BLOCK {
                o[l] = o[l].sigmoid();
                h[l] = o[l].mul(c[l].tanh());
            }
            // SAFETY: as above.
            unsafe {
                write(gates, at, count, [i, o, f, g]);
                write(to, at, count, [c, h]);
            }
        }
    }
}

/// Runs a recurrence on floats of a type.
pub(super) fn gru<T: Float + Scalar>(call: &Call, reverse: bool, linear_before_reset: bool) {
    let of = Recurrence::new(3, call.inputs[0].ty());
    let (n, state) = (of.hidden, of.state());
    let [pre, r, mut h] = operands::<T, 3>(call);
    let bias = call.inputs.get(3).map(|b| Shared::new(b.ptr::<T>().cast_mut()));
    let [y, gates] = results::<T, 2>(call);
    let e = |gates: usize| Extents { m: of.batch, k: n, n: gates * n };
    let of_rows = Mat::new(r, n, 1).transposed();
    // SAFETY: as for an LSTM.
    let ([room, h_room, product], [of_gates, of_hidden]) =
        unsafe { scratch(call, of, GRU_STATES, [(e(2), of_rows), (e(1), of_rows.at(0, 2 * n))]) };
    let product = product.as_mut_ptr();
    for t in of.order(reverse) {
        let a = gates.map_or(room.as_mut_ptr(), |g| g.wrapping_add(3 * t * state));
        let h_next = y.map_or(h_room.as_mut_ptr(), |y| y.wrapping_add(t * state));
        let gate = MatMut::new(a, 3 * n, 1);
        // SAFETY: as for an LSTM.
        unsafe {
            bring(pre.wrapping_add(3 * t * state), a, 3 * state);
            of_gates.multiply(Mat::new(h, n, 1), gate, true);
        }
        let places = [h.cast_mut(), a, product, h_next].map(Shared::new);
        let rows = |task: &(dyn Fn([*mut T; 4]) + Sync)| {
            for_each(of.batch, 16 * 3 * state, |b| {
                let [h, a, product, h_next] = places.map(Shared::ptr);
                let own = |p: *mut T| p.wrapping_add(b * n);
                task([own(h), a.wrapping_add(3 * b * n), own(product), own(h_next)]);
            });
        };
        // SAFETY: each task has a row of its own; the products have read what follows writes.
        unsafe {
            if linear_before_reset {
                of_hidden.multiply(Mat::new(h, n, 1), MatMut::new(product, n, 1), false);
            }
            rows(&|[h, a, product, _]| gru_gates(a, h, product, bias.map(Shared::ptr), n));
            if !linear_before_reset {
                of_hidden.multiply(Mat::new(product, n, 1), gate.at(0, 2 * n), true);
            }
            rows(&|[h, a, _, to]| gru_state(a, h, to, n));
        }
        h = h_next.cast_const();
    }
}

wide! {
    /// Update and reset gates of one sequence, activated. The state times the reset gate goes to
    /// `product`; with a bias, which a reset of the product has, the product with it, times the
    /// reset gate, is added to the third gate.
    ///
    /// # Safety
    /// The gates are valid for `3 · n` elements, the others for `n`; what is written is nobody
    /// else's.
    unsafe fn gru_gates<T: Float>(
        a: *mut T,
        h: *const T,
        product: *mut T,
        bias: Option<*mut T>,
        n: usize,
    ) {
        let gates = [0, 1, 2].map(|k| a.wrapping_add(k * n));
        for at in (0..n).step_by(BLOCK) {
            let count = BLOCK.min(n - at);
            // SAFETY: the caller's promise.
            let ([mut z, mut r, mut hidden], [mut h]) =
                unsafe { (read(gates.map(|p| p.cast_const()), at, count), read([h], at, count)) };
            for l in 0..BLOCK {
                z[l] = z[l].sigmoid();
                r[l] = r[l].sigmoid();
            }
            // SAFETY: as above.
            unsafe {
                if let Some(bias) = bias {
                    let [m, b] = read([product.cast_const(), bias.cast_const()], at, count);
                    for l in 0..BLOCK {
                        hidden[l] = hidden[l].add(r[l].mul(m[l].add(b[l])));
                    }
                } else {
                    for l in 0..BLOCK {
                        h[l] = r[l].mul(h[l]);
                    }
                    write([product], at, count, [h]);
                }
                write(gates, at, count, [z, r, hidden]);
            }
        }
    }
}

wide! {
    /// The third gate of one sequence, activated, and its next state.
    ///
    /// # Safety
    /// As for [`gru_gates`].
    unsafe fn gru_state<T: Float>(a: *mut T, h: *const T, to: *mut T, n: usize) {
        let hidden = a.wrapping_add(2 * n);
        for at in (0..n).step_by(BLOCK) {
            let count = BLOCK.min(n - at);
            // SAFETY: the caller's promise.
            let [z, mut new, mut h] =
                unsafe { read([a.cast_const(), hidden.cast_const(), h], at, count) };
            for l in 0..BLOCK {
                new[l] = new[l].tanh();
                h[l] = T::ONE.sub(z[l]).mul(new[l]).add(z[l].mul(h[l]));
            }
            // SAFETY: as above.
            unsafe { write([hidden, to], at, count, [new, h]) };
        }
    }
}

/// Runs a recurrence on floats of a type.
pub(super) fn rnn<T: Float + Scalar>(call: &Call, reverse: bool, activation: Activation) {
    let of = Recurrence::new(1, call.inputs[0].ty());
    let (n, state) = (of.hidden, of.state());
    let [pre, r, mut h] = operands::<T, 3>(call);
    let [Some(y)] = results::<T, 1>(call) else { return };
    let e = Extents { m: of.batch, k: n, n };
    // SAFETY: as for an LSTM.
    let ([], [product]) = unsafe { scratch(call, of, [], [(e, Mat::new(r, n, 1).transposed())]) };
    for t in of.order(reverse) {
        let next = y.wrapping_add(t * state);
        // SAFETY: as for an LSTM; the state that is read is of another step.
        unsafe {
            bring(pre.wrapping_add(t * state), next, state);
            product.multiply(Mat::new(h, n, 1), MatMut::new(next, n, 1), true);
        }
        let place = Shared::new(next);
        for_each(of.batch, 8 * state, |b| {
            // SAFETY: each task has a row of its own.
            activate(unsafe { place.slice(b * n, n) }, activation);
        });
        h = next.cast_const();
    }
}

wide! {
    /// The next state of one sequence, from its sums.
    fn activate<T: Float>(row: &mut [T], activation: Activation) {
        match activation {
            Activation::Tanh => row.iter_mut().for_each(|x| *x = x.tanh()),
            Activation::Relu => row.iter_mut().for_each(|x| *x = x.larger(T::ZERO)),
        }
    }
}
