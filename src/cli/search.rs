//! Options of commands that search.

use super::human_bytes;
use crate::compiler::Compiler;
use arenic_passes::{Progress, Search};
use clap::Args;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// How long to search, and what to tell meanwhile.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct SearchOptions {
    /// Effort of each search in seconds of a reference core, instead of the pipeline's; 0 takes the
    /// best heuristic. Effort counts work, so that the result is the same on every machine
    #[arg(long, value_name = "S", value_parser = seconds)]
    effort: Option<f64>,
    /// End each search after this many seconds by the clock, whatever its effort. A result that was
    /// cut short says that it may differ on another machine
    #[arg(long, value_name = "S", value_parser = seconds)]
    time_limit: Option<f64>,
    /// Seed of the random moves of searches
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print every better plan and bound to stderr, and what becomes of each weight
    #[arg(short, long)]
    pub(super) verbose: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if f64::is_finite(s) && s >= 0.0 => Ok(s),
        _ => Err(format!("`{text}` is no number of seconds")),
    }
}

/// What is said of a result that a search cut short led to.
pub(super) const CUT: &str = "a search was cut short by the time limit or by Ctrl-C: this \
                              artifact may differ on another machine, or the next time";

impl SearchOptions {
    /// What passes are told.
    pub(super) fn with<'a>(
        &self,
        stop: &'a AtomicBool,
        progress: &'a (dyn Fn(&Progress) + Sync),
    ) -> Search<'a> {
        Search {
            effort: self.effort,
            time_limit: self.time_limit,
            seed: self.seed,
            stop: Some(stop),
            cut: None,
            progress: Some(progress),
        }
    }

    /// A compiler that searches so.
    pub(super) fn searching(&self) -> Compiler {
        let SearchOptions { effort, time_limit, seed, .. } = *self;
        Compiler { effort, time_limit, seed, ..Compiler::new() }
    }

    /// Prints progress where it is wanted.
    pub(super) fn listener(&self) -> impl Fn(&Progress) + use<> {
        let (start, verbose) = (Instant::now(), self.verbose);
        move |p: &Progress| {
            if verbose {
                tell!(
                    "{:>8.2} s  {:>12}  bound {:>12}  by {}",
                    start.elapsed().as_secs_f64(),
                    human_bytes(p.incumbent),
                    human_bytes(p.bound),
                    p.method
                );
            }
        }
    }
}
