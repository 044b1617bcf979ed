//! Small changes to a program that may break it.

use crate::{CELL, Random};
use arenic_ir::graph::{Def, Graph};
use arenic_ir::program::{Command, EventId, Program, Range, Space, StreamId};
use cranelift_entity::EntityRef;

/// Every kind of change.
pub const KINDS: [&str; 21] = [
    "drop a wait",
    "drop a command",
    "swap neighbours",
    "move to another stream",
    "shift a result",
    "shift an operand",
    "shift a copy",
    "drop a record",
    "repeat a command",
    "move a command",
    "copy into a home",
    "copy from anywhere",
    "copy there and back",
    "swap operands",
    "take another operand",
    "shift by the alignment",
    "shift a home",
    "shift an output",
    "use an event twice",
    "record and wait",
    "cut a range",
];

fn shift(range: &mut Range, random: &mut Random) {
    move_by(range, CELL * (1 + random.below(2) as u64), random);
}

fn move_by(range: &mut Range, by: u64, random: &mut Random) {
    let up = random.chance(50) || range.offset < by;
    range.offset = if up { range.offset.saturating_add(by) } else { range.offset - by };
}

/// Where commands of some kind are.
fn matching(p: &Program, f: &dyn Fn(&Command) -> bool) -> Vec<usize> {
    (0..p.commands.len()).filter(|&i| f(&p.commands[i])).collect()
}

fn is_run(c: &Command) -> bool {
    matches!(c, Command::Run { .. })
}

fn is_copy(c: &Command) -> bool {
    matches!(c, Command::Copy { .. })
}

/// Every range of a command.
fn ranges(command: &mut Command) -> Vec<&mut Range> {
    match command {
        Command::Run { reads, writes, scratch, .. } => {
            reads.iter_mut().chain(writes.iter_mut().flatten()).chain(scratch).collect()
        }
        Command::Copy { from, to, .. } => vec![from, to],
        Command::Record { .. } | Command::Wait { .. } => Vec::new(),
    }
}

/// Applies a change of the kind; `None` where the program has nothing to apply it to.
pub fn mutate(
    random: &mut Random,
    g: &Graph,
    p: &Program,
    kind: &str,
    streams: usize,
) -> Option<Program> {
    let mut p = p.clone();
    let candidates = match kind {
        "drop a wait" => matching(&p, &|c| matches!(c, Command::Wait { .. })),
        "drop a record" => matching(&p, &|c| matches!(c, Command::Record { .. })),
        "shift a result" | "shift an operand" | "swap operands" | "take another operand" => {
            matching(&p, &is_run)
        }
        "shift a copy" => matching(&p, &is_copy),
        "move to another stream" | "shift by the alignment" | "cut a range" => {
            matching(&p, &|c| is_run(c) || is_copy(c))
        }
        "swap neighbours" => (0..p.commands.len().saturating_sub(1)).collect(),
        "use an event twice" => {
            matching(&p, &|c| matches!(c, Command::Record { .. } | Command::Wait { .. }))
        }
        "shift a home" => (0..p.homes.len()).collect(),
        "shift an output" => (0..p.outputs.len()).collect(),
        _ => (0..p.commands.len()).collect(),
    };
    if candidates.is_empty() {
        return None;
    }
    let at = random.pick(&candidates);
    match kind {
        "drop a wait" | "drop a command" | "drop a record" => {
            p.commands.remove(at);
        }
        "swap neighbours" => p.commands.swap(at, at + 1),
        "repeat a command" => {
            let command = p.commands[at].clone();
            let to = at + random.below(p.commands.len() + 1 - at);
            p.commands.insert(to, command);
        }
        "move a command" => {
            let command = p.commands.remove(at);
            let to = random.below(p.commands.len() + 1);
            p.commands.insert(to, command);
        }
        "copy into a home" | "copy from anywhere" | "copy there and back" => {
            insert_copies(random, g, &mut p, kind, at, streams)?;
        }
        "shift a home" => shift(&mut p.homes[at].range, random),
        "shift an output" => shift(&mut p.outputs[at], random),
        "use an event twice" => {
            let event = random.pick(&events(&p));
            match &mut p.commands[at] {
                Command::Record { event: e, .. } | Command::Wait { event: e, .. } => *e = event,
                Command::Run { .. } | Command::Copy { .. } => return None,
            }
        }
        "record and wait" => {
            let next = events(&p).into_iter().map(EntityRef::index).max().map_or(0, |e| e + 1);
            let event = EventId::new(next);
            let [from, to] = [0; 2].map(|_| StreamId::new(random.below(streams)));
            let later = at + random.below(p.commands.len() - at);
            p.commands.insert(later, Command::Wait { stream: to, event });
            p.commands.insert(at, Command::Record { stream: from, event });
        }
        _ => change(random, &mut p, kind, at, streams)?,
    }
    Some(p)
}

