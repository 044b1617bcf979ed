//! Softmax attention.

use super::*;
use arenic_ir::op::{AttentionDropout, AttentionSpec};

#[test]
fn attention() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let (batch, _) = shapes(r, 2);
        let [t, s, d, e] = [0; 4].map(|_| r.usize(1..5));
        let (causal, zero_rows, drops) = (r.bool(), r.bool(), r.bool());
        let rng = arenic_ir::op::Rng { stream: seed, seed: None };
        let dropout = drops.then_some(AttentionDropout { ratio: 0.3, rng });
        let (softcap, group) = (r.bool().then_some(1.5), r.usize(1..3));
        let group = if batch.is_empty() { 1 } else { group };
        let spec = AttentionSpec {
            causal,
            zero_rows,
            dropout,
            softcap,
            group,
            ..AttentionSpec::scaled(0.7)
        };
        let of = |group: usize, rows: usize, columns: usize| {
            let mut shape = [&batch[..], &[rows, columns]].concat();
            let heads = batch.len().checked_sub(1);
            heads.into_iter().for_each(|at| shape[at] *= group);
            shape
        };
        let mut operands =
            vec![trained(r, &of(group, t, d)), trained(r, &of(1, s, d)), trained(r, &of(1, s, e))];
        if r.bool() {
            // Each axis of the scores or 1, and of the batch perhaps none.
            let scores = of(group, t, s);
            let shape: Vec<usize> = scores.iter().map(|&n| if r.bool() { 1 } else { n }).collect();
            let missing = r.usize(0..=batch.len());
            operands.push(trained(r, &shape[missing..]));
        }
        if r.bool() {
            let mask: Vec<f64> = (0..s).map(|i| if i == 0 { 0.0 } else { -r.f64() }).collect();
            operands.push(Operand::Fixed(TensorType::new(DType::F64, [s]), doubles(&mask)));
        }
        case(&Op::Attention { spec }, &operands);
    }
}
