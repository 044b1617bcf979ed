//! Variants that take turns on one device give what they give on the CPU, each as a graph of its own,
//! whatever the order of streams.

use super::simulated::{Behaviour, Simulated};
use super::{Run, place};
use arenic::artifact::{Artifact, Target};
use arenic::train::{Length, StepReport, TrainOptions, train_variants, train_variants_on_device};
use arenic::{Backend, Compiler, Dynamic, Model, Optimizer, Variant};
use arenic_backends::{CPU, CUDA};
use arenic_ir::graph::Data;
use arenic_ir::{DType, ValueId};
use arenic_runtime::cuda::CudaOptions;
use arenic_runtime::cuda::driver::Driver;
use arenic_runtime::executor::ExecutorOptions;
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::{DeviceError, Machine};
use arenic_runtime::rounds::Part;
use arenic_runtime::variants::{Another, Step, Variants};

/// Steps of three and of two rows.
fn variants(run: &Run, backend: Backend) -> Artifact {
    let model = Model::open(&run.model).unwrap();
    let all = [3, 2].map(|rows| Variant {
        name: format!("batch={rows}"),
        structure: String::new(),
        model: model.clone().dim("batch", rows),
    });
    let compiler = Compiler::new().loss("cross_entropy", Optimizer::Momentum).evaluation(false);
    compiler.target(backend).effort(0.1).compile_variants(&all).unwrap()
}

fn losses(driver: impl Driver, variants: &[&Target], options: &TrainOptions) -> Vec<f64> {
    let mut losses = Vec::new();
    let watch = |r: &StepReport| losses.push(r.scalars[0].1);
    train_variants_on_device(driver, variants, options, |_| {}, watch).unwrap();
    losses
}

#[test]
fn variants_on_a_device_are_those_of_the_cpu() {
    let run = Run::differentiated("mlp");
    // Twenty rows and more are cut into threes, and twos at the end.
    let options = TrainOptions { length: Length::Epochs(2), ..run.options() };
    let mut expected = Vec::new();
    let watch = |r: &StepReport| expected.push(r.scalars[0].1);
    let on_cpu = variants(&run, CPU);
    train_variants(&on_cpu.variants("cpu"), &options, |_| {}, watch).unwrap();
    assert!(expected.len() > 6);

    let on_device = variants(&run, CUDA);
    let on_device = on_device.variants("cuda");
    let near = |found: &[f64], what: &str| {
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
        let all = found.len() == expected.len() && found.iter().zip(&expected).all(close);
        assert!(all, "{what}: {found:?} {expected:?}");
    };
    if let Some(gpu) = place::gpu() {
        return near(&losses(gpu, &on_device, &options), "a GPU");
    }
    for seed in 0..4 {
        for captures in [true, false] {
            let behaviour = Behaviour { seed, captures, ..Behaviour::default() };
            let found = losses(Simulated::new(behaviour), &on_device, &options);
            near(&found, &format!("{behaviour:?}"));
        }
    }
}

fn filled(machine: &mut impl Machine, v: ValueId, bytes: &[u8]) {
    let fill = |home: &mut [u8]| {
        home.copy_from_slice(bytes);
        Ok::<(), DeviceError>(())
    };
    machine.fill_home(v, fill).unwrap();
}

/// Steps by steps of three rows, and then of two, of a step that is added while there are states; gives the states.
fn added<'g, M: Another<'g>>(
    machines: &mut Variants<'_, 'g, M>,
    [first, second]: [&'g Target; 2],
) -> Vec<Vec<u8>>
where
    M::Error: std::fmt::Debug,
{
    for state in first.graph.states.values() {
        filled(machines.at(0), state.enter, state.init.as_ref().unwrap().bytes().unwrap());
    }
    for (v, data) in first.graph.consts() {
        filled(machines.at(0), v, data.bytes().unwrap());
    }
    for step in 0..6 {
        if step == 3 {
            let states = first.graph.states.iter();
            let kept: Vec<_> = states
                .map(|(s, state)| (state.enter, machines.read(0).state(s).unwrap().into_owned()))
                .collect();
            let Target { graph, program, .. } = second;
            machines.add(Step::Whole(Part { graph, program }), &[]).unwrap();
            // Where ways are tried, they are tried on the arena.
            kept.iter().for_each(|(v, bytes)| filled(machines.at(0), *v, bytes));
            let bytes = |data: &Data| data.bytes().unwrap().clone();
            let held = |v| Some((v, bytes(second.fed.get(&graph.values[v].name)?)));
            machines.hold(1, graph.inputs().filter_map(held).collect());
        }
        let turn = if step < 3 { 0 } else { step % 2 };
        let (target, machine) = ([first, second][turn], machines.at(turn));
        let g = &target.graph;
        for v in g.inputs().filter(|&v| !target.fed.contains_key(&g.values[v].name)) {
            let Some(home) = machine.input_mut(v) else { continue };
            let floats = home.as_chunks_mut::<4>().0.iter_mut().enumerate();
            match g.ty(v).dtype {
                DType::F32 => floats.for_each(|(i, x)| {
                    *x = ((i * 7 + step) as f32 % 5.0 * 0.05).to_le_bytes();
                }),
                _ => home.as_chunks_mut::<8>().0.iter_mut().enumerate().for_each(|(i, x)| {
                    *x = ((i + step) as i64 % 10).to_le_bytes();
                }),
            }
        }
        machine.step(Draw { seed: 1, step: step as u64, round: 0 }).unwrap();
    }
    let states = first.graph.states.keys();
    states.map(|s| machines.read(0).state(s).unwrap().into_owned()).collect()
}

fn whole(target: &Target) -> Step<'_, '_> {
    Step::Whole(Part { graph: &target.graph, program: &target.program })
}

#[test]
fn a_step_that_is_added_on_a_device_is_that_of_the_cpu() {
    let model = Model::open(Run::differentiated("mlp").model).unwrap().dim("batch", 3);
    let compiled = |backend: Backend| {
        let compiler = Compiler::new().loss("cross_entropy", Optimizer::Momentum).evaluation(false);
        let compiler = compiler.target(backend).effort(0.1);
        let artifact = compiler.compile(&model).unwrap();
        let sizes = vec![("batch".to_owned(), 2)];
        let mut dynamic = Dynamic::new(compiler, model.clone());
        let added = dynamic.step("", &sizes, &artifact.variants(backend.name)).unwrap();
        assert_eq!(added.variant, "batch=2");
        (artifact.targets.into_iter().next().unwrap(), added)
    };
    let (first, second) = compiled(CPU);
    let mut machines = Variants::on_cpu(&[whole(&first)], ExecutorOptions::default()).unwrap();
    let expected = added(&mut machines, [&first, &second]);
    let (first, second) = compiled(CUDA);
    for captures in [true, false] {
        let driver = Simulated::new(Behaviour { captures, ..Behaviour::default() });
        let options = CudaOptions::default();
        let mut machines = Variants::on_device(&[whole(&first)], &[], driver, options).unwrap();
        let found = added(&mut machines, [&first, &second]);
        let numbers = |bytes: &Vec<u8>| -> Vec<f32> {
            bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        for (a, b) in found.iter().zip(&expected) {
            let all = numbers(a).into_iter().zip(numbers(b));
            let most = all.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(most <= 1e-5, "{most}");
        }
    }
}
