//! `arenic check`

use super::{Failure, Json, Outcome, failed, human_bytes, print};
use arenic::artifact::Artifact;
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
    for target in &artifact.targets {
        match check(&target.graph, &target.program) {
            Ok(footprint) => {
                let (arena, peak) = (footprint.arena_bytes, footprint.live_peak_bytes);
                if a.json.json {
                    print(json!({
                        "target": target.name,
                        "accepted": true,
                        "arena_bytes": arena.device,
                        "live_peak_bytes": peak.device,
                        "host_arena_bytes": arena.host,
                    }))?;
                } else {
                    print(format!(
                        "{}: the program implements its graph; arena {}, live peak {}",
                        target.name,
                        human_bytes(arena.device),
                        human_bytes(peak.device)
                    ))?;
                }
            }
            Err(violations) => {
                let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
                if a.json.json {
                    print(json!({
                        "target": target.name, "accepted": false, "violations": lines,
                    }))?;
                }
                let report = miette!(
                    "{}: the program does not implement its graph:\n{}",
                    target.name,
                    lines.join("\n")
                );
                return Err(Failure::from(report));
            }
        }
    }
    Ok(())
}
