//! Synchronisation: an event for every unordered conflict between streams.
//!
//! Walks the commands in issue order with vector clocks. Where a command conflicts with an
//! access of another stream which its own stream does not know to be done, an event is
//! recorded right after that access and waited for, so that nothing waits for what was
//! issued since. At the end every stream joins the first. Waits point backwards in issue
//! order, so no deadlock is possible. Sound by construction and judged by `check`, which
//! shares no code with this file.

use crate::{Cx, PassError, ProgramPass, Stats};
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

    fn run(&self, _: &Graph, _: &Plan, program: &mut Program, _: &Cx) -> Result<Stats, PassError> {
        program.commands.retain(|c| matches!(c, Command::Run { .. } | Command::Copy { .. }));
        let mut streams: Vec<StreamId> = program.commands.iter().map(Command::stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let mut events = 0;
        if streams.len() > 1 {
            let mut clocks = Clocks::new(&streams);
            program.commands.iter().for_each(|command| clocks.issue(command));
            clocks.join();
            let commands = std::mem::take(&mut program.commands);
            (program.commands, events) = clocks.with_events(commands);
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

/// How many commands of each stream are done.
type Clock = Vec<u64>;

struct Clocks<'a> {
    streams: &'a [StreamId],
    /// What each stream knows to be done.
    known: Vec<Clock>,
    /// What is done when a command is, itself included.
    after: Vec<Clock>,
    /// The commands of each stream.
    on: Vec<Vec<usize>>,
    uses: BTreeMap<(Space, u64), Uses>,
    /// (awaited command, the command that waits for it, its stream); the step's end waits as one
    /// past the last command.
    waits: Vec<(usize, usize, usize)>,
}

impl<'a> Clocks<'a> {
    fn new(streams: &'a [StreamId]) -> Self {
        let n = streams.len();
        let (known, on) = (vec![vec![0; n]; n], vec![Vec::new(); n]);
        Clocks { streams, known, after: Vec::new(), on, uses: BTreeMap::new(), waits: Vec::new() }
    }

    fn issue(&mut self, command: &Command) {
        let s = self.streams.partition_point(|&id| id < command.stream());
        let (reads, writes) = accesses(command);
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
        self.wait(s, &needed);
        self.known[s][s] += 1;
        let count = self.known[s][s];
        self.on[s].push(self.after.len());
        self.after.push(self.known[s].clone());
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
    }

    /// The next command of stream `s` waits until so many commands of each stream are done.
    fn wait(&mut self, s: usize, needed: &Clock) {
        for (t, &count) in needed.iter().enumerate() {
            if t == s || count <= self.known[s][t] {
                continue;
            }
            let awaited = self.on[t][count as usize - 1];
            self.waits.push((awaited, self.after.len(), s));
            for (mine, theirs) in self.known[s].iter_mut().zip(&self.after[awaited]) {
                *mine = (*mine).max(*theirs);
            }
        }
    }

    /// Every stream joins the first.
    fn join(&mut self) {
        let all = self.on.iter().map(|commands| commands.len() as u64).collect();
        self.wait(0, &all);
    }

    /// The commands with their records and waits, and how many events these are.
    fn with_events(mut self, commands: Vec<Command>) -> (Vec<Command>, usize) {
        let mut recorded: Vec<usize> = self.waits.iter().map(|w| w.0).collect();
        recorded.sort_unstable();
        recorded.dedup();
        let event = |awaited| EventId::new(recorded.partition_point(|&c| c < awaited));
        self.waits.sort_by_key(|w| w.1);
        let mut waits = self.waits.iter().peekable();
        let mut issued = Vec::with_capacity(commands.len() + 2 * self.waits.len());
        for (i, command) in commands.into_iter().map(Some).chain([None]).enumerate() {
            while let Some(&(awaited, _, s)) = waits.next_if(|w| w.1 == i) {
                issued.push(Command::Wait { stream: self.streams[s], event: event(awaited) });
            }
            let Some(command) = command else { break };
            let stream = command.stream();
            issued.push(command);
            if recorded.binary_search(&i).is_ok() {
                issued.push(Command::Record { stream, event: event(i) });
            }
        }
        (issued, recorded.len())
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
