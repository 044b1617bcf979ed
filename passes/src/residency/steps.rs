//! Random training steps for tests.

use crate::share;
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::graph::{Graph, Output, ValueId};
use arenic_ir::op::Op;
use arenic_ir::plan::Plan;
use arenic_ir::types::{DType, TensorType};

/// Where all operators are opaque and tensors begin.
pub(crate) fn begin() -> (Graph, ValueId) {
    let mut g = Graph::default();
    let x = g.add_input("x", TensorType::new(DType::U8, [4]));
    (g, x)
}

/// An operator of one result.
pub(crate) fn add(g: &mut Graph, bytes: usize, mut reads: Vec<ValueId>) -> ValueId {
    reads.dedup();
    let node = g.add_node("", Op::Opaque { results: vec![bytes] }, reads).unwrap();
    g.result(node).unwrap()
}

/// The graph's one output.
pub(crate) fn finish(mut g: Graph, value: ValueId) -> Graph {
    g.outputs.push(Output { name: "y".into(), value });
    g
}

/// A chain of layers, each reading one or two earlier results, and its way back, which reads
/// what the layers made.
pub(crate) fn step(random: &mut fastrand::Rng, layers: usize) -> Graph {
    let (mut g, x) = begin();
    let mut forward = vec![x];
    let mut bytes = {
        let mut random = random.fork();
        move || 4 * random.usize(1..9)
    };
    for _ in 0..layers {
        let mut reads = vec![forward[forward.len() - 1]];
        if random.u8(0..3) == 0 {
            reads.push(forward[random.usize(0..forward.len())]);
        }
        forward.push(add(&mut g, bytes(), reads));
    }
    let mut back = add(&mut g, bytes(), vec![forward[layers]]);
    for i in (0..layers).rev() {
        let mut reads = vec![back, forward[i]];
        if random.u8(0..2) == 0 {
            reads.push(forward[i + 1]);
        }
        back = add(&mut g, bytes(), reads);
    }
    finish(g, back)
}

/// The plan in definition order, shared.
pub(crate) fn plan(g: &Graph) -> Plan {
    let mut plan = Plan::new(g, TargetInfo { align: 4, ..CPU.target() }).unwrap();
    let order = plan.tasks.keys().collect();
    plan.set_order(g, order).unwrap();
    plan.set_slots(share::assign(g, &plan).unwrap());
    plan
}
