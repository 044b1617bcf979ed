//! Random uses of every operator, some with their gradients. Each gives `None` where nothing fits.

use super::generator::Generator;
use super::indexing::{
    element_gathers, element_scatters, gathers, gathers_behind, scatters, top_ks, tuple_gathers,
};
use super::sequences::{attentions, grus, lstms, rnns};
use super::totals::moments;
use super::windows::{
    average_pools, channels_last, convolutions, max_pools, resizes, transposed_convolutions,
};
use arenic_ir::DType;
use arenic_ir::op::{Binary, Op, Reduction, Rng, Step, Unary};

type Operator = fn(&mut Generator) -> Option<()>;

/// All of them. Those of which there is much to try come more than once.
#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    unaries, binaries, binaries, binaries, choices, casts, integers, clips, pointwise, reductions,
    reductions, reductions, means, pointwise_sums, sums_of_sums, sums_of_sums, centred, centred,
    softmaxes, cross_entropies, layer_norms, batch_norms, mat_muls, mat_muls, gemms, gemms, gemms,
    gelus, product_updates, updates, transposes, transposes, reshapes, reshapes, reshapes, slices,
    pads, concats, expands, gathers, gathers, element_gathers, tuple_gathers, time_major,
    time_major, tokens, channels_last, tuple_gathers, gathers_behind, scatters, scatters, element_scatters,
    top_ks, convolutions, transposed_convolutions, max_pools, average_pools, resizes, attentions,
    lstms, grus, rnns, dropouts, dropouts, random_numbers, random_numbers, drawn_for_all, moments,
    moments, moments,
];

pub(super) fn done<T>(_: T) -> Option<()> {
    Some(())
}

pub(super) fn axis(g: &mut Generator, rank: usize) -> usize {
    g.r.usize(..rank)
}

pub(super) fn shape(g: &Generator, v: arenic_ir::ValueId) -> Vec<usize> {
    g.g.ty(v).shape.to_vec()
}

/// A shape that broadcasts to another one.
pub(super) fn narrower(g: &mut Generator, shape: &[usize]) -> Vec<usize> {
    let first = if g.chance(40) { g.r.usize(..shape.len() + 1) } else { 0 };
    shape[first..].iter().map(|&e| if g.chance(20) { 1 } else { e }).collect()
}

fn unaries(g: &mut Generator) -> Option<()> {
    use Unary::{Abs, Cos, Neg, Relu, Sigmoid, Sin, Tanh};
    let x = g.of_rank(0..5)?;
    let f = [Abs, Cos, Neg, Relu, Sigmoid, Sin, Tanh, Tanh][g.r.usize(..8)];
    g.unary(f, x).and_then(done)
}

fn binaries(g: &mut Generator) -> Option<()> {
    use Binary::{Add, Max, Min, Mul, Sub};
    let x = g.of_rank(0..5)?;
    let f = [Add, Add, Sub, Sub, Mul, Mul, Max, Min][g.r.usize(..8)];
    let other = narrower(g, &shape(g, x));
    let y = g.floats(&other);
    let (a, b) = if g.chance(50) { (x, y) } else { (y, x) };
    g.binary(f, a, b).and_then(done)
}

fn choices(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(0..5)?;
    let (other, wide) = (narrower(g, &shape(g, x)), shape(g, x));
    let (y, z) = (g.floats(&other), g.floats(&wide));
    let which = g.binary(Binary::Less, x, y)?;
    let which = if g.chance(30) { g.unary(Unary::Not, which)? } else { which };
    g.one(Op::Where, &[which, z, y]).and_then(done)
}

fn casts(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(0..5)?;
    let narrow = g.one(Op::Cast { to: DType::F32 }, &[x])?;
    let narrow = match g.chance(50) {
        true => g.one(Op::Reduce { f: Reduction::Sum, axes: vec![0], keep: false }, &[narrow])?,
        false => narrow,
    };
    g.one(Op::Cast { to: DType::F64 }, &[narrow]).and_then(done)
}

