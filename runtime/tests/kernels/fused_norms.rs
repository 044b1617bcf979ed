//! Normalisations and their gradients with steps, bit by bit against the operators apart.

use super::fused::step_by_step;
use super::*;
use arenic_ir::op::fused_norm::{DY, kept};
use arenic_ir::op::{Binary, Kind, Step};

/// Segments of all lengths, few channels and many, sums in parts, columns, rows of several segments.
const SHAPES: &[&[usize]] = &[
    &[1, 1],
    &[5, 7],
    &[3, 300],
    &[2, 5000],
    &[4, 3, 40, 41],
    &[2, 2, 9001],
    &[9, 70, 2],
    &[40, 8, 300],
    &[2, 3, 1, 5],
    &[3, 2, 70_001],
    &[0, 3, 4],
    &[3, 4, 0],
];

/// Operands of steps: of a shape, or of one element.
fn others(r: &mut Random, dtype: DType, shape: &[usize], count: usize) -> Vec<Tensor> {
    let one = |r: &mut Random| {
        let shape = r.choose(&[&[] as &[usize], &[1]]);
        r.tensor(dtype, shape)
    };
    let other = |r: &mut Random| match r.range(0, 4) {
        0 => {
            let mut x = r.tensor(DType::U8, shape);
            x.ty.dtype = DType::Bool;
            x.values.iter_mut().for_each(|x| *x = f64::from(*x > 2.0));
            x
        }
        1 => one(r),
        2 if dtype == DType::F32 => r.tensor(DType::Bf16, shape),
        _ => r.tensor(dtype, shape),
    };
    (0..count).map(|_| other(r)).map(|t| Tensor::of_bytes(&t.ty, &t.bytes())).collect()
}

/// The gradient as it is read where there are no steps.
#[test]
fn a_fused_gradient_widens_what_it_reads() {
    let mut r = Random(20);
    for shape in [&[5, 7][..], &[2, 2, 9001], &[40, 300]] {
        let x = r.tensor(DType::F32, shape);
        let dz = r.tensor(DType::Bf16, shape);
        let dz = Tensor::of_bytes(&dz.ty, &dz.bytes());
        let dy = Tensor { ty: x.ty.clone(), values: dz.values.clone() };
        let [mean, inv_std] = [0; 2].map(|_| r.tensor(DType::F32, &shape[1..2]));
        let op = Op::BatchNormParamGrad;
        let want = all(&op, &[&x, &dy, &mean, &inv_std]);
        let op = Op::FusedNormGrad { of: Box::new(op), steps: vec![] };
        check(&op, &[&x, &mean, &inv_std, &dz], &want);
        let mut rows = shape.to_vec();
        rows[1..].fill(1);
        let [mean, inv_std] = [0; 2].map(|_| r.tensor(DType::F32, rows.clone()));
        let (op, scale) = (Op::LayerNormInputGrad { axis: 1 }, r.tensor(DType::F32, [1]));
        let want = all(&op, &[&x, &dy, &scale, &mean, &inv_std]);
        let op = Op::FusedNormGrad { of: Box::new(op), steps: vec![] };
        check(&op, &[&x, &scale, &mean, &inv_std, &dz], &want);
    }
}

/// Random steps on these operands, of which the first one, of floats, has the whole shape; the last
/// step gives numbers of this type in that shape.
fn steps(r: &mut Random, operands: &[Tensor], to: DType) -> Vec<Step> {
    let kinds: Vec<Kind> = operands.iter().filter_map(|t| Kind::of(t.ty.dtype)).collect();
    let count = r.range(0, 6);
    let mut steps = programs::steps(r, &kinds, count, false);
    let number = |steps: &[Step]| {
        let mut all = kinds.clone();
        for step in steps {
            all.extend(step.kind(|s| all.get(s).copied()));
        }
        (0..all.len()).rev().find(|&s| all[s] == Kind::Number).unwrap()
    };
    let last = number(&steps);
    steps.push(Step::Binary(Binary::Add, 0, last));
    if to == DType::Bf16 {
        steps.push(Step::Round(operands.len() + steps.len() - 1));
    }
    steps
}

/// What the last step gives, as a tensor of a type.
fn last(steps: &[Step], operands: &[Tensor], to: DType) -> Tensor {
    let y = step_by_step(steps, operands).pop().unwrap();
    Tensor { ty: TensorType::new(to, y.ty.shape), values: y.values }
}

/// The results of `op`, however they are computed.
fn check(op: &Op, inputs: &[&Tensor], want: &[Tensor]) {
    let found = all(op, inputs);
    assert_eq!(found.len(), want.len());
    for (found, want) in found.iter().zip(want) {
        assert_same(found, want, op);
    }
}

/// What is normalised, of a type, with what it is normalised by.
fn norms(r: &mut Random, dtype: DType, shape: &[usize]) -> Vec<(Op, Vec<Tensor>)> {
    let wide = dtype.accumulated();
    let x = r.tensor(dtype, shape);
    let x = Tensor::of_bytes(&x.ty, &x.bytes());
    let mut factor = |shape: &[usize]| r.tensor(wide, shape);
    let channels = [factor(&shape[1..2]), factor(&shape[1..2])];
    let batch = (Op::BatchNorm { epsilon: 1e-3 }, [vec![x.clone()], channels.to_vec()].concat());
    let mut all = vec![batch];
    for axis in [0, shape.len() - 1] {
        let factors = [factor(&shape[axis..]), factor(&[1])];
        let op = Op::LayerNorm { axis, epsilon: 1e-3 };
        let with = [vec![x.clone()], factors[..1 + axis.min(1)].to_vec()].concat();
        all.push((op, with));
    }
    all
}

