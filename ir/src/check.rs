//! The independent checker: does a program implement its graph?
//!
//! One symbolic execution in issue order says which bytes of which value every byte
//! range holds; vector clocks over streams and events say whether conflicting accesses
//! are ordered. Where all are, every interleaving agrees with issue order, so one
//! execution suffices. The proof is about the frozen graph, *given the operator table*
//! (in-place pairs, scratch sizes). It shares no code with lowering or with any pass.

mod memory;

use crate::graph::{Def, Graph, NodeId, ValueId};
use crate::program::{Command, EventId, PerSpace, Program, Range, Space, StreamId};
use cranelift_entity::SecondaryMap;
use memory::{Access, Content, Memory};
use std::collections::HashMap;
use std::fmt;

/// The invariant that a program breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// A command does not have the operands, results or lengths that its node has.
    Shape,
    /// I5: ranges lie in bounds and are aligned; arenas are as large as what is used; kernels
    /// work on the device's arena alone.
    Bounds,
    /// I6: a `Run` reads bytes that hold exactly its operands.
    Content,
    /// I7: a write overlaps its own task's read only for a declared pair at equal ranges.
    Alias,
    /// I8: conflicting accesses are ordered by streams and events.
    Race,
    /// I9: a record precedes its waits; an event is recorded once per step.
    Event,
    /// I10: at the end homes hold exit values, outputs hold theirs, streams have joined.
    Closing,
}

/// One way in which a program breaks an invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// Index of the command; `None` for the step's boundary.
    pub command: Option<usize>,
    /// The invariant.
    pub invariant: Invariant,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command {
            Some(i) => write!(f, "command {i}: {}", self.message),
            None => write!(f, "at the step's boundary: {}", self.message),
        }
    }
}

/// What kind of bytes an occupancy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OccupancyKind {
    /// A fed input.
    Input,
    /// A constant.
    Const,
    /// A state's home.
    State,
    /// A node's result or a copy.
    Value,
    /// Scratch.
    Scratch,
}

impl OccupancyKind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            OccupancyKind::Input => "input",
            OccupancyKind::Const => "const",
            OccupancyKind::State => "state",
            OccupancyKind::Value => "value",
            OccupancyKind::Scratch => "scratch",
        }
    }
}

/// A range that holds one value from its write to its last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// The value; `None` for scratch.
    pub value: Option<ValueId>,
    /// What kind it is.
    pub kind: OccupancyKind,
    /// The bytes.
    pub range: Range,
    /// First command, in issue order.
    pub first: usize,
    /// One past the last command that needs it.
    pub end: usize,
    /// What it adds to the live bytes while it lives: its bytes, rounded up to the alignment,
    /// or where it lies in a home, which counts throughout, those outside.
    pub counted_bytes: u64,
}

/// What a checked program uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Arena sizes in bytes: one past the last byte that any command touches.
    pub arena_bytes: PerSpace<u64>,
    /// Largest sum of live bytes over positions in issue order, each root rounded up to
    /// the alignment; states and constants count throughout.
    pub live_peak_bytes: PerSpace<u64>,
    /// Every occupancy, in order of first use.
    pub occupancies: Vec<Occupancy>,
}

/// More violations than this are not collected.
const MAX_VIOLATIONS: usize = 64;

/// Arenas and alignments above this are refused, so that sums cannot overflow.
const MAX_ARENA: u64 = 1 << 60;

/// More streams than this are refused: clocks are quadratic in them.
const MAX_STREAMS: usize = 256;

/// Judges a program against a verified graph.
///
/// # Errors
/// Every violation found, up to 64.
pub fn check(g: &Graph, p: &Program) -> Result<Footprint, Vec<Violation>> {
    let mut checker = Checker::new(g, p);
    checker.begin();
    if !checker.violations.is_empty() {
        return Err(checker.violations);
    }
    for (i, command) in p.commands.iter().enumerate() {
        if checker.violations.len() >= MAX_VIOLATIONS {
            return Err(checker.violations);
        }
        checker.at = Some(i);
        checker.step(i, command);
    }
    checker.at = None;
    checker.finish();
    if checker.violations.is_empty() { Ok(checker.footprint()) } else { Err(checker.violations) }
}

