//! `arenic place`

use super::interrupt;
use super::pipeline::read_pipeline;
use super::search::SearchOptions;
use super::{Failure, Json, Outcome, can_write, failed, human_bytes, print};
use crate::data::AtomicFile;
use crate::placement::{self, Instance};
use arenic_passes::pipeline::{NAMED, Pipeline};
use arenic_passes::place::{MAX_ALIGNMENT, Solution, Wish};
use clap::Args;
use miette::miette;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Exit code where it is proved that nothing fits the capacity.
const IMPOSSIBLE: u8 = 2;
/// Exit code where nothing was found within the capacity, and nothing proved.
const UNDECIDED: u8 = 3;

/// Arguments of `arenic place`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 placed, within the capacity where one is given; 1 an \
                        input cannot be used; 2 proved that nothing fits the capacity (or \
                        wrong usage); 3 undecided at the limit. The best placement found is \
                        written in each case.")]
pub(super) struct Arguments {
    /// The buffers: a CSV file with the columns id, lower, upper, size, and if need be
    /// alignment, gaps, offset (fixed) and hint; lifetimes are half-open
    instance: PathBuf,
    /// Stop as soon as the placement is not higher than this many bytes
    #[arg(long, value_name = "N")]
    capacity: Option<u64>,
    /// Every offset is a multiple of this; sizes count rounded up to their alignment
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=MAX_ALIGNMENT))]
    alignment: u64,
    /// A pipeline file, or the name of a pipeline; its last pass that places is used
    #[arg(long, value_name = "P.yaml", default_value = NAMED[0].0)]
    pipeline: String,
    #[command(flatten)]
    search: SearchOptions,
    /// Write the buffers with their offsets
    #[arg(short, long, value_name = "OUT.csv")]
    output: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    can_write(&a.output)?;
    let start = Instant::now();
    let pipeline = read_pipeline(&a.pipeline, Pipeline::parse)?;
    let placer = pipeline.placer().map_err(|e| miette!("pipeline `{}`: {e}", a.pipeline))?;
    let instance = placement::read(&a.instance, a.alignment).map_err(failed)?;
    let p = &instance.problem;
    let progress = a.search.listener();
    let search = a.search.with(interrupt::flag(), &progress);
    let solution = placer.place(p, &Wish { capacity: a.capacity, search, ..Wish::default() });
    let seconds = start.elapsed().as_secs_f64();
    if let Some(path) = &a.output {
        write(path, &instance, &solution)?;
    }
    report(a, p.bound(), &solution, seconds)?;
    match a.capacity {
        Some(_) if solution.impossible => Err(Failure { report: None, code: IMPOSSIBLE }),
        Some(c) if solution.height > c => Err(Failure { report: None, code: UNDECIDED }),
        _ => Ok(()),
    }
}

fn report(a: &Arguments, bound: u64, solution: &Solution, seconds: f64) -> Outcome {
    let over = solution.height - bound;
    let fragmentation = over as f64 / bound.max(1) as f64;
    if a.json.json {
        return print(json!({
            "height": solution.height,
            "lower_bound": bound,
            "fragmentation": fragmentation,
            "proved_optimal": solution.optimal,
            "seconds": seconds,
            "method": solution.method,
        }));
    }
    tell!("height       {:>12}  by {}", human_bytes(solution.height), solution.method);
    tell!("lower bound  {:>12}", human_bytes(bound));
    let verdict = match (solution.optimal, a.capacity) {
        (_, Some(c)) if solution.impossible => {
            format!("proved that nothing fits a capacity of {c} bytes")
        }
        (_, Some(c)) if solution.height <= c => "fits the capacity".to_owned(),
        (_, Some(c)) => format!("found nothing within {c} bytes; undecided"),
        (true, None) => "proved optimal".to_owned(),
        (false, None) => {
            format!("at most {} ({:.3} %) might be saved", human_bytes(over), 100.0 * fragmentation)
        }
    };
    tell!("{} buffers in {seconds:.2} s: {verdict}", solution.offsets.len());
    Ok(())
}

fn write(path: &Path, instance: &Instance, solution: &Solution) -> Outcome {
    let mut file = AtomicFile::create(path).map_err(failed)?;
    instance
        .write(&mut file, &solution.offsets)
        .map_err(|e| Failure::from(miette!("cannot write {}: {e}", path.display())))?;
    file.commit().map_err(failed)
}
