//! `Attention` and its gradient: scores are products of a block of queries with all keys, which
//! become probabilities where they are.
//!
//! A block stays in its lane's scratch, and so does, for gradients, what becomes the gradient of
//! its scores. Gradients compute scores as the forward part does, block by block with the same
//! products, so that they have the same bits: with a mask of −1e9 the next number is 64 further.

use super::address::Shared;
use super::blocks;
use super::dispatch::for_float;
use super::library::Scalar;
use super::matmul::batches;
use super::nest::Nest;
use super::number::Float;
use super::product::{Mat, MatMut, dot, one};
use super::random::Dropped;
use super::reduce::largest;
use super::softmax::{self, BLOCK};
use super::tasks::{CHEAP, for_each};
use super::wide::wide;
use crate::kernel::{Call, Destination, Element, Operand};
use arenic_backends::cpu::attention::{self, Attention, tiling};
use arenic_backends::cpu::sums::Route;
use arenic_ir::DType;
use arenic_ir::op::{AttentionSpec, Extents, Matrices};

/// Runs an `Attention`.
pub(super) fn attention(spec: AttentionSpec, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => forward::<T>(call, spec));
}

/// Runs an `AttentionGrad`, perhaps with the attention's result among its operands.
pub(super) fn gradient(spec: AttentionSpec, has_result: bool, call: &Call) {
    for_float!(call.inputs[0].ty().dtype, T => gradients::<T>(call, spec, has_result));
}

/// What scores are computed from.
struct Scores<T> {
    spec: AttentionSpec,
    scale: T,
    cap: Option<T>,
    tiling: Attention,
    /// Where matrices are in queries, keys, values and the result.
    matrices: [Matrices; 4],
    q: Tensor<T>,
    k: Tensor<T>,
    /// The extents of the batch, heads included.
    batch: Vec<usize>,
    masks: Vec<Mask<T>>,
    dropped: Option<Dropped<T>>,
}

/// The matrices of a tensor of queries, keys, values or results.
#[derive(Clone, Copy)]
struct Tensor<T> {
    first: Shared<T>,
    matrices: Matrices,
}

impl<T: Element> Tensor<T> {
    fn operand(x: &Operand, matrices: Matrices) -> Self {
        Tensor { first: Shared::new(x.ptr::<T>().cast_mut()), matrices }
    }

    fn result(y: Destination, matrices: Matrices) -> Self {
        Tensor { first: Shared::new(y.ptr::<T>()), matrices }
    }

    /// A row of a matrix, and those after it.
    fn rows(&self, matrix: usize, row: usize) -> MatMut<T> {
        let at = self.matrices.offset(matrix) + row * self.matrices.row;
        MatMut::new(self.first.ptr().wrapping_add(at), self.matrices.row, 1)
    }

    /// The same, to be read.
    fn read(&self, matrix: usize, row: usize) -> Mat<T> {
        let rows = self.rows(matrix, row);
        Mat::new(rows.ptr.cast_const(), self.matrices.row, 1)
    }
}

/// The mask as matrices whose broadcast axes have stride 0.
struct Mask<T> {
    matrix: Mat<T>,
    batch: Nest<1>,
}

impl<T: Float> Mask<T> {
    /// Of scores of such a batch.
    fn new(mask: &Operand, batch: &[usize]) -> Self {
        let shape = &mask.ty().shape;
        let (rows, cols) = match shape[..] {
            [] => (1, 1),
            [cols] => (1, cols),
            [.., rows, cols] => (rows, cols),
        };
        let stride = |extent: usize, s: usize| if extent == 1 { 0 } else { s };
        let matrix = Mat::new(mask.ptr::<T>(), stride(rows, cols), stride(cols, 1));
        Mask { matrix, batch: batches(shape, batch, rows * cols) }
    }
}

