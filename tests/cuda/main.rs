//! Whole training steps by the CUDA backend, on a simulated driver with emulated kernels: the
//! losses of eager PyTorch, whatever the order of streams and the byte limit, and clear errors
//! where the driver fails.
//!
//! Nothing here runs on a GPU, unless `ARENIC_TEST_DEVICE` names one: then every step that is
//! not about a driver's failures does.

mod classes;
mod failures;
mod lent;
#[path = "../rounds/linear.rs"]
mod linear;
mod place;
mod ranks;
mod rounds;
mod simulated;
mod times;
mod variants;

use arenic::Model;
use arenic::artifact::Target;
use arenic::compile::{Constraints, compile};
use arenic::data::TensorFile;
use arenic::onnx::{ImportOptions, Mode, Training};
use arenic::train::{Initial, Length, StepReport, TrainError, TrainOptions, train_on_device};
use arenic_backends::CUDA;
use arenic_ir::cost::Device;
use arenic_ir::graph::{Def, Graph};
use arenic_ir::op::Family;
use arenic_ir::plan::Plan;
use arenic_ir::program::{Command, PerSpace, Program};
use arenic_ir::{DType, Op};
use arenic_passes::differentiate::{Differentiate, Optimizer};
use arenic_passes::feed_ahead::FeedAhead;
use arenic_passes::pipeline::{NAMED, Pipeline, RunOptions};
use arenic_passes::precision::Precision;
use arenic_passes::{Cx, ProgramPass, Search, Standard};
use arenic_runtime::cuda::driver::Driver;
use arenic_runtime::cuda::{CudaExecutor, CudaOptions};
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::{DeviceError, Machine};
use arenic_runtime::ways::Way;
use place::file;
use simulated::{Behaviour, Simulated};
use std::path::PathBuf;

/// A reference run: a step, or the forward model that it is made of, its data and the losses of
/// eager PyTorch.
struct Run {
    model: PathBuf,
    import: ImportOptions,
    pipeline: Pipeline,
    /// Initial values; a forward model holds its own.
    initial: Option<PathBuf>,
    base: PathBuf,
    set: Vec<(String, String)>,
    losses: Vec<f64>,
}

impl Run {
    fn named(name: &str) -> Run {
        let base = file("tests/runs").join(name);
        let text = std::fs::read_to_string(base.with_extension("json")).unwrap();
        let run: serde_json::Value = serde_json::from_str(&text).unwrap();
        let set = run["set"].as_object().unwrap();
        let losses = run["loss"].as_array().unwrap();
        Run {
            model: file("models/step").join(run["onnx"].as_str().unwrap()),
            import: ImportOptions::default(),
            pipeline: Pipeline::named("default", &Standard).unwrap(),
            initial: Some(PathBuf::from(format!("{}.init.npz", base.display()))),
            base,
            set: set.iter().map(|(n, v)| (n.clone(), v.to_string())).collect(),
            losses: losses.iter().map(|l| l.as_f64().unwrap()).collect(),
        }
    }

    /// The same run from the network's forward model, differentiated here.
    fn differentiated(network: &str) -> Run {
        Run::made_with(network, "- layout:\n  when: cuda")
    }

    /// The same with the channels of every convolution last.
    fn channels_last(network: &str) -> Run {
        Run::made_with(network, "- layout: {convolutions: all}")
    }

    fn made_with(network: &str, layout: &str) -> Run {
        let run = Run::named(&format!("{network}_b4_sgdm"));
        let pass = Differentiate {
            loss: "cross_entropy".into(),
            optimizer: Optimizer::Momentum,
            ..Differentiate::default()
        };
        let yaml = NAMED[0].1.replace("- layout:\n  when: cuda", layout);
        let pipeline =
            Pipeline::from_yaml(&yaml, &Standard).unwrap().differentiating(pass).unwrap();
        let import = ImportOptions {
            mode: Mode::Training(Training::default()),
            dims: [("batch".to_owned(), 4)].into(),
            ..ImportOptions::default()
        };
        let model = file("models/forward").join(format!("{network}.onnx"));
        let set = run.set.iter().filter(|(name, _)| name == "lr").cloned().collect();
        Run { model, import, pipeline, initial: None, set, ..run }
    }

