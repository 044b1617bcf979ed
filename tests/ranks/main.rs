//! Several ranks train as one process does with all of their rows: the same losses and weights but for the order of
//! sums, the same bits at every level of sharding and in every run, and fewer bytes from level to level.
//! Ranks are threads here; `tests/mpi.rs` has processes.

mod dropout;

use arenic::artifact::{Artifact, Target};
use arenic::data::TensorFile;
use arenic::train::{Initial, Length, RankCountError, TrainError, TrainOptions, train};
use arenic::{Compiler, Model};
use arenic_backends::CPU;
use arenic_ir::graph::{State, ValueId};
use arenic_ir::op::Op;
use arenic_passes::devices;
use arenic_passes::differentiate::{Differentiate, Optimizer};
use arenic_passes::shard::{Level, bucket_bytes};
use arenic_runtime::ranks::threads::ranks;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A network, what makes a step of it, and the data of a run.
#[derive(Clone, Copy)]
struct Case {
    network: &'static str,
    optimizer: Optimizer,
    clip_norm: Option<f64>,
}

const CASES: [Case; 4] = [
    Case { network: "mlp", optimizer: Optimizer::Momentum, clip_norm: None },
    Case { network: "mlp", optimizer: Optimizer::Adamw, clip_norm: Some(0.5) },
    // By Adam the bias of keys, whose gradient is zero but for rounding, would follow that rounding.
    Case { network: "gpt_tiny", optimizer: Optimizer::Momentum, clip_norm: None },
    Case { network: "small_cnn", optimizer: Optimizer::Sgd, clip_norm: None },
];

impl Case {
    fn pass(self) -> Differentiate {
        let Case { optimizer, clip_norm, .. } = self;
        let loss = "cross_entropy".into();
        Differentiate { loss, optimizer, clip_norm, ..Differentiate::default() }
    }

    fn compiled(self, count: usize, level: Level, batch: u64) -> Artifact {
        let model = Model::open(root(&format!("models/forward/{}.onnx", self.network))).unwrap();
        let compiler = Compiler::new().differentiate(self.pass()).evaluation(false).effort(0.0);
        let made = compiler.ranks(count, level).compile(&model.dim("batch", batch));
        made.unwrap_or_else(|e| panic!("{} for {count} ranks: {e}", self.network))
    }

    fn options(self) -> TrainOptions {
        TrainOptions {
            data: vec![root(&format!("tests/runs/{}_b4_sgdm.data.npz", self.network))],
            set: vec![("lr".into(), "0.01".into())],
            length: Length::Steps(3),
            threads: 1,
            ..TrainOptions::default()
        }
    }
}

/// What a run came to: losses by step, and the tensors that were saved.
#[derive(Clone, Debug, PartialEq)]
struct Trained {
    losses: Vec<f64>,
    saved: BTreeMap<String, Vec<f32>>,
}

fn trained(
    artifact: &Artifact,
    count: usize,
    options: impl Fn() -> TrainOptions + Sync,
) -> Trained {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states.safetensors");
    let target: &Target = &artifact.targets[0];
    let run = |rank| {
        let mut losses = Vec::new();
        let options = TrainOptions { save: Some(path.clone()), ranks: rank, ..options() };
        let first = options.ranks.as_ref().is_none_or(|rank| rank.rank() == 0);
        train(target, &options, |_| (), |step| losses.push(step.scalars[0].1)).unwrap();
        first.then_some(losses)
    };
    let losses = match count {
        1 => run(None),
        _ => std::thread::scope(|scope| {
            let start = |rank| scope.spawn(|| run(Some(Arc::new(rank))));
            let threads: Vec<_> = ranks(count).into_iter().map(start).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).next()
        }),
    };
    let floats = |bytes: &[u8]| {
        let float = |b: &[u8; 4]| f32::from_le_bytes(*b);
        bytes.as_chunks::<4>().0.iter().map(float).collect()
    };
    let file = TensorFile::open(&path).unwrap();
    let saved = file.tensors().iter().map(|t| (t.name().to_owned(), floats(t.bytes()))).collect();
    Trained { losses: losses.unwrap(), saved }
}

fn assert_close(a: &Trained, b: &Trained, what: &str) {
    for (x, y) in a.losses.iter().zip(&b.losses) {
        assert!((x - y).abs() <= 1e-5 * y.abs().max(1e-6), "{what}: losses {x} and {y}");
    }
    assert_eq!(a.saved.keys().collect::<Vec<_>>(), b.saved.keys().collect::<Vec<_>>(), "{what}");
    for (name, x) in &a.saved {
        for (x, y) in x.iter().zip(&b.saved[name]) {
            assert!((x - y).abs() <= 1e-4 || x.to_bits() == y.to_bits(), "{what}: {name}: {x} {y}");
        }
    }
}

