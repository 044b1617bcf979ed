//! `arenic simulate`

mod ranks;

use super::device::{read_profiled, unmeasured};
use super::named::help;
use super::{Json, Outcome, can_write, checked_target, failed, human_bytes, note_rounds, print};
use crate::artifact::{Artifact, Target};
use crate::data::AtomicFile;
use arenic_ir::backend::Unit;
use arenic_ir::check::Footprint;
use arenic_ir::cost::Device;
use arenic_ir::program::Space;
use arenic_passes::cluster;
use arenic_passes::devices::NAMED;
use arenic_passes::simulate::{
    Counts, Simulation, Traffic, chrome_trace, live_over_time, roofline, simulate_step,
};
use clap::Args;
use miette::miette;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments of `arenic simulate`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The artifact; with --ranks also several, of one step at several levels of sharding
    #[arg(required = true, value_name = "ARTIFACT")]
    artifacts: Vec<PathBuf>,
    #[arg(
        long,
        value_name = "D",
        default_value = NAMED[0].0,
        help = help("A device file, cuda:N, or one of {names}", NAMED)
    )]
    device: String,
    /// Times of kernels that `arenic profile` measured on the device
    #[arg(long, value_name = "TABLE")]
    profile: Option<PathBuf>,
    /// The target to simulate [default: the first]
    #[arg(long)]
    target: Option<String>,
    /// The variant, where the artifact holds several [default: the first]
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Instead of the step alone: how it would run on so many ranks, of artifacts that are compiled for ranks
    #[arg(long, value_name = "N,...", value_delimiter = ',', requires = "cluster")]
    ranks: Vec<usize>,
    #[arg(
        long,
        value_name = "C",
        requires = "ranks",
        help = help(
            "The cluster: a file with the ranks of a node, and latency and rate of the links within and between \
             nodes, or one of {names}",
            cluster::NAMED,
        )
    )]
    cluster: Option<String>,
    /// Write the step in the trace event format of Chrome and Perfetto
    #[arg(long, value_name = "TRACE.json", conflicts_with = "ranks")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    can_write(&a.trace)?;
    let device = read_profiled(&a.device, a.profile.as_deref())?;
    if let Some(cluster) = &a.cluster {
        return ranks::run(a, cluster, &device);
    }
    let [path] = &a.artifacts[..] else {
        let help = "give --ranks and --cluster for the step on so many ranks of each";
        return Err(miette!(help = help, "one artifact is simulated at a time").into());
    };
    let artifact = Artifact::read(path).map_err(failed)?;
    let (target, footprint) = checked_target(&artifact, a.target.as_deref(), a.variant.as_deref())?;
    if a.profile.is_some() {
        unmeasured(&device, &target.graph).iter().for_each(|line| tell!("{line}"));
    }
    let device = device.with_math(target.program.target.math);
    let Simulated { main, step, unlimited } = Simulated::of(target, &device);
    if let Some(path) = &a.trace {
        note_rounds(target);
        let times = format!("simulated on {}", device.name);
        let trace = chrome_trace(&target.graph, &target.program, &main.commands, &times);
        let trace = trace.to_string();
        let mut file = AtomicFile::create(path).map_err(failed)?;
        file.put(trace.as_bytes()).and_then(|()| file.commit()).map_err(failed)?;
    }
    if a.json.json {
        let simulated = Simulated { main, step, unlimited };
        return print(as_json(target, &footprint, &device, &simulated));
    }
    let rounds =
        target.rounds.as_ref().map_or(String::new(), |r| format!(" of {} rounds", r.count));
    print(format!("simulated on {}, one step{rounds} in the steady state", device.name))?;
    let row = |label: &str, text: String| print(format!("{label:<24}{text:>14}"));
    let ms = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
    let percent = (step.seconds / unlimited - 1.0) * 100.0;
    row("step", format!("{}  ({percent:+.1} %)", ms(step.seconds)))?;
    row("  every kernel once", ms(unlimited))?;
    row("  repeated kernels", ms((step.kernel_seconds - unlimited).max(0.0)))?;
    row("  waits for copies in", ms(step.stalls.copies_in))?;
    row("  waits for copies out", ms(step.stalls.copies_out))?;
    if step.exchange_seconds > 0.0 {
        row("  waits for exchanges", ms(step.stalls.exchanges))?;
    }
    row("  joins copies at the end", ms(step.stalls.boundary))?;
    let counts = counted(target);
    row("operators", counts.operators.to_string())?;
    row("  read and write", human_bytes(counts.moved_bytes))?;
    for (unit, name) in UNITS {
        row(&format!("  products by {name}"), tera(counts.products_by(unit)))?;
    }
    row("  other arithmetic", tera(counts.other_flops))?;
    let traffic = |t: Traffic| format!("{} in {}", human_bytes(t.bytes), ms(t.seconds));
    row("copied to the host", traffic(step.to_host))?;
    row("copied to the device", traffic(step.to_device))?;
    let arena = target.arena_bytes();
    row("arena", human_bytes(arena.device))?;
    let of_round = if target.rounds.is_some() { " in a round" } else { "" };
    let live = human_bytes(footprint.live_peak_bytes.device);
    row(&format!("  live{of_round}, by position"), live)?;
    let live = human_bytes(peak_over_time(target, &footprint, &main));
    row(&format!("  live{of_round}, over time"), live)?;
    row("host arena", human_bytes(arena.host))
}