    /// The step compiled for the CUDA backend, its arena limited to so many bytes.
    fn target(&self, limit: Option<u64>) -> Target {
        self.target_on(None, limit)
    }

    /// The same for a device.
    fn target_on(&self, device: Option<&Device>, limit: Option<u64>) -> Target {
        let (backend, limits) = (CUDA, PerSpace { device: limit, host: None });
        // Emulated kernels are compiled from their text. Operators' kernels are compiled for GPUs by
        // the runtime's tests, those of whole steps by `make test-all`.
        let no_gpu_code = place::gpu().is_none() && std::env::var_os("ARENIC_WIDE").is_none();
        let constraints =
            Constraints { backend, device, limits, no_gpu_code, ..Constraints::default() };
        // Any plan will do.
        let search = Search { effort: Some(0.02), ..Search::default() };
        let options = RunOptions::default();
        compile(
            &Model::open(&self.model).unwrap(),
            &self.import,
            &self.pipeline,
            constraints,
            search,
            options,
        )
        .unwrap_or_else(|e| panic!("{}: {e}", self.model.display()))
        .artifact
        .unwrap()
        .targets
        .remove(0)
    }

    /// The losses on the GPU that the environment names, else on a simulated driver.
    fn train(&self, target: &Target, behaviour: Behaviour) -> Result<Vec<f64>, TrainError> {
        match place::gpu() {
            Some(gpu) => self.train_on(gpu, target),
            None => self.train_on(Simulated::new(behaviour), target),
        }
    }

    fn train_on(&self, driver: impl Driver, target: &Target) -> Result<Vec<f64>, TrainError> {
        let mut losses = Vec::new();
        let watch = |r: &StepReport| losses.push(r.scalars[0].1);
        train_on_device(driver, target, &self.options(), |_| {}, watch)?;
        Ok(losses)
    }

    fn options(&self) -> TrainOptions {
        TrainOptions {
            data: vec![PathBuf::from(format!("{}.data.npz", self.base.display()))],
            initial: Initial {
                file: self.initial.as_ref().map(|path| TensorFile::open(path).unwrap()),
                ..Initial::default()
            },
            set: self.set.clone(),
            length: Length::Steps(self.losses.len() as u64),
            threads: 1,
            deterministic: true,
            ..TrainOptions::default()
        }
    }
}

const RUNS: [&str; 8] = [
    "gpt_tiny_b4_adamw",
    "gpt_tiny_b4_sgdm",
    "mlp_b4_adamw",
    "mlp_b4_sgdm",
    "small_cnn_b4_adamw",
    "small_cnn_b4_sgdm",
    "tiny_resnet_b4_adamw",
    "tiny_resnet_b4_sgdm",
];

/// Eleven runs, each with kernels of its own to compile for the emulator, which is what takes long.
#[test]
fn five_steps_equal_pytorch() {
    let differentiated = ["gpt_tiny", "mlp", "small_cnn", "tiny_resnet"]
        .map(|network| (format!("{network}, differentiated"), Run::differentiated(network)));
    let whole = RUNS.map(|name| (name.to_owned(), Run::named(name)));
    for (name, run) in whole.into_iter().chain(differentiated) {
        holds(&name, &run, &run.target(None), Behaviour::default());
    }
}

/// The losses of a run are PyTorch's.
fn holds(name: &str, run: &Run, target: &Target, behaviour: Behaviour) {
    let losses = run.train(target, behaviour).unwrap();
    assert_eq!(losses.len(), run.losses.len());
    for (step, (ours, theirs)) in losses.iter().zip(&run.losses).enumerate() {
        let off = (ours - theirs).abs();
        assert!(off <= 2e-5, "{name} step {step}: {ours} is off by {off:e}");
    }
}

