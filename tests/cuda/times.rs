//! Times of commands and of operators, on the simulated driver's clock: each launch and each
//! copy takes a microsecond, on whatever stream.

use super::Run;
use super::place;
use super::simulated::{Behaviour, Simulated};
use arenic::artifact::Target;
use arenic::train::{StepReport, TrainOptions, train_on_device};
use arenic_ir::profile::{KernelTimes, Machine, Profile};
use arenic_ir::program::Command;
use arenic_passes::devices;
use arenic_runtime::cuda;
use std::collections::HashMap;

/// Commands that a trace shows.
fn shown(target: &Target) -> usize {
    let is_shown = |c: &&Command| matches!(c, Command::Run { .. } | Command::Copy { .. });
    target.program.commands.iter().filter(is_shown).count()
}

#[test]
fn a_trace_has_every_command_of_the_last_step_in_an_order_that_events_allow() {
    let run = Run::named("mlp_b4_adamw");
    let target = run.target(Some(run.target(None).program.sizes.device * 7 / 10));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let expected = run.train(&target, Behaviour::default()).unwrap();
    let options = TrainOptions { trace: Some(path.clone()), ..run.options() };
    let mut losses = Vec::new();
    let watch = |r: &StepReport| losses.push(r.scalars[0].1);
    match place::gpu() {
        Some(gpu) => train_on_device(gpu, &target, &options, |_| {}, watch),
        None => {
            let driver = Simulated::new(Behaviour { seed: 5, ..Behaviour::default() });
            train_on_device(driver, &target, &options, |_| {}, watch)
        }
    }
    .unwrap();
    assert_eq!(losses, expected, "times change no bits");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(trace["otherData"]["times"].as_str().unwrap().contains("not replayed"));
    let events = trace["traceEvents"].as_array().unwrap();
    let spans: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert_eq!(spans.len(), shown(&target));
    assert!(spans.iter().any(|e| e["cat"] == "copy"), "the limit wants copies");
    let mut ends: HashMap<u64, f64> = HashMap::new();
    for span in spans {
        let number = |key: &str| span[key].as_f64().unwrap();
        let end = ends.entry(span["tid"].as_u64().unwrap()).or_default();
        assert!(number("ts") >= *end - 1.0 && number("dur") >= 0.0, "{span}");
        *end = number("ts") + number("dur");
    }
}

#[test]
fn every_operator_is_measured_once_by_itself() {
    let run = Run::named("mlp_b4_sgdm");
    let target = run.target(None);
    let (g, program) = (&target.graph, &target.program);
    let simulated;
    let found = match place::gpu() {
        Some(gpu) => cuda::profile(g, program, &[], &gpu),
        None => {
            simulated = Simulated::new(Behaviour::default());
            cuda::profile(g, program, &[], &simulated)
        }
    }
    .unwrap();
    assert_eq!(Profile::parse(&found.to_string()).unwrap(), found);
    let mut times = KernelTimes::default();
    assert!(found.kernels.iter().all(|kernel| times.insert(kernel)));
    for node in program.nodes() {
        let seconds = times.seconds(&g.nodes[node].op, &g.input_types(node)).unwrap();
        assert!(seconds < 1e-2);
        if place::gpu().is_none() {
            // So many launches and copies.
            let count = seconds * 1e6;
            assert!(count < 0.01 || (count - count.round()).abs() < 1e-9, "{count}");
        }
    }
    if place::gpu().is_none() {
        let rates = &found.machine;
        assert_eq!(rates.device, "a simulated GPU");
        // Two copies take turns on this clock.
        assert_eq!(rates.to_host_bytes_per_second, rates.to_device_bytes_per_second);
        let ratio = rates.to_host_bytes_per_second / rates.both_bytes_per_second;
        assert!((ratio - 2.0).abs() < 1e-3, "{ratio}");
    }
}

/// Libraries are given as much as they were measured to use, and have the same results.
#[test]
fn a_profile_bounds_the_workspace_that_is_planned() {
    // So many rows that libraries are asked, and few enough to be emulated often.
    let mut run = Run::differentiated("mlp");
    run.import.dims = [("batch".to_owned(), 64)].into();
    let target = run.target(None);
    let simulated = Simulated::new(Behaviour::default());
    let found = cuda::profile(&target.graph, &target.program, &[], &simulated).unwrap();
    let used = found.machine.workspace_bytes.unwrap();
    assert!(used > 0 && used <= target.program.target.workspace);
    let without = Simulated::new(Behaviour { libraries: false, ..Behaviour::default() });
    let few = Run::differentiated("mlp").target(None);
    let none = cuda::profile(&few.graph, &few.program, &[], &without).unwrap();
    assert_eq!(none.machine.workspace_bytes, None);

    let (_, text) = devices::NAMED.iter().find(|(name, _)| *name == "h100").unwrap();
    let device = devices::parse(text).unwrap();
    let run = Run::named("small_cnn_b4_sgdm");
    let whole = run.target_on(Some(&device), None);
    let losses = run.train_on(Simulated::new(Behaviour::default()), &whole).unwrap();
    for (bytes, workspace) in [(0, 0), (1000, 1024), (u64::MAX, 256 << 20)] {
        let machine = Machine {
            device: device.name.clone(),
            workspace_bytes: Some(bytes),
            ..found.machine.clone()
        };
        let profile = Profile { machine, kernels: Vec::new() };
        assert_eq!(Profile::parse(&profile.to_string()).unwrap(), profile);
        let device = device.clone().with_profile(&profile).unwrap();
        let target = run.target_on(Some(&device), None);
        assert_eq!(target.program.target.workspace, workspace);
        let scratch = |target: &Target| -> u64 {
            let of = |command: &Command| match command {
                Command::Run { scratch, .. } => scratch.map_or(0, |range| range.len),
                _ => 0,
            };
            target.program.commands.iter().map(of).sum()
        };
        assert_eq!(scratch(&target) < scratch(&whole), bytes <= 1000);
        if bytes == 0 {
            let again = run.train_on(Simulated::new(Behaviour::default()), &target).unwrap();
            assert_eq!(losses, again);
        }
    }
}
