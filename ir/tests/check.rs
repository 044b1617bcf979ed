//! Every invariant of programs has a case here that breaks it and is refused for it.

use arenic_backends::CUDA;
use arenic_ir::check::{Footprint, Invariant, Violation, check};
use arenic_ir::text::Module;
use arenic_ir::verify::verify;
use arenic_ir::{Math, TargetInfo};

const GRAPH: &str = r#"graph "w -= relu(x) + 1" {
  input v0: f32[16] "x"
  const v1: f32[16] "one" = ...
  state s0 "w": v2: f32[16] -> v5 = ...
  n0 unary {"f":"relu"} (v0) -> (v3: f32[16])
  n1 binary {"f":"add"} (v3, v1) -> (v4: f32[16])
  n2 binary {"f":"sub"} (v2, v4) -> (v5: f32[16])
  output "step" v4
}
"#;

const PROGRAM: &str = "program {
  align 64
  device 256
  host 0
  home v0 device[128+64]
  home v1 device[64+64]
  home v2 device[0+64]
  run n0 stream0 (device[128+64]) -> (device[128+64])
  record stream0 event0
  wait stream1 event0
  run n1 stream1 (device[128+64], device[64+64]) -> (device[192+64])
  record stream1 event1
  wait stream0 event1
  run n2 stream0 (device[0+64], device[192+64]) -> (device[0+64])
  output device[192+64]
}
";

fn judge(program: &str) -> Result<Footprint, Vec<Violation>> {
    let module = Module::parse(&format!("{GRAPH}{program}"), &arenic_backends::ALL).unwrap();
    verify(&module.graph).unwrap();
    check(&module.graph, &module.program.unwrap())
}

/// The program with one line replaced breaks exactly this invariant first.
fn breaks(line: &str, with: &str, invariant: Invariant) {
    assert!(PROGRAM.contains(line), "{line}");
    let violations = judge(&PROGRAM.replacen(line, with, 1)).unwrap_err();
    assert!(
        violations.iter().any(|v| v.invariant == invariant),
        "`{line}` → `{with}`: {violations:?}"
    );
}

#[test]
fn accepts_and_measures() {
    let footprint = judge(PROGRAM).unwrap();
    assert_eq!(footprint.arena_bytes.device, 256);
    assert_eq!(footprint.live_peak_bytes.device, 256);
    // x is handed over to relu's result in place, so both count once.
    let x = &footprint.occupancies[0];
    assert_eq!((x.first, x.end), (0, 0));
}

#[test]
fn i5_ranges_in_bounds_and_aligned() {
    breaks("device 256", "device 255", Invariant::Bounds);
    breaks("device 256", "device 320", Invariant::Bounds);
    breaks("home v0 device[128+64]", "home v0 device[120+64]", Invariant::Bounds);
    breaks("home v0 device[128+64]", "home v0 device[64+64]", Invariant::Bounds);
    breaks("-> (device[192+64])", "-> (device[18446744073709551615+64])", Invariant::Bounds);
}

/// What waits for the next step has bytes of its own, which count throughout.
#[test]
fn i5_inputs_wait_where_nothing_else_is() {
    let waits = |ahead: &str| {
        let program = PROGRAM.replace("device 256", "device 320");
        program.replace("  run n0", &format!("{ahead}  run n0"))
    };
    let footprint = judge(&waits("  ahead v0 device[256+64]\n")).unwrap();
    assert_eq!(footprint.arena_bytes.device, 320);
    assert_eq!(footprint.live_peak_bytes.device, 320);
    for (ahead, invariant) in [
        ("  ahead v0 device[192+64]\n", Invariant::Bounds),
        ("  ahead v0 device[0+64]\n", Invariant::Bounds),
        ("  ahead v0 device[260+64]\n", Invariant::Bounds),
        ("  ahead v0 device[320+64]\n", Invariant::Bounds),
        ("  ahead v0 device[256+32]\n", Invariant::Shape),
        ("  ahead v1 device[256+64]\n", Invariant::Shape),
        ("  ahead v0 device[256+64]\n  ahead v0 device[256+64]\n", Invariant::Shape),
    ] {
        let violations = judge(&waits(ahead)).unwrap_err();
        assert!(violations.iter().any(|v| v.invariant == invariant), "{ahead}: {violations:?}");
    }
}

