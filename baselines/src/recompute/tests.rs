//! Segments of a chain.

use super::sites::{Judge, sites};
use super::sqrt::sqrt;
use arenic_passes::devices;
use arenic_passes::residency::{Gap, Timeline};
use arenic_programs::steps::{add, begin, finish, plan};

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
