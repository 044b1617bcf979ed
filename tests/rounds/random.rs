//! Random steps: in rounds, and by several ranks, they give what the reference interpreter gives of the whole batch.

mod generator;
mod indexing;
mod operators;
mod ranks;
mod sequences;
mod totals;
mod windows;

use crate::linear::linear;
use crate::{Tensors, fill, reference};
use arenic::artifact::{Part, Target};
use arenic::evaluator::Kernels;
use arenic_backends::CPU;
use arenic_baselines::WithBaselines;
use arenic_ir::DType;
use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::op::Op;
use arenic_ir::program::PerSpace;
use arenic_ir::verify::verify;
use arenic_passes::accumulate::{Accumulate, AccumulateError};
use arenic_passes::pipeline::{PartOutcome, Pipeline, PipelineOutcome, RunError, RunOptions};
use arenic_passes::rounds::{Divides, Division};
use arenic_passes::{Cx, PassError, Search};
use arenic_runtime::executor::ExecutorOptions;
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::Machine;
use arenic_runtime::rounds::InRounds;
use fastrand::Rng;
use generator::{Case, case};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

const STEPS: u64 = 2;

fn cx() -> Cx<'static> {
    Cx { evaluate: Some(&Kernels), ..Cx::new(CPU.target()) }
}

/// What a leaf is fed in a step.
fn feed(case: &Case, v: ValueId, step: u64) -> Vec<u8> {
    let value = &case.g.values[v];
    let mut hasher = DefaultHasher::new();
    (&value.name, step).hash(&mut hasher);
    let mut r = Rng::with_seed(hasher.finish());
    let elements = 0..value.ty.elements();
    match value.ty.dtype {
        DType::F64 => elements.flat_map(|_| (r.f64() * 2.0 - 1.0).to_le_bytes()).collect(),
        DType::I64 => {
            let below = case.below[&value.name];
            elements.flat_map(|_| r.i64(-below..below).to_le_bytes()).collect()
        }
        other => panic!("no input is {other}"),
    }
}

/// The outputs and states of every step, by the interpreter of the whole graph.
fn whole(case: &Case) -> Result<Vec<Tensors>, String> {
    let g = &case.g;
    let mut reference = reference(g);
    for state in g.states.values() {
        let init = state.init.as_ref().unwrap().bytes().unwrap();
        reference.value_mut(state.enter).unwrap().copy_from_slice(init);
    }
    let mut seen = Vec::new();
    for step in 0..STEPS {
        for v in g.inputs() {
            reference.value_mut(v).unwrap().copy_from_slice(&feed(case, v, step));
        }
        reference.step(Draw { seed: 5, step, round: 0 }).map_err(|e| e.to_string())?;
        let outputs = g.outputs.iter().map(|o| (&o.name, o.value));
        let states = g.states.values().map(|s| (&s.name, s.enter));
        let all = outputs.chain(states);
        seen.push(all.map(|(name, v)| (name.clone(), reference.value(v).to_vec())).collect());
    }
    Ok(seen)
}

/// Plans a step in so many rounds; where `is_limited`, within three quarters of the arena that it has
/// otherwise, with host memory beside it, if that can be kept.
fn planned(
    case: &Case,
    count: u32,
    pipeline: &str,
    is_limited: bool,
) -> Result<PipelineOutcome, RunError> {
    let rounds = Some(count as usize);
    let pipeline = Pipeline::named(pipeline, &WithBaselines).unwrap();
    let pipeline = pipeline.in_micro_batches(Accumulate { rounds });
    let free = pipeline.run(case.g.clone(), &cx(), RunOptions::default())?;
    if !is_limited {
        return Ok(free);
    }
    let device = Some(free.arena_bytes().device * 3 / 4);
    let search = Search { effort: Some(0.01), ..Search::default() };
    let cx = Cx { limits: PerSpace { device, host: None }, search, ..cx() };
    match pipeline.run(case.g.clone(), &cx, RunOptions::default()) {
        Err(RunError::Pass { error, .. }) if error.is_of_limits() => Ok(free),
        outcome => outcome,
    }
}

