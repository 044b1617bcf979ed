//! Every fuzzer for a moment, the same one every time: the whole corpus, with the inputs that once
//! did harm, and some changes to it.
//!
//! `ARENIC_FUZZ_SECONDS` gives each target a time instead of a number of changes, and
//! `ARENIC_FUZZ_SEED` gives it other changes.

use arenic_fuzz::short::{Amount, run};
use arenic_fuzz::target;
use std::path::Path;
use std::time::Duration;

/// Changes of each target beside its corpus.
const CHANGES: usize = 100;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn fuzz(name: &str) {
    let target = target(name).unwrap_or_else(|| panic!("no target {name}"));
    let amount = match number("ARENIC_FUZZ_SECONDS") {
        Some(seconds) => Amount::Time(Duration::from_secs(seconds)),
        None => Amount::Changes(CHANGES),
    };
    let seed = number("ARENIC_FUZZ_SEED").unwrap_or(1);
    let outcome = run(target, seed, amount).unwrap();
    let (executions, accepted) = (outcome.executions, outcome.accepted);
    println!("{name}: {executions} executions, {accepted} accepted, in {:?}", outcome.elapsed);
    // The input is all that is needed to see it again.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts");
    let mut all = Vec::new();
    for (i, (what, input)) in outcome.crashes.iter().enumerate() {
        let path = folder.join(format!("{name}-{seed}-{i}"));
        std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input)).unwrap();
        all.push(format!("{what}: {}", path.display()));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
    // Otherwise nothing behind the reader was tried.
    assert!(accepted * 20 > executions, "only {accepted} of {executions} inputs were accepted");
}

/// One test for each target.
macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            fuzz(stringify!($name));
        })*

        #[test]
        fn every_target_has_a_test() {
            let tests = [$(stringify!($name)),*];
            assert_eq!(arenic_fuzz::TARGETS.map(|t| t.name), tests);
        }
    };
}

targets!(onnx_step onnx_forward checkpoint npz safetensors envelope artifact text placement
         memory_graph trace snapshot pipeline_yaml device_yaml pipelines programs);