/// Integers are exact; they are counted, averaged, multiplied.
fn integers(g: &mut Generator) -> Option<()> {
    let x = match g.any(|ty| ty.dtype == DType::I64 && ty.rank() > 0) {
        Some(x) if g.chance(60) => x,
        _ => {
            let shape = [&[g.rows][..], &g.shape(0..3)].concat();
            g.indices(&shape, 9)
        }
    };
    let rank = g.g.ty(x).rank();
    let axes = vec![axis(g, rank)];
    let keep = g.chance(50);
    let f = match g.r.u32(..6) {
        0 => Reduction::Mean,
        1 => Reduction::Max,
        _ => Reduction::Sum,
    };
    match g.r.u32(..5) {
        0 => g.one(Op::Copy, &[x]),
        1 => g.one(Op::Binary { f: Binary::Add }, &[x, x]),
        2 if rank == 2 => {
            let c = [shape(g, x)[1]; 2];
            let c = g.indices(&c, 5);
            let op = Op::Gemm { alpha: 1.0, beta: 1.0, trans_a: true, trans_b: false };
            g.one(op, &[x, x, c])
        }
        3 => {
            let y = g.one(Op::Reduce { f, axes, keep }, &[x])?;
            g.one(Op::Cast { to: DType::F64 }, &[y])
        }
        _ => g.one(Op::Reduce { f, axes, keep }, &[x]),
    }
    .and_then(done)
}

fn clips(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(0..5)?;
    let (low, high) = (g.scalar(-0.5), g.scalar(0.5));
    let op = |min, max| Op::Clip { min, max };
    match g.r.u32(..3) {
        0 => g.one(op(true, false), &[x, low]),
        1 => g.one(op(false, true), &[x, high]),
        _ => g.one(op(true, true), &[x, low, high]),
    }
    .and_then(done)
}

fn steps() -> Vec<Step> {
    vec![Step::Binary(Binary::Mul, 0, 1), Step::Unary(Unary::Tanh, 2)]
}

fn pointwise(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(0..5)?;
    let other = narrower(g, &shape(g, x));
    let y = g.floats(&other);
    g.node(Op::Pointwise { steps: steps(), results: vec![2, 3] }, &[x, y]).and_then(done)
}

fn some_axes(g: &mut Generator, rank: usize) -> Vec<usize> {
    (0..rank).filter(|_| g.chance(50)).collect()
}

fn reductions(g: &mut Generator) -> Option<()> {
    use Reduction::{Max, Min, Prod, Sum};
    let x = g.of_rank(0..5)?;
    let rank = g.g.ty(x).rank();
    let f = [Sum, Sum, Sum, Max, Min, Prod][g.r.usize(..6)];
    let op = Op::Reduce { f, axes: some_axes(g, rank), keep: g.chance(50) };
    g.one(op, &[x]).and_then(done)
}

fn means(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(0..5)?;
    let rank = g.g.ty(x).rank();
    let op = Op::Reduce { f: Reduction::Mean, axes: some_axes(g, rank), keep: g.chance(50) };
    g.one(op, &[x]).and_then(done)
}

fn pointwise_sums(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..5)?;
    let like = shape(g, x);
    let ones = vec![1; like.len()];
    let y = if g.chance(50) { g.floats(&like) } else { g.floats(&ones) };
    let f = if g.chance(70) { Reduction::Sum } else { Reduction::Mean };
    let axes = some_axes(g, like.len());
    let op = Op::PointwiseReduce { steps: steps(), f, axes, keep: g.chance(50) };
    g.one(op, &[x, y]).and_then(done)
}

/// Sums over the first axis of two tensors meet.
fn sums_of_sums(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..4)?;
    let like = shape(g, x);
    let y = g.floats(&like);
    let sum = |f| Op::Reduce { f, axes: vec![0], keep: false };
    let f = if g.chance(80) { Reduction::Sum } else { Reduction::Mean };
    let (a, b) = (g.one(sum(Reduction::Sum), &[x])?, g.one(sum(f), &[y])?);
    let f = [Binary::Add, Binary::Sub, Binary::Mul][g.r.usize(..3)];
    let both = g.binary(f, a, b)?;
    if g.chance(30) {
        return g.binary(Binary::Add, both, a).and_then(done);
    }
    Some(())
}

/// A sum or another statistic goes back to the rows that it is of.
fn centred(g: &mut Generator) -> Option<()> {
    use Reduction::{Max, Mean, Sum};
    let x = g.of_rank(1..5)?;
    let f = [Sum, Mean, Max][g.r.usize(..3)];
    let statistic = g.one(Op::Reduce { f, axes: vec![0], keep: true }, &[x])?;
    g.binary(Binary::Sub, x, statistic).and_then(done)
}

