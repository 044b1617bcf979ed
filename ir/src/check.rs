//! The independent checker: does a program implement its graph?
//!
//! One symbolic execution in issue order says which bytes of which value every byte
//! range holds; vector clocks over streams and events say whether conflicting accesses
//! are ordered. Where all are, every interleaving agrees with issue order, so one
//! execution suffices. A second step is executed from what the first one leaves: homes hold
//! what the next step reads, and nothing else is known. It begins as the first one did, so
//! that by induction every later step is right, too.
//!
//! The proof is about the frozen graph, *given the operator table*: the checker asks
//! `Graph::resolve`, `Op::infer`, `Op::in_place_pairs` and `Op::scratch_bytes`, as planning and
//! kernels do. These have tests of their own. It shares no code with lowering or with any pass.

mod footprint;
mod memory;
mod rounds;
mod turns;

pub use footprint::{Footprint, Occupancy, OccupancyKind};
pub use rounds::{check_round_turns, check_rounds};
pub use turns::{Part, check_turns, check_variant_turns, check_variants};

use crate::graph::{Def, Graph, NodeId, ValueId};
use crate::program::{Command, EventId, Home, Program, Range, StreamId};
use crate::space::{PerSpace, Space};
use cranelift_entity::SecondaryMap;
use footprint::Occupancies;
use memory::{Access, Content, Memory};
use std::collections::{HashMap, HashSet};
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
    /// I13: exchanges between ranks are all on one stream, so that every rank runs them in one order.
    Ranks,
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

/// More violations than this are not collected.
const MAX_VIOLATIONS: usize = 64;

/// Arenas and alignments above this are refused, so that sums cannot overflow.
const MAX_ARENA: u64 = 1 << 60;

/// What happens between steps.
const BOUNDARY: Access = Access { stream: 0, sequence: 0 };

/// More streams than this are refused: clocks are quadratic in them.
const MAX_STREAMS: usize = 256;

