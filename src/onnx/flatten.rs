//! One flat list of nodes: functions inlined, names numbered, definitions before uses.

use super::attributes::{Access, Attributes};
use super::domains::{PREVIEW, TRAINING};
use super::error::{Fault, ImportError};
use super::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, ValueInfoProto,
};
use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// A tensor's name, numbered.
pub(super) type Tensor = usize;

/// All names.
#[derive(Default)]
pub(super) struct Names<'m> {
    ids: HashMap<&'m str, Tensor>,
    names: Vec<Cow<'m, str>>,
}

impl<'m> Names<'m> {
    /// The number of a name of the main graph.
    pub(super) fn intern(&mut self, name: &'m str) -> Tensor {
        *self.ids.entry(name).or_insert_with(|| {
            self.names.push(Cow::Borrowed(name));
            self.names.len() - 1
        })
    }

    /// The number of a name that is already known.
    pub(super) fn find(&self, name: &str) -> Option<Tensor> {
        self.ids.get(name).copied()
    }

    /// A tensor inside of a function: nothing outside can name it.
    fn fresh(&mut self, name: String) -> Tensor {
        self.names.push(Cow::Owned(name));
        self.names.len() - 1
    }

    /// The name of a tensor.
    pub(super) fn name(&self, t: Tensor) -> &str {
        &self.names[t]
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}

/// A node whose surroundings are resolved.
pub(super) struct FlatNode<'m> {
    pub(super) name: Cow<'m, str>,
    /// Empty for ai.onnx.
    pub(super) domain: &'m str,
    pub(super) op: &'m str,
    /// The version of its domain, where the model imports it.
    pub(super) version: Option<i64>,
    pub(super) inputs: Vec<Option<Tensor>>,
    pub(super) outputs: Vec<Option<Tensor>>,
    pub(super) attributes: Attributes<'m>,
    /// The tensors that the attributes of a `Gradient` name.
    pub(super) named: Option<Named>,
    /// The graphs of an `If`, a `Loop` or a `Scan`.
    pub(super) bodies: Vec<Body<'m>>,
}

/// A graph inside of a node, with what the names around it mean.
pub(super) struct Body<'m> {
    /// The attribute that it is.
    pub(super) name: &'m str,
    pub(super) graph: &'m GraphProto,
    /// Tensors around it that it reads.
    outer: HashMap<&'m str, Option<Tensor>>,
    attributes: HashMap<&'m str, &'m AttributeProto>,
    opsets: Opsets<'m>,
    prefix: String,
}

/// The nodes that a body becomes once.
pub(super) struct Inner<'m> {
    pub(super) nodes: Vec<FlatNode<'m>>,
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
    pub(super) initializers: Vec<(Tensor, &'m TensorProto)>,
}

impl<'m> Body<'m> {
    /// The nodes of the body at some turn of a loop: names inside are new ones.
    ///
    /// # Errors
    /// Functions that cannot be inlined, or a name inside that is one around it.
    pub(super) fn flatten(
        &self,
        model: &'m ModelProto,
        turn: usize,
        names: &mut Names<'m>,
    ) -> Result<Inner<'m>, ImportError> {
        let prefix = format!("{}/{turn}", self.prefix);
        let mut local = self.outer.clone();
        let mut own = |name: &'m str, names: &mut Names<'m>| {
            let t = names.fresh(format!("{prefix}/{name}"));
            local.insert(name, Some(t));
            t
        };
        let graph = self.graph;
        let input = |i: &'m ValueInfoProto| i.name.as_deref().unwrap_or("");
        let inputs = graph.input.iter().map(|i| own(input(i), names)).collect();
        let stored = |t: &'m TensorProto| t.name.as_deref().unwrap_or("");
        let initializers: Vec<_> =
            graph.initializer.iter().map(|t| (own(stored(t), names), t)).collect();
        for result in graph.node.iter().flat_map(|n| &n.output).filter(|o| !o.is_empty()) {
            own(result, names);
        }
        let outputs = graph.output.iter().map(|o| local.get(input(o)).copied().flatten());
        let outputs: Option<Vec<Tensor>> = outputs.collect();
        let outputs = outputs.ok_or_else(|| {
            ImportError::Model(format!("a result of the graph in `{prefix}` is not defined"))
        })?;
        let scope = Scope {
            nodes: graph.node.iter(),
            local: Some(local),
            attributes: self.attributes.clone(),
            opsets: Rc::clone(&self.opsets),
            prefix,
        };
        let nodes = inlined(model, scope, graph.node.len(), names)?;
        Ok(Inner { nodes, inputs, outputs, initializers })
    }
}