/// The same program is right but for a kernel that works on host memory.
#[test]
fn i5_kernels_reach_the_device_alone() {
    let program = PROGRAM.replace("device[192+64]", "host[0+64]");
    let program = program.replace("device 256", "device 192").replace("host 0", "host 64");
    let violations = judge(&program).unwrap_err();
    assert!(violations.iter().all(|v| v.invariant == Invariant::Bounds), "{violations:?}");
    assert!(violations[0].message.contains("host[0+64]"), "{violations:?}");
}

#[test]
fn i6_operands_are_where_they_are_read() {
    breaks("(device[0+64], device[192+64])", "(device[0+64], device[64+64])", Invariant::Content);
    breaks("run n0 stream0 (device[128+64])", "run n0 stream0 (device[0+64])", Invariant::Content);
    // n1 runs before its operand exists.
    breaks("  run n0 stream0 (device[128+64]) -> (device[128+64])\n", "", Invariant::Content);
}

#[test]
fn i7_in_place_only_for_declared_pairs() {
    // A product reads its operands many times, so it declares no pair.
    let text = r#"graph "" {
  input v0: f32[4,4] "x"
  n0 mat_mul (v0, v0) -> (v1: f32[4,4])
  output "y" v1
}
program {
  align 64
  device 64
  host 0
  home v0 device[0+64]
  run n0 stream0 (device[0+64], device[0+64]) -> (device[0+64])
  output device[0+64]
}
"#;
    let module = Module::parse(text, &arenic_backends::ALL).unwrap();
    let violations = check(&module.graph, &module.program.unwrap()).unwrap_err();
    assert_eq!(violations[0].invariant, Invariant::Alias);
    // A declared pair, but half a range off.
    let shifted = PROGRAM.replace("align 64", "align 4").replace("device 256", "device 288");
    let shifted = shifted
        .replace("(device[128+64]) -> (device[128+64])", "(device[128+64]) -> (device[160+64])");
    let violations = judge(&shifted).unwrap_err();
    assert_eq!(violations[0].invariant, Invariant::Alias);
}

#[test]
fn i8_conflicts_are_ordered() {
    breaks("  wait stream1 event0\n", "", Invariant::Race);
    breaks("  wait stream0 event1\n", "", Invariant::Race);
    breaks("run n1 stream1", "run n1 stream2", Invariant::Race);
}

#[test]
fn i9_records_precede_waits_and_happen_once() {
    breaks("  record stream0 event0\n", "", Invariant::Event);
    breaks("record stream1 event1", "record stream1 event0", Invariant::Event);
}

#[test]
fn i10_homes_and_outputs_are_closed() {
    // The update goes elsewhere and is not copied home.
    breaks("-> (device[0+64])", "-> (device[128+64])", Invariant::Closing);
    breaks("output device[192+64]", "output device[128+64]", Invariant::Closing);
    breaks("  home v2 device[0+64]\n", "", Invariant::Closing);
    // Something is written into a constant's home.
    breaks(
        "  output device",
        "  copy stream0 device[192+64] -> device[64+64]\n  output device",
        Invariant::Closing,
    );
    // A stream that has work left when the first one ends.
    breaks(
        "  output device",
        "  copy stream1 device[192+64] -> device[128+64]\n  output device",
        Invariant::Closing,
    );
}

#[test]
fn shapes_fit_the_nodes() {
    breaks("(device[128+64], device[64+64])", "(device[128+64])", Invariant::Shape);
    breaks("-> (device[192+64])", "-> (_)", Invariant::Shape);
    breaks("-> (device[192+64])", "-> (device[192+60])", Invariant::Shape);
    breaks("home v0 device[128+64]", "home v3 device[128+64]", Invariant::Shape);
    breaks("  output device[192+64]\n", "", Invariant::Shape);
}

#[test]
fn a_carried_constant_must_stay() {
    let footprint = judge(PROGRAM).unwrap();
    let constant = footprint.occupancies.iter().find(|o| o.kind.name() == "const").unwrap();
    assert_eq!((constant.first, constant.end), (0, 7));
}

