//! What is said where a driver fails or a run is stopped: on the simulated driver alone.

use super::Run;
use super::simulated::{Behaviour, Simulated};
use arenic::artifact::Target;
use arenic::train::{Length, TrainError, TrainOptions, train_on_device};
use arenic_runtime::cuda;
use std::sync::atomic::{AtomicBool, Ordering};

fn train(run: &Run, target: &Target, behaviour: Behaviour) -> Result<Vec<f64>, TrainError> {
    run.train_on(Simulated::new(behaviour), target)
}

#[test]
fn what_the_driver_refuses_is_told() {
    let run = Run::named("mlp_b4_sgdm");
    let target = run.target(Some(12 << 10));
    let calls = [
        "memory",
        "allocate",
        "allocate_pinned",
        "load",
        "function",
        "stream",
        "event",
        "launch",
        "copy",
        "record",
        "wait",
        "synchronize",
        "run",
    ];
    for call in calls {
        for number in [0, 1, 7] {
            let fails = Some((call, number));
            let behaviour = Behaviour { fails, ..Behaviour::default() };
            match train(&run, &target, behaviour) {
                Err(e) => assert!(!e.to_string().is_empty()),
                // Some calls are made less often than that.
                Ok(losses) => assert!(number > 0 && losses.len() == 5, "{call} {number}"),
            }
        }
    }
    let fails = Some(("end_capture", 0));
    let behaviour = Behaviour { fails, ..Behaviour::default() };
    let error = train(&run, &target, behaviour).unwrap_err();
    assert!(error.to_string().contains("lost"), "{error}");

    let memory = target.program.sizes.device - 1;
    let behaviour = Behaviour { memory, ..Behaviour::default() };
    let error = train(&run, &target, behaviour).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("1 less") && said.contains(&format!("--device-memory {memory}")),
        "{said}"
    );
}

#[test]
fn what_the_driver_refuses_while_it_measures_is_told() {
    let target = Run::named("mlp_b4_sgdm").target(None);
    let measured = |behaviour| {
        let driver = Simulated::new(behaviour);
        cuda::profile(&target.graph, &target.program, &[], &driver).map_err(|e| e.to_string())
    };
    for call in ["memory", "allocate", "load", "launch", "elapsed_seconds", "end_capture", "run"] {
        let fails = Some((call, 0));
        let said = measured(Behaviour { fails, ..Behaviour::default() }).unwrap_err();
        assert!(!said.is_empty());
    }
    // One by one, where steps cannot be captured.
    let issued = measured(Behaviour { captures: false, ..Behaviour::default() }).unwrap();
    assert_eq!(issued.kernels, measured(Behaviour::default()).unwrap().kernels);
    let said = measured(Behaviour { memory: 100, ..Behaviour::default() }).unwrap_err();
    assert!(said.contains("100 bytes of memory free"), "{said}");
}

#[test]
fn a_run_that_is_told_to_stop_saves_whole_states() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let run = Run::named("mlp_b4_sgdm");
    let target = run.target(None);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let train = |options: &TrainOptions, watch: &mut dyn FnMut(u64)| {
        let driver = Simulated::new(Behaviour::default());
        train_on_device(driver, &target, options, |_| {}, |r| watch(r.done)).unwrap()
    };
    let save = Some(path.clone());
    let stopped = TrainOptions { save: save.clone(), stop: Some(&STOP), ..run.options() };
    let summary = train(&stopped, &mut |done| STOP.store(done == 3, Ordering::Relaxed));
    assert_eq!((summary.steps, summary.is_stopped), (3, true));
    let stopped = std::fs::read(&path).unwrap();
    let three = TrainOptions { save, length: Length::Steps(3), ..run.options() };
    assert!(!train(&three, &mut |_| {}).is_stopped);
    assert!(stopped == std::fs::read(&path).unwrap(), "the states are those of three steps");
}
