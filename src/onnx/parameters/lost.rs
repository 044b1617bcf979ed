//! What an exporter's optimizer did to parameters.
//!
//! All nodes that came of one operator of the program bear its text, which names the parameters that
//! the operator reads. A parameter that is named there and is no initializer was folded into
//! another weight, merged with an equal one, or computed on: then another initializer is read in its place.
//! One that is an initializer which no node of the operator reads is read as a copy. What is read in
//! place of what is certain where both are as many; their order is then that of operands.

use super::signature::{Operator, Signature};
use super::{elements, floats, label, name, property};
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use arenic_passes::differentiate::Standing;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

/// The rewrite that a node came of, by the exporter's optimizer.
pub(super) const RULE: &str = "pkg.onnxscript.rewriter.rule_name";

/// The modules that a node is of, from the outermost.
const SCOPES: &str = "pkg.torch.onnx.name_scopes";

/// A parameter that the file does not have as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its name in the module.
    pub name: String,
    /// What became of it.
    pub fate: Fate,
    /// How it can be had back, where that is certain.
    pub(super) repair: Option<Repair>,
}

/// What became of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The file says no more than that it should be there.
    Missing,
    /// Its batch normalisation is folded into another weight.
    Folded {
        /// The weight.
        into: String,
        /// The node that reads the weight.
        node: String,
    },
    /// It was equal to another tensor, which is read in its place.
    Merged {
        /// The other.
        with: String,
        /// The node that reads it.
        node: String,
    },
    /// What was computed of it is a constant.
    Replaced {
        /// The constants, one of which it is.
        by: Vec<String>,
        /// The node that reads the first.
        node: String,
    },
    /// It is there, but a copy of it is read as well, which would not be trained with it.
    Copied {
        /// The copy.
        copy: String,
        /// The node that reads the copy.
        node: String,
    },
    /// Its operator is there without it.
    Gone {
        /// A node of the operator.
        node: String,
    },
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Missing => f.write_str("missing: the file has no initializer of this name"),
            Fate::Folded { into, node } => write!(
                f,
                "folded with its batch normalisation into `{into}`, which node `{node}` reads"
            ),
            Fate::Merged { with, node } => {
                write!(
                    f,
                    "merged with `{with}`, which had equal values and which node `{node}` reads"
                )
            }
            Fate::Replaced { by, node } => write!(
                f,
                "replaced by a constant that was computed from it, `{}`, which node `{node}` reads",
                by.join("` or `")
            ),
            Fate::Copied { copy, node } => write!(
                f,
                "split: node `{node}` reads a copy, `{copy}`, which would not be trained with it"
            ),
            Fate::Gone { node } => write!(f, "removed: node `{node}` does without it"),
        }
    }
}

/// How a parameter can be had back: readers of an initializer get another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repair {
    /// The initializer that is read.
    pub(super) read: String,
    /// Where the parameter shall be read: node and operand.
    pub(super) slots: Vec<(usize, usize)>,
}

impl Lost {
    pub(super) fn new(name: String, fate: Fate) -> Lost {
        Lost { name, fate, repair: None }
    }

    /// Takes up what became of it elsewhere: it can be had back where all that it was is one tensor.
    fn join(&mut self, other: Option<Repair>) {
        self.repair = match (self.repair.take(), other) {
            (Some(a), Some(b)) if a.read == b.read => {
                let slots = a.slots.into_iter().chain(b.slots).collect();
                Some(Repair { slots, ..a })
            }
            _ => None,
        };
    }

    /// True where `--repair` restores it.
    pub fn can_be_repaired(&self) -> bool {
        self.repair.is_some()
    }
}

/// What was found.
pub(super) struct LostParameters {
    pub(super) lost: Vec<Lost>,
    /// Parameters that are no initializer, and that no operator reads.
    pub(super) unread: Vec<String>,
}

/// Operators whose one constant in place of a parameter is that parameter, transposed or
/// reshaped: gradients pass these.
const KEEPS: [&str; 8] = [
    "aten.linear.",
    "aten.matmul.",
    "aten.mm.",
    "aten.conv",
    "aten.group_norm.",
    "aten.mul.",
    "aten.add.",
    "aten.embedding.",
];

/// Finds the parameters that a graph does not have as such.
pub(super) fn find(graph: &GraphProto, signature: &Signature) -> LostParameters {
    let stored: HashMap<&str, &TensorProto> = floats(graph).map(|t| (name(t), t)).collect();
    let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    for (n, node) in graph.node.iter().enumerate() {
        let Some(text) = Signature::text(node) else { continue };
        let i = *index.entry(text).or_insert_with(|| {
            groups.push((text, Vec::new()));
            groups.len() - 1
        });
        groups[i].1.push(n);
    }
    let mut lost: Vec<Lost> = Vec::new();
    let mut named: HashSet<&str> = HashSet::new();
    for (text, nodes) in &groups {
        let operator = signature.operator(text);
        named.extend(operator.reads.iter().map(|&(_, target)| target));
        let group = Group { graph, signature, stored: &stored, operator, nodes };
        for found in group.lost() {
            match lost.iter_mut().find(|l| l.name == found.name) {
                None => lost.push(found),
                Some(known) => known.join(found.repair),
            }
        }
    }
    let absent = signature.parameters().filter(|p| !stored.contains_key(p) && !named.contains(p));
    let mut unread = Vec::new();
    for target in absent.collect::<BTreeSet<_>>() {
        let lose = |fate| Lost::new(target.to_owned(), fate);
        if groups.is_empty() {
            // Without the operators' texts there is no telling what became of anything.
            lost.push(lose(Fate::Missing));
            continue;
        }
        match computed(graph, signature, target) {
            None => unread.push(target.to_owned()),
            Some((by, node)) => lost.push(lose(Fate::Replaced { by, node })),
        }
    }
    LostParameters { lost, unread }
}

