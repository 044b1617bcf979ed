//! `compile --ort`, and `export`.

use super::*;
use arenic::onnx::{ImportOptions, import_file};

const FOLDERS: [&str; 4] = ["mnist_mlp_b32", "small_cnn_b32", "tiny_resnet_b32", "gpt_tiny_b32"];

#[test]
fn training_artifacts_are_compiled_and_exported() {
    let shell = Shell::new();
    for folder in FOLDERS {
        let options = "--effort 0.5 -o step.arenic";
        shell.succeeds(&format!("compile --ort @tests/fixtures/ort/{folder} {options}"));
        let inspected = &shell.succeeds("inspect step.arenic --json")[0];
        assert_eq!(inspected["outputs"][0]["name"], "loss");
        assert_eq!(inspected["model"], folder);
        let states = inspected["states"].as_array().unwrap();
        assert!(states.iter().all(|s| s["initialized"] == true));

        shell.succeeds("export step.arenic -o step.onnx");
        let options = ImportOptions::default();
        let read = import_file(&shell.path("step.onnx"), &options).unwrap().graph;
        assert_eq!(read.states.len(), states.len(), "{folder}");
        shell.succeeds("export step.arenic -o bare.onnx --no-data --target cpu");
        let bytes = |name: &str| std::fs::metadata(shell.path(name)).unwrap().len();
        assert!(bytes("bare.onnx") < bytes("step.onnx"));
    }
    shell.fails("export step.arenic -o no/such.onnx", 1, &["no/such.onnx"]);
    shell.fails("export step.arenic -o step.arenic", 1, &["name another output"]);
    shell.fails("export step.arenic -o s.onnx --target cuda", 1, &["does not hold that target"]);
}

#[test]
fn what_is_no_folder_of_training_artifacts_is_refused() {
    let shell = Shell::new();
    let folder = "@tests/fixtures/ort/mnist_mlp_b32";
    let out = "-o step.arenic";
    shell.fails(&format!("compile {out}"), 2, &["<MODEL>"]);
    shell.fails(&format!("compile model.onnx --ort {folder} {out}"), 2, &["cannot be used with"]);
    shell.fails(&format!("compile {folder} {out}"), 1, &["is a folder", "--ort"]);
    shell.fails(&format!("compile --ort missing {out}"), 1, &["`missing` is no folder"]);
    std::fs::create_dir(shell.path("empty")).unwrap();
    shell.fails(&format!("compile --ort empty {out}"), 1, &["training_model.onnx"]);
}
