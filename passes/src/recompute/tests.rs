//! Random small steps against all their choices.

use super::exact::Windows;
use super::greedy::greedy;
use super::sites::{Judge, Site, sites};
use super::sqrt::sqrt;
use crate::devices;
use crate::residency::steps::{add, begin, finish, plan, step};
use crate::residency::{Choice, Gap, Prediction, Timeline};
use crate::search::{Budget, Deadline};

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

fn windows(sites: &[Site], size: usize) -> Windows<'_> {
    Windows { sites, size, seed: 0, budget: Budget::new(60.0, Deadline::default()) }
}

#[test]
fn one_window_over_everything_finds_the_best_choice() {
    let (mut tried, mut best, mut better) = (0, 0, 0);
    on_random_steps(if cfg!(feature = "highs") { 120 } else { 20 }, 6, |judge, sites, limit| {
        let least = best_of_all(judge, sites, limit);
        let start = greedy(judge, sites, limit);
        let first = judge.judge(&start, limit).unwrap();
        let (choice, _) = windows(sites, sites.len()).improve(judge, start, limit);
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
    let mut better = 0;
    on_random_steps(if cfg!(feature = "highs") { 25 } else { 5 }, 14, |judge, sites, limit| {
        for start in [greedy(judge, sites, limit), sqrt(judge, sites, limit)] {
            let first = judge.judge(&start, limit).unwrap();
            let (choice, _) = windows(sites, 5).improve(judge, start, limit);
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
    let (mut g, x) = begin();
    let mut forward = vec![x];
    for i in 0..n {
        forward.push(add(&mut g, 4, vec![forward[i]]));
    }
    let way_back = (0..n).rev();
    let back = way_back.fold(forward[n], |back, i| add(&mut g, 4, vec![back, forward[i]]));
    let g = finish(g, back);
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