struct Checker<'a> {
    g: &'a Graph,
    p: &'a Program,
    memory: PerSpace<Memory>,
    /// What each stream knows of every stream: the sequence number up to which its
    /// commands are done.
    clocks: Vec<Vec<u64>>,
    streams: HashMap<StreamId, usize>,
    events: HashMap<EventId, Vec<u64>>,
    occupancies: Vec<Occupancy>,
    top: PerSpace<u64>,
    violations: Vec<Violation>,
    at: Option<usize>,
}

impl<'a> Checker<'a> {
    fn new(g: &'a Graph, p: &'a Program) -> Self {
        let mut ids: Vec<StreamId> = p.commands.iter().map(Command::stream).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut checker = Checker {
            g,
            p,
            memory: PerSpace::default(),
            clocks: Vec::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            occupancies: Vec::new(),
            top: PerSpace::default(),
            violations: Vec::new(),
            at: None,
        };
        if ids.len() > MAX_STREAMS {
            checker.fail(Invariant::Shape, format!("more than {MAX_STREAMS} streams"));
            ids.truncate(MAX_STREAMS);
        }
        checker.clocks = vec![vec![0; ids.len()]; ids.len()];
        checker.streams = ids.into_iter().enumerate().map(|(i, s)| (s, i)).collect();
        checker
    }

    fn fail(&mut self, invariant: Invariant, message: String) {
        self.violations.push(Violation { command: self.at, invariant, message });
    }

    /// Homes of inputs, constants and states hold these as the step begins.
    fn begin(&mut self) {
        let sizes = self.p.sizes;
        let absurd = Space::ALL.into_iter().any(|space| sizes[space] > MAX_ARENA);
        if absurd || !self.p.target.align.is_power_of_two() || self.p.target.align > MAX_ARENA {
            let message = format!("alignment {}, sizes {sizes:?}", self.p.target.align);
            return self.fail(Invariant::Bounds, message);
        }
        let mut seen: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        for home in &self.p.homes {
            let Some(value) = self.g.values.get(home.value) else {
                self.fail(Invariant::Shape, format!("home of unknown value {}", home.value));
                continue;
            };
            let kind = match value.def {
                Def::Input => OccupancyKind::Input,
                Def::Const(_) => OccupancyKind::Const,
                Def::State(_) => OccupancyKind::State,
                Def::Node { .. } | Def::View { .. } => {
                    self.fail(Invariant::Shape, format!("{} cannot have a home", home.value));
                    continue;
                }
            };
            if std::mem::replace(&mut seen[home.value], true) {
                self.fail(Invariant::Shape, format!("{} has two homes", home.value));
                continue;
            }
            if !self.in_bounds(&home.range, true) {
                continue;
            }
            if home.range.len != value.ty.bytes() {
                self.fail(Invariant::Shape, format!("home of {}: {}", home.value, home.range));
                continue;
            }
            let occupied = self.memory[home.range.space].any(&home.range, |s| s.content.is_some());
            if occupied {
                self.fail(Invariant::Bounds, format!("home {} overlaps another", home.range));
            }
            self.write(&home.range, Some(home.value), kind, Access { stream: 0, sequence: 0 }, 0);
            // Nobody has read it yet.
            if let Some(occupancy) = self.occupancies.last_mut() {
                occupancy.end = 0;
            }
        }
        for (s, state) in &self.g.states {
            if !seen[state.enter] {
                self.fail(Invariant::Closing, format!("{s} has no home"));
            }
        }
    }

