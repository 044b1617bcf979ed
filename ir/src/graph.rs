//! The graph: *what* a training step computes. Pure operators on values, in SSA form.
//!
//! Nodes stand in definition order: a node reads values of earlier nodes only, which
//! makes the graph acyclic by construction and gives ties a meaning. Graph passes
//! rewrite it; it freezes when planning begins.

use crate::op::{Op, Work};
use crate::types::TensorType;
use bytes::Bytes;
use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap, entity_impl};
use std::collections::BTreeSet;
use std::fmt;

/// A value, printed `v3`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(u32);
entity_impl!(ValueId, "v");

/// A node, printed `n7`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);
entity_impl!(NodeId, "n");

/// A state, printed `s0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(u32);
entity_impl!(StateId, "s");

/// A tensor value: its type and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Name in the source model; may be empty.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Definition.
    pub def: Def,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Def {
    /// Fed before every step.
    Input,
    /// The same in every step.
    Const(Data),
    /// What a state holds when a step begins.
    State(StateId),
    /// A result of a node.
    Node {
        /// The node.
        node: NodeId,
        /// Which of its results.
        output: usize,
    },
    /// Bytes of another value: `ty.bytes()` of them from byte `offset` on. Views own
    /// nothing; only roots (all other definitions) own bytes.
    View {
        /// The viewed value, possibly a view itself.
        of: ValueId,
        /// First byte.
        offset: u64,
    },
}

/// The contents of a constant or the initial contents of a state, little-endian and dense.
#[derive(Clone, PartialEq)]
pub enum Data {
    /// The bytes; shared, and where they come from a mapped file not copied.
    Bytes(Bytes),
    /// The bytes are not at hand (a plan without data, or text that left them out).
    Absent,
}

impl Data {
    /// The bytes, where they are at hand.
    pub fn bytes(&self) -> Option<&Bytes> {
        match self {
            Data::Bytes(b) => Some(b),
            Data::Absent => None,
        }
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Bytes(b) => write!(f, "Bytes({})", b.len()),
            Data::Absent => f.write_str("Absent"),
        }
    }
}

/// An operator applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name in the source model; may be empty.
    pub name: String,
    /// The operator.
    pub op: Op,
    /// Operands.
    pub inputs: Vec<ValueId>,
    /// Results; `None` for one that nobody reads: it owns no bytes and kernels leave it out.
    pub outputs: Vec<Option<ValueId>>,
}

/// Rows of a tensor: indices of its first axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRows {
    /// The first.
    pub first: usize,
    /// How many the tensor has.
    pub of: usize,
}

/// The ranks that run a graph together: each runs all of it, on bytes of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// How many there are, at least 2.
    pub count: usize,
    /// Names of the inputs that hold a rank's rows of the batch: of `count` equal parts of the first axis
    /// of the whole batch, rank `r` is fed part `r`. All ranks are fed the same of other inputs.
    pub by_rows: BTreeSet<String>,
}

/// What is carried from step to step: weights, moments, statistics, counters.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The name under which it is saved and loaded.
    pub name: String,
    /// Which rows it is of the tensor that is saved and loaded; `None` if it is all of them.
    pub rows: Option<BatchRows>,
    /// The tensor that is saved and loaded, of which every rank has its part
    /// ([`part_type`](crate::op::part_type)); `None` if the state is not in parts.
    pub part_of: Option<TensorType>,
    /// It passes values between the parts of one step ([`crate::rounds`]) and means nothing between
    /// steps: it is neither saved nor loaded.
    pub carried: bool,
    /// Its value when a step begins.
    pub enter: ValueId,
    /// Its value when the step has ended.
    pub exit: ValueId,
    /// Its value before the first step, where the model says so; of a state in parts that of the whole.
    pub init: Option<Data>,
}

/// A value that the step gives to its caller.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The name.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// A whole step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Name of the source model.
    pub name: String,
    /// All values.
    pub values: PrimaryMap<ValueId, Value>,
    /// All nodes, in definition order.
    pub nodes: PrimaryMap<NodeId, Node>,
    /// All states.
    pub states: PrimaryMap<StateId, State>,
    /// Results for the caller.
    pub outputs: Vec<Output>,
    /// Who runs it together; `None` if one process runs it alone.
    pub ranks: Option<Ranks>,
}

/// Where a value's bytes are: a part of its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The root.
    pub root: ValueId,
    /// First byte in the root.
    pub offset: u64,
}

impl Graph {
    /// Adds a value that no node defines.
    pub fn add_value(&mut self, name: impl Into<String>, ty: TensorType, def: Def) -> ValueId {
        self.values.push(Value { name: name.into(), ty, def })
    }

