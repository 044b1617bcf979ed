//! From a decoded model to a graph.

use super::context::{Cx, Slot, made};
use super::error::{Fault, ImportError, UnsupportedOp};
use super::flatten::{FlatNode, Names, Tensor, flatten, opsets, sort};
use super::fold::Builder;
use super::interface::{Feed, Interface};
use super::ops;
use super::proto::{GraphProto, ModelProto, TensorProto, attribute_proto::AttributeType};
use super::read::Reader;
use super::state::{self, Pair};
use super::{ImportOptions, Imported, attributes};
use arenic_ir::{Data, Def, Graph, Output, StateId, TensorType, ValueId};
use cranelift_entity::SecondaryMap;
use std::collections::{HashMap, HashSet};

/// The first version of ai.onnx that is supported.
const OLDEST: i64 = 13;

const INPUT: &str = "a graph input";
const INITIALIZER: &str = "an initializer";

/// Imports a decoded model.
pub(super) fn import(
    model: &ModelProto,
    reader: &mut Reader,
    options: &ImportOptions,
) -> Result<Imported, ImportError> {
    let Some(graph) = &model.graph else {
        return Err(ImportError::Model("this is no ONNX model: it has no graph".into()));
    };
    let mut names = Names::default();
    let nodes = flatten(model, &graph.node, &mut names)?;
    unsupported(&nodes, &names)?;
    versions(model)?;
    if !graph.sparse_initializer.is_empty() {
        return Err(ImportError::Model("sparse initializers are not supported".into()));
    }

    let outputs: Vec<(Tensor, &str)> = graph
        .output
        .iter()
        .map(|o| o.name.as_deref().unwrap_or(""))
        .map(|name| (names.intern(name), name))
        .collect();
    let defined = definitions(graph, &mut names)?;
    let may_enter = |t: Tensor| defined.get(t).copied().flatten().is_some();
    let output_names: Vec<&str> = outputs.iter().map(|&(_, name)| name).collect();
    let pairs = state::find(
        &options.states,
        &model.metadata_props,
        &output_names,
        &names,
        may_enter,
    )?;
    let nodes = sort(nodes, &names, &defined)?;

    let mut uses = vec![0u32; names.len()];
    let node_inputs = nodes.iter().flat_map(|n| n.inputs.iter().flatten().copied());
    let results = outputs.iter().map(|&(t, _)| t).chain(pairs.iter().map(|p| p.exit));
    for t in node_inputs.chain(results) {
        uses[t] = uses[t].saturating_add(1);
    }

    let mut b = Builder::default();
    b.g.name = graph.name.clone().unwrap_or_default();
    let mut slots = vec![Slot::default(); names.len()];
    let states = define(graph, reader, options, &names, &pairs, &mut b, &mut slots)?;
    for node in &nodes {
        build(&mut b, &mut slots, &uses, reader, &names, node)?;
    }
    finish(graph, options, &names, &outputs, &pairs, &states, b, slots)
}

/// One report of every operator that is not supported.
fn unsupported(nodes: &[FlatNode], names: &Names) -> Result<(), ImportError> {
    let mut found: Vec<UnsupportedOp> = Vec::new();
    let mut index: HashMap<(&str, &str, Option<i64>), usize> = HashMap::new();
    for node in nodes {
        let subgraph = node.attributes.iter().any(|(_, a)| {
            matches!(attributes::kind(a), Some(AttributeType::Graph | AttributeType::Graphs))
        });
        if ops::find(node.domain, node.op).is_some() && !subgraph {
            continue;
        }
        let i = *index.entry((node.domain, node.op, node.version)).or_insert_with(|| {
            found.push(UnsupportedOp {
                domain: if node.domain.is_empty() { "ai.onnx" } else { node.domain }.to_owned(),
                name: node.op.to_owned(),
                version: node.version,
                count: 0,
                first: node.label(names),
            });
            found.len() - 1
        });
        found[i].count += 1;
    }
    if found.is_empty() { Ok(()) } else { Err(ImportError::Unsupported(found)) }
}

/// Refuses versions of ai.onnx whose operators mean something else.
fn versions(model: &ModelProto) -> Result<(), ImportError> {
    let imports = std::iter::once(&model.opset_import)
        .chain(model.functions.iter().map(|f| &f.opset_import));
    for (i, list) in imports.enumerate() {
        let reason = match opsets(list).get("") {
            Some(&v) if v < OLDEST => format!(
                "the model is of opset {v}; arenic needs {OLDEST} or newer. Convert it with \
                 onnx.version_converter.convert_version(model, 18) in Python"
            ),
            None if i == 0 => "the model imports no version of ai.onnx".into(),
            _ => continue,
        };
        return Err(ImportError::Model(reason));
    }
    Ok(())
}

