//! Sums over micro-batches are taken in `f32` whatever their terms are computed in.

use crate::models::divided;
use crate::{STEPS, floats, in_rounds_on, part_after_part_on};
use arenic::artifact::Target;
use arenic_backends::{CPU, CUDA};
use arenic_ir::graph::Data;
use arenic_ir::text::Module;
use arenic_ir::types::{DType, bf16};
use arenic_ir::{Graph, Op, TargetInfo, ValueId};
use arenic_passes::Standard;
use arenic_passes::accumulate::Accumulate;
use arenic_passes::pipeline::{NAMED, Pipeline};
use arenic_passes::precision::Precision;
use arenic_runtime::executor::ExecutorOptions;

const ROUNDS: usize = 64;

/// The first round's rows make 256 of each element of a gradient, and those of all others 1/4: less
/// than half of what the last bit of 256 is worth in `bf16`. All of it is exact in `f32`.
fn rows(name: &str, _: u64) -> Vec<u8> {
    let of_round = |round: usize| match (name, round) {
        ("x", _) => 1.0,
        (_, 0) => 16.0,
        _ => 1.0 / 64.0,
    };
    let elements = 1024 * 32;
    (0..elements).flat_map(|i| f32::to_le_bytes(of_round(i * ROUNDS / elements))).collect()
}

fn step() -> Graph {
    let mut graph = Module::parse(include_str!("sums.ir"), &arenic_backends::ALL).unwrap().graph;
    for state in graph.states.values_mut() {
        state.init = Some(Data::Bytes(vec![0; 32 * 32 * 4].into()));
    }
    graph
}

/// The default pipeline with other passes first. Products are kept out of updates, as they are where a
/// library computes them.
fn pipeline(first: &str) -> Pipeline {
    let (_, text) = NAMED.iter().find(|(name, _)| *name == "default").unwrap();
    let text = text.replace("- fuse_updates\n", "- fuse_updates:\n    gradients: never\n");
    Pipeline::from_yaml(&format!("{first}{text}"), &Standard).unwrap()
}

/// Runs the step; what squares a gradient reads `squared` of it.
fn hold(pipeline: &Pipeline, target: TargetInfo, squared: f32) {
    let backend = target.backend.name;
    let target: Target = divided(step(), pipeline, target);
    let g = &target.graph;
    let is_product = |op: &Op| matches!(op, Op::Gemm { .. } | Op::MatMul { .. });
    let products: Vec<_> = g.nodes.values().filter(|n| is_product(&n.op)).collect();
    let is_narrow = |&v: &ValueId| g.ty(v).dtype == DType::Bf16;
    assert_eq!(products.len(), 2, "{backend}");
    assert!(products.iter().all(|n| n.inputs[..2].iter().all(is_narrow)), "{backend}");
    let steps = part_after_part_on(rows, &target);
    assert_eq!(steps.len(), STEPS as usize);
    let (mut m, mut h) = (0.0, 0.0);
    for step in &steps {
        (m, h) = (m / 2.0 + GRADIENT, h + squared * squared);
        for (name, expected) in [("m", m), ("h", h)] {
            let off = floats(&step[name]).into_iter().find(|x| *x != expected);
            assert_eq!(off, None, "{backend}: `{name}` should be {expected}");
        }
    }
    if backend == CPU.name {
        for poison in [false, true] {
            let options = ExecutorOptions { threads: 2, poison, stress: None };
            assert_eq!(in_rounds_on(rows, &target, options), steps);
        }
    }
}

const GRADIENT: f32 = 256.0 + 63.0 / 4.0;

#[test]
fn small_terms_are_not_lost_in_large_sums() {
    let count = Accumulate { rounds: Some(ROUNDS) };
    let pipeline = pipeline("").with_precision(Precision::default()).in_micro_batches(count);
    for target in [CPU.target(), CUDA.target()] {
        hold(&pipeline, target, GRADIENT);
    }
}

/// The whole batch would round a sum once, and so do rounds.
#[test]
fn nor_where_what_is_divided_is_bf16_already() {
    let pipeline = pipeline(&format!("- precision\n- accumulate: {{rounds: {ROUNDS}}}\n"));
    for target in [CPU.target(), CUDA.target()] {
        hold(&pipeline, target, bf16::round(GRADIENT));
    }
}
