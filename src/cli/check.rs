//! `arenic check`

use super::{Failure, Json, Outcome, failed, human_bytes, print};
use crate::artifact::{Artifact, Target};
use arenic_ir::check::{Footprint, Violation};
use arenic_ir::program::PerSpace;
use clap::Args;
use miette::miette;
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `arenic check`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The artifact
    artifact: PathBuf,
    #[command(flatten)]
    json: Json,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    let artifact = Artifact::read(&a.artifact).map_err(failed)?;
    for name in artifact.target_names() {
        let variants = artifact.variants(name);
        judge(&variants, artifact.check(name), "training", a.json.json)?;
    }
    for target in &artifact.evaluations {
        let judged = target.check().map(|footprints| vec![footprints]);
        judge(&[target], judged, "evaluation", a.json.json)?;
    }
    Ok(())
}

/// Says what came of the programs of one target.
fn judge(
    variants: &[&Target],
    judged: Result<Vec<Vec<Footprint>>, Vec<Violation>>,
    purpose: &str,
    as_json: bool,
) -> Outcome {
    let Some(first) = variants.first() else { return Ok(()) };
    let name = match purpose {
        "training" => first.name.clone(),
        _ => format!("{}, {purpose}", first.name),
    };
    let name_of = |target: &Target| match target.variant.as_str() {
        "" => name.clone(),
        variant => format!("{name}, {variant}"),
    };
    let violations = match judged {
        Ok(footprints) => {
            for (target, footprints) in variants.iter().zip(&footprints) {
                accepted(target, footprints, purpose, &name_of(target), as_json)?;
            }
            if variants.len() > 1 && !as_json {
                let n = variants.len();
                let sizes = variants.iter().map(|target| target.arena_bytes());
                let arena = sizes.fold(PerSpace::default(), PerSpace::largest).device;
                print(format!(
                    "{name}: any sequence of the {n} variants is safe; arena {}",
                    human_bytes(arena)
                ))?;
            }
            return Ok(());
        }
        Err(violations) => violations,
    };
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    if as_json {
        print(json!({
            "target": first.name,
            "purpose": purpose,
            "accepted": false,
            "violations": lines,
        }))?;
    }
    let lines = lines.join("\n");
    let report = match (variants, &first.rounds) {
        ([only], None) => {
            miette!("{}: the program does not implement its graph:\n{lines}", name_of(only))
        }
        ([only], Some(_)) => miette!(
            help = "part 0 runs before the rounds, part 1 is a round, part 2 runs after",
            "{}: the programs do not implement a step in rounds:\n{lines}",
            name_of(only)
        ),
        (several, _) => {
            let parts = several.iter().flat_map(|target| {
                target.turns().into_iter().map(|turn| match target.rounds {
                    None => target.variant.clone(),
                    Some(_) => format!("{}, {}", target.variant, turn.name),
                })
            });
            let parts = parts.enumerate().map(|(i, what)| format!("part {i} is {what}"));
            let help = parts.collect::<Vec<_>>().join("; ");
            miette!(help = help, "{name}: the variants cannot take turns:\n{lines}")
        }
    };
    Err(Failure::from(report))
}

/// Says what an accepted step uses.
fn accepted(
    target: &Target,
    footprints: &[Footprint],
    purpose: &str,
    name: &str,
    as_json: bool,
) -> Outcome {
    let arena = target.arena_bytes();
    let peaks = footprints.iter().map(|footprint| footprint.live_peak_bytes);
    let peak = peaks.fold(PerSpace::default(), PerSpace::largest);
    if as_json {
        return print(json!({
            "target": target.name,
            "variant": target.variant,
            "purpose": purpose,
            "accepted": true,
            "arena_bytes": arena.device,
            "live_peak_bytes": peak.device,
            "host_arena_bytes": arena.host,
            "rounds": target.rounds.as_ref().map(|rounds| rounds.count),
        }));
    }
    let what = match &target.rounds {
        None => "the program implements its graph".into(),
        Some(rounds) => format!(
            "{} programs implement their graphs and share states in {} rounds",
            footprints.len(),
            rounds.count
        ),
    };
    print(format!(
        "{name}: {what}; arena {}, live peak {}",
        human_bytes(arena.device),
        human_bytes(peak.device)
    ))
}