    /// Adds a fed input.
    pub fn add_input(&mut self, name: impl Into<String>, ty: TensorType) -> ValueId {
        self.add_value(name, ty, Def::Input)
    }

    /// Adds a constant.
    pub fn add_const(&mut self, name: impl Into<String>, ty: TensorType, data: Data) -> ValueId {
        self.add_value(name, ty, Def::Const(data))
    }

    /// Adds a state whose exit is its enter until [`State::exit`] is set.
    pub fn add_state(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        init: Option<Data>,
    ) -> StateId {
        let name = name.into();
        let state = self.states.next_key();
        let enter = self.add_value(name.clone(), ty, Def::State(state));
        let (rows, part_of) = (None, None);
        self.states.push(State { name, rows, part_of, carried: false, enter, exit: enter, init })
    }

    /// Adds a view.
    pub fn add_view(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        of: ValueId,
        offset: u64,
    ) -> ValueId {
        self.add_value(name, ty, Def::View { of, offset })
    }

    /// Adds a node with result types inferred and all results defined.
    ///
    /// # Errors
    /// The operands do not fit the operator.
    pub fn add_node(
        &mut self,
        name: impl Into<String>,
        op: Op,
        inputs: Vec<ValueId>,
    ) -> Result<NodeId, crate::op::TypeError> {
        let types = op.infer(&self.types_of(&inputs))?;
        let node = self.nodes.next_key();
        let outputs = types
            .into_iter()
            .enumerate()
            .map(|(output, ty)| Some(self.add_value("", ty, Def::Node { node, output })))
            .collect();
        Ok(self.nodes.push(Node { name: name.into(), op, inputs, outputs }))
    }

    /// How many ranks run the graph together; 1 if one process runs it alone.
    pub fn rank_count(&self) -> usize {
        self.ranks.as_ref().map_or(1, |ranks| ranks.count)
    }

    /// The type of the tensor that a state is saved in, of which it may be some rows or a part.
    pub fn saved_type(&self, s: StateId) -> TensorType {
        if let Some(whole) = &self.states[s].part_of {
            return whole.clone();
        }
        let mut ty = self.ty(self.states[s].enter).clone();
        if let (Some(rows), Some(extent)) = (self.states[s].rows, ty.shape.first_mut()) {
            *extent = rows.of;
        }
        ty
    }

