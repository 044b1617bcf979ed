//! The environment (sections 4.6 to 4.8): a walk over the nodes, with an action at each.

use super::actions::World;
use arenic_ir::cost::Direction;
use arenic_passes::residency::{Prediction, ResidencyChoice, Room, Walker};
use std::ops::Range;
use std::rc::Rc;

/// The node that stands for doing nothing.
pub(super) const NOTHING: usize = 0;

/// What of the graph changes: which actions can be taken, and the node under execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// By node.
    pub(super) valid: Vec<bool>,
    pub(super) current: usize,
}

impl State {
    /// The nodes whose actions can be taken.
    pub(super) fn actions(&self) -> impl Iterator<Item = usize> + '_ {
        self.valid.iter().enumerate().filter(|v| *v.1).map(|v| v.0)
    }
}

/// What the actions so far lead to.
struct Outcome {
    promise: Prediction,
    /// Live bytes at each position, repeats before it included.
    load: Vec<u64>,
    /// How many positions before each one are above the limit.
    above: Vec<u32>,
}

/// One episode.
pub(super) struct Episode<'a> {
    world: &'a World<'a>,
    walker: Walker<'a>,
    room: Room,
    limit: u64,
    /// The step without a limit, in seconds.
    step: f64,
    choice: ResidencyChoice,
    outcome: Outcome,
    /// Actions that turned out to help nothing.
    void: Vec<bool>,
    current: usize,
    /// Choices that were judged.
    judged: u32,
}

/// Seconds of the reference core for a choice that is judged, per position of the order.
const PER_POSITION: f64 = 5e-8;

impl<'a> Episode<'a> {
    /// An episode that has not begun.
    pub(super) fn new(world: &'a World<'a>, limit: u64) -> Self {
        let t = world.t;
        let outcome =
            Outcome { promise: Prediction::default(), load: Vec::new(), above: Vec::new() };
        Episode {
            world,
            walker: Walker::new(t),
            room: Room::new(t, world.device),
            limit,
            step: t.start.last().copied().unwrap_or(0.0).max(f64::MIN_POSITIVE),
            choice: ResidencyChoice::keep_all(t),
            outcome,
            void: vec![false; world.actions.len()],
            current: 0,
            judged: 0,
        }
    }

    /// Begins anew and gives the first state; `None` if there is nothing to decide.
    pub(super) fn begin(&mut self) -> Option<Rc<State>> {
        self.choice = ResidencyChoice::keep_all(self.world.t);
        self.void.fill(false);
        self.outcome = self.judge()?;
        self.current = 0;
        self.advance(0)
    }

    /// Seconds of the reference core for what was judged since this was asked last.
    pub(super) fn take_effort(&mut self) -> f64 {
        let judged = std::mem::take(&mut self.judged);
        f64::from(judged) * PER_POSITION * self.world.t.order.len() as f64
    }

    /// What was decided, and what it promises.
    pub(super) fn result(&self) -> (&ResidencyChoice, Prediction) {
        (&self.choice, self.outcome.promise)
    }

    /// Takes the action of a node: the reward, in tenths of the step, and the next state; none
    /// at the end. `None` where the action helps nothing: it was not taken.
    pub(super) fn act(&mut self, node: usize) -> Option<(f64, Option<Rc<State>>)> {
        let mut from = self.current + 1;
        let before = self.outcome.promise.seconds;
        let index = (node != NOTHING).then(|| self.index(node)).flatten();
        if let Some(i) = index {
            let action = &self.world.actions[i];
            let was = self.choice.clone();
            action.take(self.world.t, &mut self.choice);
            let over = self.outcome.promise.over;
            match self.judge().filter(|new| new.promise.over < over) {
                Some(outcome) => self.outcome = outcome,
                None => {
                    self.choice = was;
                    self.void[i] = true;
                    return None;
                }
            }
            if !action.drops {
                from = self.copied(self.world.t.tensors[action.absence.tensor].bytes);
            }
        } else {
            from = self.next_change(from);
        }
        let next = self.advance(from);
        let spent = self.outcome.promise.seconds - before;
        let fine = match (&next, self.outcome.promise.over) {
            (Some(_), _) | (None, 0) => 0.0,
            (None, over) => 0.1 + (over as f64 / self.limit.max(1) as f64).min(1.0),
        };
        Some((-10.0 * (spent / self.step + fine), next))
    }

    /// The state where the walk stands.
    pub(super) fn state(&self) -> Rc<State> {
        let mut valid = vec![false; self.world.events.nodes.len()];
        for (i, action) in self.world.actions.iter().enumerate() {
            valid[action.node] = self.is_valid(i, self.current);
        }
        valid[NOTHING] = !self.is_above(self.current) || !valid.contains(&true);
        Rc::new(State { valid, current: self.current })
    }

