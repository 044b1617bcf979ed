//! What leaves the device between two accesses, and how it comes back.
//!
//! Greedy: while some position holds more than the limit, of all tensors that lie idle
//! across the worst position those leave whose absence costs least for what it frees. Cost
//! is in seconds: for a copy what the link cannot hide behind the kernels in the time at
//! hand, for computing again the kernels themselves. What it frees is bytes times the
//! positions above the limit (the area that AutoSwap's scores weigh).

use super::link::Link;
use super::timeline::Timeline;
use arenic_ir::cost::{Device, Direction};
use arenic_ir::plan::{BufferId, TaskId, TaskKind};
use std::collections::BTreeMap;

/// What becomes of a tensor between two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// It stays.
    Keep,
    /// It goes to host memory and comes back.
    Swap,
    /// It is dropped and computed again.
    Repeat,
}

/// What becomes of each tensor.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// Its home is in host memory.
    pub(super) host_home: Vec<bool>,
    /// It is handed out in host memory, once the last access is over.
    pub(super) host_end: Vec<bool>,
    /// Positions at which it must be there: accesses, and repeats that read it.
    pub(super) needed: Vec<Vec<u32>>,
    /// Between each of these and the next.
    pub(super) gaps: Vec<Vec<Gap>>,
    /// Room for copies, per (tensor, position after which it leaves).
    pub(super) windows: BTreeMap<(usize, u32), Window>,
}

/// Room for a tensor's copies to run beside kernels: its bytes stay until the copy out should
/// be done, and are there again early enough for the copy in (AutoSwap, section IV-E).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Window {
    /// The last position at which it still keeps its bytes.
    pub(super) release: u32,
    /// The first position at which it has bytes again.
    pub(super) fetch: u32,
    /// When its copy out should be done, in seconds.
    done: f64,
    /// When its copy in should begin.
    begun: f64,
}

impl Choice {
    /// Everything stays where it is.
    pub(super) fn keep_all(t: &Timeline) -> Choice {
        let needed: Vec<Vec<u32>> = t.tensors.iter().map(|x| x.accesses.clone()).collect();
        let gaps = needed.iter().map(|n| vec![Gap::Keep; n.len().saturating_sub(1)]).collect();
        let none = vec![false; t.tensors.len()];
        Choice { host_home: none.clone(), host_end: none, needed, gaps, windows: BTreeMap::new() }
    }

    /// Everything leaves that the task at hand does not need: the least memory, and the
    /// most copies.
    pub(super) fn spill_all(t: &Timeline) -> Choice {
        let mut all = Choice::keep_all(t);
        for (x, tensor) in t.tensors.iter().enumerate() {
            all.host_home[x] = tensor.homed;
            all.host_end[x] = tensor.pinned && !tensor.homed;
            for (gap, &after) in all.gaps[x].iter_mut().zip(&tensor.accesses) {
                if !t.is_between_homes(x, after) {
                    *gap = Gap::Swap;
                }
            }
        }
        all
    }
}

/// Which moves are made, and how they are weighed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    /// Tensors may go to host memory.
    pub(super) swap: bool,
    /// Tensors may be computed again.
    pub(super) repeat: bool,
    /// What a second of the link costs that kernels hide.
    pub(super) hidden: f64,
    /// Seed of random factors on the tensors' scores; zero for none.
    pub(super) seed: u64,
}

impl Weights {
    /// A factor between a quarter and four, the same for a seed and a tensor.
    fn factor(&self, x: usize) -> f64 {
        if self.seed == 0 {
            return 1.0;
        }
        let mut z = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (x as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 30)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        16.0f64.powf((z >> 11) as f64 / (1u64 << 53) as f64 - 0.5)
    }
}

/// One thing that can be done about the worst position.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// The home goes to host memory.
    Home(usize),
    /// The tensor is away from this position on, until it is needed next.
    Swap(usize, u32),
    /// The tensor is dropped from this position on, until it is needed next.
    Repeat(usize, u32),
    /// The room for the copies of what left at this position gets smaller; the kernels wait.
    Cut(usize, u32),
}

