//! Parts that do not fit one another are refused: by the checker, where an artifact is read, and
//! before a run.

use crate::linear::linear;
use arenic::artifact::{Artifact, Part, Provenance, Target};
use arenic_backends::CUDA;
use arenic_ir::check::{Invariant, check, check_rounds};
use arenic_ir::program::{Command, Program, Range};
use arenic_ir::{Graph, Rounds};
use arenic_runtime::executor::{ExecutorOptions, SetupError};
use arenic_runtime::rounds::InRounds;

/// A change to one of the parts.
type Change = fn(&mut Rounds<Part>);

/// Every part holds by itself after the change; what all of them together break.
fn between(change: Change) -> Vec<String> {
    let mut target = linear();
    let rounds = target.rounds.as_deref_mut().unwrap();
    change(rounds);
    fitted(&mut rounds.before.program);
    fitted(&mut rounds.after.program);
    let turns = target.turns();
    for turn in &turns {
        check(turn.graph, turn.program).unwrap();
    }
    let parts: Vec<_> = turns.iter().map(|turn| (turn.graph, turn.program)).collect();
    let violations = check_rounds(&parts).unwrap_err();
    assert!(violations.iter().all(|v| v.invariant == Invariant::Closing));
    // Nothing that breaks this can be made ready to run.
    let whole = target.whole_step().unwrap().unwrap();
    let refused = InRounds::on_cpu(&whole, ExecutorOptions::default()).err();
    assert!(matches!(refused, Some(SetupError::Check(again)) if again == violations));
    violations.into_iter().map(|v| v.message).collect()
}

/// All ranges of a program.
fn ranges(program: &mut Program) -> Vec<&mut Range> {
    let homes = program.homes.iter_mut().map(|home| &mut home.range);
    let of_commands = program.commands.iter_mut().flat_map(|command| match command {
        Command::Run { reads, writes, .. } => {
            reads.iter_mut().chain(writes.iter_mut().flatten()).collect::<Vec<_>>()
        }
        Command::Copy { from, to, .. } => vec![from, to],
        _ => Vec::new(),
    });
    homes.chain(&mut program.outputs).chain(of_commands).collect()
}

/// Moves every use of a range's bytes elsewhere.
fn moved(part: &mut Part, from: u64, to: u64) {
    let all = ranges(&mut part.program).into_iter();
    all.filter(|r| r.offset == from).for_each(|r| r.offset = to);
}

/// An arena is as large as what is used of it.
fn fitted(program: &mut Program) {
    let end = ranges(program).into_iter().map(|r| r.end()).max().unwrap_or(0);
    program.sizes.device = end.next_multiple_of(program.target.align);
}

#[test]
fn parts_that_are_changed_hold_no_more() {
    let said = between(|rounds| moved(&mut rounds.after, 768, 2560));
    assert_eq!(said, ["part 2: s3 has another home than in part 0"]);

    let said = between(|rounds| rounds.after.program.target.align = 128);
    assert_eq!(said, ["part 2: it is for another target than part 0"]);
    let said = between(|rounds| rounds.before.program.target.backend = CUDA);
    assert_eq!(said[0], "part 1: it is for another target than part 0");

    let renamed: Change = |rounds| {
        rounds.after.graph.states.values_mut().last().unwrap().name = "other".into();
    };
    assert_eq!(between(renamed), ["part 2: s3 is `other`, in part 0 `rate`"]);
    let kept: Change = |rounds| {
        rounds.after.graph.states.values_mut().last().unwrap().carried = false;
    };
    assert_eq!(between(kept), ["part 2: s3 is `rate`, in part 0 `rate`"]);

    // A constant of the last part where the first one puts its input.
    let said = between(|rounds| moved(&mut rounds.before, 4096, 2048));
    assert_eq!(said, ["part 0 uses device[2048+4], where part 2 has a constant"]);
    // A constant of the first part where a round has a result.
    let said = between(|rounds| {
        moved(&mut rounds.before, 1536, 4608);
    });
    assert_eq!(
        said,
        [
            "part 1 uses device[4608+8], where part 0 has a constant",
            "part 2 uses device[4608+4], where part 0 has a constant"
        ]
    );
    // Two constants at one place.
    let said = between(|rounds| moved(&mut rounds.after, 2048, 1280));
    assert_eq!(said.len(), 2, "{said:?}");

    // A state that one part lacks.
    let fewer: Change = |rounds| {
        let g = &rounds.before.graph;
        let mut without = Graph { states: cranelift_entity::PrimaryMap::new(), ..g.clone() };
        g.states.values().take(3).for_each(|state| {
            without.states.push(state.clone());
        });
        let v = g.states.values().last().unwrap().enter;
        without.values[v].def = arenic_ir::Def::Input;
        without.values[v].name = "rate".into();
        rounds.before.graph = without;
    };
    assert_eq!(
        between(fewer),
        ["part 1: 4 states, part 0 has 3", "part 2: 4 states, part 0 has 3"]
    );
}

