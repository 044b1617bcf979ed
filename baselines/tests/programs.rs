//! Random graphs through random legal plans: `check` accepts every program that the
//! passes make, its streams give the right result in every interleaving tried, and every
//! mutated program that fails under some interleaving is rejected.

use arenic_backends::CPU;
use arenic_baselines::WithBaselines;
use arenic_ir::TargetInfo;
use arenic_ir::check::check;
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Buffer, BufferId, BufferKind, LiveRange, Plan, TaskId};
use arenic_ir::program::{Command, PerSpace, Program, Space};
use arenic_ir::text::Module;
use arenic_passes::certificate::bound;
use arenic_passes::early_update::EarlyUpdate;
use arenic_passes::lower::Lower;
use arenic_passes::order::Order;
use arenic_passes::pipeline::{Pipeline, Report, RunError, RunOptions};
use arenic_passes::place::Place;
use arenic_passes::prune_precedence::PrunePrecedence;
use arenic_passes::share_in_place::ShareInPlace;
use arenic_passes::simulate::{live_over_time, roofline, simulate};
use arenic_passes::spans::Spans;
use arenic_passes::sync::Sync;
use arenic_passes::{Cx, PassError, PlanPass, ProgramPass, devices};
use arenic_programs::interleave::{reference, run};
use arenic_programs::mutate::{KINDS, mutate};
use arenic_programs::{CELL, CX, Random, graph, program, training};
use std::collections::BTreeMap;

/// What goes wrong from one step to the next has gone wrong by then.
const STEPS: usize = 3;

#[test]
fn check_accepts_what_the_passes_make_and_it_is_right() {
    let (mut swaps, mut waits, mut repeats) = (0, 0, 0);
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let nodes = 3 + random.below(9);
        let g = graph(&mut random, nodes);
        let streams = 1 + random.below(3);
        let p = program(&mut random, &g, streams);
        if let Err(violations) = check(&g, &p) {
            panic!("seed {seed}: {violations:?}\n{g}{p}");
        }
        let expected = reference(&g, STEPS);
        for _ in 0..6 {
            assert!(run(&mut random, &g, &p, &expected), "seed {seed} fails:\n{g}{p}");
        }
        let text = p.to_string();
        swaps += usize::from(text.contains("host["));
        waits += usize::from(text.contains("wait "));
        repeats += usize::from(text.matches("run n").count() > g.nodes.len());
    }
    // The generator reaches what it is meant to reach.
    assert!(swaps > 50 && waits > 100 && repeats > 10, "{swaps} {waits} {repeats}");
}

#[test]
fn check_rejects_every_mutant_that_can_fail() {
    // Per kind: mutants seen to fail, all of them rejected, and rejected ones.
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for seed in 0..1200 {
        let mut random = Random::new(0x5eed + seed);
        let nodes = 3 + random.below(7);
        let g = graph(&mut random, nodes);
        let p = program(&mut random, &g, 3);
        let expected = reference(&g, STEPS);
        for kind in KINDS {
            for _ in 0..3 {
                let Some(mutant) = mutate(&mut random, &g, &p, kind, 3) else { continue };
                let count = counts.entry(kind).or_default();
                let rejected = check(&g, &mutant).is_err();
                // What is rejected runs until it is plain that the kind does harm.
                if mutant == p || rejected && count.0 >= 10 {
                    continue;
                }
                let fails = (0..12).any(|_| !run(&mut random, &g, &mutant, &expected));
                assert!(rejected || !fails, "seed {seed}, {kind}: missed\n{g}{p}{mutant}");
                count.0 += usize::from(fails);
                count.1 += usize::from(rejected);
            }
        }
    }
    for kind in KINDS.into_iter().filter(|&kind| kind != "record and wait") {
        let (failing, rejected) = counts[kind];
        assert!(failing >= 10, "{kind}: only {failing} mutants failed ({rejected} rejected)");
    }
}

