//! Whole training steps: five steps of every reference graph equal eager PyTorch, and
//! nothing but the model decides the bits: not the plan, not dead memory, not the number
//! of threads, not where a run was interrupted.

use arenic::Model;
use arenic::artifact::{Artifact, Target};
use arenic::compile::{CompileError, Constraints, compile};
use arenic::data::{Batches, Npz, TensorFile};
use arenic::onnx::ImportOptions;
use arenic::train::{Initial, Length, TrainOptions, train};
use arenic_backends::CPU;
use arenic_baselines::WithBaselines;
use arenic_ir::graph::StateId;
use arenic_ir::op::Unary;
use arenic_ir::program::{Command, PerSpace};
use arenic_ir::{Def, Graph, Op};
use arenic_passes::pipeline::{Pipeline, RunError, RunOptions};
use arenic_passes::{PassError, PassSet, Search};
use arenic_runtime::executor::{Executor, ExecutorOptions};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// One reference run: a graph, its data, its expected losses and final state.
struct Run {
    name: String,
    base: PathBuf,
    set: Vec<(String, String)>,
    losses: Vec<f64>,
    target: Target,
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn named(pipeline: &str) -> &'static str {
    WithBaselines.pipelines().into_iter().find(|(n, _)| *n == pipeline).unwrap().1
}

fn compiled(model: &Path, yaml: &str) -> Target {
    within(model, yaml, None).unwrap_or_else(|e| panic!("{}: {e}", model.display()))
}

/// The target, compiled under a limit on device memory.
fn within(model: &Path, yaml: &str, device: Option<u64>) -> Result<Target, CompileError> {
    let pipeline = Pipeline::from_yaml(yaml, &WithBaselines).unwrap();
    let options = ImportOptions::default();
    // Any plan will do.
    let search = Search { effort: Some(0.02), ..Search::default() };
    // Host memory is ordinary memory here: tensors go there where it is given.
    let limits = PerSpace { device, host: Some(1 << 40) };
    let constraints = Constraints { limits, ..Constraints::default() };
    let compiled = compile(
        &Model::open(model)?,
        &options,
        &pipeline,
        constraints,
        search,
        RunOptions::default(),
    )?;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.arenic");
    compiled.artifact.unwrap().write(&path).unwrap();
    Ok(Artifact::read(&path).unwrap().target(CPU.name).unwrap().clone())
}

