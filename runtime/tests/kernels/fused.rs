//! Operators that graph passes make, bit by bit against the operators that they stand for.

use super::*;
use arenic_ir::op::{Binary, Kind, Step, Unary};

fn binary(f: Binary, a: &Tensor, b: &Tensor) -> Tensor {
    evaluate(&Op::Binary { f }, &[a, b])
}

/// `lr, mu, p, g, m → m', p'` of momentum, and of one more function each.
fn momentum_program() -> Op {
    let steps = vec![
        Step::Binary(Binary::Mul, 4, 1),
        Step::Binary(Binary::Add, 5, 3),
        Step::Binary(Binary::Mul, 0, 6),
        Step::Binary(Binary::Sub, 2, 7),
    ];
    Op::Pointwise { steps, results: vec![6, 8] }
}

#[test]
fn pointwise_equals_its_steps() {
    let mut r = Random(11);
    for (dtype, shape) in [
        (DType::F32, vec![1]),
        (DType::F32, vec![3, 43]),
        (DType::F64, vec![64]),
        (DType::F32, vec![0, 2]),
        (DType::F32, vec![40, 1000]),
    ] {
        let scalar = r.tensor(dtype, []);
        let one = r.tensor(dtype, [1]);
        let [p, g, m] = [0; 3].map(|_| r.tensor(dtype, shape.clone()));
        let got = all(&momentum_program(), &[&scalar, &one, &p, &g, &m]);
        let v = binary(Binary::Add, &binary(Binary::Mul, &m, &one), &g);
        assert_same(&got[0], &v, &momentum_program());
        let w = binary(Binary::Sub, &p, &binary(Binary::Mul, &scalar, &v));
        assert_same(&got[1], &w, &momentum_program());
    }
}

/// Every step as the operator that it stands for, on the whole of its operands.
pub(super) fn step_by_step(steps: &[Step], inputs: &[Tensor]) -> Vec<Tensor> {
    let float = inputs.iter().map(|t| t.ty.dtype.accumulated()).find(|d| d.is_float()).unwrap();
    let wide = |t: &Tensor| match t.ty.dtype {
        DType::Bf16 => evaluate(&Op::Cast { to: float }, &[t]),
        _ => t.clone(),
    };
    let mut sources: Vec<Tensor> = inputs.iter().map(wide).collect();
    for step in steps {
        let op = match *step {
            Step::Unary(f, _) => Op::Unary { f },
            Step::Binary(f, ..) => Op::Binary { f },
            Step::Where(..) => Op::Where,
            Step::Cast(_) => Op::Cast { to: float },
            Step::Round(x) => {
                let narrow = evaluate(&Op::Cast { to: DType::Bf16 }, &[&sources[x]]);
                sources.push(evaluate(&Op::Cast { to: float }, &[&narrow]));
                continue;
            }
        };
        let read: Vec<&Tensor> = step.sources().map(|s| &sources[s]).collect();
        sources.push(evaluate(&op, &read));
    }
    sources
}

