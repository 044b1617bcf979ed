//! Random cases of every operator that the importer knows, against what is right in long double,
//! and gradients of what has some against differences.
//!
//! `make differential-cases` writes them to a folder (`ARENIC_DIFFERENTIAL`, by default
//! `target/differential`); without one nothing runs, which is an error where
//! `ARENIC_REQUIRE_DIFFERENTIAL` is 1. A row of the importer's table that has no generator in
//! `tests/differential/*.py` fails, unless `tables.rs` says why it has none. So does a case that
//! is refused for a reason that is not listed there, and a listed reason that no case meets.
//! Results must also be those of the reference interpreter to the bit.

mod case;
#[path = "../gradients/differences.rs"]
mod differences;
mod gradient;
#[path = "../onnx_nodes/numbers.rs"]
mod numbers;
#[path = "../cuda/place.rs"]
#[allow(dead_code, reason = "nothing runs on a GPU")]
mod place;
#[path = "../planned/mod.rs"]
mod planned;
mod tables;

use arenic::onnx::supported_ops;
use arenic_backends::CPU;
use arenic_ir::TensorType;
use case::{Case, Right, Suite};
use libtest_mimic::{Arguments, FormatSetting, Trial};
use planned::{Planned, Tensors};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

/// What became of a case.
enum Outcome {
    Right,
    /// Refused for the reason of this number in the list.
    Refused(usize),
}

