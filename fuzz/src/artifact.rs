//! Artifacts with the right digest, and everything that commands do with them.

use crate::execute::three_steps;
use crate::files::with_file;
use arenic::artifact::{Artifact, Target};
use arenic::explain::{self, Explanation, choices::Planned, choices::choices};
use arenic::onnx::export::{ExportOptions, annotated, with_training_info};
use arenic::report::Report;
use arenic_ir::check::{Footprint, check};
use arenic_ir::program::Space;
use arenic_ir::text::Module;
use arenic_passes::certificate::certificate;
use arenic_passes::simulate::{chrome_trace, live_over_time, roofline, simulate};
use arenic_passes::{Cx, devices};
use prost::encoding::{WireType, encode_key, encode_varint};

/// The length of what precedes the header.
const PREAMBLE: usize = 64;

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

/// Graph and program as text, in an artifact that says nothing wrong beside.
pub(crate) fn module(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let field = |tag: u32, content: &[u8]| {
        let mut bytes = Vec::new();
        encode_key(tag, WireType::LengthDelimited, &mut bytes);
        encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        bytes
    };
    let target = [field(1, b"cpu"), field(2, text.as_bytes())].concat();
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
        for target in artifact.targets.iter().chain(&artifact.evaluations) {
            if let Ok(footprint) = check(&target.graph, &target.program) {
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
    three_steps(g, program, footprint.arena_bytes.device.max(footprint.arena_bytes.host));
    if g.nodes.len() > MOST_NODES || program.commands.len() > MOST_NODES {
        return;
    }
    let module = Module { graph: g.clone(), plan: None, program: Some(program.clone()) };
    let printed = module.to_string();
    assert!(Module::parse(&printed).is_ok_and(|m| m.to_string() == printed), "printed otherwise");
    let _ = (target.precision(), explain::stored_to_json(target));
    let human = |n: u64| n.to_string();
    if let Ok(certificate) = certificate(g, program.nodes(), &Cx::new(program.target)) {
        let peak = footprint.live_peak_bytes.device;
        let (certificate, bound) = (&certificate, certificate.bound);
        let _ = Explanation { graph: g, certificate, peak, bound, moves: false, human }.to_string();
    }
    let device = devices::cpu().expect("the description `cpu`").with_math(program.target.math);
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
