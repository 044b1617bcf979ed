//! `arenic completions` and `arenic man`: the command line as shells and `man` know it.

use super::terminal::print_own;
use super::{Outcome, failed};
use crate::data::AtomicFile;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::{Path, PathBuf};

/// Arguments of `arenic completions`.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

/// Arguments of `arenic man`.
#[derive(Debug, Args)]
pub(super) struct Manual {
    /// Write a page for each command into this folder, instead of the first one to stdout
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(super) fn completions(a: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(a.shell, &mut super::command(), "arenic", &mut script);
    print_own(&script)
}

pub(super) fn manual(a: &Manual) -> Outcome {
    let mut command = super::command();
    command.build();
    match &a.output {
        None => print_own(&page(command)?),
        Some(folder) => write_pages(&command, folder),
    }
}

/// The page of a command.
fn page(command: Command) -> Result<Vec<u8>, super::Failure> {
    let mut text = Vec::new();
    Man::new(command).render(&mut text).map_err(failed)?;
    Ok(text)
}

/// Writes the pages of a command and of those below it.
fn write_pages(command: &Command, folder: &Path) -> Outcome {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let text = page(command.clone())?;
    let mut file = AtomicFile::create(folder.join(format!("{name}.1"))).map_err(failed)?;
    file.put(&text).and_then(|()| file.commit()).map_err(failed)?;
    let below = command.get_subcommands().filter(|c| c.get_name() != "help");
    below.into_iter().try_for_each(|command| write_pages(command, folder))
}
