//! The gradient of a case, by the way that a forward model takes to a training step.

use crate::case::{Case, Input, Suite};
use crate::differences::{check, run, weighted_sum};
use crate::planned::Tensors;
use crate::{Outcome, tables};
use arenic::onnx::proto::{ModelProto, TensorProto, tensor_proto::DataType};
use arenic::onnx::{ImportOptions, Mode, Training, import_bytes};
use arenic_ir::DType;
use arenic_ir::graph::{Graph, Output, ValueId};
use arenic_passes::differentiate::Differentiate;
use bytes::Bytes;
use prost::Message;

/// Holds the gradients by what is trained against differences of a weighted sum of all results.
pub(crate) fn hold(suite: &Suite, case: &Case) -> Result<Outcome, String> {
    let g = forward(suite, case)?;
    let train = vec!["*".parse().map_err(|_| "a pattern that is none")?];
    let pass = Differentiate { loss: "loss".into(), train, ..Differentiate::default() };
    match check(&g, &pass, &[], &|states| run(&g, states, &[]).0) {
        Ok(()) => Ok(Outcome::Right),
        Err(e) => match tables::without_gradient(&case.row, &e) {
            Some(i) => Ok(Outcome::Refused(i)),
            None => Err(e),
        },
    }
}

/// The case as a forward model whose weights are what is trained, and its loss.
fn forward(suite: &Suite, case: &Case) -> Result<Graph, String> {
    let mut model = ModelProto::decode(suite.model(case)).map_err(|e| e.to_string())?;
    let graph = model.graph.as_mut().ok_or("the model has no graph")?;
    let (trained, rest): (Vec<&Input>, Vec<&Input>) = case.inputs.iter().partition(|i| i.trained);
    graph.input.retain(|i| !trained.iter().any(|t| Some(&t.name) == i.name.as_ref()));
    graph.initializer = trained.iter().map(|t| initializer(suite, t)).collect();
    let bind: Tensors = rest.iter().map(|i| (i.name.clone(), suite.operand(i))).collect();
    let mode = Mode::Training(Training::default());
    let options = ImportOptions { bind, mode, ..ImportOptions::default() };
    let model = Bytes::from(model.encode_to_vec());
    let mut g = import_bytes(model, None, &options).map_err(|e| format!("import: {e}"))?.graph;
    let floats: Vec<ValueId> =
        g.outputs.iter().map(|o| o.value).filter(|&v| g.ty(v).dtype == DType::F64).collect();
    let value = weighted_sum(&mut g, &floats);
    g.outputs = vec![Output { name: "loss".into(), value }];
    Ok(g)
}

fn initializer(suite: &Suite, input: &Input) -> TensorProto {
    let (ty, bytes) = suite.operand(input);
    TensorProto {
        name: Some(input.name.clone()),
        dims: ty.shape.iter().map(|&d| d as i64).collect(),
        data_type: Some(DataType::Double as i32),
        raw_data: Some(bytes.into()),
        ..TensorProto::default()
    }
}
