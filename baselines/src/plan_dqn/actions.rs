//! What each node of the event graph stands for (sections 4.5 and 4.9).
//!
//! The first node is to do nothing. A tensor goes to host memory by the event that comes
//! before it lies idle, as its copy may begin there. It is dropped by an event of its own that
//! stands for nothing else: there are few of them, and the longest absences get one.

use super::events::{Event, EventKind, Events};
use arenic_ir::cost::{Device, Direction};
use arenic_passes::residency::{Absence, Gap, Idle, ResidencyChoice, Timeline, absences};

/// A tensor leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Action {
    pub(super) absence: Absence,
    /// It is dropped and computed again; else it goes to host memory and comes back.
    pub(super) drops: bool,
    /// The node that stands for it.
    pub(super) node: usize,
    /// The nodes that may be under execution as it is taken, from the first to one past the
    /// last.
    pub(super) from: usize,
    pub(super) until: usize,
}

impl Action {
    /// Decides it.
    pub(super) fn take(&self, t: &Timeline, choice: &mut ResidencyChoice) {
        match self.absence.idle {
            Idle::Between(k) if self.drops => {
                choice.gaps[t.gap(self.absence.tensor, k)] = Gap::Repeat { hold: true };
            }
            _ => self.absence.swap(t, choice),
        }
    }
}

/// The graph with what its nodes stand for.
pub(super) struct World<'a> {
    pub(super) t: &'a Timeline<'a>,
    pub(super) device: &'a Device,
    pub(super) events: Events,
    /// In the order of their nodes.
    pub(super) actions: Vec<Action>,
    /// What can leave but is too small to have nodes, the largest first.
    pub(super) others: Vec<Absence>,
    /// The features of each node that no action changes.
    pub(super) features: Vec<[f32; 5]>,
}

impl<'a> World<'a> {
    /// With no more than `most` nodes: the events of the largest tensors that can leave and
    /// have at least `least` bytes.
    pub(super) fn new(t: &'a Timeline<'a>, device: &'a Device, most: usize, least: u64) -> Self {
        let mut absences = absences(t);
        absences.sort_by_key(|a| std::cmp::Reverse(t.tensors[a.tensor].bytes));
        let mut tensors: Vec<usize> = absences.iter().map(|a| a.tensor).collect();
        tensors.dedup();
        tensors.retain(|&x| t.tensors[x].bytes >= least);
        let events = Events::new(t, &tensors, most);
        let (known, others): (Vec<Absence>, Vec<Absence>) =
            absences.into_iter().partition(|a| !events.of_tensor[a.tensor].is_empty());
        let turn = turn(t, &known);
        let mut actions = Vec::new();
        for of_one in known.chunk_by(|a, b| a.tensor == b.tensor) {
            actions.extend(actions_of(t, &events, of_one, turn));
        }
        actions.sort_by_key(|a| a.node);
        let features = features(t, device, &events, &actions);
        World { t, device, events, actions, others, features }
    }
}

/// Where the forward pass ends: the position that the most bytes lie idle across.
fn turn(t: &Timeline, absences: &[Absence]) -> usize {
    let mut idle = vec![0; t.order.len()];
    for absence in absences.iter().filter(|a| matches!(a.idle, Idle::Between(_))) {
        absence.positions().for_each(|p| idle[p] += t.tensors[absence.tensor].bytes);
    }
    (0..idle.len()).rev().max_by_key(|&p| idle[p]).unwrap_or(0)
}

/// The actions of a tensor.
fn actions_of(t: &Timeline, events: &Events, absences: &[Absence], turn: usize) -> Vec<Action> {
    let Some(x) = absences.first().map(|a| a.tensor) else { return Vec::new() };
    let nodes = &events.of_tensor[x];
    let accesses = &t.tensors[x].accesses;
    let is_access = |v: usize| !matches!(events.nodes[v].kind, EventKind::Malloc | EventKind::Free);
    let last_at =
        |p: u32| nodes.iter().copied().rfind(|&v| is_access(v) && events.nodes[v].position == p);
    let end = events.nodes.len();
    let mut actions = Vec::new();
    for absence in absences {
        let place = match absence.idle {
            Idle::Between(k) => last_at(accesses[k]).map(|v| {
                let later = |e: &Event| e.position < accesses[k + 1];
                (v, v, events.nodes.partition_point(later))
            }),
            Idle::AcrossSteps => accesses.last().and_then(|&p| last_at(p)).map(|v| (v, 0, end)),
            Idle::AtEnd => accesses.last().and_then(|&p| last_at(p)).map(|v| (v, v, end)),
        };
        if let Some((node, from, until)) = place {
            actions.push(Action { absence: absence.clone(), drops: false, node, from, until });
        }
    }
    let in_forward_pass = |a: &&Action| {
        let begins = a.absence.away.first().map_or(0, |r| r.start);
        matches!(a.absence.idle, Idle::Between(_)) && begins <= turn
    };
    let mut dropped: Vec<Action> = match t.may_repeat(x) {
        true => actions.iter().filter(in_forward_pass).cloned().collect(),
        false => Vec::new(),
    };
    dropped.sort_by_key(|a| std::cmp::Reverse(a.absence.positions().count()));
    let is_free = |v: &usize| actions.iter().all(|a| a.node != *v);
    let free: Vec<usize> = nodes.iter().copied().filter(is_free).collect();
    for (drop, node) in dropped.into_iter().zip(free) {
        actions.push(Action { drops: true, node, ..drop });
    }
    actions
}

/// The five features that no action changes, each as a part of the largest: bytes, seconds of
/// both copies, seconds of its task, seconds until its next event, and the type of the action.
fn features(t: &Timeline, device: &Device, events: &Events, actions: &[Action]) -> Vec<[f32; 5]> {
    let mut features = vec![[0.0; 5]; events.nodes.len()];
    for (x, nodes) in events.of_tensor.iter().enumerate() {
        let tensor = &t.tensors[x];
        let copies = [Direction::ToHost, Direction::ToDevice];
        let copies = copies.map(|d| device.copy_seconds(d, tensor.bytes)).iter().sum::<f64>();
        let made = tensor.producer.filter(|_| t.may_repeat(x));
        let again = made.map_or(0.0, |task| t.seconds(t.position[task]));
        for (i, &v) in nodes.iter().enumerate() {
            let next = nodes.get(i + 1).map_or(0.0, |&u| events.nodes[u].time);
            let until = (next - events.nodes[v].time).max(0.0);
            features[v] = [tensor.bytes as f64, copies, again, until, 0.0];
        }
    }
    for action in actions {
        features[action.node][4] = if action.drops { -1.0 } else { 1.0 };
    }
    let largest = |i: usize| {
        let most = features.iter().map(|f: &[f64; 5]| f[i]).fold(0.0, f64::max);
        if most > 0.0 { most } else { 1.0 }
    };
    let scale = [largest(0), largest(1), largest(2), largest(3), 1.0];
    let scaled = |f: &[f64; 5]| std::array::from_fn(|i| (f[i] / scale[i]) as f32);
    features.iter().map(scaled).collect()
}
