//! Whole steps, cut into rounds by the pass `accumulate`, give what the whole batch gives.

use crate::{at_once, in_rounds, linear, near};
use arenic::Model;
use arenic::artifact::{Artifact, Part, Target};
use arenic::compile::{CompileError, Constraints, compile};
use arenic::data::TensorFile;
use arenic::evaluator::Kernels;
use arenic::onnx::{ImportOptions, Mode, Training, Variance};
use arenic::train::{Initial, Length, TrainOptions, train};
use arenic_backends::CPU;
use arenic_ir::program::PerSpace;
use arenic_ir::text::Module;
use arenic_ir::{Graph, TargetInfo};
use arenic_passes::accumulate::Accumulate;
use arenic_passes::differentiate::{Differentiate, Optimizer};
use arenic_passes::pipeline::{PartOutcome, Pipeline, RunOptions};
use arenic_passes::{Cx, Search, Standard};
use arenic_runtime::executor::ExecutorOptions;
use std::path::{Path, PathBuf};

const STEPS: u64 = 5;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn pipeline(name: &str) -> Pipeline {
    Pipeline::named(name, &Standard).unwrap()
}

/// A step, cut as `rounds` says; without it the step as it is. Nothing leaves the device.
fn compiled(
    model: &str,
    batch: u64,
    rounds: Option<Accumulate>,
    limit: Option<u64>,
) -> Result<Target, CompileError> {
    compiled_within(model, batch, rounds, PerSpace { device: limit, host: Some(0) })
}

/// The same within limits on both memories.
fn compiled_within(
    model: &str,
    batch: u64,
    rounds: Option<Accumulate>,
    limits: PerSpace<Option<u64>>,
) -> Result<Target, CompileError> {
    let forward = model.starts_with("models/forward");
    let mode = match forward {
        true => Mode::Training(Training { variance: Some(Variance::Unbiased), dropout: None }),
        false => Mode::Inference,
    };
    let dims = [("batch".to_owned(), batch)].into();
    let mut import = ImportOptions { dims, ..ImportOptions::default() };
    let mut pipeline = pipeline("default");
    if forward {
        import.mode = mode;
        let (loss, optimizer) = ("cross_entropy".into(), Optimizer::Adamw);
        let pass = Differentiate { loss, optimizer, ..Differentiate::default() };
        pipeline = pipeline.differentiating(pass).unwrap();
    } else {
        import.dims.clear();
    }
    if let Some(pass) = rounds {
        pipeline = pipeline.in_micro_batches(pass);
    }
    let constraints = Constraints { limits, ..Constraints::default() };
    let search = Search { effort: Some(0.02), ..Search::default() };
    let options = RunOptions::default();
    let compiled =
        compile(&Model::open(root(model))?, &import, &pipeline, constraints, search, options)?;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.arenic");
    compiled.artifact.unwrap().write(&path).unwrap();
    Ok(Artifact::read(&path).unwrap().target(CPU.name).unwrap().clone())
}

/// The weights of a reference run, where the model has none; moments begin at zero.
fn initial(target: &Target, run: &str) -> Initial {
    let given = target.graph.states.values().all(|s| s.carried || s.init.is_some());
    let file = || TensorFile::open(root(&format!("tests/runs/{run}.init.npz"))).unwrap();
    let file = (!given).then(file);
    Initial { file, zeros: vec!["*".parse().unwrap()], ..Initial::default() }
}

/// The losses of some steps on the data of a reference run.
fn losses(target: &Target, run: &str) -> Vec<f64> {
    let options = TrainOptions {
        data: vec![root(&format!("tests/runs/{run}.data.npz"))],
        initial: initial(target, run),
        set: vec![("lr".into(), "0.01".into())],
        length: Length::Steps(STEPS),
        seed: Some(7),
        threads: 1,
        deterministic: true,
        poison: true,
        ..TrainOptions::default()
    };
    let mut all = Vec::new();
    let watch = |r: &arenic::train::StepReport| {
        all.extend(r.scalars.iter().filter(|s| s.0 == "loss").map(|s| s.1));
    };
    train(target, &options, |_| {}, watch).unwrap();
    all
}

fn close(what: &str, ours: &[f64], theirs: &[f64]) {
    assert_eq!(ours.len(), STEPS as usize, "{what}");
    for (a, b) in ours.iter().zip(theirs) {
        assert!((a / b - 1.0).abs() < 1e-5, "{what}: {ours:?}, the whole batch {theirs:?}");
    }
}

fn rounds(count: usize) -> Option<Accumulate> {
    Some(Accumulate { rounds: Some(count) })
}

