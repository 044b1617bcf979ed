//! Operators that no exported step has, or not with these attributes: what is read back computes
//! the same bits, or close results where ONNX has several operators for ours.

use super::*;

/// Operators that no step above has, or not with these attributes.
#[test]
fn single_operators_are_read_back_with_the_same_results() {
    use arenic_ir::op::{Coordinates, Interpolation, NearestMode, Scale};
    let f = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let d = |shape: &[usize]| TensorType::new(DType::F64, shape);
    let window = |kernel: usize, stride: usize, dilation: usize, pad: usize| Window {
        kernel: vec![kernel; 2],
        strides: vec![stride; 2],
        dilations: vec![dilation; 2],
        pads_begin: vec![pad; 2],
        pads_end: vec![pad; 2],
    };
    let spec = ResizeSpec {
        sizes: vec![1, 2, 7, 5],
        scales: vec![Scale::ONE, Scale::ONE, Scale::Ratio(7, 4), Scale::Number(1.25)],
        roi: vec![],
        mode: Interpolation::Linear,
        coordinates: Coordinates::HalfPixel,
        exclude_outside: false,
        antialias: false,
        extrapolation: 0.0,
    };
    let nearest = ResizeSpec {
        sizes: vec![1, 2, 6, 6],
        scales: [1.0, 1.0, 1.6, 1.7].map(Scale::Number).to_vec(),
        roi: vec![(0.0, 1.0), (0.0, 1.0), (0.1, 0.8), (0.2, 1.0)],
        mode: Interpolation::Nearest(NearestMode::Floor),
        coordinates: Coordinates::TfCropAndResize,
        ..spec.clone()
    };
    // One scale for two axes, of which the second's extent is rounded.
    let common = ResizeSpec {
        sizes: vec![1, 2, 3, 5],
        scales: vec![Scale::ONE, Scale::ONE, Scale::Ratio(3, 4), Scale::Ratio(3, 4)],
        ..spec.clone()
    };
    let rng = |seed| Rng { stream: stream_of("made0"), seed };
    let uniform = |seed| Op::RandomUniform {
        dtype: DType::F32,
        shape: vec![3, 2],
        low: -1.0,
        high: 2.0,
        rng: rng(seed),
    };
    let adam = Op::Adam {
        alpha: 0.9,
        beta: 0.99,
        epsilon: 1e-3,
        norm_coefficient: 0.1,
        norm_coefficient_post: 0.2,
    };
    let count = TensorType::new(DType::I64, [1]);
    let cases: Vec<(Op, Vec<TensorType>)> = vec![
        (Op::Reshape { shape: vec![0, 3] }, vec![f(&[3, 0])]),
        (
            Op::Slice { starts: vec![4, 0, 1], steps: vec![-2, -1, 2], shape: vec![3, 1, 2] },
            vec![f(&[5, 2, 4])],
        ),
        (Op::Slice { starts: vec![2, 0], steps: vec![1, 1], shape: vec![0, 3] }, vec![f(&[5, 3])]),
        (Op::MatMul { trans_a: true, trans_b: true }, vec![d(&[2, 3, 4]), d(&[2, 5, 3])]),
        (Op::MatMul { trans_a: false, trans_b: true }, vec![f(&[3]), f(&[5, 3])]),
        (Op::LayerNorm { axis: 1, epsilon: 1e-3 }, vec![f(&[2, 3, 4]), f(&[3, 4])]),
        (Op::Clip { min: false, max: true }, vec![f(&[4]), f(&[1])]),
        (Op::Clip { min: true, max: false }, vec![f(&[4]), f(&[])]),
        (Op::Dropout { rng: rng(None) }, vec![f(&[40]), f(&[1])]),
        (Op::Dropout { rng: rng(Some(u64::MAX)) }, vec![f(&[40]), f(&[])]),
        (uniform(None), vec![]),
        (uniform(Some(77)), vec![]),
        (
            Op::MaxPool {
                window: window(2, 2, 1, 0),
                ceil: true,
                indices: PoolIndices::ColumnMajorPositions,
            },
            vec![f(&[1, 2, 5, 5])],
        ),
        (
            Op::MaxPool { window: window(3, 2, 2, 1), ceil: true, indices: PoolIndices::Taps },
            vec![f(&[2, 2, 6, 5])],
        ),
        (
            Op::AveragePool { window: window(2, 1, 2, 1), ceil: false, count_include_pad: true },
            vec![f(&[1, 2, 5, 5])],
        ),
        (
            Op::ConvTranspose { window: window(3, 2, 1, 1), group: 2, output_padding: vec![1, 0] },
            vec![f(&[2, 4, 3, 3]), f(&[4, 3, 3, 3]), f(&[6])],
        ),
        (Op::Resize { spec }, vec![f(&[1, 2, 4, 4])]),
        (Op::Resize { spec: common }, vec![f(&[1, 2, 4, 6])]),
        (Op::Resize { spec: nearest }, vec![f(&[1, 2, 4, 4])]),
        (
            Op::ScatterNd { reduction: Scatter::Add },
            vec![f(&[3, 2]), TensorType::new(DType::I64, [4, 1]), f(&[4, 2])],
        ),
        (Op::SoftmaxOfStats, vec![f(&[4, 3]), f(&[4, 1]), f(&[4, 1])]),
        (Op::LogSoftmaxStats, vec![f(&[4, 3])]),
        (Op::Copy, vec![f(&[4, 3])]),
        (Op::TopK { axis: 1, k: 2, largest: true }, vec![f(&[4, 5, 2])]),
        (Op::TopK { axis: 0, k: 3, largest: false }, vec![d(&[4, 5])]),
        (Op::Binary { f: Binary::Rem }, vec![f(&[4, 3]), f(&[3])]),
        (adam, vec![f(&[1]), count.clone(), f(&[3]), f(&[3]), f(&[3]), f(&[3])]),
        (
            Op::Adagrad { decay_factor: 0.1, epsilon: 1e-3, norm_coefficient: 0.2 },
            vec![f(&[]), count.clone(), f(&[3]), f(&[3]), f(&[3])],
        ),
        (
            Op::Momentum { alpha: 0.9, beta: 0.5, nesterov: true, norm_coefficient: 0.2 },
            vec![f(&[1]), count, f(&[3]), f(&[3]), f(&[3])],
        ),
    ];
    for (op, inputs) in cases {
        let g = alone(op.clone(), &inputs);
        let model = export(&g, ExportOptions::default()).unwrap();
        valid(&model);
        let back = imported(&model);
        same_interface(&g, &back);
        assert_eq!(step(&g), step(&back), "{op:?}");
    }
}

