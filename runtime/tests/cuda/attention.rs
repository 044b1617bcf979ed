//! Attention and its gradient: fewer rows than a tile has and more, tiles of every size, masks that
//! broadcast, heads and positions in either order, rows that are masked wholly, dropout, and results that nobody reads; by additions and
//! multiplications and by tensor cores.

use super::random::Random;
use super::{Case, Close, Tensor};
use arenic_ir::op::{AttentionDropout, AttentionSpec, Rng};
use arenic_ir::{DType, Math, Op, TensorType};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::evaluate;

/// The batch, then queries, keys, and elements of a query and of a value.
const EXTENTS: &[(&[usize], [usize; 4])] = &[
    (&[], [1, 1, 1, 1]),
    (&[2, 3], [5, 7, 3, 4]),
    (&[2], [33, 40, 8, 9]),
    (&[1, 2], [70, 31, 16, 5]),
    (&[2], [20, 20, 100, 80]),
    (&[2], [65, 64, 64, 64]),
    (&[2, 4], [18, 20, 16, 8]),
    (&[6], [35, 33, 8, 16]),
    (&[], [65, 80, 64, 64]),
    (&[2], [200, 150, 64, 64]),
    (&[], [15, 130, 33, 48]),
    (&[2], [49, 17, 16, 32]),
    (&[], [17, 19, 256, 256]),
    (&[0, 2], [3, 3, 2, 2]),
    (&[2], [0, 3, 2, 2]),
];

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    let ways = [
        (DType::F32, Math::F32),
        (DType::F32, Math::Tf32),
        (DType::F64, Math::F32),
        (DType::Bf16, Math::F32),
    ];
    for (way, (dtype, math)) in ways.into_iter().enumerate() {
        for (j, &(batch, extents)) in EXTENTS.iter().enumerate() {
            // Each is some kernels to compile, long ones for long rows, so that no extents have
            // all kinds, and of the ways the first one alone all extents.
            let kinds: &[usize] = match way {
                0 if extents[2] > 200 => &[0],
                0 => &[0, 1],
                _ if (way + j) % 2 == 1 => &[2],
                _ => &[],
            };
            for i in kinds.iter().map(|kind| (kind + j) % 4) {
                let scale = r.choose(&[1.0, 0.25]);
                // Where rows begin within the words of a counter, and where they do not.
                let dropout = (i + j) % 3 == 1;
                let dropout = dropout.then(|| {
                    let rng = Rng { stream: 5, seed: r.chance().then_some(8) };
                    AttentionDropout { ratio: r.choose(&[0.0, 0.25, 0.9]), rng }
                });
                let (causal, zero_rows) = (i % 2 == 1, i > 1);
                let softcap = (i + j).is_multiple_of(2).then_some(1.5);
                let heads = batch.last().copied().unwrap_or(0);
                let group = [4, 3].into_iter().find(|&n| heads > 3 && heads.is_multiple_of(n));
                let group = group.unwrap_or(1);
                let positions_first = !batch.is_empty() && j % 2 == 0;
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
                let both = both(r, dtype, batch, extents, spec, i % 3);
                cases
                    .extend(both.map(|case| if math == Math::Tf32 { in_tf32(case) } else { case }));
            }
        }
    }
    // As a library takes them: no mask, no dropout, rows of multiples of 8 elements.
    for (i, extents) in [[65, 64, 64, 64], [40, 33, 8, 16]].into_iter().enumerate() {
        for (group, positions_first) in [(1, false), (1, true), (2, true)] {
            let causal = i == 0;
            let spec =
                AttentionSpec { causal, group, positions_first, ..AttentionSpec::scaled(0.25) };
            cases.extend(both(r, DType::Bf16, &[2, 2], extents, spec, 0));
        }
    }
    for (dtype, group, masks) in [(DType::Bf16, 1, 0), (DType::Bf16, 2, 0), (DType::F32, 2, 1)] {
        let spec = AttentionSpec {
            causal: true,
            group,
            positions_first: true,
            packed: true,
            ..AttentionSpec::scaled(0.25)
        };
        cases.extend(both(r, dtype, &[2, 4], [40, 40, 16, 16], spec, masks));
    }
    cases
}

