//! Random steps that take turns, in random sequences: planned over common homes they give the bits of
//! the reference interpreter, which carries states from one to another by name.

use arenic_backends::CPU;
use arenic_baselines::WithBaselines;
use arenic_ir::ValueId;
use arenic_ir::graph::{Data, Def, Graph};
use arenic_ir::program::{PerSpace, Program, Space};
use arenic_ir::verify::verify;
use arenic_passes::feed_constants::FeedConstants;
use arenic_passes::pipeline::{Pipeline, PipelineOutcome, RunError, RunOptions};
use arenic_passes::{Cx, PassError, Pinned, Search, StateHomes, Turns};
use arenic_programs::{Random, graph, training};
use arenic_runtime::executor::ExecutorOptions;
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::Machine;
use arenic_runtime::reference::Reference;
use arenic_runtime::rounds::Part;
use arenic_runtime::variants::{Step, Variants};
use bytes::Bytes;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

const STEPS: u64 = 9;

/// Numbers of a tensor, which follow from a seed.
fn numbers(seed: u64, bytes: u64) -> Vec<u8> {
    let mut r = Rng::with_seed(seed);
    (0..bytes / 4).flat_map(|_| (r.f32() - 0.5).to_le_bytes()).collect()
}

/// A graph whose states and constants may be those of another one: names say what they are.
fn step(random: &mut Random) -> Graph {
    let mut g = match random.chance(40) {
        true => {
            let layers = 3 + random.below(12);
            training(random, layers)
        }
        false => {
            let nodes = 3 + random.below(20);
            graph(random, nodes)
        }
    };
    let types: Vec<String> =
        g.states.values().map(|state| format!("{}", g.ty(state.enter))).collect();
    for (state, ty) in g.states.values_mut().zip(types) {
        state.name = format!("{} {ty}", state.name);
    }
    let constants: Vec<ValueId> = g.consts().map(|(v, _)| v).collect();
    for v in constants {
        // Of few contents, so that some are equal in several graphs and some are not.
        let bytes = numbers(random.below(2) as u64, g.ty(v).bytes());
        g.values[v].def = Def::Const(Data::Bytes(bytes.into()));
    }
    verify(&g).unwrap();
    g
}

fn pipeline(random: &mut Random) -> Pipeline {
    let orders = ["best", "definition", "freed_minus_allocated", "depth_first"];
    let shares = ["share_in_place", "share_parallel: {across_streams: true}"];
    let places = ["place", "place_smartpool", "place_pyramid"];
    let streams = 1 + random.below(3);
    let streams = match random.chance(30) {
        true => format!("- streams: {{count: {streams}}}\n- order: {{method: best}}\n"),
        false => {
            format!("- order: {{method: {}}}\n- budget: {{effort: 0.05}}\n", random.pick(&orders))
        }
    };
    let (share, place) = (random.pick(&shares), random.pick(&places));
    let section = if random.chance(50) { "- section\n- views\n" } else { "" };
    let yaml =
        format!("{section}- detach_states\n{streams}- {share}\n- {place}\n- lower\n- sync\n");
    Pipeline::from_yaml(&yaml, &WithBaselines).unwrap_or_else(|e| panic!("{e}\n{yaml}"))
}

/// What is tried of the cases.
#[derive(Default)]
struct Tried {
    ran: usize,
    limited: usize,
    /// With a state in common.
    shared: usize,
    /// With states that have their homes in host memory, and with some that leave it for a part of a step.
    in_host: usize,
    moved: usize,
    /// With a step that was added while states were there, and with constants of it that were fed.
    added: usize,
    fed: usize,
}

/// A step that is added to others.
struct Added {
    graph: Graph,
    program: Program,
    fed: BTreeMap<String, Bytes>,
}

/// Plans a step of the states of others and of other constants over the homes that there are; `None` where it
/// does not fit.
fn added(random: &mut Random, graphs: &[Graph], steps: &[(Graph, Program)]) -> Option<Added> {
    let mut g = graphs[random.below(graphs.len())].clone();
    let constants: Vec<ValueId> = g.consts().map(|(v, _)| v).collect();
    for v in constants {
        if random.chance(50) {
            let bytes = numbers(2 + random.below(2) as u64, g.ty(v).bytes());
            g.values[v].def = Def::Const(Data::Bytes(bytes.into()));
        }
    }
    let parts: Vec<(&Graph, &Program)> = steps.iter().map(|(g, p)| (g, p)).collect();
    let (pinned, homes) = (Pinned::of(&parts), StateHomes::of(&parts));
    let feeds = Arc::new(FeedConstants::beside(&pinned));
    let pipeline = pipeline(random).with_last_rewrite("feed_constants", feeds.clone());
    let sizes = parts.iter().map(|(_, p)| p.sizes).fold(PerSpace::default(), PerSpace::largest);
    let limits = PerSpace { device: Some(sizes.device), host: Some(sizes.host) };
    let search = Search { effort: Some(0.05), ..Search::default() };
    let state_homes = Some(&homes);
    let turns = Turns::OfVariants;
    let cx = Cx { limits, search, turns, state_homes, ..Cx::new(CPU.target()) };
    let mut outcome = match pipeline.run(g.clone(), &cx, RunOptions::default()) {
        Ok(outcome) => outcome,
        Err(RunError::Pass { error, .. }) if error.is_of_limits() => return None,
        Err(e) => panic!("{e}\n{g}"),
    };
    let others: Vec<Vec<_>> = parts.iter().map(|part| vec![*part]).collect();
    match pipeline.join_homes(&others, &mut outcome, &cx) {
        Ok(()) => {}
        // A constant, or a slot of two states, may have its home in the other memory.
        Err(RunError::Pass { error: PassError::Home(_), .. }) => return None,
        Err(e) => panic!("{e}\n{g}"),
    }
    if sizes.largest(outcome.arena_bytes()) != sizes {
        return None;
    }
    let (graph, program) = (outcome.module.graph, outcome.module.program.unwrap());
    Some(Added { graph, program, fed: feeds.fed() })
}

