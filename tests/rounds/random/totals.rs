//! Random states that sums over the batch go into, as gradients go into a momentum.

use super::generator::Generator;
use super::operators::{narrower, rng, shape};
use arenic_ir::DType;
use arenic_ir::graph::{Def, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Scatter, Unary};

/// A sum over the batch of this shape.
fn sum(g: &mut Generator, like: &[usize]) -> Option<ValueId> {
    let rows = [&[g.rows][..], like].concat();
    let terms = g.floats(&rows);
    match like.first() {
        Some(&extent) if g.chance(40) => {
            let tuples = [g.rows, 1];
            let indices = g.indices(&tuples, extent);
            let updates = g.floats(&[&[g.rows][..], &like[1..]].concat());
            let onto = g.zeros(like)?;
            g.one(Op::ScatterNd { reduction: Scatter::Add }, &[onto, indices, updates])
        }
        _ => {
            let f = if g.chance(80) { Reduction::Sum } else { Reduction::Mean };
            g.one(Op::Reduce { f, axes: vec![0], keep: false }, &[terms])
        }
    }
}

/// The next value of a state, most often affine in sums that nothing else reads.
pub(super) fn moments(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..4)?;
    let like = shape(g, x)[1..].to_vec();
    let before = g.state(&like);
    let mut v = sum(g, &like)?;
    for _ in 0..g.r.usize(1..6) {
        let sign = if g.chance(60) { Binary::Add } else { Binary::Sub };
        v = match g.r.u32(..10) {
            0 | 1 => {
                let rate = g.scalar(0.9);
                let kept = g.binary(Binary::Mul, before, rate)?;
                either(g, sign, v, kept)
            }
            2 | 3 => {
                let other = sum(g, &like)?;
                either(g, sign, v, other)
            }
            4 => g.unary(Unary::Neg, v),
            5 => {
                let like = narrower(g, &like);
                let factor = g.floats(&like);
                either(g, Binary::Mul, v, factor)
            }
            6 => {
                let divisor = g.scalar(-2.0);
                g.binary(Binary::Div, v, divisor)
            }
            7 if like.len() > 1 => {
                let perm: Vec<usize> = (0..like.len()).rev().collect();
                let turned = g.one(Op::Transpose { perm: perm.clone() }, &[v])?;
                let scale = g.scalar(0.5);
                let scaled = g.binary(sign, turned, scale)?;
                g.one(Op::Transpose { perm }, &[scaled])
            }
            8 => {
                // Drawn once for all rounds.
                let (shape, rng) = (narrower(g, &like), rng(g));
                let op = Op::RandomUniform { dtype: DType::F64, shape, low: 0.5, high: 1.0, rng };
                let factor = g.one(op, &[])?;
                either(g, Binary::Mul, v, factor)
            }
            _ => {
                let like = narrower(g, &like);
                let other = g.floats(&like);
                either(g, sign, v, other)
            }
        }?;
    }
    let Def::State(s) = g.g.values[before].def else { return None };
    g.g.states[s].exit = v;
    if g.chance(25) {
        // Others may read what the state was.
        g.pool.push(before);
    }
    Some(())
}

fn either(g: &mut Generator, f: Binary, a: ValueId, b: ValueId) -> Option<ValueId> {
    let (a, b) = if g.chance(50) { (a, b) } else { (b, a) };
    g.binary(f, a, b)
}