/// Who does products, and what they are called.
const UNITS: [(Unit, &str); 3] =
    [(Unit::Library, "libraries"), (Unit::TensorCores, "tensor cores"), (Unit::Lanes, "lanes")];

/// Operations, readable.
fn tera(flops: u64) -> String {
    format!("{:.3} TFLOP", flops as f64 * 1e-12)
}

/// What the whole step comes to.
fn counted(target: &Target) -> Counts {
    let mut counts = Counts::default();
    for turn in target.turns() {
        counts.add_times(&Counts::of(turn.graph, turn.program), turn.times.into());
    }
    counts
}

/// A step, simulated.
struct Simulated {
    /// The target's own program: the step's, or that of a round.
    main: Simulation,
    /// The whole step, without when its commands run.
    step: Simulation,
    /// Seconds of every kernel of the step once.
    unlimited: f64,
}

impl Simulated {
    fn of(target: &Target, device: &Device) -> Simulated {
        let mut all = Simulated { main: <_>::default(), step: <_>::default(), unlimited: 0.0 };
        for turn in target.turns() {
            let kernel = roofline(turn.graph, device);
            let of_turn = simulate_step(turn.graph, turn.program, device);
            let (step, times) = (&mut all.step, f64::from(turn.times));
            step.seconds += times * of_turn.seconds;
            step.kernel_seconds += times * of_turn.kernel_seconds;
            step.stalls.copies_in += times * of_turn.stalls.copies_in;
            step.stalls.copies_out += times * of_turn.stalls.copies_out;
            step.stalls.exchanges += times * of_turn.stalls.exchanges;
            step.exchange_seconds += times * of_turn.exchange_seconds;
            step.stalls.boundary += times * of_turn.stalls.boundary;
            let add = |to: &mut Traffic, more: Traffic| {
                to.bytes = to.bytes.saturating_add(more.bytes.saturating_mul(turn.times.into()));
                to.seconds += times * more.seconds;
            };
            add(&mut step.to_host, of_turn.to_host);
            add(&mut step.to_device, of_turn.to_device);
            all.unlimited += times * turn.graph.nodes.keys().map(&kernel).sum::<f64>();
            if std::ptr::eq(turn.program, &raw const target.program) {
                all.main = of_turn;
            }
        }
        all
    }
}

/// The largest sum of live bytes on the device at one time.
fn peak_over_time(target: &Target, footprint: &Footprint, step: &Simulation) -> u64 {
    let live = live_over_time(footprint, target.program.target.align, step, Space::Device);
    live.into_iter().map(|(_, bytes)| bytes).max().unwrap_or(0)
}

fn as_json(
    target: &Target,
    footprint: &Footprint,
    device: &Device,
    Simulated { main, step, unlimited }: &Simulated,
) -> Value {
    let traffic = |t: Traffic| json!({"bytes": t.bytes, "seconds": t.seconds});
    let counts = counted(target);
    json!({
        "counts": {
            "operators": counts.operators,
            "moved_bytes": counts.moved_bytes,
            "product_flops": {
                "library": counts.products_by(Unit::Library),
                "tensor_cores": counts.products_by(Unit::TensorCores),
                "lanes": counts.products_by(Unit::Lanes),
            },
            "other_flops": counts.other_flops,
            "largest_product_flops_by_lanes": counts.largest_by_lanes,
        },
        "device": device.name,
        "step_seconds": step.seconds,
        "unlimited_step_seconds": unlimited,
        "overhead": step.seconds / unlimited - 1.0,
        "kernel_seconds": step.kernel_seconds,
        "repeated_seconds": (step.kernel_seconds - unlimited).max(0.0),
        "stall_seconds": {
            "copies_in": step.stalls.copies_in,
            "copies_out": step.stalls.copies_out,
            "exchanges": step.stalls.exchanges,
            "boundary": step.stalls.boundary,
        },
        "link": {"to_host": traffic(step.to_host), "to_device": traffic(step.to_device)},
        "arena_bytes": target.arena_bytes().device,
        "host_arena_bytes": target.arena_bytes().host,
        "live_peak_bytes": footprint.live_peak_bytes.device,
        "live_peak_over_time_bytes": peak_over_time(target, footprint, main),
    })
}