/// Changes one command that runs or copies.
fn change(
    random: &mut Random,
    p: &mut Program,
    kind: &str,
    at: usize,
    streams: usize,
) -> Option<()> {
    let align = p.target.align;
    let other: Vec<Range> = p.commands.iter_mut().flat_map(ranges).map(|r| *r).collect();
    let command = &mut p.commands[at];
    match kind {
        "shift by the alignment" | "cut a range" => {
            let mut all = ranges(command);
            let k = random.below(all.len());
            let range = all.get_mut(k)?;
            match kind {
                "cut a range" => range.len = range.len.checked_sub(CELL)?,
                _ => move_by(range, align * (1 + random.below(3) as u64), random),
            }
            return Some(());
        }
        _ => {}
    }
    match command {
        Command::Run { stream, reads, writes, .. } => match kind {
            "move to another stream" => *stream = StreamId::new(random.below(streams)),
            "shift a result" => shift(writes.iter_mut().flatten().next()?, random),
            "swap operands" => {
                let [i, j] = [0; 2].map(|_| random.below(reads.len()));
                (i < reads.len()).then(|| reads.swap(i, j))?;
            }
            "take another operand" => {
                let k = random.below(reads.len());
                let read = reads.get_mut(k)?;
                let same = |r: &&Range| r.len == read.len && r.space == read.space;
                let same: Vec<Range> = other.iter().filter(same).copied().collect();
                *read = random.pick(&same);
            }
            _ => {
                let k = random.below(reads.len());
                shift(reads.get_mut(k)?, random);
            }
        },
        Command::Copy { stream, from, to } => match kind {
            "move to another stream" => *stream = StreamId::new(random.below(streams)),
            _ => shift(if random.chance(50) { from } else { to }, random),
        },
        Command::Record { .. } | Command::Wait { .. } => return None,
    }
    Some(())
}

/// Adds a copy before the command, and maybe one that takes the bytes back.
fn insert_copies(
    random: &mut Random,
    g: &Graph,
    p: &mut Program,
    kind: &str,
    at: usize,
    streams: usize,
) -> Option<()> {
    let stream = StreamId::new(random.below(streams));
    let mut known: Vec<Range> = p.commands.iter_mut().flat_map(ranges).map(|r| *r).collect();
    known.extend(p.homes.iter().map(|h| h.range));
    let homes: Vec<Range> = p
        .homes
        .iter()
        .filter(|h| !matches!(g.values[h.value].def, Def::State(_)))
        .map(|h| h.range)
        .collect();
    let to = match kind {
        "copy into a home" if homes.is_empty() => return None,
        "copy into a home" => random.pick(&homes),
        _ => random.pick(&known),
    };
    // A part of it, mostly all.
    let cells = to.len / CELL;
    let skip = if random.chance(70) { 0 } else { random.below(cells as usize) as u64 };
    let to = Range { offset: to.offset + skip * CELL, len: (cells - skip) * CELL, ..to };
    let space = if random.chance(80) { Space::Device } else { Space::Host };
    let last = (p.sizes[space].saturating_sub(to.len) / CELL) as usize;
    let from = match random.chance(50) {
        // From any bytes, also those that nothing ever writes.
        true => Range { space, offset: random.below(last + 1) as u64 * CELL, len: to.len },
        false => Range { len: to.len, ..random.pick(&known) },
    };
    p.commands.insert(at, Command::Copy { stream, from, to });
    if kind == "copy there and back" {
        let later = at + 1 + random.below(p.commands.len() - at);
        p.commands.insert(later, Command::Copy { stream, from: to, to: from });
    }
    Some(())
}

fn events(p: &Program) -> Vec<EventId> {
    let event = |c: &Command| match c {
        Command::Record { event, .. } | Command::Wait { event, .. } => Some(*event),
        Command::Run { .. } | Command::Copy { .. } => None,
    };
    p.commands.iter().filter_map(event).collect()
}