/// Names that a graph reads and does not define.
fn free<'m>(graph: &'m GraphProto, defined: &HashSet<&'m str>, found: &mut Vec<&'m str>) {
    let mut defined = defined.clone();
    let inputs = graph.input.iter().filter_map(|i| i.name.as_deref());
    defined.extend(inputs.chain(graph.initializer.iter().filter_map(|t| t.name.as_deref())));
    for node in &graph.node {
        let reads = node.input.iter().map(String::as_str);
        found.extend(reads.filter(|i| !i.is_empty() && !defined.contains(i)));
        for inner in node.attribute.iter().filter_map(|a| a.g.as_ref()) {
            free(inner, &defined, found);
        }
        defined.extend(node.output.iter().map(String::as_str));
    }
    let outputs = graph.output.iter().filter_map(|o| o.name.as_deref());
    found.extend(outputs.filter(|o| !defined.contains(o)));
}

/// What a `Gradient` is of: tensors that its attributes name.
#[derive(Clone, Default)]
pub(super) struct Named {
    /// Whose gradient.
    pub(super) y: Tensor,
    /// With respect to what.
    pub(super) xs: Vec<Tensor>,
    /// What `y` is a function of besides.
    pub(super) zs: Vec<Tensor>,
}

impl FlatNode<'_> {
    /// The tensors that must be there before the node.
    pub(super) fn reads(&self) -> impl Iterator<Item = Tensor> {
        let named = self.named.iter();
        let named = named.flat_map(|n| n.xs.iter().chain(&n.zs).chain(std::iter::once(&n.y)));
        let around = self.bodies.iter().flat_map(|b| b.outer.values().flatten());
        self.inputs.iter().flatten().chain(named).chain(around).copied()
    }

    /// What to call the node in messages.
    pub(super) fn label(&self, names: &Names) -> String {
        match self.outputs.iter().flatten().next() {
            _ if !self.name.is_empty() => self.name.to_string(),
            Some(&t) => names.name(t).to_owned(),
            None => "without name".into(),
        }
    }

    /// An error about this node.
    pub(super) fn error(&self, names: &Names, reason: impl Into<String>) -> ImportError {
        ImportError::Node { node: self.label(names), op: self.op.to_owned(), reason: reason.into() }
    }
}

/// The default domain has two spellings.
fn normal_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// True for operators that hold graphs.
pub(super) fn holds_graphs(domain: &str, op: &str) -> bool {
    match domain {
        "" => ["If", "Loop", "Scan", "SequenceMap"].contains(&op),
        PREVIEW => op == "FlexAttention",
        _ => false,
    }
}

type Opsets<'m> = Rc<HashMap<&'m str, i64>>;

/// The imported version of each domain.
fn opsets(imports: &[OperatorSetIdProto]) -> HashMap<&str, i64> {
    imports
        .iter()
        .map(|o| (normal_domain(o.domain.as_deref().unwrap_or("")), o.version.unwrap_or(0)))
        .collect()
}

/// Most nodes after inlining. Functions that call functions can ask for exponentially
/// many.
const MAX_NODES: usize = 1_000_000;
/// Deepest nesting of functions.
const MAX_DEPTH: usize = 64;

/// The nodes of a graph or of one call of a function, with what their names mean.
struct Scope<'m> {
    nodes: std::slice::Iter<'m, NodeProto>,
    /// Names inside of a function; the main graph's are in [`Names`].
    local: Option<HashMap<&'m str, Option<Tensor>>>,
    attributes: HashMap<&'m str, &'m AttributeProto>,
    opsets: Opsets<'m>,
    prefix: String,
}

impl<'m> Scope<'m> {
    fn tensor(&mut self, name: &'m str, names: &mut Names<'m>) -> Option<Tensor> {
        if name.is_empty() {
            return None;
        }
        match &mut self.local {
            None => Some(names.intern(name)),
            Some(local) => *local
                .entry(name)
                .or_insert_with(|| Some(names.fresh(format!("{}/{name}", self.prefix)))),
        }
    }