fn runs() -> Vec<Run> {
    let mut runs: Vec<Run> = std::fs::read_dir(root("tests/runs"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .map(|json| {
            let text = std::fs::read_to_string(&json).unwrap();
            let run: serde_json::Value = serde_json::from_str(&text).unwrap();
            let set = run["set"].as_object().unwrap();
            let model = root("models/step").join(run["onnx"].as_str().unwrap());
            Run {
                name: json.file_stem().unwrap().to_str().unwrap().to_owned(),
                base: json.with_extension(""),
                set: set.iter().map(|(n, v)| (n.clone(), v.to_string())).collect(),
                losses: run["loss"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|l| l.as_f64().unwrap())
                    .collect(),
                target: compiled(&model, named("default")),
            }
        })
        .collect();
    runs.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(runs.len(), 8);
    runs
}

impl Run {
    fn file(&self, suffix: &str) -> PathBuf {
        PathBuf::from(format!("{}{suffix}", self.base.display()))
    }

    fn options(&self) -> TrainOptions {
        TrainOptions {
            data: vec![self.file(".data.npz")],
            initial: self.initial(&self.file(".init.npz")),
            set: self.set.clone(),
            length: Length::Steps(5),
            threads: 1,
            deterministic: true,
            ..TrainOptions::default()
        }
    }

    fn initial(&self, path: &Path) -> Initial {
        Initial { file: Some(TensorFile::open(path).unwrap()), ..Initial::default() }
    }

    /// Losses, and the saved state as bytes.
    fn train(&self, options: TrainOptions) -> (Vec<f64>, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        let options = TrainOptions { save: Some(path.clone()), ..options };
        let mut losses = Vec::new();
        train(&self.target, &options, |_| {}, |r| losses.push(r.scalars[0].1))
            .unwrap_or_else(|e| panic!("{}: {e}", self.name));
        (losses, std::fs::read(path).unwrap())
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

#[test]
fn five_steps_equal_pytorch() {
    for run in runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        let options = TrainOptions { save: Some(path.clone()), ..run.options() };
        let mut losses = Vec::new();
        train(&run.target, &options, |_| {}, |r| losses.push(r.scalars[0].1)).unwrap();
        for (step, (ours, theirs)) in losses.iter().zip(&run.losses).enumerate() {
            let off = (ours - theirs).abs();
            assert!(off <= 1e-5, "{} step {step}: {ours} is off by {off:e}", run.name);
        }
        assert_eq!(losses.len(), 5);
        // Adam amplifies gradients near zero, so states are compared under momentum.
        if !run.name.ends_with("sgdm") {
            continue;
        }
        let saved = TensorFile::open(&path).unwrap();
        let expected = TensorFile::open(run.file(".final.npz")).unwrap();
        let states: Vec<&str> = run.target.graph.states.values().map(|s| s.name.as_str()).collect();
        let mut compared = 0;
        for array in expected.tensors().iter().filter(|a| states.contains(&a.name())) {
            let ours = saved.tensor(array.name()).unwrap();
            assert_eq!(ours.ty(), array.ty(), "{}", array.name());
            compared += 1;
            if ours.ty().dtype.is_float() {
                for (a, b) in floats(ours.bytes()).iter().zip(floats(array.bytes())) {
                    assert!((a - b).abs() <= 1e-5, "{} {}: {a} {b}", run.name, array.name());
                }
            } else {
                assert_eq!(ours.bytes(), array.bytes(), "{}", array.name());
            }
        }
        assert!(compared >= 6, "{}: {compared} states compared", run.name);
    }
}

#[test]
fn poison_and_threads_change_nothing() {
    for run in runs() {
        let plain = run.train(run.options());
        assert!(plain == run.train(TrainOptions { poison: true, ..run.options() }), "{}", run.name);
        for threads in [2, 7] {
            let other = run.train(TrainOptions { threads, ..run.options() });
            assert!(plain == other, "{} on {threads} threads", run.name);
        }
    }
}

#[test]
fn n_plus_m_steps_equal_n_save_load_m() {
    for run in runs() {
        for shuffle in [None, Some(3)] {
            let options = || TrainOptions { shuffle, ..run.options() };
            let (losses, state) = run.train(options());
            let (mut first, middle) =
                run.train(TrainOptions { length: Length::Steps(3), ..options() });
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("middle.safetensors");
            std::fs::write(&path, middle).unwrap();
            let (second, end) = run.train(TrainOptions {
                length: Length::Steps(2),
                initial: run.initial(&path),
                ..options()
            });
            first.extend(second);
            assert!(first == losses && end == state, "{}", run.name);
        }
    }
}

/// A state's bytes in a file, which holds the rows of all states of its name.
fn rows_of<'a>(g: &Graph, s: StateId, init: &'a TensorFile) -> &'a [u8] {
    let state = &g.states[s];
    let all = init.tensor(&state.name).unwrap().bytes();
    let Some(rows) = state.rows else { return all };
    let first = rows.first * (all.len() / rows.of);
    &all[first..first + g.ty(state.enter).bytes() as usize]
}

/// The bytes of all states of one name together.
fn by_name<'a>(g: &Graph, bytes: impl Fn(StateId) -> &'a [u8]) -> Vec<Vec<u8>> {
    let mut all: Vec<(&str, Vec<u8>)> = Vec::new();
    for (s, state) in &g.states {
        match all.last_mut().filter(|last| last.0 == state.name) {
            Some(last) => last.1.extend(bytes(s)),
            None => all.push((&state.name, bytes(s).to_vec())),
        }
    }
    all.into_iter().map(|(_, bytes)| bytes).collect()
}

