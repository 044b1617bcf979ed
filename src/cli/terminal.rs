//! What is written to stdout and stderr. Names come out of files, and a terminal obeys what is
//! in them: so everything goes through [`Visible`], whoever writes it. The lints
//! `print_stdout` and `print_stderr` see to it that nothing goes past.

use super::{Failure, Outcome};
use miette::{Diagnostic, IntoDiagnostic, Report};
use std::fmt::{self, Display, Write as _};
use std::io::{ErrorKind, Write};

/// Prints a line to stdout. A reader that has gone (as under `head`) ends the program
/// quietly.
pub(super) fn print(text: impl Display) -> Outcome {
    match writeln!(std::io::stdout(), "{}", Visible(text)) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(Failure { report: None, code: 0 }),
        other => Ok(other.into_diagnostic()?),
    }
}

/// Prints a text of our own, in which nothing comes out of a file, as it is.
pub(super) fn print_own(text: &[u8]) -> Outcome {
    match std::io::stdout().write_all(text) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(Failure { report: None, code: 0 }),
        other => Ok(other.into_diagnostic()?),
    }
}

/// Writes a line to stderr. Where nobody reads it any more (the terminal was closed), the work
/// goes on.
macro_rules! tell {
    ($($text:tt)*) => { $crate::cli::terminal::tell(format_args!($($text)*)) };
}

/// See the macro of this name.
pub(super) fn tell(text: fmt::Arguments) {
    let _ = writeln!(std::io::stderr(), "{}", Visible(text));
}

/// Says why a command failed.
pub(super) fn tell_failure(report: Report) {
    // The report has the terminal's colours, which its own parts must not set.
    let _ = writeln!(std::io::stderr(), "{:?}", Report::new(VisibleReport(report)));
}

/// A text in which what a terminal would obey, or what would turn the direction of the text,
/// is written as JSON writes it: `\u001b`. Lines stay lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visible<T>(pub(super) T);

impl<T: Display> Display for Visible<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_obeyed) {
            let (before, from) = rest.split_at(at);
            self.0.write_str(before)?;
            let mut chars = from.chars();
            if let Some(c) = chars.next() {
                write!(self.0, "\\u{:04x}", u32::from(c))?;
            }
            rest = chars.as_str();
        }
        self.0.write_str(rest)
    }
}

fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (c.is_control() && c != '\n')
}

/// A text of as many bytes, for excerpts with marks in them: what a terminal would obey is `?`.
pub(super) fn masked(text: &str) -> String {
    let mask = |c: char| match c {
        '\r' | '\t' => " ".to_owned(),
        c if is_obeyed(c) => "?".repeat(c.len_utf8()),
        c => c.to_string(),
    };
    text.chars().map(mask).collect()
}

/// A report whose texts are [`Visible`].
#[derive(Debug)]
struct VisibleReport(Report);

impl Display for VisibleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chain().enumerate().try_for_each(|(i, cause)| {
            let between = if i > 0 { ": " } else { "" };
            write!(f, "{between}{}", Visible(cause))
        })
    }
}

impl std::error::Error for VisibleReport {}

impl Diagnostic for VisibleReport {
    fn help<'a>(&'a self) -> Option<Box<dyn Display + 'a>> {
        self.0.help().map(|help| Box::new(Visible(help)) as Box<dyn Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.0.source_code()
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        self.0.labels()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        let text = "a\u{1b}[31mb\nc\rd\u{9b}2Je\u{7f}\u{202e}ü";
        let shown = Visible(text).to_string();
        assert_eq!(shown, "a\\u001b[31mb\nc\\u000dd\\u009b2Je\\u007f\\u202eü");
        // In a JSON text it means the same as before.
        let json = serde_json::json!({ "name": text }).to_string();
        let again: serde_json::Value = serde_json::from_str(&Visible(json).to_string()).unwrap();
        assert_eq!(again["name"], text);
        assert_eq!(masked(text).len(), text.len());
        assert!(!masked(text).contains(is_obeyed));
    }
}