impl Move {
    /// The tensor, and where its gap begins.
    fn gap(self) -> (usize, u32) {
        match self {
            Move::Home(x) => (x, HOME),
            Move::Swap(x, from) | Move::Repeat(x, from) | Move::Cut(x, from) => (x, from),
        }
    }
}

/// Longest chain of tasks that is repeated for one tensor.
const MAX_CHAIN: usize = 200;

/// Chooses what leaves, so that no position holds more than `limit` bytes; `None` where
/// these moves cannot reach it.
pub(super) fn choose(
    t: &Timeline,
    device: &Device,
    limit: u64,
    weights: Weights,
) -> Option<Choice> {
    let mut chooser = Chooser {
        t,
        device,
        weights,
        limit,
        choice: Choice::keep_all(t),
        live: t.live.clone(),
        over: Vec::new(),
        worst: 0,
        to_host: Link::default(),
        to_device: Link::default(),
    };
    while chooser.relieve()? {}
    Some(chooser.choice)
}

struct Chooser<'a> {
    t: &'a Timeline<'a>,
    device: &'a Device,
    weights: Weights,
    limit: u64,
    choice: Choice,
    live: Vec<u64>,
    /// How many positions before each one hold more than the limit.
    over: Vec<u32>,
    /// The position that holds most.
    worst: u32,
    to_host: Link,
    to_device: Link,
}

/// The key of a home's windows: no position is there before the first.
pub(super) const HOME: u32 = u32::MAX;

