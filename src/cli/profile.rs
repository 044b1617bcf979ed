//! `arenic profile`

use super::device::read_device;
use super::run::MAX_THREADS;
use super::{Failure, Json, Outcome, checked_target, failed, print};
use arenic::artifact::{Artifact, Target};
use arenic::data::AtomicFile;
use arenic_ir::cost::Device;
use arenic_ir::profile::Profile;
use arenic_passes::devices::NAMED;
use arenic_runtime::profile::profile;
use clap::Args;
use miette::miette;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Arguments of `arenic profile`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The artifact
    artifact: PathBuf,
    /// What to measure: cpu, or a file that describes this machine's CPU
    #[arg(long, value_name = "D", default_value = NAMED[0].0)]
    device: String,
    /// Where the times go, for --profile of `compile` and `simulate`
    #[arg(short, long, value_name = "TABLE")]
    output: Option<PathBuf>,
    /// The target whose kernels are measured [default: the first]
    #[arg(long)]
    target: Option<String>,
    /// Threads of kernels; 0 takes one per core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    #[command(flatten)]
    json: Json,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    if a.threads > MAX_THREADS {
        return Err(miette!("--threads {} is above {MAX_THREADS}", a.threads).into());
    }
    let device = measurable(&a.device)?;
    let artifact = Artifact::read(&a.artifact).map_err(failed)?;
    let (target, _) = checked_target(&artifact, a.target.as_deref())?;
    let profile = profile(&target.graph, &device.name, a.threads).map_err(failed)?;
    if let Some(path) = &a.output {
        let mut file = AtomicFile::create(path).map_err(failed)?;
        file.put(profile.to_string().as_bytes()).and_then(|()| file.commit()).map_err(failed)?;
    }
    if a.json.json {
        return print(profile.to_string().trim_end());
    }
    summary(target, device, &profile)
}

/// The device, which must be one that this build has a backend for.
fn measurable(name: &str) -> Result<Device, Failure> {
    if name.starts_with("cuda:") {
        return Err(miette!(
            "`{name}`: this build has no CUDA backend, so it can measure the CPU alone"
        )
        .into());
    }
    if NAMED[1..].iter().any(|(other, _)| *other == name) {
        let help = "give `cpu`, or a file that describes this machine's CPU";
        return Err(miette!(
            help = help,
            "`{name}` describes a GPU; this build can measure the CPU alone"
        )
        .into());
    }
    read_device(name)
}

/// Where the time goes in a step that runs every node once.
fn summary(target: &Target, device: Device, profile: &Profile) -> Outcome {
    let g = &target.graph;
    let total =
        |device: &Device| g.nodes.keys().filter_map(|n| device.node_seconds(g, n).ok()).sum();
    let estimate: f64 = total(&device);
    let device = device.with_profile(profile).map_err(failed)?;
    let mut by_operator: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for (n, node) in &g.nodes {
        let (seconds, count) = by_operator.entry(node.op.name()).or_default();
        *seconds += device.node_seconds(g, n).unwrap_or(0.0);
        *count += 1;
    }
    let mut rows: Vec<_> = by_operator.into_iter().collect();
    rows.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let row = |seconds: f64, what: &str| print(format!("{:>12.4} ms  {what}", seconds * 1e3));
    let threads = profile.machine.threads;
    row(total(&device), &format!("every operator once on {}, threads: {threads}", device.name))?;
    for (operator, (seconds, count)) in rows {
        row(seconds, &format!("  {count:>5} x {operator}"))?;
    }
    row(estimate, "by the roofline")?;
    let rate = profile.machine.to_host_bytes_per_second / 1e9;
    print(format!("{rate:>12.2} GB/s  of a copy to host memory"))
}