    fn in_bounds(&mut self, range: &Range, aligned: bool) -> bool {
        if range.end() > self.p.sizes[range.space] {
            self.fail(Invariant::Bounds, format!("{range} leaves the arena"));
            return false;
        }
        let align = self.p.target.align;
        if aligned && !range.offset.is_multiple_of(align) {
            self.fail(Invariant::Bounds, format!("{range} is not aligned to {align}"));
        }
        let top = &mut self.top[range.space];
        *top = (*top).max(range.end().next_multiple_of(align));
        true
    }

    fn step(&mut self, i: usize, command: &Command) {
        let Some(&stream) = self.streams.get(&command.stream()) else { return };
        match command {
            Command::Record { event, .. } => {
                let clock = self.clocks[stream].clone();
                if self.events.insert(*event, clock).is_some() {
                    self.fail(Invariant::Event, format!("{event} is recorded twice"));
                }
            }
            Command::Wait { event, .. } => match self.events.get(event) {
                Some(known) => {
                    for (mine, theirs) in self.clocks[stream].iter_mut().zip(known) {
                        *mine = (*mine).max(*theirs);
                    }
                }
                None => self.fail(Invariant::Event, format!("{event} is not recorded before")),
            },
            Command::Copy { from, to, .. } => self.copy(i, stream, from, to),
            Command::Run { node, reads, writes, scratch, .. } => {
                if self.g.nodes.is_valid(*node) {
                    self.run(i, stream, *node, reads, writes, scratch.as_ref());
                } else {
                    self.fail(Invariant::Shape, format!("{node} is not in the graph"));
                }
            }
        }
    }

    fn copy(&mut self, i: usize, stream: usize, from: &Range, to: &Range) {
        if from.len != to.len {
            return self.fail(Invariant::Shape, format!("copies {from} to {to}"));
        }
        if from.overlaps(to) {
            return self.fail(Invariant::Alias, format!("copies {from} onto {to}"));
        }
        if !self.in_bounds(from, false) || !self.in_bounds(to, true) {
            return;
        }
        self.ordered(stream, from, false);
        self.ordered(stream, to, true);
        let access = self.tick(stream);
        self.read(from, access, i + 1);
        let contents = self.memory[from.space].contents(from);
        let value = contents.first().and_then(|c| c.1).map(|c| c.root);
        self.write(to, value, OccupancyKind::Value, access, i);
        self.memory[to.space].set_contents(to, &contents);
    }

    fn run(
        &mut self,
        i: usize,
        stream: usize,
        n: NodeId,
        reads: &[Range],
        writes: &[Option<Range>],
        scratch: Option<&Range>,
    ) {
        let node = &self.g.nodes[n];
        if reads.len() != node.inputs.len() || writes.len() != node.outputs.len() {
            return self.fail(Invariant::Shape, format!("{n} has other operands or results"));
        }
        let outputs = match self.g.output_types(n) {
            Ok(types) => types,
            Err(e) => return self.fail(Invariant::Shape, format!("{n}: {e}")),
        };
        let inputs = self.g.input_types(n);
        let output_types: Vec<_> = outputs.iter().collect();
        let pairs = node.op.in_place_pairs(&inputs, &output_types);
        let needed = node.op.scratch_bytes(self.p.target, &inputs, &output_types);
        if scratch.map_or(0, |r| r.len) < needed {
            self.fail(Invariant::Shape, format!("{n} needs {needed} bytes of scratch"));
        }
        for (v, w) in node.outputs.iter().zip(writes) {
            let fits = match (v, w) {
                (Some(v), Some(w)) => w.len == self.g.ty(*v).bytes(),
                (None, None) => true,
                _ => false,
            };
            if !fits {
                return self.fail(Invariant::Shape, format!("{n} has other results"));
            }
        }
        let written: Vec<(Option<usize>, Range)> = writes
            .iter()
            .enumerate()
            .filter_map(|(o, w)| w.map(|w| (Some(o), w)))
            .chain(scratch.map(|&r| (None, r)))
            .collect();
        let mut inside = reads.iter().all(|r| self.in_bounds(r, false));
        for (_, w) in &written {
            inside &= self.in_bounds(w, true);
        }
        if !inside {
            return;
        }
        let used = reads.iter().chain(written.iter().map(|(_, w)| w));
        if let Some(r) = used.into_iter().find(|r| r.space != Space::Device && r.len > 0) {
            self.fail(Invariant::Bounds, format!("{n} runs on {r}, out of its reach"));
        }
        for (k, (_, w)) in written.iter().enumerate() {
            if written[..k].iter().any(|(_, other)| w.overlaps(other)) {
                self.fail(Invariant::Alias, format!("{n} writes {w} twice"));
            }
        }
        for (k, (&v, r)) in node.inputs.iter().zip(reads).enumerate() {
            self.holds(v, r, Invariant::Content, &format!("{n} reads operand {k}"));
            for (output, w) in &written {
                let declared = output.is_some_and(|o| pairs.contains(&(k, o)));
                if w.overlaps(r) && !(declared && w == r) {
                    self.fail(Invariant::Alias, format!("{n} writes {w} over operand {k} at {r}"));
                }
            }
            self.ordered(stream, r, false);
        }
        for (_, w) in &written {
            self.ordered(stream, w, true);
        }
        let access = self.tick(stream);
        for r in reads {
            // Bytes that change hands in place count once at this command.
            let handed_over = writes.iter().flatten().any(|w| w == r);
            self.read(r, access, if handed_over { i } else { i + 1 });
        }
        for (output, w) in &written {
            let value = output.and_then(|o| node.outputs[o]);
            let kind = if output.is_some() { OccupancyKind::Value } else { OccupancyKind::Scratch };
            self.write(w, value, kind, access, i);
        }
    }