/// An attention and its gradient.
fn both(
    r: &mut Random,
    dtype: DType,
    batch: &[usize],
    [t, s, d, e]: [usize; 4],
    spec: AttentionSpec,
    masks: usize,
) -> [Case; 2] {
    let shape = |rest: &[usize]| [batch, rest].concat();
    let mut of_keys = batch.to_vec();
    of_keys.last_mut().into_iter().for_each(|heads| *heads /= spec.group);
    let mut matrices = |batch: &[usize], matrix: [usize; 2]| {
        let mut shape = [batch, &matrix].concat();
        if spec.positions_first {
            shape.swap(batch.len() - 1, batch.len());
        }
        r.tame(dtype, shape)
    };
    let [q, k, v] = match spec.packed {
        true => {
            let heads = batch[batch.len() - 1] + 2 * of_keys[batch.len() - 1];
            let all = matrices(&[&batch[..batch.len() - 1], &[heads]].concat(), [t, d]);
            [all.clone(), all.clone(), all]
        }
        false => {
            let [k, v] = [d, e].map(|n| matrices(&of_keys, [s, n]));
            [matrices(batch, [t, d]), k, v]
        }
    };
    let dy = matrices(batch, [t, e]);
    let masks: Vec<Tensor> =
        (0..masks).map(|_| mask(r, dtype.accumulated(), &shape(&[t, s]))).collect();
    let forward = [&[q.clone(), k.clone(), v.clone()], &masks[..]].concat();
    let [o, max, sum] = results(spec, &forward);
    // Half of the gradients have the result, too, and those that a library computes.
    let has_result = t % 2 == 1 || d % 8 == 0;
    let result = if has_result { vec![o] } else { vec![] };
    let backward = [&[q, k, v, max, sum, dy], &result[..], &masks[..]].concat();
    // Probabilities and gradients of scores are rounded as operands of a product are.
    let close = if dtype == DType::Bf16 { Close::BF16 } else { Close::LONG_SUM };
    let gradient = Op::AttentionGrad { spec, of_mask: !masks.is_empty(), has_result };
    [(Op::Attention { spec }, forward), (gradient, backward)].map(|(op, operands)| {
        let one = |i: usize| if i < 3 { 0 } else { i };
        let shared = if spec.packed { (0..operands.len()).map(one).collect() } else { vec![] };
        Case { shared, ..Case::new(op, operands).close(close) }
    })
}

/// The case with products in TF32, of operands that it holds as they are: what is left to be
/// rounded are probabilities and gradients of scores.
fn in_tf32(mut case: Case) -> Case {
    let matrices: &[usize] = if case.inputs.len() > 5 { &[0, 1, 2, 5] } else { &[0, 1, 2] };
    for &i in matrices {
        for bits in case.inputs[i].bytes.as_chunks_mut::<4>().0 {
            *bits = (u32::from_le_bytes(*bits) & !0x1fff).to_le_bytes();
        }
    }
    Case { math: Math::Tf32, ..case.close(Close::TF32) }
}

/// The result, and the maximum and the sum of each row, as the CPU backend gives them.
fn results(spec: AttentionSpec, operands: &[Tensor]) -> [Tensor; 3] {
    let op = Op::Attention { spec };
    let operands: Vec<(&TensorType, &[u8])> =
        operands.iter().map(|t| (&t.ty, &t.bytes[..])).collect();
    let found = evaluate(&op, &operands, Draw::default()).expect("operands fit");
    [0, 1, 2].map(|o| Tensor { ty: found[o].0.clone(), bytes: found[o].1.clone() })
}

/// A mask of the numbers that exporters write. Near -1e4 scores in `f32` have few digits left, so
/// that rows which it covers wholly differ with the order of a product's sums.
fn mask(r: &mut Random, dtype: DType, scores: &[usize]) -> Tensor {
    let low = if dtype == DType::F64 { -1e4 } else { -1e9 };
    let low = r.choose(&[low, -1e9, f64::from(f32::MIN), f64::NEG_INFINITY]);
    let shape = r.broadcast_to(scores);
    r.fill(dtype, shape, |r| if r.chance() { low } else { 0.0 })
}
