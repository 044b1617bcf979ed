//! ONNX models and ONNX Runtime's checkpoints, imported, compiled and run.

use crate::execute::{is_small, three_steps};
use crate::files::with_folder;
use arenic::evaluator::Kernels;
use arenic::onnx::ort::{FILES, import_artifacts};
use arenic::onnx::proto::tensor_proto::DataType;
use arenic::onnx::proto::tensor_shape_proto::dimension::Value;
use arenic::onnx::proto::{ModelProto, NodeProto, TensorProto, type_proto};
use arenic::onnx::{ImportOptions, Imported, Mode, Training, import_bytes};
use arenic_backends::CPU;
use arenic_baselines::WithBaselines;
use arenic_ir::verify::verify;
use arenic_passes::Cx;
use arenic_passes::differentiate::Optimizer;
use arenic_passes::pipeline::{Pipeline, RunOptions};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;

/// The default pipeline with all rewrites, and without searches, which take seconds.
const REST: &str = "- fold_constants\n- dead_code\n- fuse_transposes\n- views\n- attention\n- pool_taps\n\
    - sink_transposes\n- fuse_cross_entropy\n- fuse_updates\n- fuse_sums\n- fuse_elementwise\n- views\n\
    - detach_states\n- spans\n- order: {method: definition}\n- share_in_place\n\
    - place_smartpool\n- lower\n- sync\n";

/// Graphs of more nodes are imported, but not compiled: that takes too long for a fuzzer.
const MOST_NODES: usize = 400;

/// Imports with a size for whatever the model leaves open.
fn import(model: &ModelProto, mode: Mode) -> Option<Imported> {
    let mut dims = BTreeMap::new();
    for input in model.graph.iter().flat_map(|g| &g.input) {
        let ty = input.r#type.as_ref().and_then(|t| t.value.as_ref());
        let Some(type_proto::Value::TensorType(ty)) = ty else { continue };
        for (axis, dim) in ty.shape.iter().flat_map(|s| &s.dim).enumerate() {
            let name = match &dim.value {
                Some(Value::DimValue(_)) => continue,
                Some(Value::DimParam(name)) if !name.is_empty() => name.clone(),
                _ => format!("{}.{axis}", input.name()),
            };
            dims.insert(name, 2);
        }
    }
    let options = ImportOptions { dims, mode, ..ImportOptions::default() };
    import_bytes(Bytes::from(model.encode_to_vec()), None, &options).ok()
}

/// A training step, or whatever the model says.
pub(crate) fn step(bytes: &[u8]) -> bool {
    let Ok(model) = ModelProto::decode(bytes) else { return false };
    let imported = import(&model, Mode::AsWritten);
    let pipeline = format!("- fold_constants\n- dead_code\n- raise\n{REST}");
    imported.is_some_and(|imported| compile(imported, &pipeline))
}

/// The most elements of a parameter that is added to a model without any.
const MOST_ELEMENTS: i64 = 4096;

/// The name of the weight that models without one are given.
const PARAMETER: &str = "parameter";

/// Adds a parameter to the first input of floats where the model stores nothing, so that gradients
/// pass its operators.
fn with_parameter(mut model: ModelProto) -> ModelProto {
    let Some(graph) = model.graph.as_mut().filter(|g| g.initializer.is_empty()) else {
        return model;
    };
    let floats = graph.input.iter().find_map(|input| {
        let Some(type_proto::Value::TensorType(ty)) = &input.r#type.as_ref()?.value else {
            return None;
        };
        let dims = ty.shape.as_ref()?.dim.iter().map(|d| match d.value {
            Some(Value::DimValue(n)) if (0..=MOST_ELEMENTS).contains(&n) => Some(n),
            _ => None,
        });
        let dims = dims.collect::<Option<Vec<i64>>>()?;
        let n = dims.iter().try_fold(1i64, |n, &d| n.checked_mul(d))?;
        let fits = ty.elem_type == Some(DataType::Float as i32) && n <= MOST_ELEMENTS;
        fits.then(|| (input.name().to_owned(), dims, n as usize))
    });
    let Some((name, dims, n)) = floats else { return model };
    for node in &mut graph.node {
        let reads = node.input.iter_mut().filter(|input| **input == name);
        reads.for_each(|input| *input = "moved".to_owned());
    }
    graph.initializer.push(TensorProto {
        name: Some(PARAMETER.to_owned()),
        dims,
        data_type: Some(DataType::Float as i32),
        float_data: vec![0.25; n],
        ..TensorProto::default()
    });
    let sum = NodeProto {
        op_type: Some("Add".to_owned()),
        input: vec![name, PARAMETER.to_owned()],
        output: vec!["moved".to_owned()],
        ..NodeProto::default()
    };
    graph.node.insert(0, sum);
    model
}

