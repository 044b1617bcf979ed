//! What became of a tensor under a byte limit, what that cost, and what else it could have cost.
//!
//! Read off the program and its simulation on a device: a tensor that stays is *kept*, one
//! that copies bring back is *swapped*, one that a kernel makes again is *recomputed*, and
//! one whose bytes another takes over in place is *shared*.

use super::{operator, value};
use arenic_ir::check::{Footprint, Occupancy};
use arenic_ir::cost::{Device, Direction};
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::program::{Command, Program, Space};
use arenic_passes::simulate::{Simulation, roofline, simulate_step};
use serde_json::{Value, json};
use std::fmt;

/// What became of a tensor between two uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its bytes stay on the device from the first use to the last.
    Kept,
    /// As kept, and another tensor takes its bytes over in place.
    Shared,
    /// It is away in host memory for a time.
    Swapped,
    /// It is dropped and made again.
    Recomputed,
}

impl Fate {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fate::Kept => "kept",
            Fate::Shared => "shared",
            Fate::Swapped => "swapped",
            Fate::Recomputed => "recomputed",
        }
    }
}

/// One tensor's choices.
pub struct Choices<'a> {
    graph: &'a Graph,
    /// The tensor that owns the bytes.
    root: ValueId,
    fates: Vec<Fate>,
    /// Bytes copied to the host and to the device, and the seconds of the link.
    out: (u64, f64),
    back: (u64, f64),
    /// Kernels that make it once more, in seconds.
    again: (usize, f64),
    /// Seconds in which kernels wait for its copies to the device.
    waits: f64,
    /// The longest time between two uses, in seconds.
    idle: f64,
    /// Most bytes on the device in that time beside the tensor, and the arena's.
    beside: u64,
    arena: u64,
    /// What one copy each way takes, and what makes it, in seconds.
    round_trip: f64,
    maker: Option<(NodeId, f64)>,
    human: fn(u64) -> String,
}

/// What the choices are read off.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// A program that the checker accepts.
    pub program: &'a Program,
    /// What the checker says about it.
    pub footprint: &'a Footprint,
    /// The device that times are for.
    pub device: &'a Device,
}

/// The choices about the value, output or state called `name`, one for each part of a state
/// in parts; empty where nothing has that name.
pub fn choices<'a>(p: Planned<'a>, name: &str, human: fn(u64) -> String) -> Vec<Choices<'a>> {
    let g = p.graph;
    let states = g.states.values().filter(|s| s.name == name).map(|s| s.enter);
    let mut roots: Vec<ValueId> = states.collect();
    if roots.is_empty() {
        let named = g.values.keys().find(|&v| g.values[v].name == name || value(g, v) == name);
        let output = || g.outputs.iter().find(|o| o.name == name).map(|o| o.value);
        roots.extend(named.or_else(output).map(|v| g.resolve(v).root));
    }
    let step = simulate_step(g, p.program, p.device);
    roots.into_iter().map(|root| about(p, &step, root, human)).collect()
}

