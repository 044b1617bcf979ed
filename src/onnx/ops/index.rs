//! Gathers and scatters.

use super::{Row, row};
use crate::onnx::context::{Built, Cx, axis, extents};
use crate::onnx::error::Fault;
use arenic_ir::op::{Binary, Scatter};
use arenic_ir::{DType, Op, TensorType, ValueId};

const ARG: &[&str] = &["axis", "keepdims", "select_last_index"];

pub(super) const ROWS: &[Row] = &[
    row("ArgMax", (1, 1), ARG, arg_extremum),
    row("ArgMin", (1, 1), ARG, arg_extremum),
    row("Compress", (2, 2), &["axis"], compress).note("condition known when compiled"),
    row("Gather", (2, 2), &["axis"], gather),
    row("GatherElements", (2, 2), &["axis"], gather_elements),
    row("GatherND", (2, 2), &["batch_dims"], gather_nd),
    row("Hardmax", (1, 1), &["axis"], hardmax),
    row("ScatterElements", (3, 3), &["axis", "reduction"], scatter_elements),
    row("ScatterND", (3, 3), &["reduction"], scatter_nd),
    row("TensorScatter", (2, 3), &["axis", "mode"], tensor_scatter).since(24),
    row("TopK", (2, 2), &["axis", "largest", "sorted"], top_k).note("k known when compiled"),
];

/// The axis that the node names, of its first operand.
fn own_axis(cx: &mut Cx) -> Result<usize, Fault> {
    let x = cx.input(0)?;
    let rank = cx.ty(x).rank();
    axis(cx.attributes().int_or("axis", 0)?, rank)
}

fn reduction(cx: &Cx) -> Result<Scatter, Fault> {
    cx.attributes().one_of(
        "reduction",
        "none",
        &[
            ("none", Scatter::Replace),
            ("add", Scatter::Add),
            ("mul", Scatter::Mul),
            ("min", Scatter::Min),
            ("max", Scatter::Max),
        ],
    )
}

fn gather(cx: &mut Cx) -> Built {
    let axis = own_axis(cx)?;
    let inputs = cx.inputs()?;
    cx.whole(Op::Gather { axis }, inputs)
}

fn gather_elements(cx: &mut Cx) -> Built {
    let axis = own_axis(cx)?;
    let inputs = cx.inputs()?;
    cx.whole(Op::GatherElements { axis }, inputs)
}

fn gather_nd(cx: &mut Cx) -> Built {
    let batch = cx.attributes().int_or("batch_dims", 0)?;
    let batch_dims =
        usize::try_from(batch).map_err(|_| format!("attribute `batch_dims` is {batch}"))?;
    let inputs = cx.inputs()?;
    cx.whole(Op::GatherNd { batch_dims }, inputs)
}

fn scatter_elements(cx: &mut Cx) -> Built {
    let op = Op::ScatterElements { axis: own_axis(cx)?, reduction: reduction(cx)? };
    let inputs = cx.inputs()?;
    cx.whole(op, inputs)
}

fn scatter_nd(cx: &mut Cx) -> Built {
    let op = Op::ScatterNd { reduction: reduction(cx)? };
    let inputs = cx.inputs()?;
    cx.whole(op, inputs)
}

/// Rows of a cache that new ones take the place of, from a first row of each batch on; in a circle, those after
/// the last are the first.
fn tensor_scatter(cx: &mut Cx) -> Built {
    let (cache, update) = (cx.input(0)?, cx.input(1)?);
    let (ty, of) = (cx.ty(cache), cx.ty(update));
    let a = cx.attributes();
    let axis = axis(a.int_or("axis", -2)?, ty.rank())?;
    let is_circle = a.one_of("mode", "linear", &[("linear", false), ("circular", true)])?;
    let fits = of.rank() == ty.rank()
        && of.dtype == ty.dtype
        && (0..ty.rank()).all(|i| match i == axis {
            true => of.shape[i] <= ty.shape[i],
            false => of.shape[i] == ty.shape[i],
        });
    if axis == 0 || !fits {
        return Err(Fault(format!("{of} takes no place along axis {axis} of {ty}")));
    }
    let mut along = vec![1; ty.rank()];
    along[axis] = of.shape[axis];
    let mut places = positions(cx, along, 0..of.shape[axis] as i64)?;
    if let Some(first) = cx.optional(2)? {
        let given = cx.ty(first);
        if given.dtype != DType::I64 || given.shape != [ty.shape[0]] {
            return Err(Fault(format!("its first rows are {given}, not i64[{}]", ty.shape[0])));
        }
        let mut of_batch = vec![1; ty.rank()];
        of_batch[0] = ty.shape[0];
        let first = cx.reshape(first, of_batch)?;
        places = cx.add(first, places)?;
    }
    if is_circle {
        places = cx.with(Binary::Rem, places, ty.shape[axis] as f64)?;
    }
    let places = cx.emit1(Op::Expand { shape: of.shape }, vec![places])?;
    let op = Op::ScatterElements { axis, reduction: Scatter::Replace };
    cx.whole(op, vec![cache, places, update])
}

