//! Every pass on text: `cases/<pass>/<case>.ir` in its crate has a module and, below it, what comes of it.
//! `UPDATE=1` writes what comes of it into the files.
//!
//! The first line of a case, `# run: a; b`, names the passes to run; without it the pass
//! of the folder runs alone. `# device memory: N` limits the arena to so many bytes, `# target: NAME` is another
//! backend than the CPU's, and `# device: NAME` the device that times are for. Cases called `not_*` show what a
//! pass must leave alone; `example` is what `arenic pipeline explain` shows. A case that ends with a program was
//! accepted by the checker.

use arenic::evaluator::Kernels;
use arenic_backends::CPU;
use arenic_baselines::WithBaselines;
use arenic_ir::program::PerSpace;
use arenic_ir::text::Module;
use arenic_passes::devices::{self, NAMED};
use arenic_passes::explain::Case;
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Cx, PassSet, Standard};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The cases of a pass, in the folder of its crate.
fn cases(pass: &str) -> Vec<PathBuf> {
    let is_standard = Standard.passes().iter().any(|known| known.name == pass);
    let folder = if is_standard { "passes/cases" } else { "baselines/cases" };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(pass);
    let entries = std::fs::read_dir(folder);
    let entries = entries.unwrap_or_else(|_| panic!("the pass `{pass}` has no cases"));
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut cases: Vec<_> = paths.filter(|p| p.extension().is_some_and(|e| e == "ir")).collect();
    assert!(!cases.is_empty(), "the pass `{pass}` has no cases");
    cases.sort();
    cases
}

/// What comes of a case.
fn run(case: &Case, pass: &str) -> Result<Module, String> {
    let module =
        Module::parse(case.module, &arenic_backends::ALL).unwrap_or_else(|e| panic!("{e}"));
    let passes = case.run.unwrap_or(pass);
    let yaml: String = passes.split("; ").map(|p| format!("- {p}\n")).collect();
    let pipeline =
        Pipeline::parse(&yaml, &WithBaselines).unwrap_or_else(|e| panic!("{passes}: {e}"));
    let backend = case.target.map_or(CPU, |name| {
        let backend = arenic_backends::ALL.into_iter().find(|backend| backend.name == name);
        backend.unwrap_or_else(|| panic!("no backend `{name}`"))
    });
    let device = case.device.map(|name| {
        let (_, text) = NAMED.iter().find(|(known, _)| *known == name).unwrap();
        devices::parse(text).unwrap()
    });
    let limits = PerSpace { device: case.device_memory, host: None };
    let on_target = Cx { limits, device: device.as_ref(), ..Cx::new(backend.target()) };
    let cx = Cx { evaluate: Some(&Kernels), ..on_target };
    let outcome = pipeline.run_on(module, &cx, RunOptions::default());
    outcome.map(|outcome| outcome.module).map_err(|e| format!("error: {e}\n"))
}

/// The first line in which two texts differ, and how.
fn difference(expected: &str, found: &str) -> String {
    let (mut left, mut right) = (expected.lines(), found.lines());
    for line in 1.. {
        let (l, r) = (left.next(), right.next());
        if l != r {
            let shown = |line: Option<&str>| line.unwrap_or("(nothing more)").to_owned();
            return format!("line {line}\n  - {}\n  + {}", shown(l), shown(r));
        }
    }
    String::new()
}

/// What a pass prints also parses, and prints again the same.
#[test]
fn cases_give_what_they_say() {
    let updates = std::env::var_os("UPDATE").is_some();
    let mut wrong = String::new();
    for pass in WithBaselines.passes() {
        for path in cases(pass.name) {
            let text = std::fs::read_to_string(&path).unwrap();
            let case = Case::read(&text);
            let found = match run(&case, pass.name) {
                Ok(module) => {
                    let printed = module.to_string();
                    let again = Module::parse(&printed, &arenic_backends::ALL);
                    let again = again.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                    assert_eq!(again.to_string(), printed, "{}", path.display());
                    printed
                }
                Err(error) => error,
            };
            if updates {
                std::fs::write(&path, case.with(&found)).unwrap();
            } else if case.gives != Some(&found) {
                let expected = case.gives.unwrap_or_default();
                writeln!(wrong, "{}: {}", path.display(), difference(expected, &found)).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "UPDATE=1 writes what comes of these cases:\n{wrong}");
}
