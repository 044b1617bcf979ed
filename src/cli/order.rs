//! `arenic order`

use super::{Failure, Json, Outcome, failed, human_bytes, print};
use arenic::data::AtomicFile;
use arenic::instance;
use arenic_passes::order::{DEFAULT_TIME_LIMIT, Limits, definition, solve};
use clap::Args;
use miette::miette;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `arenic order`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The memory graph: operators and tensors with sizes, as .json or .json.gz
    instance: PathBuf,
    /// Seconds to look for better orders; 0 takes the best list scheduler
    #[arg(long, value_name = "S", default_value_t = DEFAULT_TIME_LIMIT, value_parser = super::seconds)]
    time_limit: f64,
    /// Seed of the random moves of the search
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write the order, one node id per line
    #[arg(short, long, value_name = "ORDER.txt")]
    output: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    let start = Instant::now();
    let instance = instance::read(&a.instance).map_err(failed)?;
    let p = &instance.problem;
    let limits = Limits::new(a.time_limit, a.seed);
    let solution = solve(p, &limits);
    let by_definition = p.peak(&definition(p));
    let seconds = start.elapsed().as_secs_f64();
    if let Some(path) = &a.output {
        let ids = solution.order.iter().map(|&v| instance.ids[v]);
        write(path, ids)?;
    }
    let (peak, bound) = (solution.peak, solution.certificate.bound);
    if a.json.json {
        return print(json!({
            "peak_bytes": peak,
            "lower_bound_bytes": bound,
            "definition_order_bytes": by_definition,
            "seconds": seconds,
            "proved_optimal": solution.is_optimal(),
            "method": solution.method,
        }));
    }
    eprintln!("definition order  {:>12}", human_bytes(by_definition));
    eprintln!("best order        {:>12}  by {}", human_bytes(peak), solution.method);
    eprintln!("lower bound       {:>12}", human_bytes(bound));
    let verdict = match solution.is_optimal() {
        true => "proved optimal".to_owned(),
        false => format!("at most {} might be saved", human_bytes(peak - bound)),
    };
    eprintln!("{} operators in {seconds:.2} s: {verdict}", p.len());
    Ok(())
}

fn write(path: &Path, ids: impl Iterator<Item = i64>) -> Outcome {
    let mut file = AtomicFile::create(path).map_err(failed)?;
    for id in ids {
        writeln!(file, "{id}")
            .map_err(|e| Failure::from(miette!("cannot write {}: {e}", path.display())))?;
    }
    file.commit().map_err(failed)
}
