//! Windows of signals, and transforms of the frames under them.

use super::compose::Made;
use super::position::part;
use super::{Row, row};
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use crate::onnx::fold::{scalar_bytes, to_floats, to_ints};
use crate::onnx::read::element_type;
use arenic_ir::{DType, Op, TensorType, ValueId};
use std::f64::consts::TAU;

const WINDOW: &[&str] = &["output_datatype", "periodic"];

pub(super) const ROWS: &[Row] = &[
    row("BlackmanWindow", (1, 1), WINDOW, window).since(17).note("size known when compiled"),
    row("HammingWindow", (1, 1), WINDOW, window).since(17).note("size known when compiled"),
    row("HannWindow", (1, 1), WINDOW, window).since(17).note("size known when compiled"),
    row("MelWeightMatrix", (5, 5), &["output_datatype"], mel_weights)
        .since(17)
        .note("operands known when compiled"),
    row("STFT", (2, 4), &["onesided"], stft).since(17).note("lengths known when compiled"),
];

/// Most elements of a constant.
const MOST: usize = 16 << 20;

/// A constant of so many elements.
fn constant(
    cx: &mut Cx,
    dtype: DType,
    shape: &[usize],
    bytes: impl Iterator<Item = Vec<u8>>,
) -> Made {
    let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n <= MOST);
    let ty = TensorType::new(dtype, shape);
    if count.is_none() || !cx.b.spend(ty.bytes()) {
        return Err(Fault(format!("{ty} takes too much memory")));
    }
    let bytes: Vec<u8> = bytes.flatten().collect();
    Ok(cx.b.constant(ty, bytes))
}

/// A sum of cosines: `a − b cos(2πi/n) + c cos(4πi/n)`.
pub(super) fn window(cx: &mut Cx) -> Built {
    let [a, b, c] = match cx.node.op {
        "HannWindow" => [0.5, 0.5, 0.0],
        "HammingWindow" => [25.0 / 46.0, 21.0 / 46.0, 0.0],
        _ => [0.42, 0.5, 0.08],
    };
    let [size] = cx.ints(0)?.unwrap_or_default()[..] else {
        return Err("its size is not one number".into());
    };
    let size = usize::try_from(size).map_err(|_| Fault(format!("a size of {size}")))?;
    let at = cx.attributes();
    let code = at.int_or("output_datatype", 1)?;
    let code = i32::try_from(code).map_err(|_| format!("element type {code} is unknown"))?;
    let dtype = element_type(code)?;
    let n = if at.flag("periodic", true)? { size } else { size.saturating_sub(1) }.max(1);
    let element = |i: usize| {
        let angle = TAU * i as f64 / n as f64;
        scalar_bytes(dtype, a - b * angle.cos() + c * (2.0 * angle).cos())
    };
    Ok(vec![Some(constant(cx, dtype, &[size], (0..size).map(element))?)])
}

/// Triangles over the bins of a spectrum, whose corners are as far apart in mel: `[bins, triangles]`.
fn mel_weights(cx: &mut Cx) -> Built {
    let mut given = [0.0; 5];
    for (i, x) in given.iter_mut().enumerate() {
        let (ty, bytes) = cx.one(i)?.ok_or_else(|| Fault(format!("operand {i} is missing")))?;
        let number = to_floats(&ty, &bytes)
            .and_then(|list| list.first().copied())
            .or_else(|| to_ints(&ty, &bytes).and_then(|list| Some(*list.first()? as f64)));
        *x = number.ok_or_else(|| Fault(format!("operand {i} is {ty}, no number")))?;
    }
    let [triangles, length, rate, low, high] = given;
    let fits = |x: f64| (1.0..=MOST as f64).contains(&x);
    let is_band = rate > 0.0 && low >= 0.0 && low <= high;
    if !(is_band && fits(triangles) && fits(length)) {
        return Err(Fault(format!(
            "{triangles} triangles over {length} points at {rate} Hz, from {low} to {high} Hz"
        )));
    }
    let (count, bins) = (triangles as usize, length as usize / 2 + 1);
    let mel = |hertz: f64| 2595.0 * (hertz / 700.0).ln_1p() / std::f64::consts::LN_10;
    let step = (mel(high) - mel(low)) / (triangles + 2.0);
    let corner = |i: usize| {
        let mel = mel(low) + i as f64 * step;
        let hertz = 700.0 * (mel / 2595.0 * std::f64::consts::LN_10).exp_m1();
        ((length + 1.0) * hertz / rate).floor() as usize
    };
    if corner(count + 1) > bins {
        return Err(Fault(format!("{high} Hz are beyond the spectrum, at {rate} Hz")));
    }
    let code = cx.attributes().int_or("output_datatype", 1)?;
    let code = i32::try_from(code).map_err(|_| format!("element type {code} is unknown"))?;
    let dtype = element_type(code)?;
    let element = |at: usize| {
        let (bin, i) = (at / count, at % count);
        let [first, top, last] = [corner(i), corner(i + 1), corner(i + 2)];
        let share = |part: usize, of: usize| part as f64 / of as f64;
        let weight = match bin {
            _ if bin == top => 1.0,
            _ if (first..top).contains(&bin) => share(bin - first, top - first),
            _ if (top..last).contains(&bin) => share(last - bin, last - top),
            _ => 0.0,
        };
        scalar_bytes(dtype, weight)
    };
    let all = bins.saturating_mul(count);
    Ok(vec![Some(constant(cx, dtype, &[bins, count], (0..all).map(element))?)])
}

