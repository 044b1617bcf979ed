//! `arenic compile`

use super::device::{note_unmeasured, read_profiled};
use super::interrupt;
use super::pipeline::read_pipeline;
use super::search::SearchOptions;
use super::size::parse_size;
use super::{Failure, Json, Outcome, failed, human_bytes, name_value, print};
use arenic::artifact::Target;
use arenic::compile::{CompileError, Constraints, compile, predicted_seconds};
use arenic::data::Npz;
use arenic::explain;
use arenic::onnx::ImportOptions;
use arenic_ir::TensorType;
use arenic_ir::cost::Device;
use arenic_ir::program::PerSpace;
use arenic_passes::pipeline::{NAMED, Pipeline, Report, RunError, RunOptions};
use arenic_passes::{PassError, devices};
use clap::Args;
use miette::miette;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `arenic compile`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The model
    model: PathBuf,
    /// The artifact to write
    #[arg(short, long, value_name = "OUT.arenic", required_unless_present = "stop_after")]
    output: Option<PathBuf>,
    /// A pipeline file, or the name of a pipeline (see `arenic pipeline list`)
    #[arg(long, value_name = "P.yaml", default_value = NAMED[0].0)]
    pipeline: String,
    /// Size of a symbolic dimension
    #[arg(long = "dim", value_name = "NAME=N", value_parser = dimension)]
    dims: Vec<(String, u64)>,
    /// Carry output Y into input X from step to step
    #[arg(long = "state", value_name = "X=Y", value_parser = name_value)]
    states: Vec<(String, String)>,
    /// Make an input a constant: the array of its name in an .npz file
    #[arg(long = "bind", value_name = "NAME=FILE", value_parser = name_value)]
    bind: Vec<(String, String)>,
    /// Bytes that the arena may have, for example 4GiB; swaps and recomputes to keep it
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    device_memory: Option<u64>,
    /// Bytes that swapped tensors may take in host memory [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    host_memory: Option<u64>,
    /// A device file, or one of cpu, gtx1080ti, titanx, p100, a100, h100, h200, rtx4090: times are
    /// for it, and without --device-memory its memory is the limit
    #[arg(long, value_name = "D")]
    device: Option<String>,
    /// Times of kernels that `arenic profile` measured on the device
    #[arg(long, value_name = "TABLE")]
    profile: Option<PathBuf>,
    /// Plan without tensor data: missing external files are fine, the artifact cannot be run
    #[arg(long)]
    plan_only: bool,
    /// Print the module to stderr after this pass (`all`: after each)
    #[arg(long, value_name = "PASS")]
    dump_ir_after: Vec<String>,
    /// Stop after this pass, print the module to stdout and write no artifact
    #[arg(long, value_name = "PASS")]
    stop_after: Option<String>,
    /// Print what each pass counted and how long it took to stderr
    #[arg(long)]
    print_stats: bool,
    #[command(flatten)]
    search: SearchOptions,
    #[command(flatten)]
    json: Json,
}

fn dimension(text: &str) -> Result<(String, u64), String> {
    let (name, value) = name_value(text)?;
    match value.parse() {
        Ok(n) if n > 0 => Ok((name, n)),
        _ => Err(format!("`{value}` is no positive number")),
    }
}

