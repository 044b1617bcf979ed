//! A first choice: while some position holds more than the limit, of all tensors that lie idle
//! across it those leave whose absence costs least for what it frees. Cost is in seconds: for
//! a copy what kernels cannot hide and a price for what they hide, for computing again the
//! kernels themselves. What it frees is bytes times the positions above the limit (the area
//! that AutoSwap's scores weigh).

use super::Budget;
use super::sites::{BudgetSite, Sites, modes};
use crate::residency::{Gap, ResidencyChoice, Timeline};
use arenic_ir::cost::{Device, Direction};

/// Longest chain of tasks that is repeated for one tensor.
const MAX_CHAIN: usize = 60;

/// Lets tensors leave until no position holds more than `limit` bytes, or nothing is left to
/// do. `hidden` is the price of a second of the link that kernels hide, in seconds.
pub(super) fn greedy(
    t: &Timeline,
    device: &Device,
    allowed: &Budget,
    sites: &Sites,
    limit: u64,
    hidden: f64,
) -> ResidencyChoice {
    let choice = ResidencyChoice::keep_all(t);
    let live = t.live.clone();
    let over = Vec::new();
    let mut greedy = Greedy { t, device, allowed, sites, hidden, limit, choice, live, over };
    loop {
        let worst = (0..greedy.live.len()).rev().max_by_key(|&p| greedy.live[p]);
        let Some(worst) = worst.filter(|&p| greedy.live[p] > limit) else { break };
        if !greedy.relieve(worst) {
            break;
        }
    }
    greedy.choice
}

struct Greedy<'a> {
    t: &'a Timeline<'a>,
    device: &'a Device,
    allowed: &'a Budget,
    sites: &'a Sites<'a>,
    hidden: f64,
    limit: u64,
    choice: ResidencyChoice,
    live: Vec<u64>,
    /// How many positions before each one hold more than the limit.
    over: Vec<u32>,
}

