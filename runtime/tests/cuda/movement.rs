//! Slices, transposes, broadcasts, concatenations and paddings of elements of every size.

use super::Case;
use super::random::Random;
use arenic_ir::{DType, Op};

/// One of each size, and a float.
const TYPES: [DType; 6] =
    [DType::Bool, DType::I16, DType::Bf16, DType::F32, DType::I64, DType::F64];

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for d in TYPES {
        for _ in 0..24 {
            cases.push(slice(r, d));
            cases.push(transpose(r, d));
            cases.push(expand(r, d));
            cases.push(concat(r, d));
            cases.push(pad(r, d));
        }
        cases.extend(large(r, d));
    }
    cases
}

/// A shape whose extents are multiples of powers of two now and then, for wide words.
fn shape(r: &mut Random, rank: usize) -> Vec<usize> {
    let mut shape = r.shape(rank);
    if let Some(last) = shape.last_mut().filter(|_| r.chance()) {
        *last *= r.choose(&[2, 4, 8]);
    }
    shape
}

fn slice(r: &mut Random, d: DType) -> Case {
    let shape = shape(r, 5);
    let (mut starts, mut steps, mut extents) = (Vec::new(), Vec::new(), Vec::new());
    for &n in &shape {
        let start = r.range(0, n.max(1) - 1);
        let step = r.choose(&[1, 1, 1, 2, 3, -1, -2]);
        let room = if step > 0 { n - start } else { start + usize::from(n > 0) };
        let most = room.div_ceil(usize::try_from(i64::abs(step)).unwrap_or(1));
        // Mostly as much as there is.
        let extent = if r.range(0, 3) == 0 { r.range(0, most) } else { most };
        starts.push(start);
        steps.push(step);
        extents.push(extent);
    }
    Case::new(Op::Slice { starts, steps, shape: extents }, [r.wild(d, shape)])
}

fn pad(r: &mut Random, d: DType) -> Case {
    let shape = shape(r, 5);
    let starts: Vec<usize> = shape.iter().map(|_| r.choose(&[0, 0, 1, 3])).collect();
    let steps: Vec<usize> = shape.iter().map(|_| r.choose(&[1, 1, 1, 2, 3])).collect();
    let extent = |(i, &n): (usize, &usize)| match n {
        0 => r.choose(&[0, 2]),
        n => starts[i] + (n - 1) * steps[i] + 1 + r.choose(&[0, 0, 1, 4]),
    };
    let extents = shape.iter().enumerate().map(extent).collect();
    let value = r.choose(&[0.0, 1.0, -2.5, 1e12, f64::NEG_INFINITY, f64::NAN]);
    Case::new(Op::Pad { starts, steps, shape: extents, value }, [r.wild(d, shape)])
}

fn permutation(r: &mut Random, rank: usize) -> Vec<usize> {
    let mut perm: Vec<usize> = (0..rank).collect();
    for i in 1..rank {
        perm.swap(i, r.range(0, i));
    }
    perm
}

fn transpose(r: &mut Random, d: DType) -> Case {
    let shape = shape(r, 5);
    let perm = permutation(r, shape.len());
    Case::new(Op::Transpose { perm }, [r.wild(d, shape)])
}

fn expand(r: &mut Random, d: DType) -> Case {
    let shape = shape(r, 5);
    let from = r.broadcast_to(&shape);
    Case::new(Op::Expand { shape }, [r.wild(d, from)])
}

fn concat(r: &mut Random, d: DType) -> Case {
    let mut shape = shape(r, 4);
    if shape.is_empty() {
        shape.push(3);
    }
    let axis = r.range(0, shape.len() - 1);
    let count = r.range(1, 4);
    let mut part = |r: &mut Random| {
        shape[axis] = if r.chance() { r.range(0, 5) } else { 8 };
        r.wild(d, shape.clone())
    };
    let inputs: Vec<_> = (0..count).map(|_| part(r)).collect();
    Case::new(Op::Concat { axis }, inputs)
}

/// More than a tile, in part and whole, along long and short axes.
fn large(r: &mut Random, d: DType) -> Vec<Case> {
    let cases: [(&[usize], &[usize]); 9] = [
        (&[3, 70, 45], &[0, 2, 1]),
        (&[64, 96], &[1, 0]),
        (&[2, 33, 4, 40], &[0, 3, 1, 2]),
        (&[40, 3, 5, 37], &[3, 1, 2, 0]),
        (&[5, 50, 3, 34], &[1, 3, 2, 0]),
        (&[2, 300, 3], &[0, 2, 1]),
        (&[2, 3, 270], &[0, 2, 1]),
        (&[9, 7, 520], &[2, 0, 1]),
        (&[35, 2, 36, 16], &[2, 1, 0, 3]),
    ];
    let case = |(shape, perm): (&[usize], &[usize])| {
        Case::new(Op::Transpose { perm: perm.to_vec() }, [r.wild(d, shape)])
    };
    cases.map(case).into()
}
