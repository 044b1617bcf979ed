//! `arenic pipeline`

use super::named::{Named, read_named};
use super::{Failure, Outcome, print};
use arenic_baselines::WithBaselines;
use arenic_passes::PassSet;
use arenic_passes::pipeline::{NAMED, Pipeline, schema};
use arenic_passes::yaml::YamlError;
use clap::{Args, Subcommand};
use miette::miette;

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
    /// What a pass does, why it is sound, its options, where it comes from, and a small graph before and
    /// after it
    Explain {
        /// Its name
        pass: String,
    },
    /// The JSON schema of pipeline files
    Schema,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    match &a.action {
        Action::List => {
            for (name, yaml) in WithBaselines.pipelines() {
                let about = yaml.lines().next().unwrap_or_default();
                print(format!("{name:<18} pipeline  {}", about.trim_start_matches("# ")))?;
            }
            for pass in WithBaselines.passes() {
                print(format!("{:<18} {:<8}  {}", pass.name, pass.level, pass.help()))?;
            }
            Ok(())
        }
        Action::Show { name } => match WithBaselines.pipelines().iter().find(|(n, _)| n == name) {
            Some((_, yaml)) => print(yaml.trim_end()),
            None => {
                let help = among(WithBaselines.pipelines().iter().map(|(name, _)| *name));
                Err(miette!(help = help, "no pipeline is called `{name}`").into())
            }
        },
        Action::Explain { pass } => {
            match WithBaselines.passes().iter().find(|known| known.name == pass) {
                Some(pass) => print(pass),
                None => {
                    let help = among(WithBaselines.passes().iter().map(|pass| pass.name));
                    Err(miette!(help = help, "no pass is called `{pass}`").into())
                }
            }
        }
        Action::Schema => print(format!("{:#}", schema(&WithBaselines))),
    }
}

/// A help text that names what there is.
fn among<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names = names.collect::<Vec<_>>().join(", ");
    format!("there are: {names}")
}

/// A named pipeline, or one from a file.
pub(super) fn read_pipeline(
    name: &str,
    parse: impl Fn(&str, &WithBaselines) -> Result<Pipeline, YamlError>,
) -> Result<Pipeline, Failure> {
    let known = WithBaselines.pipelines();
    read_named(&Named { kind: "pipeline", known: &known }, name, |text| parse(text, &WithBaselines))
}