#[test]
fn targets_are_printed_as_they_are_read() {
    let line = |target: &str| {
        let text = PROGRAM.replacen("  align 64\n", &format!("  {target}\n  align 64\n"), 1);
        let module = Module::parse(&format!("{GRAPH}{text}"), &arenic_backends::ALL);
        module.map(|m| (m.to_string(), m.program.unwrap().target))
    };
    for (text, workspace, math) in [
        ("target cuda", 0, Math::F32),
        ("target cuda workspace 4096", 4096, Math::F32),
        ("target cuda math tf32", 0, Math::Tf32),
        ("target cuda workspace 4096 math tf32", 4096, Math::Tf32),
    ] {
        let (printed, target) = line(text).unwrap();
        assert!(printed.contains(&format!("  {text}\n  align 64\n")), "{printed}");
        let expected = TargetInfo { backend: CUDA, align: 64, workspace, math };
        assert_eq!(target, expected);
    }
    for wrong in ["target cuda workspace", "target cuda math f16", "target cuda workspace 1 1"] {
        assert!(line(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_library_needs_its_workspace() {
    let text = |scratch: &str| {
        format!(
            r#"graph "product" {{
  input v0: f32[32,32] "a"
  input v1: f32[32,32] "b"
  n0 mat_mul {{"trans_a":false,"trans_b":false}} (v0, v1) -> (v2: f32[32,32])
  output "y" v2
}}
program {{
  target cuda workspace 2048
  align 256
  device 14336
  host 0
  home v0 device[0+4096]
  home v1 device[4096+4096]
  run n0 stream0 (device[0+4096], device[4096+4096]) -> (device[8192+4096]) scratch {scratch}
  output device[8192+4096]
}}
"#
        )
    };
    let judge = |scratch| {
        let module = Module::parse(&text(scratch), &arenic_backends::ALL).unwrap();
        check(&module.graph, &module.program.unwrap())
    };
    assert_eq!(judge("device[12288+2048]").err(), None);
    let violations = judge("device[12288+1792]").unwrap_err();
    let said = |v: &Violation| v.to_string().contains("needs 2048 bytes of scratch");
    assert!(violations.iter().any(said), "{violations:?}");
}

/// The step moves bytes of an input within its own home once it was read.
const SHUFFLED: &str = r#"graph "" {
  input v0: f32[32] "x"
  n0 unary {"f":"relu"} (v0) -> (v1: f32[32])
  output "y" v1
}
program {
  align 64
  device 256
  host 0
  home v0 device[0+128]
  run n0 stream0 (device[0+128]) -> (device[128+128])
  copy stream0 device[64+64] -> device[0+64]
  output device[128+128]
}
"#;

#[test]
fn an_input_that_the_step_writes_over_is_fed_each_step() {
    let module = |text: &str| Module::parse(text, &arenic_backends::ALL).unwrap();
    let fed = |text: &str| {
        let Module { graph, program, .. } = module(text);
        check(&graph, program.as_ref().unwrap()).unwrap();
        program.unwrap().fed_each_step(&graph).len()
    };
    assert_eq!(fed(SHUFFLED), 1);
    // An input without elements at the same address is nothing that hides it.
    let beside_nothing = SHUFFLED
        .replace("  n0", "  input v2: f32[0] \"none\"\n  n0")
        .replace("  home v0", "  home v2 device[0+0]\n  home v0");
    assert_eq!(fed(&beside_nothing), 1);
    // Elsewhere than in the home nothing is lost: one feed serves all steps.
    let apart = SHUFFLED.replace("device 256", "device 320");
    assert_eq!(fed(&apart.replace("-> device[0+64]", "-> device[256+64]")), 0);
}

#[test]
fn live_bytes_never_exceed_the_arena() {
    let module = Module::parse(SHUFFLED, &arenic_backends::ALL).unwrap();
    let footprint = check(&module.graph, &module.program.unwrap()).unwrap();
    assert_eq!(footprint.arena_bytes.device, 256);
    assert_eq!(footprint.live_peak_bytes.device, 256);
    // While bytes of the second half are copied over the first, only the second half is x.
    let of_x: Vec<_> = footprint.occupancies.iter().filter(|o| o.value == Some(x(0))).collect();
    let lives: Vec<_> =
        of_x.iter().map(|o| (o.range.offset, o.range.len, o.first, o.end)).collect();
    assert_eq!(lives, [(0, 128, 0, 1), (0, 64, 1, 2), (64, 64, 1, 2)]);
}

fn x(id: u32) -> arenic_ir::ValueId {
    cranelift_entity::EntityRef::new(id as usize)
}

/// What is read of bytes that nobody wrote is nothing, but who reads them races with who
/// writes them next.
#[test]
fn i8_readers_of_nothing_are_remembered() {
    let reading = SHUFFLED
        .replace("device 256", "device 320")
        .replace("  run n0", "  copy stream1 device[128+64] -> device[256+64]\n  run n0")
        .replace("copy stream0 device[64+64] -> device[0+64]", "wait stream0 event0");
    let joined = |at: &str| {
        let text = reading.replacen(at, &format!("  record stream1 event0\n{at}"), 1);
        let module = Module::parse(&text, &arenic_backends::ALL).unwrap();
        check(&module.graph, &module.program.unwrap())
    };
    let violations = joined("  wait stream0").unwrap_err();
    assert_eq!(violations[0].invariant, Invariant::Race, "{violations:?}");
}

/// The next step looks for a state in its home, so that one left elsewhere is refused.
#[test]
fn every_later_step_begins_as_the_first_one() {
    // n2 writes its result beside the home, and what the home gets is the old state again.
    let aside = PROGRAM.replace("device 256", "device 320").replace(
        "(device[0+64], device[192+64]) -> (device[0+64])",
        "(device[0+64], device[192+64]) -> (device[256+64])",
    );
    let violations = judge(&aside).unwrap_err();
    assert_eq!(violations[0].invariant, Invariant::Closing, "{violations:?}");
    let copied = aside.replace(
        "  output device",
        "  copy stream0 device[256+64] -> device[0+64]\n  output device",
    );
    judge(&copied).unwrap();
}

const RANKS: &str = r#"graph "two gradients" {
  input v0: f32[16] "x"
  state s0 "w": v1: f32[16] -> v5
  state s1 "m" part of f32[16]: v2: f32[8] -> v6
  n0 unary {"f":"relu"} (v0) -> (v3: f32[16])
  n1 all_reduce {"ranks":2} (v3) -> (v4: f32[16])
  n2 binary {"f":"sub"} (v1, v4) -> (v5: f32[16])
  n3 reduce_scatter {"ranks":2} (v0) -> (v6: f32[8])
  ranks 2 "x"
}
program {
  align 64
  device 640
  host 0
  home v0 device[0+64]
  home v1 device[64+64]
  home v2 device[128+32]
  run n3 stream1 (device[0+64]) -> (device[128+32]) scratch device[192+128]
  record stream1 event0
  wait stream0 event0
  run n0 stream0 (device[0+64]) -> (device[0+64])
  record stream0 event1
  wait stream1 event1
  run n1 stream1 (device[0+64]) -> (device[0+64]) scratch device[384+256]
  record stream1 event2
  wait stream0 event2
  run n2 stream0 (device[64+64], device[0+64]) -> (device[64+64])
}
"#;