/// Of a parameter that no operator reads: constants that whole operators gave, one of which may be
/// of it, and a node that reads the first. There are none where its module reads a tensor of another,
/// with which it is one. A module without nodes is not used, or all that it does was computed: what it
/// gives is then read within the next module around it that has nodes.
fn computed(
    graph: &GraphProto,
    signature: &Signature,
    target: &str,
) -> Option<(Vec<String>, String)> {
    let module = outer(target);
    let inside = |node: &NodeProto, module: &str| {
        property(node, SCOPES).map(|s| module.is_empty() || s.contains(&format!("'{module}'")))
    };
    let other = |node: &NodeProto| {
        let reads = Signature::text(node).map_or(Vec::new(), |text| signature.operator(text).reads);
        let own = format!("{module}.");
        !module.is_empty() && reads.iter().any(|(_, t)| !t.starts_with(&own))
    };
    if graph.node.iter().any(|n| inside(n, module) == Some(true) && other(n)) {
        return None;
    }
    let mut around = outer(module);
    while !around.is_empty() && !graph.node.iter().any(|n| inside(n, around) == Some(true)) {
        around = outer(around);
    }
    let mut found: Option<(Vec<String>, String)> = None;
    for t in floats(graph).filter(|t| signature.standing(name(t)).is_none()) {
        let operand = format!("%{}", name(t));
        let names = |text: &str| {
            let mut at = text.match_indices(&operand).map(|(i, _)| &text[i + operand.len()..]);
            at.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        // Nodes that rules of the exporter made say of no module.
        let reader = |node: &&NodeProto| {
            inside(node, around).unwrap_or(true)
                && node.input.iter().any(|input| input == name(t))
                && Signature::text(node).is_some_and(names)
        };
        if let Some(node) = graph.node.iter().find(reader) {
            let (by, _) = found.get_or_insert_with(|| (Vec::new(), label(node).to_owned()));
            by.push(name(t).to_owned());
        }
    }
    found
}

/// The module that a name is of; the whole, which has no name, where it is of no other.
fn outer(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(module, _)| module)
}

/// An operand of a node that is an initializer.
#[derive(Clone, Copy)]
struct Slot<'m> {
    node: usize,
    input: usize,
    tensor: &'m TensorProto,
}

impl Slot<'_> {
    fn name(&self) -> String {
        name(self.tensor).to_owned()
    }
}

/// All nodes of one operator of the program.
struct Group<'m> {
    graph: &'m GraphProto,
    signature: &'m Signature,
    stored: &'m HashMap<&'m str, &'m TensorProto>,
    operator: Operator<'m>,
    nodes: &'m [usize],
}

