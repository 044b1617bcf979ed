//! ONNX Runtime's training artifacts, fused to one step each: five steps give the losses and the
//! parameters that ONNX Runtime's own training gives, which `fixtures/ort/make_runs.py` recorded.

use arenic::Model;
use arenic::compile::{Constraints, compile};
use arenic::onnx::ImportOptions;
use arenic::onnx::ort::{FILES, import_artifacts};
use arenic_ir::verify::verify;
use arenic_ir::{DType, Data, Graph, TensorType};
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Search, Standard};
use arenic_runtime::executor::{Executor, ExecutorOptions};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ort")
}

/// What a recorded run says.
fn recorded(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(fixtures().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The folder of a run, with the optimizer that it was made with.
fn artifacts(run: &serde_json::Value, at: &Path) {
    let from = fixtures().join(run["folder"].as_str().unwrap());
    for name in FILES {
        let source = if name == FILES[1] { run["optimizer"].as_str().unwrap() } else { name };
        std::fs::copy(from.join(source), at.join(name)).unwrap();
    }
}

/// What `make_runs.py` feeds: the same formulas.
fn fed(name: &str, ty: &TensorType, step: usize, classes: usize, rate: f32) -> Vec<u8> {
    let count = ty.elements();
    let f32s = |x: &mut dyn Iterator<Item = f32>| x.flat_map(f32::to_le_bytes).collect();
    match name {
        "lr" => rate.to_le_bytes().to_vec(),
        _ if ty.dtype == DType::F32 => {
            let number = |i: usize| ((i * 37 + 11 * step) % 101) as f64 / 50.0 - 1.0;
            f32s(&mut (0..count).map(|i| number(i) as f32))
        }
        _ => {
            (0..count).flat_map(|i| (((i * 7 + 3 * step) % classes) as i64).to_le_bytes()).collect()
        }
    }
}

/// Compares losses and states of five steps; gives the largest differences.
fn run(name: &str) -> (f64, f64) {
    let run = recorded(name);
    let folder = tempfile::tempdir().unwrap();
    artifacts(&run, folder.path());
    let pipeline = Pipeline::named("default", &Standard).unwrap();
    let search = Search { effort: Some(0.5), ..Search::default() };
    let import = ImportOptions::default();
    let constraints = Constraints::default();
    let options = RunOptions::default();
    let compiled = compile(
        &Model::open(folder.path()).unwrap(),
        &import,
        &pipeline,
        constraints,
        search,
        options,
    )
    .unwrap();
    let target = compiled.target().unwrap();
    let g = &target.graph;
    let options = ExecutorOptions { threads: 1, ..ExecutorOptions::default() };
    let mut executor = Executor::new(g, &target.program, options).unwrap();
    for (v, data) in g.consts() {
        if let Some(home) = executor.carried_mut(v) {
            home.copy_from_slice(data.bytes().unwrap());
        }
    }
    for state in g.states.values() {
        let init = state.init.as_ref().and_then(Data::bytes).unwrap();
        executor.carried_mut(state.enter).unwrap().copy_from_slice(init);
    }
    let classes = if name.starts_with("gpt") { 65 } else { 10 };
    let rate = run["rate"].as_f64().unwrap() as f32;
    assert_eq!(g.outputs.len(), 1);
    assert_eq!(g.outputs[0].name, "loss");
    let (mut losses, mut states): (f64, f64) = (0.0, 0.0);
    for (step, expected) in run["losses"].as_array().unwrap().iter().enumerate() {
        for v in g.inputs().collect::<Vec<_>>() {
            let bytes = fed(&g.values[v].name, g.ty(v), step, classes, rate);
            if let Some(home) = executor.input_mut(v) {
                home.copy_from_slice(&bytes);
            }
        }
        executor.step(Draw { seed: 0, step: step as u64, round: 0 }).unwrap();
        let loss = f32::from_le_bytes(executor.output(0).try_into().unwrap());
        let off = (f64::from(loss) - expected.as_f64().unwrap()).abs();
        losses = losses.max(off);
    }
    // Buffers that no step changes are constants. A causal mask is a property of `attention`.
    let has = |name: &str| {
        let mut constants = g.consts().map(|(v, _)| &g.values[v].name);
        g.states.values().any(|s| s.name == name) || constants.any(|constant| constant == name)
    };
    let all = run["states"].as_object().unwrap().keys();
    let absent: Vec<&str> = all.map(String::as_str).filter(|name| !has(name)).collect();
    let known: &[&str] = if name.starts_with("gpt") { &["mask"] } else { &[] };
    assert_eq!(absent, known, "{name}");
    for (s, state) in &g.states {
        let Some(expected) = run["states"].get(&state.name) else { continue };
        let ours: Vec<f32> = executor
            .state(s)
            .chunks_exact(4)
            .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
            .collect();
        for (a, b) in ours.iter().zip(expected["first"].as_array().unwrap()) {
            states = states.max((f64::from(*a) - b.as_f64().unwrap()).abs());
        }
        let magnitude: f64 = ours.iter().map(|x| f64::from(x.abs())).sum();
        let expected = expected["magnitude"].as_f64().unwrap();
        // An average over the tensor.
        states = states.max((magnitude - expected).abs() / ours.len() as f64);
    }
    println!("{name}: losses within {losses:.1e}, states within {states:.1e}");
    (losses, states)
}

macro_rules! runs {
    ($($name:ident: $losses:literal, $states:literal;)*) => {
        $(
            #[test]
            fn $name() {
                let (losses, states) = run(stringify!($name));
                assert!(losses <= $losses, "losses are off by {losses:e}");
                assert!(states <= $states, "states are off by {states:e}");
            }
        )*
    };
}

// Adam makes differences of gradients near zero, in their last bits, into ones of its rate.
runs! {
    mnist_mlp_b32: 1e-5, 1e-5;
    mnist_mlp_b32_sgd: 1e-5, 1e-5;
    small_cnn_b32: 1e-5, 1e-5;
    small_cnn_b32_sgd: 1e-5, 1e-5;
    tiny_resnet_b32: 1e-5, 1e-5;
    tiny_resnet_b32_sgd: 1e-5, 1e-5;
    gpt_tiny_b32: 1e-5, 1e-5;
    gpt_tiny_b32_sgd: 1e-5, 1e-5;
}

fn imported(folder: &Path) -> Result<Graph, String> {
    let graph =
        import_artifacts(folder, &ImportOptions::default()).map_err(|e| e.to_string())?.graph;
    verify(&graph).unwrap();
    Ok(graph)
}

#[test]
fn states_and_inputs_have_the_promised_names() {
    let g = imported(&fixtures().join("tiny_resnet_b32")).unwrap();
    let states: Vec<&str> = g.states.values().map(|s| s.name.as_str()).collect();
    for name in ["c.weight", "c.weight.m", "c.weight.v", "b.running_mean", "b.running_var", "step"]
    {
        assert!(states.contains(&name), "{name} is not among {states:?}");
    }
    let inputs: Vec<&str> = g.inputs().map(|v| g.values[v].name.as_str()).collect();
    assert_eq!(inputs, ["x", "labels", "lr"]);
    assert!(g.states.values().all(|s| s.init.is_some() && s.enter != s.exit));
}

#[test]
fn artifacts_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let put = |from: &str, name: &str| {
        std::fs::copy(fixtures().join(from).join(name), folder.path().join(name)).unwrap();
    };
    let refused = || imported(folder.path()).unwrap_err();
    let missing = refused();
    assert!(missing.contains("training_model.onnx"), "{missing}");
    put("mnist_mlp_b32", FILES[0]);
    assert!(refused().contains("optimizer_model.onnx"));
    put("mnist_mlp_b32", FILES[1]);
    assert!(refused().contains("checkpoint"));
    put("small_cnn_b32", FILES[2]);
    let other = refused();
    assert!(other.contains("the checkpoint is of another model"), "{other}");
    put("mnist_mlp_b32", FILES[2]);
    imported(folder.path()).unwrap();
    // The training model where the optimizer should be, and the other way round.
    std::fs::copy(folder.path().join(FILES[0]), folder.path().join(FILES[1])).unwrap();
    let crowd = refused();
    assert!(crowd.contains("not one optimizer"), "{crowd}");
    put("mnist_mlp_b32", FILES[1]);
    std::fs::copy(folder.path().join(FILES[1]), folder.path().join(FILES[0])).unwrap();
    let no_gradients = refused();
    assert!(no_gradients.contains("computes no gradients"), "{no_gradients}");
    std::fs::write(folder.path().join(FILES[0]), b"nonsense").unwrap();
    assert!(refused().contains("is no ONNX model"));
}

/// A parameter's extent is changed in the checkpoint, and a name.
#[test]
fn a_checkpoint_with_other_shapes_or_names_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in FILES {
        let from = fixtures().join("mnist_mlp_b32").join(name);
        std::fs::copy(from, folder.path().join(name)).unwrap();
    }
    let path = folder.path().join(FILES[2]);
    let bytes = std::fs::read(&path).unwrap();
    let replaced = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
        let mut changed = bytes.clone();
        changed[at..at + to.len()].copy_from_slice(to);
        std::fs::write(&path, changed).unwrap();
        imported(folder.path()).unwrap_err()
    };
    let dims = |dims: [i64; 2]| dims.map(i64::to_le_bytes).concat();
    let shape = replaced(&dims([128, 784]), &dims([784, 128]));
    assert!(shape.contains("`fc1.weight`") && shape.contains("f32[784,128]"), "{shape}");
    let size = replaced(&dims([128, 784]), &dims([128, 785]));
    assert!(size.contains("`fc1.weight`") && size.contains("bytes"), "{size}");
    let negative = replaced(&dims([128, 784]), &dims([-128, 784]));
    assert!(negative.contains("negative"), "{negative}");
    let name = replaced(b"fc1.weight", b"fc9.weight");
    assert!(name.contains("no input `fc9.weight`"), "{name}");
}