#[test]
fn whole_pipelines_on_random_graphs() {
    let orders = [
        "best",
        "definition",
        "freed_minus_allocated",
        "least_peak_first_reversed",
        "eager_free",
        "depth_first",
        "depth_first_reversed",
    ];
    let places = ["place", "place_smartpool", "place_smartpool: {fit: first}", "place_pyramid"];
    for seed in 0..2000 {
        let mut random = Random::new(0xabc + seed);
        let nodes = 3 + random.below(30);
        let g = graph(&mut random, nodes);
        let mut yaml = String::new();
        for pass in ["fold_constants", "dead_code", "fuse_transposes", "views"] {
            if random.chance(60) {
                yaml += &format!("- {pass}\n");
            }
        }
        yaml += "- detach_states\n";
        for pass in ["spans", "early_update", "prune_precedence"] {
            if yaml.contains("spans") || pass == "spans" && random.chance(50) {
                yaml += &format!("- {pass}\n");
            }
        }
        let order = match seed % 40 {
            0 => "order_ilp: {window: 12, effort: 0.5}".to_owned(),
            _ => format!("order: {{method: {}}}", random.pick(&orders)),
        };
        let (streams, place) = (1 + random.below(3), random.pick(&places));
        let share = match random.below(3) {
            0 => format!("share_parallel: {{across_streams: {}}}", random.chance(50)),
            1 => format!("share_parallel: {{hold: {}}}", random.chance(50)),
            _ => format!("share_in_place: {{enabled: {}}}", random.chance(70)),
        };
        yaml += &format!(
            "- streams: {{count: {streams}}}\n- {order}\n- {share}\n- {place}\n- lower\n- sync\n"
        );
        let pipeline = Pipeline::from_yaml(&yaml, &WithBaselines).unwrap();
        let outcome = pipeline
            .run(g.clone(), &CX, RunOptions::default())
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{yaml}{g}"));
        let footprint = outcome.footprint.unwrap();
        let g = &outcome.module.graph;
        let plan = outcome.module.plan.as_ref().unwrap();
        // The planned peak is the checked one, and the bound is below it. A slot for buffers
        // of several sizes counts as the largest of them, also between them.
        let planned = plan.slots().unwrap().live_peak().device;
        let checked = footprint.live_peak_bytes.device;
        let tight = yaml.contains("share_in_place");
        assert!(
            planned == checked || !tight && planned > checked,
            "seed {seed}\n{}",
            outcome.module
        );
        let program = outcome.module.program.as_ref().unwrap();
        let bound = bound(g, program.nodes(), &CX).unwrap().bytes;
        assert!(bound <= planned, "seed {seed}: bound {bound} above {planned}\n{g}");
        // Text is lossless.
        let printed = outcome.module.to_string();
        let parsed = Module::parse(&printed, &arenic_backends::ALL)
            .unwrap_or_else(|e| panic!("{e}\n{printed}"));
        assert_eq!(parsed, outcome.module, "seed {seed}");
        assert_eq!(parsed.to_string(), printed);
    }
}

/// Events that streams wait for.
fn events(program: &Program) -> usize {
    let is_event = |command: &&Command| matches!(command, Command::Record { .. });
    program.commands.iter().filter(is_event).count()
}

/// Events and arena of the graph on streams, shared and placed.
fn on_streams(g: &Graph, count: usize, share: &str) -> (usize, u64, Plan) {
    let yaml = format!(
        "- streams: {{count: {count}}}\n- order: {{method: definition}}\n- {share}\n\
         - place\n- lower\n- sync\n"
    );
    let pipeline = Pipeline::from_yaml(&yaml, &WithBaselines).unwrap();
    let outcome = pipeline.run(g.clone(), &CX, RunOptions::default()).unwrap();
    let arena = outcome.footprint.unwrap().arena_bytes.device;
    (events(&outcome.module.program.unwrap()), arena, outcome.module.plan.unwrap())
}

/// Events and arena of the plan with bytes of its own for every buffer but the homes.
fn without_reuse(g: &Graph, plan: &Plan) -> (usize, u64) {
    let mut plan = plan.clone();
    ShareInPlace { enabled: false }.run(g, &mut plan, &CX).unwrap();
    let mut slots = plan.slots().unwrap().clone();
    let last = plan.tasks.len().saturating_sub(1) as u32;
    for slot in slots.slots.values_mut() {
        slot.live = LiveRange { first: 0, last };
    }
    plan.set_slots(slots);
    Place::default().run(g, &mut plan, &CX).unwrap();
    let mut program = Program::new(TargetInfo { align: CELL, ..CPU.target() });
    Lower {}.run(g, &plan, &mut program, &CX).unwrap();
    Sync {}.run(g, &plan, &mut program, &CX).unwrap();
    (events(&program), check(g, &program).unwrap().arena_bytes.device)
}

