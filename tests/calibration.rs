//! Devices are calibrated by what papers measured on them.

use arenic::Model;
use arenic::compile::{Constraints, compile};
use arenic::onnx::ImportOptions;
use arenic_baselines::WithBaselines;
use arenic_ir::check::check;
use arenic_ir::program::Space;
use arenic_passes::Search;
use arenic_passes::devices;
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::simulate::{live_over_time, roofline, simulate};
use std::path::Path;

/// AutoSwap, section VI-B: VGG-16 takes 24 ms to 95 % of its peak load. A load is what is
/// alive in the order of the model, without sharing.
#[test]
fn gtx1080ti_ramps_up_as_autoswap_measured() {
    let (_, text) = devices::NAMED.iter().find(|(name, _)| *name == "gtx1080ti").unwrap();
    let device = devices::parse(text).unwrap();
    let pipeline = Pipeline::named("definition", &WithBaselines).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/papers/vgg16_cifar_b100.onnx");
    let import = ImportOptions { plan_only: true, ..ImportOptions::default() };
    let constraints = Constraints { device: Some(&device), ..Constraints::default() };
    let options = RunOptions::default();
    let compiled = compile(
        &Model::open(&model).unwrap(),
        &import,
        &pipeline,
        constraints,
        Search::default(),
        options,
    )
    .unwrap();
    let target = compiled.target().unwrap();
    let footprint = check(&target.graph, &target.program).unwrap();
    let step = simulate(&target.program, &device, &roofline(&target.graph, &device));
    let load = live_over_time(&footprint, device.alignment, &step, Space::Device);
    let peak = load.iter().map(|&(_, bytes)| bytes).max().unwrap();
    let (second, _) = load.iter().find(|&&(_, b)| b as f64 >= 0.95 * peak as f64).unwrap();
    assert!((second / 24.0e-3 - 1.0).abs() < 0.02, "{second} s to 95 % of {peak} bytes");
}