/// `signal[B,L,1 or 2]` → `[B, frames, bins, 2]`: frames are gathered, weighted, and multiplied with
/// matrices of cosines and sines.
fn stft(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let given = cx.attributes().flag("onesided", true)?;
    let one = |cx: &mut Cx, i: usize| -> Result<Option<usize>, Fault> {
        match cx.ints(i)?.as_deref() {
            None => Ok(None),
            Some(&[n]) if n > 0 => Ok(usize::try_from(n).ok()),
            Some(list) => Err(Fault(format!("operand {i} is {list:?}, not one positive number"))),
        }
    };
    let step = one(cx, 1)?.ok_or("its step is missing")?;
    let weights = cx.optional(2)?;
    let (&[batch, length, parts], true) = (&ty.shape[..], ty.dtype.is_float()) else {
        return Err(Fault(format!("{ty} is no signal")));
    };
    let of_weights = weights.map(|w| cx.ty(w));
    let frame = match (one(cx, 3)?, &of_weights) {
        (Some(n), _) => n,
        (None, Some(of)) => of.elements(),
        (None, None) => return Err("neither a window nor a length of frames is given".into()),
    };
    if of_weights.is_some_and(|of| of.shape != [frame] || of.dtype != ty.dtype) {
        return Err(Fault(format!("its window is not of {} elements of {}", frame, ty.dtype)));
    }
    // A transform of complex numbers has both sides.
    let onesided = given && parts == 1;
    let free = length.checked_sub(frame).filter(|_| (1..=2).contains(&parts));
    let free = free.ok_or_else(|| Fault(format!("frames of {frame} are not in {ty}")))?;
    let (frames, bins) = (free / step + 1, if onesided { frame / 2 + 1 } else { frame });
    let places = (0..frames).flat_map(|f| (0..frame).map(move |i| (f * step + i) as i64));
    let places = places.map(|i| i.to_le_bytes().to_vec());
    let places = constant(cx, DType::I64, &[frames, frame], places)?;
    let matrix = |cx: &mut Cx, of: fn(f64) -> f64| {
        let element = |i: usize| {
            let (n, k) = (i / bins, i % bins);
            scalar_bytes(ty.dtype, of(TAU * ((n * k) % frame) as f64 / frame as f64))
        };
        constant(cx, ty.dtype, &[frame, bins], (0..frame.saturating_mul(bins)).map(element))
    };
    let (cos, sin) = (matrix(cx, f64::cos)?, matrix(cx, |x| -x.sin())?);
    let framed = |cx: &mut Cx, i: usize| -> Made {
        let one = part(cx, x, 2, i, 1, 1)?;
        let one = cx.reshape(one, vec![batch, length])?;
        let framed = cx.emit1(Op::Gather { axis: 1 }, vec![one, places])?;
        match weights {
            Some(weights) => cx.mul(framed, weights),
            None => Ok(framed),
        }
    };
    let product = |cx: &mut Cx, x: ValueId, by: ValueId| {
        cx.emit1(Op::MatMul { trans_a: false, trans_b: false }, vec![x, by])
    };
    let real = framed(cx, 0)?;
    let (mut re, mut im) = (product(cx, real, cos)?, product(cx, real, sin)?);
    if parts == 2 {
        let imaginary = framed(cx, 1)?;
        let (c, s) = (product(cx, imaginary, cos)?, product(cx, imaginary, sin)?);
        (re, im) = (cx.sub(re, s)?, cx.add(im, c)?);
    }
    let mut both = Vec::new();
    for one in [re, im] {
        both.push(cx.reshape(one, vec![batch, frames, bins, 1])?);
    }
    cx.whole(Op::Concat { axis: 3 }, both)
}