    fn attributes(&self, node: &'m NodeProto) -> Result<Attributes<'m>, String> {
        let mut all: Attributes<'m> = Vec::with_capacity(node.attribute.len());
        for a in &node.attribute {
            let name = a.name.as_deref().unwrap_or("");
            if all.iter().any(|(n, _)| *n == name) {
                return Err(format!("attribute `{name}` is there twice"));
            }
            match a.ref_attr_name.as_deref().unwrap_or("") {
                "" => all.push((name, a)),
                _ if self.local.is_none() => {
                    return Err(format!("attribute `{name}` refers to one of a function"));
                }
                // A reference to an attribute that the call leaves out is left out too.
                outer => all.extend(self.attributes.get(outer).map(|&value| (name, value))),
            }
        }
        Ok(all)
    }

    /// The graphs that a node holds, in this scope.
    fn bodies(
        &mut self,
        attributes: &Attributes<'m>,
        prefix: &str,
        names: &mut Names<'m>,
    ) -> Vec<Body<'m>> {
        let mut bodies = Vec::new();
        for &(name, a) in attributes {
            let Some(graph) = &a.g else { continue };
            let mut found = Vec::new();
            free(graph, &HashSet::new(), &mut found);
            let outer = found.into_iter().map(|n| (n, self.tensor(n, names))).collect();
            bodies.push(Body {
                name,
                graph,
                outer,
                attributes: self.attributes.clone(),
                opsets: Rc::clone(&self.opsets),
                prefix: prefix.to_owned(),
            });
        }
        bodies
    }

    /// What the attributes of a `Gradient` name in this scope.
    fn named(&mut self, a: &Access<'_, 'm>, names: &mut Names<'m>) -> Result<Named, Fault> {
        let mut tensor = |name: &'m str| {
            self.tensor(name, names).ok_or_else(|| Fault("an attribute names no tensor".into()))
        };
        let required = |name: &str| Fault(format!("attribute `{name}` is missing"));
        let y = tensor(a.text("y")?.ok_or_else(|| required("y"))?)?;
        let xs = a.texts("xs")?.ok_or_else(|| required("xs"))?;
        let zs = a.texts("zs")?.unwrap_or_default();
        let mut all =
            |list: Vec<&'m str>| list.into_iter().map(&mut tensor).collect::<Result<_, _>>();
        Ok(Named { y, xs: all(xs)?, zs: all(zs)? })
    }
}

/// All nodes of the model's graph, functions inlined.
pub(super) fn flatten<'m>(
    model: &'m ModelProto,
    nodes: &'m [NodeProto],
    names: &mut Names<'m>,
) -> Result<Vec<FlatNode<'m>>, ImportError> {
    let scope = Scope {
        nodes: nodes.iter(),
        local: None,
        attributes: HashMap::new(),
        opsets: Rc::new(opsets(&model.opset_import)),
        prefix: String::new(),
    };
    inlined(model, scope, nodes.len(), names)
}