#[test]
fn every_program_equals_its_steps() {
    let mut r = Random(12);
    for case in 0..400 {
        let dtype = if case % 5 == 4 { DType::F64 } else { DType::F32 };
        let shape: Vec<usize> = (0..r.range(1, 4)).map(|_| r.choose(&[1, 2, 3, 7, 70])).collect();
        let count = r.range(0, 3);
        let mut inputs = vec![r.tensor(dtype, shape.clone())];
        for _ in 0..count {
            // Each axis is there or broadcast, the first ones may be left off.
            let skip = if r.chance() { 0 } else { r.range(0, shape.len()) };
            let other: Vec<usize> =
                shape[skip..].iter().map(|&d| if r.chance() { 1 } else { d }).collect();
            match r.range(0, 2) {
                0 => {
                    let mut x = r.tensor(DType::U8, other);
                    x.ty.dtype = DType::Bool;
                    x.values.iter_mut().for_each(|x| *x = f64::from(*x > 2.0));
                    inputs.push(x);
                }
                1 if dtype == DType::F32 => inputs.push(r.tensor(DType::Bf16, other)),
                _ => inputs.push(r.tensor(dtype, other)),
            }
        }
        let kinds: Vec<Kind> = inputs.iter().filter_map(|t| Kind::of(t.ty.dtype)).collect();
        let count = r.range(1, 12);
        let mut steps = programs::steps(&mut r, &kinds, count, false);
        // The last ones make the whole shape.
        if dtype == DType::F32 {
            steps.push(Step::Round(0));
        }
        steps.push(Step::Unary(Unary::Neg, 0));
        let expected = step_by_step(&steps, &inputs);
        let made = inputs.len()..expected.len();
        let whole = |&s: &usize| expected[s].ty.shape == shape;
        let results_of: Vec<usize> = made.rev().filter(whole).take(3).collect();
        let op = Op::Pointwise { steps, results: results_of.clone() };
        let got = all(&op, &inputs.iter().collect::<Vec<_>>());
        for (got, s) in got.iter().zip(results_of) {
            // What is rounded is stored in two bytes.
            let rounds = s.checked_sub(inputs.len()).map(|i| &steps_of(&op)[i]);
            let narrow = matches!(rounds, Some(Step::Round(_)));
            assert_eq!(got.ty.dtype, if narrow { DType::Bf16 } else { expected[s].ty.dtype });
            let values = expected[s].values.clone();
            assert_same(got, &Tensor { ty: got.ty.clone(), values }, &op);
        }
    }
}

#[test]
fn a_fused_reduction_equals_its_steps_and_the_reduction() {
    use arenic_ir::op::Reduction;
    const ALL: [Reduction; 5] =
        [Reduction::Sum, Reduction::Mean, Reduction::Min, Reduction::Max, Reduction::Prod];
    let mut r = Random(15);
    // Segments and columns of all lengths, sums in parts, nothing at all.
    let large: [&[usize]; 6] =
        [&[9001], &[3, 5000], &[5000, 3], &[70_000], &[300, 700], &[40, 8, 300]];
    for case in 0..300 {
        let dtype = if case % 5 == 4 { DType::F64 } else { DType::F32 };
        let shape: Vec<usize> = match large.get(case % 25) {
            Some(shape) => shape.to_vec(),
            None => (0..r.range(1, 4)).map(|_| r.choose(&[0, 1, 2, 3, 7, 70])).collect(),
        };
        let mut inputs = vec![r.tensor(dtype, shape.clone())];
        for _ in 0..r.range(0, 3) {
            match r.range(0, 3) {
                0 => {
                    let mut x = r.tensor(DType::U8, shape.clone());
                    x.ty.dtype = DType::Bool;
                    x.values.iter_mut().for_each(|x| *x = f64::from(*x > 2.0));
                    inputs.push(x);
                }
                1 => inputs.push(r.tensor(dtype, [])),
                _ => inputs.push(r.tensor(dtype, shape.clone())),
            }
        }
        let kinds: Vec<Kind> = inputs.iter().filter_map(|t| Kind::of(t.ty.dtype)).collect();
        let count = r.range(0, 8);
        let mut steps = programs::steps(&mut r, &kinds, count, false);
        // The last one makes numbers of the whole shape.
        steps.push(Step::Binary(Binary::Mul, 0, 0));
        let terms = step_by_step(&steps, &inputs).pop().unwrap();
        let axes: Vec<usize> = (0..shape.len()).filter(|_| r.chance()).collect();
        let (f, keep) = (r.choose(&ALL), r.chance());
        let expected = evaluate(&Op::Reduce { f, axes: axes.clone(), keep }, &[&terms]);
        let op = Op::PointwiseReduce { steps, f, axes, keep };
        let got = all(&op, &inputs.iter().collect::<Vec<_>>());
        assert_same(&got[0], &expected, &op);
    }
}

