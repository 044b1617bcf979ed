//! Every pass on text: `tests/<pass>/<case>.ir` in, a snapshot in `snapshots/` out.
//!
//! The first line of a case, `# run: a, b`, names the passes to run; without it the pass
//! of the folder runs alone. `# device memory: N` limits the arena to so many bytes, `# target: NAME` is another
//! backend than the CPU's, and `# device: NAME` the device that times are for. Cases called `not_*` show what a pass must leave alone. A
//! case that ends with a program was accepted by the checker.

use arenic::evaluator::Kernels;
use arenic_backends::CPU;
use arenic_ir::Backend;
use arenic_ir::program::PerSpace;
use arenic_ir::text::Module;
use arenic_passes::devices::{self, NAMED};
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Cx, all_passes};
use std::path::Path;

fn run_case(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let module = Module::parse(&text, &arenic_backends::ALL)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let folder = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let passes = text.lines().next().and_then(|l| l.strip_prefix("# run: ")).unwrap_or(folder);
    let yaml: String = passes.split("; ").map(|p| format!("- {p}\n")).collect();
    let pipeline = Pipeline::parse(&yaml).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let limit = text.lines().find_map(|l| l.strip_prefix("# device memory: ")?.parse().ok());
    let limits = PerSpace { device: limit, host: None };
    let said = |what: &str| text.lines().find_map(|l| l.strip_prefix(what));
    let backend = said("# target: ").map_or(CPU, |name| {
        let named = |b: &&Backend| b.name == name;
        *arenic_backends::ALL.iter().find(named).unwrap_or_else(|| panic!("{}", path.display()))
    });
    let device = said("# device: ").map(|name| {
        let (_, text) = NAMED.iter().find(|(n, _)| *n == name).unwrap();
        devices::parse(text).unwrap()
    });
    let target = Cx { limits, device: device.as_ref(), ..Cx::new(backend.target()) };
    let cx = Cx { evaluate: Some(&Kernels), ..target };
    match pipeline.run_on(module, &cx, RunOptions::default()) {
        Ok(outcome) => outcome.module.to_string(),
        Err(e) => format!("error: {e}\n"),
    }
}

#[test]
fn snapshots() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    insta::with_settings!({
        snapshot_path => "../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        for pass in all_passes() {
            let mut cases: Vec<_> = std::fs::read_dir(tests.join(pass.name))
                .unwrap_or_else(|_| panic!("the pass `{}` has no cases", pass.name))
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension().is_some_and(|e| e == "ir"))
                .collect();
            cases.sort();
            assert!(!cases.is_empty(), "the pass `{}` has no cases", pass.name);
            for case in cases {
                let name = case.file_stem().unwrap().to_str().unwrap();
                insta::assert_snapshot!(format!("{}__{name}", pass.name), run_case(&case));
            }
        }
    });
}

/// What a pass printed parses and prints again the same.
#[test]
fn output_is_a_fixed_point_of_parse_and_print() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for pass in all_passes() {
        for entry in std::fs::read_dir(tests.join(pass.name)).unwrap() {
            let path = entry.unwrap().path();
            let printed = run_case(&path);
            if printed.starts_with("error: ") {
                continue;
            }
            let again = Module::parse(&printed, &arenic_backends::ALL)
                .unwrap_or_else(|e| panic!("{}: {e}\n{printed}", path.display()));
            assert_eq!(again.to_string(), printed, "{}", path.display());
        }
    }
}