#[test]
fn five_steps_with_channels_last_equal_pytorch() {
    for network in ["small_cnn", "tiny_resnet"] {
        let run = Run::channels_last(network);
        let target = run.target(None);
        let is_last = |op: &Op| matches!(op, Op::ChannelsLast { .. });
        let convolution = |op: &Op| {
            matches!(op, Op::Conv { .. } | Op::ConvTranspose { .. } | Op::ConvWeightGrad { .. })
        };
        assert!(target.graph.nodes.values().any(|node| is_last(&node.op)));
        assert!(!target.graph.nodes.values().any(|node| convolution(&node.op)));
        for libraries in [true, false] {
            let behaviour = Behaviour { libraries, ..Behaviour::default() };
            holds(network, &run, &target, behaviour);
        }
    }
}

/// A `bf16` has a unit roundoff of 2⁻⁹; what a dozen layers, forth and back, and the steps before
/// make of it stays within ten of them. By libraries and by our own kernels, which add in other
/// orders and round to neighbours now and then.
#[test]
fn steps_in_bf16_are_near_those_in_f32() {
    let runs = ["gpt_tiny", "mlp", "small_cnn", "tiny_resnet"].map(|n| (n, Run::differentiated(n)));
    let last = ["small_cnn", "tiny_resnet"].map(|n| (n, Run::channels_last(n)));
    for (network, run) in runs.into_iter().chain(last) {
        let run = Run { pipeline: run.pipeline.with_precision(Precision::default()), ..run };
        let target = run.target(None);
        assert_eq!(target.precision(), "bf16");
        for libraries in [true, false] {
            let behaviour = Behaviour { libraries, ..Behaviour::default() };
            let losses = run.train(&target, behaviour).unwrap();
            assert_eq!(losses.len(), run.losses.len());
            for (step, (ours, theirs)) in losses.iter().zip(&run.losses).enumerate() {
                let off = (ours - theirs).abs();
                assert!(off <= 2e-2 * theirs.max(1.0), "{network} step {step}: {ours}, {theirs}");
            }
        }
    }
}

#[test]
fn steps_go_by_libraries_where_there_are_any() {
    for name in ["gpt_tiny_b4_adamw", "small_cnn_b4_sgdm"] {
        let target = Run::named(name).target(None);
        let ways = |libraries| {
            let driver = Simulated::new(Behaviour { libraries, ..Behaviour::default() });
            let (g, p) = (&target.graph, &target.program);
            let executor = CudaExecutor::new(g, p, &[], driver, CudaOptions::default()).unwrap();
            let ways = executor.choices().iter().map(|choice| choice.way().name.clone());
            ways.collect::<Vec<_>>()
        };
        told(&target);
        let (with, without) = (ways(true), ways(false));
        assert!(!with.is_empty() && with.iter().all(|way| way == "good"), "{name}: {with:?}");
        // What is asked for then without a GELU comes on top.
        assert!(without.len() >= with.len() && without.iter().all(|way| way == "kernels"));
    }
}

/// Each way is told, with why libraries have no part in it.
fn told(target: &Target) {
    let ways = |libraries| {
        let driver = Simulated::new(Behaviour { libraries, ..Behaviour::default() });
        let (g, p) = (&target.graph, &target.program);
        CudaExecutor::new(g, p, &[], driver, CudaOptions::default()).unwrap().ways()
    };
    let is_product = |op: &Op| {
        matches!(op.family(), Family::Product(_) | Family::Convolution(_) | Family::Attention(_))
    };
    let runs = target.program.commands.iter().filter(|command| match command {
        Command::Run { node, .. } => is_product(&target.graph.nodes[*node].op),
        _ => false,
    });
    let (with, without) = (ways(true), ways(false));
    for ways in [&with, &without] {
        assert_eq!(ways.iter().map(|way| way.runs).sum::<usize>(), runs.clone().count());
        assert!(ways.iter().all(|way| way.by_library || !way.refused.is_empty()), "{ways:?}");
    }
    let by_library = |ways: &[Way]| ways.iter().filter(|way| way.by_library).count();
    assert!(by_library(&with) > 0 && by_library(&without) == 0);
    let refused = |ways: &[Way], why: &str| {
        ways.iter().flat_map(|way| &way.refused).any(|refused| refused.why.contains(why))
    };
    assert!(refused(&with, "not supported after all") && refused(&without, "no libraries"));
    let is_attention = |op: &Op| matches!(op, Op::Attention { .. });
    if target.graph.nodes.values().any(|node| is_attention(&node.op)) {
        assert!(refused(&with, "libraries do not multiply elements of this type"));
    }
}

