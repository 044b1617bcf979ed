//! ONNX's own node tests: every test of supported operators on supported types passes.
//!
//! `make node-tests` writes them to a folder (`ARENIC_NODE_TESTS`, by default
//! `target/node-tests`); without one nothing runs, which is an error where
//! `ARENIC_REQUIRE_NODE_TESTS` is 1. An input that fixes a shape is bound to the test's
//! value, as by `--bind`. Results must be those of the reference interpreter to the bit.
//!
//! Some run by the CUDA backend, too, on a simulated driver; where `ARENIC_TEST_DEVICE` names a
//! GPU, all of them run there and nowhere else.

mod bind;
mod case;
mod compare;
mod coverage;
mod drawn;
mod left_out;
mod numbers;
#[path = "../cuda/place.rs"]
mod place;
#[path = "../planned/mod.rs"]
mod planned;
#[path = "../cuda/simulated.rs"]
#[allow(dead_code, reason = "no test counts calls")]
mod simulated;

use arenic_backends::{CPU, CUDA};
use case::{Case, Suite};
use left_out::Kind;
use libtest_mimic::{Arguments, FormatSetting, Trial};
use planned::{Planned, Tensors};
use simulated::{Behaviour, Simulated};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    let folder = std::env::var_os("ARENIC_NODE_TESTS")
        .filter(|path| !path.is_empty())
        .map_or_else(|| place::file("target/node-tests"), PathBuf::from);
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

    let count = suite.cases.len();
    let mut left_out: BTreeMap<(Kind, String), Vec<String>> = BTreeMap::new();
    let mut trials = Vec::with_capacity(count);
    let mut counted = Vec::with_capacity(count);
    let on_gpu = place::gpu().is_some();
    for (i, case) in suite.cases.into_iter().enumerate() {
        let reason = left_out::reason(&case);
        let name = case.name.clone();
        if reason.is_none() {
            counted.push(case.clone());
        }
        if reason.is_none() && !on_gpu && i % SIMULATED == 0 {
            let (name, case) = (format!("simulated GPU: {name}"), case.clone());
            let run = move || run(&case, Place::Simulated).map_err(Into::into);
            trials.push(Trial::test(name, run));
        }
        let place = if on_gpu { Place::Gpu } else { Place::Cpu };
        let trial = Trial::test(name.clone(), move || run(&case, place).map_err(Into::into));
        trials.push(match reason {
            None => trial,
            Some((kind, what)) => {
                let trial = trial.with_kind(format!("{} {what}", kind.name()));
                left_out.entry((kind, what)).or_default().push(name);
                trial.with_ignored_flag(true)
            }
        });
    }
    if !on_gpu {
        let page = move || coverage::check(&counted).map_err(Into::into);
        trials.push(Trial::test("operators page", page));
    }
    if let Some((part, parts)) = shard() {
        let mut i = 0;
        trials.retain(|_| {
            i += 1;
            (i - 1) % parts == part
        });
    }
    let total = trials.len();
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

/// The part of the tests to run, of how many: `ARENIC_NODE_TEST_SHARD`, as `0/8`. A process of its
/// own for each part keeps the others where one has a fault on a GPU.
fn shard() -> Option<(usize, usize)> {
    let text = std::env::var("ARENIC_NODE_TEST_SHARD").ok().filter(|text| !text.is_empty())?;
    let parts = text.split_once('/').and_then(|(part, parts)| {
        Some((part.parse().ok()?, parts.parse().ok()?)).filter(|&(part, parts)| part < parts)
    });
    let Some(parts) = parts else {
        panic!("ARENIC_NODE_TEST_SHARD is `{text}`, and is a part of so many, as `0/8`");
    };
    Some(parts)
}

/// One test of so many runs on a simulated GPU, where kernels of each have to be compiled.
const SIMULATED: usize = 29;

/// Where a test runs.
#[derive(Clone, Copy)]
enum Place {
    Cpu,
    Simulated,
    Gpu,
}

/// Compiles, runs and compares one test.
fn run(case: &Case, place: Place) -> Result<(), String> {
    let (inputs, expected) = (case.inputs()?, case.outputs()?);
    let fixed = bind::inputs(case.graph());
    let (bound, feeds): (Tensors, Tensors) = inputs
        .iter()
        .map(|t| (t.name.clone(), (t.ty.clone(), t.bytes.clone())))
        .partition(|(name, _)| fixed.contains(name.as_str()));
    let target = match place {
        Place::Cpu => CPU.target(),
        Place::Simulated | Place::Gpu => CUDA.target(),
    };
    let planned = Planned::new(target, case.bytes.clone(), bound)?;
    let names: Vec<&str> = planned.outputs().map(|(name, _)| name).collect();
    if !names.iter().eq(expected.iter().map(|t| &t.name)) {
        return Err(format!("its outputs are {names:?}"));
    }
    let steps = |n: u64| match place {
        Place::Cpu => planned.run(&feeds, n),
        Place::Simulated => planned.run_on(Simulated::new(Behaviour::default()), &feeds, n),
        Place::Gpu => planned.run_on(place::gpu().ok_or("no GPU")?, &feeds, n),
    };
    if let Some(drawn) = drawn::drawn(case, &inputs) {
        return drawn::check(&drawn, &inputs, &expected, &planned, steps);
    }
    for found in &steps(2)? {
        for ((expected, (_, ty)), found) in expected.iter().zip(planned.outputs()).zip(found) {
            compare::compare(case, expected, ty, found)?;
        }
    }
    Ok(())
}