/// The gradient of a mask, to which every batch that shares a matrix of it adds its own.
struct MaskSums<T> {
    /// The result, which is the first part's sums, too.
    result: Shared<T>,
    /// The sums of the other parts.
    others: Shared<T>,
    batch: Nest<1>,
    tiling: Attention,
    of: attention::MaskSums,
}

impl<T: Float> MaskSums<T> {
    /// Zeros, for scores of such a batch.
    fn new(
        y: &Destination,
        others: Shared<T>,
        batch: &[usize],
        tiling: Attention,
        of: attention::MaskSums,
    ) -> Self {
        let result = Shared::new(y.ptr::<T>());
        let shape = &y.ty().shape;
        let batch = batches(shape, batch, tiling.queries * tiling.keys);
        let sums = MaskSums { result, others, batch, tiling, of };
        let elements = sums.elements();
        for_each(of.parts, of.parts * elements, |part| {
            // SAFETY: all bits zero are a number; the result and the scratch are this call's, and no other task
            // has this part.
            unsafe { sums.part(part).write_bytes(0, elements) };
        });
        sums
    }

    fn elements(&self) -> usize {
        self.tiling.mask_elements(self.of.matrices)
    }

    /// The sums of a part.
    fn part(&self, part: usize) -> *mut T {
        match part.checked_sub(1) {
            None => self.result.ptr(),
            Some(other) => self.others.ptr().wrapping_add(other * self.elements()),
        }
    }

    /// Which part the terms of a unit belong to.
    fn part_of(&self, unit: usize) -> usize {
        unit * self.of.parts / (self.tiling.batch * self.tiling.parts)
    }

    /// A number that units have in common where they may add to the same elements, so that one
    /// lane has them all, one after another.
    fn order_of(&self, unit: usize) -> usize {
        let t = &self.tiling;
        let (of_keys, part) = (unit / t.parts, unit % t.parts);
        let matrix = self.batch.offset(of_keys * t.group) / (t.queries * t.keys).max(1);
        // Parts of an attention have other queries of one matrix; of several, they may have the same.
        let sum = if t.group == 1 { matrix * t.parts + part } else { matrix };
        self.part_of(unit) * self.of.lanes + sum
    }

    /// Adds the gradients of a row of scores to the sums of a unit's part.
    ///
    /// # Safety
    /// The row has `keys` elements, and no other lane adds to the block's rows of that part.
    unsafe fn add(&self, unit: usize, b: Block, row: usize, ds: *const T) {
        let at = self.batch.offset(b.batch) + (b.first + row) * self.tiling.keys;
        let sums = self.part(self.part_of(unit)).wrapping_add(at);
        // SAFETY: the caller's promise.
        unsafe {
            let sums = std::slice::from_raw_parts_mut(sums, b.keys);
            add_to(sums, std::slice::from_raw_parts(ds, b.keys));
        }
    }

    /// Adds up the sums of all parts in the result, once they are there.
    fn finish(&self) {
        let (parts, all) = (self.of.parts, self.elements());
        if parts == 1 {
            return;
        }
        for_each(all.div_ceil(CHEAP), parts * all, |task| {
            let (first, count) = (task * CHEAP, CHEAP.min(all - task * CHEAP));
            // SAFETY: each task has elements of its own, which no lane adds to any more.
            unsafe {
                let y = std::slice::from_raw_parts_mut(self.result.ptr().add(first), count);
                for part in 1..parts {
                    let x = self.part(part).add(first);
                    add_to(y, std::slice::from_raw_parts(x, count));
                }
            }
        });
    }
}

/// A block of queries.
#[derive(Clone, Copy)]
struct Block {
    /// Which matrix of queries.
    batch: usize,
    /// Which one of keys and values.
    of_keys: usize,
    /// The first query, and how many there are.
    first: usize,
    rows: usize,
    /// Keys that any of them has.
    keys: usize,
}

