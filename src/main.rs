//! The command-line tool.

// Everything goes through `cli::terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(cli::Cli::parse())
}