/// What defines each tensor that no node defines.
fn definitions<'m>(
    graph: &'m GraphProto,
    names: &mut Names<'m>,
) -> Result<Vec<Option<&'static str>>, ImportError> {
    let mut defined = vec![None; names.len()];
    let inputs = graph.input.iter().map(|i| (i.name.as_deref().unwrap_or(""), INPUT));
    let initializers =
        graph.initializer.iter().map(|t| (t.name.as_deref().unwrap_or(""), INITIALIZER));
    for (name, what) in inputs.chain(initializers) {
        if name.is_empty() {
            return Err(ImportError::Model(format!("{what} has no name")));
        }
        let t = names.intern(name);
        if t >= defined.len() {
            defined.resize(t + 1, None);
        }
        // An initializer of the name of an input is that input's value.
        if let Some(first) = defined[t]
            && (first, what) != (INPUT, INITIALIZER)
        {
            return Err(ImportError::Duplicate {
                name: name.to_owned(),
                first: first.to_owned(),
                second: what.to_owned(),
            });
        }
        defined[t] = Some(what);
    }
    defined.resize(names.len(), None);
    Ok(defined)
}

/// Adds inputs, states and initializers; gives each pair's state.
fn define(
    graph: &GraphProto,
    reader: &mut Reader,
    options: &ImportOptions,
    names: &Names,
    pairs: &[Pair],
    b: &mut Builder,
    slots: &mut [Slot],
) -> Result<Vec<StateId>, ImportError> {
    let interface = Interface::new(graph, options)?;
    let mut pair_of: HashMap<Tensor, usize> = HashMap::new();
    pair_of.extend(pairs.iter().enumerate().map(|(i, p)| (p.enter, i)));
    let mut states: Vec<Option<StateId>> = vec![None; pairs.len()];
    for feed in interface.feeds {
        let (name, ty, data) = match feed {
            Feed::Fed(name, ty) => (name, ty, None),
            Feed::Bound(name, ty, bytes) => {
                let t = names.find(name).unwrap_or_default();
                if let Some(&i) = pair_of.get(&t) {
                    return Err(ImportError::State {
                        enter: name.to_owned(),
                        exit: names.name(pairs[i].exit).to_owned(),
                        reason: "--bind would make a constant of it".into(),
                    });
                }
                let v = b.constant(ty, bytes);
                b.g.values[v].name = name.to_owned();
                slots[t] = Slot::Value(v);
                continue;
            }
            Feed::Stored(name, tensor, declared) => {
                let (ty, data) = stored(reader, name, tensor, declared.as_deref())?;
                (name, ty, Some(data))
            }
        };
        let t = names.find(name).unwrap_or_default();
        let v = match (pair_of.get(&t), data) {
            (Some(&i), data) => {
                let state = b.g.add_state(name, ty, data);
                states[i] = Some(state);
                b.g.states[state].enter
            }
            (None, Some(data)) => b.initializer(name, ty, data),
            (None, None) => b.g.add_input(name, ty),
        };
        slots[t] = Slot::Value(v);
    }
    // Every pair's first tensor is an input or an initializer, so each was met.
    Ok(states.into_iter().flatten().collect())
}

/// Reads an initializer and compares it with what its graph input says.
fn stored(
    reader: &mut Reader,
    name: &str,
    tensor: &TensorProto,
    declared: Option<&super::interface::Declared>,
) -> Result<(TensorType, Data), ImportError> {
    let error = |reason| ImportError::Tensor { name: name.to_owned(), reason };
    let (ty, data) = reader.tensor(tensor).map_err(error)?;
    if let Some(declared) = declared
        && !declared.admits(&ty)
    {
        return Err(error(format!("it is {ty}, but the graph input of its name is {declared}")));
    }
    Ok((ty, data))
}

