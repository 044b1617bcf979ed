//! `arenic compile` as others call it.

use super::arguments::Arguments;
use super::told::{figures, figures_of_all};
use crate::artifact::Artifact;
use crate::cli::dims::Dimensions;
use crate::cli::search::CUT;
use crate::cli::{Failure, failed, recorded, variants};
use crate::compile::CompileError;
use crate::compiler::{Compiler, Variant, Watch};
use crate::largest::Largest;
use crate::model::Model;
use crate::recipe::RecordedOption;
use arenic_passes::pipeline::Report;
use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;

/// What the command would say of its failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// What is wrong.
    pub message: String,
    /// How to mend it, where the message does not say that.
    pub help: Option<String>,
}

impl CommandError {
    fn of(failure: Failure) -> CommandError {
        let Some(report) = failure.report else {
            return CommandError { message: "it failed".to_owned(), help: None };
        };
        let help = report.help().map(|help| help.to_string());
        CommandError { message: report.to_string(), help }
    }
}

/// A compiled model, and what there is to say of it.
pub struct Compilation {
    /// The artifact.
    pub artifact: Artifact,
    /// The figures that `--json` prints as numbers, by name.
    pub figures: BTreeMap<String, f64>,
}

/// `arenic compile` as others call it, with its options alone.
#[derive(Debug)]
pub struct Request {
    arguments: Arguments,
    options: Vec<RecordedOption>,
}

/// What stands for the model, which is given apart, and for the artifact, which is not written.
const PLACEHOLDER: &str = "model.onnx";

impl Request {
    /// Reads options as the command line has them.
    ///
    /// # Errors
    /// An option is unknown, has a wrong value, or is of no use where no file is written.
    pub fn parse(options: &[String]) -> Result<Request, CommandError> {
        let named = |name: &str| options.iter().any(|o| o.split('=').next() == Some(name));
        for (option, help) in [
            ("--json", "the artifact has the figures as attributes"),
            ("--sweep", "the command `arenic compile --sweep` prints what each limit costs"),
            ("--stop-after", "the command `arenic compile --stop-after` prints a module"),
        ] {
            if named(option) {
                let message = format!("{option} is of no use here");
                return Err(CommandError { message, help: Some(help.to_owned()) });
            }
        }
        let mut all = vec!["arenic compile".to_owned(), "-o".to_owned(), PLACEHOLDER.to_owned()];
        if !named("--ort") {
            all.push(PLACEHOLDER.to_owned());
        }
        all.extend(options.iter().cloned());
        let command = Wrapped::command();
        let parsed = command.clone().try_get_matches_from(all).and_then(|given| {
            let options = recorded::options(&command, &given);
            Ok((Wrapped::from_arg_matches(&given)?, options))
        });
        match parsed {
            Ok((Wrapped { arguments }, options)) => Ok(Request { arguments, options }),
            Err(e) => {
                let text = e.to_string();
                let first = text.lines().take_while(|line| !line.is_empty());
                let message = first.collect::<Vec<_>>().join("\n");
                let message = message.trim_start_matches("error: ").to_owned();
                Err(CommandError { message, help: None })
            }
        }
    }

    /// What the options ask for, whatever the model.
    ///
    /// # Errors
    /// What the command would say.
    pub(in crate::cli) fn compiler(&self) -> Result<Compiler, CommandError> {
        self.arguments.compiler().map_err(CommandError::of)
    }

    /// Compiles `model`, or the folder that the options name.
    ///
    /// # Errors
    /// What the command would say.
    pub fn compile(
        &self,
        model: Option<Model>,
        watch: &Watch,
    ) -> Result<Compilation, CommandError> {
        self.compiled(model, watch).map_err(CommandError::of)
    }

    fn compiled(&self, model: Option<Model>, watch: &Watch) -> Result<Compilation, Failure> {
        let Request { arguments: a, options } = self;
        let start = Instant::now();
        let model = model.map_or_else(|| a.model(), Ok)?;
        let compiler = a.recording(options.clone())?;
        let after_pass = |report: &Report| a.dump(report);
        let watch = Watch { after_pass: Some(&after_pass), ..*watch };
        let timed = compiler.timed().map_err(failed)?;
        let number = |(name, value): (String, Value)| Some((name, value.as_f64()?));
        let variants = variants::named(&[], Some(model), &Dimensions::new(&a.dims)?, &a.only)?;
        let ([Variant { model, .. }], true) = (&variants[..], a.loss.drop_layers.is_empty()) else {
            let compiled = compiler.compile_variants_watched(&variants, &watch);
            let (artifact, compiled) = compiled.map_err(|e| a.refused(e))?;
            for line in a.remarks_of_all(&artifact, &compiled, &timed) {
                watch.note(&line);
            }
            let mut object = figures_of_all(&artifact, &compiled);
            object.insert("seconds".into(), start.elapsed().as_secs_f64().into());
            let figures = object.into_iter().filter_map(number).collect();
            return Ok(Compilation { artifact, figures });
        };
        let compiled = compiler.compile_watched(model, &watch).map_err(|e| a.refused(e))?;
        for line in a.remarks(&compiled, &timed) {
            watch.note(&line);
        }
        let mut object = figures(compiled.target().map_err(failed)?, compiled.report.minimum);
        let (step, unlimited) = compiled.seconds(&timed).map_err(failed)?;
        object.insert("predicted_step_seconds".into(), step.into());
        object.insert("unlimited_step_seconds".into(), unlimited.into());
        if let Some(Largest { size, found: name, .. }) = &compiled.largest {
            watch.note(&format!("{name}={size} is the largest that fits"));
            object.insert("largest".into(), (*size).into());
        }
        object.insert("seconds".into(), start.elapsed().as_secs_f64().into());
        let figures = object.into_iter().filter_map(number).collect();
        let artifact = compiled.artifact.ok_or_else(|| failed(CompileError::NoProgram))?;
        if artifact.provenance.is_cut {
            watch.note(&format!("note: {CUT}"));
        }
        Ok(Compilation { artifact, figures })
    }
}

/// The options as a command of their own.
#[derive(Debug, Parser)]
#[command(name = "arenic compile", disable_help_flag = true)]
struct Wrapped {
    #[command(flatten)]
    arguments: Arguments,
}
