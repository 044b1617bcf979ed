//! Orders the operators of a training step so that its peak is low: reads a bare memory graph, prints the peak in the
//! order of the file, the one that was found, and a bound that no order is below.
//!
//!     cargo run --release --example order_graph [GRAPH.json.gz]

use arenic::instance;
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::plan::TaskKind;
use arenic_ir::text::Module;
use arenic_passes::certificate::certificate;
use arenic_passes::order::definition_order_peak;
use arenic_passes::pipeline::{NAMED, Pipeline, RunOptions};
use arenic_passes::{Cx, Search, Standard};
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/alexnet_bs32_sgd.json.gz");
    let graph = instance::read(&given.unwrap_or(example.into()))?.graph;

    let search = Search { effort: Some(1.0), ..Search::default() };
    let target = TargetInfo { align: 1, ..CPU.target() };
    let cx = Cx { search, ..Cx::new(target) };
    let written = definition_order_peak(&graph, &cx)?;
    let module = Module { graph, plan: None, program: None };
    let pipeline = Pipeline::parse(NAMED[0].1, &Standard)?.ordering()?;
    let outcome = pipeline.run_on(module, &cx, RunOptions::default())?;

    let plan = outcome.module.plan.as_ref().ok_or("nothing was planned")?;
    let order = plan.order()?;
    let nodes = order.iter().filter_map(|&task| match plan.tasks[task].kind {
        TaskKind::Run(node) => Some(node),
        _ => None,
    });
    let known = outcome.report.peak_bound;
    let bound = certificate(&outcome.module.graph, nodes, known, &cx)?.bound.bytes;
    println!("{} operators; in the order of the file {written} bytes", order.len());
    println!("no order needs less than {bound} bytes");
    assert!(bound <= written);
    Ok(())
}
