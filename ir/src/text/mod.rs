//! The text form of graph, plan and program: printer and parser.
//!
//! Printing a parsed text gives the text again, and parsing a printed module gives the
//! module again, except that constants of more than [`INLINE_ELEMENTS`] elements print
//! as `...` and parse as [`Data::Absent`](crate::Data::Absent). Ids print as their text
//! (`v3`, `n7`, `b12`, `t5`); `#` begins a comment.

mod data;
mod graph;
mod lexer;
mod plan;
mod program;

use crate::backend::Backend;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::program::Program;
use crate::types::TensorType;
use crate::verify::verify;
use lexer::Lexer;
use std::fmt;
use std::str::FromStr;

/// Constants of up to this many elements print in full.
pub const INLINE_ELEMENTS: usize = 64;

/// A text that is no module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct TextError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

/// A graph and, where made, its plan and program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// The graph.
    pub graph: Graph,
    /// The plan.
    pub plan: Option<Plan>,
    /// The program.
    pub program: Option<Program>,
}

impl Module {
    /// Parses a module, whose program may be for any of these backends.
    ///
    /// # Errors
    /// Syntax, unknown or repeated ids, a backend that is none of these. What a graph must be beyond that is
    /// [`verify`]'s to say.
    pub fn parse(text: &str, backends: &[Backend]) -> Result<Module, TextError> {
        let mut lexer = Lexer::new(text);
        let mut module = Module { graph: graph::parse(&mut lexer)?, plan: None, program: None };
        while !lexer.at_end() {
            if lexer.peek_word("plan") && module.plan.is_none() {
                // Facts about a plan follow from its graph, so that must be one.
                verify(&module.graph).map_err(|defect| lexer.error(defect.to_string()))?;
                module.plan = Some(plan::parse(&mut lexer, &module.graph)?);
            } else if lexer.peek_word("program") && module.program.is_none() {
                module.program = Some(program::parse(&mut lexer, &module.graph, backends)?);
            } else {
                return Err(lexer.error("expected `plan`, `program` or the end"));
            }
        }
        Ok(module)
    }
}

impl FromStr for TensorType {
    type Err = TextError;

    fn from_str(text: &str) -> Result<TensorType, TextError> {
        let mut lexer = Lexer::new(text);
        let ty = lexer.tensor_type()?;
        if lexer.at_end() { Ok(ty) } else { Err(lexer.error("expected the end")) }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.graph)?;
        if let Some(plan) = &self.plan {
            write!(f, "{plan}")?;
        }
        if let Some(program) = &self.program {
            write!(f, "{program}")?;
        }
        Ok(())
    }
}

/// Writes ` "name"`, or nothing for an empty name.
fn write_name(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    if name.is_empty() { Ok(()) } else { write!(f, " {}", quoted(name)) }
}

/// A name in quotes, escaped as in JSON.
fn quoted(name: &str) -> serde_json::Value {
    serde_json::Value::from(name)
}

/// Writes a list with commas.
fn write_list<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    items: impl IntoIterator<Item = T>,
) -> fmt::Result {
    for (i, item) in items.into_iter().enumerate() {
        write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
    }
    Ok(())
}
