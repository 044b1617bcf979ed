//! The discrete Fourier transform, as products with matrices of cosines and sines.

use super::position::part;
use super::{Row, row};
use crate::onnx::context::{Built, Cx, axis};
use crate::onnx::error::Fault;
use crate::onnx::fold::{scalar_bytes, to_ints};
use arenic_ir::{Op, TensorType, ValueId};
use std::f64::consts::TAU;

pub(super) const ROWS: &[Row] = &[row("DFT", (1, 3), &["axis", "inverse", "onesided"], dft)
    .since(17)
    .note("length and axis known when compiled")];

/// Most elements of a matrix.
const MOST: usize = 16 << 20;

fn dft(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let a = cx.attributes();
    let (inverse, onesided) = (a.flag("inverse", false)?, a.flag("onesided", false)?);
    let known = |cx: &mut Cx, i: usize| -> Result<Option<i64>, Fault> {
        let Some((ty, bytes)) = cx.one(i)? else { return Ok(None) };
        Ok(to_ints(&ty, &bytes).and_then(|list| list.first().copied()))
    };
    // An operand since opset 20, an attribute before.
    let along = match known(cx, 2)? {
        Some(along) => along,
        None if cx.node.version.is_some_and(|v| v >= 20) => -2,
        None => cx.attributes().int_or("axis", 1)?,
    };
    let rank = ty.rank();
    let parts = ty.shape.last().copied().unwrap_or(0);
    if rank < 2 || !(1..=2).contains(&parts) || !ty.dtype.is_float() {
        return Err(Fault(format!("{ty} holds no real or complex numbers")));
    }
    let along = axis(along, rank)?;
    if along == rank - 1 {
        return Err("its axis is that of real and imaginary parts".into());
    }
    // Half of a transform of real numbers, from which the other half follows; or back from there.
    let back = onesided && inverse;
    if onesided && (parts == 2) != back {
        return Err(Fault(format!("one side is of a transform of real numbers, not of {ty}")));
    }
    let length = match known(cx, 1)? {
        None if back => 2 * ty.shape[along].saturating_sub(1),
        None => ty.shape[along],
        Some(n) => usize::try_from(n).map_err(|_| Fault(format!("a length of {n}")))?,
    };
    let results = if onesided && !back { length / 2 + 1 } else { length };
    if length == 0 || length.checked_mul(results).is_none_or(|n| n > MOST) {
        return Err(Fault(format!("a transform of {length} elements is too large or empty")));
    }
    // Cut to the length; what would be filled with zeros adds nothing.
    let used = if back { length / 2 + 1 } else { length }.min(ty.shape[along]);
    let x = part(cx, x, along, 0, used, 1)?;
    let mut matrix = |of: fn(f64) -> f64| {
        let angle = |n: usize, k: usize| TAU * ((n * k) % length) as f64 / length as f64;
        let by = if inverse { 1.0 / length as f64 } else { 1.0 };
        // Where there is one of two sides, each but the first and the middle one counts for both.
        let sides = |n: usize| if back && n > 0 && 2 * n != length { 2.0 } else { 1.0 };
        let element = |i: usize| {
            let (n, k) = (i / results, i % results);
            scalar_bytes(ty.dtype, of(angle(n, k)) * by * sides(n))
        };
        let bytes: Vec<u8> = (0..used * results).flat_map(element).collect();
        if !cx.b.spend(bytes.len() as u64) {
            return Err(Fault("the model's constants take too much memory".into()));
        }
        Ok(cx.b.constant(TensorType::new(ty.dtype, [used, results]), bytes))
    };
    let (cos, sin) = (matrix(f64::cos)?, matrix(f64::sin)?);
    // The axis last, without that of the parts.
    let mut swap: Vec<usize> = (0..rank - 1).collect();
    swap.swap(along, rank - 2);
    let plain = |cx: &mut Cx, i: usize| -> Result<ValueId, Fault> {
        let one = part(cx, x, rank - 1, i, 1, 1)?;
        let mut shape = cx.ty(one).shape;
        shape.pop();
        let one = cx.reshape(one, shape)?;
        cx.transposed(one, swap.clone())
    };
    let product = |cx: &mut Cx, x: ValueId, by: ValueId| {
        cx.emit1(Op::MatMul { trans_a: false, trans_b: false }, vec![x, by])
    };
    let real = plain(cx, 0)?;
    let (mut re, mut im) = (product(cx, real, cos)?, product(cx, real, sin)?);
    if !inverse {
        im = cx.times(im, -1.0)?;
    }
    if parts == 2 {
        let imaginary = plain(cx, 1)?;
        let (c, s) = (product(cx, imaginary, cos)?, product(cx, imaginary, sin)?);
        re = if inverse { cx.sub(re, s)? } else { cx.add(re, s)? };
        im = cx.add(im, c)?;
    }
    let mut both = Vec::new();
    for one in [re, im].into_iter().take(if back { 1 } else { 2 }) {
        let one = cx.transposed(one, swap.clone())?;
        let mut shape = cx.ty(one).shape;
        shape.push(1);
        both.push(cx.reshape(one, shape)?);
    }
    cx.whole(Op::Concat { axis: rank - 1 }, both)
}