/// Each limit has the kernels of its own plan to compile for the emulator, which is what takes long.
#[test]
fn neither_limits_nor_the_order_of_streams_nor_replay_change_bits() {
    let is_wide = std::env::var_os("ARENIC_WIDE").is_some();
    let ways = [(1, true), (2, true), (3, false)];
    for name in ["gpt_tiny_b4_adamw", "tiny_resnet_b4_sgdm"] {
        let run = Run::named(name);
        let whole = run.target(None);
        let arena = whole.program.sizes.device;
        let expected = run.train(&whole, Behaviour::default()).unwrap();
        for (i, percent) in [70, 50, 40].into_iter().enumerate() {
            let target = run.target(Some(arena * percent / 100));
            assert!(target.program.sizes.device <= arena * percent / 100);
            // All ways with each limit, or one.
            let ways = if is_wide { &ways[..] } else { &ways[i..=i] };
            for &(seed, captures) in ways {
                let behaviour = Behaviour { seed, captures, ..Behaviour::default() };
                let losses = run.train(&target, behaviour).unwrap();
                assert_eq!(losses, expected, "{name} at {percent} %, seed {seed}");
            }
        }
    }
}

#[test]
fn steps_after_the_first_are_one_graph() {
    let run = Run::named("mlp_b4_sgdm");
    let target = run.target(None);
    let draw = Draw::default();
    if let Some(gpu) = place::gpu() {
        let mut executor =
            CudaExecutor::new(&target.graph, &target.program, &[], gpu, CudaOptions::default())
                .unwrap();
        executor.step(draw).unwrap();
        assert!(executor.is_captured());
        return executor.step(draw).unwrap();
    }
    let driver = Simulated::new(Behaviour::default());
    let mut executor =
        CudaExecutor::new(&target.graph, &target.program, &[], driver, CudaOptions::default())
            .unwrap();
    let allocations = |e: &CudaExecutor<Simulated>| {
        e.driver().calls("allocate") + e.driver().calls("allocate_pinned")
    };
    let before = allocations(&executor);
    executor.step(draw).unwrap();
    assert!(executor.is_captured());
    let launches = executor.driver().calls("launch");
    for _ in 0..3 {
        executor.step(draw).unwrap();
    }
    let driver = executor.driver();
    assert_eq!((driver.calls("launch"), driver.calls("run")), (launches, 3));
    assert_eq!(allocations(&executor), before);
}

/// Fills constants with what they hold, and states with zeros.
fn fill_homes(machine: &mut impl Machine, g: &Graph) {
    for (v, value) in &g.values {
        let fill = |home: &mut [u8]| {
            match &value.def {
                Def::Const(data) => home.copy_from_slice(data.bytes().unwrap()),
                _ => home.fill(0),
            }
            Ok::<_, DeviceError>(())
        };
        machine.fill_home(v, fill).unwrap();
    }
}

#[test]
fn the_next_step_is_fed_while_one_runs() {
    let target = Run::named("mlp_b4_sgdm").target(None);
    let g = &target.graph;
    // Labels are the first class throughout.
    let set = |executor: &mut CudaExecutor<'_, Simulated>, byte: u8| {
        for v in g.inputs() {
            let byte = if g.ty(v).dtype == DType::F32 { byte } else { 0 };
            if let Some(bytes) = executor.input_mut(v) {
                bytes.fill(byte);
            }
        }
    };
    const NAN: u8 = 0xFF;
    for seed in 0..4 {
        let driver = Simulated::new(Behaviour { seed, ..Behaviour::default() });
        let options = CudaOptions::default();
        let mut executor = CudaExecutor::new(g, &target.program, &[], driver, options).unwrap();
        let loss = |executor: &CudaExecutor<'_, Simulated>| {
            f32::from_le_bytes(executor.output(0).try_into().unwrap())
        };
        fill_homes(&mut executor, g);
        set(&mut executor, 0);
        // The first step is issued, later ones are replayed, on either side.
        for step in 0..5 {
            executor.begin(Draw { seed: 0, step, round: 0 }).unwrap();
            set(&mut executor, NAN);
            executor.finish().unwrap();
            assert!(loss(&executor).is_finite(), "step {step} read what is fed to the next one");
            set(&mut executor, 0);
        }
        set(&mut executor, NAN);
        executor.step(Draw::default()).unwrap();
        assert!(loss(&executor).is_nan());
    }
}

