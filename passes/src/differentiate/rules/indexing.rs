//! Gathers and scatters: the gradient of one is the other. What several indices name gets the
//! sum, in the order of the indices.

use super::{Local, Rule};
use crate::differentiate::tape::Tape;
use arenic_ir::graph::{Data, ValueId};
use arenic_ir::op::families::Indexing;
use arenic_ir::op::{Op, Scatter, TypeError};
use arenic_ir::types::{DType, TensorType};

const ADD: Scatter = Scatter::Add;

pub(super) fn rule(op: Indexing) -> Option<Rule> {
    Some(match op {
        Indexing::Gather { .. } => Rule::Passes(gather),
        Indexing::GatherElements { .. } => Rule::Passes(gather_elements),
        Indexing::GatherNd { .. } => Rule::Passes(gather_nd),
        Indexing::TopK { .. } => Rule::Passes(top_k),
        Indexing::ScatterElements { reduction, .. } | Indexing::ScatterNd { reduction } => {
            match reduction {
                Scatter::Replace | Scatter::Add => Rule::Passes(scatter),
                Scatter::Mul | Scatter::Min | Scatter::Max => return None,
            }
        }
    })
}

fn gather(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::Gather { axis } = l.op else { return Ok(()) };
    let (ty, indices) = (t.ty(l.x[0]), t.ty(l.x[1]));
    if ty.rank() == 0 || !l.wants(0) {
        return Ok(());
    }
    // Rows that indices name are added to rows: the axis comes first, and goes back.
    let (count, rest) = (indices.elements(), ty.rank() - 1);
    let others: Vec<usize> = (0..ty.rank()).filter(|&i| i != axis).collect();
    let (before, after) = (axis, axis + indices.rank());
    let to_front: Vec<usize> =
        (before..after).chain(0..before).chain(after..rest + indices.rank()).collect();
    let dy = t.transpose(l.dy()?, to_front)?;
    let front: Vec<usize> = std::iter::once(axis).chain(others).collect();
    let moved = TensorType::new(ty.dtype, front.iter().map(|&i| ty.shape[i]).collect::<Vec<_>>());
    let rows: Vec<usize> = std::iter::once(count).chain(moved.shape[1..].iter().copied()).collect();
    let updates = t.reshape(dy, &rows)?;
    let at = t.reshape(l.x[1], &[count, 1])?;
    let zeros = t.zeros(&moved)?;
    let d = t.emit(Op::ScatterNd { reduction: ADD }, vec![zeros, at, updates])?;
    let mut back = vec![0; front.len()];
    front.iter().enumerate().for_each(|(i, &p)| back[p] = i);
    let d = t.transpose(d, back)?;
    t.give(l.x[0], d);
    Ok(())
}

fn gather_elements(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::GatherElements { axis } = l.op else { return Ok(()) };
    let ty = t.ty(l.x[0]);
    let zeros = t.zeros(&ty)?;
    let op = Op::ScatterElements { axis, reduction: ADD };
    let d = t.emit(op, vec![zeros, l.x[1], l.dy()?])?;
    t.give(l.x[0], d);
    Ok(())
}

fn gather_nd(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::GatherNd { batch_dims } = l.op else { return Ok(()) };
    let ty = t.ty(l.x[0]);
    let at = with_batch(t, l.x[1], batch_dims)?;
    let zeros = t.zeros(&ty)?;
    let d = t.emit(Op::ScatterNd { reduction: ADD }, vec![zeros, at, l.dy()?])?;
    t.give(l.x[0], d);
    Ok(())
}

/// Indices that name the batch as well: each is preceded by where it stands.
fn with_batch(t: &mut Tape, indices: ValueId, batch: usize) -> Result<ValueId, TypeError> {
    let mut ty = t.ty(indices);
    let Some(last) = ty.shape.last_mut().filter(|_| batch > 0) else { return Ok(indices) };
    *last = 1;
    let mut parts = Vec::new();
    for axis in 0..batch {
        let extent = ty.shape[axis];
        let count: Vec<u8> = match ty.dtype {
            DType::I32 => (0..extent).flat_map(|i| (i as i32).to_le_bytes()).collect(),
            _ => (0..extent).flat_map(|i| (i as i64).to_le_bytes()).collect(),
        };
        let mut shape = vec![1; ty.rank()];
        shape[axis] = extent;
        let along = TensorType::new(ty.dtype, shape);
        let along = t.g.add_const("", along, Data::Bytes(count.into()));
        parts.push(t.expand(along, &ty.shape)?);
    }
    parts.push(indices);
    t.emit(Op::Concat { axis: ty.rank() - 1 }, parts)
}

/// What was replaced has no gradient; what was put or added there has that of its place.
fn scatter(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let (reduction, gather) = match l.op {
        Op::ScatterElements { axis, reduction } => (reduction, Op::GatherElements { axis }),
        Op::ScatterNd { reduction } => (reduction, Op::GatherNd { batch_dims: 0 }),
        _ => return Ok(()),
    };
    if l.wants(0) {
        let d = if reduction == ADD {
            l.dy()?
        } else {
            let ty = t.ty(l.x[2]);
            let zeros = t.zeros(&ty)?;
            t.emit(l.op.clone(), vec![l.dy()?, l.x[1], zeros])?
        };
        t.give(l.x[0], d);
    }
    if l.wants(2) {
        let d = t.emit(gather, vec![l.dy()?, l.x[1]])?;
        t.give(l.x[2], d);
    }
    Ok(())
}

/// Where each element came from; no two came from one place.
fn top_k(t: &mut Tape, l: &Local) -> Result<(), TypeError> {
    let Op::TopK { axis, .. } = l.op else { return Ok(()) };
    let (dy, indices) = (l.dy()?, t.result(l.node, 1)?);
    let ty = t.ty(l.x[0]);
    let zeros = t.zeros(&ty)?;
    let d =
        t.emit(Op::ScatterElements { axis, reduction: Scatter::Add }, vec![zeros, indices, dy])?;
    t.give(l.x[0], d);
    Ok(())
}