/// Without `across_streams` nothing waits that would not wait with bytes for each buffer.
#[test]
fn sharing_for_streams_adds_no_waits() {
    let (mut tried, mut shared, mut crossed) = (0, 0, 0);
    for seed in 0..2000 {
        let mut random = Random::new(0x5713 + seed);
        let nodes = 3 + random.below(20);
        let g = graph(&mut random, nodes);
        let count = 2 + random.below(2);
        let (events, arena, plan) =
            on_streams(&g, count, "share_parallel: {across_streams: false}");
        // A new value that is written straight home waits for the old one's readers.
        let at_home = plan.buffers.iter().any(|(b, buffer)| {
            let slots = plan.slots().unwrap();
            let home = |(h, x): (BufferId, &Buffer)| {
                matches!(x.kind, BufferKind::Enter(_)) && slots.of[h] == slots.of[b]
            };
            buffer.kind == BufferKind::Value && plan.buffers.iter().any(home)
        });
        if at_home {
            continue;
        }
        let (needed, most) = without_reuse(&g, &plan);
        assert_eq!(events, needed, "seed {seed}\n{g}");
        let (with, least, _) = on_streams(&g, count, "share_in_place");
        tried += 1;
        shared += usize::from(arena < most);
        crossed += usize::from(with > events && least < arena);
    }
    assert!(tried > 300 && shared > 100 && crossed > 50, "{tried} {shared} {crossed}");
}

/// Under random limits every program is right in every interleaving tried and keeps the limit;
/// the least limit that can be kept is the same whatever limit was asked for.
#[test]
fn byte_limits_are_kept() {
    byte_limits("", None, if is_wide() { 1500 } else { 600 });
}

/// The same where nothing may leave the device. Deep graphs, as repeats pay in them alone: each takes three searches.
#[test]
fn byte_limits_are_kept_by_repeats_alone() {
    byte_limits("", Some(0), if is_wide() { 10_000 } else { 60 });
}

/// `make test-all` has more seeds.
fn is_wide() -> bool {
    std::env::var_os("ARENIC_WIDE").is_some()
}

#[test]
fn byte_limits_are_kept_in_parts() {
    byte_limits("- section\n- views\n", None, 300);
}

fn byte_limits(first: &str, host: Option<u64>, seeds: u64) {
    let yaml = "- detach_states\n- order: {method: definition}\n- budget\n- share_in_place\n\
                - place\n- lower\n- sync\n";
    let pipeline = Pipeline::from_yaml(&format!("{first}{yaml}"), &WithBaselines).unwrap();
    let device = devices::cpu().unwrap();
    let (mut swaps, mut repeats, mut refused) = (0, 0, 0);
    for seed in 0..seeds {
        let mut random = Random::new(0xb1d6e7 + seed);
        let g = match host {
            Some(0) => {
                let layers = 2 + random.below(12);
                training(&mut random, layers)
            }
            _ => {
                let nodes = 3 + random.below(20);
                graph(&mut random, nodes)
            }
        };
        let whole = pipeline.run(g.clone(), &CX, RunOptions::default()).unwrap();
        let whole = whole.footprint.unwrap().arena_bytes.device;
        let limited = |limit: u64| {
            let cx = Cx { limits: PerSpace { device: Some(limit), host }, ..CX };
            pipeline.run(g.clone(), &cx, RunOptions::default())
        };
        let limit = whole * (20 + random.below(80) as u64) / 100;
        let mut keeps = |limit: u64| {
            let outcome = limited(limit).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{g}"));
            let (g, program) = (&outcome.module.graph, outcome.module.program.as_ref().unwrap());
            let footprint = outcome.footprint.unwrap();
            let arena = footprint.arena_bytes.device;
            let step = simulate(program, &device, &roofline(g, &device));
            let in_use = live_over_time(&footprint, CELL, &step, Space::Device);
            assert!(in_use.iter().all(|&(_, bytes)| bytes <= arena), "seed {seed}\n{g}");
            assert!(arena <= limit, "seed {seed}: {arena} above {limit}\n{}", outcome.module);
            let expected = reference(g, STEPS);
            for _ in 0..4 {
                assert!(run(&mut random, g, program, &expected), "seed {seed}\n{}", outcome.module);
            }
            swaps += usize::from(program.to_string().contains("host["));
            repeats += usize::from(program.nodes().count() > g.nodes.len());
        };
        match limited(limit) {
            Ok(_) => keeps(limit),
            Err(RunError::Pass {
                error: PassError::DeviceMemory { minimum, bound, .. }, ..
            }) => {
                assert!(bound <= minimum && limit < minimum, "seed {seed}\n{g}");
                keeps(minimum);
                let below = limited(minimum - CELL).err().unwrap().to_string();
                assert!(below.contains(&format!("needs {minimum} at least")), "{below}");
                refused += 1;
            }
            Err(e) => panic!("seed {seed}: {e}\n{g}"),
        }
    }
    let counts = [swaps, repeats, refused].map(|count| count as u64 * 1500 / seeds);
    let is_varied = match host {
        Some(0) => counts[0] == 0 && counts[1] > 500,
        _ => counts[0] > 300 && counts[1] > 20,
    };
    assert!(is_varied && counts[2] > 100, "{counts:?}");
}