/// A forward model with a loss. The sum of its bytes says which loss and optimizer.
pub(crate) fn forward(bytes: &[u8]) -> bool {
    let mode = Mode::Training(Training::default());
    let Ok(model) = ModelProto::decode(bytes) else { return false };
    let Some(imported) = import(&with_parameter(model), mode) else { return false };
    let losses = ["cross_entropy", "mse", "nll", "bce"];
    let sum = bytes.iter().map(|&b| usize::from(b)).sum::<usize>();
    let (loss, optimizer) = (losses[sum % 4], Optimizer::ALL[sum / 4 % Optimizer::ALL.len()]);
    let optimizer = format!("{optimizer:?}").to_lowercase();
    let output = match imported.graph.outputs.first() {
        Some(output) if imported.graph.outputs.len() > 1 && !output.name.is_empty() => {
            format!(", output: {:?}", output.name)
        }
        _ => String::new(),
    };
    // What is added to an input looks like a normalisation of it, which is kept.
    let added = imported.graph.states.values().any(|state| state.name == PARAMETER);
    let train = if added { format!(", train: [{PARAMETER}]") } else { String::new() };
    let first = format!(
        "- fold_constants\n- dead_code\n- raise\n\
         - differentiate: {{loss: {loss}, optimizer: {optimizer}{output}{train}}}\n"
    );
    compile(imported, &format!("{first}{REST}"))
}

/// A checkpoint beside the models that a small network has.
pub(crate) fn checkpoint(bytes: &[u8]) -> bool {
    let training = include_bytes!("../../tests/fixtures/ort/small_cnn_b32/training_model.onnx");
    let optimizer = include_bytes!("../../tests/fixtures/ort/small_cnn_b32/optimizer_model.onnx");
    let files = [(FILES[0], &training[..]), (FILES[1], &optimizer[..]), (FILES[2], bytes)];
    with_folder(&files, |folder| {
        let imported = import_artifacts(folder, &ImportOptions::default());
        imported.is_ok_and(|imported| {
            check_import(&imported);
            true
        })
    })
}

fn check_import(imported: &Imported) {
    if let Err(defect) = verify(&imported.graph) {
        panic!("the importer made a malformed graph: {defect}");
    }
}

/// Compiles what was imported, and runs it where that is quick.
fn compile(imported: Imported, pipeline: &str) -> bool {
    check_import(&imported);
    let graph = imported.graph;
    if graph.nodes.len() > MOST_NODES || !is_small(&graph) {
        return false;
    }
    let Ok(pipeline) = Pipeline::from_yaml(pipeline, &WithBaselines) else { return false };
    let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(CPU.target()) };
    match pipeline.run(graph, &cx, RunOptions::default()) {
        Ok(outcome) => {
            let arena = outcome.footprint.map_or(0, |f| f.arena_bytes.device);
            let module = &outcome.module;
            module.program.as_ref().is_some_and(|p| three_steps(&module.graph, p, arena))
        }
        Err(
            error @ (arenic_passes::pipeline::RunError::Check(_)
            | arenic_passes::pipeline::RunError::Graph { .. }),
        ) => {
            panic!("a pass has a defect: {error}")
        }
        Err(_) => false,
    }
}
