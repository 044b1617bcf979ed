//! `arenic eval`

use super::run::{Feed, misplaced, read, train_at};
use super::{Failure, Json, Outcome, can_write, failed, interrupt, print};
use crate::artifact::Target;
use crate::data::{Batches, Mixing, Notice, Npz, TensorFile};
use crate::evaluator::Means;
use crate::train::{Initial, StepReport, TrainOptions};
use arenic_passes::Purpose;
use clap::Args;
use miette::miette;
use std::path::PathBuf;

/// Arguments of `arenic eval`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// An artifact that was compiled of a forward model with --loss
    artifact: PathBuf,
    #[command(flatten)]
    feed: Feed,
    /// The variant whose forward pass it is, where the artifact holds several [default: the first that
    /// the data fit]
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    #[command(flatten)]
    json: Json,
}

/// The forward pass to evaluate with.
fn chosen<'a>(a: &Arguments, all: &[&'a Target]) -> Result<&'a Target, Failure> {
    let held = || all.iter().map(|t| t.variant.as_str()).collect::<Vec<_>>().join(" and ");
    if let Some(name) = &a.variant {
        return all.iter().copied().find(|t| t.variant == *name).ok_or_else(|| {
            let help = format!("it holds {}", held());
            miette!(help = help, "the artifact does not hold the variant `{name}`").into()
        });
    }
    if let [only] = all {
        return Ok(only);
    }
    let [data] = &a.feed.data[..] else {
        let help = "evaluate each file by itself";
        let message = format!("{} files for an evaluation, which takes one", a.feed.data.len());
        return Err(miette!(help = help, "{message}").into());
    };
    let npz = Npz::open(data).map_err(failed)?;
    let fits = |target: &&&Target| {
        let g = &target.graph;
        let named = |v| (g.values[v].name.clone(), g.ty(v).clone());
        let inputs: Vec<_> = g.inputs().map(named).collect();
        Batches::new(&inputs, Some(&npz), &a.feed.set, None).is_ok()
    };
    let Some(target) = all.iter().find(fits) else {
        let help = "--variant names one, and says what does not fit";
        let message = format!("{} fits none of the variants {}", data.display(), held());
        return Err(miette!(help = help, "{message}").into());
    };
    tell!("note: evaluated with the variant {}; --variant names another", target.variant);
    Ok(target)
}

pub(super) fn run(a: &Arguments) -> Outcome {
    can_write(&a.feed.outputs)?;
    let artifact = read(&a.artifact, a.feed.threads, &[Purpose::Step, Purpose::Evaluation])?;
    let target = chosen(a, &a.feed.device.evaluations(&artifact).map_err(|e| misplaced(&e))?)?;
    // The step's own states, moments and the like, are of no use here.
    let known = |name: &str| target.graph.values.values().any(|v| v.name == name);
    let states = artifact.targets.iter().flat_map(|t| t.graph.states.values());
    let unused = states.map(|s| s.name.as_str()).filter(|name| !known(name));
    let unused = unused.filter_map(|name| glob::Pattern::new(&glob::Pattern::escape(name)).ok());
    let options = TrainOptions {
        data: a.feed.data.clone(),
        initial: Initial {
            file: a.feed.init.as_ref().map(TensorFile::open).transpose().map_err(failed)?,
            skip: a.feed.skip.iter().cloned().chain(unused).collect(),
            ..Initial::default()
        },
        mixing: Mixing::default(),
        set: a.feed.set.clone(),
        outputs: a.feed.outputs.clone(),
        threads: a.feed.threads,
        trust: a.feed.code.trust(),
        stop: Some(interrupt::flag_that("this batch is the last one")),
        ..TrainOptions::default()
    };
    let mut means = Means::default();
    let watch = |report: &StepReport| means.add(report.scalars);
    let notice = |n: &Notice| tell!("note: {n}");
    let summary = train_at(a.feed.device, &[target], &options, notice, watch)?;
    let batches = summary.steps;
    let counted = means.counted();
    if counted == Some(0) {
        let help = "compare the targets with --ignore-index of the compilation";
        return Err(miette!(help = help, "no target counts: each of them is ignored").into());
    }
    let means = means.into_each();
    if a.json.json {
        let mut object: serde_json::Map<_, _> = means.map(|(n, x)| (n, x.into())).collect();
        object.insert("batches".into(), batches.into());
        if let Some(counted) = counted {
            object.insert("counted".into(), counted.into());
        }
        object.insert("arena_bytes".into(), summary.arena_bytes.into());
        return print(serde_json::Value::Object(object));
    }
    let shown: Vec<String> = means.map(|(name, x)| format!("{name} {x:.4}")).collect();
    let over = counted.map_or(String::new(), |n| format!("{n} targets in "));
    print(format!("{}  over {over}{batches} batches", shown.join("  ")))
}
