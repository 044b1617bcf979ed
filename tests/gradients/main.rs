//! Every gradient rule against central differences, in double precision, over random shapes,
//! broadcasts, strides, groups and dilations.
//!
//! A case is one operator. Its loss is the sum of the result times random weights, so that an
//! element's gradient that ends up at another's place shows; the gradient is what one step of
//! gradient descent with rate 1 subtracts.

mod attention;
mod differences;
mod elementwise;
mod indexing;
mod losses;
mod movement;
mod norms;
mod products;
mod recurrent;
mod reductions;
mod updates;
mod windows;

use arenic_backends::CPU;
use arenic_ir::graph::{Data, Graph, Output, ValueId};
use arenic_ir::op::{Binary, Op, Reduction};
use arenic_ir::types::{DType, TensorType};
use arenic_ir::verify::verify;
use arenic_passes::differentiate::Differentiate;
use arenic_passes::{Cx, GraphPass};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use differences::{doubles, numbers, run, weighted_sum};
use fastrand::Rng;

/// How many random cases each test tries.
const CASES: u64 = 40;

/// An operand of the operator under test.
#[derive(Clone)]
enum Operand {
    /// Differentiated by.
    Trained(Vec<usize>, Vec<f64>),
    /// Whatever it is, it stays.
    Fixed(TensorType, Vec<u8>),
}

/// Numbers that are apart from each other and from zero, so that no difference steps over an
/// edge of a maximum or an absolute value; all positive where that is asked for.
fn apart(r: &mut Rng, count: usize, positive: bool) -> Vec<f64> {
    let mut all: Vec<f64> =
        (0..count).map(|i| 0.3 + i as f64 * 1.7 / count.max(1) as f64).collect();
    r.shuffle(&mut all);
    let sign = |r: &mut Rng| if !positive && r.bool() { -1.0 } else { 1.0 };
    all.into_iter().map(|x| x * sign(r)).collect()
}

fn trained(r: &mut Rng, shape: &[usize]) -> Operand {
    Operand::Trained(shape.to_vec(), apart(r, shape.iter().product(), false))
}

fn positive(r: &mut Rng, shape: &[usize]) -> Operand {
    Operand::Trained(shape.to_vec(), apart(r, shape.iter().product(), true))
}

fn integers(shape: &[usize], values: &[i64]) -> Operand {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Operand::Fixed(TensorType::new(DType::I64, shape), bytes)
}

/// A random shape of this rank, and another that broadcasts to it.
fn shapes(r: &mut Rng, rank: usize) -> (Vec<usize>, Vec<usize>) {
    let whole: Vec<usize> = (0..rank).map(|_| r.usize(1..4)).collect();
    let part: Vec<usize> = whole.iter().map(|&d| if r.bool() { 1 } else { d }).collect();
    let first = r.usize(0..=rank);
    (whole, part[first..].to_vec())
}

/// The graph of a case: states for trained operands, and the loss of these results, each with
/// weights of its own.
fn forward(op: &Op, operands: &[Operand], read: &[usize]) -> Graph {
    let mut g = Graph::default();
    let mut x = Vec::new();
    for (i, operand) in operands.iter().enumerate() {
        x.push(match operand {
            Operand::Trained(shape, values) => {
                let ty = TensorType::new(DType::F64, shape.clone());
                let init = Some(Data::Bytes(doubles(values).into()));
                let state = g.add_state(format!("x{i}"), ty, init);
                g.states[state].enter
            }
            Operand::Fixed(ty, bytes) => {
                g.add_const("", ty.clone(), Data::Bytes(bytes.clone().into()))
            }
        });
    }
    let node = g.add_node("op", op.clone(), x).unwrap_or_else(|e| panic!("{op:?}: {e}"));
    let read: Vec<ValueId> = read.iter().map(|&o| g.nodes[node].outputs[o].unwrap()).collect();
    let value = weighted_sum(&mut g, &read);
    g.outputs.push(Output { name: "y".into(), value });
    g
}

/// Holds gradients against differences, in a case of this name.
fn check(
    name: &str,
    g: &Graph,
    pass: &Differentiate,
    fed: &[(&str, Vec<u8>)],
    loss: &dyn Fn(&[Vec<f64>]) -> f64,
) {
    differences::check(g, pass, fed, loss).unwrap_or_else(|e| panic!("{name}: {e}"));
}

/// A case of one operator.
fn case(op: &Op, operands: &[Operand]) {
    case_of(op, operands, &[0]);
}

/// A case whose loss depends on these results.
fn case_of(op: &Op, operands: &[Operand], read: &[usize]) {
    let g = forward(op, operands, read);
    // Scalars, too.
    let train = vec!["*".parse().unwrap()];
    let pass = Differentiate { loss: "y".into(), train, ..Differentiate::default() };
    check(&format!("{op:?}"), &g, &pass, &[], &|states| run(&g, states, &[]).0);
}
