//! Scores of absences in a small step whose times are known, and what they select.

use super::candidates::Candidates;
use super::load::Load;
use super::score::{ALONE, area, duration, submodular, under};
use crate::residency::{Absence, Gap, Idle, Timeline};
use crate::share_in_place::ShareInPlace;
use crate::{Cx, PlanPass};
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::cost::Device;
use arenic_programs::steps::{device, in_definition_order};

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
        assert_eq!(choice.gaps.iter().filter(|&&gap| gap != Gap::Keep).count(), 0);
    });
}