fn softmaxes(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..5)?;
    let like = shape(g, x);
    let axis = axis(g, like.len());
    let dy = g.floats(&like);
    if g.chance(50) {
        let y = g.one(Op::Softmax { axis }, &[x])?;
        return g.one(Op::SoftmaxGrad { axis }, &[y, dy]).and_then(done);
    }
    let y = g.one(Op::LogSoftmax { axis }, &[x])?;
    g.one(Op::LogSoftmaxGrad { axis }, &[y, dy]).and_then(done)
}

fn cross_entropies(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..4)?;
    let mut rows = shape(g, x);
    let classes = *rows.last()?;
    *rows.last_mut()? = 1;
    let stats = g.node(Op::LogSoftmaxStats, &[x])?;
    if g.chance(40) {
        return g.one(Op::SoftmaxOfStats, &[x, stats[0], stats[1]]).and_then(done);
    }
    let (target, w) = (g.indices(&rows, classes), g.floats(&rows));
    g.one(Op::CrossEntropyGrad, &[x, stats[0], stats[1], target, w]).and_then(done)
}

fn layer_norms(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(2..5)?;
    let like = shape(g, x);
    let first = g.r.usize(1..like.len());
    let (scale, bias) = (g.floats(&like[first..]), g.floats(&like[first..]));
    let y = g.node(Op::LayerNorm { axis: first, epsilon: 0.1 }, &[x, scale, bias])?;
    let dy = g.floats(&like);
    if g.chance(60) {
        g.node(Op::LayerNormParamGrad { axis: first }, &[x, dy, y[1], y[2]])?;
    }
    g.one(Op::LayerNormInputGrad { axis: first }, &[x, dy, scale, y[1], y[2]]).and_then(done)
}

fn batch_norms(g: &mut Generator) -> Option<()> {
    let mut x = g.of_rank(2..5)?;
    if g.chance(60) {
        // Channels that are the batch.
        x = g.swapped(x, 1)?;
    }
    let like = shape(g, x);
    let channels = &like[1..2];
    let value = g.r.f64();
    let factor = |g: &mut Generator, x: f64| {
        let one = g.scalar(x);
        g.one(Op::Expand { shape: channels.to_vec() }, &[one])
    };
    let (scale, bias) = (factor(g, value)?, factor(g, 0.5)?);
    let y = g.node(Op::BatchNorm { epsilon: 0.1 }, &[x, scale, bias])?;
    let dy = g.floats(&like);
    let d = g.node(Op::BatchNormParamGrad, &[x, dy, y[1], y[3]])?;
    let inputs = [x, dy, scale, y[1], y[3], d[0], d[1]];
    g.one(Op::BatchNormInputGrad, &inputs).and_then(done)
}

fn mat_muls(g: &mut Generator) -> Option<()> {
    let a = g.of_rank(2..5)?;
    let of = shape(g, a);
    let rank = of.len();
    let (trans_a, trans_b) = (g.chance(40), g.chance(40));
    let inner = if trans_a { of[rank - 2] } else { of[rank - 1] };
    let other = g.r.usize(1..4);
    let last = if trans_b { [other, inner] } else { [inner, other] };
    let batch = if g.chance(50) { narrower(g, &of[..rank - 2]) } else { Vec::new() };
    let b = match (trans_a, trans_b, g.chance(30)) {
        // The gradient of a weight, or scores.
        (true, false, true) | (false, true, true) => a,
        _ => g.floats(&[&batch[..], &last].concat()),
    };
    g.one(Op::MatMul { trans_a, trans_b }, &[a, b]).and_then(done)
}

/// Operands of a product of matrices: transposed or not, its type.
struct Matrices {
    of: [arenic_ir::ValueId; 2],
    trans_a: bool,
    trans_b: bool,
    shape: [usize; 2],
}

fn matrices(g: &mut Generator) -> Option<Matrices> {
    let a = g.shaped(2)?;
    let of = shape(g, a);
    let (trans_a, trans_b) = (g.chance(50), g.chance(40));
    let (m, k) = if trans_a { (of[1], of[0]) } else { (of[0], of[1]) };
    let n = g.r.usize(1..4);
    let b = g.floats(&if trans_b { [n, k] } else { [k, n] });
    match g.chance(70) {
        true => Some(Matrices { of: [a, b], trans_a, trans_b, shape: [m, n] }),
        // The other way round.
        false => Some(Matrices { of: [b, a], trans_a: !trans_b, trans_b: !trans_a, shape: [n, m] }),
    }
}

