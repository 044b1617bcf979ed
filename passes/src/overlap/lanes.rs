//! Kernels and exchanges side by side: which exchange begins when, and what may be moved for it.
//!
//! Kernels run one after another in the order's turn, exchanges too, each in a lane of its own. A task begins when
//! its lane is free and what it depends on has ended; an exchange also waits for the kernels before it in the order, since in a
//! dense arena it takes bytes that they have left.

use crate::order::Problem;
use std::collections::VecDeque;

/// What a task occupies, and for how many seconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lane {
    /// The arithmetic units.
    Kernel {
        seconds: f64,
        /// It may be part of an update.
        is_light: bool,
    },
    /// The links to other ranks.
    Exchange {
        seconds: f64,
        /// Terms of all ranks are summed; else parts are gathered.
        sums: bool,
    },
}

/// A problem with what its operators occupy.
pub(super) struct Lanes<'a> {
    pub(super) p: &'a Problem,
    pub(super) lanes: Vec<Lane>,
    /// Of each operator the readers of the states that it renews.
    waits: Vec<Vec<usize>>,
    /// How many times as long as they take exchanges are given.
    slack: f64,
}

/// Both lanes while an order is issued.
pub(super) struct Clock {
    kernels: f64,
    exchanges: f64,
    /// How many times as long as they are said to exchanges take.
    slack: f64,
    /// Of each operator when it has ended; `None` before it is issued.
    ended: Vec<Option<f64>>,
}

