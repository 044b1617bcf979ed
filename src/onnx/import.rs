//! From a decoded model to a graph.

use super::context::{Cx, Slot, made};
use super::error::{Fault, ImportError, UnsupportedOp};
use super::flatten::{FlatNode, Names, Tensor, flatten, sort};
use super::fold::Builder;
use super::interface::{self, Declared, Feed};
use super::ops;
use super::parameters::{Said, detach, literals, removed};
use super::proto::{GraphProto, ModelProto, StringStringEntryProto, TensorProto, ValueInfoProto};
use super::prune;
use super::read::Reader;
use super::state::{self, Pair};
use super::{DEFAULTS, ImportOptions, Imported, Mode};
use arenic_ir::{Data, Def, Graph, Output, StateId, TensorType, ValueId};
use arenic_passes::differentiate::Standing;
use cranelift_entity::{EntityRef, SecondaryMap};
use std::collections::{BTreeMap, HashMap, HashSet};

const INPUT: &str = "a graph input";
const INITIALIZER: &str = "an initializer";

/// Imports a decoded model.
pub(super) fn import(
    model: &ModelProto,
    reader: &mut Reader,
    options: &ImportOptions,
    said: &Said,
) -> Result<Imported, ImportError> {
    let Some(graph) = &model.graph else {
        return Err(ImportError::Model("this is no ONNX model: it has no graph".into()));
    };
    let mut names = Names::default();
    let nodes = flatten(model, &graph.node, &mut names)?;
    let mut outputs: Vec<(Tensor, &ValueInfoProto)> = Vec::new();
    for info in &graph.output {
        outputs.push((names.intern(info.name.as_deref().unwrap_or("")), info));
    }
    let exits = options.states.iter().filter_map(|(_, exit)| names.find(exit)).collect::<Vec<_>>();
    let (nodes, left_out) = prune::prune(nodes, &mut outputs, &exits, options, &names);
    unsupported(&nodes, &names)?;
    versions(&nodes, &names)?;
    if !graph.sparse_initializer.is_empty() {
        return Err(ImportError::Model("sparse initializers are not supported".into()));
    }

    let defined = definitions(graph, &mut names)?;
    let may_enter = |t: Tensor| defined.get(t).copied().flatten().is_some();
    let output_names: Vec<&str> =
        outputs.iter().map(|(_, info)| info.name.as_deref().unwrap_or("")).collect();
    let pairs =
        state::find(&options.states, &model.metadata_props, &output_names, &names, may_enter)?;
    let nodes = sort(nodes, &names, &defined)?;

    let mut uses = vec![0u32; names.len()];
    let node_inputs = nodes.iter().flat_map(FlatNode::reads);
    let results = outputs.iter().map(|&(t, _)| t).chain(pairs.iter().map(|p| p.exit));
    for t in node_inputs.chain(results) {
        uses[t] = uses[t].saturating_add(1);
    }

    let slots = vec![Slot::default(); names.len()];
    let mut b = Builder::default();
    b.g.name = graph.name.clone().unwrap_or_default();
    b.ranks = if options.sync_batch_norm { 1 } else { options.ranks };
    let pinned = nodes.iter().filter_map(|n| n.named.as_ref()).flat_map(|n| &n.xs).copied();
    let pinned = pinned.collect();
    let literals = match options.mode {
        Mode::AsWritten => HashSet::new(),
        _ if !said.standing.is_empty() => HashSet::new(),
        _ => literals::weights(&nodes),
    };
    let mut importer = Importer {
        model,
        graph,
        options,
        said,
        literals,
        reader,
        names,
        pairs,
        uses,
        expanded: 0,
        pinned,
        b,
        slots,
    };
    let states = importer.define()?;
    for node in &nodes {
        importer.build(node)?;
    }
    importer.close(&states, &outputs)?;
    let defaults = defaults(&model.metadata_props)?;
    let (mut notes, mut stops) = (left_out, Vec::new());
    if let Mode::Training(training) = options.mode {
        notes.extend(removed::notes(model, said));
        let drops = nodes.iter().any(|n| n.op == "Dropout");
        if let Some(ratio) = training.dropout.filter(|&p| p > 0.0 && !drops) {
            notes.push(format!(
                "--dropout {ratio} changes nothing: the model has no dropout, which an export for \
                 inference leaves out"
            ));
        }
        stops = said.stops.clone().unwrap_or_else(|| detach::results(graph));
        notes.extend(said.notes.iter().cloned());
    }
    Ok(Imported { defaults, notes, stops, ..importer.finish() })
}

