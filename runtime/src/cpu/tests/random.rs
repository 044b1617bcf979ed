//! Dropout and uniform draws.

use super::{Setting, Source, Tensor, refusal, run_all_ways, run_as};
use crate::kernel::{Draw, KernelError};
use arenic_ir::op::{AttentionDropout, AttentionSpec, Rng};
use arenic_ir::{DType, Op};

fn dropout(stream: u64) -> Op {
    Op::Dropout { rng: Rng { stream, seed: None } }
}

fn uniform(shape: &[usize], rng: Rng) -> Op {
    let shape = shape.to_vec();
    Op::RandomUniform { dtype: DType::F32, shape, low: -2.0, high: 3.0, rng }
}

fn drawn(op: &Op, draw: Draw) -> Vec<f32> {
    run_all_ways(op, &[], draw)[0].values()
}

#[test]
fn dropout_keeps_and_scales() {
    let mut source = Source(31);
    for n in [1, 63, 64, 1000, 100_000] {
        let x: Vec<f32> = (0..n).map(|_| source.below(1000) as f32 - 500.0).collect();
        let inputs = [Tensor::new(&[n], &x), Tensor::new(&[], &[0.25f32])];
        let draw = Draw { seed: 5, step: 9, round: 0 };
        let results = run_all_ways(&dropout(3), &inputs, draw);
        let (y, mask) = (results[0].values::<f32>(), &results[1].bytes);
        for i in 0..n {
            assert_eq!(y[i], if mask[i] == 1 { x[i] * (1.0 / 0.75) } else { 0.0 });
            assert!(mask[i] <= 1);
        }
        if n == 100_000 {
            let kept = mask.iter().map(|&m| usize::from(m)).sum::<usize>();
            assert!(kept.abs_diff(75_000) < 700, "{kept}");
        }
        for unread in [0, 1] {
            let setting = Setting { draw, unread: &[unread], ..Setting::default() };
            let alone = run_as(&dropout(3), &inputs, setting).unwrap();
            assert_eq!(alone[1 - unread], results[1 - unread]);
        }
    }
}

#[test]
fn dropout_ratios() {
    let x = Tensor::new(&[100], &[1f64; 100]);
    let all = run_all_ways(&dropout(0), &[x.clone(), Tensor::new(&[1], &[0f32])], Draw::default());
    assert_eq!((&all[0], &all[1].bytes), (&x, &vec![1; 100]));
    for ratio in [-0.1f32, 1.0, 1.5, f32::NAN] {
        let error = refusal(&dropout(0), &[x.clone(), Tensor::new(&[], &[ratio])]);
        assert!(matches!(error, KernelError::Ratio(_)), "{error}");
    }
}

#[test]
fn draws_depend_on_seed_step_stream_and_element_alone() {
    let key = |stream, seed| Rng { stream, seed };
    let base = drawn(&uniform(&[70_001], key(1, None)), Draw { seed: 7, step: 2, round: 0 });
    // Neither shape nor size.
    let smaller = drawn(&uniform(&[3, 211], key(1, None)), Draw { seed: 7, step: 2, round: 0 });
    assert_eq!(smaller, base[..633]);
    // An explicit seed takes the run's place.
    let explicit =
        drawn(&uniform(&[70_001], key(1, Some(7))), Draw { seed: 99, step: 2, round: 0 });
    assert_eq!(explicit, base);
    for (rng, draw) in [
        (key(2, None), Draw { seed: 7, step: 2, round: 0 }),
        (key(1, None), Draw { seed: 8, step: 2, round: 0 }),
        (key(1, None), Draw { seed: 7, step: 3, round: 0 }),
    ] {
        let other = drawn(&uniform(&[70_001], rng), draw);
        let equal = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(equal < 10, "{equal} of the elements agree");
    }
    assert!(base.iter().all(|x| (-2.0..3.0).contains(x)));
    let mean = base.iter().sum::<f32>() / base.len() as f32;
    assert!((mean - 0.5).abs() < 0.03, "{mean}");
}