#[test]
fn a_fused_reduction_takes_operands_of_one_shape() {
    let op = |steps| Op::PointwiseReduce {
        steps,
        f: arenic_ir::op::Reduction::Sum,
        axes: vec![0],
        keep: false,
    };
    let add = vec![Step::Binary(Binary::Add, 0, 1)];
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let (x, row, one) = (ty(&[4, 3]), ty(&[3]), ty(&[1]));
    assert_eq!(op(add.clone()).infer(&[&x, &one]).unwrap(), std::slice::from_ref(&row));
    for (steps, operands) in [
        (add.clone(), [&x, &row]),
        (vec![], [&x, &x]),
        (vec![Step::Binary(Binary::Less, 0, 1)], [&x, &x]),
        (vec![Step::Binary(Binary::Add, 0, 2)], [&x, &x]),
    ] {
        assert!(op(steps).infer(&operands).is_err());
    }
}

fn steps_of(op: &Op) -> &[Step] {
    if let Op::Pointwise { steps, .. } = op { steps } else { &[] }
}

/// Squares and cubes are multiplied, by one exponent and not by a tensor of them.
#[test]
fn powers_of_pointwise() {
    let mut r = Random(14);
    let a = r.tensor(DType::F32, [5, 30]);
    let scalars = [2.0, 3.0, -1.5].map(|x| Tensor::new(DType::F32, [], vec![x]));
    let twos = Tensor::new(DType::F32, [1, 30], vec![2.0; 30]);
    for b in scalars.iter().chain([&twos]) {
        let op = Op::Pointwise { steps: vec![Step::Binary(Binary::Pow, 0, 1)], results: vec![2] };
        assert_same(&all(&op, &[&a, b])[0], &binary(Binary::Pow, &a, b), &op);
    }
}

#[test]
fn product_update_equals_product_and_update() {
    let mut r = Random(13);
    let adam = Op::Adam {
        alpha: 0.9,
        beta: 0.99,
        epsilon: 1e-6,
        norm_coefficient: 0.1,
        norm_coefficient_post: 0.0,
    };
    let momentum = Op::Momentum { alpha: 0.9, beta: 0.8, nesterov: true, norm_coefficient: 0.01 };
    let adagrad = Op::Adagrad { decay_factor: 0.1, epsilon: 1e-6, norm_coefficient: 0.0 };
    // Few rows, few columns, sums of 1 and of several of the library's blocks, tiles that
    // do not divide the result, a sum in parts, nothing at all.
    let shapes = [
        (3, 5, 700),
        (700, 5, 3),
        (64, 1, 64),
        (129, 300, 517),
        (1000, 40, 30),
        (33, 9000, 20),
        (520, 32, 2100),
        (1, 7, 1),
        (0, 4, 5),
        (4, 0, 5),
    ];
    for (case, (m, k, n)) in shapes.into_iter().enumerate() {
        let dtype = if case % 4 == 3 { DType::F64 } else { DType::F32 };
        let (trans_a, trans_b) = (case % 2 == 0, r.chance());
        let alpha = if case % 3 == 1 { 0.3 } else { 1.0 };
        let a = r.tensor(dtype, if trans_a { [k, m] } else { [m, k] });
        let b = r.tensor(dtype, if trans_b { [n, k] } else { [k, n] });
        let gemm = Op::Gemm { alpha, beta: 1.0, trans_a, trans_b };
        let g = evaluate(&gemm, &[&a, &b]);
        let lr = Tensor::new(dtype, [], vec![0.25]);
        let t = Tensor::new(DType::I64, [], vec![3.0]);
        let [x, v, h] = [0; 3].map(|_| {
            let mut x = r.tensor(dtype, [m, n]);
            x.values.iter_mut().for_each(|x| *x = x.abs());
            x
        });
        let updates: [(&Op, Vec<&Tensor>, usize); 4] = [
            (&adam, vec![&lr, &t, &x, &g, &v, &h], 3),
            (&adagrad, vec![&lr, &t, &x, &g, &v], 3),
            (&momentum, vec![&lr, &t, &x, &g, &v], 3),
            (&momentum_program(), vec![&lr, &lr, &x, &g, &v], 3),
        ];
        for (update, mut inputs, gradient) in updates {
            let want = all(update, &inputs);
            let lots = Op::ForEach { of: Box::new(update.clone()), lots: 2 };
            let twice = all(&lots, &[&inputs[..], &inputs[..]].concat());
            for (got, want) in twice.iter().zip([&want[..], &want[..]].concat()) {
                assert_same(got, &want, &lots);
            }
            inputs.remove(gradient);
            inputs.extend([&a, &b]);
            let update = Box::new(update.clone());
            let op = Op::ProductUpdate { alpha, trans_a, trans_b, gradient, update };
            for (got, want) in all(&op, &inputs).iter().zip(&want) {
                assert_same(got, want, &op);
            }
        }
    }
}