impl Greedy<'_> {
    /// Brings a position below the limit; false where nothing leaves.
    fn relieve(&mut self, worst: usize) -> bool {
        self.over.clear();
        self.over.push(0);
        for &bytes in &self.live {
            let last = self.over.last().copied().unwrap_or(0);
            self.over.push(last + u32::from(bytes > self.limit));
        }
        let mut moves: Vec<(f64, BudgetSite, Gap)> =
            self.sites.all.iter().filter_map(|&s| self.best(s, worst as u32)).collect();
        moves.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut moved = false;
        for (_, site, gap) in moves {
            if self.live[worst] <= self.limit {
                break;
            }
            self.apply(site, gap);
            moved = true;
        }
        moved
    }

    /// What a site can do best about a position: seconds for each byte and position above
    /// the limit that it frees.
    fn best(&self, site: BudgetSite, worst: u32) -> Option<(f64, BudgetSite, Gap)> {
        let x = site.tensor();
        let idle = |r: &(u32, u32)| r.0 <= worst && worst < r.1;
        let runs = self.idle(site);
        if self.is_taken(site) || !runs.iter().any(idle) {
            return None;
        }
        let above = |&(from, to): &(u32, u32)| self.over[to as usize] - self.over[from as usize];
        let freed: u32 = runs.iter().map(above).sum();
        let weight = f64::from(freed.max(1)) * self.t.tensors[x].bytes as f64;
        let cost = |gap| Some((self.seconds(site, gap)? / weight, site, gap));
        match site {
            BudgetSite::Home(_) | BudgetSite::Begin(_) => cost(Gap::Keep),
            BudgetSite::Gap(x, _) => modes(self.t, self.allowed, x)
                .into_iter()
                .filter(|gap| matches!(gap, Gap::Swap { hold: false } | Gap::Repeat { hold: true }))
                .filter_map(cost)
                .min_by(|a, b| a.0.total_cmp(&b.0)),
        }
    }

    fn is_taken(&self, site: BudgetSite) -> bool {
        match site {
            BudgetSite::Home(x) => self.choice.host_home[x],
            BudgetSite::Begin(x) => self.choice.host_home[x] || self.choice.leaves[x],
            BudgetSite::Gap(x, k) => {
                let at_home = self.t.tensors[x].homed && !self.choice.host_home[x];
                self.choice.gaps[self.t.gap(x, k)] != Gap::Keep
                    || at_home && !self.sites.may_leave_home(x, k)
            }
        }
    }

    /// Positions at which a tensor is away then, as runs from first to one past the last.
    fn idle(&self, site: BudgetSite) -> Vec<(u32, u32)> {
        let end = self.live.len() as u32;
        match site {
            BudgetSite::Gap(x, k) => {
                let accesses = &self.t.tensors[x].accesses;
                vec![(accesses[k] + 1, accesses[k + 1])]
            }
            BudgetSite::Home(x) => {
                let accesses = &self.t.tensors[x].accesses;
                let first = accesses.first().copied().unwrap_or(0);
                let last = accesses.last().copied().unwrap_or(0);
                let after = if self.t.is_input(x) { end } else { last + 1 };
                let before = if self.choice.leaves[x] { 0 } else { first };
                vec![(0, before), (after, end)]
            }
            BudgetSite::Begin(x) => {
                vec![(0, self.t.tensors[x].accesses.first().copied().unwrap_or(0))]
            }
        }
    }

    /// What a decision costs, in seconds; `None` where it cannot be carried out.
    fn seconds(&self, site: BudgetSite, gap: Gap) -> Option<f64> {
        let x = site.tensor();
        let bytes = self.t.tensors[x].bytes;
        let both_ways = |seconds: &dyn Fn(Direction, u64) -> f64| {
            seconds(Direction::ToHost, bytes) + seconds(Direction::ToDevice, bytes)
        };
        let copies = both_ways(&|direction, bytes| self.device.copy_seconds(direction, bytes));
        let lost = both_ways(&|direction, bytes| self.device.lost_seconds(direction, bytes));
        let start = |p: u32| self.t.start[p as usize];
        match (site, gap) {
            (BudgetSite::Gap(x, k), Gap::Repeat { .. }) => self.chain_seconds(x, k),
            (BudgetSite::Gap(x, k), _) => {
                let accesses = &self.t.tensors[x].accesses;
                let idle = start(accesses[k + 1]) - start(accesses[k] + 1);
                Some(lost + self.hidden * copies + (copies - idle).max(0.0))
            }
            (BudgetSite::Begin(x), _) => {
                let idle = self.t.tensors[x].accesses.first().map_or(0.0, |&p| start(p));
                Some(lost + self.hidden * copies + (copies - idle).max(0.0))
            }
            (BudgetSite::Home(_), _) => Some(lost + self.hidden * copies),
        }
    }

    /// Seconds of the tasks to repeat so that a tensor is there again after a gap; `None` where
    /// one reads a value that is gone for good.
    fn chain_seconds(&self, x: usize, k: usize) -> Option<f64> {
        let at = self.t.tensors[x].accesses[k + 1];
        let (mut wanted, mut tasks, mut seconds) = (vec![x], Vec::new(), 0.0);
        while let Some(y) = wanted.pop() {
            let task = self.t.tensors[y].producer.filter(|_| self.t.may_repeat(y))?;
            if tasks.contains(&task) {
                continue;
            }
            if tasks.len() >= MAX_CHAIN {
                return None;
            }
            tasks.push(task);
            seconds += self.t.seconds(self.t.position[task]);
            for &b in &self.t.plan.tasks[task].reads {
                let Some(z) = self.t.tensor[b] else { continue };
                let tensor = &self.t.tensors[z];
                if b == tensor.buffer && tensor.renewed.is_some_and(|r| r < at) {
                    return None;
                }
                if tensor.homed {
                    continue;
                }
                let next = tensor.accesses.partition_point(|&a| a < at);
                let here = match tensor.accesses.get(next) {
                    Some(&a) if a == at => true,
                    Some(_) if next > 0 => self.choice.gaps[self.t.gap(z, next - 1)] == Gap::Keep,
                    _ => tensor.pinned,
                };
                if !here {
                    wanted.push(z);
                }
            }
        }
        Some(seconds)
    }

    fn apply(&mut self, site: BudgetSite, gap: Gap) {
        let bytes = self.t.tensors[site.tensor()].bytes;
        for p in self.idle(site).into_iter().flat_map(|(from, to)| from..to) {
            let live = &mut self.live[p as usize];
            *live = live.saturating_sub(bytes);
        }
        match site {
            BudgetSite::Home(x) => {
                self.choice.host_home[x] = true;
                self.choice.leaves[x] = false;
            }
            BudgetSite::Begin(x) => self.choice.leaves[x] = true,
            BudgetSite::Gap(x, k) => self.choice.gaps[self.t.gap(x, k)] = gap,
        }
    }
}
