//! Gradients of a graph's loss against central differences of it.

use arenic::evaluator::Kernels;
use arenic_backends::CPU;
use arenic_ir::graph::{Data, Graph, ValueId};
use arenic_ir::op::{Binary, Op, Reduction};
use arenic_ir::verify::verify;
use arenic_passes::differentiate::Differentiate;
use arenic_passes::{Cx, GraphPass};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;

pub(crate) fn doubles(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(crate) fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The loss of a value: the sum of its elements times weights that differ.
pub(crate) fn weighted(g: &mut Graph, y: ValueId) -> ValueId {
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

/// The losses of these values, added.
pub(crate) fn weighted_sum(g: &mut Graph, values: &[ValueId]) -> ValueId {
    let losses: Vec<ValueId> = values.iter().map(|&y| weighted(g, y)).collect();
    let add = |a, b| {
        let sum = g.add_node("", Op::Binary { f: Binary::Add }, vec![a, b]).unwrap();
        g.result(sum).unwrap()
    };
    losses.into_iter().reduce(add).unwrap()
}

/// Runs a step and gives its outputs' first elements and what the states hold afterwards.
pub(crate) fn run(g: &Graph, states: &[Vec<f64>], fed: &[(&str, Vec<u8>)]) -> (f64, Vec<Vec<f64>>) {
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
pub(crate) fn check(
    g: &Graph,
    pass: &Differentiate,
    fed: &[(&str, Vec<u8>)],
    loss: &dyn Fn(&[Vec<f64>]) -> f64,
) -> Result<(), String> {
    let mut step = g.clone();
    let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(CPU.target()) };
    pass.run(&mut step, &cx).map_err(|e| e.to_string())?;
    verify(&step).map_err(|e| e.to_string())?;
    let start: Vec<Vec<f64>> =
        g.states.values().map(|s| numbers(s.init.as_ref().unwrap().bytes().unwrap())).collect();
    let mut fed = fed.to_vec();
    fed.push(("lr", 1f32.to_le_bytes().to_vec()));
    let (value, after) = run(&step, &start, &fed);
    // In such a form that NaN is no match.
    let near = |a: f64, b: f64, within: f64| (a - b).abs() <= within * b.abs().max(1.0);
    if !near(loss(&start), value, 1e-12) {
        return Err(format!("the step's loss is {value}, not {}", loss(&start)));
    }
    if step.states.len() != start.len() {
        return Err("a state was not trained".into());
    }
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
            if !near(gradient, difference, 1e-6) {
                return Err(format!(
                    "state {s}, element {i}: gradient {gradient}, difference {difference}"
                ));
            }
        }
    }
    Ok(())
}
