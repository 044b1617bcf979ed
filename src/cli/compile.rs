//! `arenic compile`

use super::interrupt;
use super::pipeline::read_pipeline;
use super::search::SearchOptions;
use super::{Failure, Json, Outcome, failed, human_bytes, name_value, print};
use arenic::compile::compile;
use arenic::data::Npz;
use arenic::explain;
use arenic::onnx::ImportOptions;
use arenic_ir::TensorType;
use arenic_passes::pipeline::{NAMED, Pipeline, Report, RunOptions};
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
    let progress = a.search.listener();
    let search = a.search.with(interrupt::flag(), &progress);
    let compiled = compile(&a.model, &import, &pipeline, search, options).map_err(failed)?;
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
        object.insert("proved_optimal".into(), (peak == bound).into());
        object.insert("gap".into(), explain::relative_gap(peak, bound).into());
        object.insert("certificate".into(), explain::stored_to_json(target));
        object.insert("seconds".into(), seconds.into());
        return print(serde_json::Value::Object(object));
    }
    summary(&target.statistics, output, seconds);
    Ok(())
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
