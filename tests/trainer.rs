//! Training batch by batch from memory: the bits of a run from files, states that can be read, written and kept, and
//! errors that name what is wrong.

use arenic::data::{Npz, TensorFile};
use arenic::train::{Length, TrainOptions, train};
use arenic::{
    Artifact, Compiler, Differentiate, Initial, Input, InputError, Model, Optimizer, Tensor,
    TrainError, Trainer, TrainerOptions,
};
use std::path::{Path, PathBuf};

const STEPS: usize = 5;
const ROWS: usize = 4;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The step of a small network in micro-batches, of one size together.
fn artifact(network: &str, micro_batches: u32) -> Artifact {
    let forward = Model::open(root(&format!("models/forward/{network}.onnx"))).unwrap();
    let forward = forward.dim("batch", ROWS as u64 / u64::from(micro_batches));
    let pass = Differentiate {
        loss: "cross_entropy".into(),
        optimizer: Optimizer::Momentum,
        accumulate: (micro_batches > 1).then_some(micro_batches),
        ..Differentiate::default()
    };
    Compiler::new().differentiate(pass).compile(&forward).unwrap()
}

fn data(network: &str) -> PathBuf {
    root(&format!("tests/runs/{network}_b4_sgdm.data.npz"))
}

/// The batches of a network of images.
fn batches(network: &str) -> Vec<(Vec<f32>, Vec<i64>)> {
    let npz = Npz::open(data(network)).unwrap();
    let floats = npz.array("x").unwrap().bytes().as_chunks().0.iter();
    let x: Vec<f32> = floats.map(|b| f32::from_le_bytes(*b)).collect();
    let integers = npz.array("target").unwrap().bytes().as_chunks().0.iter();
    let target: Vec<i64> = integers.map(|b| i64::from_le_bytes(*b)).collect();
    let each = x.len() / target.len() * ROWS;
    x.chunks(each).zip(target.chunks(ROWS)).map(|(x, t)| (x.to_vec(), t.to_vec())).collect()
}

fn fed((x, target): &(Vec<f32>, Vec<i64>)) -> [(&'static str, Input<'_>); 3] {
    [("x", x[..].into()), ("target", target[..].into()), ("lr", 0.05.into())]
}

fn losses(trainer: &mut Trainer, network: &str) -> Vec<f64> {
    let all = batches(network);
    (0..STEPS).map(|k| trainer.step(&fed(&all[k % all.len()])).unwrap()["loss"]).collect()
}

/// Losses of a run from files, and the states that it saves.
fn run(artifact: &Artifact, network: &str) -> (Vec<f64>, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states.safetensors");
    let options = TrainOptions {
        data: vec![data(network)],
        set: vec![("lr".into(), "0.05".into())],
        length: Length::Steps(STEPS as u64),
        save: Some(path.clone()),
        threads: 1,
        deterministic: true,
        ..TrainOptions::default()
    };
    let mut losses = Vec::new();
    train(&artifact.targets[0], &options, |_| {}, |r| losses.push(r.scalars[0].1)).unwrap();
    (losses, std::fs::read(path).unwrap())
}

