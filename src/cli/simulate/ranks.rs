//! A step on other numbers of ranks than it was compiled for.

use super::super::device::unmeasured;
use super::super::named::{Named, read_named};
use super::super::{Failure, Outcome, checked_target, failed, human_bytes, print};
use super::Arguments;
use crate::artifact::{Artifact, Target};
use arenic_ir::check::Footprint;
use arenic_ir::cost::Device;
use arenic_ir::op::{MAX_RANKS, part_type};
use arenic_passes::cluster::{self, Cluster};
use arenic_passes::shard::Level;
use arenic_passes::simulate::{roofline, simulate_ranks};
use miette::miette;
use serde_json::json;

/// Clusters by name.
const CLUSTERS: Named<'static> = Named { kind: "cluster", known: cluster::NAMED };

/// What one rank of so many does in a step.
struct Prediction {
    /// What each rank has a part of alone.
    level: Level,
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

/// Every artifact on every number of ranks.
pub(super) fn run(a: &Arguments, cluster: &str, device: &Device) -> Outcome {
    let cluster = read_named(&CLUSTERS, cluster, cluster::parse)?;
    if let Some(other) = a.ranks.iter().find(|n| !(1..=MAX_RANKS).contains(*n)) {
        return Err(miette!("--ranks {other} is not between 1 and {MAX_RANKS}").into());
    }
    let mut all = Vec::new();
    for path in &a.artifacts {
        let artifact = Artifact::read(path).map_err(failed)?;
        let (target, footprint) =
            checked_target(&artifact, a.target.as_deref(), a.variant.as_deref())?;
        if target.graph.rank_count() == 1 {
            let help = "compile it with --ranks; 2 are enough, whatever numbers are simulated";
            let path = path.display();
            return Err(miette!(
                help = help,
                "`{path}` is for one process, which exchanges nothing"
            )
            .into());
        }
        if a.profile.is_some() {
            unmeasured(device, &target.graph).iter().for_each(|line| tell!("{line}"));
        }
        let device = device.with_math(target.program.target.math);
        for &ranks in &a.ranks {
            all.push(predict(ranks, &cluster, target, &footprint, &device)?);
        }
    }
    if a.json.json {
        let line = |p: &Prediction| {
            print(json!({
                "shard": p.level.name(),
                "ranks": p.ranks,
                "step_seconds": p.step,
                "exchange_seconds": p.exchange,
                "exposed_seconds": p.exposed,
                "efficiency": (p.step - p.exposed) / p.step,
                "bytes_per_rank": p.bytes,
            }))
        };
        return all.iter().try_for_each(line);
    }
    print(format!("simulated on {} in {}", device.name, cluster.name))?;
    print(format!(
        "{:<10}{:>7}{:>12}{:>13}{:>12}{:>12}{:>16}",
        "shard", "ranks", "step ms", "exchange ms", "exposed ms", "efficiency", "bytes per rank"
    ))?;
    for p in all {
        let [step, exchange, exposed] = [p.step, p.exchange, p.exposed].map(|s| s * 1e3);
        let percent = (step - exposed) / step * 100.0;
        print(format!(
            "{:<10}{:>7}{step:>12.3}{exchange:>13.3}{exposed:>12.3}{percent:>10.1} %{:>16}",
            p.level.name(),
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
    let level = Level::of(&target.graph);
    let mut found = Prediction { level, ranks, step: 0.0, exchange: 0.0, exposed: 0.0, bytes: 0 };
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
