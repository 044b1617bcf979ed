//! `arenic eval`

use super::run::{Feed, misplaced, read, train_at};
use super::{Json, Outcome, can_write, failed, interrupt, print};
use crate::data::{Notice, TensorFile};
use crate::evaluator::Means;
use crate::train::{Initial, Length, OnSaveError, Options, StepReport};
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
    #[command(flatten)]
    json: Json,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    can_write(&a.feed.outputs)?;
    let artifact = read(&a.artifact, a.feed.threads, &[Purpose::Step, Purpose::Evaluation])?;
    let target = a.feed.device.evaluation(&artifact).map_err(misplaced)?;
    // The step's own states, moments and the like, are of no use here.
    let known = |name: &str| target.graph.values.values().any(|v| v.name == name);
    let states = artifact.targets.iter().flat_map(|t| t.graph.states.values());
    let unused = states.map(|s| s.name.as_str()).filter(|name| !known(name));
    let unused = unused.filter_map(|name| glob::Pattern::new(&glob::Pattern::escape(name)).ok());
    let options = Options {
        data: a.feed.data.clone(),
        initial: Initial {
            file: a.feed.init.as_ref().map(TensorFile::open).transpose().map_err(failed)?,
            skip: a.feed.skip.iter().cloned().chain(unused).collect(),
            ..Initial::default()
        },
        set: a.feed.set.clone(),
        length: Length::Epochs(1),
        shuffle: None,
        seed: None,
        save: None,
        save_every: None,
        on_save_error: OnSaveError::Stop,
        outputs: a.feed.outputs.clone(),
        threads: a.feed.threads,
        deterministic: false,
        trust: a.feed.code.trust(),
        poison: false,
        trace: None,
        stop: Some(interrupt::flag_that("this batch is the last one")),
    };
    let mut means = Means::default();
    let watch = |report: &StepReport| means.add(report.scalars);
    let notice = |n: &Notice| tell!("note: {n}");
    let summary = train_at(a.feed.device, target, &options, notice, watch)?;
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
