//! `arenic check`

use super::{Failure, Json, Outcome, failed, human_bytes, print};
use arenic::artifact::{Artifact, Target};
use arenic_ir::check::check;
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

/// Checks one program and says what came of it.
fn judge(target: &Target, purpose: &str, as_json: bool) -> Outcome {
    let name = match purpose {
        "training" => target.name.clone(),
        _ => format!("{}, {purpose}", target.name),
    };
    match check(&target.graph, &target.program) {
        Ok(footprint) => {
            let (arena, peak) = (footprint.arena_bytes, footprint.live_peak_bytes);
            if as_json {
                return print(json!({
                    "target": target.name,
                    "purpose": purpose,
                    "accepted": true,
                    "arena_bytes": arena.device,
                    "live_peak_bytes": peak.device,
                    "host_arena_bytes": arena.host,
                }));
            }
            print(format!(
                "{name}: the program implements its graph; arena {}, live peak {}",
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
            let report =
                miette!("{name}: the program does not implement its graph:\n{}", lines.join("\n"));
            Err(Failure::from(report))
        }
    }
}
