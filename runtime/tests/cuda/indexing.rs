//! Gathers and scatters with indices of both types, from both ends, often equal and now and
//! then out of range.

use super::random::Random;
use super::{Case, Tensor};
use arenic_ir::op::Scatter;
use arenic_ir::{DType, Op};

const TYPES: [DType; 6] =
    [DType::Bool, DType::I16, DType::Bf16, DType::F32, DType::I64, DType::F64];

const REDUCTIONS: [Scatter; 5] =
    [Scatter::Replace, Scatter::Add, Scatter::Mul, Scatter::Min, Scatter::Max];

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for d in TYPES {
        for _ in 0..10 {
            cases.push(gather(r, d));
            cases.push(gather_elements(r, d));
            cases.push(gather_nd(r, d));
            if d != DType::Bool && d != DType::Bf16 {
                cases.push(top_k(r, d));
            }
        }
        let combines = |&f: &Scatter| d != DType::Bf16 || f == Scatter::Replace;
        for reduction in REDUCTIONS.into_iter().filter(combines) {
            for _ in 0..4 {
                cases.push(scatter_elements(r, d, reduction));
                cases.push(scatter_nd(r, d, reduction));
            }
        }
    }
    for reduction in REDUCTIONS {
        cases.extend(many(r, reduction));
    }
    cases.extend(empty(r));
    cases
}

/// Of few different numbers, so that many are equal, or of wild ones, with NaN among them.
fn top_k(r: &mut Random, d: DType) -> Case {
    let mut shape = r.shape(3);
    shape.push(r.range(1, 40));
    let axis = r.range(0, shape.len() - 1);
    let (k, largest) = (r.range(0, shape[axis]), r.chance());
    let x = match r.chance() {
        true => r.fill(d, shape, |r| r.range(0, 4) as f64),
        false => r.wild(d, shape),
    };
    Case::new(Op::TopK { axis, k, largest }, [x])
}

fn index_type(r: &mut Random) -> DType {
    r.choose(&[DType::I32, DType::I64])
}

/// Indices of an extent, now and then with some that are out of range; none can be in range of
/// nothing.
fn indices(r: &mut Random, shape: &[usize], extent: usize) -> Tensor {
    let d = index_type(r);
    if r.range(0, 11) > 0 {
        return r.indices(d, shape, extent);
    }
    r.fill(d, shape, |r| match r.range(0, 3) {
        0 => r.choose(&[extent as f64, -1.0 - extent as f64, 1e9, -2e9]),
        _ => r.range(0, extent.max(1) - 1) as f64,
    })
}

/// Tuples of indices, one row of `shape[..depth]` each.
fn tuples(r: &mut Random, counts: &[usize], shape: &[usize]) -> Tensor {
    let (d, refused) = (index_type(r), r.range(0, 11) == 0);
    let mut k = 0;
    r.fill(d, [counts, &[shape.len()]].concat(), |r| {
        let extent = shape[k % shape.len()];
        k += 1;
        let i = r.range(0, extent.max(1) - 1) as f64;
        let beyond = refused && r.range(0, 5) == 0;
        i - if r.chance() && !beyond { extent as f64 } else { 0.0 }
            + if beyond { extent as f64 } else { 0.0 }
    })
}

/// A shape with an axis.
fn axis(r: &mut Random) -> (Vec<usize>, usize) {
    let mut shape = r.shape(4);
    if shape.is_empty() {
        shape.push(5);
    }
    let axis = r.range(0, shape.len() - 1);
    (shape, axis)
}

fn gather(r: &mut Random, d: DType) -> Case {
    let (mut shape, axis) = axis(r);
    if r.chance() {
        shape.push(r.choose(&[2, 4, 16]));
    }
    let count = r.shape(2);
    let which = indices(r, &count, shape[axis]);
    Case::new(Op::Gather { axis }, [r.wild(d, shape), which])
}

/// Extents of indices into a shape along an axis.
fn counts(r: &mut Random, shape: &[usize], axis: usize) -> Vec<usize> {
    let mut counts: Vec<usize> =
        shape.iter().map(|&n| if r.chance() { n } else { r.range(n.min(1), n) }).collect();
    counts[axis] = r.choose(&[0, 1, 3, 5, 9, 40]);
    counts
}

