//! Steps of small programs, beside the reference interpreter.

use arenic::artifact::Target;
use arenic_backends::CPU;
use arenic_ir::DType;
use arenic_ir::graph::{Data, Def, Graph, State, ValueId};
use arenic_ir::program::Program;
use arenic_runtime::executor::{Executor, ExecutorOptions};
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::{DeviceError, Machine};
use arenic_runtime::reference::Reference;
use arenic_runtime::rounds::{InRounds, WholeStep};
use std::collections::BTreeMap;

/// Arithmetic and traffic above this, for one step, take too long.
const MOST_WORK: u64 = 1 << 24;
/// Bytes of all values and arenas above this are too many.
const MOST_BYTES: u64 = 1 << 24;

/// True where a step takes little time and memory.
pub(crate) fn is_small(g: &Graph) -> bool {
    let roots = g.values.values().map(|v| v.ty.bytes());
    let mut left = MOST_BYTES.checked_sub(roots.fold(0, u64::saturating_add));
    for n in g.nodes.keys() {
        let Ok(outputs) = g.output_types(n) else { return false };
        let outputs: Vec<_> = outputs.iter().collect();
        let inputs = g.input_types(n);
        let work = g.nodes[n].op.work(&inputs, &outputs);
        let scratch = g.nodes[n].op.scratch_bytes(CPU.target(), &inputs, &outputs);
        left = left.and_then(|left| left.checked_sub(scratch));
        if work.flops.saturating_add(work.bytes) > MOST_WORK {
            return false;
        }
    }
    left.is_some()
}

/// Runs three steps of a program that `check` accepts, and proves that outputs and states are
/// exactly those of the reference interpreter. Inputs are fed as training feeds them: once, where
/// the step leaves them alone.
///
/// False where they would take long, or a kernel refuses its operands.
pub(crate) fn three_steps(g: &Graph, program: &Program, arena_bytes: u64) -> bool {
    if arena_bytes > MOST_BYTES || !is_small(g) {
        return false;
    }
    let options = ExecutorOptions { threads: 1, ..ExecutorOptions::default() };
    let Ok(mut executor) = Executor::new(g, program, options) else { return false };
    let Ok(mut reference) = Reference::new(g) else { return false };
    for (v, bytes) in carried(g) {
        let homes = [executor.carried_mut(v), reference.value_mut(v)];
        homes.into_iter().flatten().for_each(|home| home.copy_from_slice(&bytes));
    }
    let fed: Vec<ValueId> = g.inputs().collect();
    for step in 0..3 {
        for &v in &fed {
            let bytes = filled(g, v);
            if let Some(value) = reference.value_mut(v) {
                value.copy_from_slice(&bytes);
            }
            if (step == 0 || executor.is_overwritten(v))
                && let Some(home) = executor.input_mut(v)
            {
                home.copy_from_slice(&bytes);
            }
        }
        let draw = Draw { seed: 7, step, round: 0 };
        let (ours, theirs) = (executor.step(draw), reference.step(draw));
        if ours.is_err() || theirs.is_err() {
            // Dead nodes run in the reference alone, so that it may refuse where we do not.
            return false;
        }
        for (i, output) in g.outputs.iter().enumerate() {
            let right = executor.output(i) == reference.value(output.value);
            assert!(right, "step {step}: output {i} is not as the reference interpreter's");
        }
        for (s, state) in &g.states {
            let right = executor.state(s) == reference.value(state.enter);
            assert!(right, "step {step}: {s} is not as the reference interpreter's");
        }
    }
    true
}

/// Most rounds that are run.
const MOST_ROUNDS: u32 = 64;

