//! Attention and its gradient against plain loops in `f64`: any shapes, masks that broadcast,
//! rows that are masked wholly, what is dropped as `Dropout` drops it, heads and positions in
//! either order, and gradients against differences.

use super::norms::slopes;
use super::*;
use arenic_ir::op::{AttentionDropout, AttentionSpec, Rng};

/// Extents of an attention.
#[derive(Clone, Copy, Debug)]
struct Extents {
    batch: &'static [usize],
    /// Queries, keys, and elements of a query and of a value.
    t: usize,
    s: usize,
    d: usize,
    e: usize,
}

const fn extents(batch: &'static [usize], [t, s, d, e]: [usize; 4]) -> Extents {
    Extents { batch, t, s, d, e }
}

const EXTENTS: &[Extents] = &[
    extents(&[], [1, 1, 1, 1]),
    extents(&[2], [5, 7, 3, 4]),
    extents(&[2, 3], [4, 4, 2, 2]),
    extents(&[3], [9, 2, 5, 1]),
    extents(&[0, 2], [3, 3, 2, 2]),
    extents(&[2], [0, 3, 2, 2]),
    // Several blocks of one attention, whose gradients are added up in parts.
    extents(&[], [300, 140, 8, 16]),
    extents(&[2, 1], [70, 3000, 4, 5]),
    // As many attentions as lanes, and more.
    extents(&[17, 2], [40, 40, 16, 16]),
];

impl Extents {
    fn operands(&self, r: &mut Random, dtype: DType, group: usize) -> [Tensor; 3] {
        let shape = |shared: usize, rows, columns| {
            let mut batch = self.batch.to_vec();
            batch.last_mut().into_iter().for_each(|heads| *heads /= shared);
            [&batch[..], &[rows, columns]].concat()
        };
        [(1, self.t, self.d), (group, self.s, self.d), (group, self.s, self.e)]
            .map(|(shared, rows, columns)| r.tensor(dtype, shape(shared, rows, columns)))
    }

    /// How many matrices of queries may share keys, of these.
    fn group(&self, r: &mut Random) -> usize {
        let heads = self.batch.last().copied().unwrap_or(1);
        [r.range(1, 4), 17, 1]
            .into_iter()
            .find(|&n| heads > 0 && heads.is_multiple_of(n))
            .unwrap_or(1)
    }
}

/// A mask that broadcasts to the scores, of the numbers that exporters write.
fn mask(r: &mut Random, dtype: DType, x: &Extents) -> Tensor {
    let scores = [x.batch, &[x.t, x.s]].concat();
    let skip = r.range(0, scores.len());
    let shape: Vec<usize> =
        scores[skip..].iter().map(|&n| if r.range(0, 2) == 0 { 1 } else { n }).collect();
    let low = r.choose(&[-1e4, -1e9, f64::from(f32::MIN), f64::NEG_INFINITY]);
    let mut mask = r.tensor(dtype, shape);
    for v in &mut mask.values {
        *v = if *v < 0.0 { low } else { 0.0 };
    }
    mask
}

/// The product of a query, of all in a row, and a key, times the scale.
fn scaled_product(
    spec: AttentionSpec,
    x: &Extents,
    [q, k]: [&Tensor; 2],
    row: usize,
    s: usize,
) -> f64 {
    let of_keys = row / x.t / spec.group;
    let dot = |i: usize| q.values[row * x.d + i] * k.values[(of_keys * x.s + s) * x.d + i];
    spec.scale * (0..x.d).map(dot).sum::<f64>()
}

/// The sums over matrices of queries that share keys, of matrices of so many elements.
fn shared(all: &[f64], group: usize, elements: usize) -> Vec<f64> {
    let of = |matrices: &[f64]| {
        (0..elements).map(|i| matrices.iter().skip(i).step_by(elements).sum()).collect::<Vec<f64>>()
    };
    all.chunks((group * elements).max(1)).flat_map(of).collect()
}

/// The place in a tensor of this shape that broadcasts to an index.
fn broadcast(at: &[usize], own: &[usize]) -> usize {
    let of = at[at.len() - own.len()..].iter().zip(own);
    let of: Vec<usize> = of.map(|(&i, &n)| if n == 1 { 0 } else { i }).collect();
    flat(&of, own)
}