impl<T: Scalar + Float> Scores<T> {
    fn new(call: &Call, spec: AttentionSpec, masks: &[Operand]) -> Self {
        let types = [0, 1, 2].map(|i| call.inputs[i].ty());
        let (tiling, matrices) = (tiling(&spec, &types), spec.matrices(&types));
        let tensor = |i: usize| Tensor::operand(&call.inputs[i], matrices[i]);
        let [q, ..] = &spec.heads_first(&types);
        let batch = q.shape[..q.rank() - 2].to_vec();
        // Dropout counts all scores, those of keys that a causal attention leaves out, too.
        let all = tiling.batch * tiling.group * tiling.queries * tiling.keys;
        Scores {
            spec,
            scale: T::from_f64(spec.scale),
            cap: spec.softcap.map(T::from_f64),
            tiling,
            matrices,
            q: tensor(0),
            k: tensor(1),
            masks: masks.iter().map(|m| Mask::new(m, &batch)).collect(),
            batch,
            dropped: spec.dropout.map(|dropout| Dropped::new(&dropout, call.draw, all)),
        }
    }

    /// One of the blocks of all queries that meet a matrix of keys.
    fn block(&self, of_keys: usize, block: usize) -> Block {
        let t = &self.tiling;
        let batch = of_keys * t.group + block / t.blocks;
        let first = block % t.blocks * t.rows;
        let rows = t.rows.min(t.queries - first);
        Block { batch, of_keys, first, rows, keys: self.keys(first + rows) }
    }

    /// Keys of the queries before `end`.
    fn keys(&self, end: usize) -> usize {
        if self.spec.causal { self.tiling.keys.min(end) } else { self.tiling.keys }
    }

    /// Computes a block of scores, row by row; those that do not count are anything.
    ///
    /// # Safety
    /// The operands are as `infer` checked them, and nobody else uses `s`, which has room for
    /// `rows · keys` elements.
    unsafe fn compute(&self, b: Block, s: *mut T) {
        // SAFETY: the caller's promise.
        unsafe {
            self.products(b, s);
            if let Some(cap) = self.cap {
                bound(s, cap, b.rows * b.keys);
            }
        }
        for mask in &self.masks {
            for i in 0..b.rows {
                let row = mask.matrix.at(b.first + i, 0);
                let row = Mat { ptr: row.ptr.wrapping_add(mask.batch.offset(b.batch)), ..row };
                // SAFETY: a row of the mask, which broadcasts to the scores.
                unsafe { add_row(s.add(i * b.keys), row.ptr, row.cols, b.keys) };
            }
        }
    }

    /// Computes a block of scores without mask or bound.
    ///
    /// # Safety
    /// As for `compute`.
    unsafe fn products(&self, b: Block, s: *mut T) {
        let e = Extents { m: b.rows, k: self.tiling.depth, n: b.keys };
        let operands = (self.q.read(b.batch, b.first), self.k.read(b.of_keys, 0).transposed());
        // SAFETY: the caller's promise.
        unsafe { one(Route::of(e), e, self.scale, operands, false, MatMut::new(s, b.keys, 1)) };
    }

    /// Drops of a block of probabilities, or of their gradients.
    ///
    /// # Safety
    /// Nobody else uses `p`, which has `rows · keys` elements.
    unsafe fn drop_of(&self, b: Block, p: *mut T) {
        let (Some(dropped), t) = (self.dropped, &self.tiling) else { return };
        for i in 0..b.rows {
            let first = (b.batch * t.queries + b.first + i) * t.keys;
            // SAFETY: the caller's promise.
            unsafe { dropped.of_row(first, p.add(i * b.keys), b.keys) };
        }
    }

    /// True for a row that gives zero: its maximum says that every score is −∞.
    fn is_zero(&self, max: T) -> bool {
        self.spec.zero_rows && max == T::LOWEST
    }
}

