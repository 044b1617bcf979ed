//! Gradients of pools against plain loops and against slopes, and padding.

use super::norms::slopes;
use super::*;
use arenic_ir::op::{PoolIndices, Window};
use arenic_runtime::kernel::KernelError;
use arenic_runtime::reference::{EvaluateError, evaluate as evaluate_bytes};

/// A pool's window, its operand's shape, and whether extents are rounded up.
fn pool_of(r: &mut Random) -> (Window, Vec<usize>, bool) {
    let (rank, ceil) = (r.range(1, 3), r.chance());
    let mut list = |low: usize, high: usize| (0..rank).map(|_| r.range(low, high)).collect();
    let kernel: Vec<usize> = list(1, 4);
    let (strides, dilations): (Vec<usize>, Vec<usize>) = (list(1, 3), list(1, 2));
    let span = |i: usize| (kernel[i] - 1) * dilations[i] + 1;
    let mut pads = || (0..rank).map(|i| r.range(0, (span(i) - 1).min(3))).collect::<Vec<_>>();
    let (pads_begin, pads_end) = (pads(), pads());
    let mut shape = vec![r.range(1, 3), r.range(1, 3)];
    shape.extend((0..rank).map(|i| span(i) + r.range(0, 5)));
    (Window { kernel, strides, dilations, pads_begin, pads_end }, shape, ceil)
}

/// The types of the pool's results.
fn pooled(op: &Op, shape: &[usize]) -> Vec<usize> {
    op.infer(&[&TensorType::new(DType::F32, shape)]).expect("a pool").remove(0).shape
}

/// A flat position with spatial indices in column-major order as the usual one.
fn row_major(position: usize, shape: &[usize]) -> usize {
    let size: usize = shape[2..].iter().product();
    let (mut rest, mut at) = (position % size, Vec::new());
    for d in &shape[2..] {
        at.push(rest % d);
        rest /= d;
    }
    position / size * size + flat(&at, &shape[2..])
}

#[test]
fn gradients_of_max_pools_go_where_indices_say() {
    let mut r = Random(70);
    for _ in 0..150 {
        let (window, shape, ceil) = pool_of(&mut r);
        let kind = r.choose(&PoolIndices::ALL);
        let dtype = r.choose(&[DType::F32, DType::F64]);
        let x = r.tensor(dtype, shape.clone());
        let pool = Op::MaxPool { window: window.clone(), ceil, indices: kind };
        let found = apply(&pool, &[&x], None, &[false, true]).remove(0);
        let dy = r.tensor(dtype, found.ty.shape.clone());
        let mut want = vec![0.0; x.values.len()];
        for (i, o) in indices(&dy.ty.shape).enumerate() {
            // A window that sees padding alone, by dilation, has no place.
            if places_seen(&window, &shape, &o[2..]).next().is_some() {
                let index = found.values[i] as usize;
                let at = match kind {
                    PoolIndices::Positions => index,
                    PoolIndices::ColumnMajorPositions => row_major(index, &shape),
                    PoolIndices::Taps => {
                        let at = place(
                            &window,
                            &shape,
                            &o[2..],
                            &indices(&window.kernel).nth(index).expect("a tap"),
                        );
                        flat(&[&o[..2], &at.expect("a tap inside")].concat(), &shape)
                    }
                };
                want[at] += dy.values[i];
            }
        }
        let op = Op::MaxPoolGrad { window, ceil, indices: kind, shape };
        assert_close(&evaluate(&op, &[&dy, &found]), &want, 1e-5, &op);
    }
}

/// The place along the spatial axes that a tap of the window at output position `o` sees.
fn place(w: &Window, shape: &[usize], o: &[usize], tap: &[usize]) -> Option<Vec<usize>> {
    (0..w.rank())
        .map(|d| {
            let at = o[d] * w.strides[d] + tap[d] * w.dilations[d];
            at.checked_sub(w.pads_begin[d]).filter(|&at| at < shape[d + 2])
        })
        .collect()
}

/// Places along the spatial axes that the window at output position `o` sees.
fn places_seen<'a>(
    w: &'a Window,
    shape: &'a [usize],
    o: &'a [usize],
) -> impl Iterator<Item = Vec<usize>> + 'a {
    indices(&w.kernel).filter_map(move |tap| place(w, shape, o, &tap))
}