fn gather_elements(r: &mut Random, d: DType) -> Case {
    let (shape, axis) = axis(r);
    let counts = counts(r, &shape, axis);
    let which = indices(r, &counts, shape[axis]);
    Case::new(Op::GatherElements { axis }, [r.wild(d, shape), which])
}

fn gather_nd(r: &mut Random, d: DType) -> Case {
    let shape = r.shape(5);
    let batch_dims = r.range(0, shape.len().min(2));
    let depth = r.range(0, shape.len() - batch_dims);
    let counts = [&shape[..batch_dims], &r.shape(2)].concat();
    let which = tuples(r, &counts, &shape[batch_dims..][..depth]);
    Case::new(Op::GatherNd { batch_dims }, [r.wild(d, shape), which])
}

fn scatter_elements(r: &mut Random, d: DType, reduction: Scatter) -> Case {
    let (shape, axis) = axis(r);
    let counts = counts(r, &shape, axis);
    let which = indices(r, &counts, shape[axis]);
    let inputs = [r.wild(d, shape), which, r.wild(d, counts)];
    Case::new(Op::ScatterElements { axis, reduction }, inputs)
}

fn scatter_nd(r: &mut Random, d: DType, reduction: Scatter) -> Case {
    let shape = r.shape(4);
    let depth = r.range(0, shape.len());
    let counts = r.shape(2);
    let which = tuples(r, &counts, &shape[..depth]);
    let updates = [&counts, &shape[depth..]].concat();
    let inputs = [r.wild(d, shape), which, r.wild(d, updates)];
    Case::new(Op::ScatterNd { reduction }, inputs)
}

/// Many updates of few elements, shared between warps, and the reverse.
fn many(r: &mut Random, reduction: Scatter) -> Vec<Case> {
    let d = r.choose(&[DType::F32, DType::I32, DType::F64, DType::U8]);
    let elements = |r: &mut Random, shape: &[usize], counts: &[usize], axis: usize| {
        let which = r.indices(DType::I64, counts, shape[axis]);
        let inputs = [r.tame(d, shape), which, r.tame(d, counts)];
        Case::new(Op::ScatterElements { axis, reduction }, inputs)
    };
    let rows = |r: &mut Random, shape: &[usize], depth: usize, count: usize| {
        let which = tuples(r, &[count], &shape[..depth]);
        let inputs = [r.tame(d, shape), which, r.tame(d, [&[count], &shape[depth..]].concat())];
        Case::new(Op::ScatterNd { reduction }, inputs)
    };
    vec![
        elements(r, &[3], &[300], 0),
        elements(r, &[500], &[700], 0),
        elements(r, &[4, 3, 6], &[3, 130, 5], 1),
        elements(r, &[40, 70], &[3, 70], 0),
        rows(r, &[7, 5], 2, 400),
        rows(r, &[6, 3, 50], 2, 90),
        rows(r, &[4, 290], 1, 33),
        rows(r, &[9, 2], 1, 150),
    ]
}

/// Where nothing is to be written, indices are refused all the same.
fn empty(r: &mut Random) -> Vec<Case> {
    let reduction = Scatter::Add;
    let mut case = |op, shape: &[usize], counts: &[usize], updates: &[usize]| {
        let which = r.fill(DType::I64, counts, |_| 1.0);
        Case::new(op, [r.tame(DType::F32, shape), which, r.tame(DType::F32, updates)])
    };
    vec![
        case(Op::ScatterElements { axis: 0, reduction }, &[0, 3], &[7, 2], &[7, 2]),
        case(Op::ScatterElements { axis: 1, reduction }, &[3, 0], &[3, 2], &[3, 2]),
        case(Op::ScatterNd { reduction }, &[0, 3], &[2, 1], &[2, 3]),
        case(Op::ScatterNd { reduction }, &[1, 0], &[2, 1], &[2, 0]),
        case(Op::ScatterNd { reduction }, &[2, 0], &[2, 1], &[2, 0]),
        case(Op::ScatterNd { reduction }, &[0, 3], &[4, 0], &[4, 0, 3]),
    ]
}