fn forward<T: Scalar + Float>(call: &Call, spec: AttentionSpec) {
    let scores = Scores::<T>::new(call, spec, &call.inputs[3..]);
    let t = scores.tiling;
    let [_, _, of_v, of_o] = scores.matrices;
    let v = Tensor::<T>::operand(&call.inputs[2], of_v);
    let o = call.outputs[0].map(|y| Tensor::<T>::result(y, of_o));
    let [max, sum] = [1, 2].map(|i| call.outputs[i].map(|y| Shared::new(y.ptr::<T>())));
    // SAFETY: the only slice of this call's scratch.
    let room = unsafe { call.scratch.slice_mut::<T>(t.forward_elements()) };
    let room = Shared::new(room.as_mut_ptr());
    let blocks = t.group * t.blocks;
    let all = t.batch * t.group * t.queries * t.keys;
    let work = all.saturating_mul((t.depth + t.width) / 16 + 8);
    for_each(t.lanes, work, |lane| {
        let s = room.ptr().wrapping_add(lane * t.block());
        for unit in (lane..t.batch * blocks).step_by(t.lanes) {
            let b = scores.block(unit / blocks, unit % blocks);
            let first = b.batch * t.queries + b.first;
            // SAFETY: the scratch is this lane's, the rows of results are this block's; the
            // types of all operands were checked by `infer`.
            unsafe {
                scores.compute(b, s);
                for i in 0..b.rows {
                    let n = scores.keys(b.first + i + 1);
                    let row = s.add(i * b.keys);
                    let of_row = exponentials(row, n, b.keys, spec.zero_rows);
                    for (y, x) in [max, sum].into_iter().zip(of_row) {
                        if let Some(y) = y {
                            y.ptr().add(first + i).write(x);
                        }
                    }
                    if o.is_some() {
                        let factor =
                            if scores.is_zero(of_row[0]) { T::ZERO } else { T::ONE.div(of_row[1]) };
                        scale_row(row, factor, n);
                    }
                }
                let Some(o) = o else { continue };
                scores.drop_of(b, s);
                let e = Extents { m: b.rows, k: b.keys, n: t.width };
                let p = Mat::new(s.cast_const(), b.keys, 1);
                let values = v.read(b.of_keys, 0);
                one(Route::of(e), e, T::ONE, (p, values), false, o.rows(b.batch, b.first));
            }
        }
    });
}

