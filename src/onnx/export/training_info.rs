//! A functional whole step as a model with `TrainingInfoProto`.
//!
//! What the outputs depend on is the model's graph, with states as its initializers; the rest is
//! the training algorithm, whose `update_binding` carries `out_X` to `X`. The combination of both
//! graphs, which is the training step by the standard, is the functional one again.

use super::super::proto::{
    GraphProto, ModelProto, StringStringEntryProto, TensorProto, TrainingInfoProto, ValueInfoProto,
};
use super::super::state::PREFIX;
use super::ExportError;
use arenic_ir::Graph;
use std::collections::HashSet;

/// Divides the functional step of a graph.
///
/// # Errors
/// A state without an initial value, which the standard asks of what is updated.
pub fn with_training_info(mut model: ModelProto, g: &Graph) -> Result<ModelProto, ExportError> {
    let Some(graph) = model.graph.take() else { return Ok(model) };
    let states: HashSet<&str> = g.states.values().map(|s| s.name.as_str()).collect();
    let stored: HashSet<&str> = graph.initializer.iter().map(name_of).collect();
    if let Some(name) = g.states.values().map(|s| &s.name).find(|n| !stored.contains(n.as_str())) {
        return Err(ExportError::Initial(name.clone()));
    }
    let is_update = |o: &ValueInfoProto| {
        o.name.as_deref().and_then(|n| n.strip_prefix(PREFIX)).is_some_and(|x| states.contains(x))
    };
    let (updates, outputs): (Vec<_>, Vec<_>) = graph.output.into_iter().partition(is_update);
    let mut needed: HashSet<String> = outputs.iter().filter_map(|o| o.name.clone()).collect();
    let mut inference = vec![false; graph.node.len()];
    for (node, is) in graph.node.iter().zip(&mut inference).rev() {
        *is = node.output.iter().any(|y| needed.contains(y));
        if *is {
            needed.extend(node.input.iter().cloned());
        }
    }
    let mut of_inference: HashSet<String> = needed;
    for (node, _) in graph.node.iter().zip(&inference).filter(|(_, is)| **is) {
        of_inference.extend(node.output.iter().cloned());
    }
    let is_stored: HashSet<String> = stored.iter().map(|&n| n.to_owned()).collect();
    let here = |name: Option<&str>| name.is_some_and(|n| of_inference.contains(n));
    let mut divided = [GraphProto::default(), GraphProto::default()];
    for (node, is) in graph.node.into_iter().zip(inference) {
        divided[usize::from(!is)].node.push(node);
    }
    for t in graph.initializer {
        divided[usize::from(!here(t.name.as_deref()))].initializer.push(t);
    }
    // What has an initial value is fed by nobody.
    for i in
        graph.input.into_iter().filter(|i| !i.name.as_ref().is_some_and(|n| is_stored.contains(n)))
    {
        divided[usize::from(!here(i.name.as_deref()))].input.push(i);
    }
    for v in graph.value_info {
        divided[usize::from(!here(v.name.as_deref()))].value_info.push(v);
    }
    let bound = |o: &ValueInfoProto| StringStringEntryProto {
        key: o.name.as_deref().and_then(|n| n.strip_prefix(PREFIX)).map(str::to_owned),
        value: o.name.clone(),
    };
    let update_binding = updates.iter().map(bound).collect();
    let [inference, algorithm] = divided;
    let name = Some("training".to_owned());
    let algorithm = GraphProto { name, output: updates, ..algorithm };
    model.graph = Some(GraphProto { name: graph.name, output: outputs, ..inference });
    model.training_info = vec![TrainingInfoProto {
        algorithm: Some(algorithm),
        update_binding,
        ..TrainingInfoProto::default()
    }];
    Ok(model)
}

fn name_of(t: &TensorProto) -> &str {
    t.name.as_deref().unwrap_or("")
}