/// The same for the strategies of single works, which may find nothing instead.
#[test]
fn byte_limits_are_kept_by_every_strategy() {
    let strategies = [
        "swap_autoswap: {min_bytes: 8, evaluations: 10}",
        "swap_autoswap: {min_bytes: 8, score: aoa}",
        "swap_autoswap: {min_bytes: 8, score: wdoa}",
        "plan_dqn: {episodes: 3, smallest: 0}",
    ];
    for strategy in strategies {
        let after = match strategy.contains("wdoa") {
            true => "- share_in_place: {enabled: false}\n- place_smartpool",
            false => "- share_in_place\n- place",
        };
        let yaml = format!(
            "- detach_states\n- order: {{method: definition}}\n- {strategy}\n{after}\n- lower\n- sync\n"
        );
        let pipeline = Pipeline::from_yaml(&yaml, &WithBaselines).unwrap();
        let (mut moved, mut refused) = (0, 0);
        for seed in 0..200 {
            let mut random = Random::new(0xa5a9 + seed);
            let nodes = 3 + random.below(20);
            let g = graph(&mut random, nodes);
            let whole = pipeline.run(g.clone(), &CX, RunOptions::default()).unwrap();
            let whole = whole.footprint.unwrap().arena_bytes.device;
            let limit = whole * (20 + random.below(80) as u64) / 100;
            let cx = Cx { limits: PerSpace { device: Some(limit), host: None }, ..CX };
            let outcome = match pipeline.run(g.clone(), &cx, RunOptions::default()) {
                Ok(outcome) => outcome,
                Err(RunError::Pass { error: PassError::Limit { .. }, .. }) => {
                    refused += 1;
                    continue;
                }
                Err(e) => panic!("{strategy}, seed {seed}: {e}\n{g}"),
            };
            let (g, program) = (&outcome.module.graph, outcome.module.program.as_ref().unwrap());
            let arena = outcome.footprint.unwrap().arena_bytes.device;
            assert!(
                arena <= limit,
                "{strategy}, seed {seed}: {arena} above {limit}\n{}",
                outcome.module
            );
            let expected = reference(g, STEPS);
            for _ in 0..4 {
                let right = run(&mut random, g, program, &expected);
                assert!(right, "{strategy}, seed {seed}\n{}", outcome.module);
            }
            let text = program.to_string();
            moved += usize::from(text.contains("host[") || program.nodes().count() > g.nodes.len());
        }
        assert!(moved > 50 && refused < 150, "{strategy}: {moved} moved, {refused} refused");
    }
}

