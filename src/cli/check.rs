//! `arenic check`

use super::{Failure, Json, Outcome, failed, human_bytes, print};
use crate::artifact::{Artifact, Target};
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
    let purposes = [("training", &artifact.targets), ("evaluation", &artifact.evaluations)];
    for (purpose, targets) in purposes {
        for target in targets {
            judge(target, purpose, a.json.json)?;
        }
    }
    Ok(())
}

/// Checks the programs of one target and says what came of it.
fn judge(target: &Target, purpose: &str, as_json: bool) -> Outcome {
    let name = match purpose {
        "training" => target.name.clone(),
        _ => format!("{}, {purpose}", target.name),
    };
    match target.check() {
        Ok(footprints) => {
            let arena = target.arena_bytes();
            let peaks = footprints.iter().map(|footprint| footprint.live_peak_bytes);
            let peak = peaks.fold(PerSpace::default(), PerSpace::largest);
            if as_json {
                return print(json!({
                    "target": target.name,
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
        Err(violations) => {
            let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
            if as_json {
                print(json!({
                    "target": target.name,
                    "purpose": purpose,
                    "accepted": false,
                    "violations": lines,
                }))?;
            }
            let lines = lines.join("\n");
            let report = match target.rounds {
                None => miette!("{name}: the program does not implement its graph:\n{lines}"),
                Some(_) => miette!(
                    help = "part 0 runs before the rounds, part 1 is a round, part 2 runs after",
                    "{name}: the programs do not implement a step in rounds:\n{lines}"
                ),
            };
            Err(Failure::from(report))
        }
    }
}
