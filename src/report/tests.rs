use super::{Arena, Rectangle, Report, Unplaced};
use crate::artifact::{Certificate, Figures, Provenance, Target};
use crate::compile::{Constraints, compile};
use crate::mapping::Mapping;
use crate::model::Model;
use crate::onnx::ImportOptions;
use crate::placement;
use arenic_ir::check::{Footprint, check};
use arenic_ir::program::{PerSpace, Space};
use arenic_ir::text::Module;
use arenic_passes::accumulate::Accumulate;
use arenic_passes::certificate::certificate;
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Cx, Search, Standard};
use std::path::Path;

const DIGITS: &str = "models/digits/digits_step.onnx";

fn compiled(model: &str) -> (Target, Provenance, Footprint) {
    compiled_by(model, &Pipeline::named("default", &Standard).unwrap(), None)
}

fn compiled_by(
    model: &str,
    pipeline: &Pipeline,
    limit: Option<u64>,
) -> (Target, Provenance, Footprint) {
    let mut import = ImportOptions { plan_only: true, ..ImportOptions::default() };
    if model == DIGITS {
        import.dims.insert("batch".into(), 32);
    }
    let constraints = Constraints {
        limits: PerSpace { device: limit, ..PerSpace::default() },
        ..Constraints::default()
    };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join(model);
    let done = compile(
        &Model::open(&model).unwrap(),
        &import,
        pipeline,
        constraints,
        Search::default(),
        RunOptions::default(),
    );
    let done = done.unwrap();
    let artifact = done.artifact.unwrap();
    let [target] = <[Target; 1]>::try_from(artifact.targets).unwrap();
    (target, artifact.provenance, done.footprint.unwrap())
}

fn of_text(text: &str) -> (Report, Footprint) {
    let module = Module::parse(text, &arenic_backends::ALL).unwrap();
    let program = module.program.unwrap();
    let footprint = check(&module.graph, &program).unwrap();
    let target = Target {
        variant: String::new(),
        structure: String::new(),
        name: "cpu".into(),
        graph: module.graph,
        program,
        figures: Figures::default(),
        certificate: Certificate::default(),
        bound: Vec::new(),
        fed: Default::default(),
        kernels: None,
        rounds: None,
        file: Mapping::default(),
    };
    (Report::of_target(&target, &Provenance::default(), &footprint), footprint)
}

fn named<'a>(arena: &'a Arena, name: &str) -> Vec<&'a Rectangle> {
    arena.rectangles.iter().filter(|r| r.name == name).collect()
}

#[test]
fn the_curve_is_what_the_checker_measured() {
    for model in [DIGITS, "models/step/ref_gpt_tiny_b4_adamw.onnx"] {
        let (target, provenance, footprint) = compiled(model);
        let report = Report::of_target(&target, &provenance, &footprint);
        let [arena] = &report.arenas[..] else { panic!("{} arenas", report.arenas.len()) };
        let (at, peak) = arena.peak();
        assert_eq!(peak, footprint.live_peak_bytes.device);
        assert_eq!(arena.bytes, target.figures.arena_bytes);
        assert_eq!(arena.lower_bound, Some(target.figures.lower_bound_bytes));
        assert_eq!(arena.live().last(), Some(&(arena.span.1, 0)));
        // `arenic explain order` names the operator by its order alone.
        let cx = Cx::new(target.program.target);
        let order = certificate(&target.graph, target.program.nodes(), None, &cx).unwrap();
        let node = &target.graph.nodes[order.at.unwrap()];
        assert_eq!(order.peak, peak);
        assert_eq!(report.tasks[at as usize], format!("{} ({})", node.name, node.op.name()));
    }
}

#[test]
fn tensors_of_a_step_have_kinds_and_reasons() {
    let (target, provenance, footprint) = compiled(DIGITS);
    let report = Report::of_target(&target, &provenance, &footprint);
    assert_eq!(report.title, "digits_step.onnx");
    let arena = &report.arenas[0];
    assert_eq!(arena.tensors, arena.rectangles.len());
    for (name, kind, why) in [
        ("x", "input", "Input: fed before the step; kept for its last reader `Conv."),
        ("momentum", "constant", "Constant: there in every step, so it stays."),
        ("conv2.weight", "weight", "State: carried from step to step, so its home stays"),
        ("m.conv2.weight", "optimizer state", "State: carried"),
        ("z2", "activation", "Made by `Conv.z2` (conv); until `Relu.a2` (unary) writes over it"),
        ("a2", "activation", "Made by `Relu.a2` (unary), over the bytes of `z2` in place; kept"),
        ("d.a1", "gradient", "Made by `ConvTranspose.d.a1` (conv_transpose); until"),
        (
            "out_conv2.weight",
            "update",
            "Made by `Sub.out_conv2.weight` (pointwise) in the home of state `conv2.weight`, \
             over the bytes of `conv2.weight` in place; stays as the next value of `conv2.weight`.",
        ),
        ("loss", "activation", "kept to the end as output `loss`."),
        ("scratch of Conv.z2 (conv)", "scratch", "Scratch: for this one task alone."),
    ] {
        let found = named(arena, name);
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!(found[0].kind, kind, "{name}");
        assert!(found[0].reason.contains(why), "{name}: {}", found[0].reason);
    }
}

