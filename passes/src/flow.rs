//! Least cuts by greatest flows.
//!
//! A flow from the source to the sink is a lower bound on every cut between them, and the greatest
//! one meets the least cut (Ford and Fulkerson, 1956). Found by Dinic's algorithm on arrays.

/// Where flow comes from.
pub(crate) const SOURCE: usize = 0;
/// Where it goes.
pub(crate) const SINK: usize = 1;
/// Room of an arc that no cut takes.
pub(crate) const UNLIMITED: u64 = u64::MAX / 4;

const NONE: u32 = u32::MAX;

/// A network, with the source and the sink; its arrays are kept between problems. Memory is linear
/// in the problem.
#[derive(Default)]
pub(crate) struct Network {
    /// First arc of each node, next arc of the same node.
    first: Vec<u32>,
    next: Vec<u32>,
    to: Vec<u32>,
    /// What the arc still takes. Arc a's opposite is a ^ 1.
    room: Vec<u64>,
    level: Vec<u32>,
    at: Vec<u32>,
    queue: Vec<u32>,
    path: Vec<u32>,
}

impl Network {
    /// The source and the sink alone.
    pub(crate) fn clear(&mut self) {
        self.first.clear();
        self.next.clear();
        self.to.clear();
        self.room.clear();
        self.node();
        self.node();
    }

    /// Another node.
    pub(crate) fn node(&mut self) -> usize {
        self.first.push(NONE);
        self.first.len() - 1
    }

    /// An arc for so much flow.
    pub(crate) fn arc(&mut self, from: usize, to: usize, room: u64) -> u32 {
        let arc = self.to.len() as u32;
        for (from, to, room) in [(from, to, room), (to, from, 0)] {
            self.next.push(self.first[from]);
            self.first[from] = self.to.len() as u32;
            self.to.push(to as u32);
            self.room.push(room);
        }
        arc
    }

    /// The greatest flow, or some flow where `work`, the arcs that may be looked at and by which
    /// it is reduced, comes to its end.
    pub(crate) fn flow(&mut self, work: &mut u64) -> u64 {
        let mut flow = 0;
        while self.levels(work) && *work > 0 {
            self.at.clone_from(&self.first);
            flow += self.blocking_flow(work, |network, a| {
                let [from, to] = [a ^ 1, a].map(|a| network.to[a as usize] as usize);
                network.level[to] == network.level[from] + 1
            });
        }
        flow
    }

    /// The same where the arcs make no cycle: most of the flow is found at once, along arcs
    /// alone, however long their paths are.
    pub(crate) fn flow_without_cycles(&mut self, work: &mut u64) -> u64 {
        self.at.clone_from(&self.first);
        let along_arcs = self.blocking_flow(work, |_, a| a.is_multiple_of(2));
        along_arcs + self.flow(work)
    }

    /// True on the source's side of the least cut: what the last search reached.
    pub(crate) fn reached(&self, n: usize) -> bool {
        self.level[n] != NONE
    }

    /// For each node whether it still reaches the sink: the smallest such side of a least cut.
    pub(crate) fn reaching_sink(&self) -> Vec<bool> {
        let mut reaches = vec![false; self.first.len()];
        reaches[SINK] = true;
        let mut stack = vec![SINK];
        while let Some(n) = stack.pop() {
            let mut arc = self.first[n];
            while arc != NONE {
                let from = self.to[arc as usize] as usize;
                if self.room[arc as usize ^ 1] > 0 && !reaches[from] {
                    reaches[from] = true;
                    stack.push(from);
                }
                arc = self.next[arc as usize];
            }
        }
        reaches
    }

    /// True for an arc that crosses the least cut.
    pub(crate) fn crosses(&self, arc: u32) -> bool {
        let [from, to] = [arc ^ 1, arc].map(|a| self.to[a as usize] as usize);
        self.reached(from) && !self.reached(to)
    }

    /// Distances from the source; true where the sink is reached.
    fn levels(&mut self, work: &mut u64) -> bool {
        self.level.clear();
        self.level.resize(self.first.len(), NONE);
        self.level[SOURCE] = 0;
        self.queue.clear();
        self.queue.push(SOURCE as u32);
        let mut next = 0;
        while next < self.queue.len() {
            let n = self.queue[next] as usize;
            next += 1;
            let mut a = self.first[n];
            while a != NONE {
                let to = self.to[a as usize] as usize;
                if self.room[a as usize] > 0 && self.level[to] == NONE {
                    self.level[to] = self.level[n] + 1;
                    self.queue.push(to as u32);
                }
                a = self.next[a as usize];
                *work = work.saturating_sub(1);
            }
        }
        self.level[SINK] != NONE
    }

    /// Fills paths of arcs that are taken one by one until none is left; such arcs make no
    /// cycle.
    fn blocking_flow(&mut self, work: &mut u64, is_taken: impl Fn(&Self, u32) -> bool) -> u64 {
        let mut flow = 0;
        self.path.clear();
        let mut n = SOURCE;
        loop {
            if n == SINK {
                let room = self.path.iter().map(|&a| self.room[a as usize]).min().unwrap_or(0);
                flow += room;
                let mut keep = self.path.len();
                for (i, &a) in self.path.iter().enumerate() {
                    self.room[a as usize] -= room;
                    self.room[a as usize ^ 1] += room;
                    if self.room[a as usize] == 0 {
                        keep = keep.min(i);
                    }
                }
                *work = work.saturating_sub(self.path.len() as u64);
                n = self.to[self.path[keep] as usize ^ 1] as usize;
                self.path.truncate(keep);
                continue;
            }
            let a = self.at[n];
            if a == NONE {
                let Some(back) = self.path.pop() else { return flow };
                n = self.to[back as usize ^ 1] as usize;
                self.at[n] = self.next[back as usize];
                continue;
            }
            *work = work.saturating_sub(1);
            let to = self.to[a as usize] as usize;
            if self.room[a as usize] > 0 && is_taken(self, a) {
                self.path.push(a);
                n = to;
            } else {
                self.at[n] = self.next[a as usize];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use petgraph::algo::ford_fulkerson;
    use petgraph::graph::{DiGraph, NodeIndex};

    /// An independent algorithm finds the same greatest flow, and what is reached is a cut of that size.
    #[test]
    fn least_cuts_are_those_of_another_library() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut network = Network::default();
        for _ in 0..500 {
            network.clear();
            let inner = random.usize(0..12);
            let mut nodes = vec![SOURCE, SINK];
            nodes.extend((0..inner).map(|_| network.node()));
            let mut other: DiGraph<(), u64> = DiGraph::new();
            for _ in &nodes {
                other.add_node(());
            }
            let mut arcs = Vec::new();
            for _ in 0..random.usize(0..40) {
                let (from, to) = (random.usize(0..nodes.len()), random.usize(0..nodes.len()));
                let room = random.u64(0..20);
                if from != to && to != SOURCE && from != SINK {
                    network.arc(from, to, room);
                    other.add_edge(NodeIndex::new(from), NodeIndex::new(to), room);
                    arcs.push((from, to, room));
                }
            }
            let flow = network.flow(&mut u64::MAX.to_owned());
            let (wanted, _) = ford_fulkerson(&other, NodeIndex::new(SOURCE), NodeIndex::new(SINK));
            assert_eq!(flow, wanted, "{arcs:?}");
            let crosses = |&&(from, to, _): &&(usize, usize, u64)| {
                network.reached(from) && !network.reached(to)
            };
            let cut: u64 = arcs.iter().filter(crosses).map(|&(.., room)| room).sum();
            assert_eq!(cut, flow, "{arcs:?}");
        }
    }
}