#[test]
fn gradients_of_average_pools_are_shared_out() {
    let mut r = Random(71);
    for _ in 0..150 {
        let (window, shape, ceil) = pool_of(&mut r);
        let count_include_pad = r.chance();
        let dtype = r.choose(&[DType::F32, DType::F64]);
        let pool = Op::AveragePool { window: window.clone(), ceil, count_include_pad };
        let dy = r.tensor(dtype, pooled(&pool, &shape));
        let mut want = vec![0.0; shape.iter().product()];
        for (o, dy) in indices(&dy.ty.shape).zip(&dy.values) {
            let places: Vec<_> = places_seen(&window, &shape, &o[2..]).collect();
            let counted = |d: usize| {
                let end = shape[d + 2] + window.pads_begin[d] + window.pads_end[d];
                let at = |t: usize| o[d + 2] * window.strides[d] + t * window.dilations[d];
                (0..window.kernel[d]).filter(|&t| at(t) < end).count()
            };
            let count = match count_include_pad {
                true => (0..window.rank()).map(counted).product(),
                false => places.len(),
            };
            for at in places {
                want[flat(&[&o[..2], &at].concat(), &shape)] += dy / count as f64;
            }
        }
        let op = Op::AveragePoolGrad { window, ceil, count_include_pad, shape };
        assert_close(&evaluate(&op, &[&dy]), &want, 1e-5, &op);
    }
}

#[test]
fn gradients_of_pools_are_slopes() {
    let mut r = Random(72);
    for _ in 0..20 {
        let (mut window, shape, ceil) = loop {
            let drawn = pool_of(&mut r);
            if drawn.1.iter().product::<usize>() < 600 {
                break drawn;
            }
        };
        let x = r.tensor(DType::F64, shape.clone());
        let count_include_pad = r.chance();
        let pool = Op::AveragePool { window: window.clone(), ceil, count_include_pad };
        let dy = r.tensor(DType::F64, pooled(&pool, &shape));
        let op = Op::AveragePoolGrad {
            window: window.clone(),
            ceil,
            count_include_pad,
            shape: shape.clone(),
        };
        assert_close(&evaluate(&op, &[&dy]), &slopes(&pool, &[&x], 0, &dy), 1e-6, &op);
        // Without dilation every window sees something: there is a slope.
        window.dilations.fill(1);
        for (d, kernel) in window.kernel.iter().enumerate() {
            window.pads_begin[d] = window.pads_begin[d].min(kernel - 1);
            window.pads_end[d] = window.pads_end[d].min(kernel - 1);
        }
        let kind = r.choose(&PoolIndices::ALL);
        let pool = Op::MaxPool { window: window.clone(), ceil, indices: kind };
        let dy = r.tensor(DType::F64, pooled(&pool, &shape));
        let found = apply(&pool, &[&x], None, &[false, true]).remove(0);
        let op = Op::MaxPoolGrad { window, ceil, indices: kind, shape };
        assert_close(&evaluate(&op, &[&dy, &found]), &slopes(&pool, &[&x], 0, &dy), 1e-6, &op);
    }
}

/// One window of two elements over four, in each of two planes.
fn pairs(indices: PoolIndices) -> Op {
    let window = Window {
        kernel: vec![2],
        strides: vec![2],
        dilations: vec![1],
        pads_begin: vec![0],
        pads_end: vec![0],
    };
    Op::MaxPoolGrad { window, ceil: false, indices, shape: vec![1, 2, 4] }
}

#[test]
fn indices_outside_of_their_window_add_nothing() {
    let dy = Tensor::new(DType::F32, [1, 2, 2], vec![1.0, 2.0, 3.0, 4.0]);
    // Another window's place, another plane's; the last one counts from the end.
    let indices = Tensor::new(DType::I64, [1, 2, 2], vec![2.0, 6.0, 5.0, -1.0]);
    let dx = evaluate(&pairs(PoolIndices::Positions), &[&dy, &indices]);
    assert_eq!(dx.values, [0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 4.0]);
    // Taps that the window does not have.
    let taps = Tensor::new(DType::U8, [1, 2, 2], vec![1.0, 2.0, 255.0, 0.0]);
    let dx = evaluate(&pairs(PoolIndices::Taps), &[&dy, &taps]);
    assert_eq!(dx.values, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0]);
}