/// Builds one node.
fn build(
    b: &mut Builder,
    slots: &mut [Slot],
    uses: &[u32],
    reader: &mut Reader,
    names: &Names,
    node: &FlatNode,
) -> Result<(), ImportError> {
    let error = |fault: Fault| node.error(names, fault.0);
    let Some(row) = ops::find(node.domain, node.op) else {
        return Err(error("it is not supported".into()));
    };
    let given = node.inputs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    let (least, most) = row.inputs;
    if node.inputs.len() < least || given > most {
        return Err(error(Fault(format!(
            "it has {} operands, not {}",
            node.inputs.len(),
            match most {
                usize::MAX => format!("{least} or more"),
                _ if least == most => least.to_string(),
                _ => format!("{least} to {most}"),
            }
        ))));
    }
    if let Some((name, _)) = node.attributes.iter().find(|(n, _)| !row.attributes.contains(n)) {
        return Err(error(Fault(format!("attribute `{name}` is not supported"))));
    }
    let first_new = b.g.values.len();
    let mut cx = Cx { b, slots, uses, reader, names, node };
    let results = (row.build)(&mut cx).map_err(error)?;
    for (i, t) in node.outputs.iter().enumerate() {
        let Some(t) = *t else { continue };
        match results.get(i).copied().flatten() {
            Some(v) => {
                slots[t] = Slot::Value(v);
                let value = &mut b.g.values[v];
                if cranelift_entity::EntityRef::index(v) >= first_new && value.name.is_empty() {
                    value.name = names.name(t).to_owned();
                }
            }
            None if uses[t] == 0 || !matches!(slots[t], Slot::Undefined) => {}
            None => return Err(error(Fault(format!("result {i} is not supported")))),
        }
    }
    Ok(())
}

/// Outputs and next values of states; what nobody reads is dropped.
#[allow(clippy::too_many_arguments)] // the last step of one function
fn finish(
    graph: &GraphProto,
    options: &ImportOptions,
    names: &Names,
    outputs: &[(Tensor, &str)],
    pairs: &[Pair],
    states: &[StateId],
    mut b: Builder,
    mut slots: Vec<Slot>,
) -> Result<Imported, ImportError> {
    for (pair, &state) in pairs.iter().zip(states) {
        let error = |reason: String| ImportError::State {
            enter: names.name(pair.enter).to_owned(),
            exit: names.name(pair.exit).to_owned(),
            reason,
        };
        let exit = made(&mut b, &mut slots, names, pair.exit).map_err(|f| error(f.0))?;
        let (now, next) = (b.g.ty(b.g.states[state].enter), b.g.ty(exit));
        if now != next {
            return Err(error(format!("they differ in type, {now} and {next}")));
        }
        b.g.states[state].exit = exit;
    }
    let exits: HashSet<Tensor> = pairs.iter().map(|p| p.exit).collect();
    let mut seen = HashSet::new();
    for (&(t, name), info) in outputs.iter().zip(&graph.output) {
        let error =
            |reason: String| ImportError::Interface { kind: "output", name: name.into(), reason };
        if !seen.insert(t) {
            return Err(error("it is listed twice".into()));
        }
        let value = made(&mut b, &mut slots, names, t).map_err(|f| error(f.0))?;
        if let Some(declared) = super::interface::declared(info).map_err(&error)?
            && !declared.admits(b.g.ty(value))
        {
            let is = b.g.ty(value);
            return Err(error(format!("it is declared as {declared}, but it is {is}")));
        }
        if !exits.contains(&t) {
            b.g.outputs.push(Output { name: name.to_owned(), value });
        }
    }
    let graph_of_live = live(&b.g);
    let mut bound = b.bound();
    bound.extend(options.bind.keys().cloned());
    let kept: HashSet<&str> = graph_of_live.values.values().map(|v| v.name.as_str()).collect();
    let unused = graph
        .initializer
        .iter()
        .filter_map(|t| t.name.as_deref())
        .filter(|name| !kept.contains(name) && !bound.contains(*name))
        .map(str::to_owned)
        .collect();
    Ok(Imported { bound: bound.into_iter().collect(), unused, graph: graph_of_live })
}

/// The graph without nodes and results that lead to no output and no state.
fn live(g: &Graph) -> Graph {
    let mut used: SecondaryMap<ValueId, bool> = SecondaryMap::with_capacity(g.values.len());
    g.outputs.iter().for_each(|o| used[o.value] = true);
    g.states.values().for_each(|s| used[s.exit] = true);
    let mut keep = SecondaryMap::with_capacity(g.nodes.len());
    for (n, node) in g.nodes.iter().rev() {
        keep[n] = node.outputs.iter().flatten().any(|&v| used[v]);
        if keep[n] {
            node.inputs.iter().for_each(|&v| used[v] = true);
        }
    }
    debug_assert!(!g.values.values().any(|v| matches!(v.def, Def::View { .. })));
    g.compacted(|n| keep[n])
}
