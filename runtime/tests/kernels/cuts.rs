//! Operators in parts, by the table of cuts, against whole ones.

use super::*;
use arenic_backends::CPU;
use arenic_backends::cpu::sums::LIBRARY_DEPTH;
use arenic_ir::op::{Assembly, AttentionSpec, Binary, Cut, PoolIndices, Reduction, Step, Window};

/// Indices `first..end` of an axis.
fn slice(x: &Tensor, axis: usize, first: usize, end: usize) -> Tensor {
    let ty = x.ty.with_extent(axis, end - first);
    let values = indices(&ty.shape).map(|mut at| {
        at[axis] += first;
        x.values[flat(&at, &x.ty.shape)]
    });
    Tensor { values: values.collect(), ty }
}

fn join(parts: &[Tensor], axis: usize) -> Tensor {
    let extent = parts.iter().map(|p| p.ty.shape[axis]).sum();
    let ty = parts[0].ty.with_extent(axis, extent);
    let values = indices(&ty.shape).map(|mut at| {
        for part in parts {
            match at[axis].checked_sub(part.ty.shape[axis]) {
                Some(beyond) => at[axis] = beyond,
                None => return part.values[flat(&at, &part.ty.shape)],
            }
        }
        unreachable!("parts cover the whole")
    });
    Tensor { values: values.collect(), ty }
}

/// All results, on two threads.
fn results(op: &Op, inputs: &[&Tensor]) -> Vec<Tensor> {
    let types: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let count = op.infer(&types).expect("operands fit").len();
    pool(2).install(|| apply(op, inputs, None, &vec![true; count]))
}

/// What the parts of a cut, which end at `ends`, are together.
fn in_parts(op: &Op, cut: &Cut, ends: &[usize], inputs: &[&Tensor]) -> Vec<Tensor> {
    let mut made: Vec<Vec<Tensor>> = vec![Vec::new(); cut.results.len()];
    let mut first = 0;
    for &end in ends {
        let part = |(x, axis): (&&Tensor, &Option<usize>)| match axis {
            Some(axis) => slice(x, *axis, first, end),
            None => (*x).clone(),
        };
        let mut operands: Vec<Tensor> = inputs.iter().zip(&cut.operands).map(part).collect();
        let mut part = op.part(cut, end - first);
        if cut.results[0] == Assembly::Accumulate && first > 0 {
            part = op.onto().expect("a product adds");
            operands.truncate(2);
            operands.extend(made[0].pop());
        }
        let found = results(&part, &operands.iter().collect::<Vec<_>>());
        for (o, mut result) in found.into_iter().enumerate() {
            if let Assembly::Positions(each) = cut.results[o] {
                result.values.iter_mut().for_each(|v| *v += (first * each) as f64);
            }
            made[o].push(result);
        }
        first = end;
    }
    let whole = |(mut parts, how): (Vec<Tensor>, &Assembly)| match how.axis() {
        Some(axis) => join(&parts, axis),
        None => parts.remove(0),
    };
    made.into_iter().zip(&cut.results).map(whole).collect()
}

/// Tries all cuts of an operator; how many kept every bit, and how many do not say so.
fn try_cuts(r: &mut Random, op: &Op, inputs: &[&Tensor]) -> (usize, usize) {
    let x: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let y = op.infer(&x).expect("operands fit");
    let y: Vec<&TensorType> = y.iter().collect();
    let whole = results(op, inputs);
    let (mut kept, mut refused) = (0, 0);
    for cut in op.cuts(&x, &y) {
        let grain = match cut.results.contains(&Assembly::Accumulate) {
            true if cut.extent > LIBRARY_DEPTH => LIBRARY_DEPTH,
            _ => 1,
        };
        let grains = cut.extent.div_ceil(grain);
        let parts = r.range(2, 5).min(grains);
        let ends: Vec<usize> =
            (1..=parts).map(|p| (p * grains / parts * grain).min(cut.extent)).collect();
        if parts < 2 || !op.cut_keeps_bits(CPU, &cut, &ends, &x, &y) {
            refused += 1;
            continue;
        }
        for (got, want) in in_parts(op, &cut, &ends, inputs).iter().zip(&whole) {
            assert!(got.values == want.values, "{op:?} {x:?} cut {cut:?} at {ends:?}");
        }
        kept += 1;
    }
    (kept, refused)
}

