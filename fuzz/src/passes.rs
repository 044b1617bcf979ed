//! Pipelines and devices as YAML, and pipelines on random graphs.

use arenic_baselines::WithBaselines;
use arenic_ir::check::check;
use arenic_ir::program::PerSpace;
use arenic_ir::text::Module;
use arenic_passes::pipeline::{Pipeline, RunError, RunOptions};
use arenic_passes::simulate::{roofline, simulate};
use arenic_passes::{Cx, Search, devices};
use arenic_programs::interleave::{reference, run};
use arenic_programs::{CX, Random, graph, program};

/// Reads a pipeline in every way that commands do. To run it may take as long as it says.
pub(crate) fn pipeline(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let _ = Pipeline::from_yaml(text, &WithBaselines);
    let Ok(pipeline) = Pipeline::parse(text, &WithBaselines) else { return false };
    assert!(pipeline.names().count() <= text.len());
    let _ = (pipeline.differentiation(), pipeline.placer().is_ok());
    let _ = pipeline.ordering();
    true
}

/// Reads a device and simulates a step on it.
pub(crate) fn device(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(device) = devices::parse(text) else { return false };
    let _ = device.usable_bytes();
    let mut random = Random::new(1);
    let g = graph(&mut random, 8);
    let p = program(&mut random, &g, 2);
    let seconds = simulate(&p, &device, &roofline(&g, &device)).seconds;
    assert!(seconds >= 0.0, "a step of {seconds} s");
    true
}

/// A random graph, a random pipeline and maybe a limit: what passes make is right.
pub(crate) fn pipelines(bytes: &[u8]) -> bool {
    let mut random = Random::of(bytes);
    let nodes = 3 + random.below(20);
    let g = graph(&mut random, nodes);
    let yaml = yaml(&mut random);
    let pipeline =
        Pipeline::from_yaml(&yaml, &WithBaselines).unwrap_or_else(|e| panic!("{e}\n{yaml}"));
    let device = match random.chance(50) {
        true => Some(64 + 4 * random.below(60) as u64),
        false => None,
    };
    let search = Search { effort: Some(0.05), ..Search::default() };
    let cx = Cx { limits: PerSpace { device, host: None }, search, ..CX };
    let outcome = match pipeline.run(g.clone(), &cx, RunOptions::default()) {
        Ok(outcome) => outcome,
        // A limit may be too low.
        Err(RunError::Pass { error, .. }) if error.is_of_limits() => return false,
        Err(e) => panic!("{e}\n{yaml}{g}"),
    };
    let printed = outcome.module.to_string();
    let parsed =
        Module::parse(&printed, &arenic_backends::ALL).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    assert!(parsed == outcome.module, "{yaml}{printed}");
    let (g, p) = (&outcome.module.graph, outcome.module.program.as_ref().expect("a program"));
    check(g, p).unwrap_or_else(|violations| panic!("{violations:?}\n{yaml}{printed}"));
    let expected = reference(g, 3);
    for _ in 0..3 {
        assert!(run(&mut random, g, p, &expected), "wrong:\n{yaml}{printed}");
    }
    true
}

/// A pipeline that keeps a graph's operators those that random graphs have.
fn yaml(random: &mut Random) -> String {
    let mut yaml = String::new();
    let rewrites = ["fold_constants", "dead_code", "sink_transposes", "fuse_transposes", "views"];
    for pass in rewrites.into_iter().chain(["sink_transposes", "section", "views"]) {
        if random.chance(50) {
            yaml += &format!("- {pass}\n");
        }
    }
    yaml += "- detach_states\n";
    if random.chance(50) {
        yaml += "- spans\n";
        for pass in ["early_update", "prune_precedence"] {
            if random.chance(50) {
                yaml += &format!("- {pass}\n");
            }
        }
    }
    let limited = [
        "budget",
        "swap_autoswap: {min_bytes: 8, evaluations: 5}",
        "swap_autoswap: {min_bytes: 8, score: wdoa}",
        "recompute: {method: greedy}",
        "recompute: {method: sqrt}",
        "recompute: {effort: 0.05}",
        "recompute_ilp: {effort: 0.05, blocks: 8}",
        "swap_ilp: {effort: 0.05}",
    ];
    let orders = ["best", "definition", "freed_minus_allocated", "eager_free", "depth_first"];
    if random.chance(50) {
        yaml += &format!("- streams: {{count: {}}}\n", 1 + random.below(3));
        yaml += &format!("- order: {{method: {}}}\n", random.pick(&orders));
    } else {
        yaml += &format!("- order: {{method: {}}}\n", random.pick(&orders));
        yaml += &format!("- {}\n", random.pick(&limited));
    }
    let shares = [
        "share_in_place",
        "share_in_place: {enabled: false}",
        "share_parallel: {across_streams: true}",
        "share_parallel: {across_streams: false}",
        "share_parallel: {hold: true}",
    ];
    let places = ["place", "place_smartpool", "place_smartpool: {fit: first}", "place_pyramid"];
    let (share, place) = (random.pick(&shares), random.pick(&places));
    yaml += &format!("- {share}\n- {place}\n- lower\n- sync\n");
    yaml
}
