//! The programs against the heuristic, on random steps.

use super::SwapIlp;
use crate::fixtures::kept;
use arenic_ir::graph::Graph;
use arenic_programs::CELL;
use arenic_programs::steps::{plan, step};

/// Seconds of the step by the heuristic, and by the programs; `None` if neither keeps
/// the limit.
fn both(g: &Graph, percent: u64, link: f64) -> Option<(f64, f64)> {
    let plan = plan(g);
    let limit = plan.slots().unwrap().live_peak().device * percent / 100 / CELL * CELL;
    let seconds = |effort| {
        let kept = kept(&SwapIlp { effort, window: 12 }, g, &plan, limit, link);
        kept.map(|kept| kept.times.seconds)
    };
    let (heuristic, programs) = (seconds(0.0), seconds(30.0));
    assert_eq!(heuristic.is_some(), programs.is_some());
    Some((heuristic?, programs?))
}

#[test]
fn programs_are_never_slower_than_the_heuristic() {
    let mut tried = 0;
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let g = step(&mut random, 6);
        let (percent, link) = (random.u64(50..95), [0.5, 1.0, 2.0][random.usize(0..3)]);
        let Some((heuristic, programs)) = both(&g, percent, link) else { continue };
        assert!(programs <= heuristic, "seed {seed}: {programs} above {heuristic}");
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
}

/// Steps on which greedy choices wait for copies that another choice hides.
#[test]
fn programs_hide_what_the_heuristic_does_not() {
    for (seed, kernels, percent) in [(484, 4, 73), (411, 6, 60), (230, 9, 58)] {
        let mut random = fastrand::Rng::with_seed(seed);
        // As the seed was found: the number of kernels, the limit and the link come from it.
        let drawn = random.usize(4..10);
        let g = step(&mut random, drawn);
        assert_eq!((drawn, random.u64(50..95)), (kernels, percent));
        let found = both(&g, percent, 0.25);
        assert!(found.is_some_and(|(h, p)| p < h), "seed {seed}: {found:?}");
    }
}