pub(super) fn run(a: &Arguments) -> Outcome {
    let start = Instant::now();
    let pipeline = read_pipeline(&a.pipeline, Pipeline::from_yaml)?;
    let passes: Vec<&str> = pipeline.names().collect();
    for name in a.stop_after.iter().chain(a.dump_ir_after.iter().filter(|n| *n != "all")) {
        if !passes.contains(&name.as_str()) {
            let known = passes.join(", ");
            return Err(miette!("the pipeline has no pass `{name}`; it has {known}").into());
        }
    }
    let import = ImportOptions {
        dims: dims(&a.dims)?,
        states: a.states.clone(),
        plan_only: a.plan_only,
        bind: bound(&a.bind)?,
    };
    let mut after_pass = |report: &Report| {
        let wanted = |n: &String| n == "all" || n == report.pass;
        if a.dump_ir_after.iter().any(wanted) {
            eprintln!("# after {}\n{}", report.pass, report.module);
        }
        if a.print_stats {
            let stats: Vec<String> =
                report.stats.iter().map(|(name, n)| format!("{name}={n}")).collect();
            let ms = report.elapsed.as_secs_f64() * 1e3;
            eprintln!("{:<18} {ms:>9.2} ms  {}", report.pass, stats.join(" "));
        }
    };
    let options =
        RunOptions { stop_after: a.stop_after.as_deref(), after_pass: Some(&mut after_pass) };
    let device = match (a.device.as_deref(), a.profile.as_deref()) {
        (None, None) => None,
        (name, profile) => Some(read_profiled(name.unwrap_or(devices::NAMED[0].0), profile)?),
    };
    let limits = PerSpace { device: device_limit(a, device.as_ref())?, host: a.host_memory };
    let constraints = Constraints { device: device.as_ref(), limits };
    let progress = a.search.listener();
    let search = a.search.with(interrupt::flag(), &progress);
    let compiled = compile(&a.model, &import, &pipeline, constraints, search, options);
    let compiled = compiled.map_err(|e| refused(a, e))?;
    if let (Some(device), true) = (&device, a.profile.is_some()) {
        note_unmeasured(device, &compiled.module.graph);
    }
    for name in &compiled.unused {
        eprintln!("note: initializer `{name}` is not used");
    }
    if a.stop_after.is_some() {
        return print(&compiled.module);
    }
    let (Some(artifact), Some(output)) = (&compiled.artifact, &a.output) else {
        return Err(miette!(
            help = "end it with `lower` and `sync`",
            "the pipeline `{}` makes no program",
            a.pipeline
        )
        .into());
    };
    artifact.write(output).map_err(failed)?;
    let seconds = start.elapsed().as_secs_f64();
    let Some(target) = artifact.targets.first() else { return Ok(()) };
    if a.json.json {
        let mut object = serde_json::Map::new();
        object.insert("target".into(), target.name.as_str().into());
        let figures = target.statistics.iter();
        object.extend(figures.map(|(name, figure)| (name.clone(), (*figure).into())));
        let figure = |name: &str| target.statistics.get(name).copied().unwrap_or(0);
        let (peak, bound) = (figure("live_peak_bytes"), figure("lower_bound_bytes"));
        let (step, unlimited) = predicted(target, device.as_ref())?;
        object.insert("predicted_step_seconds".into(), step.into());
        object.insert("unlimited_step_seconds".into(), unlimited.into());
        if let Some((minimum, bound)) = compiled.minimum {
            object.insert("minimum_device_bytes".into(), minimum.into());
            object.insert("minimum_device_bytes_bound".into(), bound.into());
        }
        object.insert("proved_optimal".into(), (peak == bound).into());
        object.insert("gap".into(), explain::relative_gap(peak, bound).into());
        object.insert("certificate".into(), explain::stored_to_json(target));
        object.insert("seconds".into(), seconds.into());
        return print(serde_json::Value::Object(object));
    }
    summary(&target.statistics, output, seconds);
    if let Some(device) = &device {
        let (step, unlimited) = predicted(target, Some(device))?;
        let percent = (step / unlimited - 1.0) * 100.0;
        eprintln!("simulated on {}: {:.3} ms a step ({percent:+.1} %)", device.name, step * 1e3);
    }
    Ok(())
}

/// The limit that was given, or else the memory of the device that was.
fn device_limit(a: &Arguments, device: Option<&Device>) -> Result<Option<u64>, Failure> {
    let usable = device.filter(|_| a.device.is_some()).map(Device::usable_bytes);
    match (a.device_memory, usable) {
        (Some(limit), Some(usable)) if limit > usable => {
            let device = device.map_or("", |d| d.name.as_str());
            let help = format!("{device} has {usable} bytes for a plan");
            Err(miette!(help = help, "--device-memory {limit} is more than the device has").into())
        }
        (limit, usable) => Ok(limit.or(usable)),
    }
}

/// Seconds of a step on the device, and of every kernel once.
fn predicted(target: &Target, device: Option<&Device>) -> Result<(f64, f64), Failure> {
    let device = match device {
        Some(device) => device.clone(),
        None => devices::cpu().map_err(failed)?,
    };
    Ok(predicted_seconds(&target.graph, &target.program, &device))
}

/// A limit that cannot be kept comes with the least one that can, for scripts too.
fn refused(a: &Arguments, e: CompileError) -> Failure {
    if let CompileError::Run(RunError::Pass { error, .. }) = &e
        && let PassError::DeviceMemory { minimum, bound, .. } = error
        && a.json.json
    {
        let found = serde_json::json!({
            "minimum_device_bytes": minimum, "minimum_device_bytes_bound": bound,
        });
        if let Err(failure) = print(found) {
            return failure;
        }
    }
    failed(e)
}

fn summary(figures: &BTreeMap<String, u64>, output: &Path, seconds: f64) {
    let figure = |name: &str| figures.get(name).copied().unwrap_or(0);
    let rows = [
        ("arena", "arena_bytes"),
        ("live peak", "live_peak_bytes"),
        ("lower bound", "lower_bound_bytes"),
        ("definition order", "definition_order_bytes"),
        ("states", "state_bytes"),
        ("constants", "constant_bytes"),
    ];
    for (label, name) in rows {
        eprintln!("{label:<17} {:>12}", human_bytes(figure(name)));
    }
    eprintln!("{} operators, checked, in {seconds:.2} s: {}", figure("nodes"), output.display());
}

fn dims(given: &[(String, u64)]) -> Result<BTreeMap<String, u64>, Failure> {
    let mut dims = BTreeMap::new();
    for (name, n) in given {
        if dims.insert(name.clone(), *n).is_some() {
            return Err(miette!("--dim {name} is given twice").into());
        }
    }
    Ok(dims)
}

fn bound(given: &[(String, String)]) -> Result<BTreeMap<String, (TensorType, Vec<u8>)>, Failure> {
    let mut bind = BTreeMap::new();
    for (name, path) in given {
        let npz = Npz::open(path).map_err(failed)?;
        let Some(array) = npz.array(name) else {
            return Err(miette!("--bind: `{path}` holds no array `{name}`").into());
        };
        bind.insert(name.clone(), (array.ty().clone(), array.bytes().to_vec()));
    }
    Ok(bind)
}