/// Probabilities, maxima and sums of all rows.
fn rows(
    spec: AttentionSpec,
    x: &Extents,
    q: &Tensor,
    k: &Tensor,
    masks: &[&Tensor],
) -> [Vec<f64>; 3] {
    let scores = [x.batch, &[x.t, x.s]].concat();
    let [mut p, mut maxima, mut sums] = [vec![], vec![], vec![]];
    for at in indices(&scores[..scores.len() - 1]) {
        let t = at[at.len() - 1];
        let row = flat(&at, &scores[..at.len()]);
        let score = |s: usize| {
            let mut score = scaled_product(spec, x, [q, k], row, s);
            if let Some(cap) = spec.softcap {
                score = cap * (score / cap).tanh();
            }
            // Near -1e9 each sum is rounded to it.
            let rounded = |x: f64| if q.ty.dtype == DType::F32 { f64::from(x as f32) } else { x };
            for mask in masks {
                let all: Vec<usize> = at.iter().copied().chain([s]).collect();
                score = rounded(rounded(score) + mask.values[broadcast(&all, &mask.ty.shape)]);
            }
            score
        };
        let keys = if spec.causal { x.s.min(t + 1) } else { x.s };
        let row: Vec<f64> = (0..keys).map(score).collect();
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let zero = spec.zero_rows && max == f64::NEG_INFINITY;
        let sum: f64 = if zero { 0.0 } else { row.iter().map(|s| (s - max).exp()).sum() };
        let each = row.iter().map(|s| if zero { 0.0 } else { (s - max).exp() / sum });
        p.extend(each.chain(vec![0.0; x.s - keys]));
        maxima.push(max);
        sums.push(sum);
    }
    [p, maxima, sums]
}

/// What the dropout of ones gives.
fn kept(spec: AttentionSpec, x: &Extents, dtype: DType) -> Vec<f64> {
    let shape = [x.batch, &[x.t, x.s]].concat();
    let ones = Tensor::new(dtype, shape.clone(), vec![1.0; shape.iter().product()]);
    match spec.dropout {
        None => ones.values,
        Some(AttentionDropout { ratio, rng }) => {
            let ratio = Tensor::new(dtype, [], vec![ratio]);
            all(&Op::Dropout { rng }, &[&ones, &ratio]).swap_remove(0).values
        }
    }
}

fn dropout(ratio: f64) -> AttentionDropout {
    AttentionDropout { ratio, rng: Rng { stream: 9, seed: Some(4) } }
}

/// `y[…,i,j] = Σ_k a(…,i,k) · b(…,k,j)`, where `a` and `b` give the elements of one batch index.
fn product(
    batches: usize,
    [m, k, n]: [usize; 3],
    a: impl Fn(usize, usize, usize) -> f64,
    b: impl Fn(usize, usize, usize) -> f64,
) -> Vec<f64> {
    let mut y = Vec::with_capacity(batches * m * n);
    for batch in 0..batches {
        for i in 0..m {
            for j in 0..n {
                y.push((0..k).map(|x| a(batch, i, x) * b(batch, x, j)).sum());
            }
        }
    }
    y
}

/// The tensor with heads and positions exchanged, where `turned` says so.
fn exchanged(x: &Tensor, turned: bool) -> Tensor {
    if !turned {
        return x.clone();
    }
    let mut perm: Vec<usize> = (0..x.ty.rank()).collect();
    perm.swap(x.ty.rank() - 3, x.ty.rank() - 2);
    all(&Op::Transpose { perm }, &[x]).swap_remove(0)
}

