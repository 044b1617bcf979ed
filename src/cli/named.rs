//! Things that are named or read from a YAML file: pipelines and devices.

use super::Failure;
use super::terminal::masked;
use arenic_passes::yaml::YamlError;
use miette::{MietteDiagnostic, NamedSource, miette};

/// Things of a kind that have names.
pub(super) struct Named<'a> {
    /// What they are.
    pub(super) kind: &'a str,
    /// Name and YAML of each.
    pub(super) known: &'a [(&'a str, &'a str)],
}

/// The help of an option that takes one of these things, or a file.
pub(super) fn help(text: &str, known: &[(&str, &str)]) -> String {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    text.replace("{names}", &names.join(", "))
}

/// The thing called `name`, or the one in the file `name`.
pub(super) fn read_named<T>(
    named: &Named,
    name: &str,
    parse: impl Fn(&str) -> Result<T, YamlError>,
) -> Result<T, Failure> {
    let Named { kind, known } = named;
    let text = match known.iter().find(|(n, _)| *n == name) {
        Some((_, yaml)) => (*yaml).to_owned(),
        None => std::fs::read_to_string(name).map_err(|e| {
            let names: Vec<&str> = known.iter().map(|(n, _)| *n).collect();
            let help = format!("name a YAML file, or one of: {}", names.join(", "));
            miette!(help = help, "cannot read the {kind} `{name}`: {e}")
        })?,
    };
    parse(&text).map_err(|e| report(kind, e, name, &text))
}

/// The error with the place it points at.
fn report(kind: &str, e: YamlError, name: &str, text: &str) -> Failure {
    let YamlError { message, location } = e;
    let what = MietteDiagnostic::new(format!("{kind} `{name}`: {message}"));
    let Some((line, column)) = location else {
        return miette::Report::from(what).into();
    };
    let line_start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let at = (line_start + column - 1).min(text.len());
    let label = miette::LabeledSpan::at_offset(at, "here");
    let report = miette::Report::from(what.with_label(label));
    report.with_source_code(NamedSource::new(masked(name), masked(text))).into()
}