/// Every truncation and many flipped bytes: an error or a graph, never a panic.
#[test]
fn hostile_checkpoints_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in FILES {
        let from = fixtures().join("small_cnn_b32").join(name);
        std::fs::copy(from, folder.path().join(name)).unwrap();
    }
    let path = folder.path().join(FILES[2]);
    let bytes = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for end in (0..bytes.len()).step_by(97) {
        std::fs::write(&path, &bytes[..end]).unwrap();
        let error = imported(folder.path()).unwrap_err();
        assert!(error.contains("checkpoint"), "{end}: {error}");
        refused += 1;
    }
    for i in 0..2000 {
        let mut changed = bytes.clone();
        // Offsets, lengths and vtables are dense at the front and sparse behind it.
        let at = if i % 2 == 0 { i / 2 % 400 } else { i * 7919 % bytes.len() };
        changed[at] ^= 1 << (i * 5 % 8);
        changed[(at + i) % bytes.len()] = 0xff;
        std::fs::write(&path, changed).unwrap();
        refused += usize::from(imported(folder.path()).is_err());
    }
    assert!(refused > 600, "{refused}");
}

/// Plain gradient descent is linear in the gradient: two micro-batches end where the mean of two
/// steps does, each from the start.
#[test]
fn micro_batches_are_averaged() {
    let run = recorded("mnist_mlp_b32_sgd");
    let folder = tempfile::tempdir().unwrap();
    artifacts(&run, folder.path());
    let states = |micro_batches, parts: &[usize]| {
        let options = ImportOptions { micro_batches, ..ImportOptions::default() };
        let graph = import_artifacts(folder.path(), &options).unwrap().graph;
        let mut reference = Reference::new(&graph).unwrap();
        for (v, data) in graph.consts() {
            reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
        }
        for state in graph.states.values() {
            let init = state.init.as_ref().and_then(Data::bytes).unwrap();
            reference.value_mut(state.enter).unwrap().copy_from_slice(init);
        }
        for v in graph.inputs().collect::<Vec<_>>() {
            let mut ty = graph.ty(v).clone();
            if ty.rank() > 0 {
                ty.shape[0] /= parts.len();
            }
            let part = |&step: &usize| fed(&graph.values[v].name, &ty, step, 10, 0.5);
            let parts = if ty.rank() > 0 { parts } else { &parts[..1] };
            let bytes: Vec<u8> = parts.iter().flat_map(part).collect();
            reference.value_mut(v).unwrap().copy_from_slice(&bytes);
        }
        reference.step(Draw::default()).unwrap();
        let mut all: Vec<f32> = Vec::new();
        for state in graph.states.values() {
            let words = reference.value(state.enter).chunks_exact(4);
            all.extend(words.map(|c| f32::from_le_bytes(c.try_into().unwrap())));
        }
        let loss = reference.value(graph.outputs[0].value);
        all.push(f32::from_le_bytes(loss.try_into().unwrap()));
        all
    };
    let (both, first, second) = (states(Some(2), &[0, 3]), states(None, &[0]), states(None, &[3]));
    assert!(first != second && both.len() == first.len());
    for ((both, first), second) in both.iter().zip(&first).zip(&second) {
        let mean = (first + second) / 2.0;
        assert!((both - mean).abs() <= 1e-6 * mean.abs().max(1.0), "{both}, mean {mean}");
    }
}
