//! Gathers and scatters.

use super::{Setting, Source, Tensor, all_indices, refusal, run, run_as};
use crate::kernel::{Draw, KernelError};
use arenic_ir::op::Scatter;
use arenic_ir::{DType, Op, TensorType};

const SIZES: [DType; 4] = [DType::I8, DType::U16, DType::F32, DType::I64];

/// Row-major position.
fn position(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |at, (&d, &i)| at * d + i)
}

/// Indices of either type into `extents` in turn, about half of them negative; and what
/// they select.
fn indices(source: &mut Source, shape: &[usize], extents: &[usize]) -> (Tensor, Vec<usize>) {
    let n: usize = shape.iter().product();
    let picked: Vec<usize> = (0..n).map(|i| source.below(extents[i % extents.len()])).collect();
    let written: Vec<i64> = picked
        .iter()
        .enumerate()
        .map(|(i, &p)| {
            p as i64 - if source.below(2) == 0 { 0 } else { extents[i % extents.len()] as i64 }
        })
        .collect();
    let tensor = if source.below(2) == 0 {
        Tensor::new(shape, &written)
    } else {
        Tensor::new(shape, &written.iter().map(|&i| i as i32).collect::<Vec<_>>())
    };
    (tensor, picked)
}

/// Element `i` of a tensor, as bytes.
fn element(x: &Tensor, i: usize) -> &[u8] {
    let size = x.ty.dtype.size() as usize;
    &x.bytes[i * size..(i + 1) * size]
}

/// A shape without zeros, so that there is something to select.
fn filled(source: &mut Source, rank: usize) -> Vec<usize> {
    (0..rank).map(|_| 1 + source.below(7)).collect()
}

#[test]
fn gather_selects_along_an_axis() {
    let mut source = Source(21);
    for round in 0..200 {
        let rank = 1 + source.below(4);
        let mut shape = filled(&mut source, rank);
        let mut by = source.shape(2);
        if round % 40 == 0 {
            (shape, by) = (vec![3, 50, 40], vec![30, 9]);
        }
        let axis = source.below(shape.len());
        let x = source.tensor(SIZES[round % 4], &shape);
        let (tensor, picked) = indices(&mut source, &by, &shape[axis..=axis]);
        let y = run(&Op::Gather { axis }, &[x.clone(), tensor]);
        for (i, index) in all_indices(&y.ty.shape).iter().enumerate() {
            let chosen = picked[position(&by, &index[axis..axis + by.len()])];
            let from = [&index[..axis], &[chosen], &index[axis + by.len()..]].concat();
            assert_eq!(element(&y, i), element(&x, position(&shape, &from)));
        }
    }
}

#[test]
fn gather_and_scatter_elements() {
    let mut source = Source(22);
    for round in 0..400 {
        let rank = 1 + source.below(4);
        let mut shape = filled(&mut source, rank);
        let axis = source.below(rank);
        let mut by: Vec<usize> = shape.iter().map(|&d| 1 + source.below(d)).collect();
        if source.below(2) == 0 {
            by = shape.clone();
        }
        by[axis] = source.extent();
        if round % 40 == 0 {
            shape = vec![40, 50, 60];
            shape.truncate(rank);
            by = shape.clone();
            by[axis] = 70;
        }
        let d = SIZES[round % 4];
        let x = source.tensor(d, &shape);
        let (tensor, picked) = indices(&mut source, &by, &shape[axis..=axis]);
        let moved: Vec<usize> = all_indices(&by)
            .into_iter()
            .enumerate()
            .map(|(i, mut index)| {
                index[axis] = picked[i];
                position(&shape, &index)
            })
            .collect();
        let y = run(&Op::GatherElements { axis }, &[x.clone(), tensor.clone()]);
        for (i, &from) in moved.iter().enumerate() {
            assert_eq!(element(&y, i), element(&x, from));
        }

        let updates = source.tensor(d, &by);
        let op = |reduction| Op::ScatterElements { axis, reduction };
        let y = run(&op(Scatter::Replace), &[x.clone(), tensor.clone(), updates.clone()]);
        let mut expected = x.clone();
        let size = d.size() as usize;
        for (i, &to) in moved.iter().enumerate() {
            expected.bytes[to * size..(to + 1) * size].copy_from_slice(element(&updates, i));
        }
        assert_eq!(y, expected);

        // Sums of floats tell in which order they were taken.
        let [x, updates] = [&x, &updates].map(|t| plain(&mut source, &t.ty.shape));
        let y = run(&op(Scatter::Add), &[x.clone(), tensor, updates.clone()]);
        let mut expected = x.values::<f32>();
        for (&to, update) in moved.iter().zip(updates.values::<f32>()) {
            expected[to] += update;
        }
        assert_eq!(y, Tensor::new(&shape, &expected));
    }
}

/// Floats between 0 and 1 with full mantissas.
fn plain(source: &mut Source, shape: &[usize]) -> Tensor {
    let n = shape.iter().product();
    let values: Vec<f32> =
        (0..n).map(|_| (source.word() >> 40) as f32 / (1u32 << 24) as f32).collect();
    Tensor::new(shape, &values)
}

