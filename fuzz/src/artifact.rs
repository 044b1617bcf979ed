//! Artifacts with the right digest, and everything that commands do with them.

use crate::execute::{steps_in_rounds, three_steps};
use crate::files::with_file;
use arenic::artifact::{Artifact, Target};
use arenic::explain::{self, Explanation, choices::Planned, choices::choices};
use arenic::onnx::export::{ExportOptions, annotated, with_training_info};
use arenic::report::Report;
use arenic_ir::check::Footprint;
use arenic_ir::program::Space;
use arenic_ir::text::Module;
use arenic_passes::certificate::certificate;
use arenic_passes::simulate::{chrome_trace, live_over_time, roofline, simulate};
use arenic_passes::{Cx, devices};
use prost::encoding::{WireType, encode_key, encode_varint};

/// The length of what precedes the header.
const PREAMBLE: usize = 64;

/// The line between the texts of a step in rounds.
const ROUNDS: &str = "--- rounds ---";

/// Commands of larger artifacts take too long for a fuzzer.
const MOST_NODES: usize = 300;

/// A whole file, of which the digest is made right.
pub(crate) fn envelope(bytes: &[u8]) -> bool {
    let mut file = bytes.to_vec();
    if file.len() >= PREAMBLE {
        seal(&mut file);
    }
    read(&file)
}

/// A message's field of bytes.
fn field(tag: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(tag, WireType::LengthDelimited, &mut bytes);
    encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

/// Graph and program as text, in an artifact that says nothing wrong beside. Behind the line
/// [`ROUNDS`] it may say what runs around rounds of that: the names that go by rows and how many
/// rounds there are; behind the same line again the part before them, and then the one after.
pub(crate) fn module(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let mut texts = text.split(ROUNDS);
    let mut next = || texts.next().unwrap_or_default();
    let mut target = [field(1, b"cpu"), field(2, next().as_bytes())].concat();
    if text.contains(ROUNDS) {
        let mut rounds = Vec::new();
        for word in next().split_whitespace() {
            match word.parse() {
                Ok(count) => {
                    encode_key(1, WireType::Varint, &mut rounds);
                    encode_varint(count, &mut rounds);
                }
                Err(_) => rounds.extend(field(2, word.as_bytes())),
            }
        }
        for tag in [3, 4] {
            rounds.extend(field(tag, &field(1, next().as_bytes())));
        }
        target.extend(field(9, &rounds));
    }
    // The target twice, once as what evaluates; it is runnable, and its steps end joined.
    let header = [&field(2, &target)[..], &[0x18, 1, 0x20, 1], &field(5, &target)].concat();
    let mut file = vec![0; PREAMBLE];
    file[..8].copy_from_slice(b"arenic\0\0");
    file[8] = 1;
    file[12..20].copy_from_slice(&(header.len() as u64).to_le_bytes());
    file.extend_from_slice(&header);
    seal(&mut file);
    read(&file)
}

/// Writes the digest of all else.
fn seal(file: &mut [u8]) {
    file[20..52].fill(0);
    let digest = *blake3::hash(file).as_bytes();
    file[20..52].copy_from_slice(&digest);
}

fn read(file: &[u8]) -> bool {
    with_file("a.arenic", file, |path| {
        let Ok(artifact) = Artifact::read(path) else { return false };
        let mut accepted = false;
        for name in artifact.target_names() {
            let each = artifact.variants(name).iter().all(|target| target.check().is_ok());
            assert!(each || artifact.check(name).is_err(), "a variant of {name} is wrong alone");
        }
        for target in artifact.targets.iter().chain(&artifact.evaluations) {
            if let Ok(footprint) = target.check_main() {
                use_accepted(&artifact, target, &footprint);
                accepted = true;
            }
        }
        accepted
    })
}

/// What the commands `inspect`, `explain`, `report`, `export`, `simulate` and `run` do.
fn use_accepted(artifact: &Artifact, target: &Target, footprint: &Footprint) {
    let (g, program) = (&target.graph, &target.program);
    let arena = target.arena_bytes();
    let arena_bytes = arena.device.max(arena.host);
    match target.whole_step().expect("read before") {
        Some(whole) => _ = steps_in_rounds(target, &whole, arena_bytes),
        None => _ = three_steps(g, program, arena_bytes),
    }
    if g.nodes.len() > MOST_NODES || program.commands.len() > MOST_NODES {
        return;
    }
    let module = Module { graph: g.clone(), plan: None, program: Some(program.clone()) };
    let printed = module.to_string();
    assert!(
        Module::parse(&printed, &arenic_backends::ALL).is_ok_and(|m| m.to_string() == printed),
        "printed otherwise"
    );
    let _ = (target.precision(), explain::stored_to_json(target));
    let human = |n: u64| n.to_string();
    if let Ok(certificate) = certificate(g, program.nodes(), None, &Cx::new(program.target)) {
        let peak = footprint.live_peak_bytes.device;
        let (certificate, bound) = (&certificate, certificate.bound.bytes);
        let _ = Explanation { graph: g, certificate, peak, bound, moves: false, human }.to_string();
    }
    let device = devices::cpu().expect("the description `cpu`").with_math(program.target.math);
    let _ = target.simulated_seconds(&device);
    let step = simulate(program, &device, &roofline(g, &device));
    let _ = chrome_trace(g, program, &step.commands, "").to_string();
    for space in Space::ALL {
        let _ = live_over_time(footprint, program.target.align, &step, space);
    }
    for value in g.values.values().filter(|v| !v.name.is_empty()).take(4) {
        let planned = Planned { graph: g, program, footprint, device: &device };
        for choices in choices(planned, &value.name, human) {
            let _ = (choices.to_json(), choices.to_string());
        }
    }
    let report = Report::of_target(target, &artifact.provenance, footprint);
    report.to_html().expect("a page");
    for data in [true, false] {
        let model = annotated(target, &artifact.provenance, footprint, ExportOptions { data });
        if let Ok(model) = model {
            let _ = with_training_info(model, g);
        }
    }
}
