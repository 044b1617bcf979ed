//! One model out of three files. Gradients go to the optimizer right away: no buffers accumulate
//! them. Names of what is carried to the next step are `out_` and the name of the state.

use super::accumulate::MicroBatches;
use super::checkpoint::Checkpoint;
use super::graph::constant;
use crate::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType,
    tensor_proto::DataType, type_proto,
};
use crate::onnx::state::PREFIX;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The domain of ONNX Runtime's operators.
const MICROSOFT: &str = "com.microsoft";
const ACCUMULATOR: &str = "InPlaceAccumulatorV2";
const BUFFER: &str = "_grad.accumulation.buffer";
const BATCH_NORM: &str = "BatchNormInternal";

const RATE: &str = "lr";
const STEP: &str = "step";
const LOSS: &str = "loss";

/// A model, and which of its tensors are carried as which.
pub(super) struct Fused {
    pub(super) model: ModelProto,
    pub(super) states: Vec<(String, String)>,
}

/// The optimizer's update, which is the same for each parameter.
struct Update<'m> {
    op: &'m str,
    attributes: &'m [AttributeProto],
    /// Suffixes of the states that it keeps for a parameter.
    moments: &'static [&'static str],
}

pub(super) fn fuse(
    training: ModelProto,
    optimizer: &ModelProto,
    mut checkpoint: Checkpoint,
    micro_batches: Option<usize>,
    dims: &mut BTreeMap<String, u64>,
) -> Result<Fused, String> {
    let update = update(optimizer)?;
    let mut model = training;
    let graph = model.graph.take().ok_or("training_model.onnx has no graph")?;
    let mut fusing = Fusing { taken: tensors(&graph), graph, states: Vec::new() };
    let gradients = fusing.gradients()?;
    let inputs: HashSet<String> =
        fusing.graph.input.iter().filter_map(|i| i.name.clone()).collect();
    for t in checkpoint.parameters.iter().chain(&checkpoint.frozen) {
        let name = t.name.as_deref().unwrap_or("");
        if !inputs.contains(name) {
            return Err(format!(
                "the checkpoint is of another model: training_model.onnx has no input `{name}`"
            ));
        }
    }
    fusing.running_statistics(&checkpoint.frozen)?;
    fusing.loss()?;
    if let Some(count) = micro_batches.filter(|&count| count > 1) {
        let opset =
            model.opset_import.iter().find(|o| o.domain.as_deref().unwrap_or("").is_empty());
        let opset = opset.and_then(|o| o.version).unwrap_or(0);
        let kept = checkpoint.parameters.iter().chain(&checkpoint.frozen);
        let kept: HashSet<&str> = kept.filter_map(|t| t.name.as_deref()).collect();
        let mut means: Vec<String> = gradients.values().cloned().collect();
        means.sort_unstable();
        means.push(LOSS.to_owned());
        // What else the model gives is of one micro-batch.
        fusing.graph.output.truncate(1);
        let batches = MicroBatches { count, opset };
        batches.apply(&mut fusing.graph, &kept, &means, &fusing.states, dims);
    }
    fusing.updates(&update, &gradients, &mut checkpoint)?;
    let Checkpoint { parameters, frozen, .. } = checkpoint;
    fusing.graph.initializer.extend(parameters.into_iter().chain(frozen));
    let known = |o: &OperatorSetIdProto| o.domain.as_deref() == Some(MICROSOFT);
    if !model.opset_import.iter().any(known) {
        let domain = Some(MICROSOFT.to_owned());
        model.opset_import.push(OperatorSetIdProto { domain, version: Some(1) });
    }
    model.graph = Some(fusing.graph);
    Ok(Fused { model, states: fusing.states })
}

/// The optimizer's one node.
fn update(optimizer: &ModelProto) -> Result<Update<'_>, String> {
    let nodes = optimizer.graph.as_ref().map_or(&[][..], |g| &g.node);
    let op = |n: &NodeProto| n.op_type.clone().unwrap_or_default();
    let [node] = nodes else {
        let ops: Vec<String> = nodes.iter().map(op).collect();
        return Err(format!(
            "optimizer_model.onnx holds {} nodes ({}), not one optimizer",
            nodes.len(),
            ops.join(", ")
        ));
    };
    let op = node.op_type.as_deref().unwrap_or("");
    let moments: &[&str] = match op {
        "AdamWOptimizer" => &["m", "v"],
        "SGDOptimizerV2" => &[],
        _ => {
            return Err(format!(
                "the optimizer of optimizer_model.onnx is {op}; AdamWOptimizer and SGDOptimizerV2 \
                 are supported"
            ));
        }
    };
    Ok(Update { op, attributes: &node.attribute, moments })
}

