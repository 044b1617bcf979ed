//! Steps in rounds: small parts, written by hand, run beside the reference interpreter and the
//! whole batch, through an artifact and as training does.

mod commands;
mod linear;
mod models;
mod random;
mod refused;
#[path = "../shell/mod.rs"]
mod shell;
mod sums;

use arenic::artifact::{Artifact, Provenance, Target};
use arenic::data::{Npz, TensorFile};
use arenic::train::{Initial, Length, TrainOptions, train};
use arenic_ir::Graph;
use arenic_ir::graph::StateId;
use arenic_ir::program::Command;
use arenic_ir::text::Module;
use arenic_runtime::executor::ExecutorOptions;
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::Machine;
use arenic_runtime::reference::Reference;
use arenic_runtime::rounds::InRounds;
use linear::{data, linear};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const STEPS: u64 = 3;

/// By name the outputs of a step, then its states.
type Tensors = BTreeMap<String, Vec<u8>>;

/// What an input is fed in a step.
type Feed = fn(&str, u64) -> Vec<u8>;

/// Every step's outputs and states, by the machine.
fn in_rounds(target: &Target, options: ExecutorOptions) -> Vec<Tensors> {
    in_rounds_on(data, target, options)
}

/// The same on other data.
fn in_rounds_on(data: Feed, target: &Target, options: ExecutorOptions) -> Vec<Tensors> {
    let whole = target.whole_step().unwrap().unwrap();
    let g = whole.graph();
    let mut machine = InRounds::on_cpu(&whole, options).unwrap();
    for (v, data) in g.consts() {
        fill(&mut machine, v, data.bytes().unwrap());
    }
    for state in g.states.values() {
        fill(&mut machine, state.enter, state.init.as_ref().unwrap().bytes().unwrap());
    }
    let step = |step| {
        for v in g.inputs() {
            let bytes = data(&g.values[v].name, step);
            machine.input_mut(v).unwrap().copy_from_slice(&bytes);
        }
        machine.step(Draw { seed: 5, step, round: 0 }).unwrap();
        let outputs = g.outputs.iter().enumerate();
        let outputs = outputs.map(|(i, o)| (o.name.clone(), machine.output(i).to_vec()));
        let state = |s: StateId| (g.states[s].name.clone(), machine.state(s).unwrap().to_vec());
        outputs.chain(g.states.keys().map(state)).collect()
    };
    (0..STEPS).map(step).collect()
}

fn fill(machine: &mut impl Machine, v: arenic_ir::ValueId, bytes: &[u8]) {
    machine
        .fill_home(v, |home| {
            home.copy_from_slice(bytes);
            Ok::<(), arenic_runtime::machine::DeviceError>(())
        })
        .unwrap();
}

/// A reference interpreter with its constants.
fn reference(g: &Graph) -> Reference<'_> {
    let mut reference = Reference::new(g).unwrap();
    for (v, data) in g.consts() {
        reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
    }
    reference
}

/// The same by the reference interpreter, part after part.
fn part_after_part(target: &Target) -> Vec<Tensors> {
    part_after_part_on(data, target)
}

/// The same on other data.
fn part_after_part_on(data: Feed, target: &Target) -> Vec<Tensors> {
    let rounds = target.rounds.as_deref().unwrap();
    let turns: Vec<(&Graph, u32)> =
        target.turns().iter().map(|turn| (turn.graph, turn.times)).collect();
    let states = |g: &Graph| g.states.values().map(|s| s.enter).collect::<Vec<_>>();
    let init = target.graph.states.values().map(|state| match &state.init {
        Some(data) => data.bytes().unwrap().to_vec(),
        // What is carried from part to part means nothing before.
        None => vec![0xff; target.graph.ty(state.enter).bytes() as usize],
    });
    let mut carried: Vec<Vec<u8>> = init.collect();
    let mut parts: Vec<Reference> = turns.iter().map(|(g, _)| reference(g)).collect();
    let mut seen = Vec::new();
    for step in 0..STEPS {
        let mut tensors = Tensors::new();
        for (part, (g, times)) in parts.iter_mut().zip(&turns) {
            for round in 0..u64::from(*times) {
                for (v, bytes) in states(g).into_iter().zip(&carried) {
                    part.value_mut(v).unwrap().copy_from_slice(bytes);
                }
                for v in g.inputs() {
                    let (name, all) = (&g.values[v].name, data(&g.values[v].name, step));
                    let home = part.value_mut(v).unwrap();
                    let by_rows = *times > 1 && rounds.by_rows.contains(name);
                    let first = if by_rows { round as usize * home.len() } else { 0 };
                    home.copy_from_slice(&all[first..first + home.len()]);
                }
                part.step(Draw { seed: 5, step, round }).unwrap();
                carried = states(g).into_iter().map(|v| part.value(v).to_vec()).collect();
                for output in &g.outputs {
                    let all = tensors.entry(output.name.clone()).or_default();
                    all.extend_from_slice(part.value(output.value));
                }
            }
        }
        let g = &target.graph;
        let kept = g.states.values().zip(&carried).filter(|(state, _)| !state.carried);
        tensors.extend(kept.map(|(state, bytes)| (state.name.clone(), bytes.clone())));
        seen.push(tensors);
    }
    seen
}