    /// Takes back what was decided without need: the small tensors that have no nodes first,
    /// then the last actions.
    pub(super) fn prune(&mut self) {
        let world = self.world;
        let acted = world.actions.iter().rev().map(|action| &action.absence);
        for absence in world.others.iter().rev().chain(acted) {
            if !absence.is_chosen(world.t, &self.choice) {
                continue;
            }
            let was = self.choice.clone();
            absence.keep(world.t, &mut self.choice);
            match self.judge() {
                Some(new) if !self.outcome.promise.is_better_than(&new.promise) => {
                    self.outcome = new;
                }
                _ => self.choice = was,
            }
        }
    }

    fn index(&self, node: usize) -> Option<usize> {
        self.world.actions.binary_search_by_key(&node, |a| a.node).ok()
    }

    fn position(&self, node: usize) -> usize {
        self.world.events.nodes[node].position as usize
    }

    /// The positions from a node's on that come before the next node's.
    fn positions(&self, node: usize) -> Range<usize> {
        let first = self.position(node);
        let next = self.world.events.nodes.get(node + 1).map(|e| e.position as usize);
        first..next.unwrap_or(self.outcome.load.len()).max(first + 1)
    }

    /// True where the memory from a node to the next is above the limit.
    fn is_above(&self, node: usize) -> bool {
        let positions = self.positions(node);
        self.outcome.above[positions.end] > self.outcome.above[positions.start]
    }

    /// The first node whose event begins after a copy to the host is done.
    fn copied(&self, bytes: u64) -> usize {
        let nodes = &self.world.events.nodes;
        let done =
            nodes[self.current].time + self.world.device.copy_seconds(Direction::ToHost, bytes);
        nodes.partition_point(|e| e.time < done).max(self.current + 1)
    }

    /// The first node from one on at which an action begins to be valid.
    fn next_change(&self, from: usize) -> usize {
        let begins = self.world.actions.iter().map(|a| a.from).filter(|&v| v >= from);
        begins.min().unwrap_or(self.world.events.nodes.len())
    }

    /// Moves on to a node at which there is something to decide, and not past one whose memory
    /// is above the limit: nothing gets bytes before there is space.
    fn advance(&mut self, from: usize) -> Option<Rc<State>> {
        let nodes = self.world.events.nodes.len();
        let mut next = self.current;
        while next < nodes && self.outcome.promise.over > 0 {
            let valid = self.any_valid(next);
            if valid && (next >= from || self.is_above(next)) {
                self.current = next;
                return Some(self.state());
            }
            for position in self.positions(next) {
                self.others_leave(position);
            }
            next += 1;
        }
        None
    }

    fn any_valid(&self, node: usize) -> bool {
        (0..self.world.actions.len()).any(|i| self.is_valid(i, node))
    }

    /// True where an action can be taken at a node and frees bytes at a position above the
    /// limit that is still to come.
    fn is_valid(&self, i: usize, node: usize) -> bool {
        let action = &self.world.actions[i];
        if self.void[i] || !(action.from..action.until).contains(&node) {
            return false;
        }
        let now = self.position(node);
        let above = |r: &Range<usize>| {
            let first = r.start.max(now).min(r.end);
            self.outcome.above[r.end] > self.outcome.above[first]
        };
        !action.absence.is_chosen(self.world.t, &self.choice)
            && action.absence.away.iter().any(above)
    }

    /// What has no nodes leaves, the largest first, until a position is not above the limit.
    fn others_leave(&mut self, position: usize) {
        for absence in &self.world.others {
            if self.outcome.load[position] <= self.limit {
                break;
            }
            let idle = absence.away.iter().any(|r| r.contains(&position));
            if idle && !absence.is_chosen(self.world.t, &self.choice) {
                let was = self.choice.clone();
                absence.swap(self.world.t, &mut self.choice);
                match self.judge() {
                    Some(outcome) => self.outcome = outcome,
                    None => self.choice = was,
                }
            }
        }
    }

    /// What the choice promises; `None` where it needs a value that is gone for good. While
    /// there is still to decide, copies have the room up to the peak that is left.
    fn judge(&mut self) -> Option<Outcome> {
        self.judged += 1;
        let t = self.world.t;
        let script = self.walker.walk(&self.choice)?;
        let mut load = vec![0; t.order.len()];
        let mut most = 0;
        for step in &script.steps {
            most = step.live.max(most);
            if step.again.is_none() {
                load[t.position[step.task] as usize] = std::mem::take(&mut most);
            }
        }
        let over = |live: u64| live.saturating_sub(self.limit);
        let over_all = script.steps.iter().map(|s| over(s.live)).sum();
        let peak = load.iter().copied().max().unwrap_or(0).max(self.limit);
        let seconds = self.room.schedule(script, peak).seconds;
        let mut above = vec![0];
        above.extend(load.iter().scan(0, |n, &live| {
            *n += u32::from(live > self.limit);
            Some(*n)
        }));
        Some(Outcome { promise: Prediction { seconds, over: over_all }, load, above })
    }
}
