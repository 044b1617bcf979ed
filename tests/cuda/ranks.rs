//! Ranks with a device each: the losses of eager PyTorch, the same bits at every level of sharding and whatever streams
//! and messages do, and fewer bytes from level to level. Ranks are threads with simulated devices.

use super::Run;
use super::place::file;
use super::simulated::{Behaviour, Simulated, fabric};
use arenic::artifact::Artifact;
use arenic::data::TensorFile;
use arenic::train::{Initial, StepReport, TrainOptions, train_on_device};
use arenic::{Compiler, Model};
use arenic_backends::CUDA;
use arenic_passes::differentiate::{Differentiate, Optimizer};
use arenic_passes::precision::Format;
use arenic_passes::shard::Level;
use arenic_runtime::ranks::threads::ranks;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What makes a step of a network for several ranks.
#[derive(Clone, Copy)]
struct Case {
    network: &'static str,
    clip_norm: Option<f64>,
    precision: Format,
    memory: Option<u64>,
}

impl Case {
    fn of(network: &'static str) -> Case {
        Case { network, clip_norm: None, precision: Format::F32, memory: None }
    }

    fn compiled(self, count: usize, level: Level) -> Artifact {
        let model = Model::open(file("models/forward").join(format!("{}.onnx", self.network)));
        let (loss, optimizer) = ("cross_entropy".into(), Optimizer::Momentum);
        let clip_norm = self.clip_norm;
        let pass = Differentiate { loss, optimizer, clip_norm, ..Differentiate::default() };
        let mut compiler = Compiler::new().differentiate(pass).evaluation(false).effort(0.0);
        compiler = compiler.target(CUDA).without_gpu_code().precision(self.precision);
        if let Some(bytes) = self.memory {
            compiler = compiler.memory(bytes);
        }
        // Four rows in all, as one process has in the runs of PyTorch.
        let model = model.unwrap().dim("batch", 4 / count as u64);
        let made = compiler.ranks(count, level).compile(&model);
        made.unwrap_or_else(|e| panic!("{} for {count} ranks: {e}", self.network))
    }
}

/// What a run came to: losses by step, and the bytes of what was saved.
type Trained = (Vec<f64>, BTreeMap<String, Vec<u8>>);

fn trained(artifact: &Artifact, count: usize, run: &Run, behaviour: Behaviour) -> Trained {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states.safetensors");
    let target = &artifact.targets[0];
    let losses = std::thread::scope(|scope| {
        let start = |(port, rank): (_, _)| {
            let path = path.clone();
            scope.spawn(move || {
                let options = TrainOptions {
                    save: Some(path),
                    ranks: Some(Arc::new(rank)),
                    initial: Initial::default(),
                    ..run.options()
                };
                let mut losses = Vec::new();
                let watch = |report: &StepReport| losses.push(report.scalars[0].1);
                let driver = Simulated::among(behaviour, port);
                train_on_device(driver, target, &options, |_| (), watch).unwrap();
                losses
            })
        };
        let threads: Vec<_> = fabric(count).into_iter().zip(ranks(count)).map(start).collect();
        let all = threads.into_iter().map(|thread| thread.join().unwrap());
        let all: Vec<Vec<f64>> = all.collect();
        assert!(all.iter().all(|losses| *losses == all[0]), "ranks report other losses");
        all.into_iter().next().unwrap()
    });
    let saved = TensorFile::open(&path).unwrap();
    let saved = saved.tensors().iter().map(|t| (t.name().to_owned(), t.bytes().to_vec())).collect();
    (losses, saved)
}

/// Every count and level has kernels of its own to compile for the emulator, which is what takes long.
#[test]
fn ranks_with_devices_train_as_pytorch_does_with_the_same_bits_at_every_level() {
    for (network, counts) in [("mlp", &[2, 4][..]), ("gpt_tiny", &[2]), ("small_cnn", &[2])] {
        let run = Run::differentiated(network);
        for &count in counts {
            let (mut first, mut before) = (None::<Trained>, u64::MAX);
            for (seed, level) in Level::ALL.into_iter().enumerate() {
                let what = format!("{network} by {count} ranks, {}", level.name());
                let artifact = Case::of(network).compiled(count, level);
                let arena = artifact.arena_bytes();
                assert!(arena <= before, "{what}: {arena} bytes, {before} at the level before");
                before = arena;
                // Without captures steps are issued command by command.
                let captures = level != Level::Optimizer;
                let behaviour = Behaviour { seed: seed as u64, captures, ..Behaviour::default() };
                let made = trained(&artifact, count, &run, behaviour);
                for (step, (ours, theirs)) in made.0.iter().zip(&run.losses).enumerate() {
                    let off = (ours - theirs).abs();
                    assert!(off <= 2e-5, "{what}, step {step}: {ours} is off by {off:e}");
                }
                assert_eq!(made.0.len(), run.losses.len());
                assert!(*first.get_or_insert_with(|| made.clone()) == made, "{what}: other bits");
            }
        }
    }
}

/// Norms are clipped by what all ranks know, products are of bf16, and a limit makes the planner compute and gather again. Four limits are
/// planned, and as many steps of two ranks emulated twice, which takes long.
#[test]
fn ranks_with_devices_are_right_under_clipping_in_bf16_and_under_limits() {
    let run = Run::differentiated("gpt_tiny");
    let case = Case::of("gpt_tiny");
    let clipped = Case { clip_norm: Some(0.5), ..case };
    let narrow = Case { precision: Format::Bf16, ..case };
    for (case, tolerance) in [(clipped, 2e-5), (narrow, 2e-2)] {
        let expected = trained(&case.compiled(1, Level::None), 1, &run, Behaviour::default());
        let whole = trained(&case.compiled(2, Level::None), 2, &run, Behaviour::default());
        for (step, (two, one)) in whole.0.iter().zip(&expected.0).enumerate() {
            assert!((two - one).abs() <= tolerance, "step {step}: {two}, {one} of one process");
        }
        for level in [Level::Gradients, Level::Parameters] {
            let artifact = case.compiled(2, level);
            let without = Behaviour { seed: 3, ..Behaviour::default() };
            assert!(trained(&artifact, 2, &run, without) == whole, "{}", level.name());
            let limit = artifact.arena_bytes() * 9 / 10;
            let limited = Case { memory: Some(limit), ..case }.compiled(2, level);
            assert!(limited.arena_bytes() <= limit);
            let with = Behaviour { seed: 4, ..Behaviour::default() };
            assert!(trained(&limited, 2, &run, with) == whole, "{} in {limit}", level.name());
        }
    }
}
