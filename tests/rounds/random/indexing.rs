//! Random uses of operators that choose elements, as gradients have them, too.

use super::generator::Generator;
use super::operators::{axis, done, shape};
use arenic_ir::graph::Data;
use arenic_ir::op::{Op, Scatter};
use arenic_ir::{DType, TensorType};

/// The shape of indices, often with the batch's rows.
fn index_shape(g: &mut Generator) -> Vec<usize> {
    let mut shape = g.shape(0..3);
    if g.chance(60) {
        shape.insert(0, g.rows);
    }
    shape
}

pub(super) fn gathers(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..4)?;
    let of = shape(g, x);
    let axis = axis(g, of.len());
    let like = index_shape(g);
    let indices = g.indices(&like, of[axis]);
    let y = g.one(Op::Gather { axis }, &[x, indices])?;
    if axis == 0 && g.chance(70) {
        // Its gradient.
        let mut depth = like;
        depth.push(1);
        let tuples = g.one(Op::Reshape { shape: depth }, &[indices])?;
        let (dy, zeros) = (g.floats(&shape(g, y)), g.zeros(&of)?);
        g.one(Op::ScatterNd { reduction: Scatter::Add }, &[zeros, tuples, dy])?;
    }
    Some(())
}

pub(super) fn element_gathers(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..4)?;
    let of = shape(g, x);
    let axis = axis(g, of.len());
    let mut like: Vec<usize> =
        of.iter().map(|&e| if g.chance(80) { e } else { g.r.usize(1..e + 1) }).collect();
    like[axis] = [1, of[axis], g.rows, g.rows][g.r.usize(..4)];
    let indices = g.indices(&like, of[axis]);
    g.one(Op::GatherElements { axis }, &[x, indices])?;
    if g.chance(60) {
        let dy = g.floats(&like);
        let zeros = if g.chance(70) { g.zeros(&of)? } else { g.floats(&of) };
        let op = Op::ScatterElements { axis, reduction: Scatter::Add };
        g.one(op, &[zeros, indices, dy])?;
    }
    Some(())
}

const COMBINED: [Scatter; 5] =
    [Scatter::Replace, Scatter::Add, Scatter::Mul, Scatter::Min, Scatter::Max];

pub(super) fn element_scatters(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..4)?;
    let of = shape(g, x);
    let axis = axis(g, of.len());
    let indices = g.indices(&of, of[axis]);
    let updates = g.floats(&of);
    let reduction = COMBINED[g.r.usize(..5)];
    g.one(Op::ScatterElements { axis, reduction }, &[x, indices, updates]).and_then(done)
}

pub(super) fn tuple_gathers(g: &mut Generator) -> Option<()> {
    let mut x = g.of_rank(1..5)?;
    let last = g.g.ty(x).rank() - 1;
    if last > 0 && g.chance(50) {
        // The batch behind what is selected from.
        x = g.swapped(x, last)?;
    }
    let of = shape(g, x);
    let batch_dims = g.r.usize(..of.len());
    let depth = g.r.usize(1..of.len() - batch_dims + 1);
    let below = *of[batch_dims..batch_dims + depth].iter().min()?;
    let more = if batch_dims == 0 { index_shape(g) } else { g.shape(0..2) };
    let like = [&of[..batch_dims], &more, &[depth]].concat();
    let indices = g.indices(&like, below);
    g.one(Op::GatherNd { batch_dims }, &[x, indices]).and_then(done)
}

/// The batch is behind the axes that tuples select from, and comes behind all axes of the tuples.
pub(super) fn gathers_behind(g: &mut Generator) -> Option<()> {
    let x = g.shaped(3)?;
    let x = g.swapped(x, 2)?;
    let of = shape(g, x);
    let (batch_dims, depth) = [(0, 1), (0, 2), (1, 1)][g.r.usize(..3)];
    let below = *of[batch_dims..batch_dims + depth].iter().min()?;
    let more = g.shape(0..3);
    let like = [&of[..batch_dims], &more, &[depth]].concat();
    let all: Vec<u8> = (0..like.iter().product::<usize>())
        .flat_map(|_| g.r.i64(0..below as i64).to_le_bytes())
        .collect();
    let indices = g.g.add_const("", TensorType::new(DType::I64, like), Data::Bytes(all.into()));
    g.one(Op::GatherNd { batch_dims }, &[x, indices]).and_then(done)
}

pub(super) fn scatters(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..5)?;
    let of = shape(g, x);
    let depth = g.r.usize(1..of.len() + 1);
    let below = *of[..depth].iter().min()?;
    let more = index_shape(g);
    let indices = g.indices(&[&more[..], &[depth]].concat(), below);
    let updates = g.floats(&[&more[..], &of[depth..]].concat());
    let onto = if g.chance(40) { g.zeros(&of)? } else { x };
    let reduction = if g.chance(50) { Scatter::Add } else { COMBINED[g.r.usize(..5)] };
    g.one(Op::ScatterNd { reduction }, &[onto, indices, updates]).and_then(done)
}

pub(super) fn top_ks(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..5)?;
    let of = shape(g, x);
    let axis = axis(g, of.len());
    let (k, largest) = (g.r.usize(1..of[axis] + 1), g.chance(50));
    g.node(Op::TopK { axis, k, largest }, &[x]).and_then(done)
}
