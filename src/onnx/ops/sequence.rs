//! Sequences of tensors, whose lengths and positions are known when the model is compiled.

use super::{ANY, Row, row};
use crate::onnx::context::{Built, Cx, Slot, axis, extents};
use crate::onnx::error::Fault;
use arenic_ir::{DType, Op, TensorType, ValueId};

const PLACE: &str = "position known when compiled";

pub(super) const ROWS: &[Row] = &[
    row("ConcatFromSequence", (1, 1), &["axis", "new_axis"], concat).since(11),
    row("SequenceAt", (2, 2), &[], at).since(11).note(PLACE),
    row("SequenceConstruct", (1, ANY), &[], construct).since(11),
    row("SequenceEmpty", (0, 0), &["dtype"], empty).since(11),
    row("SequenceErase", (1, 2), &[], erase).since(11).note(PLACE),
    row("SequenceInsert", (2, 3), &[], insert).since(11).note(PLACE),
    row("SequenceLength", (1, 1), &[], length).since(11),
    row("SplitToSequence", (1, 2), &["axis", "keepdims"], split)
        .since(11)
        .note("sizes known when compiled"),
];

/// Most tensors in a sequence.
const MOST: usize = 1 << 16;

/// Makes the node's first result a sequence.
fn give(cx: &mut Cx, parts: Vec<ValueId>) -> Built {
    if parts.len() > MOST {
        return Err(Fault(format!("a sequence of {} tensors; the most are {MOST}", parts.len())));
    }
    if let Some(t) = cx.node.outputs.first().copied().flatten() {
        cx.slots[t] = Slot::Sequence(parts);
    }
    Ok(vec![None])
}

/// A position that may count from the end, in a sequence or behind its last tensor.
fn position(cx: &mut Cx, i: usize, length: usize, behind: bool) -> Result<Option<usize>, Fault> {
    let Some((ty, bytes)) = cx.one(i)? else { return Ok(None) };
    let at = crate::onnx::fold::to_ints(&ty, &bytes).and_then(|list| list.first().copied());
    let at = at.ok_or_else(|| Fault(format!("its position is {ty}, no integer")))?;
    let n = length as i64;
    let last = if behind { n } else { n - 1 };
    let counted = if at < 0 { at + n } else { at };
    match usize::try_from(counted).ok().filter(|_| counted <= last) {
        Some(at) => Ok(Some(at)),
        None => Err(Fault(format!("position {at} of a sequence of {length} tensors"))),
    }
}

pub(super) fn empty(cx: &mut Cx) -> Built {
    give(cx, Vec::new())
}

fn construct(cx: &mut Cx) -> Built {
    let parts = cx.inputs()?;
    give(cx, parts)
}

pub(super) fn at(cx: &mut Cx) -> Built {
    let parts = cx.sequence(0)?;
    let at = position(cx, 1, parts.len(), false)?.ok_or("its position is missing")?;
    Ok(vec![Some(parts[at])])
}

pub(super) fn insert(cx: &mut Cx) -> Built {
    let mut parts = cx.sequence(0)?;
    let x = cx.input(1)?;
    let at = position(cx, 2, parts.len(), true)?.unwrap_or(parts.len());
    parts.insert(at, x);
    give(cx, parts)
}

fn erase(cx: &mut Cx) -> Built {
    let mut parts = cx.sequence(0)?;
    let at = match position(cx, 1, parts.len(), false)? {
        Some(at) => at,
        None => parts.len().checked_sub(1).ok_or("the sequence is empty")?,
    };
    parts.remove(at);
    give(cx, parts)
}

pub(super) fn length(cx: &mut Cx) -> Built {
    let n = cx.sequence(0)?.len() as i64;
    let ty = TensorType::scalar(DType::I64);
    Ok(vec![Some(cx.b.constant(ty, n.to_le_bytes().to_vec()))])
}

pub(super) fn split(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let a = cx.attributes();
    let at = axis(a.int_or("axis", 0)?, ty.rank())?;
    let keep = a.flag("keepdims", true)?;
    let extent = ty.shape[at];
    let (sizes, squeezes) = match cx.optional(1)? {
        None => (vec![1; extent], !keep),
        Some(split) => {
            let of_one = cx.ty(split).rank() == 0;
            let list = extents(&cx.ints(1)?.ok_or("its split is missing")?)?;
            match list[..] {
                [0] if of_one => return Err("it splits into parts of no element".into()),
                [size] if of_one => {
                    let parts = extent.div_ceil(size);
                    if parts > MOST {
                        return Err(Fault(format!("{parts} parts are too many")));
                    }
                    ((0..parts).map(|i| size.min(extent - i * size)).collect(), false)
                }
                _ => (list, false),
            }
        }
    };
    if sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s)) != Some(extent) {
        return Err(Fault(format!("parts {sizes:?} do not make up axis {at} of {ty}")));
    }
    if sizes.len() > MOST {
        return Err(Fault(format!("{} parts are too many", sizes.len())));
    }
    let mut parts = Vec::with_capacity(sizes.len());
    let mut first = 0;
    for size in sizes {
        let (mut starts, mut shape) = (vec![0; ty.rank()], ty.shape.clone());
        (starts[at], shape[at]) = (first, size);
        first += size;
        let op = Op::Slice { starts, steps: vec![1; ty.rank()], shape: shape.clone() };
        let part = cx.emit1(op, vec![x])?;
        parts.push(if squeezes {
            shape.remove(at);
            cx.reshape(part, shape)?
        } else {
            part
        });
    }
    give(cx, parts)
}

pub(super) fn concat(cx: &mut Cx) -> Built {
    let parts = cx.sequence(0)?;
    let a = cx.attributes();
    let along = a.int("axis")?.ok_or("attribute `axis` is missing")?;
    let new = a.flag("new_axis", false)?;
    let first = *parts
        .first()
        .ok_or("the sequence is empty, and of what its tensors would be is not said")?;
    let rank = cx.ty(first).rank();
    let axis = axis(along, rank + usize::from(new))?;
    let parts = match new {
        false => parts,
        true => {
            let mut wider = Vec::with_capacity(parts.len());
            for part in parts {
                let mut shape = cx.ty(part).shape;
                if shape.len() != rank {
                    return Err("its tensors differ in rank".into());
                }
                shape.insert(axis, 1);
                wider.push(cx.reshape(part, shape)?);
            }
            wider
        }
    };
    cx.whole(Op::Concat { axis }, parts)
}
