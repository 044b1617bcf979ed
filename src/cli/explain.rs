//! `arenic explain`

use super::device::read_profiled;
use super::named::help;
use super::search::SearchOptions;
use super::{
    Failure, Json, Outcome, checked_target, chosen, failed, human_bytes, note_rounds, print,
};
use crate::artifact::Artifact;
use crate::compile::moves_tensors;
use crate::explain::Explanation;
use crate::explain::choices::{Planned, choices};
use crate::instance;
use arenic_passes::Cx;
use arenic_passes::certificate::certificate;
use arenic_passes::devices::NAMED as NAMED_DEVICES;
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
    /// What became of a tensor under a byte limit, what it cost and what else would have
    Tensor(Tensor),
}

#[derive(Debug, Args)]
struct Tensor {
    /// The artifact
    artifact: PathBuf,
    /// The tensor: a value, a state or an output
    name: String,
    #[arg(
        long,
        value_name = "D",
        default_value = NAMED_DEVICES[0].0,
        help = help("The device that times are for: a device file, or one of {names}", NAMED_DEVICES)
    )]
    device: String,
    /// Times of kernels that `arenic profile` measured on the device
    #[arg(long, value_name = "TABLE")]
    profile: Option<PathBuf>,
    /// The artifact's target to explain [default: the first]
    #[arg(long)]
    target: Option<String>,
    /// The variant, where the artifact holds several [default: the first]
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Args)]
struct Order {
    /// An artifact, or a memory graph (.json, .json.gz), which is ordered first
    file: PathBuf,
    /// The artifact's target to explain [default: the first]
    #[arg(long)]
    target: Option<String>,
    /// The variant, where the artifact holds several [default: the first]
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    #[command(flatten)]
    search: SearchOptions,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    let order = match &a.what {
        What::Order(order) => order,
        What::Tensor(tensor) => return explain_tensor(tensor),
    };
    match is_memory_graph(&order.file)? {
        true => memory_graph(order),
        false => artifact(order),
    }
}

fn explain_tensor(a: &Tensor) -> Outcome {
    let device = read_profiled(&a.device, a.profile.as_deref())?;
    let artifact = Artifact::read(&a.artifact).map_err(failed)?;
    let (target, footprint) = checked_target(&artifact, a.target.as_deref(), a.variant.as_deref())?;
    note_rounds(target);
    let (graph, program) = (&target.graph, &target.program);
    let device = device.with_math(program.target.math);
    let planned = Planned { graph, program, footprint: &footprint, device: &device };
    let choices = choices(planned, &a.name, human_bytes);
    if choices.is_empty() {
        let help = "`arenic inspect --json` lists the buffers by name";
        return Err(miette!(help = help, "the graph has no tensor `{}`", a.name).into());
    }
    for choices in choices {
        match a.json.json {
            true => print(choices.to_json())?,
            false => print(choices.to_string().trim_end())?,
        }
    }
    Ok(())
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
    let target = chosen(&artifact, a.target.as_deref(), a.variant.as_deref())?;
    note_rounds(target);
    let footprint = target
        .check_main()
        .map_err(|_| miette!("the program does not implement its graph; see `arenic check`"))?;
    let cx = Cx::new(target.program.target);
    let certificate =
        certificate(&target.graph, target.program.nodes(), None, &cx).map_err(failed)?;
    let stated = target.figures.lower_bound_bytes;
    let peak = footprint.live_peak_bytes.device;
    let moves = moves_tensors(&target.program);
    let bound = if moves { stated } else { certificate.bound.bytes.max(stated.min(peak)) };
    print(Explanation {
        graph: &target.graph,
        certificate: &certificate,
        peak,
        bound,
        moves,
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
        moves: false,
        human: human_bytes,
    })
}
