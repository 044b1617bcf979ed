//! Four training steps of real size, as `models/papers/make_graphs.py --for-gpu` writes them (without
//! the data of tensors above 1 KB): what the passes make of them for a GPU, without one.

use arenic::Model;
use arenic::evaluator::Kernels;
use arenic::onnx::ImportOptions;
use arenic_backends::CUDA;
use arenic_ir::backend::Unit;
use arenic_ir::op::{Family, families::Wrapping};
use arenic_ir::text::Module;
use arenic_ir::{Graph, Math, Op, TargetInfo};
use arenic_passes::devices::{self, NAMED as DEVICES};
use arenic_passes::pipeline::{NAMED, Pipeline, RunOptions};
use arenic_passes::precision::Precision;
use arenic_passes::{Cx, Standard};
use std::io::Read;
use std::path::Path;

const NETWORKS: [&str; 4] = ["gpt2_124m_b8", "resnet50_b256", "vit_b_16_b64", "unet_b8"];

/// Multiplications, with their additions, up to which a product may go by one thread for each sum.
const MOST_FLOPS: u64 = 2 << 20;

/// The graph of a network after all graph passes of a pipeline, for an H100.
fn rewritten(network: &str, math: Math, pipeline: &Pipeline) -> (Graph, TargetInfo) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/networks");
    let packed = std::fs::read(fixtures.join(format!("{network}.onnx.gz"))).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    let model = Model::from_bytes(bytes).unwrap();
    let options = ImportOptions { plan_only: true, ..ImportOptions::default() };
    let graph = model.import(&options).unwrap().graph;
    let (_, text) = DEVICES.iter().find(|(name, _)| *name == "h100").unwrap();
    let device = devices::parse(text).unwrap().with_math(math);
    let target = TargetInfo { math, ..CUDA.target() };
    let cx = Cx { evaluate: Some(&Kernels), device: Some(&device), ..Cx::new(target) };
    let module = Module { graph, plan: None, program: None };
    let outcome = pipeline.run_on(module, &cx, RunOptions::default());
    (outcome.unwrap_or_else(|e| panic!("{network}: {e}")).module.graph, target)
}

/// The default pipeline's graph passes, with changes.
fn graph_passes(change: impl Fn(&str) -> String) -> Pipeline {
    let (_, text) = NAMED.iter().find(|(name, _)| *name == "default").unwrap();
    let (graph, _) = text.split_once("- section\n").expect("graph passes, then those of plans");
    Pipeline::from_yaml(&change(graph), &Standard).unwrap()
}

/// Names, operand types and arithmetic of products that go by one thread for each sum and are too
/// large for it.
fn slow_products(g: &Graph, target: TargetInfo) -> Vec<String> {
    let is_product = |op: &Op| {
        let family = match op.family() {
            Family::Wrapping(Wrapping::ChannelsLast { of } | Wrapping::ForEach { of, .. }) => {
                of.family()
            }
            family => family,
        };
        matches!(family, Family::Product(_) | Family::Convolution(_) | Family::Attention(_))
    };
    let mut slow = Vec::new();
    for (n, node) in g.nodes.iter().filter(|(_, node)| is_product(&node.op)) {
        let (x, y) = (g.input_types(n), g.output_types(n).unwrap());
        let read = y.iter().zip(&node.outputs).map_while(|(ty, v)| v.is_some().then_some(ty));
        let read: Vec<_> = read.collect();
        let flops = node.op.work(&x, &read).flops;
        if node.op.unit(target, &x, &read) == Unit::Lanes && flops > MOST_FLOPS {
            let types: Vec<String> = x.iter().map(ToString::to_string).collect();
            slow.push(format!("{} of {}: {flops}", node.op.name(), types.join(", ")));
        }
    }
    slow
}

#[test]
fn no_large_product_goes_by_one_thread_for_each_sum() {
    for network in NETWORKS {
        for math in [Math::Tf32, Math::F32] {
            // Of `bf16` whatever math says.
            let pipeline = graph_passes(str::to_owned);
            let pipeline = match math {
                Math::F32 => pipeline.with_precision(Precision::default()),
                Math::Tf32 => pipeline,
            };
            let (g, target) = rewritten(network, math, &pipeline);
            let slow = slow_products(&g, target);
            assert!(slow.is_empty(), "{network}, {math:?}: {slow:#?}");
        }
    }
}

/// What the test above would say of updates that took their products in, as they once did.
#[test]
fn products_inside_updates_would_be_found() {
    let always =
        |text: &str| text.replace("- fuse_updates\n", "- fuse_updates:\n    gradients: always\n");
    let (g, target) = rewritten("gpt2_124m_b8", Math::Tf32, &graph_passes(always));
    let slow = slow_products(&g, target);
    assert!(slow.len() >= 48 && slow.iter().all(|s| s.starts_with("product_update")), "{slow:?}");
}