#[test]
fn the_upper_end_is_never_drawn() {
    // Half of these draws would round to the upper end.
    let (low, high) = (1.0f32, 1.0f32.next_up());
    let rng = Rng { stream: 0, seed: None };
    let op = Op::RandomUniform { dtype: DType::F32, shape: vec![100], low, high, rng };
    assert_eq!(drawn(&op, Draw::default()), [1.0; 100]);
}

/// Rows of the first axis, in so many equal parts.
fn part(whole: &Tensor, count: usize, k: usize) -> Tensor {
    let mut ty = whole.ty.clone();
    ty.shape[0] /= count;
    let len = whole.bytes.len() / count;
    Tensor { ty, bytes: whole.bytes[k * len..(k + 1) * len].to_vec() }
}

/// A part in each round makes the rows that the whole batch makes at once.
fn holds_in_rounds(op: &Op, of_part: &Op, inputs: &[Tensor], by_rows: usize, count: usize) {
    let draw = Draw { seed: 3, step: 8, round: 0 };
    let whole = run_all_ways(op, inputs, draw);
    for k in 0..count {
        let cut =
            |(i, x): (usize, &Tensor)| if i < by_rows { part(x, count, k) } else { x.clone() };
        let inputs: Vec<Tensor> = inputs.iter().enumerate().map(cut).collect();
        let rows = run_all_ways(of_part, &inputs, Draw { round: k as u64, ..draw });
        for (o, (rows, whole)) in rows.iter().zip(&whole).enumerate() {
            assert_eq!(*rows, part(whole, count, k), "{}: result {o}, round {k}", op.name());
        }
    }
}

#[test]
fn rounds_draw_what_the_whole_batch_draws() {
    let mut source = Source(32);
    for (count, rows, row) in [(2, 1, 4), (4, 3, 20), (8, 5, 164), (3, 2, 50_000)] {
        let key = Rng { stream: 6, seed: None };
        let all = count * rows;
        holds_in_rounds(&uniform(&[all, row], key), &uniform(&[rows, row], key), &[], 0, count);
        let (x, ratio) = (source.tensor(DType::F32, &[all, row]), Tensor::new(&[], &[0.5f32]));
        holds_in_rounds(&dropout(6), &dropout(6), &[x, ratio], 1, count);
    }
    for causal in [false, true] {
        let dropout = Some(AttentionDropout { ratio: 0.5, rng: Rng { stream: 6, seed: None } });
        let spec = AttentionSpec { causal, dropout, ..AttentionSpec::scaled(0.5) };
        // Of each round 2 · 3 · 5 · 6 scores and a multiple of four.
        let [q, k, v, dy] =
            [[5, 4], [6, 4], [6, 3], [5, 3]].map(|[n, m]| source.tensor(DType::F32, &[8, 3, n, m]));
        let op = Op::Attention { spec };
        let inputs = [q, k, v];
        holds_in_rounds(&op, &op, &inputs, 3, 4);
        let stats = run_all_ways(&op, &inputs, Draw { seed: 3, step: 8, round: 0 });
        let [q, k, v] = inputs;
        let inputs = [q, k, v, stats[1].clone(), stats[2].clone(), dy];
        let op = Op::AttentionGrad { spec, of_mask: false, has_result: false };
        holds_in_rounds(&op, &op, &inputs, 6, 4);
    }
}

/// Where a part's elements are no multiple of four, rounds share no counter.
#[test]
fn no_two_rounds_draw_the_same() {
    let rng = Rng { stream: 6, seed: None };
    let op = Op::RandomUniform { dtype: DType::F64, shape: vec![3, 67], low: 0.0, high: 1.0, rng };
    let mut seen = std::collections::HashSet::new();
    for round in 0..50 {
        let drawn = run_all_ways(&op, &[], Draw { seed: 1, step: 2, round });
        for x in drawn[0].values::<f64>() {
            assert!(seen.insert(x.to_bits()), "{x} in round {round}");
        }
    }
}
