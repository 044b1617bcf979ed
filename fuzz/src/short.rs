//! Runs a body on a corpus and on changes to it, without libFuzzer: the same ones every time.

use crate::FuzzTarget;
use crate::mutate::mutate;
use arenic_programs::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An input may take no longer.
pub const TIME_OUT: Duration = Duration::from_secs(10);

/// How long a target is run.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// So many changes to the corpus.
    Changes(usize),
    /// As many changes as there is time for.
    Time(Duration),
}

/// A target ends with so many.
const MOST_CRASHES: usize = 8;

/// No more inputs are kept to be changed again.
const MOST_INPUTS: usize = 4000;

/// What a run of a target found.
#[derive(Debug)]
pub struct TargetRun {
    /// How many inputs were run.
    pub executions: usize,
    /// How many of these were read, so that all was done with them.
    pub accepted: usize,
    /// How long all of them took.
    pub elapsed: Duration,
    /// What went wrong, and the inputs with which it did.
    pub crashes: Vec<(String, Vec<u8>)>,
}

/// The folder of a target's corpus.
pub fn corpus(target: &FuzzTarget) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The corpus's inputs, in the order of their names.
///
/// # Errors
/// The folder cannot be read.
pub fn inputs(folder: &Path) -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.sort();
    paths.into_iter().map(|p| std::fs::read(&p).map(|bytes| (p, bytes))).collect()
}

/// Runs the body on the whole corpus, then on changes to it.
///
/// # Errors
/// The corpus cannot be read.
pub fn run(target: &FuzzTarget, seed: u64, amount: Amount) -> std::io::Result<TargetRun> {
    let (corpus, start) = (inputs(&corpus(target))?, Instant::now());
    let mut outcome =
        TargetRun { executions: 0, accepted: 0, elapsed: Duration::ZERO, crashes: Vec::new() };
    for (path, bytes) in &corpus {
        outcome.one(target, bytes, &path.display().to_string());
    }
    let mut random = Random::new(seed);
    // What was accepted may be changed again.
    let mut pool: Vec<Vec<u8>> = corpus.into_iter().map(|(_, bytes)| bytes).collect();
    for change in 0.. {
        let is_done = match amount {
            Amount::Changes(changes) => change >= changes,
            Amount::Time(time) => start.elapsed() > time,
        };
        if is_done || outcome.crashes.len() >= MOST_CRASHES {
            break;
        }
        let empty = Vec::new();
        let [a, b] = [0; 2].map(|_| random.below(pool.len()));
        let [input, other] = [a, b].map(|i| pool.get(i).unwrap_or(&empty));
        let input = mutate(&mut random, target.form, input, other);
        let accepted = outcome.one(target, &input, &format!("change {change} of seed {seed}"));
        if accepted && pool.len() < MOST_INPUTS {
            pool.push(input);
        }
    }
    outcome.elapsed = start.elapsed();
    Ok(outcome)
}

impl TargetRun {
    fn one(&mut self, target: &FuzzTarget, input: &[u8], what: &str) -> bool {
        let start = Instant::now();
        let accepted = catch_unwind(AssertUnwindSafe(|| (target.body)(input)));
        self.executions += 1;
        let took = start.elapsed();
        self.accepted += usize::from(matches!(accepted, Ok(true)));
        if accepted.is_err() {
            self.crashes.push((format!("{}, {what}: panicked", target.name), input.to_vec()));
        } else if took > TIME_OUT {
            self.crashes.push((format!("{}, {what}: took {took:?}", target.name), input.to_vec()));
        }
        matches!(accepted, Ok(true))
    }
}
