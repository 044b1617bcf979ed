use super::load::Load;
use super::score::{Score, area, duration, submodular, under};
use super::tune::tune;
use super::*;
use crate::fixtures::{device, in_definition_order, kept, there_and_back};
use crate::residency::{Absence, Idle, Timeline};
use crate::share_in_place::ShareInPlace;
use crate::{Cx, PlanPass};
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::cost::Device;
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;

/// v1 lies idle while v2 does: unary operators take 32 seconds, binary ones 48. The state m
/// is read by n5 alone.
const NESTED: &str = r#"graph "nested" {
  input v0: f32[4] "x"
  state s0 "m": v7: f32[4] -> v6 = ...
  n0 unary {"f":"exp"} (v0) -> (v1: f32[4])
  n1 unary {"f":"neg"} (v1) -> (v2: f32[4])
  n2 unary {"f":"neg"} (v2) -> (v3: f32[4])
  n3 unary {"f":"neg"} (v3) -> (v4: f32[4])
  n4 binary {"f":"mul"} (v4, v2) -> (v5: f32[4])
  n5 binary {"f":"mul"} (v5, v7) -> (v6: f32[4])
  n6 binary {"f":"mul"} (v5, v1) -> (v8: f32[4] "y")
  output "y" v8
}
"#;

fn with_timeline(device: &Device, judge: impl FnOnce(&Timeline)) {
    let (g, mut plan) = in_definition_order(NESTED);
    ShareInPlace { enabled: true }
        .run(&g, &mut plan, &Cx::new(TargetInfo { align: 4, ..CPU.target() }))
        .unwrap();
    judge(&Timeline::new(&g, &plan, device).unwrap());
}

/// The absences of v1, v2 and m.
fn nested(t: &Timeline) -> [Absence; 3] {
    let between = |first: u32, k: usize| {
        let is = |x: &usize| !t.tensors[*x].homed && t.tensors[*x].accesses[0] == first;
        let tensor = (0..t.tensors.len()).find(is).unwrap();
        let accesses = &t.tensors[tensor].accesses;
        let away = accesses[k] as usize + 1..accesses[k + 1] as usize;
        Absence { tensor, idle: Idle::Between(k), away: vec![away] }
    };
    let m = (0..t.tensors.len()).find(|&x| t.tensors[x].renewed.is_some()).unwrap();
    let first = t.tensors[m].accesses[0] as usize;
    let last = *t.tensors[m].accesses.last().unwrap() as usize;
    let away = vec![0..first, last + 1..t.order.len()];
    [between(0, 1), between(1, 1), Absence { tensor: m, idle: Idle::AcrossSteps, away }]
}

#[test]
fn absences_last_as_long_as_nothing_needs_the_tensor_less_both_copies() {
    // A copy takes 8 seconds each way.
    let fast = device(2.0);
    with_timeline(&fast, |t| {
        let [v1, v2, m] = nested(t);
        // The commit of m, which takes no time, comes before n6.
        assert!(v1.positions().eq(2..7));
        assert_eq!(duration(t, &fast, &v1), 32.0 + 32.0 + 48.0 + 48.0 - 16.0);
        assert_eq!(duration(t, &fast, &v2), 32.0 - 16.0);
        // Across the boundary: n6, then n0 to n4.
        assert_eq!(duration(t, &fast, &m), 48.0 + 4.0 * 32.0 + 48.0 - 16.0);
    });
    let slow = device(0.5);
    with_timeline(&slow, |t| assert_eq!(duration(t, &slow, &nested(t)[1]), 32.0 - 64.0));
}

#[test]
fn area_is_by_bytes_and_per_byte_where_it_is_negative() {
    assert_eq!(area(144.0, 16), 2304.0);
    assert_eq!(area(-32.0, 16), -2.0);
    // Of two that cost the same, the larger one is taken.
    assert!(area(-32.0, 16) > area(-32.0, 8));
}

#[test]
fn weighted_duration_is_the_area_under_the_load() {
    with_timeline(&device(1.0), |t| {
        // m is always there; beside it, v1, v2 and one more while v2 lies idle.
        assert_eq!(t.live[2..6], [64, 64, 64, 48]);
        let areas = Load::new(t).areas();
        let [v1, v2, _] = nested(t);
        assert_eq!(under(&areas, &v1), 64.0 * (32.0 + 32.0 + 48.0) + 48.0 * 48.0);
        assert_eq!(under(&areas, &v2), 64.0 * 32.0);
    });
}

