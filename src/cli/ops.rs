//! `arenic ops`

use super::{Json, Outcome, print};
use crate::onnx::supported_ops;
use clap::Args;
use serde_json::json;

/// Arguments of `arenic ops`.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    json: Json,
}

pub(super) fn run(a: Arguments) -> Outcome {
    for op in supported_ops() {
        if a.json.json {
            print(json!({
                "domain": op.domain, "name": op.name, "since": op.since, "note": op.note,
            }))?;
        } else {
            let line =
                format!("{:<28} {:<22} since {:<3} {}", op.domain, op.name, op.since, op.note);
            print(line.trim_end())?;
        }
    }
    Ok(())
}
