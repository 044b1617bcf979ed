//! Variants that take turns on one device give what they give on the CPU, each as a graph of its own,
//! whatever the order of streams.

use super::simulated::{Behaviour, Simulated};
use super::{Run, place};
use arenic::artifact::Target;
use arenic::compile::{Constraints, Variant, compile_variants};
use arenic::train::{Length, Options, StepReport, train_variants, train_variants_on_device};
use arenic_ir::Backend;
use arenic_ir::program::PerSpace;
use arenic_passes::Search;
use arenic_runtime::cuda::driver::Driver;

/// Steps of three and of two rows.
fn variants(run: &Run, backend: Backend) -> Vec<Target> {
    let variant = |rows: u64| {
        let mut import = run.import.clone();
        import.dims.insert("batch".into(), rows);
        let (name, model) = (format!("batch={rows}"), run.model.clone());
        Variant { name, structure: String::new(), model, import }
    };
    let limits = PerSpace { device: None, host: Some(0) };
    let constraints = Constraints { backend, limits, no_gpu_code: true, ..Constraints::default() };
    let search = Search { effort: Some(0.1), ..Search::default() };
    let all = [3, 2].map(variant);
    let compiled = compile_variants(&all, &run.pipeline, constraints, search, &mut |_| {}).unwrap();
    compiled.into_iter().map(|c| c.artifact.unwrap().targets.remove(0)).collect()
}

fn losses(driver: impl Driver, variants: &[&Target], options: &Options) -> Vec<f64> {
    let mut losses = Vec::new();
    let watch = |r: &StepReport| losses.push(r.scalars[0].1);
    train_variants_on_device(driver, variants, options, |_| {}, watch).unwrap();
    losses
}

#[test]
fn variants_on_a_device_are_those_of_the_cpu() {
    let run = Run::differentiated("mlp");
    // Twenty rows and more are cut into threes, and twos at the end.
    let options = Options { length: Length::Epochs(2), ..run.options() };
    let mut expected = Vec::new();
    let watch = |r: &StepReport| expected.push(r.scalars[0].1);
    let on_cpu = variants(&run, Backend::CPU);
    let on_cpu: Vec<&Target> = on_cpu.iter().collect();
    train_variants(&on_cpu, &options, |_| {}, watch).unwrap();
    assert!(expected.len() > 6);

    let on_device = variants(&run, Backend::CUDA);
    let on_device: Vec<&Target> = on_device.iter().collect();
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
