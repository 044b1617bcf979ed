//! Random small steps against all their choices.

use super::exact::Windows;
use super::greedy::greedy;
use super::sites::{Judge, Site, sites};
use super::sqrt::sqrt;
use crate::residency::{Choice, Gap, Prediction, Timeline};
use crate::search::{Deadline, Search};
use crate::{devices, share};
use arenic_ir::TargetInfo;
use arenic_ir::graph::{Graph, Output, ValueId};
use arenic_ir::op::Op;
use arenic_ir::plan::Plan;
use arenic_ir::types::{DType, TensorType};

/// A chain of layers, each reading one or two earlier results, and its way back, which reads
/// what the layers made.
fn step(random: &mut fastrand::Rng, layers: usize) -> Graph {
    let mut g = Graph::default();
    let mut forward = vec![g.add_input("x", TensorType::new(DType::U8, [4]))];
    for _ in 0..layers {
        let mut reads = vec![forward[forward.len() - 1]];
        if random.u8(0..3) == 0 {
            reads.push(forward[random.usize(0..forward.len())]);
        }
        forward.push(add(random, &mut g, reads));
    }
    let mut back = add(random, &mut g, vec![forward[layers]]);
    for i in (0..layers).rev() {
        let mut reads = vec![back, forward[i]];
        if random.u8(0..2) == 0 {
            reads.push(forward[i + 1]);
        }
        back = add(random, &mut g, reads);
    }
    g.outputs.push(Output { name: "y".into(), value: back });
    g
}

fn add(random: &mut fastrand::Rng, g: &mut Graph, mut reads: Vec<ValueId>) -> ValueId {
    reads.dedup();
    let op = Op::Opaque { results: vec![4 * random.usize(1..9)] };
    let node = g.add_node("", op, reads).unwrap();
    g.result(node).unwrap()
}

/// The plan in definition order.
fn plan(g: &Graph) -> Plan {
    let mut plan = Plan::new(g, TargetInfo { align: 4 }).unwrap();
    let order = plan.tasks.keys().collect();
    plan.set_order(g, order).unwrap();
    plan.set_slots(share::assign(g, &plan).unwrap());
    plan
}

/// The best promise of all choices.
fn best_of_all(judge: &mut Judge, sites: &[Site], limit: u64) -> Prediction {
    let gaps = [Gap::Keep, Gap::Repeat { hold: true }, Gap::Repeat { hold: false }];
    let choices = (0..3usize.pow(sites.len() as u32)).map(|mut code| {
        let mut choice = Choice::keep_all(judge.t);
        for site in sites {
            choice.gaps[site.gap] = gaps[code % 3];
            code /= 3;
        }
        choice
    });
    let choices: Vec<Choice> = choices.collect();
    let best = judge.best(choices.into_iter(), limit).unwrap();
    judge.judge(&best, limit).unwrap()
}

/// Runs a test on timelines with random seconds and a limit that asks for some repeats.
fn on_random_steps(count: u64, layers: usize, mut test: impl FnMut(&mut Judge, &[Site], u64)) {
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
        let limit = peak * random.u64(55..95) / 100;
        let sites = sites(&t);
        test(&mut Judge::new(&t, &device), &sites, limit);
    }
}

fn windows<'a>(sites: &'a [Site], size: usize, search: &'a Search) -> Windows<'a> {
    Windows { sites, size, search, deadline: Deadline::after(60.0, None) }
}

#[test]
fn one_window_over_everything_finds_the_best_choice() {
    let search = Search::default();
    let (mut tried, mut best, mut better) = (0, 0, 0);
    on_random_steps(if cfg!(feature = "highs") { 120 } else { 20 }, 6, |judge, sites, limit| {
        let least = best_of_all(judge, sites, limit);
        let start = greedy(judge, sites, limit);
        let first = judge.judge(&start, limit).unwrap();
        let (choice, _) = windows(sites, sites.len(), &search).improve(judge, start, limit);
        let found = judge.judge(&choice, limit).unwrap();
        assert!(!least.is_better_than(&first) || !first.is_better_than(&found));
        assert!(!found.is_better_than(&least));
        if least.over == 0 {
            tried += 1;
            best += usize::from(found == least);
            better += usize::from(found.is_better_than(&first));
        }
    });
    // The order within a chain is not the walk's everywhere.
    assert!(tried > 10 && best * 100 >= tried * 95 && better > 0, "{best} of {tried}, {better}");
}

#[test]
fn small_windows_are_never_worse_than_where_they_began() {
    let search = Search::default();
    let mut better = 0;
    on_random_steps(if cfg!(feature = "highs") { 25 } else { 5 }, 14, |judge, sites, limit| {
        for start in [greedy(judge, sites, limit), sqrt(judge, sites, limit)] {
            let first = judge.judge(&start, limit).unwrap();
            let (choice, _) = windows(sites, 5, &search).improve(judge, start, limit);
            let found = judge.judge(&choice, limit).unwrap();
            assert!(!first.is_better_than(&found));
            better += usize::from(found.is_better_than(&first));
        }
    });
    assert!(better > 0);
}

/// A chain of equal layers: with √n segments the peak is about two √n tensors.
#[test]
fn segments_of_a_chain_take_about_two_square_roots() {
    let (n, bytes) = (36usize, 4u64);
    let mut g = Graph::default();
    let mut forward = vec![g.add_input("x", TensorType::new(DType::U8, [4]))];
    let one = || Op::Opaque { results: vec![4] };
    for i in 0..n {
        let node = g.add_node("", one(), vec![forward[i]]).unwrap();
        forward.push(g.result(node).unwrap());
    }
    let mut back = forward[n];
    for i in (0..n).rev() {
        let node = g.add_node("", one(), vec![back, forward[i]]).unwrap();
        back = g.result(node).unwrap();
    }
    g.outputs.push(Output { name: "y".into(), value: back });
    let (plan, device) = (plan(&g), devices::cpu().unwrap());
    let t = Timeline::new(&g, &plan, &device).unwrap();
    let (sites, mut judge) = (sites(&t), Judge::new(&t, &device));
    let choice = sqrt(&mut judge, &sites, 15 * bytes);
    assert_eq!(judge.judge(&choice, 15 * bytes).map(|p| p.over), Some(0));
    // Each layer but the last segment's runs once more at most.
    let dropped = choice.gaps.iter().filter(|&&gap| gap != Gap::Keep).count();
    assert!((20..n).contains(&dropped), "{dropped}");
    let choice = sqrt(&mut judge, &sites, 6 * bytes);
    assert!(judge.judge(&choice, 6 * bytes).is_some_and(|p| p.over > 0));
}