/// Inputs that wait in the arena while a step runs are those of the next one, also where they are fed again
/// after they were sent.
#[test]
fn inputs_of_the_next_step_are_sent_while_one_runs() {
    let target = Run::named("mlp_b4_sgdm").target(None);
    let g = &target.graph;
    let mut program = target.program.clone();
    let cx = Cx::new(program.target);
    let pass = FeedAhead { least_bytes: 1 };
    let stats = pass.run(g, &Plan::default(), &mut program, &cx).unwrap();
    assert!(stats["inputs"] > 0 && program.sizes.device > target.program.sizes.device);
    let is_fed = |v| matches!(g.ty(v).dtype, DType::F32);
    let run = |program: &Program, sends: bool, seed: u64| {
        let driver = Simulated::new(Behaviour { seed, ..Behaviour::default() });
        let options = CudaOptions::default();
        let mut executor = CudaExecutor::new(g, program, &[], driver, options).unwrap();
        fill_homes(&mut executor, g);
        let set = |executor: &mut CudaExecutor<'_, Simulated>, step: u64| {
            for v in g.inputs() {
                let elements = g.ty(v).elements() as u64;
                let numbers = (0..elements).map(|i| ((i * 7 + step * 3) % 11) as f32 / 8.0);
                if let Some(bytes) = executor.input_mut(v) {
                    match is_fed(v) {
                        true => bytes.copy_from_slice(
                            &numbers.flat_map(f32::to_le_bytes).collect::<Vec<_>>(),
                        ),
                        false => bytes.fill(0),
                    }
                }
            }
        };
        set(&mut executor, 0);
        let mut losses = Vec::new();
        for step in 0..6 {
            executor.begin(Draw { seed: 0, step, round: 0 }).unwrap();
            // What is sent in every second step is not what is fed in the end.
            let is_fed_again = step % 2 == 1;
            set(&mut executor, if is_fed_again { 100 } else { step + 1 });
            if sends {
                executor.send_ahead().unwrap();
            }
            executor.finish().unwrap();
            losses.push(executor.output(0).to_vec());
            if is_fed_again {
                set(&mut executor, step + 1);
            }
        }
        losses
    };
    let want = run(&target.program, false, 0);
    for seed in 0..4 {
        assert_eq!(run(&program, false, seed), want);
        assert_eq!(run(&program, true, seed), want);
    }
}

/// A run sends them so: by a stream of its own, whose copies are as many as those of inputs.
#[test]
fn a_run_sends_inputs_of_the_next_step_while_one_runs() {
    let run = Run::named("mlp_b4_sgdm");
    let mut target = run.target(None);
    let options = TrainOptions { length: Length::Steps(4), ..run.options() };
    // How often the driver is called so, which is the first number of a call that nobody makes; and the losses.
    let calls = |target: &Target, call: &'static str| {
        let made = (0..).map(|k| {
            let driver =
                Simulated::new(Behaviour { fails: Some((call, k)), ..Behaviour::default() });
            let mut losses = Vec::new();
            let watch = |r: &StepReport| losses.push(r.scalars[0].1);
            train_on_device(driver, target, &options, |_| {}, watch).map(|_| (k, losses))
        });
        made.flatten().next().unwrap()
    };
    let ((streams, losses), (copies, _)) = (calls(&target, "stream"), calls(&target, "copy"));
    let pass = FeedAhead { least_bytes: 1 };
    let cx = Cx::new(target.program.target);
    let stats = pass.run(&target.graph, &Plan::default(), &mut target.program, &cx).unwrap();
    assert_eq!(calls(&target, "stream"), (streams + 1, losses));
    // All steps but the first.
    let sent = 3 * stats["inputs"];
    assert_eq!(u64::from(calls(&target, "copy").0), u64::from(copies) + sent);
}