/// The same in so many rounds, by the machine.
fn divided(
    case: &Case,
    count: u32,
    (pipeline, is_limited): (&str, bool),
    tried: &mut Tried,
) -> Result<Vec<Tensors>, String> {
    let outcome = planned(case, count, pipeline, is_limited);
    let outcome = outcome.map_err(|e| format!("not planned: {e}"))?;
    tried.moving += usize::from(outcome.arena_bytes().host > 0);
    let part = |part: &PartOutcome| {
        let (graph, program) = (part.graph.clone(), part.program.clone());
        Ok::<_, ()>(Part { graph, program, kernels: None })
    };
    let target = Target {
        variant: String::new(),
        structure: String::new(),
        graph: outcome.module.graph,
        program: outcome.module.program.unwrap(),
        rounds: Some(Box::new(outcome.rounds.unwrap().map(part).unwrap())),
        ..linear()
    };
    target.check().map_err(|violations| format!("not accepted: {violations:?}"))?;
    let step = target.whole_step().map_err(|e| format!("no step: {e}"))?.unwrap();
    let g = step.graph();
    let options = ExecutorOptions { poison: true, ..ExecutorOptions::default() };
    let mut machine = InRounds::on_cpu(&step, options).map_err(|e| format!("not accepted: {e}"))?;
    for (v, data) in g.consts() {
        fill(&mut machine, v, data.bytes().unwrap());
    }
    for state in g.states.values() {
        fill(&mut machine, state.enter, state.init.as_ref().unwrap().bytes().unwrap());
    }
    // Inputs of the whole graph, by name.
    let inputs: BTreeMap<&str, ValueId> =
        case.g.inputs().map(|v| (case.g.values[v].name.as_str(), v)).collect();
    let mut seen = Vec::new();
    for step in 0..STEPS {
        for v in g.inputs() {
            let bytes = feed(case, inputs[g.values[v].name.as_str()], step);
            let home = machine.input_mut(v).unwrap();
            if home.len() != bytes.len() {
                return Err(format!("{} has other rows", g.values[v].name));
            }
            home.copy_from_slice(&bytes);
        }
        let run = machine.step(Draw { seed: 5, step, round: 0 });
        run.map_err(|e| format!("does not run: {e}"))?;
        let outputs = g.outputs.iter().enumerate();
        let outputs = outputs.map(|(i, o)| (o.name.clone(), machine.output(i).to_vec()));
        let states = g.states.iter();
        let states =
            states.map(|(s, state)| (state.name.clone(), machine.state(s).unwrap().to_vec()));
        seen.push(outputs.chain(states).collect());
    }
    Ok(seen)
}

/// Numbers of a float type.
fn numbers(bytes: &[u8], dtype: DType) -> Option<Vec<f64>> {
    let single = |b: &[u8]| f64::from(f32::from_le_bytes(b.try_into().unwrap()));
    let double = |b: &[u8]| f64::from_le_bytes(b.try_into().unwrap());
    match dtype {
        DType::F32 => Some(bytes.chunks_exact(4).map(single).collect()),
        DType::F64 => Some(bytes.chunks_exact(8).map(double).collect()),
        _ => None,
    }
}

/// Types of outputs and states, by name.
fn types(g: &Graph) -> BTreeMap<&str, DType> {
    let outputs = g.outputs.iter().map(|o| (o.name.as_str(), g.ty(o.value).dtype));
    let states = g.states.values().map(|s| (s.name.as_str(), g.ty(s.enter).dtype));
    outputs.chain(states).collect()
}