fn gradients<T: Scalar + Float>(call: &Call, spec: AttentionSpec, has_result: bool) {
    let masks = 6 + usize::from(has_result);
    let scores = Scores::<T>::new(call, spec, &call.inputs[masks..]);
    let t = scores.tiling;
    let of = scores.matrices;
    let v = Tensor::<T>::operand(&call.inputs[2], of[2]);
    let dy = Tensor::<T>::operand(&call.inputs[5], of[3]);
    let result = has_result.then(|| Tensor::<T>::operand(&call.inputs[6], of[3]));
    let [max, sum] = [3, 4].map(|i| Mat::new(call.inputs[i].ptr::<T>(), 1, 1));
    let [dq, dk, dv] = [0, 1, 2].map(|i| {
        let y = call.outputs[if spec.packed { 0 } else { i }];
        y.map(|y| Tensor::<T>::result(y, of[i]))
    });
    let of_mask = call.outputs.get(spec.gradients()).copied().flatten();
    let of_mask = of_mask.map(|y| (y, t.mask_sums(call.inputs[masks].ty())));
    let elements = t.gradient_elements(of_mask.map(|(_, sums)| sums));
    // SAFETY: the only slice of this call's scratch.
    let room = unsafe { call.scratch.slice_mut::<T>(elements) };
    let room = Shared::new(room.as_mut_ptr());
    let after = |at: *mut T, elements: usize| Shared::new(at.wrapping_add(elements));
    let of_keys = after(room.ptr(), 2 * t.forward_elements());
    let of_values = after(of_keys.ptr(), t.partial_elements(t.depth));
    let others = after(of_values.ptr(), t.partial_elements(t.width));
    let partial = [of_keys, of_values];
    let of_mask = of_mask.map(|(y, sums)| MaskSums::<T>::new(&y, others, &scores.batch, t, sums));
    let blocks = t.group * t.blocks;
    let all = t.batch * t.group * t.queries * t.keys;
    let work = all.saturating_mul((3 * t.depth + 2 * t.width) / 16 + 16);
    // Where a part of an attention adds up gradients of keys or values.
    let sums = |y: Option<Tensor<T>>, partial: Shared<T>, unit: usize, width: usize| match t.parts {
        1 => y.map(|y| y.rows(unit, 0)),
        _ => y.map(|_| MatMut::new(partial.ptr().wrapping_add(unit * t.keys * width), width, 1)),
    };
    for_each(t.lanes, work, |lane| {
        let p = room.ptr().wrapping_add(2 * lane * t.block());
        let ds = p.wrapping_add(t.block());
        let lane_of = |unit: usize| of_mask.as_ref().map_or(unit, |m| m.order_of(unit)) % t.lanes;
        for unit in (0..t.batch * t.parts).filter(|&unit| lane_of(unit) == lane) {
            let (batch, part) = (unit / t.parts, unit % t.parts);
            let dk = sums(dk, partial[0], unit, t.depth);
            let dv = sums(dv, partial[1], unit, t.width);
            for (y, width) in [(dk, t.depth), (dv, t.width)] {
                let Some(y) = y else { continue };
                for row in 0..t.keys {
                    // SAFETY: a row of this unit's results, all bits zero being a number.
                    unsafe { y.at(row, 0).ptr.write_bytes(0, width) };
                }
            }
            for block in part * blocks / t.parts..(part + 1) * blocks / t.parts {
                let b = scores.block(batch, block);
                let first = b.batch * t.queries + b.first;
                let tile = |x: *mut T| Mat::new(x.cast_const(), b.keys, 1);
                let dy = dy.read(b.batch, b.first);
                let result = result.map(|o| o.read(b.batch, b.first));
                // SAFETY: the scratch is this lane's, results are this unit's or this block's;
                // the types of all operands were checked by `infer`.
                unsafe {
                    scores.compute(b, p);
                    for i in 0..b.rows {
                        let [max, sum] = [max, sum].map(|x| *x.at(first + i, 0).ptr);
                        let n = if scores.is_zero(max) { 0 } else { scores.keys(b.first + i + 1) };
                        probabilities(p.add(i * b.keys), n, b.keys, [max, T::ONE.div(sum)]);
                    }
                    if let Some(dv) = dv {
                        // What is dropped here is still needed below.
                        let kept = if scores.dropped.is_some() { ds } else { p };
                        if kept == ds {
                            ds.copy_from_nonoverlapping(p, b.rows * b.keys);
                            scores.drop_of(b, ds);
                        }
                        let e = Extents { m: b.keys, k: b.rows, n: t.width };
                        one(Route::of(e), e, T::ONE, (tile(kept).transposed(), dy), true, dv);
                    }
                    if dq.is_none() && dk.is_none() && of_mask.is_none() {
                        continue;
                    }
                    let e = Extents { m: b.rows, k: t.width, n: b.keys };
                    let values = v.read(b.of_keys, 0).transposed();
                    one(Route::of(e), e, T::ONE, (dy, values), false, MatMut::new(ds, b.keys, 1));
                    scores.drop_of(b, ds);
                    for i in 0..b.rows {
                        let (at, n) = (i * b.keys, scores.keys(b.first + i + 1));
                        let scale = if of_mask.is_some() { T::ONE } else { scores.scale };
                        let rows = result.map(|o| [o, dy].map(|x| x.at(i, 0).ptr));
                        let total = rows.map(|[o, dy]| inner_product(o, dy, t.width));
                        score_gradients(p.add(at), ds.add(at), [n, b.keys], total, scale);
                        if let Some(of_mask) = &of_mask {
                            of_mask.add(unit, b, i, ds.add(at));
                            scale_row(ds.add(at), scores.scale, b.keys);
                        }
                    }
                    if let Some(cap) = scores.cap {
                        // The probabilities are done with.
                        scores.products(b, p);
                        multiply_by_slope(ds, p, cap, b.rows * b.keys);
                    }
                    if let Some(dq) = dq {
                        let e = Extents { m: b.rows, k: b.keys, n: t.depth };
                        let (k, dq) = (scores.k.read(b.of_keys, 0), dq.rows(b.batch, b.first));
                        one(Route::of(e), e, T::ONE, (tile(ds), k), false, dq);
                    }
                    if let Some(dk) = dk {
                        let e = Extents { m: b.keys, k: b.rows, n: t.depth };
                        let q = scores.q.read(b.batch, b.first);
                        one(Route::of(e), e, T::ONE, (tile(ds).transposed(), q), true, dk);
                    }
                }
            }
        }
    });
    if let Some(of_mask) = &of_mask {
        of_mask.finish();
    }
    if t.parts > 1 {
        for (y, partial, width) in [(dk, partial[0], t.depth), (dv, partial[1], t.width)] {
            let (Some(y), size) = (y, t.keys * width) else { continue };
            for_each(t.batch, t.batch * t.parts * size, |i| {
                for row in 0..t.keys {
                    let of_part = |part: usize| (i * t.parts + part) * size + row * width;
                    // SAFETY: written above; each task has results of its own.
                    unsafe {
                        let y = std::slice::from_raw_parts_mut(y.rows(i, row).ptr, width);
                        y.copy_from_slice(partial.slice(of_part(0), width));
                        for part in 1..t.parts {
                            add_to(y, partial.slice(of_part(part), width));
                        }
                    }
                }
            });
        }
    }
}