/// Of these, sums are taken in another order, or in several operators where ours takes one.
#[test]
fn operators_that_become_several_are_read_back_with_close_results() {
    use arenic_ir::op::{Step, Unary};
    let window = |stride: usize, dilation: usize| Window {
        kernel: vec![3, 2],
        strides: vec![stride; 2],
        dilations: vec![dilation; 2],
        pads_begin: vec![1, 0],
        pads_end: vec![0, 1],
    };
    let f = |shape: Vec<usize>| TensorType::new(DType::F32, shape);
    for (group, stride, dilation) in [(1, 1, 1), (2, 2, 1), (4, 1, 2), (2, 3, 2)] {
        let op = Op::ConvWeightGrad { window: window(stride, dilation), group };
        let y = window(stride, dilation).slide(&[8, 9], false).unwrap();
        let g = alone(op, &[f(vec![2, 4, 8, 9]), f(vec![2, 8, y[0], y[1]])]);
        close(&g, 1e-5);
    }
    let d = |shape: &[usize]| TensorType::new(DType::F64, shape);
    let (x, row, stats, channel) = (d(&[2, 3, 4]), d(&[3, 4]), d(&[2, 1, 1]), d(&[3]));
    let x2 = || vec![x.clone(), x.clone()];
    let channels = |n: usize| vec![channel.clone(); n];
    let spec =
        |causal, zero_rows| AttentionSpec { causal, zero_rows, ..AttentionSpec::scaled(0.5) };
    // q, k, v, max, sum, do, mask.
    let shapes: [&[usize]; 14] = [
        &[2, 3, 4],
        &[2, 5, 4],
        &[2, 5, 6],
        &[2, 3],
        &[2, 3],
        &[2, 3, 6],
        &[3, 5],
        // Keys and values that both matrices of queries share.
        &[1, 5, 4],
        &[1, 5, 6],
        &[2, 1, 5],
        // Positions before heads.
        &[3, 2, 4],
        &[5, 2, 4],
        &[5, 2, 6],
        &[3, 2, 6],
    ];
    let of_masked = |spec, of_mask| Op::AttentionGrad { spec, of_mask, has_result: false };
    let turned = AttentionSpec { positions_first: true, ..spec(true, false) };
    let capped = AttentionSpec { softcap: Some(0.8), group: 2, ..AttentionSpec::scaled(0.5) };
    let attention = |of: &[usize]| of.iter().map(|&i| d(shapes[i])).collect::<Vec<_>>();
    let cases = [
        (Op::LayerNorm { axis: 1, epsilon: 1e-3 }, vec![x.clone(), row.clone(), row.clone()]),
        (Op::LayerNormParamGrad { axis: 1 }, [x2(), vec![stats.clone(), stats.clone()]].concat()),
        (Op::LayerNormInputGrad { axis: 1 }, [x2(), vec![row, stats.clone(), stats]].concat()),
        (Op::BatchNorm { epsilon: 1e-3 }, [vec![x.clone()], channels(2)].concat()),
        (Op::BatchNormParamGrad, [x2(), channels(2)].concat()),
        (Op::BatchNormInputGrad, [x2(), channels(5)].concat()),
        (
            Op::FusedNorm {
                of: Box::new(Op::BatchNorm { epsilon: 1e-3 }),
                others: 1,
                steps: vec![Step::Binary(Binary::Add, 0, 1), Step::Unary(Unary::Relu, 2)],
                rounded: false,
            },
            [vec![x.clone()], channels(2), vec![x.clone()]].concat(),
        ),
        (
            Op::FusedNormGrad {
                of: Box::new(Op::BatchNormInputGrad),
                steps: vec![Step::Binary(Binary::Greater, 0, 2), Step::Where(3, 1, 2)],
            },
            [vec![x.clone()], channels(5), x2(), vec![TensorType::new(x.dtype, [])]].concat(),
        ),
        (
            Op::FusedNorm {
                of: Box::new(Op::BatchNormInputGrad),
                others: 1,
                steps: vec![Step::Binary(Binary::Add, 0, 1)],
                rounded: false,
            },
            [x2(), channels(5), vec![x.clone()]].concat(),
        ),
        (Op::SoftmaxGrad { axis: 1 }, x2()),
        (Op::LogSoftmaxGrad { axis: 2 }, x2()),
        (Op::Attention { spec: spec(false, true) }, attention(&[0, 1, 2, 6])),
        (Op::Attention { spec: spec(true, false) }, attention(&[0, 1, 2])),
        (of_masked(spec(false, false), false), attention(&[0, 1, 2, 3, 4, 5])),
        (of_masked(spec(true, true), true), attention(&[0, 1, 2, 3, 4, 5, 6])),
        (Op::Attention { spec: capped }, attention(&[0, 7, 8, 6])),
        (of_masked(capped, true), attention(&[0, 7, 8, 3, 4, 5, 6])),
        // A mask of each of the batch, and one that broadcasts.
        (Op::Attention { spec: capped }, attention(&[0, 7, 8, 9, 6])),
        (of_masked(capped, true), attention(&[0, 7, 8, 3, 4, 5, 9, 6])),
        (Op::Attention { spec: turned }, attention(&[10, 11, 12, 6])),
        (of_masked(turned, true), attention(&[10, 11, 12, 3, 4, 13, 6])),
    ];
    for (op, inputs) in cases {
        close(&alone(op, &inputs), 1e-12);
    }
}