fn gemms(g: &mut Generator) -> Option<()> {
    let Matrices { of: [a, b], trans_a, trans_b, shape } = matrices(g)?;
    let (alpha, beta) = ([1.0, 0.5][g.r.usize(..2)], [1.0, 0.25, 0.0][g.r.usize(..3)]);
    let op = Op::Gemm { alpha, beta, trans_a, trans_b };
    if g.chance(30) {
        return g.one(op, &[a, b]).and_then(done);
    }
    let like = narrower(g, &shape);
    let c = g.floats(&like);
    let y = g.one(op.clone(), &[a, b, c])?;
    // Gradients from several uses of a weight are added so.
    if g.chance(50) {
        g.one(op, &[a, b, y])?;
    }
    Some(())
}

fn gelus(g: &mut Generator) -> Option<()> {
    let Matrices { of: [a, b], trans_a, trans_b, shape } = matrices(g)?;
    let bias = g.floats(&shape[1..]);
    let y = match g.chance(50) {
        true => g.node(Op::GemmGelu { trans_a, trans_b }, &[a, b, bias])?,
        false => g.node(Op::GemmGelu { trans_a, trans_b }, &[a, b])?,
    };
    g.one(Op::GemmGeluGrad { trans_a, trans_b }, &[a, b, y[1]]).and_then(done)
}

fn product_updates(g: &mut Generator) -> Option<()> {
    let Matrices { of: [a, b], trans_a, trans_b, shape } = matrices(g)?;
    let (x, rate) = (g.floats(&shape), g.floats(&[]));
    let (with, minus) = (Step::Binary(Binary::Mul, 1, 2), Step::Binary(Binary::Sub, 0, 3));
    let update = Box::new(Op::Pointwise { steps: vec![with, minus], results: vec![4] });
    let op = Op::ProductUpdate { alpha: 0.5, trans_a, trans_b, gradient: 2, update };
    g.one(op, &[x, rate, a, b]).and_then(done)
}

fn updates(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(0..4)?;
    let like = shape(g, x);
    let (rate, count) = (g.floats(&[]), g.indices(&[], 1));
    let (gradient, v) = (g.floats(&like), g.floats(&like));
    let h = g.unary(Unary::Abs, v)?;
    let (epsilon, norm_coefficient) = (0.5, 0.1);
    let (alpha, beta, norm_coefficient_post) = (0.9, 0.8, 0.1);
    match g.r.u32(..3) {
        0 => {
            let op = Op::Adam { alpha, beta, epsilon, norm_coefficient, norm_coefficient_post };
            g.node(op, &[rate, count, x, gradient, v, h])
        }
        1 => {
            let op = Op::Adagrad { decay_factor: 0.1, epsilon, norm_coefficient };
            g.node(op, &[rate, count, x, gradient, h])
        }
        _ => {
            let op = Op::Momentum { alpha, beta, nesterov: g.chance(50), norm_coefficient };
            g.node(op, &[rate, count, x, gradient, v])
        }
    }
    .and_then(done)
}

fn transposes(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(2..5)?;
    let mut perm: Vec<usize> = (0..g.g.ty(x).rank()).collect();
    g.r.shuffle(&mut perm);
    g.one(Op::Transpose { perm }, &[x]).and_then(done)
}

/// Axes are merged, split, or all laid anew.
fn reshapes(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..5)?;
    let mut shape = shape(g, x);
    for _ in 0..g.r.usize(1..3) {
        let at = g.r.usize(..shape.len());
        match g.r.u32(..4) {
            0 | 1 if at > 0 => {
                let extent = shape.remove(at);
                shape[at - 1] *= extent;
            }
            2 => {
                let divisors: Vec<usize> =
                    (1..=shape[at]).filter(|d| shape[at].is_multiple_of(*d)).collect();
                let outer = divisors[g.r.usize(..divisors.len())];
                shape[at] /= outer;
                shape.insert(at, outer);
            }
            _ => shape.insert(at, 1),
        }
    }
    if shape.len() > 6 {
        return None;
    }
    g.one(Op::Reshape { shape }, &[x]).and_then(done)
}