#[test]
fn indices_that_are_no_positions_are_refused() {
    let dy = Tensor::new(DType::F32, [1, 2, 2], vec![1.0; 4]);
    for (wrong, index) in [(8.0, 8), (-9.0, -9)] {
        let indices = Tensor::new(DType::I64, [1, 2, 2], vec![0.0, 2.0, wrong, 6.0]);
        let bytes = [dy.bytes(), indices.bytes()];
        let operands = [(&dy.ty, &bytes[0][..]), (&indices.ty, &bytes[1][..])];
        match evaluate_bytes(&pairs(PoolIndices::Positions), &operands, Draw::default()) {
            Err(EvaluateError::Kernel(e)) => {
                assert_eq!(e, KernelError::IndexOutOfRange { index, extent: 8 });
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn padding_of_every_type() {
    let mut r = Random(73);
    let types = [DType::F32, DType::F64, DType::I64, DType::I32, DType::U8, DType::I8, DType::Bool];
    for n in 0..400 {
        let rank = r.range(0, 4);
        let large = n % 40 == 0 && rank > 0;
        let mut shape: Vec<usize> = (0..rank).map(|_| r.choose(&[0, 1, 2, 3, 7, 11])).collect();
        if large {
            shape[r.range(0, rank - 1)] = 20_000;
        }
        let starts: Vec<usize> = (0..rank).map(|_| r.choose(&[0, 0, 0, 1, 4])).collect();
        let steps: Vec<usize> = (0..rank).map(|_| r.choose(&[1, 1, 1, 2, 3])).collect();
        let to: Vec<usize> = (0..rank)
            .map(|d| match shape[d] {
                0 => r.choose(&[0, 3]),
                n => starts[d] + (n - 1) * steps[d] + 1 + r.choose(&[0, 0, 2]),
            })
            .collect();
        if to.iter().product::<usize>() > 1 << 20 {
            continue;
        }
        let dtype = r.choose(&types);
        let x = r.tensor(dtype, shape.clone());
        let value = match dtype {
            DType::F32 | DType::F64 => r.choose(&[0.0, -1.5, f64::NEG_INFINITY]),
            DType::Bool => r.choose(&[0.0, 1.0]),
            _ => r.choose(&[0.0, 5.0]),
        };
        let mut want = vec![value; to.iter().product()];
        for (at, &v) in indices(&shape).zip(&x.values) {
            let at: Vec<usize> = (0..rank).map(|d| starts[d] + at[d] * steps[d]).collect();
            want[flat(&at, &to)] = v;
        }
        let op = Op::Pad { starts, steps, shape: to, value };
        let y = evaluate(&op, &[&x]);
        let same = y.values.iter().zip(&want).all(|(a, b)| a == b);
        assert!(same && y.values.len() == want.len(), "{op:?} of {}", x.ty);
    }
}

/// What a padding is filled with is cast as `Cast` does it; bool is true or false.
#[test]
fn padding_is_cast() {
    let of = |dtype, value| {
        let x = Tensor::new(dtype, [0], vec![]);
        let op = Op::Pad { starts: vec![0], steps: vec![1], shape: vec![2], value };
        evaluate(&op, &[&x]).values[0]
    };
    assert_eq!(of(DType::Bool, 7.0), 1.0);
    assert_eq!(of(DType::U8, -3.0), 0.0);
    assert_eq!(of(DType::I8, 1e9), 127.0);
    assert_eq!(of(DType::I32, -2.7), -2.0);
    assert!(of(DType::F32, f64::NAN).is_nan());
}

#[test]
fn paddings_that_do_not_fit_are_refused() {
    let x = TensorType::new(DType::F32, [2, 3]);
    let refused = |starts: &[usize], steps: &[usize], shape: &[usize]| {
        let (starts, steps, shape) = (starts.to_vec(), steps.to_vec(), shape.to_vec());
        Op::Pad { starts, steps, shape, value: 0.0 }.infer(&[&x]).is_err()
    };
    assert!(!refused(&[1, 0], &[1, 2], &[3, 5]));
    assert!(refused(&[1, 0], &[1, 2], &[2, 5]));
    assert!(refused(&[1, 0], &[1, 2], &[3, 4]));
    assert!(refused(&[1, 0], &[1, 0], &[3, 5]));
    assert!(refused(&[1], &[1, 2], &[3, 5]));
    assert!(refused(&[usize::MAX, 0], &[usize::MAX, 1], &[usize::MAX, 3]));
}
