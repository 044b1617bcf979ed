//! `arenic compile --sweep`: the memory–time frontier, a row for each limit.

use super::{Failure, Json, Outcome, failed, human_bytes, print};
use crate::compile::{CompileError, Compiled};
use crate::frontier::{Frontier, LimitOutcome, Point};
use arenic_ir::cost::Device;
use serde_json::json;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Percentages of the arena without a limit: `100%..30%`, or with a step, `100%..30%:5%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sweep {
    from: f64,
    to: f64,
    step: f64,
}

/// Where none is given.
const STEP: f64 = 10.0;

/// Most rows of a table.
const MOST: f64 = 1000.0;

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Sweep, String> {
        let percent = |part: &str| {
            let number = part.trim().strip_suffix('%').unwrap_or(part).trim().parse().ok();
            number.filter(|p| *p > 0.0 && *p <= 100.0)
        };
        let read = || {
            let (range, step) = match text.split_once(':') {
                Some((range, step)) => (range, percent(step)?),
                None => (text, STEP),
            };
            let (from, to) = range.split_once("..")?;
            Some(Sweep { from: percent(from)?, to: percent(to)?, step })
        };
        let wrong = "no range of percentages above 0 and up to 100; write for example 100%..30% \
                     or 100%..30%:5%";
        let sweep = read().ok_or_else(|| format!("`{text}` is {wrong}"))?;
        match (sweep.from - sweep.to).abs() / sweep.step < MOST {
            true => Ok(sweep),
            false => Err(format!("`{text}` has more than {MOST} limits; take a larger step")),
        }
    }
}

impl Sweep {
    fn percentages(self) -> impl Iterator<Item = f64> {
        // Steps like 0.1 are not exact; the last row is not to be lost for that.
        let steps = ((self.from - self.to).abs() / self.step + 1e-9).floor() as u32;
        let signed = if self.from < self.to { self.step } else { -self.step };
        (0..=steps).map(move |i| self.from + signed * f64::from(i))
    }
}

/// Compiles under each limit and prints a row; the first Ctrl-C ends the table.
pub(super) fn run(
    sweep: Sweep,
    device: &Device,
    compile: impl FnMut(Option<u64>) -> Result<Compiled, CompileError>,
    stop: &AtomicBool,
    json: Json,
) -> Outcome {
    let mut frontier = Frontier::new(device, compile).map_err(failed)?;
    let arena = frontier.unlimited().arena_bytes;
    let usable = device.usable_bytes();
    if arena > usable {
        tell!("note: {} has {usable} bytes for a plan; rows above do not fit it", device.name);
    }
    if !json.json {
        print(format!("simulated on {}; without a limit {arena} bytes", device.name))?;
        print(format!(
            "{:>6} {:>14} {:>14} {:>12} {:>9} {:>9} {:>12} {:>10} {:>9}",
            "limit",
            "bytes",
            "arena",
            "step",
            "overhead",
            "at least",
            "swapped",
            "recomputed",
            "planned"
        ))?;
    }
    for percent in sweep.percentages() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let start = Instant::now();
        let limit = (arena as f64 * percent / 100.0) as u64;
        let outcome = frontier.under(limit).map_err(failed)?;
        let row = Row { percent, limit, outcome, seconds: start.elapsed().as_secs_f64() };
        if json.json { print(row.as_json()) } else { row.print() }?;
    }
    Ok(())
}

struct Row {
    percent: f64,
    limit: u64,
    outcome: LimitOutcome,
    /// Of planning.
    seconds: f64,
}

impl Row {
    fn print(&self) -> Result<(), Failure> {
        let Row { percent, limit, seconds, .. } = self;
        let rest = match &self.outcome {
            LimitOutcome::Kept(p) => format!(
                "{:>14} {:>9.3} ms {:>+7.1} % {:>9} {:>12} {:>10} {:>7.2} s",
                p.arena_bytes,
                p.step_seconds * 1e3,
                p.overhead() * 100.0,
                p.overhead_bound().map_or("–".into(), |b| format!("{:+.1} %", b * 100.0)),
                human_bytes(p.swapped_bytes),
                p.recomputed_nodes,
                seconds
            ),
            LimitOutcome::Impossible(Some(least)) => {
                format!("{:>14} {least} bytes are needed at least", "impossible")
            }
            LimitOutcome::Impossible(None) => format!("{:>14}", "impossible"),
        };
        print(format!("{:>6} {limit:>14} {rest}", format!("{percent} %")))
    }

    fn as_json(&self) -> serde_json::Value {
        let mut row = match &self.outcome {
            LimitOutcome::Kept(p) => {
                let Point { arena_bytes, step_seconds, unlimited_step_seconds, .. } = p;
                json!({
                    "arena_bytes": arena_bytes,
                    "predicted_step_seconds": step_seconds,
                    "unlimited_step_seconds": unlimited_step_seconds,
                    "overhead": p.overhead(),
                    "overhead_bound": p.overhead_bound(),
                    "swapped_bytes": p.swapped_bytes,
                    "recomputed_nodes": p.recomputed_nodes,
                })
            }
            LimitOutcome::Impossible(least) => {
                json!({"impossible": true, "minimum_device_bytes": least})
            }
        };
        row["limit_percent"] = self.percent.into();
        row["limit_bytes"] = self.limit.into();
        row["seconds"] = self.seconds.into();
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percentages(text: &str) -> Result<Vec<f64>, String> {
        Ok(text.parse::<Sweep>()?.percentages().collect())
    }

    #[test]
    fn ranges_with_and_without_a_step() {
        assert_eq!(percentages("100%..70%"), Ok(vec![100.0, 90.0, 80.0, 70.0]));
        assert_eq!(percentages("50..62.5:5"), Ok(vec![50.0, 55.0, 60.0]));
        assert_eq!(percentages("40%..40%"), Ok(vec![40.0]));
        assert_eq!(percentages("1%..0.7%:0.1%").map(|p| p.len()), Ok(4));
    }

    #[test]
    fn not_other_texts() {
        let wrong =
            ["", "100%", "100%..", "0%..30%", "110%..30%", "100%..30%:0%", "a..b", "nan..1"];
        for text in wrong {
            assert!(percentages(text).is_err_and(|e| e.contains("100%..30%")), "{text}");
        }
        assert!(percentages("100%..1%:0.001%").is_err_and(|e| e.contains("larger step")));
    }
}