#[test]
fn ranks_train_as_one_process_with_the_same_bits_at_every_level() {
    for case in CASES {
        // The data has 20 rows: five batches of four.
        let batch = 4;
        let one = trained(&case.compiled(1, Level::None, batch), 1, || case.options());
        for count in [2, 4] {
            let (mut bits, mut before) = (None, u64::MAX);
            for level in Level::ALL {
                let what = format!("{} by {count} ranks, {}", case.network, level.name());
                let artifact = case.compiled(count, level, batch / count as u64);
                let arena = artifact.arena_bytes();
                assert!(arena <= before, "{what}: {arena} bytes, {before} at the level before");
                before = arena;
                let made = trained(&artifact, count, || case.options());
                assert_close(&made, &one, &what);
                let bits = bits.get_or_insert_with(|| made.clone());
                assert_eq!(*bits, made, "{what}");
            }
        }
    }
}

/// Batch normalisation goes by each rank's own rows, or with them all as one process does.
#[test]
fn batch_normalisation_by_all_rows_is_that_of_one_process() {
    let case = Case { network: "tiny_resnet", optimizer: Optimizer::Momentum, clip_norm: None };
    let one = trained(&case.compiled(1, Level::None, 4), 1, || case.options());
    let model = || Model::open(root("models/forward/tiny_resnet.onnx")).unwrap().dim("batch", 2);
    let compiler = || Compiler::new().differentiate(case.pass()).evaluation(false).effort(0.0);
    let mut bits = None;
    for level in [Level::None, Level::Parameters] {
        let synced = compiler().ranks(2, level).sync_batch_norm().compile(&model()).unwrap();
        let synced = trained(&synced, 2, || case.options());
        assert_close(&synced, &one, level.name());
        assert_eq!(*bits.get_or_insert_with(|| synced.clone()), synced);
    }
    let own = compiler().ranks(2, Level::None).compile(&model()).unwrap();
    let own = trained(&own, 2, || case.options());
    assert!(own.losses.iter().all(|loss| loss.is_finite()));
    assert!(own.losses != one.losses, "two halves of a batch have other statistics");
}

/// Where a limit has room for parameters, and links are slow, they are gathered once; without a limit the backward pass
/// gathers them again.
#[test]
fn parameters_are_gathered_once_where_a_limit_has_room_for_them() {
    let case = Case { network: "gpt_tiny", optimizer: Optimizer::Momentum, clip_norm: None };
    // Links by which exchanges take longer than all kernels.
    let mut device = devices::cpu().unwrap();
    (device.link.to_host, device.link.to_device) = (1e8, 1e8);
    let within = |bytes| {
        let model = Model::open(root("models/forward/gpt_tiny.onnx")).unwrap().dim("batch", 2);
        let compiler = Compiler::new().differentiate(case.pass()).evaluation(false).effort(0.0);
        let compiler = compiler.ranks(2, Level::Parameters).device(device.clone());
        compiler.memory(bytes).compile(&model).unwrap()
    };
    // Parts that are gathered for the forward pass, and again for the backward pass.
    let twice = |artifact: &Artifact| {
        let mut gathers: BTreeMap<ValueId, usize> = BTreeMap::new();
        for node in artifact.targets[0].graph.nodes.values() {
            if matches!(node.op, Op::AllGather { .. }) {
                node.inputs.iter().for_each(|&part| *gathers.entry(part).or_default() += 1);
            }
        }
        gathers.values().filter(|&&count| count > 1).count()
    };
    let dense = case.compiled(2, Level::Parameters, 2);
    let (tight, wide) = (within(dense.arena_bytes()), within(4 * dense.arena_bytes()));
    assert!(twice(&dense) > 10);
    assert_eq!(twice(&wide), 0);
    let bits = trained(&dense, 2, || case.options());
    for artifact in [tight, wide] {
        assert_eq!(trained(&artifact, 2, || case.options()), bits);
    }
}