/// What became of a row's cases.
#[derive(Default)]
struct Counts {
    forward: usize,
    gradients: usize,
    refused: BTreeMap<usize, usize>,
    without: BTreeMap<usize, usize>,
}

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    let folder = std::env::var_os("ARENIC_DIFFERENTIAL")
        .filter(|path| !path.is_empty())
        .map_or_else(|| place::file("target/differential"), PathBuf::from);
    let suite = match Suite::read(&folder) {
        Ok(Some(suite)) => Arc::new(suite),
        Ok(None) => {
            eprintln!(
                "NO DIFFERENTIAL TESTS RAN: {} is missing; `make differential-cases` writes it",
                folder.display()
            );
            let required = std::env::var("ARENIC_REQUIRE_DIFFERENTIAL").is_ok_and(|v| v == "1");
            return if required { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
        Err(e) => {
            eprintln!("{}: {e}; `make differential-cases` writes it anew", folder.display());
            return ExitCode::FAILURE;
        }
    };
    let known: BTreeSet<String> = supported_ops()
        .map(|op| match op.domain {
            "ai.onnx" => op.name.to_owned(),
            domain => format!("{domain}.{}", op.name),
        })
        .collect();
    let counts: Arc<Mutex<BTreeMap<String, Counts>>> = Arc::default();
    let mut trials = Vec::new();
    let listed = tables::listed(&known, &suite);
    trials.push(Trial::test("every row has a generator", move || listed.map_err(Into::into)));
    let rows = suite.rows.iter().filter(|row| known.contains(*row));
    for row in rows {
        for gradient in [false, true] {
            let (row, suite, counts) = (row.clone(), Arc::clone(&suite), Arc::clone(&counts));
            let name = if gradient { format!("gradient of {row}") } else { row.clone() };
            let run = move || run(&suite, &row, gradient, &counts).map_err(Into::into);
            trials.push(Trial::test(name, run));
        }
    }
    let whole = args.filter.is_none() && args.skip.is_empty() && !args.list;
    if whole && args.format.is_none() {
        args.format = Some(FormatSetting::Terse);
    }
    let conclusion = libtest_mimic::run(&args, trials);
    let mut is_met = true;
    if whole {
        is_met = report(&counts.lock().expect("no test panics with it"), &suite, &known);
    }
    if is_met { conclusion.exit_code() } else { ExitCode::FAILURE }
}

/// All cases of a row, of its gradient or not.
fn run(
    suite: &Suite,
    row: &str,
    gradient: bool,
    counts: &Mutex<BTreeMap<String, Counts>>,
) -> Result<(), String> {
    let mut own = Counts::default();
    let mut failures = Vec::new();
    let all = suite.cases.iter().filter(|c| c.row == row);
    // What gradients are tried on is right forward, too.
    for case in all.filter(|c| !gradient || c.gradient) {
        let outcome = if gradient { gradient::hold(suite, case) } else { hold(suite, case) };
        match outcome {
            Ok(Outcome::Right) if gradient => own.gradients += 1,
            Ok(Outcome::Right) => own.forward += 1,
            Ok(Outcome::Refused(i)) => {
                let list = if gradient { &mut own.without } else { &mut own.refused };
                *list.entry(i).or_default() += 1;
            }
            Err(e) => failures.push(format!("seed {}: {e}{}", case.seed, shown(suite, case))),
        }
    }
    let mut counts = counts.lock().map_err(|e| e.to_string())?;
    let of_row = counts.entry(row.to_owned()).or_default();
    of_row.forward += own.forward;
    of_row.gradients += own.gradients;
    of_row.refused.extend(own.refused);
    of_row.without.extend(own.without);
    match &failures[..] {
        [] => Ok(()),
        [..] => Err(format!("{} cases of {row} failed\n{}", failures.len(), failures.join("\n"))),
    }
}

/// The operands of a case, for a message.
fn shown(suite: &Suite, case: &Case) -> String {
    let mut text = String::new();
    for input in &case.inputs {
        let (ty, bytes) = suite.operand(input);
        let values = numbers::numbers(&ty, &bytes);
        let part = &values[..values.len().min(8)];
        let more = if values.len() > 8 { ", …" } else { "" };
        text += &format!("\n    {}: {ty} {part:?}{more}", input.name);
    }
    text
}

/// Compiles, runs and compares one case.
fn hold(suite: &Suite, case: &Case) -> Result<Outcome, String> {
    let (bound, feeds): (Vec<_>, Vec<_>) = case.inputs.iter().partition(|i| i.fixed);
    let tensors = |inputs: Vec<&case::Input>| -> Tensors {
        inputs.into_iter().map(|i| (i.name.clone(), suite.operand(i))).collect()
    };
    let planned = match Planned::new(CPU.target(), suite.model(case), tensors(bound)) {
        Ok(planned) => planned,
        Err(e) => return tables::refused(&case.row, &e).map(Outcome::Refused).ok_or(e),
    };
    let found = planned.run(&tensors(feeds), 1)?;
    let found = found.first().ok_or("nothing ran")?;
    for ((output, (name, ty)), bytes) in case.outputs.iter().zip(planned.outputs()).zip(found) {
        let (right_ty, right) = suite.right(output);
        if name != output.name || *ty != right_ty {
            return Err(format!("`{name}` is {ty}, not {right_ty}"));
        }
        compare(ty, bytes, &right).map_err(|e| format!("`{name}` ({ty}): {e}"))?;
    }
    Ok(Outcome::Right)
}

fn compare(ty: &TensorType, bytes: &[u8], right: &Right) -> Result<(), String> {
    let found = numbers::numbers(ty, bytes);
    match right {
        Right::Exactly(right) => {
            let size = ty.dtype.size() as usize;
            let pairs = bytes.chunks(size).zip(right.chunks(size));
            let Some(at) = pairs.into_iter().position(|(a, b)| a != b) else { return Ok(()) };
            let right = numbers::numbers(ty, right);
            Err(format!("element {at} is {}, not {}", found[at], right[at]))
        }
        Right::Near(right, tolerance) => {
            for (i, ((&x, &y), &by)) in found.iter().zip(right).zip(tolerance).enumerate() {
                let is_near = x == y || (x - y).abs() <= by || (x.is_nan() && y.is_nan());
                if !is_near {
                    return Err(format!("element {i} is {x}, not {y} (within {by:e})"));
                }
            }
            Ok(())
        }
    }
}

/// Prints what was tried; false where something is listed that no case met.
fn report(counts: &BTreeMap<String, Counts>, suite: &Suite, known: &BTreeSet<String>) -> bool {
    println!("cases by operator, right results + right gradients:");
    let line: Vec<String> = counts
        .iter()
        .map(|(row, c)| {
            let refused: usize = c.refused.values().chain(c.without.values()).sum();
            let refused = if refused > 0 { format!(" ({refused} refused)") } else { String::new() };
            format!("{row} {}+{}{refused}", c.forward, c.gradients)
        })
        .collect();
    println!("  {}", line.join(", "));
    let new = suite.rows.iter().filter(|row| !known.contains(*row));
    let new: Vec<&str> = new.map(String::as_str).collect();
    println!("generators without a row, for when there is one: {}", new.join(", "));
    let mut is_met = true;
    let mut met =
        |what: &str, list: &[tables::Refusal], of: fn(&Counts) -> &BTreeMap<usize, usize>| {
            for (i, refusal) in list.iter().enumerate() {
                let all = counts.values().filter_map(|c| of(c).get(&i));
                let n: usize = all.sum();
                println!("{what}, {n} cases: {} ({})", refusal.says, refusal.row);
                is_met &= n > 0;
                if n == 0 {
                    eprintln!(
                        "tables.rs lists `{}` of {}, which no case met",
                        refusal.says, refusal.row
                    );
                }
            }
        };
    met("refused", tables::REFUSED, |c| &c.refused);
    met("without a gradient", tables::WITHOUT_GRADIENT, |c| &c.without);
    let forward: usize = counts.values().map(|c| c.forward).sum();
    let gradients: usize = counts.values().map(|c| c.gradients).sum();
    println!("{forward} results and {gradients} gradients of {} operators", counts.len());
    is_met
}
