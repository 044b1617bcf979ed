//! Operators that move elements.

use super::*;

#[test]
fn shapes_and_axes() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let (shape, part) = shapes(r, 3);
        let count: usize = shape.iter().product();
        case(&Op::Reshape { shape: vec![count] }, &[trained(r, &shape)]);
        case(&Op::Copy, &[trained(r, &shape)]);
        case(&Op::Expand { shape: shape.clone() }, &[trained(r, &part)]);
        let mut perm = vec![0, 1, 2];
        r.shuffle(&mut perm);
        case(&Op::Transpose { perm }, &[trained(r, &shape)]);
    }
}

#[test]
fn joined() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let (shape, _) = shapes(r, 3);
        let axis = r.usize(0..3);
        let operands: Vec<Operand> = (0..r.usize(1..4))
            .map(|_| {
                let mut shape = shape.clone();
                shape[axis] = r.usize(1..4);
                trained(r, &shape)
            })
            .collect();
        case(&Op::Concat { axis }, &operands);
    }
}

/// A slice of each axis, perhaps with gaps, perhaps backwards.
fn slice(r: &mut Rng, whole: &[usize]) -> Op {
    let (mut starts, mut steps, mut shape) = (Vec::new(), Vec::new(), Vec::new());
    for &extent in whole {
        let step = r.usize(1..3);
        let count = r.usize(1..=extent.div_ceil(step));
        let room = extent - 1 - (count - 1) * step;
        let first = r.usize(0..=room);
        let backwards = r.bool();
        starts.push(if backwards { first + (count - 1) * step } else { first });
        steps.push(if backwards { -(step as i64) } else { step as i64 });
        shape.push(count);
    }
    Op::Slice { starts, steps, shape }
}

#[test]
fn slices() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let whole: Vec<usize> = (0..3).map(|_| r.usize(1..6)).collect();
        case(&slice(r, &whole), &[trained(r, &whole)]);
    }
}

#[test]
fn padding() {
    for seed in 0..CASES {
        let r = &mut Rng::with_seed(seed);
        let x: Vec<usize> = (0..3).map(|_| r.usize(1..4)).collect();
        let starts: Vec<usize> = x.iter().map(|_| r.usize(0..3)).collect();
        let steps: Vec<usize> = x.iter().map(|_| r.usize(1..3)).collect();
        let shape = (0..3).map(|i| starts[i] + (x[i] - 1) * steps[i] + 1 + r.usize(0..3)).collect();
        case(&Op::Pad { starts, steps, shape, value: 0.7 }, &[trained(r, &x)]);
    }
}

/// What is split and what overlaps: parts that are all of a tensor are joined, others added.
#[test]
fn parts_of_one_tensor() {
    for (parts, name) in [
        (vec![(0, 2), (2, 3)], "beside each other"),
        (vec![(2, 3), (0, 2)], "in another order"),
        (vec![(0, 3), (2, 3)], "overlapping"),
        (vec![(1, 2), (3, 1)], "not all"),
        (vec![(0, 5), (0, 5)], "twice all"),
    ] {
        let r = &mut Rng::with_seed(9);
        let Operand::Trained(shape, values) = trained(r, &[2, 5]) else { unreachable!() };
        let mut g = Graph::default();
        let ty = TensorType::new(DType::F64, shape);
        let state = g.add_state("x", ty, Some(Data::Bytes(doubles(&values).into())));
        let x = g.states[state].enter;
        let mut sum = None;
        for (k, (start, extent)) in parts.into_iter().enumerate() {
            let op =
                Op::Slice { starts: vec![0, start], steps: vec![1, 1], shape: vec![2, extent] };
            let part = g.add_node("", op, vec![x]).unwrap();
            let part = g.result(part).unwrap();
            let f = if k == 0 { arenic_ir::op::Unary::Exp } else { arenic_ir::op::Unary::Sin };
            let y = g.add_node("", Op::Unary { f }, vec![part]).unwrap();
            let y = g.result(y).unwrap();
            let total = Op::Reduce { f: Reduction::Sum, axes: vec![0, 1], keep: false };
            let total = g.add_node("", total, vec![y]).unwrap();
            let total = g.result(total).unwrap();
            sum = Some(match sum {
                None => total,
                Some(other) => {
                    let n = g.add_node("", Op::Binary { f: Binary::Add }, vec![other, total]);
                    g.result(n.unwrap()).unwrap()
                }
            });
        }
        g.outputs.push(Output { name: "y".into(), value: sum.unwrap() });
        let pass = Differentiate { loss: "y".into(), ..Differentiate::default() };
        check(name, &g, &pass, &[], &|states| run(&g, states, &[]).0);
    }
}