wide! {
    /// Bounds scores: `cap · tanh(s / cap)`.
    ///
    /// # Safety
    /// Nobody else uses the `n` elements.
    unsafe fn bound<T: Float>(s: *mut T, cap: T, n: usize) {
        // SAFETY: the caller's promise.
        for s in unsafe { std::slice::from_raw_parts_mut(s, n) } {
            *s = s.div(cap).tanh().mul(cap);
        }
    }
}

wide! {
    /// Multiplies gradients of bounded scores by the bound's slope, `1 − tanh²(s / cap)`.
    ///
    /// # Safety
    /// Both are valid for `n` elements and disjoint; nobody else uses `ds`.
    unsafe fn multiply_by_slope<T: Float>(ds: *mut T, s: *const T, cap: T, n: usize) {
        // SAFETY: the caller's promise.
        let (ds, s) = unsafe {
            (std::slice::from_raw_parts_mut(ds, n), std::slice::from_raw_parts(s, n))
        };
        for (ds, &s) in ds.iter_mut().zip(s) {
            let t = s.div(cap).tanh();
            *ds = ds.mul(T::ONE.sub(t.mul(t)));
        }
    }
}

wide! {
    /// Adds a row of the mask, whose elements lie `stride` apart.
    ///
    /// # Safety
    /// Both are valid for `n` elements and disjoint.
    unsafe fn add_row<T: Float>(s: *mut T, mask: *const T, stride: isize, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let s = std::slice::from_raw_parts_mut(s, n);
            if stride == 0 {
                let m = *mask;
                s.iter_mut().for_each(|s| *s = s.add(m));
                return;
            }
            for (s, &m) in s.iter_mut().zip(std::slice::from_raw_parts(mask, n)) {
                *s = s.add(m);
            }
        }
    }
}

