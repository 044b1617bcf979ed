//! Reshape, copy, slice, transpose, expand and concatenation.

use super::{Source, Tensor, all_indices, flat, run};
use arenic_ir::{DType, Op};

const SIZES: [DType; 4] = [DType::U8, DType::I16, DType::F32, DType::F64];

/// The result whose elements lie at these positions of `x`.
fn picked(x: &Tensor, shape: &[usize], positions: impl Iterator<Item = usize>) -> Vec<u8> {
    let size = x.ty.dtype.size() as usize;
    let bytes: Vec<u8> =
        positions.flat_map(|p| x.bytes[p * size..(p + 1) * size].to_vec()).collect();
    assert_eq!(bytes.len(), shape.iter().product::<usize>() * size);
    bytes
}

#[test]
fn reshape_and_copy_keep_the_bytes() {
    let mut source = Source(1);
    for shape in [vec![], vec![0, 3], vec![4, 6], vec![700, 300]] {
        let x = source.tensor(DType::F32, &shape);
        let n = x.ty.elements();
        assert_eq!(run(&Op::Reshape { shape: vec![n] }, std::slice::from_ref(&x)).bytes, x.bytes);
        assert_eq!(run(&Op::Copy, std::slice::from_ref(&x)), x);
    }
}

#[test]
fn slices_step_either_way() {
    let mut source = Source(2);
    for round in 0..300 {
        let mut shape = source.shape(4);
        if round % 50 == 0 {
            shape = vec![source.below(300) + 1, 3, 200];
        }
        let (mut starts, mut steps, mut to) = (vec![], vec![], vec![]);
        for &d in &shape {
            if d == 0 {
                starts.push(7);
                steps.push(1);
                to.push(0);
                continue;
            }
            let (a, b) = (source.below(d), source.below(d));
            let step = if source.below(2) == 0 { 1 } else { 1 + source.below(3) };
            starts.push(a);
            to.push(a.abs_diff(b) / step + 1);
            steps.push(if b < a { -(step as i64) } else { step as i64 });
        }
        let x = source.tensor(SIZES[round % 4], &shape);
        let source_of = |i: &Vec<usize>| {
            let index: Vec<usize> = (0..shape.len())
                .map(|k| (starts[k] as i64 + i[k] as i64 * steps[k]) as usize)
                .collect();
            index.iter().zip(&shape).fold(0, |at, (&i, &d)| at * d + i)
        };
        let expected = picked(&x, &to, all_indices(&to).iter().map(source_of));
        let op = Op::Slice { starts: starts.clone(), steps: steps.clone(), shape: to.clone() };
        assert_eq!(run(&op, &[x]).bytes, expected, "{op:?}");
    }
}

#[test]
fn transposes_follow_the_permutation() {
    let mut source = Source(3);
    let large = [vec![300, 170], vec![65, 3, 130], vec![3, 70, 2, 90], vec![2, 40_000]];
    for round in 0..300 {
        let shape = large.get(round).cloned().unwrap_or_else(|| source.shape(5));
        let mut perm: Vec<usize> = (0..shape.len()).collect();
        for i in (1..perm.len()).rev() {
            perm.swap(i, source.below(i + 1));
        }
        if round < large.len() {
            perm.reverse();
        }
        let x = source.tensor(SIZES[round % 4], &shape);
        let to: Vec<usize> = perm.iter().map(|&p| shape[p]).collect();
        let expected = picked(
            &x,
            &to,
            all_indices(&to).iter().map(|i| {
                let mut index = vec![0; i.len()];
                perm.iter().zip(i).for_each(|(&p, &i)| index[p] = i);
                index.iter().zip(&shape).fold(0, |at, (&i, &d)| at * d + i)
            }),
        );
        let op = Op::Transpose { perm };
        assert_eq!(run(&op, &[x]).bytes, expected, "{op:?} of {shape:?}");
    }
}

#[test]
fn expand_repeats() {
    let mut source = Source(4);
    for round in 0..200 {
        let mut to = source.shape(5);
        if round % 40 == 0 {
            to = vec![3, 200, source.below(200) + 1];
        }
        let from = source.broadcast_to(&to);
        let x = source.tensor(SIZES[round % 4], &from);
        let expected = picked(&x, &to, all_indices(&to).iter().map(|i| flat(&from, i)));
        assert_eq!(run(&Op::Expand { shape: to.clone() }, &[x]).bytes, expected);
    }
}

#[test]
fn concat_joins() {
    let mut source = Source(5);
    for round in 0..200 {
        let mut shape = source.shape(4);
        shape.push(1 + source.below(5));
        if round % 40 == 0 {
            shape = vec![40, 30, 20];
        }
        let axis = source.below(shape.len());
        let parts: Vec<Tensor> = (0..1 + source.below(4))
            .map(|_| {
                let mut own = shape.clone();
                own[axis] = source.extent();
                source.tensor(SIZES[round % 4], &own)
            })
            .collect();
        let y = run(&Op::Concat { axis }, &parts);
        let mut start = 0;
        for part in &parts {
            let mut shifted = all_indices(&part.ty.shape);
            shifted.iter_mut().for_each(|i| i[axis] += start);
            let to = &y.ty.shape;
            let positions =
                shifted.iter().map(|i| i.iter().zip(to).fold(0, |at, (&i, &d)| at * d + i));
            assert_eq!(picked(&y, &part.ty.shape, positions), part.bytes);
            start += part.ty.shape[axis];
        }
        assert_eq!(start, y.ty.shape[axis]);
    }
}
