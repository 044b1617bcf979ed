//! Steps in `bf16` beside state in `f32`: they train about as steps in `f32` do, the plan decides
//! nothing, and the artifact says so.

use arenic::Model;
use arenic::artifact::{Artifact, Target};
use arenic::compile::{Constraints, compile};
use arenic::onnx::{ImportOptions, Mode, Training, Variance};
use arenic::train::{Length, TrainOptions, train};
use arenic_backends::CPU;
use arenic_ir::types::DType;
use arenic_ir::{Def, Op};
use arenic_passes::differentiate::{Differentiate, Optimizer};
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::precision::{Format, Precision};
use arenic_passes::{Search, Standard};
use arenic_runtime::executor::{Executor, ExecutorOptions};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use std::path::{Path, PathBuf};

const NETWORKS: [&str; 4] = ["gpt_tiny", "mlp", "small_cnn", "tiny_resnet"];

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A step of a forward model; `to` as `--precision` gives it.
fn compiled(network: &str, to: Option<Format>, optimizer: Optimizer) -> Target {
    let loss = "cross_entropy".into();
    let pass = Differentiate { loss, optimizer, ..Differentiate::default() };
    let mut pipeline =
        Pipeline::named("default", &Standard).unwrap().differentiating(pass).unwrap();
    if let Some(to) = to {
        pipeline = pipeline.with_precision(Precision { to });
    }
    let mode = Mode::Training(Training { variance: Some(Variance::Unbiased), dropout: None });
    let dims = [("batch".to_owned(), 4)].into();
    let import = ImportOptions { mode, dims, ..ImportOptions::default() };
    let model = root(&format!("models/forward/{network}.onnx"));
    let (constraints, search) = (Constraints::default(), Search::default());
    let compiled = compile(
        &Model::open(&model).unwrap(),
        &import,
        &pipeline,
        constraints,
        search,
        RunOptions::default(),
    )
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.arenic");
    compiled.artifact.unwrap().write(&path).unwrap();
    Artifact::read(&path).unwrap().target(CPU.name).unwrap().clone()
}

fn losses(target: &Target, network: &str, steps: u64) -> Vec<f64> {
    let options = TrainOptions {
        data: vec![root(&format!("tests/runs/{network}_b4_sgdm.data.npz"))],
        set: vec![("lr".into(), "0.01".into())],
        length: Length::Steps(steps),
        threads: 1,
        deterministic: true,
        poison: true,
        ..TrainOptions::default()
    };
    let mut losses = Vec::new();
    train(target, &options, |_| {}, |r| losses.push(r.scalars[0].1)).unwrap();
    losses
}

/// A `bf16` has a unit roundoff of 2⁻⁹; a dozen layers forth and back, and errors of all steps
/// before, stay within ten of them.
#[test]
fn losses_fall_as_those_of_f32_do() {
    for network in NETWORKS {
        let wide = losses(&compiled(network, None, Optimizer::Momentum), network, 20);
        let target = compiled(network, Some(Format::Bf16), Optimizer::Momentum);
        let narrow = losses(&target, network, 20);
        for (step, (a, b)) in wide.iter().zip(&narrow).enumerate() {
            let off = (a - b).abs() / a.abs().max(1.0);
            assert!(off <= 2e-2, "{network}: loss {b} in step {step}, in f32 {a}");
        }
        // The data is as long as five steps, and comes again.
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean(&narrow[15..]) < mean(&narrow[..5]), "{network}: {narrow:?}");
        assert_ne!(wide, narrow, "{network}: nothing was rounded");
    }
}

