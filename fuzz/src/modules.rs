//! The text form, and random programs.

use arenic_ir::check::check;
use arenic_ir::text::Module;
use arenic_ir::verify::verify;
use arenic_programs::interleave::{reference, run};
use arenic_programs::mutate::{KINDS, mutate};
use arenic_programs::{Random, graph, program};

/// What is parsed and printed is parsed again to the same.
pub(crate) fn text(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(module) = Module::parse(text, &arenic_backends::ALL) else { return false };
    let printed = module.to_string();
    match Module::parse(&printed, &arenic_backends::ALL) {
        // NaN is unlike itself, but not its text.
        Ok(again) => assert!(again.to_string() == printed, "printed otherwise:\n{printed}"),
        Err(e) => panic!("what was printed is not parsed: {e}\n{printed}"),
    }
    if verify(&module.graph).is_ok()
        && let Some(program) = &module.program
    {
        let _ = check(&module.graph, program);
    }
    true
}

/// A random graph and program, then eight changes, one upon the other. What `check` accepts gives
/// the reference interpreter's results for three steps in every order tried.
pub(crate) fn programs(bytes: &[u8]) -> bool {
    let mut random = Random::of(bytes);
    let streams = 1 + random.below(3);
    let nodes = 2 + random.below(9);
    let g = graph(&mut random, nodes);
    let whole = program(&mut random, &g, streams);
    let expected = reference(&g, 3);
    let (mut p, mut accepted) = (whole.clone(), whole.clone());
    for change in 0..=8 {
        match check(&g, &p) {
            Ok(_) => {
                accepted.clone_from(&p);
                for _ in 0..4 {
                    let right = run(&mut random, &g, &p, &expected);
                    assert!(right, "accepted after {change} changes, and wrong:\n{g}{whole}{p}");
                }
            }
            Err(violations) => {
                assert!(change > 0, "refused: {violations:?}\n{g}{p}");
                // A wrong program seldom becomes a right one by a further change.
                if random.chance(75) {
                    p.clone_from(&accepted);
                }
            }
        }
        let kind = random.pick(&KINDS);
        if let Some(mutant) = mutate(&mut random, &g, &p, kind, streams) {
            p = mutant;
        }
    }
    true
}