/// The steps of GELU in its tanh form, and of its slope, as imported models have them.
fn gelu_steps(z: &Tensor) -> [Tensor; 2] {
    use arenic_ir::op::gelu::{CUBIC, SCALE};
    let number = |x: f64| {
        let x = if z.ty.dtype == DType::F32 { f64::from(x as f32) } else { x };
        Tensor::new(z.ty.dtype, [], vec![x])
    };
    let mul = |a: &Tensor, b: &Tensor| binary(Binary::Mul, a, b);
    let add = |a: &Tensor, b: &Tensor| binary(Binary::Add, a, b);
    let (one, half, scale) = (number(1.0), number(0.5), number(SCALE));
    let square = mul(z, z);
    let factor = add(&mul(&square, &number(CUBIC)), &one);
    let t = evaluate(&Op::Unary { f: Unary::Tanh }, &[&mul(&mul(z, &factor), &scale)]);
    let value = add(&t, &one);
    let inner = mul(&add(&mul(&square, &number(3.0 * CUBIC)), &one), &scale);
    let rest = binary(Binary::Sub, &one, &mul(&t, &t));
    let slope = mul(&mul(&rest, &inner), z);
    [mul(&mul(z, &half), &value), mul(&add(&value, &slope), &half)]
}

#[test]
fn a_product_with_a_gelu_equals_the_product_and_its_steps() {
    let mut r = Random(16);
    for (dtype, [m, k, n]) in [
        (DType::F32, [3, 5, 8]),
        (DType::F64, [4, 3, 6]),
        (DType::F32, [70, 300, 65]),
        (DType::F32, [4, 9000, 2]),
        (DType::F32, [0, 3, 4]),
    ] {
        for (trans_a, trans_b, with_bias) in
            [(false, false, true), (true, false, false), (false, true, true), (true, true, true)]
        {
            let a = r.tensor(dtype, if trans_a { [k, m] } else { [m, k] });
            let b = r.tensor(dtype, if trans_b { [n, k] } else { [k, n] });
            let mut inputs = vec![&a, &b];
            let gemm = Op::Gemm { alpha: 1.0, beta: 1.0, trans_a, trans_b };
            let product = evaluate(&gemm, &inputs);
            let bias = r.tensor(dtype, [n]);
            if with_bias {
                inputs.push(&bias);
            }
            let z = evaluate(&gemm, &inputs);
            let forward = Op::GemmGelu { trans_a, trans_b };
            let got = all(&forward, &inputs);
            assert_same(&got[0], &gelu_steps(&z)[0], &forward);
            assert_same(&got[1], &z, &forward);
            // What it is applied to is of the size where the slope is neither 0 nor 1.
            let mut z = r.tensor(dtype, [m, n]);
            z.values.iter_mut().for_each(|z| *z = f64::from((*z % 4.0) as f32));
            let backward = Op::GemmGeluGrad { trans_a, trans_b };
            let got = all(&backward, &[&a, &b, &z]);
            assert_same(&got[0], &binary(Binary::Mul, &product, &gelu_steps(&z)[1]), &backward);
        }
    }
}