#[test]
fn paddings_and_gradients_of_pools_are_read_back() {
    let f = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let window = Window {
        kernel: vec![3, 2],
        strides: vec![2, 2],
        dilations: vec![1, 2],
        pads_begin: vec![1, 0],
        pads_end: vec![0, 1],
    };
    let pad = |starts: [usize; 2], steps: [usize; 2], shape: [usize; 2], value: f64| Op::Pad {
        starts: starts.to_vec(),
        steps: steps.to_vec(),
        shape: shape.to_vec(),
        value,
    };
    let mut cases = vec![
        (pad([1, 0], [1, 1], [4, 5], 0.5), vec![f(&[2, 3])]),
        (pad([0, 2], [3, 2], [6, 9], -1.0), vec![f(&[2, 3])]),
    ];
    for ceil in [false, true] {
        // 6 by 5 elements, of which windows leave some over or hang over the end.
        let shape = vec![1, 2, 6, 5];
        let y = window.slide(&shape[2..], ceil).unwrap();
        let dy = f(&[1, 2, y[0], y[1]]);
        for flag in [false, true] {
            let (window, shape) = (window.clone(), shape.clone());
            let op = Op::AveragePoolGrad { window, ceil, count_include_pad: flag, shape };
            cases.push((op, vec![dy.clone()]));
        }
    }
    for (op, inputs) in cases {
        close(&alone(op, &inputs), 1e-5);
    }
    // Indices are those of a pool: each lies in its window.
    for indices in PoolIndices::ALL {
        let pool = Op::MaxPool { window: window.clone(), ceil: false, indices };
        let shape = vec![1, 2, 6, 5];
        let mut g = alone(pool, &[f(&shape)]);
        let dy = g.add_input("dy", f(&[1, 2, 3, 2]));
        let found = g.outputs[1].value;
        let op = Op::MaxPoolGrad { window: window.clone(), ceil: false, indices, shape };
        let n = g.add_node("grad", op, vec![dy, found]).unwrap();
        let value = g.result(n).unwrap();
        g.outputs = vec![arenic_ir::Output { name: "dx".into(), value }];
        close(&g, 1e-5);
    }
}