#[test]
fn a_trainer_does_what_a_run_does() {
    for (network, micro_batches) in [("mlp", 1), ("small_cnn", 1), ("mlp", 2)] {
        let artifact = artifact(network, micro_batches);
        let (expected, states) = run(&artifact, network);
        let mut trainer = Trainer::new(artifact).unwrap();
        assert_eq!(losses(&mut trainer, network), expected, "{network} in {micro_batches}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("states.safetensors");
        trainer.save(&path).unwrap();
        assert!(std::fs::read(&path).unwrap() == states, "{network} in {micro_batches}");
    }
}

/// Such as one that Ctrl-C left in Python: it ends, it counts, and states are those after it.
#[test]
fn states_are_those_after_a_step_that_nobody_waited_for() {
    use arenic::trainer::access;
    let artifact = std::sync::Arc::new(artifact("small_cnn", 1));
    let [mut waited, mut left] = [(); 2].map(|()| Trainer::new(artifact.clone()).unwrap());
    let all = batches("small_cnn");
    for batch in &all[..2] {
        waited.step(&fed(batch)).unwrap();
    }
    left.step(&fed(&all[0])).unwrap();
    let (x, target) = &all[1];
    for port in access::inputs(&left) {
        let bytes: Vec<u8> = match port.name.as_str() {
            "x" => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
            "target" => target.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => 0.05f32.to_le_bytes().to_vec(),
        };
        let slot = port.slot.unwrap();
        assert_eq!(slot.len, bytes.len(), "{}", port.name);
        // SAFETY: no step runs, and the trainer lives.
        unsafe { std::slice::from_raw_parts_mut(slot.ptr, slot.len) }.copy_from_slice(&bytes);
    }
    access::begin(&mut left).unwrap();
    let names: Vec<String> = left.states().map(|(name, _)| name.to_owned()).collect();
    for name in &names {
        assert!(left.state(name).unwrap() == waited.state(name).unwrap(), "{name}");
    }
    assert_eq!(left.steps(), 2);
}

#[test]
fn a_trainer_goes_on_from_what_was_saved() {
    let artifact = std::sync::Arc::new(artifact("mlp", 1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states.safetensors");
    let mut first = Trainer::new(artifact.clone()).unwrap();
    losses(&mut first, "mlp");
    first.save(&path).unwrap();
    let expected = losses(&mut first, "mlp");

    let mut second = Trainer::new(artifact.clone()).unwrap();
    second.restore(&path).unwrap();
    assert_eq!(second.steps(), STEPS as u64);
    let file = Some(TensorFile::open(&path).unwrap());
    let initial = Initial { file, ..Initial::default() };
    let options = TrainerOptions { initial, threads: 1, ..TrainerOptions::default() };
    let mut third = Trainer::with_options(artifact.clone(), options).unwrap();
    let mut fourth = Trainer::new(artifact).unwrap();
    let names: Vec<String> = fourth.states().map(|(name, _)| name.to_owned()).collect();
    second.restore(&path).unwrap();
    for name in &names {
        fourth.set_state(name, &second.state(name).unwrap()).unwrap();
    }
    for trainer in [&mut second, &mut third, &mut fourth] {
        assert_eq!(losses(trainer, "mlp"), expected);
    }
}

#[test]
fn evaluation_sees_the_weights_as_they_are() {
    let mut trainer = Trainer::new(artifact("mlp", 1)).unwrap();
    let all = batches("mlp");
    let batch = &fed(&all[0])[..2];
    let before = trainer.evaluate(batch).unwrap();
    (0..30).for_each(|_| drop(trainer.step(&fed(&all[0])).unwrap()));
    let after = trainer.evaluate(batch).unwrap();
    assert!(
        after["loss"] < before["loss"] / 2.0 && after["accuracy"] == 1.0,
        "{before:?} {after:?}"
    );
    assert_eq!(trainer.steps(), 30);
}

#[test]
fn what_is_wrong_with_a_batch_is_named() {
    let mut trainer = Trainer::new(artifact("mlp", 1)).unwrap();
    let all = batches("mlp");
    let good = fed(&all[0]);
    let expected = Trainer::new(artifact("mlp", 1)).unwrap().step(&good).unwrap();
    let short: &[f32] = &all[0].0[1..];
    let classes = [0i64, 1, 2, 10];
    let refused = |trainer: &mut Trainer, batch: &[(&str, Input)]| trainer.step(batch).unwrap_err();
    let error = refused(&mut trainer, &good[..2]);
    assert!(
        matches!(&error, TrainError::Input(InputError::Missing(names)) if names[0].contains("lr"))
    );
    let error = refused(&mut trainer, &[good[0], good[1], good[2], ("more", 1.0.into())]);
    assert!(
        matches!(&error, TrainError::Input(InputError::Unknown { name, .. }) if name == "more")
    );
    for bad in [short.into(), classes[..].into(), Input::Number(1.0)] {
        let error = refused(&mut trainer, &[("x", bad), good[1], good[2]]);
        assert!(matches!(&error, TrainError::Input(InputError::Type { name, .. }) if name == "x"));
    }
    assert_eq!(trainer.step(&good).unwrap(), expected);
    let error = refused(&mut trainer, &[good[0], ("target", classes[..].into()), good[2]]);
    assert!(matches!(error, TrainError::Class { class: 10, row: 3, .. }), "{error}");
    let tensor =
        Tensor::from_bytes(arenic::TensorType::new(arenic::DType::F32, vec![1]), vec![0; 4]);
    let name = trainer.states().next().unwrap().0.to_owned();
    assert!(matches!(trainer.set_state(&name, &tensor.unwrap()), Err(TrainError::Initial(_))));
}