wide! {
    /// Makes exponentials of a row's first `n` scores and zeros of the rest, up to `all`; gives
    /// the maximum and the sum.
    ///
    /// # Safety
    /// Nobody else uses the row.
    unsafe fn exponentials<T: Float>(s: *mut T, n: usize, all: usize, zero_rows: bool) -> [T; 2] {
        // SAFETY: the caller's promise; the slice is gone before anything is
        // written.
        let max = largest(unsafe { std::slice::from_raw_parts(s, n) });
        if zero_rows && max == T::LOWEST {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts_mut(s, all) }.fill(T::ZERO);
            return [max, T::ZERO];
        }
        let mut sums = [T::ZERO; BLOCK];
        // SAFETY: as above; a block is read before it is written.
        unsafe {
            softmax::blocks(s, n, |at, mut block: [T; BLOCK], count| {
                for i in 0..BLOCK {
                    block[i] = block[i].sub(max).exp_flushed();
                    sums[i] = sums[i].add(block[i]);
                }
                s.add(at).copy_from_nonoverlapping(block.as_ptr(), count);
            });
            std::slice::from_raw_parts_mut(s.add(n), all - n).fill(T::ZERO);
        }
        [max, blocks::fold(sums)]
    }
}

wide! {
    /// Multiplies a row.
    ///
    /// # Safety
    /// Nobody else uses it.
    unsafe fn scale_row<T: Float>(s: *mut T, factor: T, n: usize) {
        // SAFETY: the caller's promise.
        for s in unsafe { std::slice::from_raw_parts_mut(s, n) } {
            *s = s.mul(factor);
        }
    }
}

wide! {
    /// Makes probabilities of a row's first `n` scores, by its maximum and the factor of its
    /// exponentials, and zeros of the rest, up to `all`.
    ///
    /// # Safety
    /// Nobody else uses the row.
    unsafe fn probabilities<T: Float>(s: *mut T, n: usize, all: usize, of_row: [T; 2]) {
        let [max, factor] = of_row;
        // SAFETY: the caller's promise.
        let (s, rest) = unsafe { std::slice::from_raw_parts_mut(s, all) }.split_at_mut(n);
        for s in s {
            *s = s.sub(max).exp_flushed().mul(factor);
        }
        rest.fill(T::ZERO);
    }
}

wide! {
    /// The inner product of two rows.
    ///
    /// # Safety
    /// Both are valid for `n` elements.
    unsafe fn inner_product<T: Scalar>(a: *const T, b: *const T, n: usize) -> T {
        // SAFETY: the caller's promise.
        let (a, b) =
            unsafe { (std::slice::from_raw_parts(a, n), std::slice::from_raw_parts(b, n)) };
        dot(a, b)
    }
}

wide! {
    /// Makes gradients of a row's first `n` scores of those of probabilities,
    /// `p · (dp − Σ p · dp) · scale`, and zeros of the rest, up to `all`: also where the sum is NaN. The
    /// sum may be known.
    ///
    /// # Safety
    /// Both rows are valid for `all` elements and disjoint; nobody else uses `dp`.
    unsafe fn score_gradients<T: Float>(p: *const T, dp: *mut T, counts: [usize; 2], total: Option<T>, scale: T) {
        let [n, all] = counts;
        // SAFETY: the caller's promise.
        let (p, dp) = unsafe {
            (std::slice::from_raw_parts(p, n), std::slice::from_raw_parts_mut(dp, all))
        };
        let (dp, rest) = dp.split_at_mut(n);
        rest.fill(T::ZERO);
        let total = total.unwrap_or_else(|| {
            let [total] = blocks::sums(n, &|i: usize| [p[i].mul(dp[i])]);
            total
        });
        for (dp, &p) in dp.iter_mut().zip(p) {
            *dp = p.mul(dp.sub(total)).mul(scale);
        }
    }
}

wide! {
    /// Adds one slice to another of its length.
    fn add_to<T: Float>(y: &mut [T], x: &[T]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = y.add(x);
        }
    }
}