#[test]
fn gather_and_scatter_by_tuples() {
    let mut source = Source(23);
    for round in 0..400 {
        let rank = 1 + source.below(4);
        let mut shape = filled(&mut source, rank);
        if round % 40 == 0 {
            shape = vec![20, 30, 300];
        }
        let mut batch = source.below(shape.len());
        let mut depth = source.below(shape.len() - batch + 1);
        let mut counts = source.shape(2);
        if round % 40 == 0 {
            (batch, depth, counts) = (round / 40 % 2, 1, vec![150]);
        }
        let inside = &shape[batch..batch + depth];
        let by = [&shape[..batch], &counts].concat();
        let tuples: usize = by.iter().product();
        let (tensor, picked) = if depth == 0 {
            (Tensor::new::<i64>(&[&by[..], &[0]].concat(), &[]), vec![])
        } else {
            indices(&mut source, &[&by[..], &[depth]].concat(), inside)
        };
        let d = SIZES[round % 4];
        let x = source.tensor(d, &shape);
        let run_shape = &shape[batch + depth..];
        let length: usize = run_shape.iter().product();
        let y = run(&Op::GatherNd { batch_dims: batch }, &[x.clone(), tensor.clone()]);
        let heads = all_indices(&by);
        let size = d.size() as usize;
        let begin = |i: usize| {
            let index = [&heads[i][..batch], &picked[i * depth..(i + 1) * depth]].concat();
            position(&shape[..batch + depth], &index) * length
        };
        for i in 0..tuples {
            let from = begin(i) * size;
            assert_eq!(
                y.bytes[i * length * size..(i + 1) * length * size],
                x.bytes[from..from + length * size]
            );
        }

        if batch > 0 {
            continue; // scatters have no batch axes
        }
        let update_shape = [&by[..], run_shape].concat();
        let updates = source.tensor(d, &update_shape);
        let op = |reduction| Op::ScatterNd { reduction };
        let y = run(&op(Scatter::Replace), &[x.clone(), tensor.clone(), updates.clone()]);
        let mut expected = x.clone();
        for i in 0..tuples {
            let to = begin(i) * size;
            expected.bytes[to..to + length * size]
                .copy_from_slice(&updates.bytes[i * length * size..(i + 1) * length * size]);
        }
        assert_eq!(y, expected);

        let (x, updates) = (plain(&mut source, &shape), plain(&mut source, &update_shape));
        let y = run(&op(Scatter::Add), &[x.clone(), tensor, updates.clone()]);
        let (mut expected, updates) = (x.values::<f32>(), updates.values::<f32>());
        for i in 0..tuples {
            for j in 0..length {
                expected[begin(i) + j] += updates[i * length + j];
            }
        }
        assert_eq!(y, Tensor::new(&shape, &expected));
    }
}

#[test]
fn scatters_reduce() {
    let x = Tensor::new(&[3], &[10i8, -100, 3]);
    let by = Tensor::new(&[4], &[0i64, 1, 1, -1]);
    let updates = Tensor::new(&[4], &[5i8, -100, 2, -4]);
    let expect = |reduction, values: [i8; 3]| {
        let inputs = [x.clone(), by.clone(), updates.clone()];
        let y = run(&Op::ScatterElements { axis: 0, reduction }, &inputs);
        assert_eq!(y.values::<i8>(), values, "{reduction:?}");
        let tuples = Tensor { ty: TensorType::new(DType::I64, [4, 1]), ..by.clone() };
        let y = run(&Op::ScatterNd { reduction }, &[x.clone(), tuples, updates.clone()]);
        assert_eq!(y.values::<i8>(), values, "{reduction:?}");
    };
    expect(Scatter::Replace, [5, 2, -4]);
    expect(Scatter::Add, [15, 58, -1]);
    expect(Scatter::Mul, [50, 32, -12]);
    expect(Scatter::Min, [5, -100, -4]);
    expect(Scatter::Max, [10, 2, 3]);

    let bools = |values: &[u8]| Tensor {
        ty: TensorType::new(DType::Bool, [values.len()]),
        bytes: values.to_vec(),
    };
    let inputs = [bools(&[1, 0]), Tensor::new(&[2], &[0i32, 1]), bools(&[1, 1])];
    let op = Op::ScatterElements { axis: 0, reduction: Scatter::Add };
    assert_eq!(run(&op, &inputs).bytes, [1, 1]);
}