/// Operands have heads before positions here, whatever the attention's order is.
fn hold(spec: AttentionSpec, x: &Extents, operands: &[&Tensor], dy: &Tensor, has_result: bool) {
    let ([q, k, v], masks) = ([0, 1, 2].map(|i| operands[i]), &operands[3..]);
    let of_masks: Vec<&TensorType> = masks.iter().map(|m| &m.ty).collect();
    let (batches, what) = (x.batch.iter().product(), (spec, x, of_masks));
    let tolerance = if q.ty.dtype == DType::F32 { 2e-5 } else { 1e-11 };
    let op = Op::Attention { spec };
    let turned = spec.positions_first;
    let stored = [q, k, v].map(|x| exchanged(x, turned));
    let stored = stored.each_ref();
    let found = all(&op, &[&stored[..], masks].concat());
    let (of_o, of_dy) = (&found[0], &exchanged(dy, turned));
    let statistics = [&found[1], &found[2]];
    let found = [&exchanged(of_o, turned), &found[1], &found[2]];
    let [p, max, sum] = rows(spec, x, q, k, masks);
    let kept = kept(spec, x, q.ty.dtype);
    let drop = |(x, kept): (&f64, &f64)| if *kept == 0.0 { 0.0 } else { x * kept };
    let factors: Vec<f64> = p.iter().zip(&kept).map(drop).collect();
    let p_at = |b: usize, t: usize, s: usize| factors[(b * x.t + t) * x.s + s];
    let at = |m: &Tensor, b: usize, i: usize, j: usize| {
        let [.., rows, columns] = m.ty.shape[..] else { unreachable!("a matrix") };
        m.values[(b * rows + i) * columns + j]
    };
    let value = |b: usize, s: usize, e: usize| at(v, b / spec.group, s, e);
    let o = product(batches, [x.t, x.s, x.e], p_at, value);
    for (found, want) in found.into_iter().zip([&o, &max, &sum]) {
        assert_close(found, want, tolerance * 10.0, &what);
    }

    let dp = product(batches, [x.t, x.e, x.s], |b, t, e| at(dy, b, t, e), |b, e, s| value(b, s, e));
    let dp: Vec<f64> = dp.iter().zip(&kept).map(drop).collect();
    let (mut ds, mut of_scores) = (vec![0.0; p.len()], vec![0.0; p.len()]);
    for (row, ds) in ds.chunks_mut(x.s).enumerate() {
        let of = row * x.s..(row + 1) * x.s;
        let total: f64 = of.clone().map(|i| p[i] * dp[i]).sum();
        // What does not count has no gradient, even where the sum is NaN.
        let keys = if spec.causal { x.s.min(row % x.t + 1) } else { x.s };
        for (ds, i) in ds[..keys].iter_mut().zip(of) {
            of_scores[i] = p[i] * (dp[i] - total);
            *ds = spec.scale * of_scores[i];
            if let Some(cap) = spec.softcap {
                let t = (scaled_product(spec, x, [q, k], row, i % x.s) / cap).tanh();
                *ds *= 1.0 - t * t;
            }
        }
    }
    let ds_at = |b: usize, t: usize, s: usize| ds[(b * x.t + t) * x.s + s];
    let dq = product(batches, [x.t, x.s, x.d], ds_at, |b, s, d| at(k, b / spec.group, s, d));
    let by_key = |b: usize, s: usize, t: usize| ds_at(b, t, s);
    let dk = product(batches, [x.s, x.t, x.d], by_key, |b, t, d| at(q, b, t, d));
    let dk = shared(&dk, spec.group, x.s * x.d);
    let by_value = |b: usize, s: usize, t: usize| p_at(b, t, s);
    let dv = product(batches, [x.s, x.t, x.e], by_value, |b, t, e| at(dy, b, t, e));
    let dv = shared(&dv, spec.group, x.s * x.e);
    let of_mask = masks.first().map(|mask| {
        let own = &mask.ty.shape[..mask.ty.rank().saturating_sub(2)];
        let shape = [own, &[x.t, x.s]].concat();
        let mut sums = vec![0.0; shape.iter().product()];
        let scores = indices(&[x.batch, &[x.t, x.s]].concat());
        for (at, ds) in scores.into_iter().zip(&of_scores) {
            sums[broadcast(&at, &shape)] += ds;
        }
        sums
    });
    let result = if has_result { vec![of_o] } else { vec![] };
    let operands = [&stored[..], &statistics, &[of_dy], &result, masks].concat();
    let op = Op::AttentionGrad { spec, of_mask: of_mask.is_some(), has_result };
    let found = all(&op, &operands);
    assert_eq!(found.len(), 3 + usize::from(of_mask.is_some()));
    let found = found.iter().enumerate().map(|(i, x)| exchanged(x, turned && i < 3));
    for (found, want) in found.zip([Some(&dq), Some(&dk), Some(&dv), of_mask.as_ref()]) {
        assert_close(&found, want.expect("as many"), tolerance * 50.0, &what);
    }
}

#[test]
fn plain_loops_agree() {
    let mut r = Random(70);
    for dtype in [DType::F32, DType::F64] {
        for x in EXTENTS {
            for i in 0..12 {
                let (causal, zero_rows) = (i % 2 == 1, i % 4 > 1);
                let scale = r.choose(&[1.0, 0.125, 3.0]);
                let dropout = (i % 3 == 2).then(|| dropout(r.choose(&[0.0, 0.125, 0.75])));
                let softcap = (i % 5 > 2).then(|| r.choose(&[0.5, 2.0, 50.0]));
                let group = if i % 4 == 3 { x.group(&mut r) } else { 1 };
                let positions_first = !x.batch.is_empty() && r.chance();
                let spec = AttentionSpec {
                    scale,
                    causal,
                    zero_rows,
                    dropout,
                    softcap,
                    group,
                    positions_first,
                    packed: false,
                };
                let [q, k, v] = x.operands(&mut r, dtype, group);
                let dy = r.tensor(dtype, [x.batch, &[x.t, x.e]].concat());
                let masks: Vec<Tensor> = (0..i / 4).map(|_| mask(&mut r, dtype, x)).collect();
                let operands: Vec<&Tensor> = [&q, &k, &v].into_iter().chain(&masks).collect();
                hold(spec, x, &operands, &dy, r.chance());
            }
        }
    }
}

