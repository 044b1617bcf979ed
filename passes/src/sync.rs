//! Synchronisation: an event for every unordered conflict between streams.
//!
//! Walks the commands in issue order with vector clocks. Before a command that conflicts
//! with an access of another stream which its own stream does not know to be done, an
//! event is recorded on the other stream and waited for. At the end every stream joins
//! the first. Waits point backwards in issue order, so no deadlock is possible. Sound
//! by construction and judged by `check`, which shares no code with this file.

use crate::{PassError, ProgramPass, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{Fact, Plan};
use arenic_ir::program::{Command, EventId, Program, Range, Space, StreamId};
use cranelift_entity::EntityRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Orders conflicting accesses of different streams by events.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sync {}

impl ProgramPass for Sync {
    fn needs(&self) -> &[Fact] {
        &[]
    }

    fn run(&self, _: &Graph, _: &Plan, program: &mut Program) -> Result<Stats, PassError> {
        program.commands.retain(|c| matches!(c, Command::Run { .. } | Command::Copy { .. }));
        let mut streams: Vec<StreamId> = program.commands.iter().map(Command::stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let mut events = 0;
        if streams.len() > 1 {
            let commands = std::mem::take(&mut program.commands);
            let mut clocks = Clocks::new(&streams);
            for command in commands {
                clocks.issue(command);
            }
            clocks.join();
            events = clocks.events;
            program.commands = clocks.issued;
        }
        Ok(Stats::from([("events", events as u64)]))
    }
}

/// The last accesses of a run of bytes: per stream, the count of its commands.
#[derive(Clone, Default)]
struct Uses {
    end: u64,
    write: Option<(usize, u64)>,
    reads: Vec<(usize, u64)>,
}

struct Clocks<'a> {
    streams: &'a [StreamId],
    /// `known[s][t]`: how many commands of `t` are done as far as `s` knows.
    known: Vec<Vec<u64>>,
    uses: BTreeMap<(Space, u64), Uses>,
    issued: Vec<Command>,
    events: usize,
}

impl<'a> Clocks<'a> {
    fn new(streams: &'a [StreamId]) -> Self {
        let n = streams.len();
        let known = vec![vec![0; n]; n];
        Clocks { streams, known, uses: BTreeMap::new(), issued: Vec::new(), events: 0 }
    }

    fn issue(&mut self, command: Command) {
        let s = self.streams.partition_point(|&id| id < command.stream());
        let (reads, writes) = accesses(&command);
        let mut needed = vec![0; self.streams.len()];
        for (range, write) in
            reads.iter().map(|r| (r, false)).chain(writes.iter().map(|w| (w, true)))
        {
            self.split(range);
            for (_, u) in self.uses.range(bounds(range)) {
                let conflicts = u.write.iter().chain(u.reads.iter().filter(|_| write));
                conflicts.for_each(|&(t, count)| needed[t] = needed[t].max(count));
            }
        }
        for (t, &count) in needed.iter().enumerate() {
            if t != s && count > self.known[s][t] {
                self.wait(s, t);
            }
        }
        self.known[s][s] += 1;
        let count = self.known[s][s];
        for range in &reads {
            for (_, u) in self.uses.range_mut(bounds(range)) {
                u.reads.retain(|&(t, _)| t != s);
                u.reads.push((s, count));
            }
        }
        for range in writes.iter().filter(|w| w.len > 0) {
            let inside: Vec<_> = self.uses.range(bounds(range)).map(|(&k, _)| k).collect();
            inside.iter().for_each(|k| {
                self.uses.remove(k);
            });
            let uses = Uses { end: range.end(), write: Some((s, count)), reads: Vec::new() };
            self.uses.insert((range.space, range.offset), uses);
        }
        self.issued.push(command);
    }

    /// Stream `s` waits for everything issued so far on stream `t`.
    fn wait(&mut self, s: usize, t: usize) {
        let event = EventId::new(self.events);
        self.events += 1;
        self.issued.push(Command::Record { stream: self.streams[t], event });
        self.issued.push(Command::Wait { stream: self.streams[s], event });
        for k in 0..self.streams.len() {
            self.known[s][k] = self.known[s][k].max(self.known[t][k]);
        }
    }

    fn join(&mut self) {
        for t in 1..self.streams.len() {
            if self.known[0][t] < self.known[t][t] {
                self.wait(0, t);
            }
        }
    }

    /// Makes the range's ends boundaries, and its bytes that nobody used yet entries.
    fn split(&mut self, range: &Range) {
        for at in [range.offset, range.end()] {
            let before = (range.space, 0)..(range.space, at);
            if let Some((_, u)) = self.uses.range_mut(before).next_back()
                && u.end > at
            {
                let tail = u.clone();
                u.end = at;
                self.uses.insert((range.space, at), tail);
            }
        }
        let mut at = range.offset;
        let mut gaps = Vec::new();
        for (&(_, start), u) in self.uses.range(bounds(range)) {
            if start > at {
                gaps.push((at, start));
            }
            at = u.end;
        }
        if at < range.end() {
            gaps.push((at, range.end()));
        }
        for (start, end) in gaps {
            self.uses.insert((range.space, start), Uses { end, ..Uses::default() });
        }
    }
}

fn bounds(range: &Range) -> std::ops::Range<(Space, u64)> {
    (range.space, range.offset)..(range.space, range.end())
}

fn accesses(command: &Command) -> (Vec<Range>, Vec<Range>) {
    match command {
        Command::Run { reads, writes, scratch, .. } => {
            (reads.clone(), writes.iter().chain([scratch]).flatten().copied().collect())
        }
        Command::Copy { from, to, .. } => (vec![*from], vec![*to]),
        Command::Record { .. } | Command::Wait { .. } => (Vec::new(), Vec::new()),
    }
}