#[test]
fn rounds_give_what_the_whole_batch_gives() {
    let models = [
        ("models/forward/mlp.onnx", "mlp_b4_adamw"),
        ("models/forward/small_cnn.onnx", "small_cnn_b4_adamw"),
        ("models/forward/gpt_tiny.onnx", "gpt_tiny_b4_adamw"),
        ("models/forward/char_lstm.onnx", "recurrent/char_lstm"),
        ("models/forward/char_gru.onnx", "recurrent/char_gru"),
        ("models/step/ref_gpt_tiny_b4_sgdm.onnx", "gpt_tiny_b4_sgdm"),
        ("models/step/ref_mlp_b4_sgdm.onnx", "mlp_b4_sgdm"),
    ];
    for (model, run) in models {
        let whole = compiled(model, 4, None, None).unwrap();
        let theirs = losses(&whole, run);
        for count in [2, 4] {
            let divided = compiled(model, 4, rounds(count), None).unwrap();
            assert_eq!(divided.rounds.as_ref().unwrap().count, count as u32, "{model}");
            close(&format!("{model} in {count}"), &losses(&divided, run), &theirs);
        }
    }
}

/// Below what its states take, a step in rounds has some of them in host memory: at one place for all
/// its parts, and with the bits that it has without a limit.
#[test]
fn rounds_use_host_memory() {
    for (model, run) in [
        ("models/forward/gpt_tiny.onnx", "gpt_tiny_b4_adamw"),
        ("models/step/ref_mlp_b4_sgdm.onnx", "mlp_b4_sgdm"),
    ] {
        let free = compiled(model, 4, rounds(2), None).unwrap();
        let least = |host| {
            let limits = PerSpace { device: Some(1), host };
            let refused = compiled_within(model, 4, rounds(2), limits).err().unwrap();
            refused.minimum().unwrap().bytes
        };
        let (with, without) = (least(Some(u64::MAX)), least(Some(0)));
        assert!(with < without, "{model}");
        let limits = PerSpace { device: Some(with.midpoint(without)), host: Some(u64::MAX) };
        let moved = compiled_within(model, 4, rounds(2), limits).unwrap();
        assert!(Some(moved.arena_bytes().device) <= limits.device, "{model}");
        assert!(moved.arena_bytes().host > 0, "{model}");
        assert_eq!(losses(&moved, run), losses(&free, run), "{model}");
    }
}

/// What a pipeline that divides makes of a step.
pub(crate) fn divided(graph: Graph, pipeline: &Pipeline, target: TargetInfo) -> Target {
    let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(target) };
    let outcome = pipeline.run(graph, &cx, RunOptions::default()).unwrap();
    let part = |part: &PartOutcome| {
        let (graph, program) = (part.graph.clone(), part.program.clone());
        Ok::<_, ()>(Part { graph, program, kernels: None })
    };
    Target {
        variant: String::new(),
        structure: String::new(),
        name: target.backend.name.into(),
        graph: outcome.module.graph,
        program: outcome.module.program.unwrap(),
        rounds: Some(Box::new(outcome.rounds.unwrap().map(part).unwrap())),
        ..linear()
    }
}

/// A round draws for an element what the whole batch draws for it.
#[test]
fn dropout_drops_the_same_elements() {
    let mut graph = Module::parse(include_str!("whole.ir"), &arenic_backends::ALL).unwrap().graph;
    let w = linear().graph.states.values().next().unwrap().init.clone();
    graph.states.values_mut().next().unwrap().init.clone_from(&w);
    let whole = at_once(&graph, w.unwrap().bytes().unwrap());
    let pipeline = pipeline("default").in_micro_batches(rounds(4).unwrap());
    let target = divided(graph, &pipeline, CPU.target());
    near(&in_rounds(&target, ExecutorOptions::default()), &whole);
}

#[test]
fn a_limit_decides_how_many_rounds_there_are() {
    let model = "models/forward/gpt_tiny.onnx";
    let whole = compiled(model, 20, None, None).unwrap();
    let theirs = losses(&whole, "gpt_tiny_b4_adamw");
    let arena = |target: &Target| target.figures.arena_bytes;
    let states = whole.figures.state_bytes;
    let limit = |percent: u64| states + (arena(&whole) - states) * percent / 100;
    let mut counts = Vec::new();
    for percent in [100, 45, 25] {
        let limit = limit(percent);
        let fits = compiled(model, 20, Some(Accumulate::default()), Some(limit)).unwrap();
        assert!(arena(&fits) <= limit, "{} bytes, limit {limit}", arena(&fits));
        let step = fits.figures.step_nanoseconds.unwrap();
        assert!(step >= fits.figures.unlimited_step_nanoseconds.unwrap(), "{percent}");
        counts.push(fits.rounds.as_ref().map_or(1, |rounds| rounds.count));
        close(&format!("{model} within {percent} %"), &losses(&fits, "gpt_tiny_b4_adamw"), &theirs);
    }
    assert_eq!(counts[0], 1);
    assert!(counts.is_sorted() && counts[1] > 1 && counts[2] > counts[1], "{counts:?}");
}

#[test]
fn a_step_that_needs_all_rows_is_refused_by_name() {
    let refused = |model: &str| {
        let e = compiled(model, 4, rounds(2), None).err().unwrap();
        e.to_string()
    };
    let said = refused("models/forward/tiny_resnet.onnx");
    assert!(said.contains("batch_norm") && said.contains("all rows"), "{said}");
    let said = refused("models/step/ref_tiny_resnet_b4_sgdm.onnx");
    assert!(said.contains("needs all rows of the batch at once"), "{said}");
}