/// All nodes of a scope, functions inlined.
fn inlined<'m>(
    model: &'m ModelProto,
    scope: Scope<'m>,
    count: usize,
    names: &mut Names<'m>,
) -> Result<Vec<FlatNode<'m>>, ImportError> {
    let mut functions: HashMap<(&str, &str, &str), &'m FunctionProto> = HashMap::new();
    for f in &model.functions {
        let text = |s: &'m Option<String>| s.as_deref().unwrap_or("");
        let key = (normal_domain(text(&f.domain)), text(&f.name), text(&f.overload));
        if functions.insert(key, f).is_some() {
            return Err(ImportError::Model(format!("two functions are named {}.{}", key.0, key.1)));
        }
    }
    let mut flat: Vec<FlatNode<'m>> = Vec::with_capacity(count);
    let mut calls = 0usize;
    let mut stack = vec![scope];
    loop {
        let depth = stack.len();
        let Some(scope) = stack.last_mut() else { return Ok(flat) };
        let Some(node) = scope.nodes.next() else {
            stack.pop();
            continue;
        };
        let domain = normal_domain(node.domain.as_deref().unwrap_or(""));
        let op = node.op_type.as_deref().unwrap_or("");
        let own = node.name.as_deref().unwrap_or("");
        let name = match (&scope.local, own) {
            (None, _) | (_, "") => Cow::Borrowed(own),
            _ => Cow::Owned(format!("{}/{own}", scope.prefix)),
        };
        let attributes = scope.attributes(node);
        let flat_node = FlatNode {
            name,
            domain,
            op,
            version: scope.opsets.get(domain).copied(),
            inputs: node.input.iter().map(|s| scope.tensor(s, names)).collect(),
            outputs: node.output.iter().map(|s| scope.tensor(s, names)).collect(),
            attributes: Vec::new(),
            named: None,
            bodies: Vec::new(),
        };
        let attributes = attributes.map_err(|reason| flat_node.error(names, reason))?;
        let flat_node = match (domain, op) {
            (TRAINING, "Gradient") => {
                let named = scope.named(&Access(&attributes), names);
                let named = Some(named.map_err(|fault| flat_node.error(names, fault.0))?);
                FlatNode { named, ..flat_node }
            }
            (domain, op) if holds_graphs(domain, op) => {
                let prefix = flat_node.label(names);
                let bodies = scope.bodies(&attributes, &prefix, names);
                FlatNode { bodies, ..flat_node }
            }
            _ => flat_node,
        };
        let overload = node.overload.as_deref().unwrap_or("");
        match functions.get(&(domain, op, overload)) {
            None => flat.push(FlatNode { attributes, ..flat_node }),
            Some(_) if depth > MAX_DEPTH => {
                return Err(flat_node.error(
                    names,
                    format!("functions nested deeper than {MAX_DEPTH}; does one call itself?"),
                ));
            }
            Some(f) => {
                calls += 1;
                let prefix = match (&*flat_node.name, &*scope.prefix) {
                    ("", "") => format!("{op}_{calls}"),
                    ("", outer) => format!("{outer}/{op}_{calls}"),
                    (name, _) => format!("{name}_{calls}"),
                };
                let inner = call(f, &flat_node, &attributes, prefix)
                    .map_err(|reason| flat_node.error(names, reason))?;
                stack.push(inner);
            }
        }
        if flat.len() + calls > MAX_NODES {
            return Err(ImportError::Model(format!(
                "the model has more than {MAX_NODES} nodes once its functions are inlined"
            )));
        }
    }
}

/// The scope of one call.
fn call<'m>(
    f: &'m FunctionProto,
    node: &FlatNode<'m>,
    given: &Attributes<'m>,
    prefix: String,
) -> Result<Scope<'m>, String> {
    if node.inputs.len() > f.input.len() || node.outputs.len() > f.output.len() {
        return Err(format!(
            "the function takes {} operands and gives {} results, the node has {} and {}",
            f.input.len(),
            f.output.len(),
            node.inputs.len(),
            node.outputs.len()
        ));
    }
    let mut local: HashMap<&str, Option<Tensor>> = HashMap::new();
    for (i, name) in f.input.iter().enumerate() {
        if local.insert(name, node.inputs.get(i).copied().flatten()).is_some() {
            return Err(format!("the function names its operand `{name}` twice"));
        }
    }
    for (name, &tensor) in f.output.iter().zip(&node.outputs) {
        // Where the call leaves a result out, the inside still computes it.
        if tensor.is_some() && local.insert(name, tensor).is_some() {
            return Err(format!("the function's result `{name}` is an operand or another result"));
        }
    }
    let mut attributes: HashMap<&str, &AttributeProto> =
        f.attribute_proto.iter().map(|a| (a.name.as_deref().unwrap_or(""), a)).collect();
    for &(name, a) in given {
        if !attributes.contains_key(name) && !f.attribute.iter().any(|n| n == name) {
            return Err(format!("the function has no attribute `{name}`"));
        }
        attributes.insert(name, a);
    }
    let opsets = Rc::new(opsets(&f.opset_import));
    Ok(Scope { nodes: f.node.iter(), local: Some(local), attributes, opsets, prefix })
}