/// Plans steps over common homes; `None` where a limit cannot be kept.
fn planned(
    random: &mut Random,
    graphs: &[Graph],
    limits: PerSpace<Option<u64>>,
    tried: &mut Tried,
) -> Option<Vec<(Graph, Program)>> {
    let pipeline = pipeline(random);
    let search = Search { effort: Some(0.05), ..Search::default() };
    let cx = Cx { limits, search, turns: Turns::OfVariants, ..Cx::new(CPU.target()) };
    let run = |g: &Graph, cx: &Cx| match pipeline.run(g.clone(), cx, RunOptions::default()) {
        Ok(outcome) => Some(outcome),
        Err(RunError::Pass { error, .. }) if error.is_of_limits() => None,
        Err(e) => panic!("{e}\n{g}"),
    };
    let mut outcomes =
        graphs.iter().map(|g| run(g, &cx)).collect::<Option<Vec<PipelineOutcome>>>()?;
    let all = StateHomes::of(&outcomes.iter().flat_map(PipelineOutcome::parts).collect::<Vec<_>>());
    let cx = Cx { state_homes: Some(&all), ..cx };
    for (g, outcome) in graphs.iter().zip(&mut outcomes) {
        if !outcome.parts().iter().all(|part| all.are_of(part)) {
            *outcome = run(g, &cx)?;
        }
    }
    let alone = outcomes.iter().map(|o| o.arena_bytes().device).max().unwrap_or(0);
    let homes = |g: &Graph| {
        let states = g.states.values().map(|s| g.ty(s.enter).bytes().next_multiple_of(64));
        let constants = g.consts().map(|(v, _)| g.ty(v).bytes().next_multiple_of(64));
        states.sum::<u64>() + constants.sum::<u64>()
    };
    pipeline.share_homes(&mut outcomes, &cx).unwrap_or_else(|e| panic!("{e}\n{}", graphs[0]));
    let together = outcomes.iter().map(|o| o.arena_bytes().device).max().unwrap_or(0);
    // At most the homes of others come on top, if nothing lies in homes that are left for a while.
    let most: u64 = graphs.iter().map(homes).sum();
    let text: String =
        outcomes.iter().map(|o| o.module.program.as_ref().unwrap().to_string()).collect();
    let moves = text.contains("host[");
    assert!(moves || together <= alone + most, "{together} bytes, alone {alone}");
    tried.moved += usize::from(moves);
    let is_host = |o: &PipelineOutcome| {
        let parts = o.parts();
        let homes = |(g, p): &(&Graph, &Program)| {
            let is_state = |v| matches!(g.values[v].def, Def::State(_));
            p.homes.iter().any(|h| h.range.space == Space::Host && is_state(h.value))
        };
        parts.iter().any(homes)
    };
    tried.in_host += usize::from(outcomes.iter().any(is_host));
    Some(outcomes.into_iter().map(|o| (o.module.graph, o.module.program.unwrap())).collect())
}

