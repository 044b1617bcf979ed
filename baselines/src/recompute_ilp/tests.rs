//! The program against all ways to run small steps, and against the other methods.

use super::blocks::blocks;
use super::{RecomputeIlp, sequence, solve};
use crate::fixtures::kept;
use crate::recompute::{Method, Recompute};
use arenic_passes::recompute::{Meter, RecomputeStep};
use arenic_passes::residency::Timeline;
use arenic_passes::{Search, Strategy, devices, mip};
use arenic_programs::CELL;
use arenic_programs::steps::{add, begin, finish, plan, step};

/// Every sequence of first runs in order with up to so many repeats between them: the least seconds within a limit.
fn least_seconds(step: &RecomputeStep, limit: u64, repeats: usize) -> Option<f64> {
    let mut meter = Meter::new(step, Search::default());
    let mut best: Option<f64> = None;
    let mut open: Vec<(Vec<u32>, usize)> = vec![((0..step.operators() as u32).collect(), repeats)];
    while let Some((runs, left)) = open.pop() {
        let load = meter.measure(&runs, limit);
        if load.peak <= limit && best.is_none_or(|b| load.seconds < b) {
            best = Some(load.seconds);
        }
        if left == 0 {
            continue;
        }
        for at in 1..runs.len() {
            for op in (0..step.operators() as u32).filter(|&op| step.may_repeat(op)) {
                let ran = |op: u32| runs[..at].contains(&op);
                if ran(op) && step.overwritten_by(op).is_none_or(|by| !ran(by)) {
                    let mut longer = runs.clone();
                    longer.insert(at, op);
                    open.push((longer, left - 1));
                }
            }
        }
    }
    best
}

#[test]
fn a_program_of_single_operators_is_as_good_as_any_sequence() {
    let device = devices::cpu().unwrap();
    let mut tried = 0;
    for seed in 0..30 {
        let mut random = fastrand::Rng::with_seed(seed);
        let g = step(&mut random, 4);
        let plan = plan(&g);
        let mut t = Timeline::new(&g, &plan, &device).unwrap();
        for i in 0..t.order.len() {
            t.start[i + 1] = t.start[i] + f64::from(random.u8(1..20));
        }
        let peak = t.live.iter().copied().max().unwrap();
        let limit = peak * random.u64(60..95) / 100;
        let step = RecomputeStep::new(&t).unwrap();
        let Some(least) = least_seconds(&step, limit, 3) else { continue };
        let (blocks, always) = blocks(&step, step.operators());
        let budget = Search::default().budget(100.0);
        let limits = mip::Limits::new(&budget, 0);
        let stages = solve(&blocks, &always, limit, &limits).unwrap();
        let runs = sequence(&step, &blocks, &stages);
        let load = Meter::new(&step, Search::default()).measure(&runs, limit);
        assert!(load.peak <= limit, "seed {seed}: {} above {limit}", load.peak);
        assert!(load.seconds <= least + 1e-9, "seed {seed}: {} above {least}", load.seconds);
        tried += usize::from(runs.len() > step.operators());
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn blocks_keep_limits_of_longer_steps() {
    let (mut kept_limits, mut faster) = (0, 0);
    for seed in 0..12 {
        let g = step(&mut fastrand::Rng::with_seed(seed), 24);
        let plan = plan(&g);
        let limit = plan.slots().unwrap().live_peak().device * 75 / 100 / CELL * CELL;
        let seconds = |strategy: &dyn Strategy| {
            kept(strategy, &g, &plan, limit, 1.0).map(|kept| kept.times.seconds)
        };
        let sqrt = seconds(&Recompute { method: Method::Sqrt, ..Recompute::default() });
        let program = seconds(&RecomputeIlp { effort: 20.0, blocks: 16 });
        kept_limits += usize::from(program.is_some());
        faster += usize::from(program.is_some_and(|p| sqrt.is_none_or(|s| p <= s)));
    }
    assert!(kept_limits >= 10 && faster >= 10, "{kept_limits} {faster}");
}

/// A chain of equal layers is cut into equal blocks; its end, which may not run again, is a block of its own.
#[test]
fn a_chain_is_cut_evenly() {
    let (mut g, x) = begin();
    let layers = (0..16).fold(x, |x, _| add(&mut g, 8, vec![x]));
    let end = add(&mut g, 8, vec![layers]);
    let g = finish(g, end);
    let (plan, device) = (plan(&g), devices::cpu().unwrap());
    let t = Timeline::new(&g, &plan, &device).unwrap();
    let (blocks, _) = blocks(&RecomputeStep::new(&t).unwrap(), 5);
    let lengths: Vec<usize> = blocks.iter().map(|b| b.ops.len()).collect();
    assert_eq!(lengths, [4, 4, 4, 4, 1]);
}