    /// Counts a command of the stream and gives its place in the clocks.
    fn tick(&mut self, stream: usize) -> Access {
        self.clocks[stream][stream] += 1;
        Access { stream, sequence: self.clocks[stream][stream] }
    }

    /// I8: what the stream is about to do must come after every conflicting access.
    fn ordered(&mut self, stream: usize, range: &Range, write: bool) {
        let clock = &self.clocks[stream];
        let known = |a: &Access| a.stream == stream || a.sequence <= clock[a.stream];
        let race = self.memory[range.space]
            .any(range, |s| !known(&s.writer) || (write && !s.readers.iter().all(known)));
        if race {
            let what = if write { "written" } else { "read" };
            self.fail(Invariant::Race, format!("{range} is {what} while another stream uses it"));
        }
    }

    fn read(&mut self, range: &Range, access: Access, end: usize) {
        let occupancies = &mut self.occupancies;
        self.memory[range.space].read(range, access, |occupancy| {
            let o = &mut occupancies[occupancy];
            o.end = o.end.max(end);
        });
    }

    fn write(
        &mut self,
        range: &Range,
        value: Option<ValueId>,
        kind: OccupancyKind,
        access: Access,
        first: usize,
    ) {
        let occupancy = self.occupancies.len();
        let (range, end) = (*range, first + 1);
        self.occupancies.push(Occupancy { value, kind, range, first, end, counted_bytes: 0 });
        let content = value.map(|root| Content { root, offset: 0 });
        self.memory[range.space].write(&range, content, access, occupancy);
    }

    /// The range must hold exactly the value.
    fn holds(&mut self, v: ValueId, range: &Range, invariant: Invariant, who: &str) {
        let expected = self.g.resolve(v);
        if range.len != self.g.ty(v).bytes() {
            return self.fail(Invariant::Shape, format!("{who} {v} from {range}"));
        }
        if !range.offset.is_multiple_of(self.g.ty(v).dtype.size()) {
            self.fail(Invariant::Bounds, format!("{range} is not aligned for {v}"));
        }
        let mut offset = expected.offset;
        for (len, content) in self.memory[range.space].contents(range) {
            if content != Some(Content { root: expected.root, offset }) {
                let found = match content {
                    Some(c) => format!("bytes of {} from {}", c.root, c.offset),
                    None => "nothing".into(),
                };
                return self
                    .fail(invariant, format!("{who} {v} from {range}, which holds {found}"));
            }
            offset += len;
        }
    }