#[test]
fn what_ranks_saved_goes_on_at_any_number_of_ranks() {
    let case = CASES[1];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.safetensors");
    let two = case.compiled(2, Level::Parameters, 2);
    let short = |save: Option<PathBuf>, init: Option<&Path>, steps| TrainOptions {
        save,
        initial: Initial {
            file: init.map(|path| TensorFile::open(path).unwrap()),
            ..Initial::default()
        },
        length: Length::Steps(steps),
        ..case.options()
    };
    let whole = trained(&two, 2, || short(None, None, 4));
    std::thread::scope(|scope| {
        for rank in ranks(2) {
            let options =
                TrainOptions { ranks: Some(Arc::new(rank)), ..short(Some(path.clone()), None, 2) };
            let target = &two.targets[0];
            scope.spawn(move || train(target, &options, |_| (), |_| ()).unwrap());
        }
    });
    // As many ranks go on bit by bit, others but for the order of sums.
    let rest = trained(&two, 2, || short(None, Some(&path), 2));
    assert_eq!((&rest.losses[..], &rest.saved), (&whole.losses[2..], &whole.saved));
    for (count, level) in [(1, Level::None), (4, Level::Optimizer)] {
        let artifact = case.compiled(count, level, 4 / count as u64);
        let rest = trained(&artifact, count, || short(None, Some(&path), 2));
        let end = Trained { losses: whole.losses[2..].to_vec(), ..whole.clone() };
        assert_close(&rest, &end, &format!("{count} ranks"));
    }
}

#[test]
fn another_number_of_ranks_is_refused_with_both_numbers() {
    let case = CASES[0];
    let two = case.compiled(2, Level::None, 2);
    let alone = train(&two.targets[0], &case.options(), |_| (), |_| ()).unwrap_err();
    assert!(matches!(alone, TrainError::RankCount(RankCountError { compiled: 2, running: 1 })));
    let text = alone.to_string();
    assert!(text.starts_with("the artifact is for 2 ranks, and 1 rank runs it"), "{text}");
    let one = case.compiled(1, Level::None, 4);
    let rank = ranks(3).remove(0);
    let options = TrainOptions { ranks: Some(Arc::new(rank)), ..case.options() };
    let three = train(&one.targets[0], &options, |_| (), |_| ()).unwrap_err().to_string();
    assert!(three.starts_with("the artifact is for 1 rank, and 3 ranks run it"), "{three}");
}

#[test]
fn a_rank_that_has_ended_ends_the_others_by_name() {
    let case = CASES[0];
    let two = case.compiled(2, Level::Gradients, 2);
    let [first, second] = ranks(2).try_into().unwrap();
    drop(second);
    let options = TrainOptions { ranks: Some(Arc::new(first)), ..case.options() };
    let error = train(&two.targets[0], &options, |_| (), |_| ()).unwrap_err().to_string();
    assert!(error.contains("rank 1 has ended"), "{error}");
}

/// By the formulae of ZeRO a rank has a part of what it shares; beside it there is no more than without shards, but for
/// parameters that are gathered together.
#[test]
fn bytes_of_a_rank_are_states_by_ranks_and_a_bucket() {
    let align = |bytes: u64| bytes.next_multiple_of(CPU.target().align);
    for case in CASES {
        for count in [2, 4] {
            let artifact = |level| case.compiled(count, level, 4 / count as u64);
            let whole = artifact(Level::None);
            let states = |target: &Target| -> u64 {
                let g = &target.graph;
                g.states.values().map(|state| align(g.ty(state.enter).bytes())).sum()
            };
            let rest = whole.arena_bytes() - states(&whole.targets[0]);
            for level in [Level::Optimizer, Level::Gradients, Level::Parameters] {
                let what = format!("{} by {count} ranks, {}", case.network, level.name());
                let made = artifact(level);
                let g = &made.targets[0].graph;
                // The network is so small that a level may not be worth its messages; then it is the one before.
                let level = Level::of(g);
                let of_whole = &whole.targets[0].graph;
                let trained = |name: &str| {
                    of_whole.states.values().any(|s| s.name == name && s.exit != s.enter)
                };
                for state in g.states.values().filter(|state| trained(&state.name)) {
                    let is_of = |of: &State| state.name.starts_with(&format!("{}.", of.name));
                    let is_moment = of_whole.states.values().any(is_of);
                    let shares = level == Level::Parameters || (level > Level::None && is_moment);
                    let elements = g.ty(state.enter).elements();
                    match &state.part_of {
                        Some(of) => assert_eq!(
                            elements,
                            of.elements().div_ceil(count),
                            "{what}: {}",
                            state.name
                        ),
                        None => {
                            assert!(!shares || elements < count, "{what}: {} is whole", state.name);
                        }
                    }
                }
                let bytes = made.arena_bytes();
                let bucket = bucket_bytes(None).unwrap();
                let largest =
                    of_whole.states.values().map(|s| of_whole.ty(s.enter).bytes()).max().unwrap();
                let gathered = match level {
                    Level::Parameters => align(bucket.max(largest)),
                    _ => 0,
                };
                let most = states(&made.targets[0]) + rest + gathered + align(bucket);
                assert!(bytes <= most, "{what}: {bytes} bytes, not {most}");
            }
        }
    }
}