#[test]
fn what_is_stored_in_two_bytes_and_what_is_not() {
    for network in NETWORKS {
        for optimizer in [Optimizer::Momentum, Optimizer::Adamw] {
            let wide = compiled(network, None, optimizer);
            let target = compiled(network, Some(Format::Bf16), optimizer);
            let g = &target.graph;
            assert_eq!((wide.precision(), target.precision()), ("f32", "bf16"));
            assert!(
                target.figures.bf16_bytes.unwrap() > 0
                    && target.figures.bf16_operators.unwrap() > 3
            );
            assert!(wide.figures.bf16_bytes.is_none());
            for value in g.values.values().filter(|v| v.ty.dtype == DType::Bf16) {
                assert!(!matches!(value.def, Def::Input | Def::State(_)), "{network}: {value:?}");
            }
            let ends = g.outputs.iter().map(|o| o.value).chain(g.states.values().map(|s| s.exit));
            ends.for_each(|v| assert_ne!(g.ty(v).dtype, DType::Bf16, "{network}"));
            for node in g.nodes.values() {
                let types = || node.inputs.iter().map(|&v| g.ty(v).dtype);
                match node.op {
                    Op::MatMul { .. } | Op::Gemm { .. } | Op::Conv { .. } => {
                        assert!(types().all(|d| d == DType::Bf16), "{network}: {node:?}");
                    }
                    Op::Adam { .. } | Op::Momentum { .. } | Op::LogSoftmax { .. } => {
                        assert!(types().all(|d| d != DType::Bf16), "{network}: {node:?}");
                    }
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn f32_is_what_there_is_without_the_pass() {
    for network in ["mlp", "small_cnn"] {
        let [without, with] =
            [None, Some(Format::F32)].map(|to| compiled(network, to, Optimizer::Momentum));
        assert_eq!(without.graph, with.graph);
        assert_eq!(without.program, with.program);
    }
}

#[test]
fn planned_equals_reference() {
    for network in NETWORKS {
        let Target { graph, program, .. } = compiled(network, Some(Format::Bf16), Optimizer::Adamw);
        let g = &graph;
        let options = ExecutorOptions { threads: 2, poison: true, ..ExecutorOptions::default() };
        let mut executor = Executor::new(g, &program, options).unwrap();
        let mut reference = Reference::new(g).unwrap();
        let consts = g.consts().map(|(v, data)| (v, data.bytes().unwrap().clone()));
        let states = g.states.values().map(|s| {
            let init = s.init.as_ref().and_then(|data| data.bytes().cloned());
            let zeros = || vec![0; g.ty(s.enter).bytes() as usize].into();
            (s.enter, init.unwrap_or_else(zeros))
        });
        for (v, bytes) in consts.chain(states) {
            let bytes = &bytes[..g.ty(v).bytes() as usize];
            let homes = [executor.carried_mut(v), reference.value_mut(v)];
            homes.into_iter().flatten().for_each(|home| home.copy_from_slice(bytes));
        }
        for step in 0..3 {
            for v in g.inputs() {
                let ty = g.ty(v);
                let number = |i: usize| ((i * 37) % 23) as f32 / 7.0 - 1.3;
                let bytes: Vec<u8> = match ty.dtype {
                    DType::F32 if ty.rank() == 0 => 0.01f32.to_le_bytes().to_vec(),
                    DType::F32 => {
                        (0..ty.elements()).flat_map(|i| number(i).to_le_bytes()).collect()
                    }
                    _ => (0..ty.elements() as i64).flat_map(|i| (i % 2).to_le_bytes()).collect(),
                };
                let homes = [executor.input_mut(v), reference.value_mut(v)];
                homes.into_iter().flatten().for_each(|home| home.copy_from_slice(&bytes));
            }
            let draw = Draw { seed: 5, step, round: 0 };
            executor.step(draw).unwrap();
            reference.step(draw).unwrap();
            for (i, output) in g.outputs.iter().enumerate() {
                assert_eq!(executor.output(i), reference.value(output.value), "{network}");
            }
        }
        for state in g.states.values() {
            let home = executor.carried_mut(state.enter).unwrap().to_vec();
            assert_eq!(home, reference.value(state.enter), "{network}: `{}`", state.name);
        }
    }
}