/// One tensor of queries, keys and values gives the bits that three give, and so does that of their gradients.
#[test]
fn packed_operands_change_no_bits() {
    let mut r = Random(75);
    for (batch, group, [t, d]) in
        [([2, 1], 1, [5, 3]), ([2, 4], 2, [7, 4]), ([1, 6], 3, [70, 8]), ([3, 2], 1, [300, 16])]
    {
        let heads = batch[1];
        let tensor = |r: &mut Random, heads| r.tensor(DType::F32, [batch[0], t, heads, d]);
        let [q, k, v] = [heads, heads / group, heads / group].map(|heads| tensor(&mut r, heads));
        let dy = tensor(&mut r, heads);
        let mask = r.tensor(DType::F32, [t, t]);
        let packed = |parts: [&Tensor; 3]| all(&Op::Concat { axis: 2 }, &parts).swap_remove(0);
        let together = packed([&q, &k, &v]);
        let apart = AttentionSpec {
            causal: r.chance(),
            group,
            positions_first: true,
            ..AttentionSpec::scaled(0.3)
        };
        let spec = AttentionSpec { packed: true, ..apart };
        let want = all(&Op::Attention { spec: apart }, &[&q, &k, &v, &mask]);
        let found = all(&Op::Attention { spec }, &[&together, &together, &together, &mask]);
        for (found, want) in found.iter().zip(&want) {
            assert_same(found, want, &Op::Attention { spec });
        }
        let operands = [&want[1], &want[2], &dy, &want[0], &mask];
        let gradient = |spec| Op::AttentionGrad { spec, of_mask: true, has_result: true };
        let want = all(&gradient(apart), &[&[&q, &k, &v], &operands[..]].concat());
        let found = all(&gradient(spec), &[&[&together; 3], &operands[..]].concat());
        assert_same(&found[0], &packed([&want[0], &want[1], &want[2]]), &gradient(spec));
        assert_same(&found[1], &want[3], &gradient(spec));
    }
}

#[test]
fn gradients_are_slopes() {
    let mut r = Random(71);
    for (causal, ratio, softcap, group) in [
        (false, None, None, 1),
        (true, None, Some(1.5), 2),
        (false, Some(0.5), None, 4),
        (true, Some(0.25), Some(0.75), 1),
    ] {
        let x = extents(&[4], [4, 5, 3, 2]);
        let [q, k, v] = x.operands(&mut r, DType::F64, group);
        let mask = r.tensor(DType::F64, [4, 4, 5]);
        let dy = r.tensor(DType::F64, [4, 4, 2]);
        let dropout = ratio.map(dropout);
        let spec = AttentionSpec { causal, dropout, softcap, group, ..AttentionSpec::scaled(1.5) };
        let op = Op::Attention { spec };
        let rows = all(&op, &[&q, &k, &v, &mask]);
        let operands = [&q, &k, &v, &rows[1], &rows[2], &dy, &rows[0], &mask];
        let gradient = Op::AttentionGrad { spec, of_mask: true, has_result: true };
        let found = all(&gradient, &operands);
        assert_eq!(found.len(), 4);
        for (i, found) in found.iter().enumerate() {
            let want = slopes(&op, &[&q, &k, &v, &mask], i, &dy);
            assert_close(found, &want, 1e-8, &(spec, i));
        }
    }
}

/// A row that a finite mask covers wholly has the probabilities of its scores as they are
/// rounded, for gradients, too: the maximum keeps its bits.
#[test]
fn wholly_masked_rows_are_even() {
    let mut r = Random(72);
    for low in [-1e9, f64::from(f32::MIN)] {
        let x = extents(&[], [3, 6, 4, 4]);
        let [q, k, v] = x.operands(&mut r, DType::F32, 1);
        let mask = Tensor::new(DType::F32, [3, 1], vec![0.0, low, 0.0]);
        let spec = AttentionSpec::scaled(0.5);
        let found = all(&Op::Attention { spec }, &[&q, &k, &v, &mask]);
        assert_eq!(found[2].values[1], 6.0);
        let dy = Tensor::new(DType::F32, [3, 4], vec![1.0; 12]);
        let operands = [&q, &k, &v, &found[1], &found[2], &dy, &mask];
        let dv = &all(&Op::AttentionGrad { spec, of_mask: false, has_result: false }, &operands)[2];
        let total: f64 = dv.values.iter().sum();
        assert!((total - 12.0).abs() < 1e-4, "{total}");
    }
}
