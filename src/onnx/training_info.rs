//! `TrainingInfoProto`: what a model says of its own training, read as one step.
//!
//! The step is the inference graph with the training algorithm's behind it. What
//! `update_binding` binds is carried from step to step; what `initialization` computes replaces
//! the initial values in the file, random ones drawn from seed 0 where a node names none.

use super::error::ImportError;
use super::export::tensor;
use super::import;
use super::parameters::Said;
use super::proto::{GraphProto, ModelProto, TensorProto, TrainingInfoProto};
use super::read::Reader;
use super::{ImportOptions, Imported};
use arenic_ir::Graph;
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use std::collections::{HashMap, HashSet};

/// Pairs of an initializer and the tensor that becomes its next value.
type Updates = Vec<(String, String)>;

/// Combines a model with its training algorithm; without one, the model stays as it is.
///
/// # Errors
/// There are several algorithms, a binding names what is not there, or an initial value cannot
/// be computed.
pub(super) fn combined(
    mut model: ModelProto,
    reader: &mut Reader,
    options: &ImportOptions,
) -> Result<(ModelProto, Updates), ImportError> {
    let all = std::mem::take(&mut model.training_info);
    let algorithms = all.iter().filter(|info| info.algorithm.is_some()).count();
    if algorithms > 1 {
        let what = format!(
            "the model's training_info has {algorithms} algorithms, which are steps of their own; \
             keep the one to compile"
        );
        return Err(ImportError::Model(what));
    }
    let Some(mut graph) = model.graph.take() else { return Ok((model, Updates::new())) };
    let mut updates = Updates::new();
    let mut initial = Vec::new();
    for info in all {
        let TrainingInfoProto { algorithm, initialization, .. } = info;
        append(&mut graph, algorithm.unwrap_or_default());
        let binding = |e: super::proto::StringStringEntryProto| {
            (e.key.unwrap_or_default(), e.value.unwrap_or_default())
        };
        updates.extend(info.update_binding.into_iter().map(binding));
        let bound: Vec<_> = info.initialization_binding.into_iter().map(binding).collect();
        initial.push((initialization.unwrap_or_default(), bound));
    }
    let names = graph.initializer.iter().map(|t| t.name.as_deref().unwrap_or(""));
    let stored: HashMap<&str, usize> = names.zip(0..).collect();
    let known = |name: &str| match stored.get(name) {
        Some(&i) => Ok(i),
        None => {
            let what = format!("training_info binds `{name}`, which is no initializer");
            Err(ImportError::Model(what))
        }
    };
    for (name, _) in &updates {
        known(name)?;
    }
    let mut replaced = Vec::new();
    for (computed, bound) in initial {
        let slots: Vec<usize> = bound.iter().map(|(n, _)| known(n)).collect::<Result<_, _>>()?;
        if bound.is_empty() || options.plan_only {
            continue;
        }
        let values = run(&model, computed, bound, reader)?;
        replaced.extend(slots.into_iter().zip(values));
    }
    for (i, value) in replaced {
        let old = &graph.initializer[i];
        if (old.data_type, &old.dims) != (value.data_type, &value.dims) {
            let name = old.name.as_deref().unwrap_or("");
            let what = format!("the initialization of `{name}` is of another type or shape");
            return Err(ImportError::Model(what));
        }
        graph.initializer[i] = value;
    }
    model.graph = Some(graph);
    let asked: HashSet<&String> = options.states.iter().flat_map(|(x, y)| [x, y]).collect();
    updates.retain(|(x, y)| !asked.contains(x) && !asked.contains(y));
    Ok((model, updates))
}

/// Puts the parts of a graph behind those of another.
fn append(graph: &mut GraphProto, more: GraphProto) {
    graph.node.extend(more.node);
    graph.initializer.extend(more.initializer);
    graph.sparse_initializer.extend(more.sparse_initializer);
    graph.input.extend(more.input);
    graph.output.extend(more.output);
    graph.value_info.extend(more.value_info);
}

/// The outputs of the initialization's graph that are bound, named for what they are bound to.
fn run(
    model: &ModelProto,
    computed: GraphProto,
    bound: Vec<(String, String)>,
    reader: &mut Reader,
) -> Result<Vec<TensorProto>, ImportError> {
    let failed = |reason: String| ImportError::Model(format!("the initialization {reason}"));
    if let Some(input) = computed.input.first() {
        let name = input.name.as_deref().unwrap_or("");
        return Err(failed(format!("has an input, `{name}`; it can have none")));
    }
    let model = ModelProto {
        opset_import: model.opset_import.clone(),
        functions: model.functions.clone(),
        graph: Some(computed),
        ..ModelProto::default()
    };
    let Imported { graph, .. } =
        import::import(&model, reader, &ImportOptions::default(), &Said::default())?;
    let values = evaluated(&graph).map_err(&failed)?;
    let value = |(name, from): (String, String)| {
        let output = graph.outputs.iter().find(|o| o.name == from);
        let Some(v) = output.map(|o| o.value) else {
            return Err(failed(format!("has no output `{from}`")));
        };
        let bytes = values.value(v).to_vec();
        Ok(tensor(&name, graph.ty(v), bytes.into()))
    };
    bound.into_iter().map(value).collect()
}

/// A graph without inputs, run once.
fn evaluated(g: &Graph) -> Result<Reference<'_>, String> {
    let mut reference = Reference::new(g).map_err(|e| format!("cannot run: {e}"))?;
    for (v, data) in g.consts() {
        let Some(bytes) = data.bytes() else { return Err("lacks data".into()) };
        if let Some(home) = reference.value_mut(v) {
            home.copy_from_slice(bytes);
        }
    }
    reference.step(Draw::default()).map_err(|e| format!("fails: {e}"))?;
    Ok(reference)
}
