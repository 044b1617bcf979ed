//! Random small steps against all their choices.

use super::bound::bound;
use super::improve::{Walls, anneal, prune};
use super::least::{Effort, Lowest, least};
use super::relieve::{Styles, relieve};
use super::rewrite::rewrite;
use super::runs::{Meter, RepeatCandidate};
use super::step::RecomputeStep;
use crate::residency::Timeline;
use crate::tail::{Depth, Tail};
use crate::{Cx, Search, devices, share};
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::check::check;
use arenic_programs::steps::{plan, step};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Runs a test on timelines with random seconds and a limit that asks for some repeats.
fn on_random_steps(count: u64, layers: usize, mut test: impl FnMut(&Timeline, u64)) {
    let device = devices::cpu().unwrap();
    for seed in 0..count {
        let mut random = fastrand::Rng::with_seed(seed);
        let g = step(&mut random, layers);
        let plan = plan(&g);
        let mut t = Timeline::new(&g, &plan, &device).unwrap();
        for i in 0..t.order.len() {
            t.start[i + 1] = t.start[i] + f64::from(random.u8(1..20));
        }
        let peak = t.live.iter().copied().max().unwrap();
        test(&t, peak * random.u64(55..95) / 100);
    }
}

/// What cuts and changes lead to.
fn search(step: &RecomputeStep, limit: u64) -> RepeatCandidate {
    let mut meter = Meter::new(step, Search::default());
    let whole = (0..step.operators() as u32).collect();
    let most = 100_000 * step.operators() as u64;
    let found = relieve(&mut meter, &whole, limit, most, Styles::All);
    let mut random = fastrand::Rng::with_seed(0);
    let found = anneal(&mut meter, found, limit, most, &mut random, Walls::Soft);
    prune(&mut meter, found, limit)
}

#[test]
fn what_is_measured_is_what_the_plan_takes() {
    let device = devices::cpu().unwrap();
    let cx = Cx::new(TargetInfo { align: 4, ..CPU.target() });
    let mut repeated = 0;
    on_random_steps(60, 12, |t, limit| {
        let step = RecomputeStep::new(t).unwrap();
        let found = search(&step, limit);
        let plan = rewrite(&step, &found.runs).unwrap();
        let slots = share::assign(t.g, &plan).unwrap();
        assert_eq!(slots.live_peak().device, found.load.peak);
        let planned = Tail::default().finish(t.g, plan, &device, &cx, Depth::Trial).unwrap();
        repeated += planned.plan.tasks.len() - t.plan.tasks.len();
        check(t.g, &planned.program).unwrap();
    });
    assert!(repeated > 100, "{repeated}");
}

/// The least seconds of all ways to run a step of few operators within a limit, in any order:
/// Dijkstra over which operators have run and which tensors are there.
fn least_seconds(step: &RecomputeStep, limit: u64) -> Option<f64> {
    let ops = step.operators();
    let kept: u32 = (0..step.tensors()).filter(|&x| step.pinned[x]).map(|x| 1 << x).sum();
    let mask = |row: &[u32]| row.iter().fold(0u32, |mask, &x| mask | 1 << x);
    let bytes = |held: u32| {
        let held = (0..step.tensors()).filter(|&x| held >> x & 1 == 1);
        step.resident + held.map(|x| step.bytes[x]).sum::<u64>()
    };
    let mut least: HashMap<(u32, u32), u64> = HashMap::new();
    let mut queue = BinaryHeap::from([Reverse((0u64, 0u32, mask(&step.inputs)))]);
    while let Some(Reverse((seconds, ran, held))) = queue.pop() {
        if ran == (1 << ops) - 1 && held & kept == kept {
            return Some(seconds as f64);
        }
        if least.get(&(ran, held)).is_some_and(|&known| known <= seconds) {
            continue;
        }
        least.insert((ran, held), seconds);
        for x in (0..step.tensors()).filter(|&x| held >> x & 1 == 1) {
            queue.push(Reverse((seconds, ran, held & !(1 << x))));
        }
        for op in 0..ops {
            let (reads, writes) = (mask(step.reads.row(op)), mask(step.writes.row(op)));
            let held_then = held | writes;
            if held & reads == reads && bytes(held_then) <= limit {
                let seconds = seconds + step.seconds[op] as u64;
                queue.push(Reverse((seconds, ran | 1 << op, held_then)));
            }
        }
    }
    None
}

#[test]
fn no_way_to_run_a_step_is_below_the_bound() {
    let (mut tried, mut tight, mut best) = (0, 0, 0);
    on_random_steps(150, 3, |t, limit| {
        let step = RecomputeStep::new(t).unwrap();
        let Some(least) = least_seconds(&step, limit) else { return };
        let whole: f64 = step.seconds.iter().sum();
        let repeats = bound(&step, limit);
        assert!(whole + repeats <= least + 1e-6, "{repeats} repeated of {}", least - whole);
        let found = search(&step, limit).load;
        assert!(found.over > 0 || found.seconds >= least - 1e-6);
        if least > whole {
            tried += 1;
            tight += usize::from(repeats > 0.0);
            best += usize::from(found.over == 0 && found.seconds <= least + 1e-6);
        }
    });
    // The search keeps to most of one order of what runs first.
    assert!(tried > 20 && tight > 4 && best * 2 > tried, "{tight}, {best} of {tried}");
}

/// The least plan is one that its own limit leads to.
#[test]
fn from_the_least_limit_on_every_limit_is_kept() {
    on_random_steps(30, 12, |t, limit| {
        let takes = |enough| {
            let Lowest { plan, is_least, floor } =
                least(t, enough, Effort::Full, Search::default()).unwrap();
            let takes = share::assign(t.g, &plan).unwrap().live_peak().device;
            assert!(floor <= takes, "{floor} {takes}");
            (takes, is_least)
        };
        let (minimum, is_least) = takes(0);
        assert!(is_least);
        assert!(minimum <= t.live.iter().copied().max().unwrap());
        for limit in [minimum, minimum + 1, limit.max(minimum)] {
            assert!(takes(limit).0 <= limit);
        }
    });
}