/// The names of all tensors.
fn tensors(graph: &GraphProto) -> HashSet<String> {
    let nodes = graph.node.iter().flat_map(|n| n.input.iter().chain(&n.output).cloned());
    let inputs = graph.input.iter().filter_map(|i| i.name.clone());
    let stored = graph.initializer.iter().filter_map(|t| t.name.clone());
    nodes.chain(inputs).chain(stored).collect()
}

struct Fusing {
    graph: GraphProto,
    taken: HashSet<String>,
    states: Vec<(String, String)>,
}

impl Fusing {
    /// Takes a name that no tensor of the training model may have.
    fn claim(&mut self, name: String) -> Result<String, String> {
        if self.taken.insert(name.clone()) {
            return Ok(name);
        }
        Err(format!("training_model.onnx has a tensor `{name}`, which is the name of a new one"))
    }

    /// By parameter, its gradient; what accumulated them is gone.
    fn gradients(&mut self) -> Result<HashMap<String, String>, String> {
        let mut gradients = HashMap::new();
        let mut gone: HashSet<String> = HashSet::new();
        let nodes = std::mem::take(&mut self.graph.node);
        for node in nodes {
            if node.op_type.as_deref() != Some(ACCUMULATOR) {
                self.graph.node.push(node);
                continue;
            }
            let (Some(buffer), Some(gradient)) = (node.input.first(), node.input.get(1)) else {
                return Err(format!("a node {ACCUMULATOR} of training_model.onnx lacks operands"));
            };
            let Some(parameter) = buffer.strip_suffix(BUFFER) else {
                return Err(format!("`{buffer}` is no gradient's buffer, NAME{BUFFER}"));
            };
            if gradients.insert(parameter.to_owned(), gradient.clone()).is_some() {
                return Err(format!("`{parameter}` has two gradients"));
            }
            gone.insert(buffer.clone());
            gone.extend(node.input.get(2).cloned());
            gone.extend(node.output.iter().cloned());
        }
        if gradients.is_empty() {
            return Err("training_model.onnx computes no gradients; is it an eval model?".into());
        }
        let stays = |i: &ValueInfoProto| i.name.as_ref().is_none_or(|n| !gone.contains(n));
        self.graph.input.retain(stays);
        self.graph.output.retain(stays);
        Ok(gradients)
    }

    /// A batch norm's statistics are updated in place; here they are states.
    fn running_statistics(&mut self, frozen: &[TensorProto]) -> Result<(), String> {
        let frozen: HashSet<&str> = frozen.iter().filter_map(|t| t.name.as_deref()).collect();
        let mut nodes = std::mem::take(&mut self.graph.node);
        for node in nodes.iter_mut().filter(|n| n.op_type.as_deref() == Some(BATCH_NORM)) {
            for (i, k) in [(3, 1), (4, 2)] {
                let name = node.input.get(i).cloned().unwrap_or_default();
                if !frozen.contains(name.as_str()) {
                    return Err(format!("the checkpoint lacks the running statistics `{name}`"));
                }
                let exit = match node.output.get(k).cloned().unwrap_or_default() {
                    exit if exit.is_empty() => self.claim(format!("{PREFIX}{name}"))?,
                    exit => exit,
                };
                if node.output.len() <= k {
                    node.output.resize(k + 1, String::new());
                }
                node.output[k].clone_from(&exit);
                self.states.push((name, exit));
            }
        }
        self.graph.node = nodes;
        Ok(())
    }

