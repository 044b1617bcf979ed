//! Forward models as users have them: differentiated here, they train as PyTorch does, in no
//! more memory than the same step takes that was exported whole, and are evaluated by the same
//! artifact.

use arenic::Model;
use arenic::artifact::{Artifact, Target};
use arenic::compile::{Constraints, compile};
use arenic::data::TensorFile;
use arenic::onnx::export::{ExportOptions, export, with_training_info, write};
use arenic::onnx::{ImportOptions, Mode, Training, Variance};
use arenic::train::{Initial, Length, TrainOptions, train};
use arenic_backends::CPU;
use arenic_ir::program::PerSpace;
use arenic_passes::differentiate::{Differentiate, Glob, Optimizer};
use arenic_passes::pipeline::{NAMED, Pipeline, RunOptions};
use arenic_passes::{Purpose, Search, Standard};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const NETWORKS: [&str; 4] = ["gpt_tiny", "mlp", "small_cnn", "tiny_resnet"];

/// Those with recurrent layers, which train with momentum alone.
const RECURRENT: [&str; 3] = ["char_gru", "char_lstm", "char_rnn"];

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A file of PyTorch's run.
fn file(network: &str, optimizer: &str, ending: &str) -> PathBuf {
    root(&match RECURRENT.contains(&network) {
        true => format!("tests/runs/recurrent/{network}.{ending}"),
        false => format!("tests/runs/{network}_b4_{optimizer}.{ending}"),
    })
}

fn momentum() -> Differentiate {
    let loss = "cross_entropy".into();
    Differentiate { loss, optimizer: Optimizer::Momentum, ..Differentiate::default() }
}

fn adamw() -> Differentiate {
    Differentiate { optimizer: Optimizer::Adamw, ..momentum() }
}

fn pipeline(name: &str) -> Pipeline {
    Pipeline::named(name, &Standard).unwrap()
}

/// A forward model for training or, with the same pass, for evaluation.
fn compiled(
    network: &str,
    pass: &Differentiate,
    purpose: Purpose,
    batch: u64,
    limit: Option<u64>,
) -> Target {
    compiled_by(pipeline("default"), network, pass, purpose, batch, limit)
}

/// The same by another pipeline.
fn compiled_by(
    pipeline: Pipeline,
    network: &str,
    pass: &Differentiate,
    purpose: Purpose,
    batch: u64,
    limit: Option<u64>,
) -> Target {
    let mode = match purpose {
        Purpose::Step => {
            Mode::Training(Training { variance: Some(Variance::Unbiased), dropout: None })
        }
        Purpose::Evaluation => Mode::Inference,
    };
    let dims = [("batch".to_owned(), batch)].into();
    let import = ImportOptions { mode, dims, ..ImportOptions::default() };
    let pipeline = pipeline.differentiating(pass.clone()).unwrap();
    let limits = PerSpace { device: limit, host: Some(1 << 40) };
    let constraints = Constraints { purpose, limits, ..Constraints::default() };
    let model = root(&format!("models/forward/{network}.onnx"));
    through_a_file(&model, &import, &pipeline, constraints)
}

/// The same step as it was exported whole.
fn exported(network: &str, optimizer: &str) -> Target {
    let model = root(&format!("models/step/ref_{network}_b4_{optimizer}.onnx"));
    let import = ImportOptions::default();
    through_a_file(&model, &import, &pipeline("as_exported"), Constraints::default())
}