#[test]
fn tensors_of_a_round_are_for_what_they_are_for_in_the_step() {
    let whole = compiled(DIGITS).0.figures.arena_bytes;
    let pipeline = Pipeline::named("default", &Standard).unwrap();
    let in_rounds = pipeline.in_micro_batches(Accumulate::default());
    let (target, provenance, footprint) = compiled_by(DIGITS, &in_rounds, Some(whole / 2));
    let report = Report::of_target(&target, &provenance, &footprint);
    let count = target.rounds.as_ref().unwrap().count;
    assert!(report.about.contains(&format!(" operators in each of {count} micro-batches, ")));
    for (name, kind) in [
        ("conv2.weight", "weight"),
        ("m.conv2.weight", "optimizer state"),
        ("a2", "activation"),
        ("d.a1", "gradient"),
        // The loss, which is known after the last round, and what nobody trains on.
        ("sum mean_log_p", "activation"),
        ("sum accuracy", "activation"),
    ] {
        let found = named(&report.arenas[0], name);
        assert!(!found.is_empty(), "{name}");
        found.iter().for_each(|r| assert_eq!(r.kind, kind, "{name}"));
    }
}

/// `x` is swapped out while `y` is computed, and `r` is computed twice.
const SWAP: &str = r#"graph "swap" {
  input v0: f32[16] "x"
  state s0 "w": v1: f32[16] -> v4
  n0 unary {"f":"relu"} (v0) -> (v2: f32[16] "r")
  n1 unary {"f":"exp"} (v2) -> (v3: f32[16] "y")
  n2 binary {"f":"add"} (v2, v0) -> (v4: f32[16] "next")
  output "y" v3
}
program {
  align 64
  device 256
  host 64
  home v0 device[64+64]
  home v1 device[0+64]
  run n0 stream0 (device[64+64]) -> (device[128+64])
  copy stream0 device[64+64] -> host[0+64]
  run n1 stream0 (device[128+64]) -> (device[192+64])
  copy stream0 host[0+64] -> device[64+64]
  run n0 stream0 (device[64+64]) -> (device[128+64])
  run n2 stream0 (device[128+64], device[64+64]) -> (device[128+64])
  copy stream0 device[128+64] -> device[0+64]
  output device[192+64]
}
"#;

#[test]
fn swaps_recomputation_and_commits_are_told() {
    let (report, footprint) = of_text(SWAP);
    assert_eq!(report.tasks[1], "copy to host");
    assert_eq!(report.tasks[6], "copy");
    let [device, host] = &report.arenas[..] else { panic!("{} arenas", report.arenas.len()) };
    for (arena, space) in [(device, Space::Device), (host, Space::Host)] {
        assert_eq!(arena.peak().1, footprint.live_peak_bytes[space]);
        assert_eq!(arena.bytes, footprint.arena_bytes[space]);
    }
    let out = named(host, "x")[0];
    assert_eq!((&*out.kind, out.span), ("copy", (1, 4)));
    let said = "Swapped out to host memory; kept until it is copied to device memory.";
    assert_eq!(out.reason, said);
    let [x, back] = named(device, "x")[..] else { panic!() };
    assert_eq!(x.reason, "Input: fed before the step; kept until it is copied to host memory.");
    assert!(back.reason.starts_with("Brought back from host memory; kept for its last reader"));
    let [first, second] = named(device, "r")[..] else { panic!() };
    assert!(first.reason.starts_with("Made by unary n0; kept for its last reader unary n1"));
    assert!(second.reason.starts_with("Made once more by unary n0; until binary n2 writes over"));
    let [next, committed] = named(device, "next")[..] else { panic!() };
    assert!(next.reason.ends_with("kept until it is copied home, as next value of `w`."));
    assert_eq!(committed.kind, "update");
    assert_eq!(committed.counted, 0, "its home is counted already");
    assert_eq!(named(device, "y")[0].reason, "Made by unary n1; kept to the end as output `y`.");
}

