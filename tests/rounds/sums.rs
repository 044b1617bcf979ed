//! Sums over micro-batches are taken in `f32` whatever their terms are computed in.

use crate::models::divided;
use crate::{STEPS, floats, in_rounds_on, part_after_part_on};
use arenic::artifact::Target;
use arenic_backends::{CPU, CUDA};
use arenic_ir::graph::Data;
use arenic_ir::text::Module;
use arenic_ir::types::DType;
use arenic_ir::{Op, TargetInfo};
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

/// The step in rounds, in `bf16`; products are kept out of updates, as they are where a library
/// computes them.
fn narrow(target: TargetInfo) -> Target {
    let mut graph = Module::parse(include_str!("sums.ir"), &arenic_backends::ALL).unwrap().graph;
    for state in graph.states.values_mut() {
        state.init = Some(Data::Bytes(vec![0; 32 * 32 * 4].into()));
    }
    let (_, text) = NAMED.iter().find(|(name, _)| *name == "default").unwrap();
    let text = text.replace("- fuse_updates\n", "- fuse_updates:\n    gradients: never\n");
    let pipeline = Pipeline::from_yaml(&text, &Standard).unwrap();
    let pipeline = pipeline.with_precision(Precision::default());
    let count = Accumulate { rounds: Some(ROUNDS) };
    divided(graph, &pipeline.in_micro_batches(count), target)
}

#[test]
fn small_terms_are_not_lost_in_large_sums() {
    for target in [CPU.target(), CUDA.target()] {
        let backend = target.backend.name;
        let target = narrow(target);
        let g = &target.graph;
        let products: Vec<_> = g
            .nodes
            .values()
            .filter(|n| matches!(n.op, Op::Gemm { .. } | Op::MatMul { .. }))
            .collect();
        assert_eq!(products.len(), 2, "{backend}");
        let is_narrow = |&v: &arenic_ir::ValueId| g.ty(v).dtype == DType::Bf16;
        assert!(products.iter().all(|n| n.inputs[..2].iter().all(is_narrow)), "{backend}");
        let steps = part_after_part_on(rows, &target);
        assert_eq!(steps.len(), STEPS as usize);
        let gradient = 256.0 + 63.0 / 4.0;
        let (mut m, mut h) = (0.0, 0.0);
        for step in &steps {
            (m, h) = (m / 2.0 + gradient, h + gradient * gradient);
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
}