    /// One update per parameter.
    fn updates(
        &mut self,
        update: &Update,
        gradients: &HashMap<String, String>,
        checkpoint: &mut Checkpoint,
    ) -> Result<(), String> {
        let rate = self.claim(RATE.to_owned())?;
        self.graph.input.push(scalar_input(&rate));
        let count = match update.moments {
            [] => None,
            _ => Some(self.count(checkpoint.step)?),
        };
        let mut met = 0;
        for t in &checkpoint.parameters {
            let name = t.name.clone().unwrap_or_default();
            // What leads to no loss has none, and stays as it is.
            let Some(gradient) = gradients.get(&name) else { continue };
            met += 1;
            let mut input = vec![rate.clone()];
            input.extend(count.clone());
            input.extend([name.clone(), gradient.clone()]);
            let mut output = vec![self.claim(format!("{PREFIX}{name}"))?];
            self.states.push((name.clone(), output[0].clone()));
            let kept = checkpoint.moments.remove(&name);
            let kept = kept.filter(|all| all.len() == update.moments.len());
            for (i, suffix) in update.moments.iter().enumerate() {
                let moment = self.claim(format!("{name}.{suffix}"))?;
                let exit = self.claim(format!("{PREFIX}{moment}"))?;
                let value = match &kept {
                    Some(all) => all[i].clone(),
                    None => zeros(t),
                };
                self.graph.initializer.push(TensorProto { name: Some(moment.clone()), ..value });
                self.states.push((moment.clone(), exit.clone()));
                input.push(moment);
                output.push(exit);
            }
            self.graph.node.push(NodeProto {
                name: Some(format!("{name}/{}", update.op)),
                op_type: Some(update.op.to_owned()),
                domain: Some(MICROSOFT.to_owned()),
                input,
                output,
                attribute: update.attributes.to_vec(),
                ..NodeProto::default()
            });
        }
        if met < gradients.len() {
            let has =
                |name: &String| checkpoint.parameters.iter().any(|t| t.name.as_ref() == Some(name));
            let mut lacking: Vec<&str> =
                gradients.keys().filter(|n| !has(n)).map(String::as_str).collect();
            lacking.sort_unstable();
            return Err(format!("the checkpoint lacks the parameters {}", lacking.join(", ")));
        }
        Ok(())
    }

    /// The number of the step, which is one in the first.
    fn count(&mut self, before: i64) -> Result<String, String> {
        let (step, one) = (self.claim(STEP.to_owned())?, self.claim(format!("{STEP}/one"))?);
        let next = self.claim(format!("{PREFIX}{STEP}"))?;
        self.graph.initializer.push(TensorProto {
            name: Some(step.clone()),
            data_type: Some(DataType::Int64 as i32),
            int64_data: vec![before],
            ..TensorProto::default()
        });
        let value = AttributeProto {
            name: Some("value_int".to_owned()),
            r#type: Some(AttributeType::Int as i32),
            i: Some(1),
            ..AttributeProto::default()
        };
        let node = |op: &str, input: Vec<String>, output: &str| NodeProto {
            name: Some(output.to_owned()),
            op_type: Some(op.to_owned()),
            input,
            output: vec![output.to_owned()],
            ..NodeProto::default()
        };
        self.graph.node.push(constant(value, &one));
        self.graph.node.push(node("Add", vec![step.clone(), one], &next));
        self.states.push((step, next.clone()));
        Ok(next)
    }

    /// The first output is the loss.
    fn loss(&mut self) -> Result<(), String> {
        let Some(output) = self.graph.output.first_mut() else {
            return Err("training_model.onnx has no output besides gradients".into());
        };
        let name = output.name.clone().unwrap_or_default();
        if name == LOSS {
            return Ok(());
        }
        output.name = Some(LOSS.to_owned());
        let loss = self.claim(LOSS.to_owned())?;
        self.graph.node.push(NodeProto {
            name: Some(LOSS.to_owned()),
            op_type: Some("Identity".to_owned()),
            input: vec![name],
            output: vec![loss],
            ..NodeProto::default()
        });
        Ok(())
    }
}

/// Zeros of a tensor's type.
fn zeros(like: &TensorProto) -> TensorProto {
    let raw = like.raw_data.as_ref().map_or(0, |b| b.len());
    TensorProto {
        dims: like.dims.clone(),
        data_type: like.data_type,
        raw_data: Some(vec![0; raw].into()),
        ..TensorProto::default()
    }
}

/// An input that is a scalar of single precision.
fn scalar_input(name: &str) -> ValueInfoProto {
    let tensor = type_proto::Tensor {
        elem_type: Some(DataType::Float as i32),
        shape: Some(TensorShapeProto::default()),
    };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(tensor)),
            ..TypeProto::default()
        }),
        ..ValueInfoProto::default()
    }
}
