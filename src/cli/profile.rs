//! `arenic profile`

use super::device::read_device;
use super::run::{GpuCode, MAX_THREADS};
use super::{Failure, Json, Outcome, can_write, checked_target, failed, note_rounds, print};
use crate::artifact::{Artifact, Target};
use crate::data::AtomicFile;
use crate::gpu_code::{self, Trust};
use arenic_backends::CUDA;
use arenic_ir::cost::Device;
use arenic_ir::profile::Profile;
use arenic_passes::devices::NAMED;
use arenic_runtime::cuda::{self, Cuda};
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
    /// What to measure: cpu, a file that describes this machine's CPU, or a GPU as cuda:N
    #[arg(long, value_name = "D", default_value = NAMED[0].0)]
    device: String,
    /// The profile to write, for --profile of `compile` and `simulate`
    #[arg(short, long, value_name = "TABLE")]
    output: Option<PathBuf>,
    /// The target whose kernels are measured [default: the first, on a GPU `cuda`]
    #[arg(long)]
    target: Option<String>,
    /// The variant, where the artifact holds several [default: the first]
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Threads of kernels; 0 takes one per core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    #[command(flatten)]
    code: GpuCode,
    #[command(flatten)]
    json: Json,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    can_write(&a.output)?;
    if a.threads > MAX_THREADS {
        return Err(miette!("--threads {} is above {MAX_THREADS}", a.threads).into());
    }
    let device = measurable(&a.device)?;
    let artifact = Artifact::read(&a.artifact).map_err(failed)?;
    let gpu = gpu_number(&a.device);
    let backend = gpu.map(|_| CUDA.name);
    let (target, _) =
        checked_target(&artifact, a.target.as_deref().or(backend), a.variant.as_deref())?;
    note_rounds(target);
    let profile = match gpu {
        Some(number) => on_gpu(number, target, a.code.trust())?,
        None => profile(&target.graph, &device.name, a.threads).map_err(failed)?,
    };
    if let Some(path) = &a.output {
        let mut file = AtomicFile::create(path).map_err(failed)?;
        file.put(profile.to_string().as_bytes()).and_then(|()| file.commit()).map_err(failed)?;
    }
    if a.json.json {
        return print(profile.to_string().trim_end());
    }
    summary(target, &device, &profile)
}

/// The device, which must be one that this build has a backend for.
fn measurable(name: &str) -> Result<Device, Failure> {
    if NAMED[1..].iter().any(|(other, _)| *other == name) {
        let help = "give a GPU of this machine by its number, as `cuda:0`";
        return Err(miette!(help = help, "`{name}` describes a GPU, and is none to measure").into());
    }
    read_device(name)
}

/// The number in `cuda:N`; [`measurable`] has refused what is none.
fn gpu_number(name: &str) -> Option<u32> {
    name.strip_prefix("cuda:")?.parse().ok()
}

fn on_gpu(number: u32, target: &Target, trust: Trust) -> Result<Profile, Failure> {
    let (g, program) = (&target.graph, &target.program);
    let backend = program.target.backend;
    if backend != CUDA {
        return Err(miette!(
            help = "compile it with `--target cuda`",
            "the target `{}` is planned for the backend `{}`, and a GPU runs kernels of `cuda`",
            target.name,
            backend.name
        )
        .into());
    }
    let images = gpu_code::images(target.kernels.as_ref(), g, program, trust).map_err(failed)?;
    let driver = Cuda::new(number).map_err(failed)?;
    cuda::profile(g, program, &images, &driver).map_err(failed)
}

/// Where the time goes in a step that runs every node once.
fn summary(target: &Target, device: &Device, profile: &Profile) -> Outcome {
    let g = &target.graph;
    let device = device.with_math(target.program.target.math);
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
    let machine = &profile.machine;
    let rate = |rate: f64, what: &str| print(format!("{:>12.2} GB/s  {what}", rate / 1e9));
    rate(machine.to_host_bytes_per_second, "of a copy to host memory")?;
    rate(machine.to_device_bytes_per_second, "of a copy to device memory")?;
    rate(machine.both_bytes_per_second, "of each of two copies, one each way")
}