/// Tries cuts of operators that `make` thinks of.
fn check(seed: u64, cases: usize, mut make: impl FnMut(&mut Random) -> (Op, Vec<Tensor>)) {
    let mut r = Random(seed);
    let (mut kept, mut refused) = (0, 0);
    for _ in 0..cases {
        let (op, inputs) = make(&mut r);
        let (k, n) = try_cuts(&mut r, &op, &inputs.iter().collect::<Vec<_>>());
        (kept, refused) = (kept + k, refused + n);
    }
    assert!(kept >= cases / 2, "{kept} kept, {refused} refused");
}

#[test]
fn products_in_parts() {
    check(1, 80, |r| {
        let (ta, tb) = (r.chance(), r.chance());
        let [m, n] = [0; 2].map(|_| r.choose(&[1, 3, 8, 24, 60, 130]));
        let k = r.choose(&[1, 40, 256, 700, 1024, 9000]);
        let swap = |swap: bool, a: usize, b: usize| if swap { [b, a] } else { [a, b] };
        let a = r.tensor(DType::F32, swap(ta, m, k));
        let b = r.tensor(DType::F32, swap(tb, k, n));
        if r.chance() {
            return (Op::MatMul { trans_a: ta, trans_b: tb }, vec![a, b]);
        }
        if r.chance() {
            let bias = r.chance().then(|| r.tensor(DType::F32, [n]));
            let operands = [a, b].into_iter().chain(bias).collect();
            return (Op::GemmGelu { trans_a: ta, trans_b: tb }, operands);
        }
        if r.chance() {
            let z = r.tensor(DType::F32, [m, n]);
            return (Op::GemmGeluGrad { trans_a: ta, trans_b: tb }, vec![a, b, z]);
        }
        let alpha = r.choose(&[1.0, 0.3]);
        let op = Op::Gemm { alpha, beta: 0.7, trans_a: ta, trans_b: tb };
        let bias = r.chance().then(|| r.tensor(DType::F32, [n]));
        (op, [a, b].into_iter().chain(bias).collect())
    });
}

#[test]
fn batches_of_products_in_parts() {
    check(2, 40, |r| {
        let batch = r.range(2, 6);
        let [m, k, n] = [0; 3].map(|_| r.choose(&[2, 9, 33, 70]));
        let a = r.tensor(DType::F64, [batch, m, k]);
        let b = match r.chance() {
            true => r.tensor(DType::F64, [batch, k, n]),
            false => r.tensor(DType::F64, [k, n]),
        };
        (Op::MatMul { trans_a: false, trans_b: false }, vec![a, b])
    });
}

fn window(r: &mut Random, kernel: usize) -> Window {
    let pad = r.range(0, kernel / 2);
    Window {
        kernel: vec![kernel; 2],
        strides: vec![r.range(1, 2); 2],
        dilations: vec![1; 2],
        pads_begin: vec![pad; 2],
        pads_end: vec![pad; 2],
    }
}

#[test]
fn convolutions_in_parts() {
    check(3, 60, |r| {
        let (images, size) = (r.range(2, 9), r.range(5, 20));
        let group = r.choose(&[1, 1, 1, 2]);
        let [inputs, channels] = [0; 2].map(|_| r.choose(&[2, 8, 40]));
        let kernel = r.choose(&[1, 3, 3, size]);
        let window = window(r, kernel);
        let x = r.tensor(DType::F32, [images, inputs, size, size]);
        let w = r.tensor(DType::F32, [channels, inputs / group, kernel, kernel]);
        let bias = r.chance().then(|| r.tensor(DType::F32, [channels]));
        (Op::Conv { window, group }, [x, w].into_iter().chain(bias).collect())
    });
}

