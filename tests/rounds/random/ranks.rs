//! The same steps by several ranks, which are threads here, at every level of sharding.

use super::generator::{Case, case};
use super::{STEPS, assert_all_but, cx, difference, feed, is_tame, whole};
use crate::{Tensors, reference};
use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::verify::verify;
use arenic_passes::shard::{Level, Shard, ShardError};
use arenic_passes::{GraphPass, PassError};
use arenic_runtime::kernel::Draw;
use arenic_runtime::ranks::threads::{ThreadRank, ranks};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The step of a rank; `None` where ranks cannot share it.
fn of_rank(g: &Graph, count: usize, shard: Level) -> Result<Option<Graph>, String> {
    // Some tensors of these sizes are exchanged together, some alone.
    let bucket_bytes = Some(256);
    let pass =
        Shard { ranks: count, shard, sync_batch_norm: true, bucket_bytes, ..Shard::default() };
    let mut g = g.clone();
    match pass.run(&mut g, &cx()) {
        Ok(_) => {}
        // Types that do not fit are no refusal, but a defect.
        Err(PassError::Shard(ShardError::Type(e))) => return Err(e.to_string()),
        Err(_) => return Ok(None),
    }
    verify(&g).map_err(|e| e.to_string())?;
    Ok(Some(g))
}

/// The rank's part of what all rows are fed.
fn rows_of(g: &Graph, v: ValueId, all: &[u8], rank: usize) -> Vec<u8> {
    let len = g.ty(v).bytes() as usize;
    let by_rows = g.ranks.as_ref().is_some_and(|r| r.by_rows.contains(&g.values[v].name));
    let first = if by_rows { rank * len } else { 0 };
    all[first..first + len].to_vec()
}

/// The rank's part of a state.
fn part_of(g: &Graph, v: ValueId, all: &[u8], is_part: bool, rank: usize) -> Vec<u8> {
    let len = g.ty(v).bytes() as usize;
    let first = if is_part { (rank * len).min(all.len()) } else { 0 };
    // The last parts may be longer than what is left.
    let mut part = all[first..all.len().min(first + len)].to_vec();
    part.resize(len, 0);
    part
}

/// Outputs and states of every step as one rank has them.
fn run(case: &Case, g: &Graph, rank: ThreadRank) -> Result<Vec<Tensors>, String> {
    use arenic_runtime::ranks::Communicator;
    let number = rank.rank();
    let mut machine = reference(g);
    machine.join(Arc::new(rank));
    for state in g.states.values() {
        let init = state.init.as_ref().unwrap().bytes().unwrap();
        let part = part_of(g, state.enter, init, state.part_of.is_some(), number);
        machine.value_mut(state.enter).unwrap().copy_from_slice(&part);
    }
    let names: BTreeMap<&str, ValueId> =
        case.g.inputs().map(|v| (case.g.values[v].name.as_str(), v)).collect();
    let mut seen = Vec::new();
    for step in 0..STEPS {
        for v in g.inputs() {
            let all = feed(case, names[g.values[v].name.as_str()], step);
            machine.value_mut(v).unwrap().copy_from_slice(&rows_of(g, v, &all, number));
        }
        machine.step(Draw { seed: 5, step, round: number as u64 }).map_err(|e| e.to_string())?;
        let outputs = g.outputs.iter().map(|o| (&o.name, o.value));
        let states = g.states.values().map(|s| (&s.name, s.enter));
        let all = outputs.chain(states);
        seen.push(all.map(|(name, v)| (name.clone(), machine.value(v).to_vec())).collect());
    }
    Ok(seen)
}

/// What ranks have together: parts one after another, and what all of them have once.
fn together(case: &Case, g: &Graph, ranks: &[Vec<Tensors>]) -> Result<Vec<Tensors>, String> {
    let mut whole_bytes: BTreeMap<&str, usize> = BTreeMap::new();
    for output in &case.g.outputs {
        whole_bytes.insert(&output.name, case.g.ty(output.value).bytes() as usize);
    }
    for state in case.g.states.values() {
        whole_bytes.insert(&state.name, case.g.ty(state.enter).bytes() as usize);
    }
    let parts: BTreeSet<&str> = (g.outputs.iter())
        .filter(|o| (g.ty(o.value).bytes() as usize) < whole_bytes[o.name.as_str()])
        .map(|o| o.name.as_str())
        .chain(g.states.values().filter(|s| s.part_of.is_some()).map(|s| s.name.as_str()))
        .collect();
    let mut all = ranks[0].clone();
    for (step, tensors) in all.iter_mut().enumerate() {
        for (name, bytes) in tensors {
            let of_ranks = ranks.iter().map(|rank| &rank[step][name]);
            if parts.contains(name.as_str()) {
                *bytes = of_ranks.flatten().copied().collect();
                bytes.truncate(whole_bytes[name.as_str()]);
            } else if of_ranks.clone().any(|other| other != bytes) {
                return Err(format!("step {step}: ranks have different `{name}`"));
            }
        }
    }
    Ok(all)
}

