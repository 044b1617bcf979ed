//! The step as a graph of events (section 4.2).

use arenic_passes::residency::Timeline;

/// What happens to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EventKind {
    /// The step begins; of no tensor.
    Start,
    /// The tensor gets its bytes.
    Malloc,
    /// A task reads it.
    Read,
    /// A task writes it.
    Write,
    /// Nothing needs it any more.
    Free,
}

/// A node of the graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) kind: EventKind,
    /// The tensor; `None` for the step's beginning.
    pub(super) tensor: Option<usize>,
    /// The position of the task in whose course it happens.
    pub(super) position: u32,
    /// When it happens if nothing waits, in seconds.
    pub(super) time: f64,
}

/// Events in the order of time, with the edges between them.
pub(super) struct Events {
    pub(super) nodes: Vec<Event>,
    /// The tensor that each node belongs to, numbered from 0: events of one are joined, each
    /// with every other.
    pub(super) group: Vec<u32>,
    pub(super) groups: usize,
    /// Edges between consecutive events of different tensors, in both directions.
    pub(super) beside: Vec<(u32, u32)>,
    /// The time lags of each node's edges, added up: in seconds.
    pub(super) lag: Vec<f64>,
    /// Nodes of each tensor, in order; empty for tensors without.
    pub(super) of_tensor: Vec<Vec<usize>>,
}

impl Events {
    /// The events of some tensors, those of the first ones as far as there are no more than
    /// `most` of them.
    pub(super) fn new(t: &Timeline, tensors: &[usize], most: usize) -> Events {
        let start = Event { kind: EventKind::Start, tensor: None, position: 0, time: 0.0 };
        let mut nodes = vec![start];
        for &x in tensors {
            let events = events(t, x);
            if nodes.len() + events.len() <= most {
                nodes.extend(events);
            }
        }
        nodes.sort_by_key(|e| (e.position, e.kind, e.tensor));
        let mut of_tensor = vec![Vec::new(); t.tensors.len()];
        for (v, event) in nodes.iter().enumerate() {
            if let Some(x) = event.tensor {
                of_tensor[x].push(v);
            }
        }
        let (mut group, mut groups) = (vec![0; nodes.len()], 1);
        let mut lag = vec![0.0; nodes.len()];
        for members in of_tensor.iter().filter(|members| !members.is_empty()) {
            members.iter().for_each(|&v| group[v] = groups);
            groups += 1;
            // Later events are as many times their time ahead as there are, less their times.
            let all: f64 = members.iter().map(|&v| nodes[v].time).sum();
            let mut before = 0.0;
            for (i, &v) in members.iter().enumerate() {
                let time = nodes[v].time;
                let (earlier, later) = (i as f64, (members.len() - i) as f64);
                lag[v] = earlier * time - before + (all - before) - later * time;
                before += time;
            }
        }
        let mut beside = Vec::new();
        for v in 1..nodes.len() {
            if group[v - 1] != group[v] {
                beside.extend([(v as u32 - 1, v as u32), (v as u32, v as u32 - 1)]);
                let apart = nodes[v].time - nodes[v - 1].time;
                lag[v - 1] += apart;
                lag[v] += apart;
            }
        }
        Events { nodes, group, groups: groups as usize, beside, lag, of_tensor }
    }
}

/// The events of a tensor. What has a home has bytes there before the step and after it.
fn events(t: &Timeline, x: usize) -> Vec<Event> {
    let tensor = &t.tensors[x];
    let event = |kind, position: u32| {
        let ends = matches!(kind, EventKind::Write | EventKind::Free);
        let time = t.start[position as usize + usize::from(ends)];
        Event { kind, tensor: Some(x), position, time }
    };
    let mut events = Vec::new();
    for &p in &tensor.accesses {
        if events.is_empty() && !tensor.homed {
            events.push(event(EventKind::Malloc, p));
        }
        if t.reads.row(p as usize).iter().any(|r| r.0 == x) {
            events.push(event(EventKind::Read, p));
        }
        if t.writes.row(p as usize).contains(&x) {
            events.push(event(EventKind::Write, p));
        }
    }
    if let Some(&last) = tensor.accesses.last().filter(|_| !tensor.homed && !tensor.pinned) {
        events.push(event(EventKind::Free, last));
    }
    events
}
