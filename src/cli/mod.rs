//! Subcommands. Data for scripts goes to stdout, everything else to stderr.
//!
//! [`main`] is the whole command line; [`Request`] is `arenic compile` for others that take its options.
//!
//! Exit codes: 0 success; 1 an input cannot be used (the message says what, where and how
//! to mend it); 2 wrong usage; 3 the loss became NaN or infinite; 130 a run was interrupted,
//! by Ctrl-C, SIGTERM or SIGHUP.
//! `place` gives 2 and 3 where nothing fits a capacity.

// Everything goes through `terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod terminal;

mod check;
mod compile;
mod device;
mod differentiate;
mod dims;
mod dynamic;
mod eval;
mod explain;
mod export;
mod inspect;
mod interrupt;
mod loss;
mod named;
mod ops;
mod order;
mod pipeline;
mod place;
mod profile;
mod ranks;
mod recorded;
mod report;
mod run;
mod search;
mod shell;
mod simulate;
mod sweep;
mod trace;
mod variants;
mod ways;

pub use compile::{CommandError, Compilation, Request};
pub use recorded::dynamic;

use crate::artifact::{Artifact, Target};
use crate::compile::CompileError;
use crate::data::try_to_write;
use crate::human_bytes;
use crate::recipe::RecordedOption;
use arenic_ir::check::{Footprint, Violation};
use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use miette::{Report, miette};
use std::path::PathBuf;
use terminal::{print, tell_failure};

/// Exit code of wrong usage.
const USAGE: u8 = 2;
/// Exit code when the loss is not finite.
const NON_FINITE: u8 = 3;

/// Compiles whole ONNX training steps to memory-planned artifacts and trains with them
/// out of one arena.
#[derive(Debug, Parser)]
#[command(name = "arenic", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success; 1 an input cannot be used; 2 wrong usage; \
                          3 the loss became NaN or infinite; 130 a run was interrupted (Ctrl-C, \
                          SIGTERM, SIGHUP).";

#[derive(Debug, Subcommand)]
enum Command {
    /// Compile an ONNX training step (or a forward model) to an artifact
    Compile(Box<compile::Arguments>),
    /// Make an ONNX training step of a forward model: loss, gradients and updates
    Differentiate(Box<differentiate::Arguments>),
    /// Train with an artifact, or evaluate it
    Run(Box<run::Arguments>),
    /// Evaluate a trained model: its loss, and its accuracy if it is a classifier
    ///
    /// All targets count alike in the loss, but for those that --ignore-index leaves out, so that
    /// trainings with other class weights can be compared; a model compiled with class weights has its
    /// weighted loss beside it. Label smoothing is of the training alone.
    Eval(eval::Arguments),
    /// Print what an artifact holds: statistics, graph and program
    Inspect(inspect::Arguments),
    /// Check again that an artifact's programs implement its graphs
    Check(check::Arguments),
    /// Order a bare memory graph so that its peak is low
    Order(order::Arguments),
    /// Place bare buffers in one arena so that it is small
    Place(place::Arguments),
    /// Plan a pool for recorded allocations, and compare it with the recorded one
    Trace(trace::Arguments),
    /// Explain why a plan needs as much memory as it does
    Explain(explain::Arguments),
    /// Write an artifact's step as an ONNX file, with its plan as metadata
    Export(export::Arguments),
    /// Draw an artifact's arena, or a placement, as a page for the browser
    Report(report::Arguments),
    /// Measure each kernel of an artifact, for `compile` and `simulate`
    Profile(profile::Arguments),
    /// Simulate a step of an artifact on a device, and say where its time goes
    Simulate(simulate::Arguments),
    /// List, show and describe pipelines
    Pipeline(pipeline::Arguments),
    /// List the operators that can be imported
    Ops(ops::Arguments),
    /// Print the completions of the command line for a shell
    Completions(shell::Completions),
    /// Print the manual page, or write one for each command
    Man(shell::Manual),
}

/// Output for scripts.
#[derive(Clone, Copy, Debug, Args)]
struct Json {
    /// Print JSON to stdout
    #[arg(long)]
    json: bool,
}

/// The command line as clap knows it: all commands with their options.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Runs the command line with these arguments, of which the first is the program's name; gives its exit code.
pub fn main<I, T>(arguments: I) -> u8
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let given = command().try_get_matches_from(arguments);
    let parsed = given.and_then(|given| Ok((Cli::from_arg_matches(&given)?, given)));
    match parsed {
        Ok((cli, given)) => run(cli, &given),
        Err(e) => {
            let code = if e.use_stderr() { USAGE } else { 0 };
            let _ = e.print();
            code
        }
    }
}