/// Every state's bytes after each of three steps, by the executor.
fn planned(
    target: &Target,
    batches: &mut Batches,
    init: &TensorFile,
    options: ExecutorOptions,
) -> Vec<Vec<u8>> {
    let g = &target.graph;
    let mut executor = Executor::new(g, &target.program, options).unwrap();
    for (v, data) in g.consts() {
        if let Some(home) = executor.carried_mut(v) {
            home.copy_from_slice(data.bytes().unwrap());
        }
    }
    for s in g.states.keys() {
        executor.carried_mut(g.states[s].enter).unwrap().copy_from_slice(rows_of(g, s, init));
    }
    let mut seen = Vec::new();
    for step in 0..3 {
        for (i, v) in g.inputs().collect::<Vec<_>>().into_iter().enumerate() {
            if let Some(bytes) = executor.input_mut(v) {
                batches.fill(step, i, bytes).unwrap();
            }
        }
        executor.step(Draw { seed: 5, step, round: 0 }).unwrap();
        seen.extend(by_name(g, |s| executor.state(s)));
        seen.extend((0..g.outputs.len()).map(|i| executor.output(i).to_vec()));
    }
    seen
}

/// The same by the reference interpreter.
fn reference(g: &Graph, batches: &mut Batches, init: &TensorFile) -> Vec<Vec<u8>> {
    let mut reference = Reference::new(g).unwrap();
    for (v, data) in g.consts() {
        reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
    }
    for (s, state) in &g.states {
        reference.value_mut(state.enter).unwrap().copy_from_slice(rows_of(g, s, init));
    }
    let mut seen = Vec::new();
    for step in 0..3 {
        for (i, v) in g.inputs().collect::<Vec<_>>().into_iter().enumerate() {
            batches.fill(step, i, reference.value_mut(v).unwrap()).unwrap();
        }
        reference.step(Draw { seed: 5, step, round: 0 }).unwrap();
        seen.extend(by_name(g, |s| reference.value(g.states[s].enter)));
        let kept = g.outputs.iter().filter(|o| !matches!(g.values[o.value].def, Def::State(_)));
        seen.extend(kept.map(|o| reference.value(o.value).to_vec()));
    }
    seen
}

impl Run {
    /// States and outputs of three steps by the executor, after checking that the
    /// reference interpreter gives the same.
    fn bits(&self, yaml: &str) -> (Target, Vec<Vec<u8>>) {
        let target = compiled(&self.model(), yaml);
        let ours = self.bits_of(&target, yaml);
        (target, ours)
    }

    fn model(&self) -> PathBuf {
        root("models/step").join(format!("ref_{}.onnx", self.name))
    }

    fn bits_of(&self, target: &Target, yaml: &str) -> Vec<Vec<u8>> {
        let ours = self.planned(target, ExecutorOptions::default());
        let (mut batches, init) = self.fed(&target.graph);
        assert!(ours == reference(&target.graph, &mut batches, &init), "{} {yaml}", self.name);
        ours
    }

    fn planned(&self, target: &Target, options: ExecutorOptions) -> Vec<Vec<u8>> {
        let (mut batches, init) = self.fed(&target.graph);
        planned(target, &mut batches, &init, options)
    }

    /// Batches and initial states.
    fn fed(&self, g: &Graph) -> (Batches, TensorFile) {
        let npz = Npz::open(self.file(".data.npz")).unwrap();
        let inputs: Vec<_> =
            g.inputs().map(|v| (g.values[v].name.clone(), g.ty(v).clone())).collect();
        let batches = Batches::new(&inputs, Some(&npz), &self.set, None).unwrap().0;
        (batches, TensorFile::open(self.file(".init.npz")).unwrap())
    }

