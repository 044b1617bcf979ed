//! Commands on an artifact of a step in rounds.

use crate::shell::{Shell, text};
use crate::{STEPS, Tensors, files, floats, linear, part_after_part};
use arenic::artifact::Turn;
use arenic_passes::devices;
use arenic_passes::simulate::{roofline, simulate};
use serde_json::json;

#[test]
fn commands_show_the_whole_step_or_say_that_they_show_a_round() {
    let shell = Shell::new();
    files(&shell.path(""));

    let judged = &shell.succeeds("check step.arenic --json")[0];
    assert_eq!((&judged["accepted"], &judged["rounds"]), (&json!(true), &json!(4)));
    assert_eq!(judged["arena_bytes"], 5376);
    let said = text(&shell.arenic("check step.arenic").stdout);
    assert!(said.contains("3 programs implement their graphs and share states in 4 rounds"));

    let inspected = &shell.succeeds("inspect step.arenic --json")[0];
    let named = |what: &str, name: &str, ty: &str| {
        let all = inspected[what].as_array().unwrap();
        assert!(all.contains(&json!({"name": name, "type": ty})), "{all:?}");
    };
    named("inputs", "x", "f32[8,4]");
    named("inputs", "lr", "f32[]");
    named("outputs", "y", "f32[8,1]");
    assert_eq!(inspected["states"].as_array().unwrap().len(), 1);
    let rounds = &inspected["rounds"];
    assert_eq!((&rounds["count"], &rounds["by_rows"]), (&json!(4), &json!(["target", "x", "y"])));
    let arenas = rounds["parts"].as_array().unwrap().iter().map(|part| &part["arena_bytes"]);
    assert_eq!(arenas.collect::<Vec<_>>(), [4352, 5376, 5120]);
    let printed = text(&shell.arenic("inspect step.arenic").stdout);
    for line in ["# rounds: 4, by rows of target, x, y", "graph \"linear, before the rounds\" {"] {
        assert!(printed.lines().any(|l| l == line), "{printed}");
    }

    // A round four times, and what runs around it once.
    let simulated = &shell.succeeds("simulate step.arenic --json")[0];
    let device = devices::cpu().unwrap();
    let seconds = linear().simulated_seconds(&device);
    let of_turn = |turn: &Turn| {
        let kernel = roofline(turn.graph, &device);
        let step = simulate(turn.program, &device, &kernel);
        step.seconds * if turn.name == "each round" { 4.0 } else { 1.0 }
    };
    let once: f64 = linear().turns().iter().map(of_turn).sum();
    for seconds in [seconds, simulated["step_seconds"].as_f64().unwrap()] {
        assert!((seconds - once).abs() < 1e-12 && seconds > 0.0, "{seconds} {once}");
    }

    for command in ["report step.arenic -o r.html", "explain order step.arenic"] {
        let output = shell.arenic(command);
        let note = "note: the step runs in 4 rounds; this is one of them";
        assert!(output.status.success() && text(&output.stderr).contains(note), "{command}");
    }
    let says = ["a step in 4 rounds cannot be exported as ONNX"];
    shell.fails("export step.arenic -o o.onnx", 1, &says);
}

#[test]
fn a_run_takes_the_inputs_of_every_part() {
    let shell = Shell::new();
    files(&shell.path(""));
    // The rate, which the part before the rounds takes alone, is a default of the artifact.
    let lines = shell.succeeds("run step.arenic --data data.npz --seed 5 --threads 2 --json");
    let expected = part_after_part(&linear());
    let loss = |tensors: &Tensors| floats(&tensors["loss"])[0];
    let losses = lines.iter().filter_map(|line| line["loss"].as_f64().map(|loss| loss as f32));
    let losses: Vec<f32> = losses.collect();
    assert_eq!(losses, expected.iter().map(loss).collect::<Vec<_>>());
    assert_eq!(lines.last().unwrap()["steps"], STEPS);
    shell.fails("run step.arenic --seed 5", 1, &["no value for x f32[8,4], target f32[8,1]"]);
}