fn through_a_file(
    model: &Path,
    import: &ImportOptions,
    pipeline: &Pipeline,
    constraints: Constraints,
) -> Target {
    let search = Search::default();
    let compiled = compile(
        &Model::open(model).unwrap(),
        import,
        pipeline,
        constraints,
        search,
        RunOptions::default(),
    )
    .unwrap_or_else(|e| panic!("{}: {e}", model.display()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.arenic");
    compiled.artifact.unwrap().write(&path).unwrap();
    Artifact::read(&path).unwrap().target(CPU.name).unwrap().clone()
}

fn options(network: &str, lr: f64) -> TrainOptions {
    TrainOptions {
        data: vec![file(network, "sgdm", "data.npz")],
        set: vec![("lr".into(), lr.to_string())],
        length: Length::Steps(5),
        threads: 1,
        deterministic: true,
        ..TrainOptions::default()
    }
}

/// Losses, and what was saved.
fn trained(target: &Target, options: TrainOptions) -> (Vec<f64>, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states.safetensors");
    let options = TrainOptions { save: Some(path.clone()), ..options };
    let mut losses = Vec::new();
    train(target, &options, |_| {}, |r| losses.push(r.scalars[0].1)).unwrap();
    (losses, std::fs::read(&path).unwrap())
}

fn tensors(bytes: &[u8]) -> Vec<(String, Vec<f32>)> {
    let file = safetensors::SafeTensors::deserialize(bytes).unwrap();
    let floats = file.tensors().into_iter().filter(|(_, t)| t.dtype() == safetensors::Dtype::F32);
    floats
        .map(|(name, t)| {
            let words = t.data().chunks_exact(4);
            (name, words.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
        })
        .collect()
}

fn reference(network: &str, optimizer: &str) -> (Vec<f64>, f64) {
    let text = std::fs::read(file(network, optimizer, "json")).unwrap();
    let run: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let losses = run["loss"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect();
    (losses, run["set"]["lr"].as_f64().unwrap())
}

fn close(name: &str, ours: &[f64], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len(), "{name}");
    for (ours, theirs) in ours.iter().zip(theirs) {
        let off = (ours - theirs).abs() / theirs.abs().max(1.0);
        assert!(off <= 1e-5, "{name}: loss {ours}, PyTorch's is {theirs}");
    }
}

#[test]
fn five_steps_equal_pytorch() {
    for network in NETWORKS {
        for (optimizer, pass) in [("sgdm", momentum()), ("adamw", adamw())] {
            let (theirs, lr) = reference(network, optimizer);
            let name = format!("{network} {optimizer}");
            let target = compiled(network, &pass, Purpose::Step, 4, None);
            let (ours, states) = trained(&target, options(network, lr));
            close(&name, &ours, &theirs);
            if optimizer == "sgdm" {
                let path = file(network, optimizer, "final.npz");
                parameters(&name, &tensors(&states), &TensorFile::open(&path).unwrap());
            }
        }
    }
}

#[test]
fn five_steps_of_recurrent_networks_equal_pytorch() {
    for network in RECURRENT {
        let (theirs, lr) = reference(network, "sgdm");
        let target = compiled(network, &momentum(), Purpose::Step, 4, None);
        let (ours, states) = trained(&target, options(network, lr));
        close(network, &ours, &theirs);
        let path = file(network, "sgdm", "final.npz");
        parameters(network, &tensors(&states), &TensorFile::open(&path).unwrap());
    }
}

/// Every weight and running statistic that PyTorch ended with.
fn parameters(name: &str, ours: &[(String, Vec<f32>)], theirs: &TensorFile) {
    let mut compared = 0;
    for array in theirs.tensors() {
        let Some(own) = array.name().strip_prefix("p.").or(array.name().strip_prefix("b.")) else {
            continue;
        };
        if own.ends_with("num_batches_tracked") || ["mask", "pos"].contains(&own) {
            continue;
        }
        let (_, values) = ours
            .iter()
            .find(|(n, _)| n == own)
            .unwrap_or_else(|| panic!("{name}: `{own}` was not saved"));
        let mut bytes = vec![0; array.ty().bytes() as usize];
        array.read(0, &mut bytes).unwrap();
        for (x, b) in values.iter().zip(bytes.chunks_exact(4)) {
            let y = f32::from_le_bytes(b.try_into().unwrap());
            assert!((x - y).abs() <= 1e-5, "{name}: `{own}` holds {x}, PyTorch's {y}");
        }
        compared += 1;
    }
    assert!(compared >= 6, "{name}: {compared} compared");
}

/// On GPUs a GELU and its slope are parts of products, as a library has them; here the
/// same by the CPU's kernels.
#[test]
fn products_with_a_gelu_equal_pytorch() {
    let yaml = NAMED[0].1;
    assert!(yaml.contains("- fuse_gelu:\n  when: cuda\n"));
    let yaml = yaml.replace("- fuse_gelu:\n  when: cuda\n", "- fuse_gelu\n");
    let network = "gpt_tiny";
    let of = |purpose| {
        let pipeline = Pipeline::from_yaml(&yaml, &Standard).unwrap();
        compiled_by(pipeline, network, &momentum(), purpose, 4, None)
    };
    let count = |target: &Target, name: &str| {
        target.graph.nodes.values().filter(|n| n.op.name() == name).count()
    };
    let (step, forward) = (of(Purpose::Step), of(Purpose::Evaluation));
    for (target, gradients) in [(&step, 2), (&forward, 0)] {
        let counts = ["gemm_gelu", "gemm_gelu_grad"].map(|name| count(target, name));
        assert_eq!(counts, [2, gradients]);
    }
    let (theirs, lr) = reference(network, "sgdm");
    let (ours, states) = trained(&step, options(network, lr));
    close(network, &ours, &theirs);
    let path = file(network, "sgdm", "final.npz");
    parameters(network, &tensors(&states), &TensorFile::open(&path).unwrap());
    let plain = compiled(network, &momentum(), Purpose::Step, 4, None);
    let arena = |target: &Target| target.figures.arena_bytes;
    assert!(arena(&step) <= arena(&plain), "{} and {}", arena(&step), arena(&plain));
}

/// Where an exporter's step is rewritten, it may become smaller than ours; the comparison is with the step as it
/// was exported. Sixteen steps are planned with all that is searched by default, as users get them: it takes long.
#[test]
fn no_more_memory_than_the_step_that_was_exported_whole() {
    for network in NETWORKS {
        for (optimizer, pass) in [("sgdm", momentum()), ("adamw", adamw())] {
            let arena = |target: &Target| target.figures.arena_bytes;
            let whole = arena(&exported(network, optimizer));
            let ours = arena(&compiled(network, &pass, Purpose::Step, 4, None));
            assert!(ours <= whole, "{network} {optimizer}: {ours} bytes, exported whole {whole}");
        }
    }
}

#[test]
fn neither_plan_nor_dead_bytes_decide_anything() {
    for network in ["gpt_tiny", "tiny_resnet", "char_lstm", "char_gru"] {
        let (_, lr) = reference(network, "sgdm");
        let free = compiled(network, &momentum(), Purpose::Step, 4, None);
        let expected = trained(&free, options(network, lr));
        let poisoned = TrainOptions { poison: true, ..options(network, lr) };
        assert!(trained(&free, poisoned) == expected, "{network}, poisoned");
        let limit = free.figures.arena_bytes * 7 / 10;
        let tight = compiled(network, &momentum(), Purpose::Step, 4, Some(limit));
        assert!(tight.figures.arena_bytes <= limit);
        assert!(trained(&tight, options(network, lr)) == expected, "{network}, within {limit}");
    }
}

/// Without statistics over the batch, two halves in one step are what the whole is.
#[test]
fn micro_batches_are_a_batch() {
    for network in ["mlp", "small_cnn", "gpt_tiny"] {
        let (_, lr) = reference(network, "sgdm");
        let halves = Differentiate { accumulate: Some(2), ..momentum() };
        let halves = compiled(network, &halves, Purpose::Step, 2, None);
        let (theirs, _) = reference(network, "sgdm");
        let (ours, _) = trained(&halves, options(network, lr));
        close(&format!("{network} in halves"), &ours, &theirs);
    }
}

/// Before the first step a model without dropout and batch statistics has the loss that it is
/// trained with; afterwards it is evaluated with what was saved.
#[test]
fn the_artifact_evaluates_what_it_trained() {
    let (losses, lr) = reference("mlp", "sgdm");
    let forward = compiled("mlp", &momentum(), Purpose::Evaluation, 4, None);
    let first = |initial: Initial| {
        let options = TrainOptions {
            initial,
            length: Length::Steps(1),
            set: Vec::new(),
            ..options("mlp", lr)
        };
        let mut all = Vec::new();
        let watch = |r: &arenic::train::StepReport| {
            all = r.scalars.iter().map(|&(n, x)| (n.to_owned(), x)).collect();
        };
        train(&forward, &options, |_| {}, watch).unwrap();
        all
    };
    let before = first(Initial::default());
    let names: Vec<&str> = before.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!((names, before[2].1), (vec!["loss", "accuracy", "counted"], 4.0));
    close("evaluated", &[before[0].1], &losses[..1]);

    let step = compiled("mlp", &momentum(), Purpose::Step, 4, None);
    let many = TrainOptions { length: Length::Steps(200), ..options("mlp", 0.1) };
    let (_, states) = trained(&step, many);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trained.safetensors");
    std::fs::write(&path, states).unwrap();
    let file = Some(TensorFile::open(&path).unwrap());
    let skip = vec![glob::Pattern::new("*.momentum").unwrap()];
    let after = first(Initial { file, skip, ..Initial::default() });
    assert!(after[0].1 < 0.1 && after[1].1 == 1.0, "{after:?}: it does not know its 20 examples");
}

#[test]
fn frozen_weights_cost_nothing() {
    let freeze: Vec<Glob> = vec!["fc1.*".parse().unwrap(), "fc2.*".parse().unwrap()];
    let whole = compiled("mlp", &momentum(), Purpose::Step, 4, None);
    let head = compiled("mlp", &Differentiate { freeze, ..momentum() }, Purpose::Step, 4, None);
    let states: Vec<&str> = head.graph.states.values().map(|s| s.name.as_str()).collect();
    assert_eq!(states, ["fc3.weight", "fc3.bias", "fc3.weight.momentum", "fc3.bias.momentum"]);
    assert!(head.graph.nodes.len() + 4 <= whole.graph.nodes.len());
    assert!(head.figures.live_peak_bytes < whole.figures.live_peak_bytes);
}

/// The step as the standard's training info: a file whose graph is the forward part alone, and
/// which is read as the step that it was.
#[test]
fn training_info_is_the_step_again() {
    for network in ["gpt_tiny", "tiny_resnet"] {
        let (_, lr) = reference(network, "sgdm");
        let step = compiled(network, &momentum(), Purpose::Step, 4, None);
        let whole = export(&step.graph, ExportOptions::default()).unwrap();
        let model = with_training_info(whole, &step.graph).unwrap();
        let graph = model.graph.as_ref().unwrap();
        let algorithm = model.training_info[0].algorithm.as_ref().unwrap();
        assert!(graph.node.len() > 5 && algorithm.node.len() > graph.node.len());
        let inputs: Vec<&str> = graph.input.iter().filter_map(|i| i.name.as_deref()).collect();
        assert!(inputs.contains(&"target") && !inputs.contains(&"lr"), "{inputs:?}");
        let outputs: Vec<&str> = graph.output.iter().filter_map(|o| o.name.as_deref()).collect();
        assert_eq!(outputs, ["loss"]);
        assert!(
            graph
                .initializer
                .iter()
                .all(|t| t.name.as_ref().is_none_or(|n| !n.ends_with(".momentum")))
        );

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step.onnx");
        write(&model, &path).unwrap();
        let (import, constraints) = (ImportOptions::default(), Constraints::default());
        let again = through_a_file(&path, &import, &pipeline("default"), constraints);
        let names = |t: &Target| -> BTreeSet<String> {
            t.graph.states.values().map(|s| s.name.clone()).collect()
        };
        assert_eq!(names(&step), names(&again));
        let (ours, _) = trained(&step, options(network, lr));
        let (theirs, _) = trained(&again, options(network, lr));
        close(network, &theirs, &ours);
        // What is run without training is the forward part.
        let forward = ImportOptions { mode: Mode::Inference, ..ImportOptions::default() };
        let forward = through_a_file(&path, &forward, &pipeline("default"), constraints);
        assert!(forward.graph.states.is_empty() && forward.graph.outputs.len() == 1);
    }
}