/// The first tensor that differs: by more than rounding, or at all where it has no floats.
fn difference(g: &Graph, ours: &[Tensors], whole: &[Tensors]) -> Option<String> {
    let types = types(g);
    // Numbers in double precision, where some steps are in single precision, too.
    let narrow = g.values.values().any(|v| v.ty.dtype == DType::F32);
    let tolerance = if narrow { 1e-4 } else { 1e-9 };
    for (step, (ours, whole)) in ours.iter().zip(whole).enumerate() {
        if !ours.keys().eq(whole.keys()) {
            return Some(format!("{:?} {:?}", ours.keys(), whole.keys()));
        }
        for (name, a) in ours {
            let (b, dtype) = (&whole[name], types[name.as_str()]);
            let what = match (numbers(a, dtype), numbers(b, dtype)) {
                (Some(a), Some(b)) => {
                    let magnitude = b.iter().fold(1.0f64, |m, x| m.max(x.abs()));
                    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * magnitude;
                    let same = a.len() == b.len() && a.iter().zip(&b).all(near);
                    (!same).then(|| format!("{a:?}\n{b:?}"))
                }
                _ => (a != b).then(|| format!("{a:?}\n{b:?}")),
            };
            if let Some(what) = what {
                return Some(format!("step {step}, `{name}`, in rounds and whole:\n{what}"));
            }
        }
    }
    None
}

/// No number is so large that rounding would count.
fn is_tame(g: &Graph, whole: &[Tensors]) -> bool {
    let types = types(g);
    whole.iter().flatten().all(|(name, bytes)| {
        let numbers = numbers(bytes, types[name.as_str()]);
        numbers.is_none_or(|all| all.iter().all(|x| x.abs() < 1e6))
    })
}

/// Counts the operators of a round that depend on its rows, or draw for them.
fn cut_operators(case: &Case, division: &Division, operators: &mut BTreeMap<String, u32>) {
    let g = &division.main;
    let named = |v: &ValueId| division.rounds.by_rows.contains(&g.values[*v].name);
    let mut cut: BTreeSet<ValueId> = g.inputs().filter(named).collect();
    for node in g.nodes.values() {
        let is_narrower = |op: &Op| {
            matches!(op, Op::RandomUniform { .. }) && !case.g.nodes.values().any(|n| n.op == *op)
        };
        if node.inputs.iter().any(|v| cut.contains(v)) || is_narrower(&node.op) {
            cut.extend(node.outputs.iter().flatten());
            *operators.entry(node.op.name().to_owned()).or_default() += 1;
        }
    }
}

/// What is tried of all graphs.
#[derive(Default)]
struct Tried {
    runs: usize,
    refused: usize,
    /// Steps whose numbers are too large to be compared.
    wild: usize,
    /// Plans with a part in host memory.
    moving: usize,
    /// States that took terms round by round.
    growing: usize,
    /// Nodes that ran on a part of the rows.
    operators: BTreeMap<String, u32>,
}

/// Tries a step in all numbers of rounds.
fn try_case(seed: u64, tried: &mut Tried) -> Result<(), String> {
    let accumulate = Accumulate { rounds: None };
    let counts = |rows: usize| (2..=rows as u32).filter(move |n| (rows as u32).is_multiple_of(*n));
    // Types that do not fit are no refusal, but a defect, which must not be left out.
    let defect = |e: &PassError| matches!(e, PassError::Accumulate(AccumulateError::Type(_)));
    let case = case(seed, &|g, rows| {
        counts(rows).any(|n| accumulate.divide(g, n, &cx()).map_or_else(|e| defect(&e), |_| true))
    });
    let failed = |what: String| format!("seed {seed}: {what}\n{}", case.g);
    verify(&case.g).map_err(|e| failed(e.to_string()))?;
    let expected = whole(&case).map_err(failed)?;
    if !is_tame(&case.g, &expected) {
        tried.wild += 1;
        return Ok(());
    }
    let mut division = None;
    for count in counts(case.rows) {
        match accumulate.divide(&case.g, count, &cx()) {
            Ok(divided) => division = Some(divided),
            Err(PassError::Accumulate(AccumulateError::Type(e))) => {
                return Err(failed(format!("in {count}: {e}")));
            }
            Err(_) => continue,
        }
        let pipeline = if seed.is_multiple_of(10) { "default" } else { "definition" };
        let ours = divided(&case, count, (pipeline, seed % 20 == 10), tried);
        let ours = ours.map_err(|e| failed(format!("in {count}: {e}")))?;
        if let Some(what) = difference(&case.g, &ours, &expected) {
            return Err(failed(format!("in {count}: {what}")));
        }
        tried.runs += 1;
    }
    match division {
        Some(division) => {
            let states = division.main.states.values();
            tried.growing += states.filter(|s| !s.carried && s.exit != s.enter).count();
            cut_operators(&case, &division, &mut tried.operators);
        }
        None => tried.refused += 1,
    }
    Ok(())
}

