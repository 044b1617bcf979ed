//! Random uses of attention and recurrences, with their gradients.

use super::generator::Generator;
use super::operators::{done, narrower, rng, shape};
use arenic_ir::ValueId;
use arenic_ir::op::{Activation, AttentionDropout, AttentionSpec, Op};

pub(super) fn attentions(g: &mut Generator) -> Option<()> {
    let q = g.of_rank(2..5)?;
    let of = shape(g, q);
    let n = of.len() - 2;
    let (t, d, s, e) = (of[n], of[n + 1], g.r.usize(1..4), g.r.usize(1..4));
    let like = |last: [usize; 2]| [&of[..n], &last].concat();
    let (k, v) = (g.floats(&like([s, d])), g.floats(&like([s, e])));
    let mask = narrower(g, &like([t, s]));
    let mask = g.chance(50).then(|| g.floats(&mask));
    let dropout = g.chance(15).then(|| AttentionDropout { ratio: 0.3, rng: rng(g) });
    let spec = AttentionSpec { causal: g.chance(30), dropout, ..AttentionSpec::scaled(0.5) };
    let inputs: Vec<_> = [q, k, v].into_iter().chain(mask).collect();
    let y = g.node(Op::Attention { spec }, &inputs)?;
    let gradient = g.floats(&like([t, e]));
    let inputs: Vec<_> = [q, k, v, y[1], y[2], gradient].into_iter().chain(mask).collect();
    g.node(Op::AttentionGrad { spec, of_mask: false, has_result: false }, &inputs).and_then(done)
}

/// Steps, batch and hidden units of a recurrence with so many gates, and what the input gives.
fn recurrence(g: &mut Generator, gates: usize) -> Option<(ValueId, [usize; 3])> {
    let h = g.r.usize(1..3);
    let mut x = g.shaped(3)?;
    if g.chance(60) {
        x = g.swapped(x, 1)?;
    }
    let of = shape(g, x);
    let w = g.floats(&[of[2], gates * h]);
    let pre = g.one(Op::MatMul { trans_a: false, trans_b: false }, &[x, w])?;
    Some((pre, [of[0], of[1], h]))
}

/// The state before the first step: zeros, or one for each row.
fn before(g: &mut Generator, shape: &[usize]) -> Option<ValueId> {
    if g.chance(50) { g.zeros(shape) } else { Some(g.floats(shape)) }
}

pub(super) fn lstms(g: &mut Generator) -> Option<()> {
    let (pre, [t, b, h]) = recurrence(g, 4)?;
    let r = g.floats(&[4 * h, h]);
    let (h0, c0) = (before(g, &[b, h])?, before(g, &[b, h])?);
    let peepholes = g.chance(30).then(|| g.floats(&[3 * h]));
    let reverse = g.chance(30);
    let inputs: Vec<_> = [pre, r, h0, c0].into_iter().chain(peepholes).collect();
    let y = g.node(Op::Lstm { reverse }, &inputs)?;
    let dy = g.floats(&[t, b, h]);
    let dcells = g.chance(50).then(|| g.floats(&[t, b, h]));
    let more = dcells.into_iter().chain(peepholes);
    let inputs: Vec<_> = [y[1], y[2], r, c0, dy].into_iter().chain(more).collect();
    g.node(Op::LstmGrad { reverse, dcells: dcells.is_some() }, &inputs).and_then(done)
}

pub(super) fn grus(g: &mut Generator) -> Option<()> {
    let (pre, [t, b, h]) = recurrence(g, 3)?;
    let (r, h0) = (g.floats(&[3 * h, h]), before(g, &[b, h])?);
    let (reverse, linear_before_reset) = (g.chance(30), g.chance(50));
    let bias = linear_before_reset.then(|| g.floats(&[h]));
    let inputs: Vec<_> = [pre, r, h0].into_iter().chain(bias).collect();
    let y = g.node(Op::Gru { reverse, linear_before_reset }, &inputs)?;
    let dy = g.floats(&[t, b, h]);
    let m = linear_before_reset.then(|| g.floats(&[t, b, h]));
    let inputs: Vec<_> = [y[1], y[0], r, h0, dy].into_iter().chain(m).collect();
    g.node(Op::GruGrad { reverse, linear_before_reset }, &inputs).and_then(done)
}

pub(super) fn rnns(g: &mut Generator) -> Option<()> {
    let (pre, [t, b, h]) = recurrence(g, 1)?;
    let (r, h0) = (g.floats(&[h, h]), before(g, &[b, h])?);
    let activation = if g.chance(50) { Activation::Tanh } else { Activation::Relu };
    let reverse = g.chance(30);
    let y = g.one(Op::Rnn { reverse, activation }, &[pre, r, h0])?;
    let dy = g.floats(&[t, b, h]);
    g.node(Op::RnnGrad { reverse, activation }, &[y, r, dy]).and_then(done)
}
