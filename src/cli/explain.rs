//! `arenic explain`

use super::search::SearchOptions;
use super::{Failure, Outcome, failed, human_bytes, print};
use arenic::artifact::Artifact;
use arenic::explain::Explanation;
use arenic::instance;
use arenic_ir::TargetInfo;
use arenic_ir::check::check;
use arenic_passes::Cx;
use arenic_passes::certificate::certificate;
use arenic_passes::pipeline::NAMED;
use clap::{Args, Subcommand};
use miette::miette;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Arguments of `arenic explain`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Where the peak is, what is alive there, and why no order avoids it
    Order(Order),
}

#[derive(Debug, Args)]
struct Order {
    /// An artifact, or a memory graph (.json, .json.gz), which is ordered first
    file: PathBuf,
    /// The artifact's target to explain [default: the first]
    #[arg(long)]
    target: Option<String>,
    #[command(flatten)]
    search: SearchOptions,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    let What::Order(order) = &a.what;
    match is_memory_graph(&order.file)? {
        true => memory_graph(order),
        false => artifact(order),
    }
}

/// JSON and gzip begin otherwise than artifacts.
fn is_memory_graph(path: &Path) -> Result<bool, Failure> {
    let mut first = [0; 2];
    let read = std::fs::File::open(path).and_then(|mut file| file.read(&mut first));
    let n = read.map_err(|e| Failure::from(miette!("cannot read `{}`: {e}", path.display())))?;
    Ok(matches!(&first[..n], [0x1f, 0x8b] | [b'{' | b' ' | b'\n' | b'\t' | b'\r', ..]))
}

fn artifact(a: &Order) -> Outcome {
    let artifact = Artifact::read(&a.file).map_err(failed)?;
    let target = match &a.target {
        Some(name) => artifact.target(name),
        None => artifact.targets.first(),
    };
    let Some(target) = target else {
        return Err(miette!("the artifact does not hold that target").into());
    };
    let footprint = check(&target.graph, &target.program)
        .map_err(|_| miette!("the program does not implement its graph; see `arenic check`"))?;
    let cx = Cx::new(TargetInfo { align: target.program.align });
    let certificate = certificate(&target.graph, target.program.nodes(), &cx).map_err(failed)?;
    let stated = target.statistics.get("lower_bound_bytes").copied().unwrap_or(0);
    let peak = footprint.live_peak_bytes.device;
    print(Explanation {
        graph: &target.graph,
        certificate: &certificate,
        peak,
        bound: certificate.bound.max(stated.min(peak)),
        human: human_bytes,
    })
}

fn memory_graph(a: &Order) -> Outcome {
    let instance = instance::read(&a.file).map_err(failed)?;
    let ordered = super::order::order(instance, NAMED[0].0, &a.search)?;
    print(Explanation {
        graph: &ordered.instance.graph,
        certificate: &ordered.certificate,
        peak: ordered.peak,
        bound: ordered.bound,
        human: human_bytes,
    })
}
