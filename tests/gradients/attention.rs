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
        let spec = AttentionSpec { scale: 0.7, causal, zero_rows, dropout };
        let of = |rows: usize, columns: usize| [&batch[..], &[rows, columns]].concat();
        let mut operands =
            vec![trained(r, &of(t, d)), trained(r, &of(s, d)), trained(r, &of(s, e))];
        if r.bool() {
            let mask: Vec<f64> = (0..s).map(|i| if i == 0 { 0.0 } else { -r.f64() }).collect();
            operands.push(Operand::Fixed(TensorType::new(DType::F64, [s]), doubles(&mask)));
        }
        case(&Op::Attention { spec }, &operands);
    }
}