fn placed(text: &str) -> Result<Report, Unplaced> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.csv");
    std::fs::write(&path, text).unwrap();
    Report::of_placement("p.csv".into(), &placement::read(&path, 1).unwrap())
}

#[test]
fn placements_are_shown_with_gaps_alignment_and_kinds() {
    let text = "id,lower,upper,size,alignment,offset,gaps,kind\n\
                a,0,10,100,64,0,2-4 6-8@16:32,weight\nb,2,4,64,,64,,\nc,4,6,8,,128,,\nd,0,1,0,,0,,\n";
    let report = placed(text).unwrap();
    let arena = &report.arenas[0];
    assert_eq!((arena.bytes, arena.span, arena.tensors), (136, (0, 10), 4));
    let a: Vec<_> = named(arena, "a").iter().map(|r| (r.span, r.offset, r.bytes)).collect();
    let whole = |span| (span, 0, 100);
    assert_eq!(a, [whole((0, 2)), whole((4, 6)), ((6, 8), 16, 16), whole((8, 10))]);
    let live = [(0, 128), (2, 64), (4, 136), (6, 16), (8, 128), (10, 0)];
    assert_eq!(arena.live(), live);
    assert_eq!(arena.lower_bound, Some(136));
    let kinds: Vec<&str> = arena.rectangles.iter().map(|r| &*r.kind).collect();
    assert_eq!(kinds, ["weight", "weight", "weight", "weight", "buffer", "buffer"]);
}

#[test]
fn not_every_made_up_kind_has_a_colour() {
    let rows: String =
        (0..40).map(|i| format!("b{i},0,1,1,{i},k{}\n", i64::max(i - 9, 0))).collect();
    let report = placed(&format!("id,lower,upper,size,offset,kind\n{rows}")).unwrap();
    let mut kinds: Vec<&str> = report.arenas[0].rectangles.iter().map(|r| &*r.kind).collect();
    assert_eq!(kinds.iter().filter(|k| **k == "k0").count(), 10);
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), 12);
    assert!(kinds.contains(&"other"));
}

#[test]
fn not_placed_buffers_are_refused() {
    assert_eq!(placed("id,lower,upper,size\na,0,1,4\n"), Err(Unplaced::NoOffsets));
    let missing = Unplaced::NoOffset { line: 3, id: "b".into() };
    assert!(missing.to_string().contains("`arenic place`"));
    for nothing in ["", "-1"] {
        let text = format!("id,lower,upper,size,offset\na,0,1,4,0\nb,0,1,4,{nothing}\n");
        assert_eq!(placed(&text), Err(missing.clone()));
    }
}

fn data(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn names_cannot_leave_the_data() {
    let plain = placed("id,lower,upper,size,offset\na,0,1,4,0\n").unwrap().to_html().unwrap();
    let mut report = placed("id,lower,upper,size,offset\na,0,1,4,0\n").unwrap();
    let hostile = "</script><script>alert(1)</script><!--@DATA@\"\\\u{2028}";
    report.title = hostile.into();
    report.arenas[0].rectangles[0].name = hostile.into();
    let page = report.to_html().unwrap();
    assert_eq!(data(&page)["title"], hostile);
    assert_eq!(data(&page)["arenas"][0]["names"][0], hostile);
    for mark in ["<script", "</script", "<!--"] {
        assert_eq!(page.matches(mark).count(), plain.matches(mark).count(), "{mark}");
    }
    // Nothing is fetched from anywhere.
    assert!(!page.contains("://"), "a link");
    assert!(page.contains("default-src 'none'"));
    assert_eq!(page, report.to_html().unwrap());
}

#[test]
fn integers_keep_their_digits() {
    let (offset, time) = (1u64 << 58, 1i64 << 62);
    let row = format!("a,-{time},{time},3,{offset}\nb,0,9,4,0\n");
    let report = placed(&format!("id,lower,upper,size,offset\n{row}")).unwrap();
    let arena = &data(&report.to_html().unwrap())["arenas"][0];
    assert_eq!(arena["offset"][0], offset.to_string());
    assert_eq!(arena["first"], format!("-{time}"));
    assert_eq!(arena["start"], serde_json::json!([0, time.to_string()]));
    assert_eq!(arena["stop"][0], (1u64 << 63).to_string());
    assert_eq!(arena["offset"][1], 0);
    assert_eq!(arena["bytes"], (offset + 3).to_string());
}