/// The gradient of an attention drops what its attention did. The key that the importer makes is
/// another, so that the attention takes that before they are compared.
#[test]
fn what_an_attention_drops_is_read_back() {
    let attention = |stream: u64| {
        let ty = |shape: &[usize]| TensorType::new(DType::F64, shape);
        let mut g = Graph { name: "dropped".into(), ..Graph::default() };
        let [q, k, v, dy] =
            [("q", [2, 3, 4]), ("k", [2, 5, 4]), ("v", [2, 5, 6]), ("do", [2, 3, 6])]
                .map(|(name, shape)| g.add_input(name, ty(&shape)));
        let rng = Rng { stream, seed: Some(3) };
        let dropout = Some(AttentionDropout { ratio: 0.25, rng });
        let spec = AttentionSpec { causal: true, dropout, ..AttentionSpec::scaled(0.5) };
        let n = g.add_node("it", Op::Attention { spec }, vec![q, k, v]).unwrap();
        let [o, max, sum] = [0, 1, 2].map(|i| g.nodes[n].outputs[i].unwrap());
        let grad = Op::AttentionGrad { spec, of_mask: false, has_result: true };
        let n = g.add_node("gradient", grad, vec![q, k, v, max, sum, dy, o]).unwrap();
        let gradients = g.nodes[n].outputs.clone().into_iter().flatten();
        for (i, value) in [o].into_iter().chain(gradients).enumerate() {
            g.outputs.push(arenic_ir::Output { name: format!("y{i}"), value });
        }
        verify(&g).unwrap();
        g
    };
    let model = export(&attention(0), ExportOptions::default()).unwrap();
    let nodes = model.graph.unwrap().node;
    let dropouts: Vec<_> = nodes.iter().filter(|n| n.op_type() == "Dropout").collect();
    assert_eq!(dropouts.len(), 1);
    close(&attention(stream_of(&dropouts[0].output[0])), 1e-12);

    let mut alone = attention(0);
    let first = alone.nodes.keys().next().unwrap();
    let rng = alone.nodes[first].op.rng_mut().unwrap();
    rng.stream = 1;
    let refused = export(&alone, ExportOptions::default()).unwrap_err();
    assert!(matches!(refused, ExportError::Attention(node) if node == "gradient"));
}

/// The key of a random node whose first result has this name, as the importer makes it.
fn stream_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// One tensor of queries, keys and values, two heads of queries for one of keys, and its gradient.
#[test]
fn an_attention_of_one_tensor_is_read_back_with_close_results() {
    let ty = |shape: &[usize]| TensorType::new(DType::F64, shape);
    let mut g = Graph { name: "packed".into(), ..Graph::default() };
    let all = g.add_input("all", ty(&[2, 5, 8, 4]));
    let dy = g.add_input("do", ty(&[2, 5, 4, 4]));
    let mask = g.add_input("mask", ty(&[5, 5]));
    let packed = AttentionSpec {
        group: 2,
        positions_first: true,
        packed: true,
        ..AttentionSpec::scaled(0.5)
    };
    let n = g.add_node("it", Op::Attention { spec: packed }, vec![all, all, all, mask]).unwrap();
    let [o, max, sum] = [0, 1, 2].map(|i| g.nodes[n].outputs[i].unwrap());
    let gradient = Op::AttentionGrad { spec: packed, of_mask: true, has_result: true };
    let operands = vec![all, all, all, max, sum, dy, o, mask];
    let n = g.add_node("gradient", gradient, operands).unwrap();
    let [of_all, of_mask] = g.nodes[n].outputs[..] else { panic!("two gradients") };
    for (name, value) in [("o", Some(o)), ("of_all", of_all), ("of_mask", of_mask)] {
        g.outputs.push(arenic_ir::Output { name: name.into(), value: value.unwrap() });
    }
    verify(&g).unwrap();
    close(&g, 1e-12);
}
