//! `arenic trace`

use super::interrupt;
use super::pipeline::read_pipeline;
use super::search::SearchOptions;
use super::{Failure, Json, Outcome, can_write, failed, human_bytes, print};
use crate::data::AtomicFile;
use crate::placement::Instance;
use crate::trace::{self, By, Iterations, Needs, Plan, Trace};
use arenic_passes::pipeline::{NAMED, Pipeline};
use arenic_passes::place::{MAX_ALIGNMENT, Wish};
use clap::Args;
use miette::miette;
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `arenic trace`.
#[derive(Debug, Args)]
#[command(after_help = "Events are counted from 0. PyTorch: call torch.cuda.memory.\
                        _record_memory_history(max_entries=1000000), run some steps, then \
                        json.dump(torch.cuda.memory._snapshot(), open('snapshot.json', 'w')).")]
pub(super) struct Arguments {
    /// The recorded allocations: a CSV file with the columns event (malloc, free, read,
    /// write), block, size (bytes, of a malloc), and if need be address and reserved; or a
    /// memory snapshot of PyTorch as JSON
    trace: PathBuf,
    /// Take the history of this device, not of the one with the most events
    #[arg(long, value_name = "N")]
    device: Option<usize>,
    /// Look for the iteration from this event on
    #[arg(long, value_name = "EVENT", default_value_t = 0, conflicts_with = "whole")]
    from: usize,
    /// Look for the iteration before this event
    #[arg(long, value_name = "EVENT", default_value_t = usize::MAX, hide_default_value = true,
          conflicts_with = "whole")]
    to: usize,
    /// Look for no iteration; plan the whole trace as one
    #[arg(long)]
    whole: bool,
    /// Every offset is a multiple of this, and sizes count rounded up to it; 512 for a
    /// snapshot and 1 for CSV, unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_ALIGNMENT))]
    alignment: Option<u64>,
    /// A pipeline file, or the name of a pipeline, whose last pass that places is taken
    #[arg(long, value_name = "P.yaml", default_value = NAMED[0].0)]
    pipeline: String,
    #[command(flatten)]
    search: SearchOptions,
    /// Write the pool's blocks with their offsets; lifetimes are in events of the iteration
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
    let trace = trace::read(&a.trace, a.device).map_err(failed)?;
    let bad = |e: &dyn std::fmt::Display| Failure::from(miette!("{}: {e}", a.trace.display()));
    let alignment = a.alignment.unwrap_or(trace.alignment);
    let (iterations, needs) = if a.whole {
        (None, Needs::of_all(&trace, alignment))
    } else {
        let found = Iterations::find(&trace, a.from..a.to).map_err(|e| bad(&e))?;
        let needs = Needs::of_iteration(&trace, &found, alignment);
        (Some(found), needs)
    };
    let progress = a.search.listener();
    let search = a.search.with(interrupt::flag(), &progress);
    let wish = Wish { search, ..Wish::default() };
    let plan = needs.plan(|problem| placer.place(problem, &wish)).map_err(|e| bad(&e))?;
    let report = Report::new(&trace, iterations.as_ref(), &needs, &plan, alignment);
    if let Some(path) = &a.output {
        write(path, &needs, plan)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    if a.json.json {
        return print(report.json(seconds));
    }
    report.print(seconds);
    Ok(())
}

fn write(path: &Path, needs: &Needs, plan: Plan) -> Outcome {
    let mut file = AtomicFile::create(path).map_err(failed)?;
    let ids = needs.slots.iter().map(|s| s.id.clone());
    Instance::new(plan.problem, ids)
        .write(&mut file, &plan.solution.offsets)
        .map_err(|e| Failure::from(miette!("cannot write {}: {e}", path.display())))?;
    file.commit().map_err(failed)
}

/// What is said; all figures in bytes.
struct Report<'a> {
    trace: &'a Trace,
    iterations: Option<&'a Iterations>,
    needs: &'a Needs,
    /// Of the whole iterations, and of the whole trace.
    recorded: [Recorded; 2],
    /// The most that is alive at once under the plan: no pool is smaller.
    live: u64,
    planned: u64,
    optimal: bool,
    method: &'static str,
    notes: Vec<String>,
}

/// What the recorded allocator needed.
struct Recorded {
    live: u64,
    reserved: Option<u64>,
    span: Option<u64>,
}

impl Recorded {
    /// What it had from the device; at least the span of addresses, where that is all that
    /// is known.
    fn bytes(&self) -> Option<u64> {
        self.reserved.or(self.span)
    }
}

fn fragmentation(bytes: u64, live: u64) -> f64 {
    bytes as f64 / live.max(1) as f64 - 1.0
}

