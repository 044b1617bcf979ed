//! Variants that take turns on one device give what they give on the CPU, each as a graph of its own,
//! whatever the order of streams.

use super::simulated::{Behaviour, Simulated};
use super::{Run, place};
use arenic::artifact::{Artifact, Target};
use arenic::train::{Length, StepReport, TrainOptions, train_variants, train_variants_on_device};
use arenic::{Backend, Compiler, Model, Optimizer, Variant};
use arenic_backends::{CPU, CUDA};
use arenic_runtime::cuda::driver::Driver;

/// Steps of three and of two rows.
fn variants(run: &Run, backend: Backend) -> Artifact {
    let model = Model::open(&run.model).unwrap();
    let all = [3, 2].map(|rows| Variant {
        name: format!("batch={rows}"),
        structure: String::new(),
        model: model.clone().dim("batch", rows),
    });
    let compiler = Compiler::new().loss("cross_entropy", Optimizer::Momentum).evaluation(false);
    compiler.target(backend).effort(0.1).compile_variants(&all).unwrap()
}

fn losses(driver: impl Driver, variants: &[&Target], options: &TrainOptions) -> Vec<f64> {
    let mut losses = Vec::new();
    let watch = |r: &StepReport| losses.push(r.scalars[0].1);
    train_variants_on_device(driver, variants, options, |_| {}, watch).unwrap();
    losses
}

#[test]
fn variants_on_a_device_are_those_of_the_cpu() {
    let run = Run::differentiated("mlp");
    // Twenty rows and more are cut into threes, and twos at the end.
    let options = TrainOptions { length: Length::Epochs(2), ..run.options() };
    let mut expected = Vec::new();
    let watch = |r: &StepReport| expected.push(r.scalars[0].1);
    let on_cpu = variants(&run, CPU);
    train_variants(&on_cpu.variants("cpu"), &options, |_| {}, watch).unwrap();
    assert!(expected.len() > 6);

    let on_device = variants(&run, CUDA);
    let on_device = on_device.variants("cuda");
    let near = |found: &[f64], what: &str| {
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
        let all = found.len() == expected.len() && found.iter().zip(&expected).all(close);
        assert!(all, "{what}: {found:?} {expected:?}");
    };
    if let Some(gpu) = place::gpu() {
        return near(&losses(gpu, &on_device, &options), "a GPU");
    }
    for seed in 0..4 {
        for captures in [true, false] {
            let behaviour = Behaviour { seed, captures, ..Behaviour::default() };
            let found = losses(Simulated::new(behaviour), &on_device, &options);
            near(&found, &format!("{behaviour:?}"));
        }
    }
}