/// Judges a program against a verified graph: every step of it, from the homes as they are
/// filled before the first one. Before each step the inputs of [`Program::fed_each_step`] are fed,
/// others at least before the first.
///
/// # Errors
/// Every violation found in the first step, up to 64; if there is none, those of the second.
pub fn check(g: &Graph, p: &Program) -> Result<Footprint, Vec<Violation>> {
    let mut checker = Checker::new(g, p);
    checker.begin();
    if checker.violations.is_empty() {
        checker.execute();
    }
    if !checker.violations.is_empty() {
        return Err(checker.violations);
    }
    let footprint = std::mem::take(&mut checker.occupancies).footprint(p, checker.top);
    checker.begin_next();
    checker.execute();
    if checker.violations.is_empty() {
        return Ok(footprint);
    }
    for violation in &mut checker.violations {
        violation.message.insert_str(0, "in the second step ");
    }
    Err(checker.violations)
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
    /// The stream of the exchanges between ranks.
    exchanges: Option<StreamId>,
    occupancies: Occupancies,
    /// One past the last byte of each arena that was touched, aligned.
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
            exchanges: None,
            occupancies: Occupancies::default(),
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
            self.write(&home.range, Some(home.value), kind, BOUNDARY, 0);
            self.occupancies.unread();
        }
        for (s, state) in &self.g.states {
            if !seen[state.enter] {
                self.fail(Invariant::Closing, format!("{s} has no home"));
            }
        }
        self.wait_ahead();
    }

    /// Inputs of the next step wait where nothing else is.
    fn wait_ahead(&mut self) {
        let inputs: HashMap<ValueId, u64> =
            self.p.homes.iter().map(|h| (h.value, h.range.len)).collect();
        let mut seen = HashSet::new();
        for Home { value, range } in &self.p.ahead {
            let is_input = self.g.values.get(*value).is_some_and(|v| matches!(v.def, Def::Input));
            if !is_input || inputs.get(value) != Some(&range.len) || !seen.insert(*value) {
                self.fail(Invariant::Shape, format!("{value} cannot wait in {range}"));
                continue;
            }
            if !self.lies(range, true) {
                continue;
            }
            if self.memory[range.space].any(range, |s| s.content.is_some()) {
                self.fail(Invariant::Bounds, format!("{value} waits in {range}, where another is"));
            }
            self.write(range, Some(*value), OccupancyKind::Input, BOUNDARY, 0);
        }
    }

    /// Makes what the step has left what the next one begins with. As [`Checker::finish`] has
    /// found, homes of constants hold these, homes of states the exit values, which are the next
    /// enter values, and homes of inputs that are not fed again the inputs. What other bytes hold
    /// belongs to the step that is over. All streams have joined, so each knows what any did.
    fn begin_next(&mut self) {
        for space in Space::ALL {
            self.memory[space].forget();
        }
        for home in self.p.homes.iter().chain(&self.p.ahead) {
            self.memory[home.range.space].know(&home.range, home.value);
        }
        self.events.clear();
        let joined: Vec<u64> = (0..self.clocks.len()).map(|s| self.clocks[s][s]).collect();
        self.clocks.fill(joined);
    }

    /// Executes all commands and looks at what they leave.
    fn execute(&mut self) {
        for (i, command) in self.p.commands.iter().enumerate() {
            if self.violations.len() >= MAX_VIOLATIONS {
                return;
            }
            self.at = Some(i);
            self.step(i, command);
        }
        self.at = None;
        self.finish();
    }

    /// True for bytes of the arena, in which no input of the next step waits.
    fn in_bounds(&mut self, range: &Range, aligned: bool) -> bool {
        if let Some(waiting) = self.p.ahead.iter().find(|ahead| ahead.range.overlaps(range)) {
            let message = format!("{range} is where {} waits for the next step", waiting.value);
            self.fail(Invariant::Bounds, message);
        }
        self.lies(range, aligned)
    }

    fn lies(&mut self, range: &Range, aligned: bool) -> bool {
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
                    self.exchange(*node, command.stream());
                    self.run(i, stream, *node, reads, writes, scratch.as_ref());
                } else {
                    self.fail(Invariant::Shape, format!("{node} is not in the graph"));
                }
            }
        }
    }

    /// Ranks that wait for one another must do so in one order. All of them run this program, and the
    /// commands of one stream in issue order, so that one stream for all exchanges is enough: the first
    /// exchange that some rank has not begun is the same on all ranks or was begun by others before, and
    /// what it waits for on its own rank comes before it in issue order (I9), which has no circle.
    fn exchange(&mut self, n: NodeId, stream: StreamId) {
        if !self.g.nodes[n].op.communicates() {
            return;
        }
        let other = *self.exchanges.get_or_insert(stream);
        if other != stream {
            let message =
                format!("{n} exchanges with other ranks on {stream}, others do on {other}");
            self.fail(Invariant::Ranks, message);
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
        let given = scratch.map_or(0, |r| r.len);
        if given < needed {
            let said = format!(
                "{n} needs {needed} bytes of scratch and is given {given}; if another build of arenic made the plan, compile again with this one"
            );
            self.fail(Invariant::Shape, said);
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
        self.memory[range.space].read(range, access, |o| occupancies.needed_until(o, end));
    }

    fn write(
        &mut self,
        range: &Range,
        value: Option<ValueId>,
        kind: OccupancyKind,
        access: Access,
        first: usize,
    ) {
        for other in self.memory[range.space].occupancies(range) {
            self.occupancies.overwritten(other, range, first, self.p.target.align);
        }
        let occupancy = self.occupancies.begin(value, kind, *range, first);
        let content = value.map(|root| Content { root, offset: 0 });
        self.memory[range.space].write(range, content, access, Some(occupancy));
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
        let fed = self.p.fed_each_step(self.g);
        for ahead in &self.p.ahead {
            self.read(&ahead.range, BOUNDARY, end);
        }
        for home in &self.p.homes {
            let Some(value) = self.g.values.get(home.value) else { continue };
            if !matches!(value.def, Def::Input) {
                self.read(&home.range, BOUNDARY, end);
            }
            match value.def {
                Def::State(s) => {
                    let exit = self.g.states[s].exit;
                    self.holds(exit, &home.range, Invariant::Closing, &format!("{s} leaves"));
                }
                Def::Const(_) => {
                    self.holds(home.value, &home.range, Invariant::Closing, "the constant stays");
                }
                Def::Input if !fed.contains(&home.value) => {
                    self.holds(home.value, &home.range, Invariant::Closing, "the input stays");
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
                self.read(range, BOUNDARY, end);
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
}
