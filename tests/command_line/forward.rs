//! Forward models: `compile --loss`, `differentiate`, `eval`.

use super::*;

const MOMENTUM: &str = "--loss cross_entropy --optimizer momentum";
const DATA: &str = "--data @tests/runs/mlp_b4_sgdm.data.npz";

fn losses(lines: &[Value]) -> Vec<f64> {
    lines.iter().filter_map(|l| l["loss"].as_f64()).collect()
}

#[test]
fn one_command_takes_a_forward_model_to_a_step_that_trains_and_is_evaluated() {
    let shell = Shell::new();
    let model = "@models/forward/mlp.onnx --dim batch=4";
    let compiled = &shell
        .succeeds(&format!("compile {model} {MOMENTUM} --lr 0.01 --compare --json -o m.arenic"))[0];
    let parameters = compiled["parameters"].as_array().unwrap();
    assert!(parameters.len() == 6 && parameters.iter().all(|p| p["trained"] == true));
    let forward = compiled["inference"]["arena_bytes"].as_u64().unwrap();
    assert!(forward < compiled["arena_bytes"].as_u64().unwrap());

    // The learning rate has its default, and what a run sets is stronger.
    let run = format!("run m.arenic {DATA} --steps 5 --json");
    let usual = losses(&shell.succeeds(&format!("{run} --save w.safetensors")));
    assert_eq!(losses(&shell.succeeds(&format!("{run} --set lr=0.01"))), usual);
    assert_ne!(losses(&shell.succeeds(&format!("{run} --set lr=0.02"))), usual);

    // The file that differentiate writes is the same step.
    shell.succeeds(&format!("differentiate {model} {MOMENTUM} --lr 0.01 -o step.onnx"));
    shell.succeeds("compile step.onnx -o step.arenic");
    let exported = losses(&shell.succeeds(&format!("run step.arenic {DATA} --steps 5 --json")));
    assert_eq!(exported.len(), 5);
    for (a, b) in exported.iter().zip(&usual) {
        assert!((a - b).abs() < 1e-6, "{exported:?} and {usual:?}");
    }

    let before = &shell.succeeds(&format!("eval m.arenic {DATA} --json"))[0];
    let after = &shell.succeeds(&format!("eval m.arenic {DATA} --init w.safetensors --json"))[0];
    assert_eq!((&before["batches"], &before["counted"]), (&5.into(), &20.into()));
    assert!(after["loss"].as_f64() < before["loss"].as_f64());
    shell.succeeds("check m.arenic");
}

#[test]
fn the_pass_may_be_in_the_pipeline() {
    let shell = Shell::new();
    let default = include_str!("../../passes/src/pipelines/default.yaml");
    let pass = "- differentiate: {loss: cross_entropy, optimizer: adamw, freeze: ['fc1.*']}\n";
    std::fs::write(shell.path("p.yaml"), format!("{pass}{default}")).unwrap();
    shell.succeeds("compile @models/forward/mlp.onnx --dim batch=4 --pipeline p.yaml -o m.arenic");
    let states = &shell.succeeds("inspect m.arenic --json")[0]["states"];
    let names: Vec<&str> =
        states.as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"fc2.weight.v") && !names.contains(&"fc1.weight"), "{names:?}");
    let twice =
        format!("compile @models/forward/mlp.onnx {MOMENTUM} --pipeline p.yaml -o m.arenic");
    shell.fails(&twice, 1, &["has a loss already"]);
}

#[test]
fn dropout_and_statistics_are_of_training_alone() {
    let shell = Shell::new();
    let out = "-o m.arenic";
    let mlp = "compile @models/forward/mlp.onnx --dim batch=4";
    shell.fails(&format!("{mlp} --dropout 0 {out}"), 1, &["--loss and --optimizer"]);
    shell.fails(&format!("{mlp} {MOMENTUM} --dropout 1 {out}"), 2, &["a ratio"]);
    shell.fails(&format!("{mlp} {MOMENTUM} --bn-variance x {out}"), 2, &["population"]);
    shell.succeeds(&format!("{mlp} --inference {out}"));
    shell.fails(&format!("eval m.arenic {DATA}"), 1, &["no forward pass", "--loss"]);
}

#[test]
fn what_cannot_be_trained_is_said() {
    let shell = Shell::new();
    let mlp = "compile @models/forward/mlp.onnx --dim batch=4 -o m.arenic";
    let fails = |options: &str, code, says: &[&str]| {
        shell.fails(&format!("{mlp} {options}"), code, says);
    };
    fails("--loss cross_entropy", 2, &["--optimizer"]);
    fails("--optimizer adam", 2, &["--loss"]);
    fails("--loss mse --optimizer adamm", 2, &["adamm", "adamw"]);
    fails("--loss nothing --optimizer sgd", 1, &["`nothing` is no loss", "smooth_l1", "`logits`"]);
    fails("--loss mse --optimizer sgd --output y", 1, &["no output `y`"]);
    fails(&format!("{MOMENTUM} --class-axis 2"), 1, &["classes along axis 2"]);
    fails(&format!("{MOMENTUM} --freeze fc9.*"), 1, &["no weight matches `fc9.*`"]);
    fails(&format!("{MOMENTUM} --freeze *"), 1, &["depends on no parameter"]);
    fails(&format!("{MOMENTUM} --lr-schedule cosine"), 1, &["the number of steps"]);
    fails(&format!("{MOMENTUM} --accumulate 0"), 2, &["--accumulate"]);
    fails(&format!("{MOMENTUM} --clip-norm 0"), 2, &["above 0"]);
    fails("--loss logits --optimizer sgd", 1, &["takes one element"]);
    // Of another model.
    shell.succeeds(&format!("{mlp} {MOMENTUM}"));
    let init = "--init @tests/runs/small_cnn_b4_sgdm.init.npz";
    shell.fails(&format!("eval m.arenic {DATA} {init}"), 1, &["neither states nor"]);
    shell.fails("differentiate @models/forward/mlp.onnx -o s.onnx", 1, &["--loss", "--optimizer"]);
}

#[test]
fn a_step_becomes_training_info_and_is_read_again() {
    let shell = Shell::new();
    shell.succeeds(&format!(
        "compile @models/forward/mlp.onnx --dim batch=4 {MOMENTUM} --lr 0.01 -o m.arenic"
    ));
    shell.succeeds("export m.arenic --training-info -o info.onnx");
    let run = |artifact: &str, options: &str| {
        losses(&shell.succeeds(&format!("run {artifact} {DATA} --steps 5 {options} --json")))
    };
    shell.succeeds("compile info.onnx -o again.arenic");
    assert_eq!(run("again.arenic", "--set lr=0.01"), run("m.arenic", ""));
    shell.succeeds("compile info.onnx --inference -o forward.arenic");
    assert_eq!(run("forward.arenic", "").len(), 5);
    // Its states come with the data of a run.
    shell.succeeds("compile @models/step/ref_mlp_b4_sgdm.onnx -o step.arenic");
    let refused = ["has no initial value", "p."];
    shell.fails("export step.arenic --training-info -o s.onnx", 1, &refused);
    let mlp = "compile @models/forward/mlp.onnx --dim batch=4 -o m.arenic";
    shell.fails(&format!("{mlp} --accumulate 2"), 1, &["--accumulate", "--ort"]);
}