#[test]
fn a_part_that_breaks_its_graph_is_named() {
    let mut target = linear();
    target.rounds.as_deref_mut().unwrap().after.program.commands.pop();
    let violations = target.check().unwrap_err();
    assert!(violations.iter().all(|v| v.message.starts_with("part 2: ")), "{violations:?}");
}

/// What reading an artifact of this target says.
fn reading(target: Target) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.arenic");
    let artifact = Artifact {
        targets: vec![target],
        evaluations: Vec::new(),
        defaults: Default::default(),
        provenance: Provenance::default(),
        runnable: true,
        recipe: None,
        drops: None,
        origin: None,
    };
    artifact.write(&path).unwrap();
    let said = Artifact::read(&path).unwrap_err().to_string();
    said.split_once("` ").unwrap().1.to_owned()
}

#[test]
fn rounds_of_no_step_are_refused_where_they_are_read() {
    let read = |change: Change| {
        let mut target = linear();
        change(target.rounds.as_deref_mut().unwrap());
        reading(target)
    };
    let said = read(|rounds| rounds.count = 0);
    assert_eq!(said, "holds rounds of no step: the step has no rounds");
    let said = read(|rounds| {
        rounds.by_rows.insert("z".into());
    });
    let expected = "holds rounds of no step: `z` goes by rows, but is neither an input nor an \
                    output of a round";
    assert_eq!(said, expected);
    let said = read(|rounds| rounds.count = 3);
    let expected = "holds rounds of no step: the input `target` is f32[6,1] to one part and \
                    f32[8,1] to another";
    assert_eq!(said, expected);
    let said = read(|rounds| rounds.count = u32::MAX);
    assert!(said.starts_with("holds rounds of no step: the input `target` is f32["), "{said}");
    let said = read(|rounds| rounds.after.graph.outputs[0].name = "y".into());
    let expected = "holds rounds of no step: the step is malformed: output `y`: the name comes \
                    twice";
    assert_eq!(said, expected);
    let said = read(|rounds| {
        // A module that cannot be read: a constant has too few elements.
        let v = rounds.before.graph.consts().next().unwrap().0;
        rounds.before.graph.values[v].ty.shape[0] = 5;
    });
    assert!(said.starts_with("holds an unreadable module: "), "{said}");
    let said = read(|rounds| {
        let g = &mut rounds.before.graph;
        g.states.values_mut().last().unwrap().name = "w".into();
    });
    let expected = "holds a malformed graph: s3 `w`: another state has the same name";
    assert_eq!(said, expected);

    let mut target = linear();
    let output = &mut target.graph.outputs[0];
    output.value = target.graph.states.values().last().unwrap().enter;
    assert_eq!(reading(target), "holds rounds of no step: `y` goes by rows, but is a scalar");
}