impl<'m> Group<'m> {
    fn nodes(&self) -> impl Iterator<Item = &'m NodeProto> {
        self.nodes.iter().map(|&n| &self.graph.node[n])
    }

    /// Where nodes of the operator read initializers of floats, in order.
    fn slots(&self) -> Vec<Slot<'m>> {
        let mut slots = Vec::new();
        for &node in self.nodes {
            for (input, read) in self.graph.node[node].input.iter().enumerate() {
                if let Some(&tensor) = self.stored.get(read.as_str()) {
                    slots.push(Slot { node, input, tensor });
                }
            }
        }
        slots
    }

    fn lost(&self) -> Vec<Lost> {
        let slots = self.slots();
        let constants: Vec<Slot> =
            slots.iter().filter(|s| self.may_stand(s.tensor)).copied().collect();
        let mut lost = self.absent(&slots, &constants);
        let reads = |target: &str| slots.iter().any(|s| name(s.tensor) == target);
        for &(standing, target) in &self.operator.reads {
            let Some(tensor) = self.stored.get(target) else { continue };
            if standing != Standing::Parameter || reads(target) {
                continue;
            }
            let copies = |s: &&Slot| elements(s.tensor) == elements(tensor);
            if let Some(copy) = constants.iter().find(copies) {
                let fate = Fate::Copied { copy: copy.name(), node: self.label(copy) };
                lost.push(self.restorable(target, fate, copy, &slots));
            }
        }
        lost
    }

    /// What became of what is not there.
    fn absent(&self, slots: &[Slot<'m>], constants: &[Slot<'m>]) -> Vec<Lost> {
        let reads = &self.operator.reads;
        let absent = || reads.iter().filter(|(_, target)| !self.stored.contains_key(target));
        let parameters: Vec<&str> = absent()
            .filter(|(standing, _)| *standing == Standing::Parameter)
            .map(|&(_, target)| target)
            .collect();
        if let Some((into, node)) = self.folded() {
            // Without scale and shift its statistics alone are missing.
            let statistics = absent().map(|&(_, t)| t).filter(|t| t.ends_with("running_mean"));
            let names: Vec<&str> = match parameters.is_empty() {
                true => statistics.collect(),
                false => parameters,
            };
            let fate = || Fate::Folded { into: into.clone(), node: node.clone() };
            return names.into_iter().map(|target| Lost::new(target.to_owned(), fate())).collect();
        }
        let own = |s: &&Slot| reads.iter().any(|(_, target)| *target == name(s.tensor));
        let of_module: Vec<Slot> = slots
            .iter()
            .filter(|s| self.signature.standing(name(s.tensor)).is_some())
            .copied()
            .collect();
        let foreign: Vec<Slot> = of_module.iter().filter(|s| !own(s)).copied().collect();
        // Operands that stand in the operator's order.
        let pairs: Vec<((Standing, &str), Slot)> = match () {
            () if of_module.len() == reads.len() => {
                reads.iter().copied().zip(of_module.iter().copied()).collect()
            }
            () if foreign.len() == absent().count() && constants.is_empty() => {
                absent().copied().zip(foreign.iter().copied()).collect()
            }
            () => Vec::new(),
        };
        if !pairs.is_empty() {
            let merged = pairs.iter().filter(|((standing, target), slot)| {
                // A buffer may share its bytes with another, unless one of them is trained.
                let other = self.signature.standing(name(slot.tensor));
                let trained = [Some(*standing), other].contains(&Some(Standing::Parameter));
                !self.stored.contains_key(target) && (trained || self.is_normalisation())
            });
            let lost = merged.map(|((_, target), slot)| {
                let fate = Fate::Merged { with: slot.name(), node: self.label(slot) };
                let repair = Repair { read: slot.name(), slots: vec![(slot.node, slot.input)] };
                Lost { name: (*target).to_owned(), fate, repair: Some(repair) }
            });
            return lost.collect();
        }
        if foreign.is_empty() && constants.len() == parameters.len() {
            let certain = KEEPS.iter().any(|op| self.operator.target.starts_with(op));
            let pairs = parameters.iter().zip(constants);
            let replaced = pairs.map(|(&target, slot)| {
                let fate = Fate::Replaced { by: vec![slot.name()], node: self.label(slot) };
                let lost = self.restorable(target, fate, slot, slots);
                if certain { lost } else { Lost { repair: None, ..lost } }
            });
            return replaced.collect();
        }
        let all: Vec<&Slot> = foreign.iter().chain(constants).collect();
        let fate = || match all.first() {
            None => Fate::Gone { node: self.nodes().next().map_or("", label).to_owned() },
            Some(first) => Fate::Replaced {
                by: all.iter().map(|s| s.name()).collect::<BTreeSet<_>>().into_iter().collect(),
                node: self.label(first),
            },
        };
        parameters.iter().map(|target| Lost::new((*target).to_owned(), fate())).collect()
    }

    /// A parameter that shall be read where an initializer is.
    fn restorable(&self, target: &str, fate: Fate, read: &Slot, slots: &[Slot]) -> Lost {
        let same = slots.iter().filter(|s| name(s.tensor) == name(read.tensor));
        let slots = same.map(|s| (s.node, s.input)).collect();
        Lost { name: target.to_owned(), fate, repair: Some(Repair { read: read.name(), slots }) }
    }

    fn label(&self, slot: &Slot) -> String {
        label(&self.graph.node[slot.node]).to_owned()
    }

    /// Where the operator is a batch normalisation that is a product now: the product's weight, and
    /// its node.
    fn folded(&self) -> Option<(String, String)> {
        if !self.operator.target.contains("batch_norm") || self.is_normalisation() {
            return None;
        }
        let folds = |n: &&NodeProto| {
            let kinds = ["Conv", "ConvTranspose", "Gemm", "MatMul"];
            n.op_type.as_deref().is_some_and(|op| kinds.contains(&op))
                || property(n, RULE).is_some_and(|rule| rule.contains("BatchNorm"))
        };
        let node = self.nodes().find(folds)?;
        Some((node.input.get(1).cloned().unwrap_or_default(), label(node).to_owned()))
    }

    fn is_normalisation(&self) -> bool {
        self.nodes().any(|n| n.op_type.as_deref() == Some("BatchNormalization"))
    }

    /// True for a constant that may be what was computed of a parameter.
    fn may_stand(&self, t: &TensorProto) -> bool {
        let groups = self.operator.target.starts_with("aten.group_norm.");
        // Of the normalisation that a group normalisation is made of.
        let inner = groups
            && self.nodes().any(|n| {
                n.op_type.as_deref() == Some("InstanceNormalization")
                    && n.input.iter().any(|input| input == name(t))
            });
        self.signature.standing(name(t)).is_none() && elements(t) > Some(1) && !inner
    }
}
