//! Text of programs.
//!
//! ```text
//! program {
//!   target cuda workspace 33554432 math tf32   (without this line: cpu; without a word after
//!                                              the backend: no workspace, f32)
//!   align 64
//!   device 4096
//!   host 0
//!   home v0 device[0+32]
//!   run n0 stream0 (device[0+32]) -> (device[64+32], _) scratch device[128+64]
//!   copy stream1 device[64+32] -> host[0+32]
//!   record stream1 event0
//!   wait stream0 event0
//!   output device[64+32]
//! }
//! ```

use super::lexer::Lexer;
use super::{TextError, write_list};
use crate::backend::{Backend, Math, TargetInfo};
use crate::graph::{Graph, NodeId};
use crate::program::{Command, Home, Program, Range};
use crate::space::Space;
use std::fmt;

/// The backend of programs without a line that says their target.
const UNNAMED: &str = "cpu";

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {{")?;
        let TargetInfo { backend, align, workspace, math } = self.target;
        if (backend.name, workspace, math) != (UNNAMED, 0, Math::default()) {
            write!(f, "  target {}", backend.name)?;
            if workspace > 0 {
                write!(f, " workspace {workspace}")?;
            }
            if math != Math::default() {
                write!(f, " math {}", math.name())?;
            }
            writeln!(f)?;
        }
        writeln!(f, "  align {align}")?;
        for space in Space::ALL {
            writeln!(f, "  {space} {}", self.sizes[space])?;
        }
        for home in &self.homes {
            writeln!(f, "  home {} {}", home.value, home.range)?;
        }
        for home in &self.ahead {
            writeln!(f, "  ahead {} {}", home.value, home.range)?;
        }
        for command in &self.commands {
            writeln!(f, "  {command}")?;
        }
        for output in &self.outputs {
            writeln!(f, "  output {output}")?;
        }
        writeln!(f, "}}")
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Run { node, stream, reads, writes, scratch } => {
                write!(f, "run {node} {stream} (")?;
                write_list(f, reads)?;
                f.write_str(") -> (")?;
                let result = |w: &Option<Range>| w.map_or("_".into(), |r| r.to_string());
                write_list(f, writes.iter().map(result))?;
                f.write_str(")")?;
                match scratch {
                    Some(range) => write!(f, " scratch {range}"),
                    None => Ok(()),
                }
            }
            Command::Copy { stream, from, to } => write!(f, "copy {stream} {from} -> {to}"),
            Command::Record { stream, event } => write!(f, "record {stream} {event}"),
            Command::Wait { stream, event } => write!(f, "wait {stream} {event}"),
        }
    }
}

fn range(lexer: &mut Lexer) -> Result<Range, TextError> {
    let space = match Space::ALL.into_iter().find(|s| lexer.accept_word(s.name())) {
        Some(space) => space,
        None => return Err(lexer.error("expected a range such as `device[0+64]`")),
    };
    lexer.expect("[")?;
    let offset = lexer.number()?;
    lexer.expect("+")?;
    let len = lexer.number()?;
    lexer.expect("]")?;
    Ok(Range { space, offset, len })
}

/// Reads a program for one of these backends.
pub(super) fn parse(
    lexer: &mut Lexer,
    g: &Graph,
    backends: &[Backend],
) -> Result<Program, TextError> {
    lexer.expect_word("program")?;
    lexer.expect("{")?;
    let (mut workspace, mut math) = (0, Math::default());
    let names_target = lexer.accept_word("target");
    let backend = backends.iter().copied().find(|b| match names_target {
        true => lexer.accept_word(b.name),
        false => b.name == UNNAMED,
    });
    let backend = backend.ok_or_else(|| {
        let names: Vec<String> = backends.iter().map(|b| format!("`{}`", b.name)).collect();
        match names.is_empty() {
            true => lexer.error("a program, where there is no backend for one"),
            false => lexer.error(format!("expected {}", names.join(" or "))),
        }
    })?;
    if names_target {
        if lexer.accept_word("workspace") {
            workspace = lexer.number()?;
        }
        if lexer.accept_word("math") {
            let known = Math::ALL.into_iter().find(|m| lexer.accept_word(m.name()));
            math = known.ok_or_else(|| lexer.error("expected `f32` or `tf32`"))?;
        }
    }
    lexer.expect_word("align")?;
    let align: u64 = lexer.number()?;
    if !align.is_power_of_two() || align > 1 << 30 {
        return Err(lexer.error("the alignment is no power of two up to 2^30"));
    }
    let mut program = Program::new(TargetInfo { backend, align, workspace, math });
    for space in Space::ALL {
        lexer.expect_word(space.name())?;
        program.sizes[space] = lexer.number()?;
    }
    while !lexer.accept("}") {
        if lexer.accept_word("home") {
            program.homes.push(home(lexer, g)?);
        } else if lexer.accept_word("ahead") {
            program.ahead.push(home(lexer, g)?);
        } else if lexer.accept_word("output") {
            program.outputs.push(range(lexer)?);
        } else {
            program.commands.push(parse_command(lexer, g)?);
        }
    }
    Ok(program)
}

fn home(lexer: &mut Lexer, g: &Graph) -> Result<Home, TextError> {
    let value = lexer.id("v")?;
    if !g.values.is_valid(value) {
        return Err(lexer.error(format!("{value} is not in the graph")));
    }
    Ok(Home { value, range: range(lexer)? })
}

fn parse_command(lexer: &mut Lexer, g: &Graph) -> Result<Command, TextError> {
    if lexer.accept_word("run") {
        let node: NodeId = lexer.id("n")?;
        if !g.nodes.is_valid(node) {
            return Err(lexer.error(format!("{node} is not in the graph")));
        }
        let stream = lexer.id("stream")?;
        let reads = lexer.list(range)?;
        lexer.expect("->")?;
        let writes =
            lexer.list(|l| if l.accept_word("_") { Ok(None) } else { range(l).map(Some) })?;
        let scratch = if lexer.accept_word("scratch") { Some(range(lexer)?) } else { None };
        Ok(Command::Run { node, stream, reads, writes, scratch })
    } else if lexer.accept_word("copy") {
        let stream = lexer.id("stream")?;
        let from = range(lexer)?;
        lexer.expect("->")?;
        Ok(Command::Copy { stream, from, to: range(lexer)? })
    } else if lexer.accept_word("record") {
        Ok(Command::Record { stream: lexer.id("stream")?, event: lexer.id("event")? })
    } else if lexer.accept_word("wait") {
        Ok(Command::Wait { stream: lexer.id("stream")?, event: lexer.id("event")? })
    } else {
        Err(lexer.error("expected a command or `}`"))
    }
}