    /// Delays of copies and kernels, one way for every seed, change no bits.
    fn stress(&self, target: &Target, bits: &[Vec<u8>], seeds: u64) {
        for seed in 0..seeds {
            let threads = 1 + seed as usize % 2;
            let options = ExecutorOptions { threads, stress: Some(seed), poison: false };
            assert!(self.planned(target, options) == bits, "{} delayed by {seed}", self.name);
        }
    }
}

#[test]
fn planned_equals_reference_bitwise() {
    // Pipelines that make the step are for forward models (tests/forward.rs).
    let whole = |yaml: &&str| {
        Pipeline::from_yaml(yaml, &WithBaselines).unwrap().differentiation().is_none()
    };
    for run in runs() {
        for pipeline in WithBaselines.pipelines().into_iter().map(|(_, yaml)| yaml).filter(whole) {
            run.bits(pipeline);
        }
    }
}

/// Swapping and recomputation keep the limit and every bit, down to the least limit that can
/// be kept, however copies and kernels are delayed; below it every limit is refused.
/// Every other run, under fewer limits and delayed by fewer seeds than in `make test-all`. It takes long since tight
/// limits are planned in full, for each run some five times: what a smaller search leaves is no least limit.
#[test]
fn byte_limits_change_no_bits() {
    let is_wide = std::env::var_os("ARENIC_WIDE").is_some();
    let (percents, seeds, every) = match is_wide {
        true => (&[85, 70, 55, 40, 10][..], 6, 1),
        false => (&[70, 10][..], 2, 2),
    };
    let (mut swapped, mut repeated, mut refused) = (0, 0, 0);
    for run in runs().into_iter().step_by(every) {
        let unlimited = run.target.figures.arena_bytes;
        let bits = run.bits_of(&run.target, "unlimited");
        let keeps = |limit: u64, yaml: &str| match within(&run.model(), yaml, Some(limit)) {
            Ok(target) => {
                assert!(target.figures.arena_bytes <= limit, "{} {limit}", run.name);
                assert!(run.bits_of(&target, yaml) == bits, "{} within {limit}", run.name);
                run.stress(&target, &bits, seeds);
                Ok(target)
            }
            Err(CompileError::Run(RunError::Pass {
                error: PassError::DeviceMemory { minimum, bound, .. },
                ..
            })) => {
                assert!(limit < minimum && bound <= minimum);
                assert!(yaml != named("default") || minimum * 4 <= bound * 5, "{}", run.name);
                Err(minimum)
            }
            Err(e) => panic!("{} within {limit}: {e}", run.name),
        };
        for percent in percents {
            match keeps(unlimited * percent / 100, named("default")) {
                Ok(target) => {
                    swapped += usize::from(target.figures.swapped_bytes > 0);
                    repeated += usize::from(target.figures.recomputed_nodes > 0);
                }
                Err(minimum) => {
                    assert!(keeps(minimum, named("default")).is_ok(), "{}", run.name);
                    let below = keeps(minimum - 64, named("default")).err();
                    assert_eq!(below, Some(minimum), "{}", run.name);
                    refused += 1;
                }
            }
        }
        let alone = named("default").replace("- budget", "- budget: {swap: false}");
        for percent in if is_wide { percents } else { &percents[..1] } {
            let kept = keeps(unlimited * percent / 100, &alone)
                .unwrap_or_else(|minimum| keeps(minimum, &alone).expect("the least limit"));
            let figures = &kept.figures;
            assert_eq!((figures.swapped_bytes, figures.host_arena_bytes), (0, 0));
            repeated += usize::from(figures.recomputed_nodes > 0);
        }
    }
    let least = if is_wide { [8, 0, 4] } else { [2, 0, 1] };
    let counts = [swapped, repeated, refused];
    assert!(counts.iter().zip(least).all(|(n, least)| *n > least), "{counts:?}");
}