impl<'a> Report<'a> {
    fn new(
        trace: &'a Trace,
        iterations: Option<&'a Iterations>,
        needs: &'a Needs,
        plan: &Plan,
        alignment: u64,
    ) -> Report<'a> {
        let live = trace.live(alignment);
        let recorded = |events: Range<usize>| Recorded {
            live: live[events.clone()].iter().copied().max().unwrap_or(0),
            reserved: trace.peak_reserved(events.clone()),
            span: trace.span(events),
        };
        let all = 0..trace.events.len();
        let steady = iterations.map_or(all.clone(), Iterations::events);
        let mut notes = trace.notes.clone();
        for r in iterations.map_or(&[][..], |i| &i.others) {
            notes.push(format!(
                "another stretch repeats, {} times {} events from event {} on; {} plans it",
                r.count,
                r.events,
                r.first,
                r.options()
            ));
        }
        if needs.leaked > 0 {
            notes.push(format!(
                "every iteration leaves {} allocated; they are planned for the iterations that \
                 were recorded, and more would need more",
                human_bytes(needs.leaked)
            ));
        }
        let s = &plan.solution;
        Report {
            trace,
            iterations,
            needs,
            recorded: [recorded(steady), recorded(all)],
            live: plan.bound + needs.unplanned,
            planned: s.height + needs.unplanned,
            optimal: s.height == plan.bound || s.optimal,
            method: s.method,
            notes,
        }
    }

    /// What the plan saves of the recorded bytes, and as a part of them.
    fn saved(&self) -> Option<(i128, f64)> {
        let recorded = self.recorded[0].bytes()?;
        let saved = i128::from(recorded) - i128::from(self.planned);
        Some((saved, saved as f64 / recorded.max(1) as f64))
    }

    fn json(&self, seconds: f64) -> Value {
        let iterations = self.iterations.map(|i| {
            let by = match i.by {
                By::Events => "events",
                By::Mallocs { .. } => "mallocs",
            };
            let least = match i.by {
                By::Events => 0,
                By::Mallocs { least } => least,
            };
            let other = |r: &trace::Repetition| {
                json!({ "count": r.count, "first_event": r.first, "events": r.events })
            };
            json!({
                "count": i.at.count,
                "first_event": i.at.first,
                "events": i.at.events,
                "mallocs": i.mallocs(),
                "equal_in": by,
                "least_bytes": least,
                "covers": i.covers,
                "others": i.others.iter().map(other).collect::<Vec<_>>(),
            })
        });
        let recorded = |r: &Recorded| {
            json!({
                "live_bytes": r.live,
                "reserved_bytes": r.reserved,
                "address_span_bytes": r.span,
                "fragmentation": r.bytes().map(|bytes| fragmentation(bytes, r.live)),
            })
        };
        json!({
            "events": self.trace.events.len(),
            "blocks": self.trace.blocks.len(),
            "iterations": iterations,
            "persistent_bytes": self.needs.persistent,
            "leaked_bytes": self.needs.leaked,
            "live_peak_bytes": self.live,
            "recorded": recorded(&self.recorded[0]),
            "recorded_whole": recorded(&self.recorded[1]),
            "planned_bytes": self.planned,
            "unplanned_bytes": self.needs.unplanned,
            "fragmentation": fragmentation(self.planned, self.live),
            "proved_optimal": self.optimal,
            "method": self.method,
            "saved_bytes": self.saved().map(|(bytes, _)| bytes as i64),
            "saved": self.saved().map(|(_, part)| part),
            "notes": self.notes,
            "seconds": seconds,
        })
    }

    fn print(&self, seconds: f64) {
        let (events, blocks) = (self.trace.events.len(), self.trace.blocks.len());
        tell!("{events} events of {blocks} blocks");
        if let Some(i) = self.iterations {
            let equal = match i.by {
                By::Events => "equal in all events".to_owned(),
                By::Mallocs { least: 0 } => "equal in all mallocs".to_owned(),
                By::Mallocs { least } => {
                    format!("equal in mallocs of at least {}", human_bytes(least))
                }
            };
            tell!(
                "{} iterations of {} events ({} mallocs) from event {} on,\n\
                 {equal}; {:.1} % of what was looked at",
                i.at.count,
                i.at.events,
                i.mallocs(),
                i.at.first,
                100.0 * i.covers
            );
        }
        let figure = |name: &str, bytes: u64, about: String| {
            tell!("{name:<14} {:>12}{about}", human_bytes(bytes));
        };
        figure("persistent", self.needs.persistent, String::new());
        figure("live peak", self.live, "  no pool is smaller".to_owned());
        let [steady, whole] = &self.recorded;
        for (name, recorded) in [("recorded", steady), ("  whole trace", whole)] {
            let Some(bytes) = recorded.bytes() else { continue };
            let what = if recorded.reserved.is_some() { "reserved" } else { "span of addresses" };
            let part = 100.0 * fragmentation(bytes, recorded.live);
            figure(name, bytes, format!("  {what}, {part:.2} % fragmentation"));
        }
        let part = 100.0 * fragmentation(self.planned, self.live);
        let proved = if self.optimal { ", proved optimal" } else { "" };
        let about = format!("  by {}, {part:.2} % fragmentation{proved}", self.method);
        figure("planned", self.planned, about);
        if self.needs.unplanned > 0 {
            let about = "  of this; they differ, and are left to an ordinary allocator";
            figure("  small blocks", self.needs.unplanned, about.to_owned());
        }
        match self.saved() {
            Some((saved, part)) if saved >= 0 => {
                let about = format!("  {:.2} % of the recorded, in {seconds:.2} s", 100.0 * part);
                figure("saved", saved as u64, about);
            }
            Some((more, _)) => {
                figure("lost", more.unsigned_abs() as u64, "  more than recorded".to_owned());
            }
            None => tell!(
                "what the recorded allocator needed is not known; CSV tells it by a column \
                 `reserved` or `address`"
            ),
        }
        for note in &self.notes {
            tell!("note: {note}");
        }
    }
}