impl<'a> Lanes<'a> {
    /// `waits` are pairs of a reader of a state and what renews it. Exchanges are given up to `most` times as long as
    /// they take, unless that is more than a part of what kernels take.
    pub(super) fn new(
        p: &'a Problem,
        lanes: Vec<Lane>,
        waits: impl IntoIterator<Item = (usize, usize)>,
        (most, part): (f64, f64),
    ) -> Lanes<'a> {
        let mut readers = vec![Vec::new(); p.len()];
        waits.into_iter().for_each(|(reader, update)| readers[update].push(reader));
        let mut lanes = Lanes { p, lanes, waits: readers, slack: 1.0 };
        let exchanges = lanes.exchange_seconds().max(f64::MIN_POSITIVE);
        lanes.slack = (part * lanes.kernel_seconds() / exchanges).clamp(1.0, most);
        lanes
    }

    pub(super) fn slack(&self) -> f64 {
        self.slack
    }

    pub(super) fn kernel_seconds(&self) -> f64 {
        (0..self.p.len()).map(|v| self.of_kernel(v)).sum()
    }

    pub(super) fn exchange_seconds(&self) -> f64 {
        (0..self.p.len()).filter_map(|v| self.of_exchange(v)).sum()
    }

    fn of_kernel(&self, v: usize) -> f64 {
        match self.lanes[v] {
            Lane::Kernel { seconds, .. } => seconds,
            Lane::Exchange { .. } => 0.0,
        }
    }

    pub(super) fn of_exchange(&self, v: usize) -> Option<f64> {
        match self.lanes[v] {
            Lane::Kernel { .. } => None,
            Lane::Exchange { seconds, .. } => Some(seconds),
        }
    }

    /// What comes before an operator: what it depends on, and what reads the old value of a state that it renews.
    pub(super) fn needs(&self, v: usize) -> impl Iterator<Item = &usize> {
        self.p.before(v).iter().chain(&self.waits[v])
    }

    /// True for parameters that are gathered of what is there when the step begins.
    fn is_free_gather(&self, v: usize) -> bool {
        matches!(self.lanes[v], Lane::Exchange { sums: false, .. }) && self.p.before(v).is_empty()
    }

    /// Seconds of an order where exchanges take `slack` times as long as they are said to.
    pub(super) fn seconds(&self, order: impl Iterator<Item = usize>, slack: f64) -> f64 {
        let mut clock = Clock::new(self.p.len(), slack);
        order.for_each(|v| clock.issue(self, v));
        clock.kernels.max(clock.exchanges)
    }

    /// Each exchange of an order, and the place of the last operator that begins before it has ended.
    pub(super) fn ends(&self, order: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
        let mut clock = Clock::new(self.p.len(), self.slack);
        let (mut ends, mut last) = (Vec::new(), 0);
        let mut running: VecDeque<(usize, f64)> = VecDeque::new();
        for (i, v) in order.enumerate() {
            clock.issue(self, v);
            let end = clock.ended[v].unwrap_or(0.0);
            match self.of_exchange(v) {
                Some(_) => running.push_back((v, end)),
                // They end in the order in which they begin.
                None => {
                    let begins = end - self.of_kernel(v);
                    while running.front().is_some_and(|(_, end)| *end <= begins) {
                        ends.extend(running.pop_front().map(|(v, _)| (v, i - 1)));
                    }
                }
            }
            last = i;
        }
        ends.extend(running.into_iter().map(|(v, _)| (v, last)));
        ends
    }

    /// The order with gathers before kernels that take as long as they do, where what is gathered stays below `most`
    /// bytes with all else.
    pub(super) fn gather_early(&self, order: &[usize], most: u64) -> Vec<usize> {
        let n = order.len();
        let mut position = vec![0; n];
        order.iter().enumerate().for_each(|(i, &v)| position[v] = i);
        // When the kernel at each position would begin if none waited for an exchange.
        let mut begins = Vec::with_capacity(n + 1);
        begins.push(0.0);
        for &v in order {
            begins.push(begins[begins.len() - 1] + self.of_kernel(v));
        }
        let mut room: Vec<u64> =
            self.p.profile(order).into_iter().map(|live| most.saturating_sub(live)).collect();
        // Exchanges before which each position has its gathers.
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); n];
        // When the exchanges that follow begin at the latest.
        let mut next = f64::INFINITY;
        for (i, &v) in order.iter().enumerate().rev() {
            let Some(seconds) = self.of_exchange(v).map(|s| self.slack * s) else { continue };
            if !self.is_free_gather(v) {
                // It cannot begin before its turn, and has to have ended before what follows.
                next = next.min((next - seconds).max(begins[i]));
                continue;
            }
            let due = self.p.after(v).iter().map(|&reader| position[reader]).min().unwrap_or(n);
            let wanted = next.min(begins[due]) - seconds;
            let bytes = self.p.bytes(self.p.writes(v));
            let mut at = i;
            while at > 0 && begins[at] > wanted && room[at - 1] >= bytes {
                at -= 1;
                room[at] -= bytes;
            }
            before[at].push(v);
            next = begins[at].min(wanted);
        }
        let mut early = Vec::with_capacity(n);
        for (i, &v) in order.iter().enumerate() {
            // Found from the last one on.
            early.extend(before[i].iter().rev());
            if !self.is_free_gather(v) {
                early.push(v);
            }
        }
        early
    }
}

impl Clock {
    pub(super) fn new(operators: usize, slack: f64) -> Clock {
        Clock { kernels: 0.0, exchanges: 0.0, slack, ended: vec![None; operators] }
    }

    /// When the last kernel has ended.
    pub(super) fn kernels(&self) -> f64 {
        self.kernels
    }

    /// When an operator has ended; `None` before it is issued.
    pub(super) fn ended(&self, v: usize) -> Option<f64> {
        self.ended[v]
    }

    /// When all that an operator depends on has ended, of what is issued.
    pub(super) fn ready(&self, lanes: &Lanes, v: usize) -> f64 {
        lanes.p.before(v).iter().filter_map(|&b| self.ended[b]).fold(0.0, f64::max)
    }

    pub(super) fn issue(&mut self, lanes: &Lanes, v: usize) {
        let (ready, kernels) = (self.ready(lanes, v), self.kernels);
        let (lane, ready, seconds) = match lanes.lanes[v] {
            Lane::Kernel { seconds, .. } => (&mut self.kernels, ready, seconds),
            Lane::Exchange { seconds, .. } => {
                (&mut self.exchanges, ready.max(kernels), self.slack * seconds)
            }
        };
        *lane = lane.max(ready) + seconds;
        self.ended[v] = Some(*lane);
    }
}
