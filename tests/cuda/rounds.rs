//! A step in rounds: parts that take turns on one device give what they give on the CPU, whatever
//! the order of streams, captured or not.

use super::linear::{LR, linear, write_data};
use super::place;
use super::simulated::{Behaviour, Simulated};
use arenic::artifact::Target;
use arenic::data::{Npz, TensorFile};
use arenic::train::{StepReport, TrainOptions, train, train_on_device};
use arenic_backends::CUDA;
use arenic_runtime::cuda::driver::Driver;
use std::path::Path;

const STEPS: u64 = 4;

/// The same parts for the other backend.
pub(crate) fn for_cuda() -> Target {
    let mut target = linear();
    let rounds = target.rounds.as_deref_mut().unwrap();
    let around = [&mut rounds.before.program, &mut rounds.after.program];
    for program in around.into_iter().chain([&mut target.program]) {
        program.target = CUDA.target();
    }
    target.name = "cuda".into();
    target
}

/// Scalars of every step, `y` of all of them, and what is saved.
type Seen = (Vec<f64>, Vec<f32>, Vec<f32>);

fn scalars<'a>(report: &StepReport<'a>) -> impl Iterator<Item = f64> + use<'a> {
    report.scalars.iter().map(|(_, x)| *x)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn seen(folder: &Path, run: impl FnOnce(&TrainOptions) -> Vec<f64>) -> Seen {
    let at = |name: &str| folder.join(name);
    write_data(&at("data.npz"), STEPS);
    let options = TrainOptions {
        data: vec![at("data.npz")],
        set: vec![("lr".into(), LR.to_string())],
        seed: Some(5),
        save: Some(at("w.safetensors")),
        save_every: Some(2),
        outputs: Some(at("o.npz")),
        threads: 1,
        deterministic: true,
        trace: Some(at("t.json")),
        ..TrainOptions::default()
    };
    let scalars = run(&options);
    let y = floats(Npz::open(at("o.npz")).unwrap().array("y").unwrap().bytes());
    let saved = TensorFile::open(at("w.safetensors")).unwrap();
    assert!(std::fs::read_to_string(at("t.json")).unwrap().contains("mat_mul"));
    (scalars, y, floats(saved.tensor("w").unwrap().bytes()))
}

fn on_device(driver: impl Driver) -> Seen {
    let folder = tempfile::tempdir().unwrap();
    seen(folder.path(), |options| {
        let mut all = Vec::new();
        let watch = |report: &StepReport| all.extend(scalars(report));
        let summary = train_on_device(driver, &for_cuda(), options, |_| {}, watch).unwrap();
        assert_eq!((summary.steps, summary.arena_bytes), (STEPS, 5376));
        all
    })
}

#[test]
fn rounds_on_a_device_are_those_of_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let expected = seen(folder.path(), |options| {
        let mut all = Vec::new();
        train(&linear(), options, |_| {}, |report| all.extend(scalars(report))).unwrap();
        all
    });
    assert_eq!((expected.0.len(), expected.1.len(), expected.2.len()), (12, 32, 4));
    let near = |found: Seen, what: &dyn Fn() -> String| {
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
        let scalars = found.0.iter().zip(&expected.0).all(|(&a, &b)| close(a, b));
        assert!(scalars && found.0.len() == expected.0.len(), "{}: {found:?}", what());
        for (a, b) in [(&found.1, &expected.1), (&found.2, &expected.2)] {
            assert_eq!(a.len(), b.len());
            let all = a.iter().zip(b).all(|(&a, &b)| close(a.into(), b.into()));
            assert!(all, "{}: {a:?} {b:?}", what());
        }
    };
    if let Some(gpu) = place::gpu() {
        return near(on_device(gpu), &|| "a GPU".into());
    }
    for seed in 0..6 {
        for captures in [true, false] {
            let behaviour = Behaviour { seed, captures, ..Behaviour::default() };
            near(on_device(Simulated::new(behaviour)), &|| format!("{behaviour:?}"));
        }
    }
}