#[test]
fn a_product_with_a_gelu_takes_matrices_of_one_type() {
    let forward = Op::GemmGelu { trans_a: false, trans_b: false };
    let backward = Op::GemmGeluGrad { trans_a: false, trans_b: false };
    let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape);
    let (a, b, z) = (ty(DType::F32, &[2, 3]), ty(DType::F32, &[3, 4]), ty(DType::F32, &[2, 4]));
    let bias = ty(DType::F32, &[4]);
    assert_eq!(forward.infer(&[&a, &b, &bias]).unwrap(), [z.clone(), z.clone()]);
    assert_eq!(backward.infer(&[&a, &b, &z]).unwrap(), std::slice::from_ref(&z));
    for other in [ty(DType::F32, &[2, 4]), ty(DType::F32, &[1]), ty(DType::F64, &[4])] {
        assert!(forward.infer(&[&a, &b, &other]).is_err());
    }
    for other in [ty(DType::F32, &[4]), ty(DType::F64, &[2, 4]), ty(DType::F32, &[2, 3])] {
        assert!(backward.infer(&[&a, &b, &other]).is_err());
    }
    let (i, three) = (ty(DType::I32, &[2, 2]), ty(DType::F32, &[1, 2, 3]));
    assert!(forward.infer(&[&i, &i]).is_err() && forward.infer(&[&three, &b]).is_err());
}

#[test]
fn cross_entropy_equals_log_softmax_and_its_gradient() {
    let mut r = Random(14);
    for (dtype, shape, wide) in [
        (DType::F32, vec![4, 10], true),
        (DType::F64, vec![2, 3, 17], false),
        (DType::F32, vec![300, 257], true),
        (DType::F32, vec![7, 1], false),
        (DType::F32, vec![0, 5], true),
    ] {
        let mut x = r.tensor(dtype, shape.clone());
        x.values.iter_mut().for_each(|x| *x *= 20.0);
        let n = *shape.last().unwrap();
        let rows = [&shape[..shape.len() - 1], &[1]].concat();
        let log = evaluate(&Op::LogSoftmax { axis: shape.len() - 1 }, &[&x]);
        let softmax = evaluate(&Op::Unary { f: Unary::Exp }, &[&log]);
        let stats = all(&Op::LogSoftmaxStats, &[&x]);
        let [max, ln_sum] = &stats[..] else { panic!("two results") };
        let same_log = binary(Binary::Sub, &binary(Binary::Sub, &x, max), ln_sum);
        assert_same(&same_log, &log, &Op::LogSoftmaxStats);
        let again = all(&Op::SoftmaxOfStats, &[&x, max, ln_sum]);
        assert_same(&again[0], &softmax, &Op::SoftmaxOfStats);

        let count = rows.iter().product::<usize>();
        let w = Tensor::new(dtype, rows.clone(), vec![-0.25; count]);
        let index = if wide { DType::I64 } else { DType::I32 };
        let target: Vec<f64> =
            (0..count).map(|i| if i % 3 == 0 { -1.0 } else { r.range(0, n - 1) as f64 }).collect();
        let target = Tensor::new(index, rows.clone(), target);
        let zeros = Tensor::new(dtype, shape.clone(), vec![0.0; x.values.len()]);
        let scatter = Op::ScatterElements {
            axis: shape.len() - 1,
            reduction: arenic_ir::op::Scatter::Replace,
        };
        let one_hot = evaluate(&scatter, &[&zeros, &target, &w]);
        let want = binary(Binary::Sub, &one_hot, &binary(Binary::Mul, &softmax, &w));
        let got = all(&Op::CrossEntropyGrad, &[&x, max, ln_sum, &target, &w]);
        assert_same(&got[0], &want, &Op::CrossEntropyGrad);
    }
}