/// Runs two steps in rounds, and proves that outputs and states are exactly those of the reference
/// interpreter, part after part.
///
/// False where they would take long, or a kernel refuses its operands.
pub(crate) fn steps_in_rounds(target: &Target, whole: &WholeStep, arena_bytes: u64) -> bool {
    let (all, turns) = (whole.graph(), target.turns());
    let is_large = all.values.values().any(|v| v.ty.bytes() > MOST_BYTES);
    if arena_bytes > MOST_BYTES || whole.count() > MOST_ROUNDS || is_large {
        return false;
    }
    // The reference interpreter has let go of what states were when a step has ended.
    let is_state = |g: &Graph, v: ValueId| matches!(g.values[g.resolve(v).root].def, Def::State(_));
    let gives_state = |g: &Graph| g.outputs.iter().any(|o| is_state(g, o.value));
    if turns.iter().any(|turn| !is_small(turn.graph) || gives_state(turn.graph)) {
        return false;
    }
    let options = ExecutorOptions { threads: 1, ..ExecutorOptions::default() };
    let Ok(mut machine) = InRounds::on_cpu(whole, options) else { return false };
    let references = turns.iter().map(|turn| Reference::new(turn.graph));
    let Ok(mut references) = references.collect::<Result<Vec<_>, _>>() else { return false };
    // The step's constants are those of the parts, one part after another.
    let mut of_step = all.consts().map(|(v, _)| v);
    for (turn, reference) in turns.iter().zip(&mut references) {
        for (v, bytes) in carried(turn.graph) {
            if matches!(turn.graph.values[v].def, Def::Const(_)) {
                let home = of_step.next().expect("a constant of the step");
                fill(&mut machine, home, &bytes);
            }
            reference.value_mut(v).expect("a root").copy_from_slice(&bytes);
        }
    }
    let main = 1;
    let mut states: Vec<Vec<u8>> = {
        let bytes = |s: &State| references[main].value(s.enter).to_vec();
        target.graph.states.values().map(bytes).collect()
    };
    let kept = |states: &[Vec<u8>]| -> Vec<Vec<u8>> {
        let of_graph = target.graph.states.values().zip(states);
        of_graph.filter(|(s, _)| !s.carried).map(|(_, bytes)| bytes.clone()).collect()
    };
    for (state, bytes) in all.states.values().zip(kept(&states)) {
        fill(&mut machine, state.enter, &bytes);
    }
    let by_rows = &target.rounds.as_deref().expect("rounds").by_rows;
    for step in 0..2 {
        let fed: Vec<(ValueId, Vec<u8>)> = all.inputs().map(|v| (v, filled(all, v))).collect();
        for (v, bytes) in &fed {
            if let Some(home) = machine.input_mut(*v) {
                home.copy_from_slice(bytes);
            }
        }
        let ours = machine.step(Draw { seed: 7, step, round: 0 });
        let mut outputs: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
        for (i, (turn, reference)) in turns.iter().zip(&mut references).enumerate() {
            for round in 0..turn.times {
                for (s, bytes) in turn.graph.states.values().zip(&states) {
                    reference.value_mut(s.enter).expect("a root").copy_from_slice(bytes);
                }
                for v in turn.graph.inputs() {
                    let name = &turn.graph.values[v].name;
                    let of_step = fed.iter().find(|(w, _)| all.values[*w].name == *name);
                    let (_, bytes) = of_step.expect("an input of the step");
                    let home = reference.value_mut(v).expect("a root");
                    let by_rows = i == main && by_rows.contains(name);
                    let first = if by_rows { round as usize * home.len() } else { 0 };
                    home.copy_from_slice(&bytes[first..first + home.len()]);
                }
                if reference.step(Draw { seed: 7, step, round: round.into() }).is_err() {
                    return false;
                }
                let exits = turn.graph.states.values().map(|s| reference.value(s.enter).to_vec());
                states = exits.collect();
                for output in &turn.graph.outputs {
                    let bytes = reference.value(output.value);
                    let all = outputs.entry(&output.name).or_default();
                    if !(i == main && by_rows.contains(&output.name)) {
                        all.clear();
                    }
                    all.extend_from_slice(bytes);
                }
            }
        }
        if ours.is_err() {
            return false;
        }
        for (i, output) in all.outputs.iter().enumerate() {
            let right = machine.output(i) == outputs[output.name.as_str()];
            assert!(right, "step {step}: output {i} is not as the reference interpreter's");
        }
        for (s, bytes) in all.states.keys().zip(kept(&states)) {
            let right = machine.state(s).expect("the CPU") == bytes;
            assert!(right, "step {step}: {s} is not as the reference interpreter's");
        }
    }
    true
}

fn fill(machine: &mut impl Machine, v: ValueId, bytes: &[u8]) {
    let copy = |home: &mut [u8]| {
        home.copy_from_slice(bytes);
        Ok::<(), DeviceError>(())
    };
    machine.fill_home(v, copy).expect("the CPU");
}

/// Constants and states with what they hold as the first step begins.
fn carried(g: &Graph) -> Vec<(ValueId, Vec<u8>)> {
    let bytes = |v: ValueId, data: Option<&Data>| match data.and_then(Data::bytes) {
        Some(bytes) => bytes.to_vec(),
        None => filled(g, v),
    };
    let consts = g.consts().map(|(v, data)| (v, bytes(v, Some(data))));
    let states = g.states.values().map(|s| (s.enter, bytes(s.enter, s.init.as_ref())));
    consts.chain(states).collect()
}

/// Small numbers of the value's type.
fn filled(g: &Graph, v: ValueId) -> Vec<u8> {
    let ty = g.ty(v);
    let element = |i: usize| -> Vec<u8> {
        let x = (i * 7 + v.as_u32() as usize * 3) % 5;
        match ty.dtype {
            DType::Bool => vec![(x & 1) as u8],
            DType::F32 => (x as f32 * 0.5 - 0.75).to_le_bytes().to_vec(),
            DType::F64 => (x as f64 * 0.5 - 0.75).to_le_bytes().to_vec(),
            DType::Bf16 => ((x as f32 * 0.5).to_bits().to_le_bytes()[2..]).to_vec(),
            dtype => {
                let mut bytes = vec![0; dtype.size() as usize];
                bytes[0] = x as u8;
                bytes
            }
        }
    };
    (0..ty.elements()).flat_map(element).collect()
}