fn about<'a>(
    p: Planned<'a>,
    step: &Simulation,
    root: ValueId,
    human: fn(u64) -> String,
) -> Choices<'a> {
    let g = p.graph;
    let state = match g.values[root].def {
        Def::State(s) => Some(s),
        _ => None,
    };
    // A state's home also gets its new value.
    let renewed = state.map(|s| g.resolve(g.states[s].exit).root).filter(|&v| v != root);
    let is_of = |o: &&Occupancy| {
        o.value == Some(root) || o.value == renewed && o.range.space == Space::Host
    };
    let lives: Vec<&Occupancy> = p.footprint.occupancies.iter().filter(is_of).collect();
    let bytes = g.ty(root).bytes();
    let (mut out, mut back, mut runs, mut waits) = ((0, 0.0), (0, 0.0), 0, 0.0);
    for o in &lives {
        // A home is occupied from the first command on, whatever that copies.
        let copied = matches!(p.program.commands.get(o.first), Some(Command::Copy { from, to, .. })
            if from.space != to.space && *to == o.range && from.len > 0);
        let span = step.commands.get(o.first).copied().unwrap_or_default();
        match (copied, o.range.space) {
            (true, Space::Host) => out = (out.0 + o.range.len, out.1 + span.end - span.start),
            (true, Space::Device) => {
                back = (back.0 + o.range.len, back.1 + span.end - span.start);
                waits += wait_for(p.program, step, o);
            }
            (false, _) => {
                runs += usize::from(matches!(
                    p.program.commands.get(o.first),
                    Some(Command::Run { .. })
                ));
            }
        }
    }
    let maker = match g.values[root].def {
        Def::Node { node, .. } => Some((node, roofline(g, p.device)(node))),
        _ => None,
    };
    let mut idle = longest_idle(p.program, step, &lives);
    if state.is_some() && out.0 + back.0 > 0 {
        // Its home would be on the device all the time.
        idle = (0.0, step.seconds);
    }
    let (first, last) = idle;
    let again = runs.saturating_sub(1);
    let mut fates = Vec::new();
    if back.0 > 0 || out.0 > 0 {
        fates.push(Fate::Swapped);
    }
    if again > 0 {
        fates.push(Fate::Recomputed);
    }
    if fates.is_empty() {
        let taken = lives.iter().any(|o| is_taken_over(p, o));
        fates.push(if taken { Fate::Shared } else { Fate::Kept });
    }
    let copy = |direction| p.device.copy_seconds(direction, bytes);
    Choices {
        graph: g,
        root,
        fates,
        out,
        back,
        again: (again, again as f64 * maker.map_or(0.0, |m| m.1)),
        waits,
        idle: last - first,
        beside: live_between(p.footprint, step, root, first, last),
        arena: p.footprint.arena_bytes.device,
        round_trip: copy(Direction::ToHost) + copy(Direction::ToDevice),
        maker,
        human,
    }
}

/// Seconds before the first kernel that reads a fetched tensor in which no kernel runs.
fn wait_for(program: &Program, step: &Simulation, o: &Occupancy) -> f64 {
    let reads_it = |i: &usize| match &program.commands[*i] {
        Command::Run { reads, .. } => reads.iter().any(|r| r.overlaps(&o.range)),
        _ => false,
    };
    let Some(reader) = (o.first..program.commands.len()).find(reads_it) else { return 0.0 };
    let start = step.commands[reader].start;
    let kernels = program.commands.iter().zip(&step.commands);
    let before = kernels
        .filter(|(c, span)| matches!(c, Command::Run { .. }) && span.end <= start)
        .map(|(_, span)| span.end)
        .fold(0.0, f64::max);
    let arrived = step.commands[o.first].end;
    (start.min(arrived) - before).max(0.0)
}

/// The longest time between two commands that use a tensor on the device.
fn longest_idle(program: &Program, step: &Simulation, lives: &[&Occupancy]) -> (f64, f64) {
    let uses = |i: &usize| match &program.commands[*i] {
        Command::Run { reads, writes, .. } => lives.iter().any(|o| {
            (o.first..o.end).contains(i)
                && reads.iter().chain(writes.iter().flatten()).any(|r| *r == o.range)
        }),
        _ => false,
    };
    let used: Vec<usize> = (0..program.commands.len()).filter(uses).collect();
    let gap = |pair: &[usize]| (step.commands[pair[0]].end, step.commands[pair[1]].start);
    let gaps = used.windows(2).map(gap);
    gaps.max_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0))).unwrap_or((0.0, 0.0))
}