/// Operators that are never divided, and why. All others must have run on a part of the rows.
const NEVER_DIVIDED: &[(&str, &str)] = &[
    ("all_gather", "`shard` makes it of a step that is divided"),
    ("all_reduce", "`shard` makes it of a step that is divided"),
    ("reduce_scatter", "`shard` makes it of a step that is divided"),
    ("own_part", "`shard` makes it of a step that is divided"),
    ("for_each", "`group_updates` makes it of a step that is divided"),
    ("fused_norm", "`fuse_norms` makes it of a step that is divided"),
    ("fused_norm_grad", "`fuse_norms` makes it of a step that is divided"),
    ("opaque", "it has no kernel"),
];

/// Asserts that the operators that ran on parts of the rows are all but those that never do, and some others.
fn assert_all_but(others: &[(&str, &str)], operators: &BTreeMap<String, u32>) {
    let left_out = || NEVER_DIVIDED.iter().chain(others).map(|(name, _)| *name);
    assert!(left_out().all(|name| Op::NAMES.contains(&name)));
    let divided: BTreeSet<&str> = operators.keys().map(String::as_str).collect();
    let expected: BTreeSet<&str> =
        Op::NAMES.iter().copied().filter(|name| left_out().all(|other| other != *name)).collect();
    let missing: Vec<_> = expected.difference(&divided).collect();
    assert!(
        missing.is_empty(),
        "never on a part of the rows: {missing:?}; draw them in operators.rs"
    );
    let more: Vec<_> = divided.difference(&expected).collect();
    assert!(
        more.is_empty(),
        "on a part of the rows, though they are listed as never divided: {more:?}"
    );
}

/// A thousand graphs, each planned twice or more: fewer do not reach every operator in every role, as is asserted.
#[test]
fn random_steps_give_what_the_whole_batch_gives() {
    let cases = match std::env::var_os("ARENIC_WIDE") {
        Some(_) => 10_000,
        None => 1000,
    };
    let mut tried = Tried::default();
    let failures: Vec<String> =
        (0..cases).filter_map(|seed| try_case(seed, &mut tried).err()).collect();
    let Tried { runs, refused, wild, moving, growing, operators } = tried;
    println!(
        "{runs} runs, {refused} refused, {wild} wild, {moving} moving, {growing} growing, {operators:?}"
    );
    let first = failures.first().map_or("", |s| s);
    assert!(failures.is_empty(), "{} failures, the first one:\n{first}", failures.len());
    // The generator reaches what it is meant to reach.
    assert!(refused * 5 < cases as usize, "{refused} of {cases} refused");
    assert!(wild * 100 < cases as usize, "{wild} of {cases} too large to be compared");
    assert!(moving * 100 > cases as usize, "{moving} plans of {cases} steps used host memory");
    assert!(growing * 40 > cases as usize, "{growing} states of {cases} steps took terms");
    assert_all_but(&[], &operators);
}
