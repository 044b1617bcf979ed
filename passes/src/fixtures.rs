//! What tests of strategies under a byte limit share: a slow device, and steps that do not fit.

use crate::order::Order;
use crate::residency::{Kept, keep_limit};
use crate::tail::Tail;
use crate::{Cx, PassError, PlanPass, Strategy};
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::cost::{Arithmetic, Device, Link, Memory};
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;
use arenic_ir::profile::KernelTimes;
use arenic_ir::text::Module;
use arenic_ir::types::DType;
use std::fmt::Write;

/// Bytes that every buffer is aligned to.
pub(crate) const ALIGN: u64 = 4;

/// One byte a second of memory; `link` bytes a second each way.
pub(crate) fn device(link: f64) -> Device {
    let arithmetic = Arithmetic { flops_per_second: 1e9, efficiency: 1.0 };
    Device {
        name: "slow".into(),
        memory_bytes: 1 << 20,
        reserve_bytes: 0,
        alignment: ALIGN,
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
        },
        launch_seconds: 0.0,
        unified_memory: false,
        measured: KernelTimes::default(),
        workspace: None,
    }
}

/// A graph from its text, and its plan in definition order.
pub(crate) fn in_definition_order(text: &str) -> (Graph, Plan) {
    let module =
        Module::parse(text, &arenic_backends::ALL).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut plan = Plan::new(&module.graph, TargetInfo { align: ALIGN, ..CPU.target() }).unwrap();
    let order = serde_json::from_str::<Order>(r#"{"method": "definition"}"#).unwrap();
    order
        .run(&module.graph, &mut plan, &Cx::new(TargetInfo { align: ALIGN, ..CPU.target() }))
        .unwrap();
    (module.graph, plan)
}

/// Some chains of operators, each of a width of its own, and their way back, which reads
/// what each operator made, chain by chain in a random sequence.
pub(crate) fn there_and_back(random: &mut fastrand::Rng, chains: usize) -> String {
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

/// What a strategy makes of a plan under a limit on the slow device; `None` if it finds nothing.
pub(crate) fn kept(
    strategy: &dyn Strategy,
    g: &Graph,
    plan: &Plan,
    limit: u64,
    link: f64,
) -> Option<Kept> {
    let device = device(link);
    let cx = Cx { device: Some(&device), ..Cx::new(TargetInfo { align: ALIGN, ..CPU.target() }) };
    match keep_limit(g, plan.clone(), limit, &Tail::default(), &cx, ("strategy", strategy)) {
        Ok(kept) => Some(kept),
        Err(PassError::Limit { .. } | PassError::DeviceMemory { .. }) => None,
        Err(e) => panic!("{e}"),
    }
}
