//! Gradients of recurrences: of every step, from the last one to the first, a pass over the
//! gates and products that take the gradient to the step before.

use super::address::Shared;
use super::blocks::{BLOCK, map, read, write};
use super::library::Scalar;
use super::number::Float;
use super::product::{Mat, MatMut};
use super::recurrence::{operands, results, scratch};
use super::tasks::for_each;
use super::wide::wide;
use crate::kernel::Call;
use arenic_backends::cpu::tiling::{GRU_STATES, LSTM_GRAD_STATES, RNN_GRAD_STATES};
use arenic_ir::op::{Activation, Extents, Recurrence};

/// Calls `f` for every step, the last one first, with the step before it, if there is one.
fn backwards(of: &Recurrence, reverse: bool, mut f: impl FnMut(usize, Option<usize>)) {
    let mut order = of.order(reverse).rev().peekable();
    while let Some(t) = order.next() {
        f(t, order.peek().copied());
    }
}

/// Writes the gradient of a state that somebody reads.
///
/// # Safety
/// It is valid for the elements of the state.
unsafe fn finish<T: Float>(to: Option<*mut T>, from: &[T]) {
    if let Some(to) = to {
        // SAFETY: the caller's promise; scratch is no result.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }
}

/// Runs the gradient of a recurrence on floats of a type.
pub(super) fn lstm<T: Float + Scalar>(call: &Call, reverse: bool, has_dcells: bool) {
    let of = Recurrence::new(4, call.inputs[0].ty());
    let (n, state) = (of.hidden, of.state());
    let [gates, cells, r, c0, dy] = operands::<T, 5>(call);
    let rest = |i: usize| call.inputs.get(i).map(|x| x.ptr::<T>());
    let dcells = rest(5).filter(|_| has_dcells);
    let peephole = rest(5 + usize::from(has_dcells)).map(|p| Shared::new(p.cast_mut()));
    let [dpre, dh0, dc0] = results::<T, 3>(call);
    let e = Extents { m: of.batch, k: 4 * n, n };
    // SAFETY: the scratch of one call; the weight is only read.
    let ([room, carried], [product]) =
        unsafe { scratch(call, of, LSTM_GRAD_STATES, [(e, Mat::new(r, n, 1))]) };
    carried.fill(T::ZERO);
    let carry = carried.as_mut_ptr();
    backwards(&of, reverse, |t, before| {
        let d = dpre.map_or(room.as_mut_ptr(), |d| d.wrapping_add(4 * t * state));
        let of_step = |x: *const T| x.wrapping_add(t * state);
        let c_before = before.map_or(c0, |t| cells.wrapping_add(t * state));
        let read = [of_step(cells), c_before, of_step(dy), dcells.map_or(dy, of_step)];
        let read = read.map(|x| Shared::new(x.cast_mut()));
        let places = [gates.wrapping_add(4 * t * state).cast_mut(), d, carry].map(Shared::new);
        for_each(of.batch, 16 * 4 * state, |b| {
            let [gates, d, carry] = places.map(Shared::ptr);
            let own = |x: Shared<T>| x.ptr().wrapping_add(b * n).cast_const();
            let row = LstmRow {
                gates: gates.wrapping_add(4 * b * n),
                read: read.map(own),
                has_dcells,
                peephole: peephole.map(|p| p.ptr().cast_const()),
                d: d.wrapping_add(4 * b * n),
                carry: [0, state].map(|at| carry.wrapping_add(at + b * n)),
            };
            // SAFETY: each task has a row of its own.
            unsafe { lstm_row(&row, n) };
        });
        if before.is_some() || dh0.is_some() {
            let (d, to) = (Mat::new(d.cast_const(), 4 * n, 1), MatMut::new(carry, n, 1));
            // SAFETY: within scratch and the tensors.
            unsafe { product.multiply(d, to, false) };
        }
    });
    // SAFETY: results of the state's type.
    unsafe {
        finish(dh0, &carried[..state]);
        finish(dc0, &carried[state..]);
    }
}

/// One sequence's part of a step.
struct LstmRow<T> {
    gates: *const T,
    /// Cells after and before the step, gradients of the state and of the cells after it.
    read: [*const T; 4],
    has_dcells: bool,
    peephole: Option<*const T>,
    /// Gradients of the gates' sums.
    d: *mut T,
    /// Gradients of state and cells that come from the step behind, and go to the one before.
    carry: [*mut T; 2],
}

wide! {
    /// Gradients of the gates' sums, and of the cells before.
    ///
    /// # Safety
    /// Gates and their gradients are valid for `4 · n` elements, the others for `n`, peepholes for
    /// `3 · n`; what is written is nobody else's.
    unsafe fn lstm_row<T: Float>(row: &LstmRow<T>, n: usize) {
        let four = [0, 1, 2, 3].map(|k| k * n);
        for at in (0..n).step_by(BLOCK) {
            let count = BLOCK.min(n - at);
            // SAFETY: the caller's promise.
            let (gates, read_, carry) = unsafe {
                let gates = read(four.map(|k| row.gates.wrapping_add(k)), at, count);
                let carry = read(row.carry.map(|p| p.cast_const()), at, count);
                (gates, read(row.read, at, count), carry)
            };
            let ([i, o, f, g], [c, before, dy, dcells]) = (gates, read_);
            let p = match row.peephole {
                // SAFETY: as above.
                Some(p) => unsafe { read([0, 1, 2].map(|k| p.wrapping_add(k * n)), at, count) },
                None => [[T::ZERO; BLOCK]; 3],
            };
            let [mut of_i, mut of_o, mut of_f, mut of_g] = [[T::ZERO; BLOCK]; 4];
            let [dh, mut dc] = carry;
            if row.has_dcells {
                for l in 0..BLOCK {
                    dc[l] = dc[l].add(dcells[l]);
                }
            }
            for l in 0..BLOCK {
                let dh = dy[l].add(dh[l]);
                let after = c[l].tanh();
                of_o[l] = slope(dh.mul(after), o[l]);
                let flat = T::ONE.sub(after.mul(after));
                let d = dc[l].add(dh.mul(o[l]).mul(flat)).add(of_o[l].mul(p[1][l]));
                of_i[l] = slope(d.mul(g[l]), i[l]);
                of_f[l] = slope(d.mul(before[l]), f[l]);
                of_g[l] = d.mul(i[l]).mul(T::ONE.sub(g[l].mul(g[l])));
                dc[l] = d.mul(f[l]).add(of_i[l].mul(p[0][l])).add(of_f[l].mul(p[2][l]));
            }
            // SAFETY: as above.
            unsafe {
                write(four.map(|k| row.d.wrapping_add(k)), at, count, [of_i, of_o, of_f, of_g]);
                write([row.carry[1]], at, count, [dc]);
            }
        }
    }
}

/// The gradient of a logistic function's operand from its result.
#[inline(always)]
fn slope<T: Float>(d: T, y: T) -> T {
    d.mul(y).mul(T::ONE.sub(y))
}

/// Runs the gradient of a recurrence on floats of a type.
pub(super) fn gru<T: Float + Scalar>(call: &Call, reverse: bool, linear_before_reset: bool) {
    let of = Recurrence::new(3, call.inputs[0].ty());
    let (n, state) = (of.hidden, of.state());
    let [gates, y, r, h0, dy] = operands::<T, 5>(call);
    let m = call.inputs.get(5).map(|m| m.ptr::<T>());
    let [dpre, dh0] = results::<T, 2>(call);
    let e = |gates: usize| Extents { m: of.batch, k: gates * n, n };
    let weight = Mat::new(r, n, 1);
    // SAFETY: as for an LSTM.
    let ([room, carried, product], [of_gates, of_hidden]) =
        unsafe { scratch(call, of, GRU_STATES, [(e(2), weight), (e(1), weight.at(2 * n, 0))]) };
    carried.fill(T::ZERO);
    let (carry, product) = (carried.as_mut_ptr(), product.as_mut_ptr());
    backwards(&of, reverse, |t, before| {
        let d = dpre.map_or(room.as_mut_ptr(), |d| d.wrapping_add(3 * t * state));
        let h_before = before.map_or(h0, |t| y.wrapping_add(t * state));
        let read = [h_before, dy.wrapping_add(t * state), m.unwrap_or(dy).wrapping_add(t * state)];
        let read = read.map(|x| Shared::new(x.cast_mut()));
        let gates = gates.wrapping_add(3 * t * state).cast_mut();
        let places = [gates, d, carry, product].map(Shared::new);
        let rows = |task: &(dyn Fn(&GruRow<T>) + Sync)| {
            for_each(of.batch, 16 * 3 * state, |b| {
                let [gates, d, carry, product] = places.map(Shared::ptr);
                task(&GruRow {
                    gates: gates.wrapping_add(3 * b * n),
                    read: read.map(|x| x.ptr().wrapping_add(b * n).cast_const()),
                    d: d.wrapping_add(3 * b * n),
                    carry: carry.wrapping_add(b * n),
                    product: product.wrapping_add(b * n),
                });
            });
        };
        let of_d = Mat::new(d.cast_const(), 3 * n, 1);
        let of_product = |ptr: *mut T| MatMut::new(ptr, n, 1);
        let goes_on = before.is_some() || dh0.is_some();
        // SAFETY: each task has a row of its own, and products write what nobody reads then.
        unsafe {
            if linear_before_reset {
                rows(&|row| gru_row(row, true, n));
            } else {
                rows(&|row| gru_row(row, false, n));
                of_hidden.multiply(of_d.at(0, 2 * n), of_product(product), false);
                rows(&|row| gru_reset(row, n));
            }
            if goes_on {
                of_gates.multiply(of_d, of_product(carry), true);
            }
            if goes_on && linear_before_reset {
                let d = Mat::new(product.cast_const(), n, 1);
                of_hidden.multiply(d, of_product(carry), true);
            }
        }
    });
    // SAFETY: a result of the state's type.
    unsafe { finish(dh0, carried) };
}

/// One sequence's part of a step.
struct GruRow<T> {
    gates: *const T,
    /// The state before the step, the gradient of the one after it, and what the reset gates
    /// multiplied.
    read: [*const T; 3],
    /// Gradients of the gates' sums.
    d: *mut T,
    /// The gradient of the state that comes from the step behind, and goes to the one before.
    carry: *mut T,
    /// The gradient of what the recurrence's weight gave to the third gate, or of what it read.
    product: *mut T,
}

wide! {
    /// Gradients of the sums of the update gate and of the third one; `linear`, where the product
    /// was reset, those of the reset gate and of the product, too.
    ///
    /// # Safety
    /// Gates and their gradients are valid for `3 · n` elements, the others for `n`; what is
    /// written is nobody else's.
    unsafe fn gru_row<T: Float>(row: &GruRow<T>, linear: bool, n: usize) {
        let three = [0, 1, 2].map(|k| k * n);
        let d = three.map(|k| row.d.wrapping_add(k));
        for at in (0..n).step_by(BLOCK) {
            let count = BLOCK.min(n - at);
            // SAFETY: the caller's promise.
            let ([z, r, new], [h, dy, m], [mut carry]) = unsafe {
                let gates = read(three.map(|k| row.gates.wrapping_add(k)), at, count);
                (gates, read(row.read, at, count), read([row.carry.cast_const()], at, count))
            };
            let [mut of_z, mut of_r, mut of_new, mut of_product] = [[T::ZERO; BLOCK]; 4];
            for l in 0..BLOCK {
                let dh = dy[l].add(carry[l]);
                of_z[l] = slope(dh.mul(h[l].sub(new[l])), z[l]);
                let flat = T::ONE.sub(new[l].mul(new[l]));
                of_new[l] = dh.mul(T::ONE.sub(z[l])).mul(flat);
                of_r[l] = slope(of_new[l].mul(m[l]), r[l]);
                of_product[l] = of_new[l].mul(r[l]);
                carry[l] = dh.mul(z[l]);
            }
            // SAFETY: as above.
            unsafe {
                write([row.carry, d[0], d[2]], at, count, [carry, of_z, of_new]);
                if linear {
                    write([row.product, d[1]], at, count, [of_product, of_r]);
                }
            }
        }
    }
}

wide! {
    /// The gradient of the reset gate's sum, where the state was reset, and what that gives to the
    /// state before.
    ///
    /// # Safety
    /// As for [`gru_row`].
    unsafe fn gru_reset<T: Float>(row: &GruRow<T>, n: usize) {
        let (gate, d) = (row.gates.wrapping_add(n), row.d.wrapping_add(n));
        for at in (0..n).step_by(BLOCK) {
            let count = BLOCK.min(n - at);
            // SAFETY: the caller's promise.
            let [mut r, product, h, mut carry] = unsafe {
                read([gate, row.product.cast_const(), row.read[0], row.carry.cast_const()], at, count)
            };
            for l in 0..BLOCK {
                carry[l] = carry[l].add(product[l].mul(r[l]));
                r[l] = slope(product[l].mul(h[l]), r[l]);
            }
            // SAFETY: as above.
            unsafe { write([row.carry, d], at, count, [carry, r]) };
        }
    }
}

/// Runs the gradient of a recurrence on floats of a type.
pub(super) fn rnn<T: Float + Scalar>(call: &Call, reverse: bool, activation: Activation) {
    let of = Recurrence::new(1, call.inputs[0].ty());
    let (n, state) = (of.hidden, of.state());
    let [y, r, dy] = operands::<T, 3>(call);
    let [dpre, dh0] = results::<T, 2>(call);
    let e = Extents { m: of.batch, k: n, n };
    // SAFETY: as for an LSTM.
    let ([room, carried], [product]) =
        unsafe { scratch(call, of, RNN_GRAD_STATES, [(e, Mat::new(r, n, 1))]) };
    carried.fill(T::ZERO);
    let carry = carried.as_mut_ptr();
    backwards(&of, reverse, |t, before| {
        let d = dpre.map_or(room.as_mut_ptr(), |d| d.wrapping_add(t * state));
        let of_step = |x: *const T| Shared::new(x.wrapping_add(t * state).cast_mut());
        let read = [of_step(y), of_step(dy), Shared::new(carry)];
        let to = Shared::new(d);
        for_each(of.batch, 4 * state, |b| {
            let read = read.map(|x| x.ptr().wrapping_add(b * n).cast_const());
            // SAFETY: each task has a row of its own.
            unsafe { rnn_row(read, to.ptr().wrapping_add(b * n), activation, n) };
        });
        if before.is_some() || dh0.is_some() {
            let (d, to) = (Mat::new(d.cast_const(), n, 1), MatMut::new(carry, n, 1));
            // SAFETY: within scratch and the tensors.
            unsafe { product.multiply(d, to, false) };
        }
    });
    // SAFETY: a result of the state's type.
    unsafe { finish(dh0, carried) };
}

wide! {
    /// The gradient of one sequence's sums.
    ///
    /// # Safety
    /// As for [`blocks::map`](super::blocks::map).
    unsafe fn rnn_row<T: Float>(read: [*const T; 3], to: *mut T, activation: Activation, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            map(read, to, n, &|_: usize, [y, mut dy, carry]: [[T; BLOCK]; 3]| {
                for l in 0..BLOCK {
                    let d = dy[l].add(carry[l]);
                    dy[l] = match activation {
                        Activation::Tanh => d.mul(T::ONE.sub(y[l].mul(y[l]))),
                        Activation::Relu => if y[l] > T::ZERO { d } else { T::ZERO },
                    };
                }
                dy
            });
        }
    }
}