/// Runs a command and turns its result into an exit code.
fn run(cli: Cli, given: &ArgMatches) -> u8 {
    let result = match cli.command {
        Command::Compile(a) => compile::run(&a, recorded_options(given)),
        Command::Differentiate(a) => differentiate::run(&a),
        Command::Run(a) => run::run(&a),
        Command::Eval(a) => eval::run(&a),
        Command::Inspect(a) => inspect::run(&a),
        Command::Check(a) => check::run(&a),
        Command::Order(a) => order::run(&a),
        Command::Place(a) => place::run(&a),
        Command::Trace(a) => trace::run(&a),
        Command::Explain(a) => explain::run(&a),
        Command::Export(a) => export::run(&a),
        Command::Report(a) => report::run(&a),
        Command::Profile(a) => profile::run(&a),
        Command::Simulate(a) => simulate::run(&a),
        Command::Pipeline(a) => pipeline::run(&a),
        Command::Ops(a) => ops::run(a),
        Command::Completions(a) => shell::completions(&a),
        Command::Man(a) => shell::manual(&a),
    };
    match result {
        Ok(()) => 0,
        Err(Failure { report, code }) => {
            if let Some(report) = report {
                tell_failure(report);
            }
            code
        }
    }
}

/// The options of the subcommand that an artifact may keep.
fn recorded_options(given: &ArgMatches) -> Vec<RecordedOption> {
    let Some((name, given)) = given.subcommand() else { return Vec::new() };
    let command = command();
    let command = command.find_subcommand(name);
    command.map_or(Vec::new(), |command| recorded::options(command, given))
}

/// Why a command failed; without a report it has been said already.
struct Failure {
    report: Option<Report>,
    code: u8,
}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        Failure { report: Some(report), code: 1 }
    }
}

impl Failure {
    /// Why a model could not be compiled.
    fn of_compiling(error: CompileError) -> Failure {
        match error.help() {
            Some(help) => miette!(help = help.to_owned(), "{error}").into(),
            None => failed(error),
        }
    }
}

/// What a command gives.
type Outcome = Result<(), Failure>;

/// Turns any error into a failure with exit code 1.
fn failed<E: std::error::Error + Send + Sync + 'static>(error: E) -> Failure {
    Report::new_boxed(Box::new(Plain(error))).into()
}

/// An error whose message already says what, where and how to mend it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Plain<E: std::error::Error>(E);

impl<E: std::error::Error> miette::Diagnostic for Plain<E> {}

/// The target of this name, or the first; of several variants the one that is named, or the first, which is
/// said.
fn chosen<'a>(
    artifact: &'a Artifact,
    name: Option<&str>,
    variant: Option<&str>,
) -> Result<&'a Target, Failure> {
    let names = artifact.target_names();
    let name = name.or(names.first().copied()).unwrap_or_default();
    let variants = artifact.variants(name);
    let Some(&first) = variants.first() else {
        let help = format!("it holds {}; `compile --target` adds others", names.join(" and "));
        return Err(miette!(help = help, "the artifact does not hold that target").into());
    };
    let held: Vec<&str> = variants.iter().map(|t| t.variant.as_str()).collect();
    let held = held.join(" and ");
    match variant {
        Some(variant) => variants.into_iter().find(|t| t.variant == variant).ok_or_else(|| {
            let help = match held.is_empty() {
                true => "it holds one step alone".to_owned(),
                false => format!("it holds {held}"),
            };
            miette!(help = help, "the artifact does not hold the variant `{variant}`").into()
        }),
        None => {
            if variants.len() > 1 {
                tell!("note: of the variants {held} this is the first; --variant names another");
            }
            Ok(first)
        }
    }
}

/// A target, as [`chosen`], with what the checker says of its program, or that of a round, once it has
/// judged all of them.
fn checked_target<'a>(
    artifact: &'a Artifact,
    name: Option<&str>,
    variant: Option<&str>,
) -> Result<(&'a Target, Footprint), Failure> {
    let target = chosen(artifact, name, variant)?;
    let footprint = target.check_main().map_err(|violations| {
        let first = violations.first().map_or(String::new(), Violation::to_string);
        miette!("the program does not implement its graph: {first}")
    })?;
    Ok((target, footprint))
}

/// Says that what follows is of one round alone, where a step has rounds.
fn note_rounds(target: &Target) {
    if let Some(rounds) = &target.rounds {
        tell!("note: the step runs in {} rounds; this is one of them", rounds.count);
    }
}

/// Tries whether the files can be written that a command writes at its end.
fn can_write<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Outcome {
    try_to_write(paths.into_iter().map(PathBuf::as_path)).map_err(failed)
}

/// `NAME=VALUE` arguments.
fn name_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE".into()),
    }
}
