//! Inputs that are copied from where they lie give what inputs give that are fed, captured or not.

use super::rounds::for_cuda;
use super::simulated::{Behaviour, Simulated};
use super::{Run, fill_homes, place};
use arenic_ir::graph::Graph;
use arenic_ir::{DType, ValueId};
use arenic_runtime::cuda::driver::Driver;
use arenic_runtime::cuda::{CudaExecutor, CudaOptions};
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::Machine;
use arenic_runtime::rounds::InRounds;

/// What an input is given in a step: classes are the first.
fn given(g: &Graph, v: ValueId, step: u64) -> Vec<u8> {
    let ty = g.ty(v);
    let x = |i: u64| ((i + 40 * step) as f32 * 0.7).sin();
    match ty.dtype {
        DType::F32 => (0..ty.elements() as u64).flat_map(|i| x(i).to_le_bytes()).collect(),
        _ => vec![0; ty.bytes() as usize],
    }
}

/// Outputs of each step and the states at the end; `lends` says of each step whether inputs are lent.
fn seen(mut machine: impl Machine, g: &Graph, lends: impl Fn(u64) -> bool) -> Vec<Vec<u8>> {
    assert!(machine.stream().is_some());
    fill_homes(&mut machine, g);
    let mut seen = Vec::new();
    for step in 0..6 {
        // The simulated driver copies from any address, and a real one from any of this process.
        let lent: Vec<_> = g.inputs().map(|v| (v, given(g, v, step))).collect();
        for (v, bytes) in &lent {
            let wrong = vec![0xFF; bytes.len()];
            let Some(home) = machine.input_mut(*v) else { continue };
            if lends(step) {
                home.fill(0xFF);
                // SAFETY: `lent` has the bytes until the step has ended.
                unsafe { machine.feed_from(*v, bytes.as_ptr().addr() as u64) };
            } else {
                // SAFETY: nothing is copied from there, as the input is asked for again.
                unsafe { machine.feed_from(*v, wrong.as_ptr().addr() as u64) };
                machine.input_mut(*v).unwrap().copy_from_slice(bytes);
            }
        }
        machine.step(Draw { seed: 5, step, round: 0 }).unwrap();
        seen.extend((0..g.outputs.len()).map(|i| machine.output(i).to_vec()));
    }
    seen.extend(g.states.keys().map(|s| machine.state(s).unwrap().into_owned()));
    seen
}

/// Which steps lend their inputs.
type Lends = fn(u64) -> bool;

fn whole(driver: impl Driver, options: CudaOptions, lends: Lends) -> Vec<Vec<u8>> {
    let target = Run::named("mlp_b4_sgdm").target(None);
    let (g, p) = (&target.graph, &target.program);
    seen(CudaExecutor::new(g, p, &[], driver, options).unwrap(), g, lends)
}

fn in_rounds(driver: impl Driver, options: CudaOptions, lends: Lends) -> Vec<Vec<u8>> {
    let target = for_cuda();
    let step = target.whole_step().unwrap().unwrap();
    let machine = InRounds::on_device(&step, [&[]; 3], driver, options).unwrap();
    seen(machine, step.graph(), lends)
}

#[test]
fn lent_inputs_give_what_fed_ones_give() {
    let options = CudaOptions { deterministic: true };
    let given = |behaviour: Behaviour, lends: Lends| match place::gpu() {
        Some(_) => {
            let gpu = || place::gpu().unwrap();
            [whole(gpu(), options, lends), in_rounds(gpu(), options, lends)]
        }
        None => {
            let driver = || Simulated::new(behaviour);
            [whole(driver(), options, lends), in_rounds(driver(), options, lends)]
        }
    };
    for (seed, captures) in [(1, true), (2, false)] {
        let behaviour = Behaviour { seed, captures, ..Behaviour::default() };
        let fed = given(behaviour, |_| false);
        assert!(fed.iter().flatten().flatten().any(|&byte| byte != 0));
        assert_eq!(given(behaviour, |_| true), fed);
        assert_eq!(given(behaviour, |step| step % 3 == 1), fed);
    }
}