/// Values of inputs where a run gives none.
fn defaults(metadata: &[StringStringEntryProto]) -> Result<BTreeMap<String, f64>, ImportError> {
    let listed = metadata.iter().filter(|e| e.key.as_deref() == Some(DEFAULTS));
    let lines = listed.flat_map(|e| e.value.as_deref().unwrap_or("").lines());
    lines
        .map(|line| {
            let pair = line.split_once('=');
            pair.and_then(|(name, x)| Some((name.trim().to_owned(), x.trim().parse().ok()?)))
                .ok_or_else(|| {
                    let what = format!("metadata property {DEFAULTS}: `{line}` is not NAME=NUMBER");
                    ImportError::Model(what)
                })
        })
        .collect()
}

/// One report of every operator that is not supported.
fn unsupported(nodes: &[FlatNode], names: &Names) -> Result<(), ImportError> {
    let mut found: Vec<UnsupportedOp> = Vec::new();
    let mut index: HashMap<(&str, &str, Option<i64>), usize> = HashMap::new();
    for node in nodes {
        if ops::is_supported(node) {
            continue;
        }
        let i = *index.entry((node.domain, node.op, node.version)).or_insert_with(|| {
            found.push(UnsupportedOp {
                domain: if node.domain.is_empty() { "ai.onnx" } else { node.domain }.to_owned(),
                name: node.op.to_owned(),
                is_of_onnx: node.domain.is_empty() && ops::is_of_onnx(node.op),
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

/// Refuses versions whose operators mean something else than the table's.
fn versions(nodes: &[FlatNode], names: &Names) -> Result<(), ImportError> {
    for node in nodes {
        let since = ops::find(node.domain, node.op).map_or(0, |row| row.since);
        match node.version {
            Some(version) if version >= since => {}
            Some(version) => {
                return Err(ImportError::Model(format!(
                    "the model is of opset {version}; arenic needs {since} or newer (for node \
                     `{}`, {}). Convert it with onnx.version_converter.convert_version(model, 18) \
                     in Python",
                    node.label(names),
                    node.op
                )));
            }
            None => {
                let reason = "the model imports no version of its operator's domain";
                return Err(node.error(names, reason));
            }
        }
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

/// An import under way.
pub(super) struct Importer<'m, 'o> {
    pub(super) model: &'m ModelProto,
    graph: &'m GraphProto,
    pub(super) options: &'o ImportOptions,
    said: &'o Said,
    /// Results of `Constant` nodes that are weights.
    pub(super) literals: HashSet<Tensor>,
    pub(super) reader: &'o mut Reader,
    pub(super) names: Names<'m>,
    pairs: Vec<Pair>,
    /// How often each tensor is read.
    pub(super) uses: Vec<u32>,
    /// Nodes that bodies of branches and loops have become.
    pub(super) expanded: usize,
    /// Tensors that a gradient is asked of.
    pinned: HashSet<Tensor>,
    pub(super) b: Builder,
    pub(super) slots: Vec<Slot>,
}

impl<'m> Importer<'m, '_> {
    fn state_error(&self, pair: &Pair, reason: String) -> ImportError {
        ImportError::State {
            enter: self.names.name(pair.enter).to_owned(),
            exit: self.names.name(pair.exit).to_owned(),
            reason,
        }
    }

    /// Adds inputs, states and initializers; gives each pair's state.
    fn define(&mut self) -> Result<Vec<StateId>, ImportError> {
        let pair_of: HashMap<Tensor, usize> =
            self.pairs.iter().enumerate().map(|(i, p)| (p.enter, i)).collect();
        let mut states: Vec<Option<StateId>> = vec![None; self.pairs.len()];
        let mut tied = Vec::new();
        for feed in interface::feeds(self.graph, self.options)? {
            let Some(t) = self.names.find(feed.name()) else { continue };
            if let Some(with) = self.said.tied.get(feed.name()) {
                tied.push((t, with));
                continue;
            }
            let pair = pair_of.get(&t).copied();
            let (name, ty, data) = match feed {
                Feed::Fed(name, ty) => (name, ty, None),
                Feed::Stored(name, tensor, declared) => {
                    let (ty, data) = stored(self.reader, name, tensor, declared.as_ref())?;
                    (name, ty, Some(data))
                }
                Feed::Bound(name, ty, bytes) => {
                    if let Some(i) = pair {
                        let reason = "--bind would make a constant of it".into();
                        return Err(self.state_error(&self.pairs[i], reason));
                    }
                    let v = self.b.constant(ty, bytes);
                    self.b.g.values[v].name = name.to_owned();
                    self.slots[t] = Slot::Value(v);
                    continue;
                }
            };
            let v = match (pair, data) {
                (Some(i), data) => {
                    let state = self.b.g.add_state(name, ty, data);
                    states[i] = Some(state);
                    self.b.g.states[state].enter
                }
                (None, Some(data)) => self.b.initializer(name, ty, data),
                (None, None) => self.b.g.add_input(name, ty),
            };
            if self.pinned.contains(&t) || self.may_be_trained(name) {
                self.b.pin(v);
            }
            self.slots[t] = Slot::Value(v);
        }
        for (t, with) in tied {
            if let Some(with) = self.names.find(with) {
                self.slots[t] = self.slots[with].clone();
            }
        }
        // Every pair begins with an input or an initializer, so each was met.
        Ok(states.into_iter().flatten().collect())
    }

    /// True where nothing may be folded through an initializer.
    fn may_be_trained(&self, name: &str) -> bool {
        let asked = || self.options.trainable.iter().any(|p| p.matches(name));
        let said = self.said.standing.get(name);
        match self.options.mode {
            Mode::AsWritten => false,
            Mode::Inference => asked(),
            // Where the file says nothing, each that stays is listed with what becomes of it.
            Mode::Training(_) => match said {
                Some(Standing::Parameter | Standing::Fixed) => true,
                Some(Standing::Buffer | Standing::Constant) => asked(),
                None => true,
            },
        }
    }

    /// Builds one node.
    pub(super) fn build(&mut self, node: &FlatNode<'m>) -> Result<(), ImportError> {
        if self.build_control(node)? {
            return Ok(());
        }
        let Importer { names, uses, pinned, b, slots, reader, options, literals, .. } = self;
        let error = |fault: Fault| node.error(names, fault.0);
        let Some(row) = ops::find(node.domain, node.op) else {
            return Err(error("it is not supported".into()));
        };
        let given = node.inputs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let (least, most) = row.inputs;
        if node.inputs.len() < least || given > most {
            let wanted = match most {
                usize::MAX => format!("{least} or more"),
                _ if least == most => least.to_string(),
                _ => format!("{least} to {most}"),
            };
            let count = node.inputs.len();
            return Err(error(Fault(format!("it has {count} operands, not {wanted}"))));
        }
        if let Some((name, _)) = node.attributes.iter().find(|(n, _)| !row.attributes.contains(n)) {
            return Err(error(Fault(format!("attribute `{name}` is not supported"))));
        }
        let first_new = b.g.values.len();
        let mut cx = Cx { b, slots, uses, literals, reader, names, node, mode: options.mode };
        let results = (row.build)(&mut cx).map_err(error)?;
        for (i, t) in node.outputs.iter().enumerate() {
            let Some(t) = *t else { continue };
            match results.get(i).copied().flatten() {
                Some(v) => {
                    slots[t] = Slot::Value(v);
                    if pinned.contains(&t) {
                        b.pin(v);
                    }
                    let value = &mut b.g.values[v];
                    if v.index() >= first_new && value.name.is_empty() {
                        value.name = names.name(t).to_owned();
                    }
                }
                None if uses[t] == 0 || !matches!(slots[t], Slot::Undefined) => {}
                None => return Err(error(Fault(format!("result {i} is not supported")))),
            }
        }
        Ok(())
    }

    /// Sets outputs and the next values of states.
    fn close(
        &mut self,
        states: &[StateId],
        outputs: &[(Tensor, &ValueInfoProto)],
    ) -> Result<(), ImportError> {
        for (pair, &state) in self.pairs.iter().zip(states) {
            let exit = made(&mut self.b, &mut self.slots, &self.names, pair.exit)
                .map_err(|f| self.state_error(pair, f.0))?;
            let g = &self.b.g;
            let (now, next) = (g.ty(g.states[state].enter), g.ty(exit));
            if now != next {
                let reason = format!("they differ in type, {now} and {next}");
                return Err(self.state_error(pair, reason));
            }
            self.b.g.states[state].exit = exit;
        }
        let exits: HashSet<Tensor> = self.pairs.iter().map(|p| p.exit).collect();
        let mut seen = HashSet::new();
        for &(t, info) in outputs {
            let name = info.name.as_deref().unwrap_or("");
            let error = |reason: String| ImportError::Interface {
                kind: "output",
                name: name.to_owned(),
                reason,
            };
            if !seen.insert(t) {
                return Err(error("it is listed twice".into()));
            }
            let value =
                made(&mut self.b, &mut self.slots, &self.names, t).map_err(|f| error(f.0))?;
            let ty = self.b.g.ty(value);
            match interface::declared(info).map_err(error)? {
                Some(declared) if !declared.admits(ty) => {
                    return Err(error(format!("it is declared as {declared}, but it is {ty}")));
                }
                _ => {}
            }
            if !exits.contains(&t) {
                self.b.g.outputs.push(Output { name: name.to_owned(), value });
            }
        }
        Ok(())
    }

    /// What is left once what nobody reads is dropped.
    fn finish(mut self) -> Imported {
        let training = matches!(self.options.mode, Mode::Training(_));
        if training {
            self.b.release(&used(&self.b.g));
        }
        let graph = live(&self.b.g);
        let mut bound = self.b.bound();
        bound.extend(self.options.bind.keys().cloned());
        let kept: HashSet<&str> = graph.values.values().map(|v| v.name.as_str()).collect();
        let initializers = self.graph.initializer.iter().filter_map(|t| t.name.as_deref());
        let unused = initializers
            .filter(|name| !kept.contains(name) && !bound.contains(*name))
            .map(str::to_owned)
            .collect();
        let bound = bound.into_iter().collect();
        Imported {
            bound,
            unused,
            notes: Vec::new(),
            stops: Vec::new(),
            defaults: BTreeMap::new(),
            said: Said::default(),
            graph,
        }
    }
}

/// Reads an initializer and compares it with what its graph input says.
pub(super) fn stored(
    reader: &mut Reader,
    name: &str,
    tensor: &TensorProto,
    declared: Option<&Declared>,
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

/// Values that lead to an output or a state.
fn used(g: &Graph) -> SecondaryMap<ValueId, bool> {
    let mut used: SecondaryMap<ValueId, bool> = SecondaryMap::with_capacity(g.values.len());
    g.outputs.iter().for_each(|o| used[o.value] = true);
    g.states.values().for_each(|s| used[s.exit] = true);
    for node in g.nodes.values().rev() {
        if node.outputs.iter().flatten().any(|&v| used[v]) {
            node.inputs.iter().for_each(|&v| used[v] = true);
        }
    }
    used
}

/// The graph without nodes and results that lead to no output and no state.
fn live(g: &Graph) -> Graph {
    let used = used(g);
    debug_assert!(!g.values.values().any(|v| matches!(v.def, Def::View { .. })));
    g.compacted(|n| g.nodes[n].outputs.iter().flatten().any(|&v| used[v]))
}