/// Operators in parts keep every bit, and states in parts are saved and loaded as one tensor. It takes long since every
/// run is planned under a tight limit; `make test-all` has another one.
#[test]
fn sections_change_no_bits() {
    let yaml = named("default").replace("- section", "- section: {parts: 4}");
    let percents: &[u64] =
        if std::env::var_os("ARENIC_WIDE").is_some() { &[70, 55] } else { &[55] };
    let (mut cut, mut states) = (0, 0);
    for run in runs() {
        let unlimited = run.target.figures.arena_bytes;
        let bits = run.bits_of(&run.target, "unlimited");
        for percent in percents.iter().copied() {
            // A limit that proves too low gives way to the least one.
            let keeps = |limit| within(&run.model(), &yaml, Some(limit));
            let target = match keeps(unlimited * percent / 100) {
                Err(CompileError::Run(RunError::Pass {
                    error: PassError::DeviceMemory { minimum, bound, .. },
                    ..
                })) => {
                    assert_eq!(minimum, bound, "{} within {percent} %", run.name);
                    keeps(minimum)
                }
                found => found,
            };
            let target = target.unwrap_or_else(|e| panic!("{} within {percent} %: {e}", run.name));
            assert!(run.bits_of(&target, &yaml) == bits, "{} within {percent} %", run.name);
            cut += usize::from(target.graph.nodes.len() > run.target.graph.nodes.len());
            states += target.graph.states.values().filter(|s| s.rows.is_some()).count();
        }
    }
    assert!(cut > 4 && states > 4, "{cut} {states}");
}

/// Products in parts, and sums of parts, round otherwise; the losses stay those of PyTorch.
#[test]
fn reassociated_sections_equal_pytorch() {
    let yaml =
        named("default").replace("- section", "- section: {parts: 4, allow_reassociation: true}");
    let mut cut = 0;
    for run in runs() {
        let limit = run.target.figures.arena_bytes * 55 / 100;
        let target = within(&run.model(), &yaml, Some(limit))
            .unwrap_or_else(|e| panic!("{} within {limit}: {e}", run.name));
        cut += usize::from(target.graph.nodes.len() > run.target.graph.nodes.len());
        let run = Run { target, ..run };
        let (losses, _) = run.train(run.options());
        for (ours, theirs) in losses.iter().zip(&run.losses) {
            assert!((ours - theirs).abs() <= 1e-5, "{}: {ours} {theirs}", run.name);
        }
    }
    assert!(cut > 3, "{cut}");
}

/// Kernels of several streams run at once, on bytes that they share in turn.
#[test]
fn streams_change_no_bits() {
    for run in runs() {
        let bits = run.bits_of(&run.target, "one stream");
        for (count, share) in [(2, "share_in_place"), (3, "share_parallel")] {
            let yaml = named("default")
                .replace("- order", &format!("- streams: {{count: {count}}}\n- order"))
                .replace("share_in_place", share);
            let (target, several) = run.bits(&yaml);
            assert!(several == bits, "{} on {count} streams", run.name);
            let streams: HashSet<_> = target.program.commands.iter().map(Command::stream).collect();
            assert_eq!(streams.len(), count, "{}", run.name);
            run.stress(&target, &bits, 4);
        }
    }
}

