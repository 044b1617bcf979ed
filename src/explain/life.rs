//! Why a buffer is alive, in words: what makes it, what it takes over, and who needs it last.
//!
//! All of it is read off the program and what the checker says of it, as no plan is left.

use super::{operator, value};
use arenic_ir::check::{Occupancy, OccupancyKind};
use arenic_ir::graph::{Def, Graph, NodeId, StateId, ValueId};
use arenic_ir::program::{Command, Program, Range, Space};
use cranelift_entity::SecondaryMap;
use std::collections::BTreeMap;

/// The lives of a checked program's buffers.
pub struct Lives<'a> {
    graph: &'a Graph,
    program: &'a Program,
    /// The homes of states by space and first byte; they are disjoint.
    homes: BTreeMap<(Space, u64), (u64, StateId)>,
    /// The command that runs a node for the first time.
    first_run: SecondaryMap<NodeId, Option<usize>>,
    /// An output that a root is, or is part of.
    output: SecondaryMap<ValueId, Option<usize>>,
}

impl<'a> Lives<'a> {
    /// Of a program that the checker accepts for this graph.
    pub fn new(graph: &'a Graph, program: &'a Program) -> Lives<'a> {
        let mut homes = BTreeMap::new();
        for home in &program.homes {
            let Range { space, offset, len } = home.range;
            if let (Def::State(s), 1..) = (&graph.values[home.value].def, len) {
                homes.insert((space, offset), (home.range.end(), *s));
            }
        }
        let mut first_run: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::new();
        for (i, command) in program.commands.iter().enumerate() {
            if let Command::Run { node, .. } = command {
                first_run[*node].get_or_insert(i);
            }
        }
        let mut output = SecondaryMap::new();
        for (i, o) in graph.outputs.iter().enumerate() {
            output[graph.resolve(o.value).root] = Some(i);
        }
        Lives { graph, program, homes, first_run, output }
    }

    /// What a command does, as short as a label must be.
    pub fn task(&self, command: usize) -> String {
        match &self.program.commands[command] {
            Command::Run { node, .. } => label(self.graph, *node),
            Command::Copy { from, to, .. } if from.space == to.space => "copy".into(),
            Command::Copy { to, .. } => format!("copy to {}", to.space),
            Command::Record { event, .. } => format!("record {event}"),
            Command::Wait { event, .. } => format!("wait for {event}"),
        }
    }

    /// A buffer's name: that of its value, or of the operator that scratch is for.
    pub fn name(&self, o: &Occupancy) -> String {
        match (o.value, &self.program.commands.get(o.first)) {
            (Some(v), _) => value(self.graph, v),
            (None, Some(Command::Run { node, .. })) => {
                format!("scratch of {}", label(self.graph, *node))
            }
            (None, _) => "scratch".into(),
        }
    }

    /// The state in whose home a range lies.
    pub fn home(&self, range: &Range) -> Option<StateId> {
        let below = self.homes.range(..=(range.space, range.offset)).next_back();
        let (&(space, _), &(end, state)) = below?;
        (space == range.space && range.end() <= end).then_some(state)
    }

    /// Why the buffer is there from its first command to its last.
    pub fn reason(&self, o: &Occupancy) -> String {
        match o.kind {
            OccupancyKind::Const => "Constant: there in every step, so it stays.".into(),
            OccupancyKind::State => {
                "State: carried from step to step, so its home stays through the whole step.".into()
            }
            OccupancyKind::Scratch => "Scratch: for this one task alone.".into(),
            OccupancyKind::Input => format!("Input: fed before the step; {}.", self.end(o)),
            OccupancyKind::Value => format!("{}; {}.", self.beginning(o), self.end(o)),
        }
    }

    /// What makes it.
    fn beginning(&self, o: &Occupancy) -> String {
        let home = match self.home(&o.range) {
            Some(s) => format!(" in the home of state `{}`", self.graph.states[s].name),
            None => String::new(),
        };
        match self.program.commands.get(o.first) {
            Some(Command::Run { node, reads, writes, .. }) => {
                let again = if self.first_run[*node] < Some(o.first) { " once more" } else { "" };
                let taken = reads.iter().position(|r| *r == o.range);
                let written = writes.iter().flatten().any(|w| *w == o.range);
                let over = match taken.filter(|_| written && o.range.len > 0) {
                    Some(k) => {
                        let operand = value(self.graph, self.graph.nodes[*node].inputs[k]);
                        format!(", over the bytes of `{operand}` in place")
                    }
                    None => String::new(),
                };
                format!("Made{again} by {}{home}{over}", operator(self.graph, *node))
            }
            Some(Command::Copy { from, to, .. }) => match (from.space, to.space) {
                (Space::Host, Space::Device) => format!("Brought back from host memory{home}"),
                (Space::Device, Space::Host) => format!("Swapped out to host memory{home}"),
                _ => format!("Copied{home}"),
            },
            _ => "Made".into(),
        }
    }

    /// What needs it last.
    fn end(&self, o: &Occupancy) -> String {
        let (g, commands) = (self.graph, &self.program.commands);
        if o.end >= commands.len() {
            let exit = |s: StateId| Some(g.resolve(g.states[s].exit).root) == o.value;
            if let Some(s) = self.home(&o.range).filter(|&s| exit(s)) {
                return format!("stays as the next value of `{}`", g.states[s].name);
            }
            let output = o.value.and_then(|v| self.output[v]);
            if let Some(i) = output.filter(|&i| self.program.outputs[i].overlaps(&o.range)) {
                return format!("kept to the end as output `{}`", g.outputs[i].name);
            }
        }
        if let Some(Command::Run { node, reads, writes, .. }) = commands.get(o.end)
            && writes.iter().flatten().any(|w| w.overlaps(&o.range) && reads.contains(w))
        {
            return format!("until {} writes over it in place", operator(g, *node));
        }
        let last = o.end.saturating_sub(1);
        let read_later = last > o.first || o.kind == OccupancyKind::Input;
        let reads_it = |r: &Range| read_later && r.overlaps(&o.range);
        match commands.get(last) {
            Some(Command::Run { node, reads, .. }) if reads.iter().any(reads_it) => {
                format!("kept for its last reader {}", operator(g, *node))
            }
            Some(Command::Copy { from, to, .. }) if reads_it(from) => match self.home(to) {
                Some(s) => {
                    format!("kept until it is copied home, as next value of `{}`", g.states[s].name)
                }
                None => format!("kept until it is copied to {} memory", to.space),
            },
            _ => "nobody reads it".into(),
        }
    }
}

/// As [`operator`], without quotes.
fn label(g: &Graph, n: NodeId) -> String {
    let node = &g.nodes[n];
    match node.name.as_str() {
        "" => operator(g, n),
        name => format!("{name} ({})", node.op.name()),
    }
}
