//! Segments of the forward pass (Chen et al., 2016, section 4): tensors at the cuts between
//! segments are kept, all others are computed again when the backward pass reaches their
//! segment. With √n segments of n tasks, √n tensors are kept and √n are computed at once.
//!
//! Which part of an order is the forward pass follows from bytes: the *turn* is the position
//! that the most bytes lie idle across, and what lies idle across it is what the backward
//! pass reads. A cut is a position before the turn where whatever repeats would need from
//! before it is there at the turn too: kept, or with a home. Segments take equal shares of
//! the forward pass's bytes; there are as few as the limit allows. The last one is kept: the
//! backward pass begins with it.

use super::sites::{AGAIN, Judge, RepeatSite, made, runs_again};
use arenic_passes::residency::{Prediction, ResidencyChoice, Timeline};

/// The choice with the fewest segments that keeps the limit, else the one nearest to it.
pub(super) fn sqrt(judge: &mut Judge, sites: &[RepeatSite], limit: u64) -> ResidencyChoice {
    let t = judge.t;
    let keep = ResidencyChoice::keep_all(t);
    let turn = turn(t, sites);
    let mut stashed = vec![false; t.tensors.len()];
    let crossing: Vec<RepeatSite> = sites.iter().filter(|s| crosses(s, turn)).copied().collect();
    crossing.iter().for_each(|s| stashed[s.x] = true);
    let comes_back = |s: &RepeatSite| comes_back(t, s, &stashed);
    let stash: Vec<RepeatSite> = crossing.into_iter().filter(comes_back).collect();
    let cuts = cuts(t, &stash, &stashed, turn);
    let mut best: Option<(ResidencyChoice, Prediction)> = None;
    for segments in 1..=cuts.len() + 1 {
        let mut choice = keep.clone();
        for site in dropped(t, &stash, &cuts, segments) {
            choice.gaps[site.gap] = AGAIN;
        }
        let Some(promise) = judge.judge(&choice, limit) else { continue };
        if best.as_ref().is_none_or(|(_, b)| promise.is_better_than(b)) {
            best = Some((choice, promise));
        }
        if promise.over == 0 {
            break;
        }
    }
    best.map_or(keep, |(choice, _)| choice)
}

/// The position that the most bytes lie idle across.
fn turn(t: &Timeline, sites: &[RepeatSite]) -> u32 {
    let mut change = vec![0i64; t.order.len() + 1];
    for site in sites {
        change[site.after as usize + 1] += t.tensors[site.x].bytes as i64;
        change[site.before as usize] -= t.tensors[site.x].bytes as i64;
    }
    let mut idle = 0;
    let sums = change.iter().enumerate().map(|(p, c)| {
        idle += c;
        (idle, p as u32)
    });
    sums.max_by_key(|&(bytes, p)| (bytes, std::cmp::Reverse(p))).map_or(0, |(_, p)| p)
}

fn crosses(site: &RepeatSite, turn: u32) -> bool {
    site.after < turn && turn < site.before
}

/// True where a tensor can be computed again from what the turn finds there.
fn comes_back(t: &Timeline, site: &RepeatSite, stashed: &[bool]) -> bool {
    let (mut wanted, mut seen) = (vec![site.x], vec![site.x]);
    while let Some(x) = wanted.pop() {
        let Some(task) = made(t, x).filter(|_| runs_again(t, x, site.before)) else { return false };
        for &(y, _) in t.reads.row(task as usize) {
            if !t.tensors[y].homed && !stashed[y] && !seen.contains(&y) {
                seen.push(y);
                wanted.push(y);
            }
        }
    }
    true
}

/// Positions of the forward pass before which a segment may begin, increasing.
fn cuts(t: &Timeline, stash: &[RepeatSite], stashed: &[bool], turn: u32) -> Vec<u32> {
    // The last task that a repeat may need each tensor for.
    let mut last: Vec<Option<u32>> = vec![None; t.tensors.len()];
    let mut wanted: Vec<u32> = stash.iter().filter_map(|s| made(t, s.x)).collect();
    let mut needed = vec![false; t.order.len()];
    while let Some(task) = wanted.pop() {
        if std::mem::replace(&mut needed[task as usize], true) {
            continue;
        }
        for &(x, _) in t.reads.row(task as usize).iter().filter(|r| !stashed[r.0]) {
            last[x] = last[x].max(Some(task));
            wanted.extend(made(t, x));
        }
    }
    // How many of these tensors, which nobody keeps, pass each position.
    let mut passing = vec![0i32; t.order.len() + 1];
    for x in 0..t.tensors.len() {
        if let (Some(first), Some(last)) = (made(t, x), last[x]) {
            passing[first as usize + 1] += 1;
            passing[last as usize + 1] -= 1;
        }
    }
    let first = stash.iter().filter_map(|s| made(t, s.x)).min().unwrap_or(turn);
    let mut open = 0;
    let at = passing.iter().zip(0u32..).filter(|&(change, p)| {
        open += change;
        open == 0 && first < p && p < turn
    });
    at.map(|(_, p)| p).collect()
}

/// What is dropped with so many segments: what no later segment of the forward pass reads,
/// but for the last segment.
fn dropped<'a>(
    t: &'a Timeline,
    stash: &'a [RepeatSite],
    cuts: &[u32],
    segments: usize,
) -> impl Iterator<Item = &'a RepeatSite> {
    let begins = spread(t, stash, cuts, segments);
    stash.iter().filter(move |site| {
        let made = made(t, site.x).unwrap_or(0);
        let next = begins.partition_point(|&cut| cut <= made);
        begins.get(next).is_some_and(|&cut| site.after < cut)
    })
}

/// Where all segments but the first begin: the cuts nearest to equal shares of the bytes.
fn spread(t: &Timeline, stash: &[RepeatSite], cuts: &[u32], segments: usize) -> Vec<u32> {
    let bytes = |s: &RepeatSite| t.tensors[s.x].bytes;
    let before = |cut: u32| {
        let earlier = stash.iter().filter(|s| made(t, s.x).is_some_and(|m| m < cut));
        earlier.map(bytes).sum::<u64>()
    };
    let sums: Vec<u64> = cuts.iter().map(|&cut| before(cut)).collect();
    let all: u64 = stash.iter().map(bytes).sum();
    let share = |i: usize| (all as u128 * i as u128 / segments as u128) as u64;
    let nearest = |i: usize| (0..cuts.len()).min_by_key(|&c| sums[c].abs_diff(share(i)));
    let mut begins: Vec<u32> = (1..segments).filter_map(nearest).map(|c| cuts[c]).collect();
    begins.dedup();
    begins
}