fn top_k(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let (at, largest) = (a.int_or("axis", -1)?, a.flag("largest", true)?);
    let x = cx.input(0)?;
    let axis = axis(at, cx.ty(x).rank())?;
    let [k] = extents(&cx.ints(1)?.unwrap_or_default())?[..] else {
        return Err("operand 1 is not one number".into());
    };
    cx.whole(Op::TopK { axis, k, largest }, vec![x])
}

/// The first of all places of the largest, or smallest, element along an axis, or the last.
fn arg_extremum(cx: &mut Cx) -> Built {
    let largest = cx.node.op == "ArgMax";
    let a = cx.attributes();
    let (at, keep, last) =
        (a.int_or("axis", 0)?, a.flag("keepdims", true)?, a.flag("select_last_index", false)?);
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let axis = axis(at, ty.rank())?;
    let read = if last { backwards(cx, x, axis)? } else { x };
    let found = cx.emit(Op::TopK { axis, k: 1, largest }, vec![read])?;
    let Some(&(mut place)) = found.get(1) else { return Err("it has no result".into()) };
    if last {
        place = cx.number_minus(ty.shape[axis] as f64 - 1.0, place)?;
    }
    let mut shape = ty.shape;
    match keep {
        true => shape[axis] = 1,
        false => drop(shape.remove(axis)),
    }
    cx.whole(Op::Reshape { shape }, vec![place])
}

/// One at the first of the largest elements along an axis, zero elsewhere.
fn hardmax(cx: &mut Cx) -> Built {
    let at = cx.attributes().int_or("axis", -1)?;
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let axis = axis(at, ty.rank())?;
    let found = cx.emit(Op::TopK { axis, k: 1, largest: true }, vec![x])?;
    let Some(&place) = found.get(1) else { return Err("it has no result".into()) };
    let mut shape = vec![1; ty.rank()];
    shape[axis] = ty.shape[axis];
    let places = positions(cx, shape, 0..ty.shape[axis] as i64)?;
    let is_on = cx.both(Binary::Equal, place, places)?;
    cx.whole(Op::Cast { to: ty.dtype }, vec![is_on])
}

/// What a condition holds for along an axis, or of all elements.
fn compress(cx: &mut Cx) -> Built {
    let mut x = cx.input(0)?;
    let axis = match cx.attributes().int("axis")? {
        Some(at) => axis(at, cx.ty(x).rank())?,
        None => {
            let count = cx.ty(x).elements();
            x = cx.reshape(x, vec![count])?;
            0
        }
    };
    let (ty, bytes) = cx.bools(1)?.ok_or("its condition is missing")?;
    if ty.rank() != 1 || bytes.len() > cx.ty(x).shape[axis] {
        return Err(Fault(format!("its condition is {ty}, of {}", cx.ty(x))));
    }
    let kept: Vec<i64> =
        (0..).zip(&bytes).filter(|&(_, &holds)| holds != 0).map(|(i, _)| i).collect();
    let kept = positions(cx, vec![kept.len()], kept)?;
    cx.whole(Op::Gather { axis }, vec![x, kept])
}

/// A constant of integers.
fn positions(
    cx: &mut Cx,
    shape: Vec<usize>,
    list: impl IntoIterator<Item = i64>,
) -> Result<ValueId, Fault> {
    let ty = TensorType::new(DType::I64, shape);
    if !cx.b.spend(ty.bytes()) {
        return Err("the model's constants take too much memory".into());
    }
    let bytes: Vec<u8> = list.into_iter().flat_map(i64::to_le_bytes).collect();
    Ok(cx.b.constant(ty, bytes))
}

/// The elements along an axis from last to first.
fn backwards(cx: &mut Cx, x: ValueId, axis: usize) -> Result<ValueId, Fault> {
    let shape = cx.ty(x).shape;
    let (mut starts, mut steps) = (vec![0; shape.len()], vec![1; shape.len()]);
    starts[axis] = shape[axis].saturating_sub(1);
    steps[axis] = -1;
    cx.emit1(Op::Slice { starts, steps, shape }, vec![x])
}