/// The same of the whole batch at once.
fn at_once(g: &Graph, w: &[u8]) -> Vec<Tensors> {
    let mut reference = reference(g);
    let w_at = g.states[StateId::from_u32(0)].enter;
    reference.value_mut(w_at).unwrap().copy_from_slice(w);
    let mut seen = Vec::new();
    for step in 0..STEPS {
        for v in g.inputs() {
            reference.value_mut(v).unwrap().copy_from_slice(&data(&g.values[v].name, step));
        }
        reference.step(Draw { seed: 5, step, round: 0 }).unwrap();
        let outputs = g.outputs.iter();
        let mut tensors: Tensors =
            outputs.map(|o| (o.name.clone(), reference.value(o.value).to_vec())).collect();
        tensors.insert("w".into(), reference.value(w_at).to_vec());
        seen.push(tensors);
    }
    seen
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// All tensors are there, and as near as sums in another order are.
fn near(ours: &[Tensors], whole: &[Tensors]) {
    assert_eq!(ours.len(), whole.len());
    for (ours, whole) in ours.iter().zip(whole) {
        assert!(ours.keys().eq(whole.keys()), "{:?} {:?}", ours.keys(), whole.keys());
        for (name, bytes) in ours {
            let (a, b) = (floats(bytes), floats(&whole[name]));
            assert_eq!(a.len(), b.len(), "{name}");
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
            assert!(a.iter().zip(&b).all(is_near), "{name}: {a:?} {b:?}");
        }
    }
}

#[test]
fn steps_have_the_bits_of_the_reference_and_are_near_the_whole_batch() {
    let target = linear();
    let expected = part_after_part(&target);
    for threads in [1, 2] {
        for poison in [false, true] {
            let seen = in_rounds(&target, ExecutorOptions { threads, poison, stress: None });
            assert_eq!(seen, expected, "{threads} threads, poison {poison}");
        }
    }
    for seed in 0..20 {
        let options = ExecutorOptions { threads: 2, stress: Some(seed), ..<_>::default() };
        assert_eq!(in_rounds(&target, options), expected, "stress {seed}");
    }
    let w = target.graph.states[StateId::from_u32(0)].init.as_ref().unwrap().bytes().unwrap();
    let once =
        at_once(&Module::parse(include_str!("whole.ir"), &arenic_backends::ALL).unwrap().graph, w);
    near(&expected, &once);
    // Rows that were drawn otherwise would be far off.
    assert!(once.iter().all(|tensors| floats(&tensors["y"]).iter().all(|y| y.abs() > 1e-3)));
}

/// A kernel that refuses its operands ends the step; states that no part has written are as they
/// were.
#[test]
fn states_of_a_step_that_fails_are_known() {
    let mut target = linear();
    // The ratio of dropout, which is one for nobody.
    let ratio = target.graph.consts().next().unwrap().0;
    let run = |target: &Target, ratio: f32| {
        let whole = target.whole_step().unwrap().unwrap();
        let g = whole.graph();
        let mut machine = InRounds::on_cpu(&whole, ExecutorOptions::default()).unwrap();
        for (v, data) in g.consts() {
            let is_ratio = g.values[v].name == "ratio";
            let ratio = ratio.to_le_bytes();
            let bytes = if is_ratio { &ratio } else { &data.bytes().unwrap()[..] };
            fill(&mut machine, v, bytes);
        }
        let step = machine.step(Draw::default()).map_err(|e| e.to_string());
        (step, machine.written_states().len())
    };
    assert_eq!(target.graph.values[ratio].name, "ratio");
    assert_eq!(run(&target, 0.5), (Ok(()), 1));
    let refused = Err("dropout n0: dropout ratio 1.5 is not in [0, 1)".to_owned());
    assert_eq!(run(&target, 1.5), (refused.clone(), 0));
    // Where the part before the rounds changes a state, it has done so.
    let before = &mut target.rounds.as_deref_mut().unwrap().before;
    let (zeros, w) = (before.graph.consts().next().unwrap().0, StateId::from_u32(0));
    before.graph.states[w].exit = zeros;
    let home = before.program.homes[1].range;
    let from = before.program.homes[5].range;
    let stream = before.program.commands[1].stream();
    before.program.commands.push(Command::Copy { stream, from, to: home });
    assert_eq!(run(&target, 1.5), (refused, 1));
}

#[test]
fn a_whole_step_is_what_all_parts_take_and_give() {
    let target = linear();
    let whole = target.whole_step().unwrap().unwrap();
    let g = whole.graph();
    let typed = |v| format!("{} {}", g.values[v].name, g.ty(v));
    let inputs: Vec<String> = g.inputs().map(typed).collect();
    assert_eq!(inputs, ["x f32[8,4]", "target f32[8,1]", "lr f32[]"]);
    let outputs: Vec<String> =
        g.outputs.iter().map(|o| format!("{} {}", o.name, g.ty(o.value))).collect();
    assert_eq!(outputs, ["loss f32[]", "targets f32[]", "y f32[8,1]", "rate f32[]"]);
    let states: Vec<&str> = g.states.values().map(|s| s.name.as_str()).collect();
    assert_eq!(states, ["w"]);
    assert_eq!((whole.count(), g.consts().count()), (4, 5));
    let machine = InRounds::on_cpu(&whole, ExecutorOptions::default()).unwrap();
    // The largest of any part.
    assert_eq!(machine.footprint().arena_bytes.device, 5376);
    assert_eq!(target.arena_bytes().device, 5376);
    let arenas = target.check().unwrap().into_iter().map(|f| f.arena_bytes.device);
    assert_eq!(arenas.collect::<Vec<_>>(), [4352, 5376, 5120]);
}

/// Writes the artifact and the data of all steps.
fn files(folder: &Path) -> (PathBuf, PathBuf) {
    let (artifact, npz) = (folder.join("step.arenic"), folder.join("data.npz"));
    let defaults = [("lr".to_owned(), f64::from(linear::LR))].into();
    Artifact {
        targets: vec![linear()],
        evaluations: Vec::new(),
        defaults,
        provenance: Provenance::default(),
        runnable: true,
        recipe: None,
        drops: None,
        origin: None,
    }
    .write(&artifact)
    .unwrap();
    linear::write_data(&npz, STEPS);
    (artifact, npz)
}

fn options(data: PathBuf) -> TrainOptions {
    TrainOptions {
        data: vec![data],
        set: vec![("lr".into(), linear::LR.to_string())],
        seed: Some(5),
        threads: 1,
        deterministic: true,
        ..TrainOptions::default()
    }
}

#[test]
fn an_artifact_holds_the_parts_and_trains() {
    let folder = tempfile::tempdir().unwrap();
    let (path, npz) = files(folder.path());
    let artifact = Artifact::read(&path).unwrap();
    let (target, made) = (&artifact.targets[0], linear());
    for (read, made) in target.turns().iter().zip(made.turns()) {
        assert_eq!((read.times, read.program), (made.times, made.program));
        // Initial states are those of a round's graph.
        let mut graph = made.graph.clone();
        if made.times == 1 {
            graph.states.values_mut().for_each(|state| state.init = None);
        }
        assert_eq!(*read.graph, graph);
    }
    let rounds = target.rounds.as_deref().unwrap();
    assert_eq!(rounds.by_rows, made.rounds.as_deref().unwrap().by_rows);

    let expected = part_after_part(&made);
    for poison in [false, true] {
        let at = |name: &str| folder.path().join(name);
        let mut losses = Vec::new();
        let how = TrainOptions {
            save: Some(at("w.safetensors")),
            outputs: Some(at("o.npz")),
            trace: Some(at("t.json")),
            poison,
            ..options(npz.clone())
        };
        let summary = train(
            target,
            &how,
            |_| {},
            |report| {
                let names: Vec<&str> = report.scalars.iter().map(|(name, _)| *name).collect();
                assert_eq!(names, ["loss", "targets", "rate"]);
                losses.push(report.scalars[0].1);
            },
        )
        .unwrap();
        assert_eq!((summary.steps, summary.arena_bytes), (STEPS, 5376));
        let loss = |tensors: &Tensors| f64::from(floats(&tensors["loss"])[0]);
        assert_eq!(losses, expected.iter().map(loss).collect::<Vec<_>>());
        // What is carried within a step is not saved.
        let saved = TensorFile::open(at("w.safetensors")).unwrap();
        let names: Vec<&str> = saved.tensors().iter().map(|t| t.name()).collect();
        assert_eq!(names, ["w"]);
        assert_eq!(saved.tensor("w").unwrap().bytes(), expected[2]["w"]);
        let outputs = Npz::open(at("o.npz")).unwrap();
        let y: Vec<u8> = expected.iter().flat_map(|tensors| tensors["y"].clone()).collect();
        let array = outputs.array("y").unwrap();
        assert_eq!((array.ty().shape.as_slice(), array.bytes()), (&[3, 8, 1][..], &y[..]));
        let trace = std::fs::read_to_string(at("t.json")).unwrap();
        assert!(trace.contains("last round") && trace.contains("mat_mul"), "{trace}");
    }

    // Two steps and one more are three.
    let at = folder.path().join("two.safetensors");
    let two =
        TrainOptions { length: Length::Steps(2), save: Some(at.clone()), ..options(npz.clone()) };
    train(target, &two, |_| {}, |_| {}).unwrap();
    let mut last = Vec::new();
    let initial = Initial { file: Some(TensorFile::open(&at).unwrap()), ..Initial::default() };
    let one = TrainOptions { length: Length::Steps(1), initial, ..options(npz) };
    train(target, &one, |_| {}, |report| last.push(report.scalars[0].1)).unwrap();
    assert_eq!(last, [f64::from(floats(&expected[2]["loss"])[0])]);
}