/// The strategies that may refuse a limit keep it where they do not, and their programs are
/// right in every interleaving tried.
#[test]
fn strategies_keep_byte_limits_or_refuse() {
    let strategies = [
        "recompute: {method: greedy}",
        "recompute: {method: sqrt}",
        "recompute: {effort: 1}",
        "recompute_ilp: {effort: 2, blocks: 10}",
        "swap_ilp: {effort: 1}",
    ];
    for strategy in strategies {
        let yaml = format!(
            "- detach_states\n- order: {{method: definition}}\n- {strategy}\n\
             - share_in_place\n- place\n- lower\n- sync\n"
        );
        let pipeline = Pipeline::from_yaml(&yaml, &WithBaselines).unwrap();
        let (mut changed, mut refused) = (0, 0);
        for seed in 0..200 {
            let mut random = Random::new(0x57a7 + seed);
            let nodes = 6 + random.below(20);
            let g = graph(&mut random, nodes);
            let limited = |device: Option<u64>| {
                let cx = Cx { limits: PerSpace { device, host: None }, ..CX };
                pipeline.run(g.clone(), &cx, RunOptions::default())
            };
            let whole = limited(None).unwrap().footprint.unwrap().arena_bytes.device;
            let limit = whole * (50 + random.below(50) as u64) / 100;
            let outcome = match limited(Some(limit)) {
                Ok(outcome) => outcome,
                Err(RunError::Pass { error: PassError::Limit { .. }, .. }) => {
                    refused += 1;
                    continue;
                }
                Err(e) => panic!("{strategy}, seed {seed}: {e}\n{g}"),
            };
            let arena = outcome.footprint.unwrap().arena_bytes.device;
            assert!(arena <= limit, "{strategy}, seed {seed}: {arena} above {limit}");
            let (g, program) = (&outcome.module.graph, outcome.module.program.as_ref().unwrap());
            let expected = reference(g, STEPS);
            for _ in 0..4 {
                let right = run(&mut random, g, program, &expected);
                assert!(right, "{strategy}, seed {seed}\n{}", outcome.module);
            }
            // What runs later instead of again is a change, too.
            let order: Vec<_> = program.nodes().collect();
            let is_moved = !order.is_sorted() || order.len() > g.nodes.len();
            changed += usize::from(is_moved || program.to_string().contains("host["));
        }
        assert!(refused > 5, "{strategy}: {refused}");
        assert!(changed > 2 || strategy.contains("sqrt"), "{strategy}: {changed}");
    }
}

