//! Every gradient rule against central differences, in double precision, over random shapes,
//! broadcasts, strides, groups and dilations.
//!
//! A case is one operator. Its loss is the sum of the result times random weights, so that an
//! element's gradient that ends up at another's place shows; the gradient is what one step of
//! gradient descent with rate 1 subtracts.

mod attention;
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

use arenic::evaluator::Kernels;
use arenic_ir::TargetInfo;
use arenic_ir::graph::{Data, Graph, Output, ValueId};
use arenic_ir::op::{Binary, Op, Reduction};
use arenic_ir::types::{DType, TensorType};
use arenic_ir::verify::verify;
use arenic_passes::differentiate::Differentiate;
use arenic_passes::{Cx, GraphPass};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use fastrand::Rng;

/// How many random cases each test tries.
const CASES: u64 = 40;

/// An operand of the operator under test.
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

fn doubles(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
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
    let losses: Vec<ValueId> = read
        .iter()
        .map(|&o| {
            let y = g.nodes[node].outputs[o].unwrap();
            weighted(&mut g, y)
        })
        .collect();
    let add = |a, b| {
        let sum = g.add_node("", Op::Binary { f: Binary::Add }, vec![a, b]).unwrap();
        g.result(sum).unwrap()
    };
    let value = losses.into_iter().reduce(add).unwrap();
    g.outputs.push(Output { name: "y".into(), value });
    g
}

/// The loss of a value: the sum of its elements times weights that differ.
fn weighted(g: &mut Graph, y: ValueId) -> ValueId {
    let ty = g.ty(y).clone();
    let weights: Vec<f64> =
        (0..ty.elements()).map(|i| 0.5 + (i as f64 * 0.618_034).fract()).collect();
    let w = g.add_const("", ty.clone(), Data::Bytes(doubles(&weights).into()));
    let product = g.add_node("", Op::Binary { f: Binary::Mul }, vec![y, w]).unwrap();
    let product = g.result(product).unwrap();
    let axes: Vec<usize> = (0..ty.rank()).collect();
    if axes.is_empty() {
        return product;
    }
    let sum = Op::Reduce { f: Reduction::Sum, axes, keep: false };
    let sum = g.add_node("", sum, vec![product]).unwrap();
    g.result(sum).unwrap()
}

/// Runs a step and gives its outputs' first elements and what the states hold afterwards.
fn run(g: &Graph, states: &[Vec<f64>], fed: &[(&str, Vec<u8>)]) -> (f64, Vec<Vec<f64>>) {
    let mut reference = Reference::new(g).unwrap();
    for (v, data) in g.consts() {
        reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
    }
    for (state, values) in g.states.values().zip(states) {
        reference.value_mut(state.enter).unwrap().copy_from_slice(&doubles(values));
    }
    for v in g.inputs() {
        let bytes = fed.iter().find(|(name, _)| *name == g.values[v].name);
        reference.value_mut(v).unwrap().copy_from_slice(&bytes.unwrap().1);
    }
    reference.step(Draw::default()).unwrap();
    let after = g.states.values().map(|s| numbers(reference.value(s.enter))).collect();
    (numbers(reference.value(g.outputs[0].value))[0], after)
}

/// Holds the gradients that `pass` gives a graph against differences of its losses, which
/// `loss` computes from the states.
fn check(
    name: &str,
    g: &Graph,
    pass: &Differentiate,
    fed: &[(&str, Vec<u8>)],
    loss: &dyn Fn(&[Vec<f64>]) -> f64,
) {
    let mut step = g.clone();
    let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(TargetInfo::CPU) };
    pass.run(&mut step, &cx).unwrap_or_else(|e| panic!("{name}: {e}"));
    verify(&step).unwrap_or_else(|e| panic!("{name}: {e}"));
    let start: Vec<Vec<f64>> =
        g.states.values().map(|s| numbers(s.init.as_ref().unwrap().bytes().unwrap())).collect();
    let mut fed = fed.to_vec();
    fed.push(("lr", 1f32.to_le_bytes().to_vec()));
    let (value, after) = run(&step, &start, &fed);
    assert!((value - loss(&start)).abs() <= 1e-12 * value.abs().max(1.0), "{name}: another loss");
    assert_eq!(step.states.len(), start.len(), "{name}: a state was not trained");
    for (s, before) in start.iter().enumerate() {
        for i in 0..before.len() {
            let gradient = before[i] - after[s][i];
            let at = |by: f64| {
                let mut moved = start.clone();
                moved[s][i] += by;
                loss(&moved)
            };
            let h = 1e-5;
            let difference = (at(h) - at(-h)) / (2.0 * h);
            assert!(
                (gradient - difference).abs() <= 1e-6 * difference.abs().max(1.0),
                "{name}: state {s}, element {i}: gradient {gradient}, difference {difference}"
            );
        }
    }
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
