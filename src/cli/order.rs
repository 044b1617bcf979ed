//! `arenic order`

use super::interrupt;
use super::pipeline::read_pipeline;
use super::search::SearchOptions;
use super::{Failure, Json, Outcome, can_write, failed, human_bytes, print};
use crate::data::AtomicFile;
use crate::explain;
use crate::instance::{self, Instance};
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::graph::NodeId;
use arenic_ir::plan::{Plan, TaskKind};
use arenic_ir::text::Module;
use arenic_passes::certificate::{OrderCertificate, certificate};
use arenic_passes::order::{definition_order_peak, problem};
use arenic_passes::pipeline::{NAMED, Pipeline, RunOptions};
use arenic_passes::{Cx, Progress};
use clap::Args;
use cranelift_entity::EntityRef;
use miette::miette;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Arguments of `arenic order`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The memory graph: operators and tensors with sizes, as .json or .json.gz
    instance: PathBuf,
    /// A pipeline file, or the name of a pipeline; its passes over the plan give the order
    #[arg(long, value_name = "P.yaml", default_value = NAMED[0].0)]
    pipeline: String,
    #[command(flatten)]
    search: SearchOptions,
    /// Write the order, one node id per line
    #[arg(short, long, value_name = "ORDER.txt")]
    output: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
}

/// An ordered memory graph.
pub(super) struct Ordered {
    /// The graph, and its operators' ids in the file.
    pub(super) instance: Instance,
    /// The nodes in order.
    pub(super) nodes: Vec<NodeId>,
    /// The order's peak in bytes.
    pub(super) peak: u64,
    /// No order has a lower peak, in bytes.
    pub(super) bound: u64,
    /// Why.
    pub(super) certificate: OrderCertificate,
    /// What found the order.
    pub(super) method: String,
}

/// Memory graphs are planned to the byte.
const TARGET: TargetInfo = TargetInfo { align: 1, ..CPU.target() };

/// Reads a memory graph and orders it.
pub(super) fn order(
    instance: Instance,
    pipeline: &str,
    search: &SearchOptions,
) -> Result<Ordered, Failure> {
    let passes = read_pipeline(pipeline, Pipeline::parse)?
        .ordering()
        .map_err(|e| miette!("pipeline `{pipeline}`: {e}"))?;
    let method = Mutex::new(String::new());
    let listener = search.listener();
    let progress = |p: &Progress| {
        listener(p);
        p.method.clone_into(&mut method.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let watched = search.with(interrupt::flag(), &progress);
    let cx = Cx { search: watched, ..Cx::new(TARGET) };
    let module = Module { graph: instance.graph, plan: None, program: None };
    let outcome = passes.run_on(module, &cx, RunOptions::default()).map_err(failed)?;
    let known = outcome.report.peak_bound;
    let Module { graph, plan, .. } = outcome.module;
    let plan = plan.unwrap_or_default();
    let nodes = nodes_in_order(&plan)?;
    let p = problem(&graph, &plan).map_err(failed)?;
    let tasks: Vec<usize> = plan.order().map_err(failed)?.iter().map(|t| t.index()).collect();
    let peak = p.peak(&tasks);
    let certificate = certificate(&graph, nodes.iter().copied(), known, &cx).map_err(failed)?;
    let bound = certificate.bound.bytes;
    let method = method.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Ordered {
        instance: Instance { graph, ..instance },
        nodes,
        peak,
        bound,
        certificate,
        method,
    })
}

fn nodes_in_order(plan: &Plan) -> Result<Vec<NodeId>, Failure> {
    let node = |kind| match kind {
        TaskKind::Run(n) => Some(n),
        _ => None,
    };
    let order = plan.order().map_err(failed)?;
    Ok(order.iter().filter_map(|&t| node(plan.tasks[t].kind)).collect())
}

pub(super) fn run(a: &Arguments) -> Outcome {
    can_write(&a.output)?;
    let start = Instant::now();
    let instance = instance::read(&a.instance).map_err(failed)?;
    let ordered = order(instance, &a.pipeline, &a.search)?;
    let Ordered { instance, peak, bound, certificate, method, .. } = &ordered;
    let by_definition = definition_order_peak(&instance.graph, &Cx::new(TARGET)).map_err(failed)?;
    let seconds = start.elapsed().as_secs_f64();
    if let Some(path) = &a.output {
        write(path, ordered.nodes.iter().map(|n| instance.ids[n.index()]))?;
    }
    if a.json.json {
        return print(json!({
            "peak_bytes": peak,
            "lower_bound_bytes": bound,
            "definition_order_bytes": by_definition,
            "seconds": seconds,
            "proved_optimal": peak == bound,
            "gap": explain::relative_gap(*peak, *bound),
            "method": method,
            "certificate": explain::to_json(&instance.graph, &certificate.bound),
        }));
    }
    tell!("definition order  {:>12}", human_bytes(by_definition));
    tell!("best order        {:>12}  by {method}", human_bytes(*peak));
    tell!("lower bound       {:>12}", human_bytes(*bound));
    let verdict = match peak.saturating_sub(*bound) {
        0 => "proved optimal".to_owned(),
        gap => format!("at most {} might be saved", human_bytes(gap)),
    };
    tell!("{} operators in {seconds:.2} s: {verdict}", instance.ids.len());
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