/// Losses and states keep every bit whether losses and updates are fused or not.
#[test]
fn fusing_changes_no_bits() {
    let fusing = "- fuse_cross_entropy\n- fuse_updates\n";
    let with = |passes: &str| {
        let yaml = named("as_exported");
        assert!(yaml.contains(fusing));
        yaml.replace(fusing, passes)
    };
    let all = "- fuse_cross_entropy\n- fuse_updates: {gradients: always}\n";
    let count = |target: &Target, name: &str| {
        target.graph.nodes.values().filter(|n| n.op.name() == name).count()
    };
    let mut norms = [0; 2];
    for run in runs() {
        let (_, apart) = run.bits(&with("- raise\n- fuse_elementwise\n"));
        let (joined, as_one) = run.bits(&with("- raise\n- fuse_elementwise\n- fuse_norms\n"));
        assert!(apart == as_one, "{}: normalisations with what follows", run.name);
        norms[0] += count(&joined, "fused_norm");
        norms[1] += count(&joined, "fused_norm_grad");
        let (unfused, plain) = run.bits(&with(""));
        let (_, losses) = run.bits(&with("- fuse_cross_entropy\n"));
        let (_, updates) = run.bits(&with("- fuse_updates: {gradients: never}\n"));
        let (fused, everything) = run.bits(&with(all));
        let (chains, elementwise) = run.bits(&with("- fuse_elementwise: {memory: any}\n"));
        let (safe, fewer) = run.bits(&with("- fuse_elementwise\n"));
        assert!(plain == losses, "{}: a fused loss", run.name);
        assert!(plain == updates, "{}: fused updates", run.name);
        assert!(plain == everything, "{}: gradients inside updates", run.name);
        assert!(plain == elementwise, "{}: chains", run.name);
        assert!(plain == fewer, "{}: chains that need no more memory", run.name);
        assert!(plain == run.bits(named("as_exported")).1, "{}: both", run.name);
        let nodes = [&chains, &safe, &unfused].map(|target| target.graph.nodes.len());
        assert!(nodes[0] <= nodes[1] && nodes[1] < nodes[2], "{}: {nodes:?}", run.name);
        assert_eq!(count(&fused, "cross_entropy_grad"), 1, "{}", run.name);
        assert!(count(&fused, "pointwise") >= 6, "{}", run.name);
        assert!(count(&fused, "product_update") >= 1, "{}", run.name);
    }
    assert!(norms.iter().all(|&n| n > 0), "{norms:?}");
}

/// The pipeline `as_exported` with these passes behind its rewrites of updates.
fn as_exported_but(passes: &str) -> String {
    let last = "- fuse_updates\n";
    assert!(named("as_exported").contains(last));
    named("as_exported").replace(last, &format!("{last}{passes}"))
}

/// Attention without stored scores rounds otherwise; the losses stay those of PyTorch, and neither
/// the plan nor threads change a bit.
#[test]
fn attention_equals_pytorch() {
    let yaml = as_exported_but("- attention\n");
    let mut found = 0;
    for run in runs() {
        let (target, bits) = run.bits(&yaml);
        let count =
            |name: &str| target.graph.nodes.values().filter(|n| n.op.name() == name).count();
        let counts = [count("attention"), count("attention_grad"), count("softmax")];
        assert_eq!(counts, if run.name.starts_with("gpt") { [2, 2, 0] } else { [0; 3] });
        if counts[0] == 0 {
            continue;
        }
        found += 1;
        run.stress(&target, &bits, 4);
        let exported = compiled(&run.model(), named("as_exported"));
        assert!(target.figures.arena_bytes < exported.figures.arena_bytes);
        let run = Run { target, ..run };
        let (losses, _) = run.train(run.options());
        for (ours, theirs) in losses.iter().zip(&run.losses) {
            assert!((ours - theirs).abs() <= 1e-5, "{}: {ours} {theirs}", run.name);
        }
    }
    assert_eq!(found, 2);
}

/// Normalisations and gradients that are operators again add in another order; the losses stay
/// those of PyTorch, and neither the plan nor threads change a bit.
#[test]
fn raising_equals_pytorch() {
    let yaml = as_exported_but("- raise\n");
    let mut found = 0;
    for run in runs() {
        let (target, bits) = run.bits(&yaml);
        let count =
            |name: &str| target.graph.nodes.values().filter(|n| n.op.name() == name).count();
        let of = |kind: &str| {
            ["", "_input_grad", "_param_grad"].map(|part| count(&format!("{kind}_norm{part}")))
        };
        let wanted = match &run.name[..3] {
            "gpt" => [[5; 3], [0; 3]],
            "tin" => [[0; 3], [9; 3]],
            _ => [[0; 3]; 2],
        };
        assert_eq!([of("layer"), of("batch")], wanted, "{}", run.name);
        if wanted == [[0; 3]; 2] {
            continue;
        }
        found += 1;
        run.stress(&target, &bits, 4);
        // What was kept may have been the normalised operand, of which no mean is needed.
        let gradients =
            target.graph.nodes.values().filter(|n| n.op.name().ends_with("_input_grad"));
        let means: u64 = gradients.map(|n| target.graph.ty(n.inputs[3]).bytes()).sum();
        let arena = |target: &Target| target.figures.arena_bytes;
        let exported = compiled(&run.model(), named("as_exported"));
        assert!(arena(&target) <= arena(&exported) + means, "{}", run.name);
        let run = Run { target, ..run };
        let (losses, _) = run.train(run.options());
        for (ours, theirs) in losses.iter().zip(&run.losses) {
            assert!((ours - theirs).abs() <= 1e-5, "{}: {ours} {theirs}", run.name);
        }
    }
    assert_eq!(found, 4);
}