/// All orders of the plan's tasks; `None` if there are more than a few thousand.
fn all_orders(g: &Graph, plan: &Plan) -> Option<Vec<Vec<TaskId>>> {
    let dependences = plan.dependences(g);
    let tasks: Vec<TaskId> = plan.tasks.keys().collect();
    let mut orders: Vec<Vec<TaskId>> = vec![Vec::new()];
    for _ in 0..tasks.len() {
        let longer = |order: &Vec<TaskId>| {
            let ready = tasks.iter().copied().filter(|t| {
                let runs = |b: &TaskId| order.contains(b);
                !runs(t) && dependences.iter().all(|(b, a)| a != t || runs(b))
            });
            ready.map(|t| [&order[..], &[t]].concat()).collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
        if orders.len() > 3000 {
            return None;
        }
    }
    Some(orders)
}

/// The least live peak over all orders, with in-place sharing or without.
fn exhaustive(g: &Graph, sharing: bool) -> Option<u64> {
    let mut plan = Plan::new(g, CX.target).unwrap();
    let peaks = all_orders(g, &plan)?.into_iter().map(|order| {
        plan.set_order(g, order).unwrap();
        ShareInPlace { enabled: sharing }.run(g, &mut plan, &CX).unwrap();
        plan.slots().unwrap().live_peak().device
    });
    peaks.min()
}

/// What spans and precedence say holds in every order, control edges or not.
#[test]
fn spans_and_precedence_hold_in_every_order() {
    let (mut tried, mut apart) = (0, 0);
    for seed in 0..2000 {
        let mut random = Random::new(0x59a + seed);
        let nodes = 2 + random.below(6);
        let g = graph(&mut random, nodes);
        let mut plan = Plan::new(&g, CX.target).unwrap();
        Spans {}.run(&g, &mut plan, &CX).unwrap();
        if random.chance(50) {
            EarlyUpdate {}.run(&g, &mut plan, &CX).unwrap();
        }
        PrunePrecedence {}.run(&g, &mut plan, &CX).unwrap();
        let Some(orders) = all_orders(&g, &plan) else { continue };
        let (spans, precedence) =
            (plan.spans().unwrap().clone(), plan.precedence().unwrap().clone());
        let buffers: Vec<BufferId> = plan.buffers.keys().collect();
        for order in orders {
            for (position, &t) in order.iter().enumerate() {
                let span = spans.asap[t]..=spans.alap[t];
                assert!(span.contains(&(position as u32)), "seed {seed}: {t} at {position}");
            }
            plan.set_order(&g, order).unwrap();
            let live = |b| plan.live(b).unwrap();
            for &b in &buffers {
                let Some(range) = live(b) else { continue };
                let useful = spans.useful[b].unwrap();
                assert!(useful.first <= range.first && range.last <= useful.last, "seed {seed}");
                if let Some(kept) = spans.preserved[b] {
                    assert!(range.first <= kept.first && kept.last <= range.last, "seed {seed}");
                }
            }
            for (i, &a) in buffers.iter().enumerate() {
                for &b in buffers[..i].iter().filter(|&&b| precedence.apart(a, b)) {
                    let (Some(x), Some(y)) = (live(a), live(b)) else { continue };
                    assert!(x.last < y.first || y.last < x.first, "seed {seed}: {a} and {b}");
                    apart += 1;
                }
            }
        }
        tried += 1;
    }
    assert!(tried > 1000 && apart > 10_000, "{tried} {apart}");
}

/// Orders and addresses by one program are no worse than the best order's bare live peak
/// allows, and the checker accepts them.
#[test]
fn the_joint_program_is_optimal_where_it_says_so() {
    let yaml = "- detach_states\n- spans\n- prune_precedence\n\
                - order_place_ilp: {effort: 5}\n- lower\n- sync\n";
    let pipeline = Pipeline::from_yaml(yaml, &WithBaselines).unwrap();
    let (mut tried, mut proved) = (0, 0);
    for seed in 0..60 {
        let mut random = Random::new(0x901 + seed);
        let nodes = 2 + random.below(4);
        let g = graph(&mut random, nodes);
        // As it is printed.
        let mut proves = false;
        let mut after = |report: &Report| proves |= report.stats.get("proved_optimal") == Some(&1);
        let options = RunOptions { after_pass: Some(&mut after), ..RunOptions::default() };
        let outcome = pipeline.run(g, &CX, options).unwrap();
        let arena = outcome.footprint.unwrap().arena_bytes.device;
        let g = &outcome.module.graph;
        let Some(least) = exhaustive(g, false) else { continue };
        assert!(arena >= least, "seed {seed}: {arena} below {least}");
        if proves {
            // No tiny graph here needs more than its live peak.
            assert_eq!(arena, least, "seed {seed}\n{}", outcome.module);
            proved += 1;
        }
        tried += 1;
    }
    assert!(tried > 0 && proved * 10 >= tried * 9, "{proved} of {tried}");
}

#[test]
fn the_bound_is_below_every_order_with_sharing_views_and_states() {
    let (mut tried, mut met, mut found) = (0, 0, 0);
    for seed in 0..4000 {
        let mut random = Random::new(0xb0bd + seed);
        let nodes = 2 + random.below(6);
        let g = graph(&mut random, nodes);
        let Some(optimum) = exhaustive(&g, true) else { continue };
        let bound = bound(&g, g.nodes.keys(), &CX).unwrap().bytes;
        assert!(bound <= optimum, "seed {seed}: {bound} above {optimum}\n{g}");
        let mut plan = Plan::new(&g, CX.target).unwrap();
        let outcome = Order::default().run(&g, &mut plan, &CX).unwrap();
        // What the search proves holds for every order, too.
        let proved = outcome.bound.unwrap().bytes;
        assert!(bound <= proved && proved <= optimum, "seed {seed}: {proved} above {optimum}");
        ShareInPlace { enabled: true }.run(&g, &mut plan, &CX).unwrap();
        let peak = plan.slots().unwrap().live_peak().device;
        assert!(peak >= optimum, "seed {seed}: {peak} below {optimum}");
        tried += 1;
        met += usize::from(bound == optimum);
        found += usize::from(peak == optimum);
    }
    assert!(tried > 2000 && met * 2 > tried && found * 10 > tried * 9, "{tried} {met} {found}");
}