/// Runs steps in a random sequence, planned and by the interpreter. One of them is added when others have run.
fn hold(random: &mut Random, steps: &[(Graph, Program)], added: Option<&Added>) {
    let ready: Vec<Step> =
        steps.iter().map(|(graph, program)| Step::Whole(Part { graph, program })).collect();
    let options = ExecutorOptions { threads: 1, poison: random.chance(70), stress: None };
    let mut machines = Variants::on_cpu(&ready, options).unwrap();
    let mut references: Vec<Reference> =
        steps.iter().map(|(g, _)| Reference::new(g).unwrap()).collect();
    let mut states: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (v, (g, _)) in steps.iter().enumerate() {
        for (c, data) in g.consts() {
            let bytes = data.bytes().unwrap();
            references[v].value_mut(c).unwrap().copy_from_slice(bytes);
            fill(machines.at(v), c, bytes);
        }
        for state in g.states.values() {
            let seed = state.name.bytes().fold(7u64, |h, b| h.wrapping_mul(31) + u64::from(b));
            let bytes = numbers(seed, g.ty(state.enter).bytes());
            fill(machines.at(v), state.enter, &bytes);
            states.insert(state.name.clone(), bytes);
        }
    }
    let mut graphs: Vec<&Graph> = steps.iter().map(|(g, _)| g).collect();
    for step in 0..STEPS {
        if let (3, Some(Added { graph, program, fed })) = (step, added) {
            if let Err(e) = machines.add(Step::Whole(Part { graph, program }), &[]) {
                panic!("{e}\n{graph}");
            }
            let mut reference = Reference::new(graph).unwrap();
            for (c, data) in graph.consts() {
                reference.value_mut(c).unwrap().copy_from_slice(data.bytes().unwrap());
            }
            let held = |v| Some((v, fed.get(&graph.values[v].name)?.clone()));
            machines.hold(graphs.len(), graph.inputs().filter_map(held).collect());
            references.push(reference);
            graphs.push(graph);
        }
        let v = if step == 3 { graphs.len() - 1 } else { random.below(graphs.len()) };
        let (g, reference, machine) = (graphs[v], &mut references[v], machines.at(v));
        for (i, input) in g.inputs().enumerate() {
            if let Some(bytes) = added.and_then(|added| added.fed.get(&g.values[input].name)) {
                reference.value_mut(input).unwrap().copy_from_slice(bytes);
                continue;
            }
            let bytes = numbers(step * 100 + i as u64, g.ty(input).bytes());
            reference.value_mut(input).unwrap().copy_from_slice(&bytes);
            if let Some(home) = machine.input_mut(input) {
                home.copy_from_slice(&bytes);
            }
        }
        for state in g.states.values() {
            reference.value_mut(state.enter).unwrap().copy_from_slice(&states[&state.name]);
        }
        let draw = Draw { seed: 3, step, round: 0 };
        reference.step(draw).unwrap();
        machine.step(draw).unwrap();
        for (i, output) in g.outputs.iter().enumerate() {
            // What the step leaves as the old value of a state is read before that is carried over.
            let is_state = matches!(g.values[g.resolve(output.value).root].def, Def::State(_));
            let same = is_state || machine.output(i) == reference.value(output.value);
            assert!(same, "step {step}, `{}` of {v}\n{g}", output.name);
        }
        for state in g.states.values() {
            states.insert(state.name.clone(), reference.value(state.enter).to_vec());
        }
        // Every variant finds every state as the last step has left it.
        for (w, g) in graphs.iter().enumerate() {
            for (s, state) in &g.states {
                let same = machines.read(w).state(s).unwrap()[..] == states[&state.name];
                assert!(same, "step {step} of {v}: `{}` of {w}\n{g}", state.name);
            }
        }
    }
}

fn fill(machine: &mut impl Machine, v: ValueId, bytes: &[u8]) {
    let fill = |home: &mut [u8]| {
        home.copy_from_slice(bytes);
        Ok::<(), arenic_runtime::machine::DeviceError>(())
    };
    machine.fill_home(v, fill).unwrap();
}

/// Each of 400 cases is up to four steps, planned together and run in turn, so that it takes some seconds.
#[test]
fn random_variants_give_what_the_interpreter_gives() {
    let cases = match std::env::var_os("ARENIC_WIDE") {
        Some(_) => 6000,
        None => 400,
    };
    let mut tried = Tried::default();
    for seed in 0..cases {
        let mut random = Random::new(0xa1e0 + seed);
        let graphs: Vec<Graph> = (0..2 + random.below(3)).map(|_| step(&mut random)).collect();
        let device = random.chance(60).then(|| 64 * (6 + random.below(24) as u64));
        let host = if random.chance(50) { None } else { Some(0) };
        let limits = PerSpace { device, host };
        let Some(steps) = planned(&mut random, &graphs, limits, &mut tried) else { continue };
        let added = added(&mut random, &graphs, &steps);
        hold(&mut random, &steps, added.as_ref());
        if let Some(Added { fed, .. }) = added {
            tried.added += 1;
            tried.fed += usize::from(!fed.is_empty());
        }
        tried.ran += 1;
        tried.limited += usize::from(device.is_some());
        let names = |g: &Graph| g.states.values().map(|s| s.name.clone()).collect::<Vec<_>>();
        let first = names(&graphs[0]);
        tried.shared += usize::from(names(&graphs[1]).iter().any(|name| first.contains(name)));
    }
    // The generator reaches what it is meant to reach.
    let Tried { ran, limited, shared, in_host, moved, added, fed } = tried;
    let figures = format!(
        "{ran} of {cases}, {limited} under limits, {shared} with a state in common, {moved} with copies to \
         host memory, {in_host} with homes there; {added} with one that was added, {fed} with constants fed"
    );
    println!("{figures}");
    assert!(ran * 2 > cases as usize && limited * 20 > ran && shared * 10 > ran, "{figures}");
    assert!(moved * 50 > ran && in_host * 100 > ran, "{figures}");
    assert!(added * 4 > ran && fed * 20 > ran, "{figures}");
}
