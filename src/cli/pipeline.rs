//! `arenic pipeline`

use super::{Failure, Outcome, print};
use arenic_passes::all_passes;
use arenic_passes::pipeline::{NAMED, Pipeline, PipelineError, schema};
use clap::{Args, Subcommand};
use miette::{NamedSource, miette};

/// Arguments of `arenic pipeline`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// The named pipelines, and every pass with its help
    List,
    /// The YAML of a named pipeline
    Show {
        /// Its name
        #[arg(default_value = NAMED[0].0)]
        name: String,
    },
    /// The JSON schema of pipeline files
    Schema,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    match &a.action {
        Action::List => {
            for (name, yaml) in NAMED {
                let about = yaml.lines().next().unwrap_or_default();
                print(format!("{name:<18} pipeline  {}", about.trim_start_matches("# ")))?;
            }
            for pass in all_passes() {
                print(format!("{:<18} {:<8}  {}", pass.name, pass.level, pass.help()))?;
            }
            Ok(())
        }
        Action::Show { name } => match NAMED.iter().find(|(n, _)| n == name) {
            Some((_, yaml)) => print(yaml.trim_end()),
            None => {
                let known: Vec<&str> = NAMED.iter().map(|(n, _)| *n).collect();
                let help = format!("there are: {}", known.join(", "));
                Err(miette!(help = help, "no pipeline is called `{name}`").into())
            }
        },
        Action::Schema => print(format!("{:#}", schema())),
    }
}

/// A named pipeline, or one from a file.
pub(super) fn read_pipeline(
    name: &str,
    parse: impl Fn(&str) -> Result<Pipeline, PipelineError>,
) -> Result<Pipeline, Failure> {
    let named = NAMED.iter().find(|(n, _)| *n == name).map(|(_, yaml)| (*yaml).to_owned());
    let text = match named {
        Some(yaml) => yaml,
        None => std::fs::read_to_string(name).map_err(|e| {
            let known: Vec<&str> = NAMED.iter().map(|(n, _)| *n).collect();
            let help = format!("name a YAML file, or one of: {}", known.join(", "));
            miette!(help = help, "cannot read the pipeline `{name}`: {e}")
        })?,
    };
    parse(&text).map_err(|e| pipeline_report(e, name, text))
}

/// The error with the place it points at.
fn pipeline_report(e: PipelineError, name: &str, text: String) -> Failure {
    let PipelineError { message, location } = e;
    let Some((line, column)) = location else {
        return miette!("pipeline `{name}`: {message}").into();
    };
    let line_start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let at = (line_start + column - 1).min(text.len());
    let label = miette::LabeledSpan::at_offset(at, "here");
    let report = miette!(labels = vec![label], "pipeline `{name}`: {message}");
    report.with_source_code(NamedSource::new(name, text)).into()
}
