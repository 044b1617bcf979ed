//! Normalisations and gradients of all forms with steps: those of other tests, with what follows them,
//! or makes their `dy`, as part of them.

use super::random::Random;
use super::{Case, Close, Tensor, batch_norm, norm};
use arenic_ir::op::fused_norm::DY;
use arenic_ir::op::{Binary, Step, Unary};
use arenic_ir::{DType, Op};

/// Most elements: many more are dear to emulate. Some have as many as threads take several of.
const MOST: usize = 1 << 17;

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let plain = [batch_norm::cases(r), norm::cases(r)].concat();
    let few = plain.into_iter().filter(|case| case.inputs[0].ty.elements() <= MOST);
    let mut cases: Vec<Case> = few.map(|case| fused(r, case)).collect();
    for (of, stats) in [
        (Op::BatchNormParamGrad, [vec![40], vec![40]]),
        (Op::LayerNormParamGrad { axis: 1 }, [vec![70, 1], vec![70, 1]]),
    ] {
        // Without steps, widened as it is read.
        let mut inputs = vec![r.tame(DType::F32, [70, 40])];
        inputs.extend(stats.map(|shape| r.tame(DType::F32, shape)));
        inputs.push(r.tame(DType::Bf16, [70, 40]));
        let op = Op::FusedNormGrad { of: Box::new(of), steps: vec![] };
        cases.push(Case::new(op, inputs).close(Close::LONG_SUM));
    }
    cases
}

fn fused(r: &mut Random, case: Case) -> Case {
    let (x, mut inputs) = (case.inputs[0].ty.clone(), case.inputs);
    let wide = x.dtype.accumulated();
    let others = |r: &mut Random| {
        let (second, one) = (r.choose(&[x.dtype, wide]), r.range(0, 1));
        [
            r.tame(DType::Bool, x.shape.clone()),
            r.tame(second, x.shape.clone()),
            r.tame(wide, vec![1; one]),
        ]
    };
    let rounds = |steps: &mut Vec<Step>, last: usize| {
        steps.extend((x.dtype == DType::Bf16).then_some(Step::Round(last)));
    };
    // Functions without jumps: results differ by as little as those of the operator alone.
    let op = match case.op {
        of @ (Op::BatchNorm { .. } | Op::LayerNorm { .. }) => {
            inputs.extend(others(r));
            let mut steps = vec![
                Step::Binary(Binary::Add, 0, 2),
                Step::Unary(Unary::Relu, 4),
                Step::Binary(Binary::Mul, 5, 3),
                Step::Where(1, 6, 4),
            ];
            rounds(&mut steps, 7);
            Op::FusedNorm { of: Box::new(of), others: 3, steps, rounded: false }
        }
        of => {
            let dy: Tensor = inputs.remove(DY);
            inputs.push(dy);
            inputs.extend(others(r));
            let mut steps = vec![Step::Where(1, 0, 3), Step::Binary(Binary::Add, 4, 2)];
            rounds(&mut steps, 5);
            let is_followed = matches!(of, Op::LayerNormInputGrad { .. } | Op::BatchNormInputGrad);
            let made = Op::FusedNormGrad { of: Box::new(of), steps };
            match is_followed && r.range(0, 1) == 1 {
                true => {
                    inputs.extend(others(r));
                    let mut steps = vec![Step::Binary(Binary::Add, 0, 2), Step::Where(1, 4, 3)];
                    rounds(&mut steps, 5);
                    let rounded = x.dtype == DType::F32 && r.chance();
                    Op::FusedNorm { of: Box::new(made), others: 3, steps, rounded }
                }
                false => made,
            }
        }
    };
    Case { op, inputs, ..case }
}