impl Chooser<'_> {
    /// Brings the worst position below the limit; false where there is none, `None` where
    /// that cannot be done.
    fn relieve(&mut self) -> Option<bool> {
        let worst = (0..self.live.len()).rev().max_by_key(|&p| self.live[p]);
        let Some(p) = worst.filter(|&p| self.live[p] > self.limit) else { return Some(false) };
        self.worst = p as u32;
        self.over.clear();
        self.over.push(0);
        for &bytes in &self.live {
            let last = self.over.last().copied().unwrap_or(0);
            self.over.push(last + u32::from(bytes > self.limit));
        }
        let mut moves: Vec<(f64, Move)> = Vec::new();
        for x in 0..self.t.tensors.len() {
            for m in self.moves(x) {
                moves.extend(self.score(m).map(|score| (score, m)));
            }
        }
        // The best comes last. A score grows as others take the link.
        moves.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut moved = false;
        while self.live[p] > self.limit {
            let Some((_, m)) = moves.pop() else { return moved.then_some(true) };
            let next = moves.last().map_or(f64::INFINITY, |m| m.0);
            let Some(score) = self.score(m) else { continue };
            if score > next + 0.01 * next.abs() + 1e-30 {
                let at = moves.partition_point(|m| m.0 >= score);
                moves.insert(at, (score, m));
                continue;
            }
            self.apply(m);
            moved = true;
        }
        Some(true)
    }

    /// What can be done with a tensor about the worst position.
    fn moves(&self, x: usize) -> Vec<Move> {
        let (tensor, needed, p) = (&self.t.tensors[x], &self.choice.needed[x], self.worst);
        let Some((&first, &last)) = needed.first().zip(needed.last()) else { return Vec::new() };
        let mut moves = Vec::new();
        if tensor.homed && !self.choice.host_home[x] {
            if self.weights.swap {
                moves.push(Move::Home(x));
            }
            return moves;
        }
        if p < first || p > last {
            if tensor.homed {
                moves.push(Move::Cut(x, HOME));
            }
            return moves;
        }
        let k = needed.partition_point(|&n| n <= p) - 1;
        if needed[k] == p || self.t.is_between_homes(x, needed[k]) {
            return moves;
        }
        match self.choice.gaps[x][k] {
            Gap::Swap => moves.push(Move::Cut(x, needed[k])),
            Gap::Repeat => {}
            Gap::Keep => {
                if self.weights.swap {
                    moves.push(Move::Swap(x, needed[k]));
                }
                if self.weights.repeat && !tensor.homed && tensor.producer.is_some() {
                    moves.push(Move::Repeat(x, needed[k]));
                }
            }
        }
        moves
    }

    /// Where a tensor is not needed from `from` on: that position, and the next at which it
    /// is. A home's copy out comes after its last access, its copy in before its first.
    fn span(&self, x: usize, from: u32) -> (u32, u32) {
        let needed = &self.choice.needed[x];
        match from {
            HOME => (needed.last().copied().unwrap_or(0), needed.first().copied().unwrap_or(0)),
            from => (from, needed[self.gap(x, from) + 1]),
        }
    }

    /// When the copy out of a gap can begin: after the access, or the commit.
    fn left(&self, x: usize, from: u32) -> f64 {
        let copied = if from == HOME { self.t.tensors[x].committed } else { None };
        self.t.start[copied.unwrap_or(self.span(x, from).0) as usize + 1]
    }

    /// When the copies of a gap that is opened now should be done and begin, as busy as the
    /// link is.
    fn copies(&self, x: usize, from: u32) -> (f64, f64) {
        let (_, to) = self.span(x, from);
        let out = match from {
            HOME => self.t.tensors[x].renewed.is_some(),
            from => !self.has_host_copy(x, self.gap(x, from)),
        };
        let left = self.left(x, from);
        let done = match out {
            true => self.to_host.done_after(left, self.copy_seconds(Direction::ToHost, x)),
            false => left,
        };
        let back = self.t.start[to as usize];
        (done, self.to_device.begun_before(back, self.copy_seconds(Direction::ToDevice, x)))
    }

    /// The windows of a gap whose copies take until `done` and from `begun`, cut so that the
    /// worst position is free.
    fn window(&self, x: usize, from: u32, done: f64, begun: f64) -> Window {
        let (after, to) = self.span(x, from);
        let (end, p) = (self.live.len() as u32, self.worst);
        let most = if from == HOME { end - 1 } else { to - 1 };
        // The last position that begins before the copy is done, the first that begins
        // after it has to.
        let busy = self.t.start[..end as usize].partition_point(|&s| s < done) as u32;
        let mut release = busy.saturating_sub(1).clamp(after, most);
        let early = self.t.start[..end as usize].partition_point(|&s| s <= begun) as u32;
        let least = if from == HOME { 0 } else { release + 1 };
        let mut fetch = early.saturating_sub(1).clamp(least.min(to), to);
        if (after + 1..=release).contains(&p) {
            release = p - 1;
        }
        if (fetch..to).contains(&p) {
            fetch = p + 1;
        }
        Window { release, fetch, done, begun }
    }

    /// Positions that are free in a gap with these windows, as runs from first to one past
    /// the last.
    fn emptied(&self, x: usize, from: u32, window: &Window) -> [(u32, u32); 2] {
        let end = self.live.len() as u32;
        match from {
            // An input's bytes are free after its last reader wherever its home is.
            HOME if self.t.is_input(x) => [(0, window.fetch), (end, end)],
            HOME => [(0, window.fetch), (window.release + 1, end)],
            _ => [(window.release + 1, window.fetch), (end, end)],
        }
    }

    /// Seconds that kernels wait because the worst position has no room for the copies.
    fn delay(&self, x: usize, from: u32, done: f64, begun: f64) -> f64 {
        let (after, to) = self.span(x, from);
        let p = self.worst;
        let end = self.t.start.last().copied().unwrap_or(0.0);
        let mut delay = 0.0;
        if p > after {
            delay += (done - self.t.start[p as usize]).max(0.0);
        }
        if p < to {
            delay += (self.t.start[p as usize + 1] - begun).max(0.0);
        }
        if from == HOME {
            // The step begins and ends with the link at rest.
            delay += (-begun).max(0.0) + (done - end).max(0.0);
        }
        delay
    }

    /// Seconds for each byte and position above the limit that a move frees; `None` where it
    /// frees none or cannot be done.
    fn score(&self, m: Move) -> Option<f64> {
        let (x, from) = m.gap();
        let taken = |x: usize| self.choice.gaps[x][self.gap(x, from)] != Gap::Keep;
        let over = |&(from, to): &(u32, u32)| match from < to {
            true => self.over[to as usize] - self.over[from as usize],
            false => 0,
        };
        let (seconds, freed) = match m {
            Move::Repeat(..) | Move::Swap(..) if taken(x) => return None,
            Move::Repeat(..) => {
                let (after, to) = self.span(x, from);
                let chain = self.chain(x, to)?;
                let seconds = chain.iter().map(|&t| self.t.seconds(self.t.position[t])).sum();
                (seconds, over(&(after + 1, to)))
            }
            Move::Home(_) | Move::Swap(..) => {
                let (done, begun) = self.copies(x, from);
                let window = self.window(x, from, done, begun);
                let freed = self.emptied(x, from, &window).iter().map(over).sum();
                let out = (done - self.left(x, from)).max(0.0);
                let used = out + self.t.start[self.span(x, from).1 as usize] - begun;
                let hidden = self.weights.hidden * used;
                (self.delay(x, from, done, begun) + hidden, freed)
            }
            Move::Cut(..) => {
                let old = self.choice.windows.get(&(x, from))?;
                let new = self.cut(x, from, old)?;
                let before: u32 = self.emptied(x, from, old).iter().map(over).sum();
                let after: u32 = self.emptied(x, from, &new).iter().map(over).sum();
                (self.delay(x, from, old.done, old.begun), after.saturating_sub(before))
            }
        };
        let weight = self.weights.factor(x) / self.t.tensors[x].bytes as f64;
        (freed > 0).then(|| seconds * weight / f64::from(freed))
    }

    /// The windows without the worst position; `None` where it lies in neither.
    fn cut(&self, x: usize, from: u32, old: &Window) -> Option<Window> {
        let (after, to) = self.span(x, from);
        let p = self.worst;
        if (after + 1..=old.release).contains(&p) {
            return Some(Window { release: p - 1, ..*old });
        }
        (old.fetch..to).contains(&p).then_some(Window { fetch: p + 1, ..*old })
    }

    fn copy_seconds(&self, direction: Direction, x: usize) -> f64 {
        self.device.copy_seconds(direction, self.t.tensors[x].bytes)
    }

    /// A home in host memory, or an earlier swap of the same value.
    fn has_host_copy(&self, x: usize, k: usize) -> bool {
        self.choice.host_home[x] || self.choice.gaps[x][..k].contains(&Gap::Swap)
    }

    /// Takes a tensor's bytes off the free positions, or puts them back.
    fn count(&mut self, x: usize, runs: [(u32, u32); 2], leaves: bool) {
        let bytes = self.t.tensors[x].bytes;
        for p in runs.into_iter().flat_map(|(from, to)| from..to) {
            let live = &mut self.live[p as usize];
            *live = if leaves { live.saturating_sub(bytes) } else { *live + bytes };
        }
    }

    fn apply(&mut self, m: Move) {
        let (x, from) = m.gap();
        match m {
            Move::Home(_) | Move::Swap(..) => {
                let (done, begun) = self.copies(x, from);
                let window = self.window(x, from, done, begun);
                let back = self.t.start[self.span(x, from).1 as usize];
                let left = self.left(x, from);
                if done > left {
                    self.to_host.occupy(left, done);
                }
                if begun < back {
                    self.to_device.occupy(begun, back);
                }
                self.count(x, self.emptied(x, from, &window), true);
                self.choice.windows.insert((x, from), window);
                match m {
                    Move::Home(_) => self.choice.host_home[x] = true,
                    _ => {
                        let k = self.gap(x, from);
                        self.choice.gaps[x][k] = Gap::Swap;
                    }
                }
            }
            Move::Cut(..) => {
                let old = self.choice.windows.get(&(x, from)).copied().unwrap_or_default();
                let Some(new) = self.cut(x, from, &old) else { return };
                self.count(x, self.emptied(x, from, &old), false);
                self.count(x, self.emptied(x, from, &new), true);
                self.choice.windows.insert((x, from), new);
            }
            Move::Repeat(..) => {
                let (after, at) = self.span(x, from);
                let chain = self.chain(x, at).unwrap_or_default();
                let k = self.gap(x, from);
                self.choice.gaps[x][k] = Gap::Repeat;
                self.count(x, [(after + 1, at), (at, at)], true);
                for t in &chain {
                    for &b in &self.t.plan.tasks[*t].reads {
                        self.need(b, at);
                    }
                }
            }
        }
    }

    /// The gap that begins at a position.
    fn gap(&self, x: usize, from: u32) -> usize {
        self.choice.needed[x].partition_point(|&n| n < from)
    }

    /// From now on the buffer's tensor must be there at the position, if it is today.
    fn need(&mut self, b: BufferId, at: u32) {
        let Some(y) = self.t.tensor[b] else { return };
        let needed = &mut self.choice.needed[y];
        let k = needed.partition_point(|&n| n < at);
        let inside = k > 0 && k < needed.len() && needed[k] != at;
        if inside && self.choice.gaps[y][k - 1] == Gap::Keep {
            needed.insert(k, at);
            self.choice.gaps[y].insert(k, Gap::Keep);
        }
    }

    /// The tasks to repeat so that a tensor is there again before a position, in order.
    /// `None` where one reads a value that is gone for good, or where what they make on the
    /// way does not fit.
    fn chain(&self, x: usize, at: u32) -> Option<Vec<TaskId>> {
        let mut tasks: Vec<TaskId> = Vec::new();
        let mut wanted = vec![x];
        let mut bytes = 0;
        while let Some(y) = wanted.pop() {
            let t = self.t.tensors[y].producer?;
            if tasks.contains(&t) {
                continue;
            }
            if !matches!(self.t.plan.tasks[t].kind, TaskKind::Run(_)) || tasks.len() >= MAX_CHAIN {
                return None;
            }
            tasks.push(t);
            if y != x {
                bytes += self.t.tensors[y].bytes;
            }
            for &b in &self.t.plan.tasks[t].reads {
                let Some(z) = self.t.tensor[b] else { continue };
                match self.source(z, b, at)? {
                    Source::Here => {}
                    Source::Host => bytes += self.t.tensors[z].bytes,
                    Source::Repeat => wanted.push(z),
                }
            }
            if let Some(b) = self.t.plan.tasks[t].scratch {
                bytes += self.t.plan.buffers[b].rounded();
            }
        }
        let task = &self.t.plan.tasks[self.t.order[at as usize]];
        let made: u64 =
            task.writes.iter().flatten().map(|&b| self.t.plan.buffers[b].rounded()).sum();
        let beside = self.live[at as usize].saturating_sub(made);
        tasks.sort_by_key(|&t| self.t.position[t]);
        (beside + bytes <= self.limit.max(self.live[at as usize])).then_some(tasks)
    }

    /// Where a repeat at a position finds an operand; `None` where its value is overwritten.
    fn source(&self, z: usize, b: BufferId, at: u32) -> Option<Source> {
        let (tensor, needed) = (&self.t.tensors[z], &self.choice.needed[z]);
        if tensor.renewed.is_some_and(|r| r <= at && b == tensor.buffer) {
            return None;
        }
        if tensor.homed && !self.choice.host_home[z] && !self.t.is_input(z) {
            return Some(Source::Here);
        }
        let k = needed.partition_point(|&n| n <= at);
        let here = match k.checked_sub(1) {
            Some(k) if needed[k] == at => true,
            Some(k) if k + 1 < needed.len() => self.choice.gaps[z][k] == Gap::Keep,
            Some(_) => tensor.pinned,
            None => tensor.homed && !self.choice.host_home[z],
        };
        Some(match () {
            () if here => Source::Here,
            () if self.has_host_copy(z, k.saturating_sub(1)) => Source::Host,
            () if tensor.homed => return None,
            () => Source::Repeat,
        })
    }
}

/// Where an operand is.
enum Source {
    Here,
    Host,
    Repeat,
}