#[test]
fn a_fused_norm_equals_the_norm_and_its_steps() {
    let mut r = Random(17);
    for (dtype, to) in
        [(DType::F32, DType::F32), (DType::F64, DType::F64), (DType::F32, DType::Bf16)]
    {
        for &shape in SHAPES {
            for (of, own) in norms(&mut r, dtype, shape) {
                let mut want = all(&of, &own.iter().collect::<Vec<_>>());
                let count = r.range(0, 3);
                let read = others(&mut r, dtype, shape, count);
                let operands = [&[want[0].clone()][..], &read].concat();
                let steps = steps(&mut r, &operands, to);
                want[0] = last(&steps, &operands, to);
                let op = Op::FusedNorm { of: Box::new(of), others: count, steps, rounded: false };
                let inputs: Vec<&Tensor> = own.iter().chain(&read).collect();
                check(&op, &inputs, &want);
            }
        }
    }
}

/// The result of a norm of `bf16` is rounded before the steps read it.
#[test]
fn a_fused_norm_of_bf16_equals_the_norm_and_its_steps() {
    let mut r = Random(18);
    for &shape in &SHAPES[..6] {
        for (of, own) in norms(&mut r, DType::Bf16, shape) {
            let mut want = all(&of, &own.iter().collect::<Vec<_>>());
            let read = others(&mut r, DType::F32, shape, 2);
            let operands = [&[want[0].clone()][..], &read].concat();
            let made = steps(&mut r, &operands, DType::Bf16);
            want[0] = last(&made, &operands, DType::Bf16);
            // A step more stands before those that read the result of the norm.
            let moved = |s: usize| {
                if s == 0 {
                    3
                } else if s < 3 {
                    s
                } else {
                    s + 1
                }
            };
            let first = [Step::Round(0)];
            let steps = first.into_iter().chain(made.iter().map(|step| step.over(moved)));
            let op = Op::FusedNorm {
                of: Box::new(of),
                others: 2,
                steps: steps.collect(),
                rounded: false,
            };
            check(&op, &own.iter().chain(&read).collect::<Vec<_>>(), &want);
        }
    }
}

#[test]
fn a_fused_gradient_equals_the_steps_and_the_gradient() {
    let mut r = Random(19);
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        for &shape in SHAPES {
            let wide = dtype.accumulated();
            let x = r.tensor(dtype, shape);
            let x = Tensor::of_bytes(&x.ty, &x.bytes());
            let mut ops = vec![];
            let channels: Vec<Tensor> = (0..5).map(|_| r.tensor(wide, &shape[1..2])).collect();
            ops.push((Op::BatchNormParamGrad, channels[..2].to_vec()));
            ops.push((Op::BatchNormInputGrad, channels));
            for axis in [0, 1] {
                let mut stats = shape.to_vec();
                stats[axis..].fill(1);
                let [mean, inv_std] = [0; 2].map(|_| r.tensor(wide, stats.clone()));
                let scale = r.tensor(wide, &shape[axis..]);
                ops.push((Op::LayerNormParamGrad { axis }, vec![mean.clone(), inv_std.clone()]));
                ops.push((Op::LayerNormInputGrad { axis }, vec![scale, mean, inv_std]));
            }
            for (of, rest) in ops {
                let count = r.range(0, 3);
                let mut read = vec![r.tensor(wide, shape)];
                read.extend(others(&mut r, wide, shape, count));
                let steps = steps(&mut r, &read, dtype);
                let dy = last(&steps, &read, dtype);
                let mut own = [&[x.clone()][..], &rest].concat();
                assert_eq!(own.len(), kept(&of));
                let inputs: Vec<Tensor> = own.iter().chain(&read).cloned().collect();
                own.insert(DY, dy);
                let mut want = all(&of, &own.iter().collect::<Vec<_>>());
                let is_followed =
                    matches!(of, Op::LayerNormInputGrad { .. } | Op::BatchNormInputGrad);
                let made = Op::FusedNormGrad { of: Box::new(of.clone()), steps };
                check(&made, &inputs.iter().collect::<Vec<_>>(), &want);
                if !is_followed || dtype == DType::Bf16 {
                    continue;
                }
                let to = r.choose(&[dtype, if dtype == DType::F32 { DType::Bf16 } else { dtype }]);
                let count = r.range(0, 3);
                let behind = others(&mut r, dtype, shape, count);
                let operands = [&[want[0].clone()][..], &behind].concat();
                let then = self::steps(&mut r, &operands, to);
                want[0] = last(&then, &operands, to);
                let rounded = to == DType::F32 && r.chance();
                if rounded {
                    want.extend(all(&Op::Cast { to: DType::Bf16 }, &[&want[0]]));
                }
                for (of, own) in [(of, own), (made, inputs)] {
                    let op = Op::FusedNorm {
                        of: Box::new(of),
                        others: count,
                        steps: then.clone(),
                        rounded,
                    };
                    check(&op, &own.iter().chain(&behind).collect::<Vec<_>>(), &want);
                }
            }
        }
    }
}
