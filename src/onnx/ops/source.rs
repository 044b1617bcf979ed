//! Operators whose results are known when the model is compiled.

use super::{Row, row};
use crate::onnx::context::{Built, Cx, extents};
use crate::onnx::error::Fault;
use crate::onnx::fold::{scalar_bytes, to_floats, to_ints};
use arenic_ir::{DType, Data, Op, TensorType};

const CONSTANT: &[&str] = &["value", "value_float", "value_floats", "value_int", "value_ints"];

pub(super) const ROWS: &[Row] = &[
    row("Constant", (0, 0), CONSTANT, constant).note("no strings, not sparse"),
    row("ConstantOfShape", (1, 1), &["value"], constant_of_shape).note("shape known when compiled"),
    row("Range", (3, 3), &["stash_type"], range).note("operands known when compiled"),
    row("Shape", (1, 1), &["end", "start"], shape),
    row("Size", (1, 1), &[], size),
];

/// Longest result of a `Range`, in elements.
const MAX_RANGE: usize = 1 << 24;

pub(super) fn constant(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let list = |dtype, n: usize| TensorType::new(dtype, [n]);
    if cx.node.attributes.len() != 1 {
        return Err(Fault(format!("it has {} values, not one", cx.node.attributes.len())));
    }
    let (ty, data) = if let Some(t) = a.tensor("value")? {
        cx.stored(t)?
    } else {
        let (ty, bytes) = if let Some(x) = a.float("value_float")? {
            (TensorType::scalar(DType::F32), x.to_le_bytes().to_vec())
        } else if let Some(x) = a.int("value_int")? {
            (TensorType::scalar(DType::I64), x.to_le_bytes().to_vec())
        } else if let Some(x) = a.floats("value_floats")? {
            (list(DType::F32, x.len()), x.iter().flat_map(|x| x.to_le_bytes()).collect())
        } else if let Some(x) = a.ints("value_ints")? {
            (list(DType::I64, x.len()), x.iter().flat_map(|x| x.to_le_bytes()).collect())
        } else {
            return Err("it has no value".into());
        };
        (ty, Data::Bytes(bytes.into()))
    };
    if let Some(name) = cx.weight() {
        let v = cx.b.initializer(name, ty, data);
        cx.b.pin(v);
        return Ok(vec![Some(v)]);
    }
    Ok(vec![Some(match data {
        Data::Bytes(bytes) => cx.b.constant(ty, bytes),
        Data::Absent => cx.b.g.add_const("", ty, Data::Absent),
    })])
}

fn constant_of_shape(cx: &mut Cx) -> Built {
    let shape = extents(&cx.ints(0)?.ok_or("its shape is missing")?)?;
    let (dtype, bytes) = match cx.attributes().tensor("value")? {
        None => (DType::F32, scalar_bytes(DType::F32, 0.0).into()),
        Some(t) => match cx.stored(t)? {
            (ty, Data::Bytes(bytes)) if ty.elements() == 1 => (ty.dtype, bytes),
            (ty, _) => return Err(Fault(format!("attribute `value` is {ty}, no scalar"))),
        },
    };
    let value = cx.b.constant(TensorType::scalar(dtype), bytes);
    cx.whole(Op::Expand { shape }, vec![value])
}

pub(super) fn shape(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let shape = cx.ty(x).shape;
    let r = shape.len() as i64;
    let a = cx.attributes();
    let end_of = |i: i64| if i < 0 { i.saturating_add(r) } else { i }.clamp(0, r) as usize;
    let (start, end) = (end_of(a.int_or("start", 0)?), end_of(a.int_or("end", r)?));
    let part = shape.get(start..end).unwrap_or_default();
    let bytes: Vec<u8> = part.iter().flat_map(|&d| (d as i64).to_le_bytes()).collect();
    Ok(vec![Some(cx.b.constant(TensorType::new(DType::I64, [part.len()]), bytes))])
}

pub(super) fn size(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let elements = cx.ty(x).elements() as i64;
    let ty = TensorType::scalar(DType::I64);
    Ok(vec![Some(cx.b.constant(ty, elements.to_le_bytes().to_vec()))])
}

/// `stash_type` concerns 16-bit floats alone.
pub(super) fn range(cx: &mut Cx) -> Built {
    let mut operands = Vec::new();
    for i in 0..3 {
        operands.push(cx.one(i)?.ok_or("an operand is missing")?);
    }
    let dtype = operands[0].0.dtype;
    if operands.iter().any(|(ty, _)| ty.dtype != dtype) {
        return Err("its operands have different element types".into());
    }
    let too_long = || Fault(format!("its result has more than {MAX_RANGE} elements"));
    let length = |n: f64| {
        let n = n.max(0.0);
        if n <= MAX_RANGE as f64 { Ok(n as usize) } else { Err(too_long()) }
    };
    let scalars = |of: fn(&TensorType, &[u8]) -> Option<Vec<f64>>| -> Option<Vec<f64>> {
        operands.iter().map(|(ty, b)| of(ty, b)?.first().copied()).collect()
    };
    let ints: Option<Vec<i64>> = operands
        .iter()
        .map(|(ty, b)| match (ty.dtype, &b[..]) {
            (DType::I16, &[a, b]) => Some(i64::from(i16::from_le_bytes([a, b]))),
            _ => to_ints(ty, b)?.first().copied(),
        })
        .collect();
    let (n, bytes): (usize, Vec<u8>) = if let Some([start, limit, delta]) = ints.as_deref() {
        if *delta == 0 {
            return Err("its step is zero".into());
        }
        let (start, delta) = (i128::from(*start), i128::from(*delta));
        let span = i128::from(*limit) - start;
        let n = span / delta + i128::from(span % delta != 0);
        let n = if (span < 0) == (delta < 0) { length(n as f64)? } else { 0 };
        let element = |i: usize| (start + delta * i as i128) as i64;
        let bytes = match dtype {
            DType::I64 => (0..n).flat_map(|i| element(i).to_le_bytes()).collect(),
            DType::I32 => (0..n).flat_map(|i| (element(i) as i32).to_le_bytes()).collect(),
            _ => (0..n).flat_map(|i| (element(i) as i16).to_le_bytes()).collect(),
        };
        (n, bytes)
    } else if let Some([start, limit, delta]) = scalars(to_floats).as_deref() {
        if *delta == 0.0 || ![start, limit, delta].iter().all(|x| x.is_finite()) {
            return Err("its step is zero or an operand is not finite".into());
        }
        let n = length(((limit - start) / delta).ceil())?;
        let bytes = match dtype {
            DType::F64 => (0..n).flat_map(|i| (start + i as f64 * delta).to_le_bytes()).collect(),
            DType::Bf16 => (0..n)
                .flat_map(|i| {
                    scalar_bytes(dtype, f64::from(*start as f32 + i as f32 * *delta as f32))
                })
                .collect(),
            // In single precision, as a runtime would count.
            _ => (0..n)
                .flat_map(|i| (*start as f32 + i as f32 * *delta as f32).to_le_bytes())
                .collect(),
        };
        (n, bytes)
    } else {
        return Err(Fault(format!("it does not take {dtype}")));
    };
    if !cx.b.spend(bytes.len() as u64) {
        return Err("the model's constants take too much memory".into());
    }
    Ok(vec![Some(cx.b.constant(TensorType::new(dtype, [n]), bytes))])
}
