//! A step on other numbers of ranks than it was compiled for.

use super::super::{Failure, Json, Outcome, human_bytes, print};
use crate::artifact::Target;
use arenic_ir::check::Footprint;
use arenic_ir::cost::Device;
use arenic_ir::op::{MAX_RANKS, part_type};
use arenic_passes::cluster::{self, Cluster};
use arenic_passes::simulate::{roofline, simulate_ranks};
use miette::miette;
use serde_json::json;
use std::path::Path;

/// What one rank of so many does in a step.
struct Prediction {
    ranks: usize,
    /// Seconds of the step.
    step: f64,
    /// Seconds in which it exchanges tensors.
    exchange: f64,
    /// Seconds by which the step is longer than without exchanges.
    exposed: f64,
    /// Bytes of its arena.
    bytes: u64,
}

pub(super) fn run(
    counts: &[usize],
    path: &Path,
    target: &Target,
    footprint: &Footprint,
    device: &Device,
    json: Json,
) -> Outcome {
    let text = std::fs::read_to_string(path)
        .map_err(|e| miette!("cannot read `{}`: {e}", path.display()))?;
    let cluster = cluster::parse(&text).map_err(|e| miette!("{}: {e}", path.display()))?;
    if target.graph.rank_count() == 1 {
        let help = "compile it with --ranks; 2 are enough, whatever numbers are simulated";
        return Err(miette!(
            help = help,
            "the artifact is for one process, which exchanges nothing"
        )
        .into());
    }
    if let Some(other) = counts.iter().find(|n| !(1..=MAX_RANKS).contains(*n)) {
        return Err(miette!("--ranks {other} is not between 1 and {MAX_RANKS}").into());
    }
    let all = counts.iter().map(|&ranks| predict(ranks, &cluster, target, footprint, device));
    let all = all.collect::<Result<Vec<_>, Failure>>()?;
    for p in &all {
        if json.json {
            print(json!({
                "ranks": p.ranks,
                "step_seconds": p.step,
                "exchange_seconds": p.exchange,
                "exposed_seconds": p.exposed,
                "efficiency": (p.step - p.exposed) / p.step,
                "bytes_per_rank": p.bytes,
            }))?;
        }
    }
    if json.json {
        return Ok(());
    }
    print(format!("simulated on {} in {}", device.name, cluster.name))?;
    print("   ranks     step ms  exchange ms  exposed ms  efficiency  bytes per rank")?;
    for p in all {
        let [step, exchange, exposed] = [p.step, p.exchange, p.exposed].map(|s| s * 1e3);
        let percent = (step - exposed) / step * 100.0;
        print(format!(
            "{:>8}{step:>12.3}{exchange:>13.3}{exposed:>12.3}{percent:>10.1} %{:>16}",
            p.ranks,
            human_bytes(p.bytes)
        ))?;
    }
    Ok(())
}

/// The step on so many ranks, each with the rows that it has: exchanges take other times, and parts have other sizes.
fn predict(
    ranks: usize,
    cluster: &Cluster,
    target: &Target,
    footprint: &Footprint,
    device: &Device,
) -> Result<Prediction, Failure> {
    let mut found = Prediction { ranks, step: 0.0, exchange: 0.0, exposed: 0.0, bytes: 0 };
    for turn in target.turns() {
        let (g, times) = (turn.graph, f64::from(turn.times));
        let kernel = roofline(g, device);
        let seconds = |n| cluster.node_seconds(g, n, ranks);
        let with = simulate_ranks(turn.program, device, &kernel, &seconds);
        let without = |n| seconds(n).map(|_| 0.0);
        let without = simulate_ranks(turn.program, device, &kernel, &without);
        found.step += times * with.seconds;
        found.exchange += times * with.exchange_seconds;
        found.exposed += times * (with.seconds - without.seconds);
    }
    // The parts of states are smaller or larger; all else is what it was.
    let g = &target.graph;
    let align = target.program.target.align;
    let mut bytes = footprint.arena_bytes.device;
    for state in g.states.values() {
        if let Some(whole) = &state.part_of {
            let rounded = |bytes: u64| bytes.next_multiple_of(align);
            bytes += rounded(part_type(whole, ranks).bytes());
            bytes = bytes.saturating_sub(rounded(g.ty(state.enter).bytes()));
        }
    }
    found.bytes = bytes;
    Ok(found)
}
