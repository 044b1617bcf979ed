//! ONNX models and ONNX Runtime's checkpoints, imported, compiled and run.

use crate::execute::{is_small, three_steps};
use crate::files::with_folder;
use arenic::evaluator::Kernels;
use arenic::onnx::ort::{FILES, import_artifacts};
use arenic::onnx::{ImportOptions, Imported, Mode, Training, import_bytes};
use arenic_ir::TargetInfo;
use arenic_ir::verify::verify;
use arenic_passes::Cx;
use arenic_passes::pipeline::{Pipeline, RunOptions};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The default pipeline with all rewrites, and without searches, which take seconds.
const REST: &str = "- fold_constants\n- dead_code\n- fuse_transposes\n- views\n- attention\n\
    - fuse_cross_entropy\n- fuse_updates\n- fuse_sums\n- fuse_elementwise\n- views\n\
    - detach_states\n- spans\n- order: {method: definition}\n- share_in_place\n\
    - place_smartpool\n- lower\n- sync\n";

/// Graphs of more nodes are imported, but not compiled: that takes too long for a fuzzer.
const MOST_NODES: usize = 400;

/// Sizes for what models leave open.
fn options(mode: Mode) -> ImportOptions {
    let dims = ["N", "n", "batch", "B", "seq", "T"].map(|name| (name.to_owned(), 2));
    ImportOptions { dims: BTreeMap::from(dims), mode, ..ImportOptions::default() }
}

/// A training step, or whatever the model says.
pub(crate) fn step(bytes: &[u8]) {
    let model = import_bytes(Bytes::copy_from_slice(bytes), None, &options(Mode::AsWritten));
    if let Ok(imported) = model {
        compile(imported, &format!("- fold_constants\n- dead_code\n- raise\n{REST}"));
    }
}

/// A forward model with a loss. The model's version of the producer, which nothing else reads,
/// says which loss and optimizer.
pub(crate) fn forward(bytes: &[u8]) {
    let mode = Mode::Training(Training::default());
    let model = import_bytes(Bytes::copy_from_slice(bytes), None, &options(mode));
    let Ok(imported) = model else { return };
    let losses = ["cross_entropy", "mse", "nll", "bce"];
    let optimizers = ["sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop", "lion"];
    let sum = bytes.iter().map(|&b| usize::from(b)).sum::<usize>();
    let (loss, optimizer) = (losses[sum % 4], optimizers[sum / 4 % 7]);
    let output = match imported.graph.outputs.first() {
        Some(output) if imported.graph.outputs.len() > 1 && !output.name.is_empty() => {
            format!(", output: {:?}", output.name)
        }
        _ => String::new(),
    };
    let first = format!(
        "- fold_constants\n- dead_code\n- raise\n\
         - differentiate: {{loss: {loss}, optimizer: {optimizer}{output}}}\n"
    );
    compile(imported, &format!("{first}{REST}"));
}

/// A checkpoint beside the models that a small network has.
pub(crate) fn checkpoint(bytes: &[u8]) {
    let training = include_bytes!("../../tests/fixtures/ort/small_cnn_b32/training_model.onnx");
    let optimizer = include_bytes!("../../tests/fixtures/ort/small_cnn_b32/optimizer_model.onnx");
    let files = [(FILES[0], &training[..]), (FILES[1], &optimizer[..]), (FILES[2], bytes)];
    with_folder(&files, |folder| {
        if let Ok(imported) = import_artifacts(folder, &ImportOptions::default()) {
            check_import(&imported);
        }
    });
}

fn check_import(imported: &Imported) {
    if let Err(defect) = verify(&imported.graph) {
        panic!("the importer made a malformed graph: {defect}");
    }
}

/// Compiles what was imported, and runs it where that is quick.
fn compile(imported: Imported, pipeline: &str) {
    check_import(&imported);
    let graph = imported.graph;
    if graph.nodes.len() > MOST_NODES || !is_small(&graph) {
        return;
    }
    let Ok(pipeline) = Pipeline::from_yaml(pipeline) else { return };
    let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(TargetInfo::CPU) };
    match pipeline.run(graph, &cx, RunOptions::default()) {
        Ok(outcome) => {
            let arena = outcome.footprint.map_or(0, |f| f.arena_bytes.device);
            if let Some(program) = &outcome.module.program {
                three_steps(&outcome.module.graph, program, arena);
            }
        }
        Err(
            error @ (arenic_passes::pipeline::RunError::Check(_)
            | arenic_passes::pipeline::RunError::Graph { .. }),
        ) => {
            panic!("a pass has a defect: {error}")
        }
        Err(_) => {}
    }
}