#[test]
fn indices_out_of_range_are_refused() {
    let x = Tensor::new(&[3, 2], &[0f32; 6]);
    let updates = Tensor::new(&[1, 2], &[0f32; 2]);
    for index in [3i64, -4, i64::MAX, i64::MIN] {
        let refused = KernelError::IndexOutOfRange { index, extent: 3 };
        let pair = Tensor::new(&[1, 2], &[0, index]);
        assert_eq!(refusal(&Op::Gather { axis: 0 }, &[x.clone(), pair.clone()]), refused);
        let op = Op::GatherElements { axis: 0 };
        assert_eq!(refusal(&op, &[x.clone(), pair.clone()]), refused);
        let op = Op::ScatterElements { axis: 0, reduction: Scatter::Add };
        assert_eq!(refusal(&op, &[x.clone(), pair.clone(), updates.clone()]), refused);
        let tuple = Tensor::new(&[1, 1], &[index]);
        let op = Op::GatherNd { batch_dims: 0 };
        assert_eq!(refusal(&op, &[x.clone(), tuple.clone()]), refused);
        let op = Op::ScatterNd { reduction: Scatter::Add };
        assert_eq!(refusal(&op, &[x.clone(), tuple, updates.clone()]), refused);
    }
    // The first one is named, whichever task finds another one.
    let mut many = vec![0i32; 100_000];
    (many[99_999], many[60_000], many[70_000]) = (-9, 8, 7);
    let many = Tensor::new(&[100_000], &many);
    assert_eq!(
        refusal(&Op::Gather { axis: 1 }, &[x, many]),
        KernelError::IndexOutOfRange { index: 8, extent: 2 }
    );
}

#[test]
fn nothing_is_selected_from_nothing() {
    let x = Tensor::new::<f32>(&[0, 4], &[]);
    let none = Tensor::new::<i64>(&[0], &[]);
    assert_eq!(run(&Op::Gather { axis: 0 }, &[x.clone(), none]).ty.shape, [0, 4]);
    let some = Tensor::new(&[2], &[0i64, 1]);
    assert_eq!(run(&Op::Gather { axis: 1 }, &[x.clone(), some]).ty.shape, [0, 2]);
    let one = Tensor::new(&[1], &[0i64]);
    let refused = KernelError::IndexOutOfRange { index: 0, extent: 0 };
    assert_eq!(refusal(&Op::Gather { axis: 0 }, &[x, one]), refused);
}

#[test]
fn top_k_is_the_head_of_a_stable_sort() {
    let mut source = Source(26);
    for round in 0..200 {
        let rank = 1 + source.below(4);
        let shape = filled(&mut source, rank);
        let axis = source.below(rank);
        let k = source.below(shape[axis] + 1);
        let largest = round % 2 == 0;
        // Few different numbers, and NaN.
        let numbers: Vec<f32> = (0..shape.iter().product())
            .map(|_| if source.below(9) == 0 { f32::NAN } else { source.below(4) as f32 - 1.0 })
            .collect();
        let x = Tensor::new(&shape, &numbers);
        let op = Op::TopK { axis, k, largest };
        let [values, indices] = &super::run_all_ways(&op, &[x], Draw::default())[..] else {
            panic!("two results")
        };
        for (i, index) in all_indices(&indices.ty.shape).iter().enumerate() {
            let mut at = index.clone();
            let mut row: Vec<(usize, f32)> = (0..shape[axis])
                .map(|j| {
                    at[axis] = j;
                    (j, numbers[position(&shape, &at)])
                })
                .collect();
            // NaN is the largest.
            row.sort_by(|(_, a), (_, b)| {
                let order = a.partial_cmp(b).unwrap_or(a.is_nan().cmp(&b.is_nan()));
                if largest { order.reverse() } else { order }
            });
            let (place, value) = row[index[axis]];
            assert_eq!(element(indices, i), (place as i64).to_le_bytes(), "{op:?}");
            assert_eq!(element(values, i), value.to_le_bytes(), "{op:?}");
        }
    }
}

/// A sort of many elements, of which many are equal but for their bits: zeros of both signs, and
/// NaN of several. It takes the time of a sort, with values alone and with indices.
#[test]
fn top_k_sorts_many_elements() {
    const N: usize = 200_000;
    let mut source = Source(27);
    let numbers: Vec<f32> = (0..N)
        .map(|_| match source.below(8) {
            0 => 0.0,
            1 => -0.0,
            2 => f32::from_bits(f32::NAN.to_bits() + source.below(3) as u32),
            _ => source.below(N) as f32 - (N / 2) as f32,
        })
        .collect();
    let x = Tensor::new(&[N], &numbers);
    for (k, largest) in [(N, true), (N, false), (N / 2, true), (N / 2, false), (3, true)] {
        let mut places: Vec<usize> = (0..N).collect();
        places.sort_by(|&a, &b| {
            let (a, b) = (numbers[a], numbers[b]);
            let order = a.partial_cmp(&b).unwrap_or(a.is_nan().cmp(&b.is_nan()));
            if largest { order.reverse() } else { order }
        });
        places.truncate(k);
        let expected: Vec<u32> = places.iter().map(|&i| numbers[i].to_bits()).collect();
        let places: Vec<i64> = places.iter().map(|&i| i as i64).collect();
        let op = Op::TopK { axis: 0, k, largest };
        for unread in [&[][..], &[0], &[1]] {
            let setting = Setting { unread, ..Setting::default() };
            let results = run_as(&op, std::slice::from_ref(&x), setting).unwrap();
            let [values, indices] = &results[..] else { panic!("two results") };
            let right = unread == [0] || values.values::<u32>() == expected;
            assert!(right, "the values of {op:?} without {unread:?}");
            let right = unread == [1] || indices.values::<i64>() == places;
            assert!(right, "the indices of {op:?} without {unread:?}");
        }
    }
}