/// Steps come first, and rows of the batch are merged with them.
fn time_major(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(2..5)?;
    let x = g.swapped(x, 1)?;
    let mut merged = shape(g, x);
    let inner = merged.remove(1);
    merged[0] *= inner;
    g.one(Op::Reshape { shape: merged }, &[x]).and_then(done)
}

/// Axes behind the batch are merged with it, as those of an input are.
fn tokens(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(2..4)?;
    let mut merged = shape(g, x);
    let inner = merged.remove(1);
    merged[0] *= inner;
    let y = g.input(DType::F64, &merged);
    let x = g.one(Op::Reshape { shape: merged }, &[x])?;
    g.binary(Binary::Mul, x, y).and_then(done)
}

fn slices(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..5)?;
    let of = shape(g, x);
    let (mut starts, mut steps, mut to) = (vec![0; of.len()], vec![1; of.len()], of.clone());
    let d = axis(g, of.len());
    match g.r.u32(..3) {
        0 => (starts[d], steps[d]) = (of[d] - 1, -1),
        1 => {
            starts[d] = g.r.usize(..of[d]);
            to[d] -= starts[d];
        }
        _ => {
            steps[d] = 2;
            to[d] = of[d].div_ceil(2);
        }
    }
    g.one(Op::Slice { starts, steps, shape: to }, &[x]).and_then(done)
}

fn pads(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..5)?;
    let mut shape = shape(g, x);
    let (mut starts, mut steps) = (vec![0; shape.len()], vec![1; shape.len()]);
    let d = axis(g, shape.len());
    starts[d] = g.r.usize(..2);
    steps[d] = g.r.usize(1..3);
    shape[d] = starts[d] + (shape[d] - 1) * steps[d] + 1 + g.r.usize(..2);
    g.one(Op::Pad { starts, steps, shape, value: 0.5 }, &[x]).and_then(done)
}

fn concats(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..5)?;
    let mut other = shape(g, x);
    let axis = axis(g, other.len());
    if g.chance(50) {
        other[axis] = g.r.usize(1..3);
    }
    let y = g.floats(&other);
    let both = if g.chance(50) { [x, y] } else { [y, x] };
    g.one(Op::Concat { axis }, &both).and_then(done)
}

fn expands(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(0..4)?;
    let mut shape = shape(g, x);
    for extent in shape.iter_mut().filter(|extent| **extent == 1) {
        *extent = [1, 2, g.rows][g.r.usize(..3)];
    }
    if g.chance(50) || shape.is_empty() {
        shape.insert(0, [2, g.rows][g.r.usize(..2)]);
    }
    g.one(Op::Expand { shape }, &[x]).and_then(done)
}

pub(super) fn rng(g: &mut Generator) -> Rng {
    Rng { stream: g.g.nodes.len() as u64, seed: g.chance(20).then_some(3) }
}

fn dropouts(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(0..5)?;
    let ratio = g.scalar(0.4);
    let rng = rng(g);
    g.node(Op::Dropout { rng }, &[x, ratio]).and_then(done)
}

/// Alone, or for the rows of the batch.
fn random_numbers(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(0..5)?;
    let like = shape(g, x);
    let shape = if g.chance(60) { like } else { narrower(g, &like) };
    let rng = rng(g);
    let op = Op::RandomUniform { dtype: DType::F64, shape, low: -1.0, high: 1.0, rng };
    let y = g.one(op, &[])?;
    g.binary(Binary::Mul, x, y).and_then(done)
}

/// Numbers that are drawn once for all rows, in a value that has the rows.
fn drawn_for_all(g: &mut Generator) -> Option<()> {
    let x = g.of_rank(1..4)?;
    let like = shape(g, x);
    let op = |shape: &[usize], rng| {
        let shape = shape.to_vec();
        Op::RandomUniform { dtype: DType::F64, shape, low: -1.0, high: 1.0, rng }
    };
    let rng = rng(g);
    let y = if like.len() == 2 && g.chance(50) {
        let drawn = g.one(op(&[3, like[1]], rng), &[])?;
        let rows = g.constant(&[like[0], 3]);
        g.one(Op::MatMul { trans_a: false, trans_b: false }, &[rows, drawn])?
    } else {
        let drawn = g.one(op(&like[1..], rng), &[])?;
        let rows = g.constant(&like);
        g.binary(Binary::Add, rows, drawn)?
    };
    g.binary(Binary::Mul, x, y).and_then(done)
}