#[test]
fn submodular_duration_is_under_the_load_that_is_left() {
    with_timeline(&device(1.0), |t| {
        let [v1, v2, _] = nested(t);
        let mut load = Load::new(t);
        let first = under(&load.areas(), &v1);
        let scores = submodular(&mut load, &[v2, v1]);
        assert_eq!(scores, [48.0 * 32.0, first]);
        assert_eq!(load.bytes[2..6], [48, 32, 48, 32]);
    });
}

#[test]
fn what_leaves_its_home_is_away_across_steps_as_well() {
    with_timeline(&device(1.0), |t| {
        let mut load = Load::new(t);
        let [.., m] = nested(t);
        let before = load.bytes.clone();
        load.leave(&m);
        for (p, &bytes) in before.iter().enumerate() {
            let away = m.positions().any(|q| q == p);
            assert_eq!(bytes - load.bytes[p], if away { 16 } else { 0 }, "at {p}");
        }
        // Once only.
        let left = load.bytes.clone();
        load.leave(&m);
        assert_eq!(load.bytes, left);
    });
}

#[test]
fn selection_follows_the_score_and_passes_over_what_frees_nothing() {
    with_timeline(&device(2.0), |t| {
        let candidates = Candidates::new(t, &device(2.0), 16);
        // The peak is at n1: only m is away there.
        let peak = *t.live.iter().max().unwrap();
        let choice = candidates.select(&ALONE[0], peak - 16);
        assert_eq!(choice.host_home.iter().filter(|&&host| host).count(), 1);
        assert_eq!(
            choice.gaps.iter().filter(|&&gap| gap != crate::residency::Gap::Keep).count(),
            0
        );
    });
}

/// A valley off all axes.
fn valley(w: &Weights) -> f64 {
    let deepest = [0.6, -0.3, 0.2, -0.7];
    w.iter().zip(deepest).map(|(a, b)| (a - b).powi(2)).sum()
}

#[test]
fn tuning_goes_where_it_is_cheap_and_is_reproducible() {
    let mean = |evaluations| {
        (0..8).map(|seed| valley(&tune(evaluations, seed, valley))).sum::<f64>() / 8.0
    };
    // Random weights would come to 0.37 on average.
    assert!(mean(30) < 0.12, "{}", mean(30));
    assert_eq!(tune(0, 0, valley), ALONE[0]);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    tune(20, 7, |w| {
        first.push(*w);
        valley(w)
    });
    tune(20, 7, |w| {
        second.push(*w);
        valley(w)
    });
    assert_eq!(first, second);
    assert_eq!(first.len(), 20);
    assert!(first.iter().flatten().all(|w| w.abs() <= 1.0));
    // Nothing to learn from.
    tune(12, 1, |_| 0.0);
}

#[test]
fn bo_is_never_worse_than_a_score_alone_and_sometimes_better() {
    let (mut compared, mut better) = (0, 0);
    for seed in 0..12 {
        let (g, plan) =
            in_definition_order(&there_and_back(&mut fastrand::Rng::with_seed(seed), 8));
        let by = |score| SwapAutoswap { score, min_bytes: 16, ..SwapAutoswap::default() };
        let (least, most) = loads(&g, &plan);
        for part in [0, 1, 2] {
            let limit = least + (most - least) * part / 4;
            let seconds =
                |score| kept(&by(score), &g, &plan, limit, 0.2).map(|kept| kept.times.seconds);
            let alone = [Score::Doa, Score::Aoa, Score::Wdoa, Score::Swdoa];
            let alone = alone.into_iter().filter_map(seconds);
            let Some(best) = alone.min_by(f64::total_cmp) else { continue };
            let bo = seconds(Score::Bo).unwrap();
            assert!(bo <= best, "seed {seed}, {limit}: {bo} above {best}");
            compared += 1;
            better += usize::from(bo < best);
        }
    }
    assert!(compared > 20 && better > 2, "{better} of {compared}");
}

/// The load's peak where all candidates leave, and where none does.
fn loads(g: &Graph, plan: &Plan) -> (u64, u64) {
    let mut plan = plan.clone();
    let cx = Cx::new(TargetInfo { align: 4, ..CPU.target() });
    ShareInPlace { enabled: true }.run(g, &mut plan, &cx).unwrap();
    let device = device(0.2);
    let t = Timeline::new(g, &plan, &device).unwrap();
    let all = Candidates::new(&t, &device, 16).all();
    let script = Walker::new(&t).walk(&all).unwrap().steps.iter().map(|step| step.live).max();
    (script.unwrap(), plan.slots().unwrap().live_peak().device)
}