    /// The first result of a node, which every node but a dead one has.
    pub fn result(&self, node: NodeId) -> Option<ValueId> {
        self.nodes[node].outputs.first().copied().flatten()
    }

    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        &self.values[v].ty
    }

    /// Types of values.
    pub fn types_of(&self, values: &[ValueId]) -> Vec<&TensorType> {
        values.iter().map(|&v| self.ty(v)).collect()
    }

    /// Types of a node's operands.
    pub fn input_types(&self, n: NodeId) -> Vec<&TensorType> {
        self.types_of(&self.nodes[n].inputs)
    }

    /// Types of a node's results, left-out ones included.
    ///
    /// # Errors
    /// The operands do not fit, which a verified graph rules out.
    pub fn output_types(&self, n: NodeId) -> Result<Vec<TensorType>, crate::op::TypeError> {
        self.nodes[n].op.infer(&self.input_types(n))
    }

    /// What a node does, but for results that nobody reads.
    pub fn work(&self, n: NodeId) -> Work {
        let y: Vec<_> = self.nodes[n].outputs.iter().flatten().map(|&v| self.ty(v)).collect();
        self.nodes[n].op.work(&self.input_types(n), &y)
    }

    /// Follows views to the root that owns the bytes.
    pub fn resolve(&self, v: ValueId) -> Resolved {
        let mut at = Resolved { root: v, offset: 0 };
        while let Def::View { of, offset } = self.values[at.root].def {
            at = Resolved { root: of, offset: at.offset + offset };
        }
        at
    }

    /// The contents of a constant, where they are at hand. Views of constants resolve.
    pub fn const_bytes(&self, v: ValueId) -> Option<Bytes> {
        let at = self.resolve(v);
        let Def::Const(Data::Bytes(bytes)) = &self.values[at.root].def else { return None };
        let first = usize::try_from(at.offset).ok()?;
        let end = first.checked_add(usize::try_from(self.ty(v).bytes()).ok()?)?;
        (end <= bytes.len()).then(|| bytes.slice(first..end))
    }

    /// Fed inputs, in definition order.
    pub fn inputs(&self) -> impl Iterator<Item = ValueId> {
        self.values.iter().filter(|(_, v)| matches!(v.def, Def::Input)).map(|(id, _)| id)
    }

    /// Constants, in definition order.
    pub fn consts(&self) -> impl Iterator<Item = (ValueId, &Data)> {
        self.values.iter().filter_map(|(id, v)| match &v.def {
            Def::Const(data) => Some((id, data)),
            _ => None,
        })
    }

    /// For every root, the nodes that read it through whatever view, in definition
    /// order and once each. Outputs and state exits are not in it.
    pub fn readers(&self) -> SecondaryMap<ValueId, Vec<NodeId>> {
        let mut readers: SecondaryMap<ValueId, Vec<NodeId>> = SecondaryMap::new();
        for (n, node) in &self.nodes {
            for &v in &node.inputs {
                let list = &mut readers[self.resolve(v).root];
                if list.last() != Some(&n) {
                    list.push(n);
                }
            }
        }
        readers
    }

    /// Roots that outlive the step: outputs and exit values.
    pub fn kept(&self) -> SecondaryMap<ValueId, bool> {
        let mut kept: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        let ends = self.outputs.iter().map(|o| o.value).chain(self.states.values().map(|s| s.exit));
        ends.for_each(|v| kept[self.resolve(v).root] = true);
        kept
    }

    /// Replaces every use of a value (operands, views, outputs, state exits) by `with[value]`
    /// where that is set. Chains are followed.
    pub fn replace_uses(&mut self, with: &SecondaryMap<ValueId, Option<ValueId>>) {
        let target = |mut v: ValueId| {
            while let Some(next) = with[v] {
                v = next;
            }
            v
        };
        for node in self.nodes.values_mut() {
            for v in &mut node.inputs {
                *v = target(*v);
            }
        }
        for value in self.values.values_mut() {
            if let Def::View { of, .. } = &mut value.def {
                *of = target(*of);
            }
        }
        for output in &mut self.outputs {
            output.value = target(output.value);
        }
        for state in self.states.values_mut() {
            state.exit = target(state.exit);
        }
    }

    /// A graph of the kept nodes and of the values these, the outputs and the states
    /// need, renumbered in the old order. Fed inputs stay even when nobody reads them.
    ///
    /// Results that nobody reads become `None`.
    pub fn compacted(&self, keep: impl Fn(NodeId) -> bool) -> Graph {
        self.arranged(&self.nodes.keys().filter(|&n| keep(n)).collect::<Vec<_>>())
    }

    /// As [`Graph::compacted`], with the kept nodes in the order given, in which values
    /// precede their readers.
    pub fn arranged(&self, order: &[NodeId]) -> Graph {
        let mut used: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        let mark = |v: ValueId, used: &mut SecondaryMap<ValueId, bool>| {
            let mut v = v;
            used[v] = true;
            while let Def::View { of, .. } = self.values[v].def {
                v = of;
                used[v] = true;
            }
        };
        for &n in order {
            self.nodes[n].inputs.iter().for_each(|&v| mark(v, &mut used));
        }
        self.outputs.iter().for_each(|o| mark(o.value, &mut used));
        for state in self.states.values() {
            mark(state.enter, &mut used);
            mark(state.exit, &mut used);
        }
        self.inputs().for_each(|v| mark(v, &mut used));

        let mut new_node: SecondaryMap<NodeId, Option<NodeId>> = SecondaryMap::new();
        for (i, &n) in order.iter().enumerate() {
            new_node[n] = Some(NodeId::new(i));
        }
        let mut new_value: SecondaryMap<ValueId, Option<ValueId>> = SecondaryMap::new();
        let kept: Vec<ValueId> = self.values.keys().filter(|&v| used[v]).collect();
        for (i, &v) in kept.iter().enumerate() {
            new_value[v] = Some(ValueId::new(i));
        }
        let renamed = |v: ValueId| new_value[v].unwrap_or(v);

        let (name, ranks) = (self.name.clone(), self.ranks.clone());
        let mut g = Graph { name, ranks, ..Graph::default() };
        for &v in &kept {
            let mut value = self.values[v].clone();
            match &mut value.def {
                Def::View { of, .. } => *of = renamed(*of),
                Def::Node { node, .. } => *node = new_node[*node].unwrap_or(*node),
                Def::Input | Def::Const(_) | Def::State(_) => {}
            }
            g.values.push(value);
        }
        for &n in order {
            let mut node = self.nodes[n].clone();
            node.inputs.iter_mut().for_each(|v| *v = renamed(*v));
            for slot in &mut node.outputs {
                *slot = slot.filter(|&v| used[v]).map(renamed);
            }
            g.nodes.push(node);
        }
        for state in self.states.values() {
            let mut state = state.clone();
            state.enter = renamed(state.enter);
            state.exit = renamed(state.exit);
            g.states.push(state);
        }
        g.outputs = self
            .outputs
            .iter()
            .map(|o| Output { name: o.name.clone(), value: renamed(o.value) })
            .collect();
        g
    }
}
