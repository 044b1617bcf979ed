//! ONNX's own node tests: every test of supported operators on supported types passes.
//!
//! `make node-tests` writes them to a folder (`ARENIC_NODE_TESTS`, by default
//! `target/node-tests`); without one nothing runs, which is an error where
//! `ARENIC_REQUIRE_NODE_TESTS` is 1. An input that fixes a shape is bound to the test's
//! value, as by `--bind`. Results must be those of the reference interpreter to the bit.

mod bind;
mod case;
mod compare;
mod drawn;
mod left_out;
#[path = "../planned/mod.rs"]
mod planned;

use case::{Case, Suite};
use left_out::Kind;
use libtest_mimic::{Arguments, FormatSetting, Trial};
use planned::{Planned, Tensors};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    let folder = std::env::var_os("ARENIC_NODE_TESTS").filter(|path| !path.is_empty()).map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/node-tests"),
        PathBuf::from,
    );
    let suite = match Suite::read(&folder) {
        Ok(Some(suite)) => suite,
        Ok(None) => {
            eprintln!(
                "NO ONNX NODE TESTS RAN: {} is missing; `make node-tests` writes it",
                folder.display()
            );
            let required = std::env::var("ARENIC_REQUIRE_NODE_TESTS").is_ok_and(|v| v == "1");
            return if required { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
        Err(e) => {
            eprintln!("{}: {e}; `make node-tests` writes it anew", folder.display());
            return ExitCode::FAILURE;
        }
    };

    let total = suite.cases.len();
    let mut left_out: BTreeMap<(Kind, String), Vec<String>> = BTreeMap::new();
    let mut trials = Vec::with_capacity(total);
    for case in suite.cases {
        let reason = left_out::reason(&case);
        let name = case.name.clone();
        let trial = Trial::test(name.clone(), move || run(&case).map_err(Into::into));
        trials.push(match reason {
            None => trial,
            Some((kind, what)) => {
                let trial = trial.with_kind(format!("{} {what}", kind.name()));
                left_out.entry((kind, what)).or_default().push(name);
                trial.with_ignored_flag(true)
            }
        });
    }
    // One line per test is for those who ask for some of them.
    let whole = args.filter.is_none() && args.skip.is_empty() && !args.list;
    if whole && args.format.is_none() {
        args.format = Some(FormatSetting::Terse);
    }
    let conclusion = libtest_mimic::run(&args, trials);
    if whole {
        println!("node tests of onnx {} that are left out, by reason:", suite.onnx);
        let mut reasons: Vec<_> = left_out.iter().collect();
        reasons.sort_by_key(|((kind, _), names)| (*kind, Reverse(names.len())));
        for ((kind, what), names) in reasons {
            println!("  {} {what} ({}): {}", kind.name(), names.len(), names.join(" "));
        }
        let counts = Kind::ALL.map(|kind| {
            let of_kind = left_out.iter().filter(|((k, _), _)| *k == kind);
            let count: usize = of_kind.map(|(_, names)| names.len()).sum();
            format!("{count} for {}", kind.name())
        });
        println!("left out: {}", counts.join(", "));
        println!(
            "{} passed, {} failed, {} left out of {total}",
            conclusion.num_passed, conclusion.num_failed, conclusion.num_ignored
        );
    }
    conclusion.exit_code()
}

/// Compiles, runs and compares one test.
fn run(case: &Case) -> Result<(), String> {
    let (inputs, expected) = (case.inputs()?, case.outputs()?);
    let fixed = bind::inputs(case.graph());
    let (bound, feeds): (Tensors, Tensors) = inputs
        .iter()
        .map(|t| (t.name.clone(), (t.ty.clone(), t.bytes.clone())))
        .partition(|(name, _)| fixed.contains(name.as_str()));
    let planned = Planned::new(case.bytes.clone(), bound)?;
    let names: Vec<&str> = planned.outputs().map(|(name, _)| name).collect();
    if !names.iter().eq(expected.iter().map(|t| &t.name)) {
        return Err(format!("its outputs are {names:?}"));
    }
    if let Some(drawn) = drawn::drawn(case, &inputs) {
        return drawn::check(&drawn, &inputs, &expected, &planned, &feeds);
    }
    let results = planned.run(&feeds, 2)?;
    for found in &results {
        for ((expected, (_, ty)), found) in expected.iter().zip(planned.outputs()).zip(found) {
            compare::compare(case, expected, ty, found)?;
        }
    }
    Ok(())
}