/// Brings nodes into an order where definitions precede uses; where the file's order
/// leaves a choice, the earlier node in the file comes first.
///
/// `defined` says, for tensors that no node may define, what does.
pub(super) fn sort<'m>(
    nodes: Vec<FlatNode<'m>>,
    names: &Names<'m>,
    defined: &[Option<&'static str>],
) -> Result<Vec<FlatNode<'m>>, ImportError> {
    let mut producer: Vec<Option<usize>> = vec![None; names.len()];
    for (i, node) in nodes.iter().enumerate() {
        for &t in node.outputs.iter().flatten() {
            let describe = |n: usize| {
                let node: &FlatNode = &nodes[n];
                format!("node `{}` ({})", node.label(names), node.op)
            };
            let first = match (defined[t], producer[t]) {
                (Some(what), _) => what.to_owned(),
                (None, Some(n)) => describe(n),
                (None, None) => {
                    producer[t] = Some(i);
                    continue;
                }
            };
            return Err(ImportError::Duplicate {
                name: names.name(t).to_owned(),
                first,
                second: describe(i),
            });
        }
    }
    let mut waiting = vec![0usize; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut in_order = true;
    for (i, node) in nodes.iter().enumerate() {
        for t in node.reads() {
            match producer[t] {
                Some(p) => {
                    readers[p].push(i);
                    waiting[i] += 1;
                    in_order &= p < i;
                }
                None if defined[t].is_some() => {}
                None => {
                    return Err(node.error(
                        names,
                        format!(
                            "it reads `{}`, which is no input, no initializer and no node's result",
                            names.name(t)
                        ),
                    ));
                }
            }
        }
    }
    if in_order {
        return Ok(nodes);
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..nodes.len()).filter(|&i| waiting[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for &r in &readers[i] {
            waiting[r] -= 1;
            if waiting[r] == 0 {
                ready.push(Reverse(r));
            }
        }
    }
    if order.len() < nodes.len() {
        return Err(ImportError::Cycle(cycle(&nodes, names, &producer)));
    }
    let mut slots: Vec<Option<FlatNode>> = nodes.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|i| slots[i].take()).collect())
}

/// The nodes of a shortest cycle through the first node of the file that is in one. Nodes are in a
/// cycle where they are strongly connected.
fn cycle(nodes: &[FlatNode], names: &Names, producer: &[Option<usize>]) -> Vec<String> {
    const SHOWN: usize = 64;
    let mut reads: DiGraph<(), ()> = DiGraph::with_capacity(nodes.len(), nodes.len());
    for _ in nodes {
        reads.add_node(());
    }
    for (i, node) in nodes.iter().enumerate() {
        for p in node.reads().filter_map(|t| producer[t]) {
            reads.add_edge(NodeIndex::new(p), NodeIndex::new(i), ());
        }
    }
    let components = kosaraju_scc(&reads);
    let cyclic = components.into_iter().filter(|c| c.len() > 1 || reads.contains_edge(c[0], c[0]));
    let Some(component) = cyclic.min_by_key(|c| c.iter().min().copied()) else {
        return Vec::new();
    };
    let Some(&start) = component.iter().min() else { return Vec::new() };
    let inside: HashSet<NodeIndex> = component.iter().copied().collect();
    // Breadth first from the node back to itself.
    let mut came_from: HashMap<NodeIndex, NodeIndex> = HashMap::new();
    let mut open = VecDeque::from([start]);
    while let Some(n) = open.pop_front().filter(|_| !came_from.contains_key(&start)) {
        for next in reads.neighbors(n).filter(|next| inside.contains(next)) {
            came_from.entry(next).or_insert_with(|| {
                open.push_back(next);
                n
            });
        }
    }
    let mut path = vec![start];
    let mut at = start;
    while let Some(&before) = came_from.get(&at) {
        path.push(before);
        at = before;
        if at == start {
            break;
        }
    }
    path.reverse();
    let label = |n: &NodeIndex| nodes[n.index()].label(names);
    let length = path.len() - 1;
    let mut labels: Vec<String> = path.iter().take(SHOWN).map(label).collect();
    if length >= SHOWN {
        labels.push(format!("({} more)", length - SHOWN));
        labels.push(label(&start));
    }
    if component.len() > length {
        let (last, more) = (labels.len() - 1, component.len() - length);
        labels[last] += &format!(" ({more} more nodes are in cycles with these)");
    }
    labels
}