/// Most bytes that others have on the device between two times.
fn live_between(f: &Footprint, step: &Simulation, root: ValueId, first: f64, last: f64) -> u64 {
    let time = |i: usize| step.commands.get(i).copied().unwrap_or_default();
    let mut changes: Vec<(f64, i64)> = Vec::new();
    let on_device = f.occupancies.iter().filter(|o| o.range.space == Space::Device);
    for o in on_device.filter(|o| o.value != Some(root) && o.first < o.end) {
        let (start, end) = (time(o.first).start, time(o.end - 1).end);
        if start < last && end > first {
            let bytes = o.counted_bytes as i64;
            changes.extend([(start.max(first), bytes), (end.min(last), -bytes)]);
        }
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let sums = changes.iter().scan(0, |live, change| {
        *live += change.1;
        Some(*live)
    });
    sums.max().unwrap_or(0).max(0) as u64
}

/// True where the command after a tensor's last writes over it in place.
fn is_taken_over(p: Planned, o: &Occupancy) -> bool {
    match p.program.commands.get(o.end) {
        Some(Command::Run { reads, writes, .. }) => {
            writes.iter().flatten().any(|w| *w == o.range && reads.contains(w))
        }
        _ => false,
    }
}

impl Choices<'_> {
    /// What became of the tensor.
    pub fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// As JSON: bytes and seconds of what was done and of what was not.
    pub fn to_json(&self) -> Value {
        json!({
            "tensor": self.title(),
            "type": self.graph.ty(self.root).to_string(),
            "bytes": self.graph.ty(self.root).bytes(),
            "fate": self.fates.iter().map(|f| f.name()).collect::<Vec<_>>(),
            "copied_to_host_bytes": self.out.0,
            "copied_to_device_bytes": self.back.0,
            "copy_seconds": self.out.1 + self.back.1,
            "wait_seconds": self.waits,
            "repeats": self.again.0,
            "repeat_seconds": self.again.1,
            "longest_idle_seconds": self.idle,
            "live_bytes_beside": self.beside,
            "arena_bytes": self.arena,
            "swap_seconds": self.round_trip,
            "recompute_seconds": self.maker.map(|m| m.1),
        })
    }

    fn title(&self) -> String {
        let name = value(self.graph, self.root);
        let state = self.graph.states.values().find(|s| s.enter == self.root);
        match state.and_then(|s| s.rows) {
            Some(rows) => format!("{name} from row {}", rows.first),
            None => name,
        }
    }

    fn alternatives(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        let bytes = self.graph.ty(self.root).bytes();
        let ms = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
        let is = |fate| self.fates.contains(&fate);
        if is(Fate::Swapped) || is(Fate::Recomputed) {
            let (needed, arena) = ((self.human)(self.beside + bytes), (self.human)(self.arena));
            let fits = if self.beside + bytes <= self.arena { "fits" } else { "does not fit" };
            writeln!(f, "  kept, there were {needed} at once in an arena of {arena}: it {fits}")?;
        }
        if !is(Fate::Swapped) && self.idle > 0.0 {
            let (copies, idle) = (ms(self.round_trip), ms(self.idle));
            writeln!(f, "  swapped, it took {copies} of the link within {idle} without a use")?;
        }
        match self.maker {
            Some((n, seconds)) if !is(Fate::Recomputed) && self.idle > 0.0 => {
                let (maker, again) = (operator(self.graph, n), ms(seconds));
                writeln!(f, "  recomputed, {maker} took {again} again, beside what it reads")
            }
            None if !is(Fate::Recomputed) => {
                writeln!(f, "  recomputed it cannot be: no kernel makes it")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Choices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let ms = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
        let ty = self.graph.ty(self.root);
        let fates: Vec<&str> = self.fates.iter().map(|f| f.name()).collect();
        let bytes = (self.human)(ty.bytes());
        writeln!(f, "{}: {ty}, {bytes}: {}", self.title(), fates.join(", "))?;
        if self.fates.contains(&Fate::Swapped) {
            let (out, back) = ((self.human)(self.out.0), (self.human)(self.back.0));
            let (out_time, back_time) = (ms(self.out.1), ms(self.back.1));
            let waits = ms(self.waits);
            writeln!(f, "  {out} to the host in {out_time}, {back} back in {back_time}")?;
            writeln!(f, "  kernels wait {waits} for it")?;
        }
        if let (times @ 1.., seconds) = self.again {
            writeln!(f, "  made again {times} times in {}", ms(seconds))?;
        }
        let mut alternatives = String::new();
        self.alternatives(&mut alternatives)?;
        match alternatives.is_empty() {
            true => Ok(()),
            false => write!(f, "otherwise\n{alternatives}"),
        }
    }
}