/// Counts the operators that work on a rank's rows, before ranks put anything together.
fn count(g: &Graph, operators: &mut BTreeMap<String, u32>) {
    let by_rows = &g.ranks.as_ref().unwrap().by_rows;
    let mut cut: BTreeSet<ValueId> =
        g.inputs().filter(|&v| by_rows.contains(&g.values[v].name)).collect();
    for node in g.nodes.values() {
        let is_random = node.op.rng().is_some();
        let is_cut = is_random || node.inputs.iter().any(|v| cut.contains(v));
        if is_cut && node.op.ranks().is_none() {
            cut.extend(node.outputs.iter().flatten());
            *operators.entry(node.op.name().to_owned()).or_default() += 1;
        }
    }
}

fn try_case(seed: u64, tried: &mut (usize, usize, BTreeMap<String, u32>)) -> Result<(), String> {
    let level = Level::ALL[seed as usize % Level::ALL.len()];
    let counts = |rows: usize| (2..=rows).filter(move |count| rows.is_multiple_of(*count));
    let shared = |g: &Graph, rows: usize| {
        counts(rows).any(|count| of_rank(g, count, level).map_or(true, |made| made.is_some()))
    };
    let case = case(seed, &shared);
    let failed = |what: String| format!("seed {seed}, {level:?}: {what}\n{}", case.g);
    let expected = whole(&case).map_err(failed)?;
    if !is_tame(&case.g, &expected) {
        return Ok(());
    }
    let mut is_shared = false;
    for count in counts(case.rows) {
        let made = of_rank(&case.g, count, level);
        let Some(g) = made.map_err(|e| failed(format!("{count} ranks: {e}")))? else { continue };
        let of_ranks: Result<Vec<_>, String> = std::thread::scope(|scope| {
            let (case, g) = (&case, &g);
            let start = |rank| scope.spawn(move || run(case, g, rank));
            let threads: Vec<_> = ranks(count).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let ours = of_ranks.and_then(|of_ranks| together(&case, &g, &of_ranks));
        let ours = ours.map_err(|e| failed(format!("{count} ranks: {e}")))?;
        if let Some(what) = difference(&case.g, &ours, &expected) {
            return Err(failed(format!("{count} ranks: {what}\n{g}")));
        }
        self::count(&g, &mut tried.2);
        is_shared = true;
    }
    *(if is_shared { &mut tried.0 } else { &mut tried.1 }) += 1;
    Ok(())
}

/// Operators that no rank has, though rounds divide them, and why.
const NOT_OF_RANKS: &[(&str, &str)] = &[
    ("batch_norm", "`sync_batch_norm` takes it apart"),
    ("batch_norm_input_grad", "`sync_batch_norm` takes it apart"),
    ("batch_norm_param_grad", "`sync_batch_norm` takes it apart"),
];

#[test]
fn random_steps_by_ranks_give_what_the_whole_batch_gives() {
    let cases = if std::env::var_os("ARENIC_WIDE").is_some() { 20_000 } else { 3_000 };
    let mut tried = (0, 0, BTreeMap::new());
    let failures: Vec<String> =
        (0..cases).filter_map(|seed| try_case(seed, &mut tried).err()).collect();
    let (runs, refused, operators) = tried;
    println!("{runs} shared, {refused} refused, {operators:?}");
    let first = failures.first().map_or("", |s| s);
    assert!(failures.is_empty(), "{} failures, the first one:\n{first}", failures.len());
    assert!(refused * 2 < cases as usize, "{refused} of {cases} refused");
    assert_all_but(NOT_OF_RANKS, &operators);
}
