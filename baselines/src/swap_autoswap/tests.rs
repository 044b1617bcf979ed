//! Weights that are tuned beside each score alone.

use super::*;
use crate::fixtures::kept;
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;
use arenic_passes::residency::Timeline;
use arenic_passes::scores::load_of;
use arenic_passes::share_in_place::ShareInPlace;
use arenic_passes::{Cx, PlanPass};
use arenic_programs::steps::{device, in_definition_order, there_and_back};
use tune::tune;

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
    (load_of(&t, &all), plan.slots().unwrap().live_peak().device)
}