    fn finish(&mut self) {
        // A step without commands still has one position, at which its outputs are there.
        let end = self.p.commands.len().max(1);
        let boundary = Access { stream: 0, sequence: 0 };
        for home in &self.p.homes {
            let Some(value) = self.g.values.get(home.value) else { continue };
            if !matches!(value.def, Def::Input) {
                self.read(&home.range, boundary, end);
            }
            match value.def {
                Def::State(s) => {
                    let exit = self.g.states[s].exit;
                    self.holds(exit, &home.range, Invariant::Closing, &format!("{s} leaves"));
                }
                Def::Const(_) => {
                    self.holds(home.value, &home.range, Invariant::Closing, "the constant stays");
                }
                _ => {}
            }
        }
        if self.p.outputs.len() != self.g.outputs.len() {
            self.fail(Invariant::Shape, format!("{} outputs", self.p.outputs.len()));
        }
        for (output, range) in self.g.outputs.iter().zip(&self.p.outputs) {
            if self.in_bounds(range, false) {
                self.holds(output.value, range, Invariant::Closing, "the caller reads");
                self.read(range, boundary, end);
            }
        }
        let joined = (1..self.clocks.len()).all(|s| self.clocks[0][s] == self.clocks[s][s]);
        if !joined {
            self.fail(Invariant::Closing, "a stream has not joined the first".into());
        }
        for space in Space::ALL {
            if self.p.sizes[space] != self.top[space] {
                let message = format!(
                    "the {space} arena has {} bytes, {} are used",
                    self.p.sizes[space], self.top[space]
                );
                self.fail(Invariant::Bounds, message);
            }
        }
    }

    fn footprint(mut self) -> Footprint {
        let end = self.p.commands.len().max(1);
        for o in &mut self.occupancies {
            if matches!(o.kind, OccupancyKind::Const | OccupancyKind::State) {
                (o.first, o.end) = (0, end);
            }
        }
        let mut live_peak_bytes = PerSpace::default();
        for space in Space::ALL {
            self.count(space);
            live_peak_bytes[space] = self.live_peak(space, end);
        }
        let arena_bytes = self.top;
        Footprint { arena_bytes, live_peak_bytes, occupancies: self.occupancies }
    }

    /// Sets what each occupancy of the space adds to the live bytes. Homes are counted
    /// throughout, so what lives inside one counts no second time.
    fn count(&mut self, space: Space) {
        let align = self.p.target.align;
        let is_home = |o: &Occupancy| matches!(o.kind, OccupancyKind::Const | OccupancyKind::State);
        let inside = |o: &Occupancy| o.range.space == space;
        let homes = self.occupancies.iter().filter(|o| inside(o) && is_home(o));
        let mut homes: Vec<Range> = homes.map(|o| o.range).collect();
        homes.sort_unstable_by_key(|r| r.offset);
        for o in self.occupancies.iter_mut().filter(|o| inside(o)) {
            let next = homes.partition_point(|h| h.end() <= o.range.offset);
            let others = if is_home(o) { &[] } else { &homes[next..] };
            let shared: u64 = others
                .iter()
                .take_while(|h| h.offset < o.range.end())
                .map(|h| h.end().min(o.range.end()) - h.offset.max(o.range.offset))
                .sum();
            let own = o.range.len - shared;
            o.counted_bytes = if shared == 0 { own.next_multiple_of(align) } else { own };
        }
    }

    fn live_peak(&self, space: Space, end: usize) -> u64 {
        let mut change = vec![0i64; end + 1];
        for o in self.occupancies.iter().filter(|o| o.range.space == space && o.first < o.end) {
            change[o.first.min(end)] += o.counted_bytes as i64;
            change[o.end.min(end)] -= o.counted_bytes as i64;
        }
        let (mut live, mut peak) = (0, 0);
        for c in change {
            live += c;
            peak = peak.max(live);
        }
        peak as u64
    }
}