#[test]
fn transposed_convolutions_in_parts() {
    check(4, 40, |r| {
        let (images, size, kernel) = (r.range(2, 6), r.range(4, 12), r.choose(&[1, 2, 3]));
        let [inputs, channels] = [0; 2].map(|_| r.choose(&[2, 6, 24]));
        let window = window(r, kernel);
        let output_padding = vec![0; 2];
        let x = r.tensor(DType::F32, [images, inputs, size, size]);
        let w = r.tensor(DType::F32, [inputs, channels, kernel, kernel]);
        (Op::ConvTranspose { window, group: 1, output_padding }, vec![x, w])
    });
}

#[test]
fn reductions_in_parts() {
    check(5, 80, |r| {
        let shape: Vec<usize> = (0..3).map(|_| r.choose(&[2, 5, 40, 300])).collect();
        let mut axes: Vec<usize> = (0..3).filter(|_| r.chance()).collect();
        if axes.is_empty() || axes.len() == 3 {
            axes = vec![r.range(0, 2)];
        }
        let f = r.choose(&[Reduction::Sum, Reduction::Mean, Reduction::Prod]);
        let x = r.tensor(DType::F32, shape);
        (Op::Reduce { f, axes, keep: r.chance() }, vec![x])
    });
}

#[test]
fn rows_in_parts() {
    check(6, 120, |r| {
        let shape: Vec<usize> = (0..3).map(|_| r.range(1, 30)).collect();
        let x = r.tensor(DType::F32, shape.clone());
        let axis = r.range(0, 2);
        let dy = r.tensor(DType::F32, shape.clone());
        let stats: Vec<usize> = (0..3).map(|d| if d < axis { shape[d] } else { 1 }).collect();
        let mut vector = |shape: &[usize]| r.tensor(DType::F32, shape);
        let [mean, inv_std] = [0; 2].map(|_| vector(&stats));
        let [a, b, c, d, e] = [0; 5].map(|_| vector(&shape[1..2]));
        let one = vector(&[1]);
        let fused = |of| {
            let steps = vec![Step::Binary(Binary::Add, 0, 1), Step::Binary(Binary::Mul, 3, 2)];
            Op::FusedNorm { of: Box::new(of), others: 2, steps, rounded: false }
        };
        let fused_gradient = |of| {
            let steps = vec![Step::Binary(Binary::Mul, 0, 1)];
            Op::FusedNormGrad { of: Box::new(of), steps }
        };
        match r.range(0, 13) {
            4 => (Op::SoftmaxGrad { axis }, vec![x, dy]),
            5 => (Op::LogSoftmaxGrad { axis }, vec![x, dy]),
            6 => (Op::LayerNormParamGrad { axis }, vec![x, dy, mean, inv_std]),
            7 => {
                let factor = r.tensor(DType::F32, &shape[axis..]);
                (Op::LayerNormInputGrad { axis }, vec![x, dy, factor, mean, inv_std])
            }
            8 => (Op::BatchNorm { epsilon: 1e-5 }, vec![x, a, b]),
            9 => (Op::BatchNormParamGrad, vec![x, dy, a, b]),
            10 => (Op::BatchNormInputGrad, vec![x, dy, a, b, c, d, e]),
            11 => (fused(Op::BatchNorm { epsilon: 1e-5 }), vec![x, a, b, dy, one]),
            12 => (fused_gradient(Op::BatchNormParamGrad), vec![x, a, b, dy, one]),
            13 => {
                let factor = r.tensor(DType::F32, &shape[axis..]);
                let of = Op::LayerNormInputGrad { axis };
                (fused_gradient(of), vec![x, factor, mean, inv_std, dy, one])
            }
            0 => (Op::Softmax { axis }, vec![x]),
            1 => (Op::LogSoftmax { axis }, vec![x]),
            2 => (Op::LogSoftmaxStats, vec![x]),
            _ => {
                let factor = r.tensor(DType::F32, &shape[axis..]);
                (Op::LayerNorm { axis, epsilon: 1e-5 }, vec![x, factor])
            }
        }
    });
}

