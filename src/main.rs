//! The command-line tool.

use std::process::ExitCode;

fn main() -> ExitCode {
    arenic::cli::main(std::env::args_os()).into()
}
