//! Gathers and scatters.

use super::*;
use arenic_ir::op::Scatter;

fn indices(r: &mut Rng, shape: &[usize], below: usize) -> Operand {
    let below = below as i64;
    let values: Vec<i64> = (0..shape.iter().product()).map(|_| r.i64(-below..below)).collect();
    integers(shape, &values)
}

#[test]
fn gathered_slices() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let x: Vec<usize> = (0..3).map(|_| r.usize(1..4)).collect();
        let axis = r.usize(0..3);
        let at: Vec<usize> = (0..r.usize(0..3)).map(|_| r.usize(1..4)).collect();
        let at = indices(r, &at, x[axis]);
        case(&Op::Gather { axis }, &[trained(r, &x), at]);
    }
}

#[test]
fn gathered_elements() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let mut x: Vec<usize> = (0..3).map(|_| r.usize(1..4)).collect();
        let axis = r.usize(0..3);
        let whole = trained(r, &x);
        let extent = x[axis];
        x[axis] = r.usize(1..5);
        let at = indices(r, &x, extent);
        case(&Op::GatherElements { axis }, &[whole, at]);
    }
}

#[test]
fn gathered_by_tuples() {
    for batch_dims in 0..2 {
        for seed in 0..CASES {
            let r = &mut Rng::with_seed(seed);
            let x: Vec<usize> = (0..4).map(|_| r.usize(1..4)).collect();
            let depth = r.usize(1..4 - batch_dims);
            let count = r.usize(1..5);
            let mut shape = x[..batch_dims].to_vec();
            shape.extend([count, depth]);
            let rows: usize = shape.iter().product::<usize>() / depth;
            let mut values = Vec::new();
            for _ in 0..rows {
                values.extend((0..depth).map(|i| r.i64(0..x[batch_dims + i] as i64)));
            }
            case(&Op::GatherNd { batch_dims }, &[trained(r, &x), integers(&shape, &values)]);
        }
    }
}

#[test]
fn the_first_in_order() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let shape: Vec<usize> = (0..3).map(|_| r.usize(1..5)).collect();
        let axis = r.usize(0..3);
        let (k, largest) = (r.usize(1..=shape[axis]), r.bool());
        case(&Op::TopK { axis, k, largest }, &[trained(r, &shape)]);
    }
}

/// Different positions, since what is written twice is no function of both.
#[test]
fn scattered() {
    for reduction in [Scatter::Replace, Scatter::Add] {
        for seed in 0..CASES {
            let r = &mut Rng::with_seed(seed);
            let (rows, extent) = (r.usize(1..4), r.usize(2..6));
            let count = r.usize(1..=extent);
            let mut values = Vec::new();
            for _ in 0..rows {
                let mut at: Vec<i64> = (0..extent as i64).collect();
                r.shuffle(&mut at);
                values.extend(&at[..count]);
            }
            let operands = [
                trained(r, &[rows, extent]),
                integers(&[rows, count], &values),
                trained(r, &[rows, count]),
            ];
            case(&Op::ScatterElements { axis: 1, reduction }, &operands);
            let operands = [
                trained(r, &[extent, rows]),
                integers(&[count, 1], &values[..count]),
                trained(r, &[count, rows]),
            ];
            case(&Op::ScatterNd { reduction }, &operands);
        }
    }
}
