//! Drops one tensor after another: at the worst position the one that costs the fewest seconds
//! for each byte, and each position above the limit, that its absence frees.
//!
//! Unlike bytes that are copied, what is computed again needs room on the way: after each
//! decision the whole choice is carried out, so that chains count in the next one. In the
//! end decisions that later ones made needless are taken back, the dearest first.

use super::sites::{AGAIN, Judge, Load, RepeatSite, stays};
use arenic_passes::residency::{Gap, ResidencyChoice, Timeline};

/// Longest chain of tasks that is repeated for one tensor.
const MAX_CHAIN: usize = 100;

/// A choice whose live bytes keep the limit, or come as near to it as the method gets.
pub(super) fn greedy(judge: &mut Judge, sites: &[RepeatSite], limit: u64) -> ResidencyChoice {
    let t = judge.t;
    let mut choice = ResidencyChoice::keep_all(t);
    let Some(mut load) = judge.load(&choice) else { return choice };
    let mut open: Vec<RepeatSite> = sites.to_vec();
    let mut taken: Vec<(f64, RepeatSite)> = Vec::new();
    while let Some((seconds, i)) = cheapest(t, &choice, &load, limit, &open) {
        let site = open.swap_remove(i);
        choice.gaps[site.gap] = AGAIN;
        // A chain may need more than its tensor frees.
        match judge.load(&choice).filter(|new| above(new, limit) < above(&load, limit)) {
            Some(new) => {
                load = new;
                taken.push((seconds, site));
            }
            None => choice.gaps[site.gap] = Gap::Keep,
        }
    }
    let least = above(&load, limit);
    taken.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, site) in taken {
        choice.gaps[site.gap] = Gap::Keep;
        if judge.load(&choice).is_none_or(|new| above(&new, limit) > least) {
            choice.gaps[site.gap] = AGAIN;
        }
    }
    choice
}

/// Bytes above the limit, summed over positions.
fn above(load: &[Load], limit: u64) -> u64 {
    load.iter().map(|l| l.most().saturating_sub(limit)).sum()
}

/// The open site that relieves the worst position at the least price, with its seconds.
fn cheapest(
    t: &Timeline,
    choice: &ResidencyChoice,
    load: &[Load],
    limit: u64,
    open: &[RepeatSite],
) -> Option<(f64, usize)> {
    let worst = (0..load.len()).max_by_key(|&p| load[p].most())?;
    if load[worst].most() <= limit {
        return None;
    }
    // How many positions before each one are above the limit.
    let mut over = vec![0u32];
    over.extend(load.iter().scan(0, |n, l| {
        *n += u32::from(l.most() > limit);
        Some(*n)
    }));
    // What ends at the worst position is away while tasks are repeated before it.
    let in_chain = load[worst].chain > load[worst].task;
    let idle = |s: &RepeatSite| {
        let end = s.before as usize + usize::from(in_chain);
        (s.after as usize) < worst && worst < end
    };
    let price = |(i, s): (usize, &RepeatSite)| {
        let seconds = chain_seconds(t, choice, s)?;
        let freed = over[s.before as usize] - over[s.after as usize + 1];
        let weight = f64::from(freed.max(1)) * t.tensors[s.x].bytes as f64;
        Some((seconds / weight, seconds, i))
    };
    let prices = open.iter().enumerate().filter(|(_, s)| idle(s)).filter_map(price);
    prices.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, seconds, i)| (seconds, i))
}

/// Seconds of the tasks to repeat so that a tensor is there again; `None` where one reads a
/// value that is gone for good, or where there are too many.
fn chain_seconds(t: &Timeline, choice: &ResidencyChoice, site: &RepeatSite) -> Option<f64> {
    let (mut wanted, mut tasks, mut seconds) = (vec![site.x], Vec::new(), 0.0);
    while let Some(x) = wanted.pop() {
        let task = t.tensors[x].producer.filter(|_| t.may_repeat(x))?;
        if tasks.contains(&task) {
            continue;
        }
        if tasks.len() >= MAX_CHAIN {
            return None;
        }
        tasks.push(task);
        seconds += t.seconds(t.position[task]);
        for &(y, old) in t.reads.row(t.position[task] as usize) {
            if old && t.tensors[y].overwritten.is_some_and(|r| r < site.before) {
                return None;
            }
            if !stays(t, y, site.before, |gap| choice.gaps[gap] != Gap::Keep) {
                wanted.push(y);
            }
        }
    }
    Some(seconds)
}
