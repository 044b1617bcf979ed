//! Steps of small programs, beside the reference interpreter.

use arenic_ir::graph::{Data, Graph, ValueId};
use arenic_ir::program::Program;
use arenic_ir::{DType, TargetInfo};
use arenic_runtime::executor::{Executor, Options};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;

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
        let scratch = g.nodes[n].op.scratch_bytes(TargetInfo::CPU, &inputs, &outputs);
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
    let options = Options { threads: 1, ..Options::default() };
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