fn judge_ranks(text: &str) -> Result<(), String> {
    let module = Module::parse(text, &arenic_backends::ALL).unwrap();
    assert_eq!(module.to_string(), text);
    verify(&module.graph).map_err(|defect| defect.to_string())?;
    match check(&module.graph, &module.program.unwrap()) {
        Ok(_) => Ok(()),
        Err(violations) => Err(format!("{violations:?}")),
    }
}

/// Ranks that wait for one another in several orders could wait for ever.
#[test]
fn i13_exchanges_between_ranks_have_one_order() {
    judge_ranks(RANKS).unwrap();
    let apart = RANKS.replace("run n1 stream1", "run n1 stream0");
    assert!(judge_ranks(&apart).unwrap_err().contains("Ranks"));
    let third = RANKS.replace("run n3 stream1", "run n3 stream2").replacen(
        "stream1 event0",
        "stream2 event0",
        1,
    );
    assert!(judge_ranks(&third).unwrap_err().contains("Ranks"));
    // All else is proved of them, too.
    let unordered = RANKS.replace("  wait stream1 event1\n", "");
    assert!(judge_ranks(&unordered).unwrap_err().contains("Race"));
    let early = RANKS.replace("  wait stream0 event2\n", "");
    assert!(judge_ranks(&early).unwrap_err().contains("Race"));
    let tight = RANKS.replace("device[384+256]", "device[384+64]");
    assert!(judge_ranks(&tight).unwrap_err().contains("Shape"));
}

/// A graph's operators, and its states' parts, are for as many ranks as run it.
#[test]
fn graphs_of_ranks_agree_about_their_number() {
    let refused = |from: &str, to: &str| judge_ranks(&RANKS.replace(from, to)).unwrap_err();
    assert!(refused("all_reduce {\"ranks\":2}", "all_reduce {\"ranks\":3}").contains("3 ranks"));
    assert!(refused("  ranks 2 \"x\"\n", "").contains("ranks"));
    assert!(refused("ranks 2 \"x\"", "ranks 2 \"y\"").contains("`y` is no input"));
    assert!(refused("part of f32[16]", "part of f32[20]").contains("no part of"));
}
