//! Small changes to a program that may break it.

use super::{CELL, Random};
use arenic_ir::program::{Command, Program, Range, StreamId};
use cranelift_entity::EntityRef;

/// Every kind of change.
pub(crate) const KINDS: [&str; 7] = [
    "drop a wait",
    "drop a command",
    "swap neighbours",
    "move to another stream",
    "shift a result",
    "shift an operand",
    "shift a copy",
];

fn shift(range: &mut Range, random: &mut Random) {
    let by = CELL * (1 + random.below(2) as u64);
    let up = random.chance(50) || range.offset < by;
    range.offset = if up { range.offset + by } else { range.offset - by };
}

/// Applies a change of the kind; `None` where the program has nothing to apply it to.
pub(crate) fn mutate(
    random: &mut Random,
    p: &Program,
    kind: &str,
    streams: usize,
) -> Option<Program> {
    let mut p = p.clone();
    let matching = |p: &Program, f: &dyn Fn(&Command) -> bool| -> Vec<usize> {
        (0..p.commands.len()).filter(|&i| f(&p.commands[i])).collect()
    };
    let is_run = |c: &Command| matches!(c, Command::Run { .. });
    let is_copy = |c: &Command| matches!(c, Command::Copy { .. });
    let candidates = match kind {
        "drop a wait" => matching(&p, &|c| matches!(c, Command::Wait { .. })),
        "shift a result" | "shift an operand" => matching(&p, &is_run),
        "shift a copy" => matching(&p, &is_copy),
        "move to another stream" => matching(&p, &|c| is_run(c) || is_copy(c)),
        "swap neighbours" => (0..p.commands.len().saturating_sub(1)).collect(),
        _ => (0..p.commands.len()).collect(),
    };
    if candidates.is_empty() {
        return None;
    }
    let at = random.pick(&candidates);
    match kind {
        "drop a wait" | "drop a command" => {
            p.commands.remove(at);
        }
        "swap neighbours" => p.commands.swap(at, at + 1),
        _ => match &mut p.commands[at] {
            Command::Run { stream, reads, writes, .. } => match kind {
                "move to another stream" => *stream = StreamId::new(random.below(streams)),
                "shift a result" => shift(writes.iter_mut().flatten().next()?, random),
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
        },
    }
    Some(p)
}
