//! Training steps that do not fit, and a slow device, for tests of strategies under a byte limit.

use crate::{CELL, CX};
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::cost::{Arithmetic, BesideKernels, Device, Link, Memory};
use arenic_ir::graph::{Graph, Output, ValueId};
use arenic_ir::op::Op;
use arenic_ir::plan::Plan;
use arenic_ir::profile::KernelTimes;
use arenic_ir::text::Module;
use arenic_ir::types::{DType, TensorType};
use arenic_passes::PlanPass;
use arenic_passes::order::{Method, Order};
use arenic_passes::share_in_place::ShareInPlace;
use std::fmt::Write;

/// One byte a second of memory; `link` bytes a second each way.
pub fn device(link: f64) -> Device {
    let arithmetic = Arithmetic { flops_per_second: 1e9, efficiency: 1.0 };
    Device {
        name: "slow".into(),
        memory_bytes: 1 << 20,
        reserve_bytes: 0,
        alignment: CELL,
        memory: Memory { bytes_per_second: 1.0, efficiency: 1.0 },
        arithmetic: [(DType::F32, arithmetic)].into(),
        tf32: None,
        own_kernels: None,
        math: arenic_ir::Math::F32,
        link: Link {
            to_host: link,
            to_device: link,
            both: link,
            copy_engines: 2,
            latency_seconds: 0.0,
            beside_kernels: BesideKernels::default(),
        },
        ranks: None,
        launch_seconds: 0.0,
        unified_memory: false,
        measured: KernelTimes::default(),
        workspace: None,
    }
}

/// A graph from its text, and its plan in definition order.
pub fn in_definition_order(text: &str) -> (Graph, Plan) {
    let module =
        Module::parse(text, &arenic_backends::ALL).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut plan = Plan::new(&module.graph, TargetInfo { align: CELL, ..CPU.target() }).unwrap();
    let order = Order { method: Method::Definition, ..Order::default() };
    order.run(&module.graph, &mut plan, &CX).unwrap();
    (module.graph, plan)
}

/// Some chains of operators, each of a width of its own, and their way back, which reads
/// what each operator made, chain by chain in a random sequence.
pub fn there_and_back(random: &mut fastrand::Rng, chains: usize) -> String {
    let (mut text, mut node, mut value) = (String::new(), 0, chains);
    let mut made: Vec<(usize, Vec<usize>)> = Vec::new();
    for chain in 0..chains {
        let width = 1 << random.u32(2..6);
        let mut values = vec![chain];
        for _ in 0..random.usize(2..6) {
            let f = ["exp", "neg"][random.usize(0..2)];
            let from = values[values.len() - 1];
            writeln!(
                text,
                "  n{node} unary {{\"f\":\"{f}\"}} (v{from}) -> (v{value}: f32[{width}])"
            )
            .unwrap();
            values.push(value);
            (node, value) = (node + 1, value + 1);
        }
        made.push((width, values));
    }
    let (mut inputs, mut outputs) = (String::new(), String::new());
    let mut sequence: Vec<usize> = (0..chains).collect();
    random.shuffle(&mut sequence);
    for chain in sequence {
        let (width, values) = &made[chain];
        let mut back = values[values.len() - 1];
        for &from in values[1..].iter().rev() {
            writeln!(
                text,
                "  n{node} binary {{\"f\":\"mul\"}} (v{back}, v{from}) -> (v{value}: f32[{width}])"
            )
            .unwrap();
            back = value;
            (node, value) = (node + 1, value + 1);
        }
        writeln!(outputs, "  output \"y{chain}\" v{back}").unwrap();
    }
    for (chain, (width, _)) in made.iter().enumerate() {
        writeln!(inputs, "  input v{chain}: f32[{width}] \"x{chain}\"").unwrap();
    }
    format!("graph \"there and back\" {{\n{inputs}{text}{outputs}}}\n")
}

/// Where all operators are opaque and tensors begin.
pub fn begin() -> (Graph, ValueId) {
    let mut g = Graph::default();
    let x = g.add_input("x", TensorType::new(DType::U8, [4]));
    (g, x)
}

/// An operator of one result.
pub fn add(g: &mut Graph, bytes: usize, mut reads: Vec<ValueId>) -> ValueId {
    reads.dedup();
    let node = g.add_node("", Op::Opaque { results: vec![bytes] }, reads).unwrap();
    g.result(node).unwrap()
}

/// The graph's one output.
pub fn finish(mut g: Graph, value: ValueId) -> Graph {
    g.outputs.push(Output { name: "y".into(), value });
    g
}

/// A chain of layers, each reading one or two earlier results, and its way back, which reads
/// what the layers made.
pub fn step(random: &mut fastrand::Rng, layers: usize) -> Graph {
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
pub fn plan(g: &Graph) -> Plan {
    let mut plan = Plan::new(g, TargetInfo { align: CELL, ..CPU.target() }).unwrap();
    let order = plan.tasks.keys().collect();
    plan.set_order(g, order).unwrap();
    ShareInPlace::default().run(g, &mut plan, &CX).unwrap();
    plan
}