/// A product with a GELU, or with its slope, rounds otherwise; the losses stay those of PyTorch, and
/// neither the plan nor threads change a bit.
#[test]
fn products_with_a_gelu_equal_pytorch() {
    let yaml = as_exported_but("- fuse_sums\n- fuse_gelu\n");
    let mut found = 0;
    for run in runs().into_iter().filter(|run| run.name.starts_with("gpt")) {
        let (target, bits) = run.bits(&yaml);
        let count =
            |name: &str| target.graph.nodes.values().filter(|n| n.op.name() == name).count();
        assert_eq!(["gemm_gelu", "gemm_gelu_grad"].map(count), [2; 2], "{}", run.name);
        assert!(target.graph.nodes.values().all(|n| n.op != Op::Unary { f: Unary::Tanh }));
        found += 1;
        run.stress(&target, &bits, 4);
        let exported = compiled(&run.model(), named("as_exported"));
        assert!(target.figures.arena_bytes <= exported.figures.arena_bytes);
        let run = Run { target, ..run };
        let (losses, _) = run.train(run.options());
        for (ours, theirs) in losses.iter().zip(&run.losses) {
            assert!((ours - theirs).abs() <= 1e-5, "{}: {ours} {theirs}", run.name);
        }
    }
    assert_eq!(found, 2);
}

/// Logits with more classes, of which no one is a target: the losses stay those of PyTorch, and
/// weights are those of as many classes as the model has, but for the order of sums.
#[test]
fn more_classes_equal_pytorch() {
    let products =
        named("as_exported").replace("- fuse_updates\n", "- fuse_updates: {gradients: never}\n");
    let at = "- section\n";
    assert!(products.contains(at));
    let aligned =
        products.replace(at, &format!("- align_classes: {{least: 0, least_rows: 1}}\n{at}"));
    let mut found = 0;
    for run in runs().into_iter().filter(|run| run.name.ends_with("sgdm")) {
        let (target, bits) = run.bits(&aligned);
        let (_, fewer) = run.bits(&products);
        let g = &target.graph;
        let stats = g.nodes.iter().filter(|(_, node)| node.op == Op::LogSoftmaxStats);
        let classes: Vec<usize> = stats.map(|(n, _)| g.input_types(n)[0].shape[1]).collect();
        assert_eq!(classes, if run.name.starts_with("gpt") { [72] } else { [16] }, "{}", run.name);
        assert_eq!(bits.len(), fewer.len());
        for (ours, theirs) in bits.iter().zip(&fewer) {
            assert_eq!(ours.len(), theirs.len());
            for (x, y) in floats(ours).iter().zip(floats(theirs)) {
                assert!((x - y).abs() <= 1e-5 * y.abs().max(1.0), "{}: {x} {y}", run.name);
            }
        }
        found += 1;
        run.stress(&target, &bits, 2);
        let run = Run { target, ..run };
        let (losses, _) = run.train(run.options());
        for (ours, theirs) in losses.iter().zip(&run.losses) {
            assert!((ours - theirs).abs() <= 1e-5, "{}: {ours} {theirs}", run.name);
        }
    }
    assert_eq!(found, 4);
}
