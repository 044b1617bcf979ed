//! Steps whose logits have more classes than the model.

use super::simulated::Behaviour;
use super::{Run, holds};
use arenic::artifact::Target;
use arenic_ir::{DType, Op, TensorType};
use arenic_passes::Standard;
use arenic_passes::pipeline::{NAMED, Pipeline};
use arenic_passes::precision::Precision;

/// The pass, however small the products are.
const ALIGNED: &str = "- layout:
  when: cuda
- align_classes: {least: 0, least_rows: 1}";

/// A run of a whole step with the pass. Gradients are products of their own, as large ones are.
fn whole(network: &str) -> Run {
    let (_, default) = NAMED[0];
    let yaml = default
        .replace("- layout:\n  when: cuda", ALIGNED)
        .replace("- fuse_updates\n", "- fuse_updates: {gradients: never}\n");
    let pipeline = Pipeline::from_yaml(&yaml, &Standard).unwrap();
    Run { pipeline, ..Run::named(&format!("{network}_b4_sgdm")) }
}

/// Runs with the number of classes that there are then.
fn runs() -> [(Run, usize); 3] {
    // The second one adds a bias to its logits.
    [(whole("gpt_tiny"), 72), (whole("mlp"), 16), (Run::made_with("gpt_tiny", ALIGNED), 72)]
}

/// Products of `dtype` with a factor that has so many rows or columns.
fn products(target: &Target, classes: usize, dtype: DType) -> usize {
    let g = &target.graph;
    let is_longer = |t: &&TensorType| t.shape.contains(&classes) && t.dtype == dtype;
    let products =
        g.nodes.iter().filter(|(_, node)| matches!(node.op, Op::MatMul { .. } | Op::Gemm { .. }));
    products.filter(|(n, _)| g.input_types(*n).iter().take(2).any(is_longer)).count()
}

#[test]
fn five_steps_with_more_classes_equal_pytorch() {
    for (run, classes) in runs() {
        let target = run.target(None);
        assert_eq!(products(&target, classes, DType::F32), 3, "{}", run.model.display());
        for libraries in [true, false] {
            let behaviour = Behaviour { libraries, ..Behaviour::default() };
            holds(&run.model.to_string_lossy(), &run, &target, behaviour);
        }
    }
}

#[test]
fn steps_in_bf16_with_more_classes_are_near_those_in_f32() {
    for (run, classes) in runs() {
        let run = Run { pipeline: run.pipeline.with_precision(Precision::default()), ..run };
        let target = run.target(None);
        let name = run.model.display();
        assert_eq!(products(&target, classes, DType::Bf16), 3, "{name}");
        for libraries in [true, false] {
            let losses = run.train(&target, Behaviour { libraries, ..Behaviour::default() });
            for (ours, theirs) in losses.unwrap().iter().zip(&run.losses) {
                let off = (ours - theirs).abs();
                assert!(off <= 2e-2 * theirs.max(1.0), "{name}: {ours}, {theirs}");
            }
        }
    }
}
