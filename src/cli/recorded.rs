//! Options of `arenic compile` as an artifact keeps them, and the compiler that they make again.

use super::compile::{CommandError, Request};
use crate::artifact::Artifact;
use crate::compiler::Compiler;
use crate::dynamic::Dynamic;
use crate::recipe::{Recipe, RecordedFile, RecordedOption};
use arenic_passes::{devices, pipeline};
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::fs;
use std::path::Path;

/// Options that say for which model, sizes and limits a step is compiled, and what is printed: they are not
/// of the step itself.
const LEFT_OUT: [&str; 18] = [
    "model",
    "ort",
    "artifact",
    "dims",
    "only",
    "variants",
    "device_memory",
    "host_memory",
    "overhead",
    "sweep",
    "plan_only",
    "compare",
    "dump_ir_after",
    "stop_after",
    "print_stats",
    "verbose",
    "json",
    "time_limit",
];

/// Options whose values may be files; of the last one each is behind a name.
const FILES: [&str; 5] = ["pipeline", "device", "profile", "class_weights", "bind"];

/// The options that were given among these of a command.
pub(super) fn options(command: &clap::Command, given: &ArgMatches) -> Vec<RecordedOption> {
    let mut options = Vec::new();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let Some(long) = argument.get_long().filter(|_| !LEFT_OUT.contains(&id)) else { continue };
        if given.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        if !argument.get_action().takes_values() {
            options.push(RecordedOption { text: format!("--{long}"), file: None });
            continue;
        }
        for value in given.get_raw(id).into_iter().flatten() {
            let value = value.to_string_lossy();
            let (before, path) = match value.split_once('=') {
                Some((name, path)) if id == "bind" => (format!("{name}="), path),
                _ => (String::new(), &*value),
            };
            let file = FILES.contains(&id).then(|| recorded_file(Path::new(path))).flatten();
            let text = match file {
                Some(_) => format!("--{long}={before}"),
                None => format!("--{long}={value}"),
            };
            options.push(RecordedOption { text, file });
        }
    }
    options
}

/// The file at a path; `None` if there is none, or if it is the name of what is known without a file.
fn recorded_file(path: &Path) -> Option<RecordedFile> {
    let mut known = pipeline::NAMED.iter().chain(devices::NAMED);
    if known.any(|(name, _)| path == Path::new(name)) {
        return None;
    }
    let contents = fs::read(path).ok()?.into();
    Some(RecordedFile { name: path.file_name()?.to_string_lossy().into_owned(), contents })
}

/// The compiler that a recipe's options make.
fn compiler(recipe: &Recipe) -> Result<Compiler, CommandError> {
    let failed = |error: std::io::Error| CommandError {
        message: format!("a temporary file cannot be written: {error}"),
        help: None,
    };
    // Files are read while options are.
    let folder = tempfile::tempdir().map_err(failed)?;
    let mut options = Vec::new();
    for (i, RecordedOption { text, file }) in recipe.options.iter().enumerate() {
        let Some(RecordedFile { name, contents }) = file else {
            options.push(text.clone());
            continue;
        };
        let own = folder.path().join(i.to_string());
        let name = Path::new(name).file_name().unwrap_or_default();
        fs::create_dir(&own).map_err(failed)?;
        fs::write(own.join(name), contents).map_err(failed)?;
        options.push(format!("{text}{}", own.join(name).display()));
    }
    Request::parse(&options)?.compiler()
}

/// How steps of an artifact are compiled at other sizes.
///
/// # Errors
/// The artifact does not say how, or what it says cannot be used here.
pub fn dynamic(artifact: &Artifact) -> Result<Dynamic, CommandError> {
    let Some(recipe) = &artifact.recipe else {
        let message = "the artifact does not say how to compile it at other sizes".to_owned();
        let help = "compile the model again with `--dim NAME=N` of each dimension that may vary; artifacts of \
                    --ort, --ranks and --plan-only have one size";
        return Err(CommandError { message, help: Some(help.to_owned()) });
    };
    Dynamic::of(compiler(recipe)?, recipe, artifact).ok_or_else(|| CommandError {
        message: "the artifact's model cannot be read".to_owned(),
        help: Some("compile it again".to_owned()),
    })
}