#[test]
fn attentions_in_parts() {
    check(8, 40, |r| {
        let batch = [r.range(1, 9), r.range(1, 4)];
        let [t, s, d, e] = [0; 4].map(|_| r.range(1, 40));
        let positions_first = r.chance();
        let mut matrices = |rows, columns| match positions_first {
            true => r.tensor(DType::F32, [batch[0], rows, batch[1], columns]),
            false => r.tensor(DType::F32, [batch[0], batch[1], rows, columns]),
        };
        let [q, k, v, o, dy] =
            [(t, d), (s, d), (s, e), (t, e), (t, e)].map(|(rows, columns)| matrices(rows, columns));
        let max = r.tensor(DType::F32, [batch[0], batch[1], t]);
        let images = r.choose(&[1, batch[0]]);
        let mask = r.tensor(DType::F32, [images, 1, t, 1]);
        let bias = r.tensor(DType::F32, [1, batch[1], t, s]);
        let mut sum = max.clone();
        sum.values.iter_mut().for_each(|x| *x += 2.0);
        let scaled = AttentionSpec::scaled(0.5);
        let spec = AttentionSpec { causal: r.chance(), positions_first, ..scaled };
        match r.chance() {
            true => (Op::Attention { spec }, vec![q, k, v, mask, bias]),
            false => {
                let masks = if r.chance() { [mask, bias] } else { [bias, mask] };
                let (of_mask, has_result) = (r.chance(), r.chance());
                let result = has_result.then_some(o);
                let operands = [q, k, v, max, sum, dy].into_iter().chain(result).chain(masks);
                (Op::AttentionGrad { spec, of_mask, has_result }, operands.collect())
            }
        }
    });
}

#[test]
fn pools_in_parts() {
    check(7, 80, |r| {
        let (images, channels, size) = (r.range(1, 5), r.range(1, 4), r.range(4, 11));
        let kernel = r.range(1, 4);
        let window = window(r, kernel);
        let shape = vec![images, channels, size, size];
        let x = r.tensor(DType::F32, shape.clone());
        let (ceil, count_include_pad) = (false, r.chance());
        match r.range(0, 5) {
            0 => (Op::MaxPool { window, ceil, indices: PoolIndices::Positions }, vec![x]),
            4 => (Op::MaxPool { window, ceil, indices: PoolIndices::Taps }, vec![x]),
            5 => {
                let indices = PoolIndices::Taps;
                let forward = Op::MaxPool { window: window.clone(), ceil, indices };
                let taps = results(&forward, &[&x]).remove(1);
                let dy = r.tensor(DType::F32, taps.ty.shape.clone());
                (Op::MaxPoolGrad { window, ceil, indices, shape }, vec![dy, taps])
            }
            1 => (Op::AveragePool { window, ceil, count_include_pad }, vec![x]),
            2 => {
                let forward = Op::AveragePool { window: window.clone(), ceil, count_include_pad };
                let y = forward.infer(&[&x.ty]).expect("a pool").remove(0);
                let dy = r.tensor(DType::F32, y.shape);
                (Op::AveragePoolGrad { window, ceil, count_include_pad, shape }, vec![dy])
            }
            _ => {
                let [a, b] = [0; 2].map(|_| r.range(0, 2));
                let starts = vec![0, 0, a, b];
                let shape = vec![images, channels, size + a, 2 * size + b];
                (Op::Pad { starts, steps: vec![1, 1, 1, 2], shape, value: -1.0 }, vec![x])
            }
        }
    });
}

#[test]
fn recurrences_in_parts() {
    check(18, 80, recurrences::any);
}
