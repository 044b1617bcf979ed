//! A model under construction: names, nodes, initializers.

use super::super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType,
    tensor_proto::DataType, tensor_shape_proto, type_proto,
};
use super::super::{domains, fold, state};
use super::{ExportError, ExportOptions, properties};
use arenic_ir::graph::{Data, Def, NodeId, StateId, ValueId};
use arenic_ir::{DType, Graph, TensorType};
use bytes::Bytes;
use cranelift_entity::SecondaryMap;
use std::collections::{HashMap, HashSet};

/// The version of ai.onnx that is written, and the one that a dilated average pool needs.
const OPSET: i64 = 18;
const OPSET_OF_DILATED_POOLS: i64 = 19;
/// The first IR version whose nodes have metadata.
const IR_VERSION: i64 = 10;
/// Constants that stay where data is left out: shapes, axes, literals.
const SMALL: usize = 1 << 10;

/// A tensor of the file: its name and type.
#[derive(Clone)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) ty: TensorType,
}

/// A model under construction.
pub(super) struct Writer<'g> {
    pub(super) g: &'g Graph,
    options: ExportOptions,
    out: GraphProto,
    taken: HashSet<String>,
    node_names: HashSet<String>,
    /// Names of values that are defined so far.
    names: SecondaryMap<ValueId, Option<String>>,
    /// Names that values have once they are defined.
    wanted: SecondaryMap<ValueId, Option<String>>,
    lists: HashMap<Vec<i64>, String>,
    scalars: HashMap<(DType, Vec<u8>), String>,
    /// Of attentions that drop, by their generators, which elements they keep.
    pub(super) kept: HashMap<(u64, Option<u64>), String>,
    /// What new nodes and tensors are called after.
    pub(super) label: String,
    pub(super) dilated_pool: bool,
    training: bool,
}

impl<'g> Writer<'g> {
    /// A model with the inputs, states and constants of the graph.
    pub(super) fn new(g: &'g Graph, options: ExportOptions) -> Result<Self, ExportError> {
        let mut w = Writer {
            g,
            options,
            out: GraphProto { name: Some(nonempty(&g.name, "step")), ..GraphProto::default() },
            taken: HashSet::new(),
            node_names: HashSet::new(),
            names: SecondaryMap::new(),
            wanted: SecondaryMap::new(),
            lists: HashMap::new(),
            scalars: HashMap::new(),
            kept: HashMap::new(),
            label: String::new(),
            dilated_pool: false,
            training: false,
        };
        w.reserve()?;
        for v in g.inputs() {
            let name = w.names[v].clone().unwrap_or_default();
            w.out.input.push(info(&name, g.ty(v)));
        }
        w.states()?;
        w.constants()?;
        Ok(w)
    }

    /// Takes the names that the file's users know, before anything else can.
    fn reserve(&mut self) -> Result<(), ExportError> {
        let g = self.g;
        for v in g.inputs() {
            let name = nonempty(&g.values[v].name, &v.to_string());
            self.claim(&name)?;
            self.names[v] = Some(name);
        }
        for (name, parts) in saved(g) {
            self.claim(name)?;
            self.claim(&exit_name(name))?;
            if let [s] = parts[..] {
                self.names[g.states[s].enter] = Some(name.to_owned());
                self.want(g.states[s].exit, &exit_name(name));
            }
        }
        for o in &g.outputs {
            // An input may itself be an output of its name.
            if self.names[o.value].as_deref() != Some(&o.name) {
                self.claim(&o.name)?;
            }
            self.want(o.value, &o.name);
        }
        Ok(())
    }

    fn claim(&mut self, name: &str) -> Result<(), ExportError> {
        if self.taken.insert(name.to_owned()) {
            return Ok(());
        }
        Err(ExportError::Name(name.to_owned()))
    }

    /// A value that a node gives has the name of an output right away, if no name of its own.
    fn want(&mut self, v: ValueId, name: &str) {
        let value = &self.g.values[v];
        let free = value.name.is_empty() || value.name == name;
        if matches!(value.def, Def::Node { .. }) && free && self.wanted[v].is_none() {
            self.wanted[v] = Some(name.to_owned());
        }
    }

    fn states(&mut self) -> Result<(), ExportError> {
        let g = self.g;
        for (name, parts) in saved(g) {
            let ty = g.saved_type(parts[0]);
            self.out.input.push(info(name, &ty));
            let inits: Vec<&Data> =
                parts.iter().filter_map(|&s| g.states[s].init.as_ref()).collect();
            if self.options.data && inits.len() == parts.len() {
                let bytes: Option<Vec<&Bytes>> = inits.iter().map(|d| d.bytes()).collect();
                let bytes = bytes.ok_or_else(|| ExportError::Data(name.to_owned()))?;
                let whole = match bytes[..] {
                    [one] => one.clone(),
                    _ => bytes.iter().flat_map(|b| b.iter().copied()).collect(),
                };
                self.out.initializer.push(tensor(name, &ty, whole));
            }
            if let [_] = parts[..] {
                continue;
            }
            // Parts of a state are rows of what is saved.
            self.label = name.to_owned();
            for &s in &parts {
                let (enter, first) =
                    (g.states[s].enter, g.states[s].rows.map_or(0, |r| r.first as i64));
                let rows = g.ty(enter).shape.first().map_or(1, |&d| d as i64);
                let [starts, ends] = [first, first + rows].map(|i| self.list(&[i]));
                let axes = self.list(&[0]);
                let part = self.named(enter);
                self.node_into("Slice", &[name, &starts, &ends, &axes], vec![part], vec![]);
            }
        }
        Ok(())
    }

    fn constants(&mut self) -> Result<(), ExportError> {
        let g = self.g;
        for (v, data) in g.consts() {
            let (name, ty) = (self.named(v), g.ty(v));
            match data {
                Data::Bytes(b) if self.options.data || b.len() <= SMALL => {
                    self.out.initializer.push(tensor(&name, ty, b.clone()));
                }
                Data::Absent if self.options.data => return Err(ExportError::Data(name)),
                Data::Bytes(_) | Data::Absent => self.out.input.push(info(&name, ty)),
            }
        }
        Ok(())
    }

    /// A name that no tensor has, made of this one.
    fn fresh(&mut self, like: &str) -> String {
        unlike(&mut self.taken, &nonempty(like, "t"))
    }

    /// Gives a value its name.
    fn named(&mut self, v: ValueId) -> String {
        let name = match self.wanted[v].take() {
            Some(name) => name,
            None => self.fresh(&nonempty(&self.g.values[v].name, &v.to_string())),
        };
        self.names[v] = Some(name.clone());
        name
    }

    /// The tensor of a value, a view of which is made where it is first read.
    pub(super) fn tensor(&mut self, v: ValueId) -> Tensor {
        let ty = self.g.ty(v).clone();
        let name = match &self.names[v] {
            Some(name) => name.clone(),
            None => self.view(v),
        };
        Tensor { name, ty }
    }

    /// Part of a root: of its elements in a row, and then under the view's shape.
    fn view(&mut self, v: ValueId) -> String {
        let at = self.g.resolve(v);
        let ty = self.g.ty(v).clone();
        let root = self.tensor(at.root);
        let label = std::mem::replace(&mut self.label, self.g.values[v].name.clone());
        let mut from = root.name;
        if ty.bytes() < root.ty.bytes() {
            let whole = self.list(&[-1]);
            let row = self.one("Reshape", &[&from, &whole], vec![]);
            let first = (at.offset / ty.dtype.size()) as i64;
            let [starts, ends] = [first, first + ty.elements() as i64].map(|i| self.list(&[i]));
            from = self.one("Slice", &[&row, &starts, &ends], vec![]);
        }
        let name = self.named(v);
        self.reshape_into(&from, &ty.shape, name.clone());
        self.label = label;
        name
    }

    /// The same elements under another shape.
    pub(super) fn reshape_into(&mut self, x: &str, shape: &[usize], y: String) {
        let list = self.list(&signed(shape));
        // Zeros are extents, not the operand's.
        let attributes = if shape.contains(&0) { vec![int("allowzero", 1)] } else { vec![] };
        self.node_into("Reshape", &[x, &list], vec![y], attributes);
    }

    /// Writes a node of the graph, with what is said of it on each ONNX node that it becomes.
    pub(super) fn node(
        &mut self,
        n: NodeId,
        notes: &[(String, String)],
    ) -> Result<(), ExportError> {
        let node = &self.g.nodes[n];
        let x: Vec<Tensor> = node.inputs.iter().map(|&v| self.tensor(v)).collect();
        self.label = nonempty(&node.name, node.op.name());
        let types = self.g.output_types(n)?;
        let mut y = Vec::with_capacity(types.len());
        for (slot, ty) in node.outputs.iter().zip(types) {
            let name = match slot {
                Some(v) => {
                    let name = self.named(*v);
                    self.out.value_info.push(info(&name, &ty));
                    name
                }
                None => self.temporary(),
            };
            y.push(Tensor { name, ty });
        }
        let first = self.out.node.len();
        self.write(&node.op, &x, &y)?;
        for written in &mut self.out.node[first..] {
            written.metadata_props = properties(notes);
        }
        Ok(())
    }

    /// The name of a tensor between two nodes.
    pub(super) fn temporary(&mut self) -> String {
        self.fresh(&format!("{}/t", self.label))
    }

    /// What the node that is written is called in messages.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Adds a node with one result, which has a new name.
    pub(super) fn one(&mut self, op: &str, x: &[&str], attributes: Vec<AttributeProto>) -> String {
        let y = self.temporary();
        self.node_into(op, x, vec![y.clone()], attributes);
        y
    }

    /// Adds a node with these results.
    pub(super) fn node_into(
        &mut self,
        op: &str,
        x: &[&str],
        y: Vec<String>,
        attributes: Vec<AttributeProto>,
    ) {
        let name = unlike(&mut self.node_names, &nonempty(&self.label, op));
        self.out.node.push(NodeProto {
            op_type: Some(op.to_owned()),
            name: Some(name),
            input: x.iter().map(|&x| x.to_owned()).collect(),
            output: y,
            attribute: attributes,
            ..NodeProto::default()
        });
    }

    /// Adds an optimizer's node.
    pub(super) fn optimizer_into(
        &mut self,
        op: &str,
        x: &[&str],
        y: Vec<String>,
        attributes: Vec<AttributeProto>,
    ) {
        self.training = true;
        self.node_into(op, x, y, attributes);
        if let Some(node) = self.out.node.last_mut() {
            node.domain = Some(domains::TRAINING.to_owned());
        }
    }

    /// The initializer with these integers.
    pub(super) fn list(&mut self, list: &[i64]) -> String {
        if let Some(name) = self.lists.get(list) {
            return name.clone();
        }
        let words: Vec<String> = list.iter().map(i64::to_string).collect();
        let name = self.fresh(&format!("list_{}", words.join("_")));
        let bytes: Vec<u8> = list.iter().flat_map(|i| i.to_le_bytes()).collect();
        let ty = TensorType::new(DType::I64, [list.len()]);
        self.out.initializer.push(tensor(&name, &ty, bytes.into()));
        self.lists.insert(list.to_vec(), name.clone());
        name
    }

    /// The initializer with this scalar.
    pub(super) fn scalar(&mut self, dtype: DType, x: f64) -> String {
        let bytes = fold::scalar_bytes(dtype, x);
        if let Some(name) = self.scalars.get(&(dtype, bytes.clone())) {
            return name.clone();
        }
        let name = self.fresh(&format!("{dtype}_{x}"));
        let ty = TensorType::scalar(dtype);
        self.out.initializer.push(tensor(&name, &ty, bytes.clone().into()));
        self.scalars.insert((dtype, bytes), name.clone());
        name
    }

    /// Adds the outputs and gives the model.
    pub(super) fn finish(mut self) -> Result<ModelProto, ExportError> {
        let g = self.g;
        for o in &g.outputs {
            self.label.clone_from(&o.name);
            let from = self.tensor(o.value);
            self.result(&o.name, &[from]);
        }
        for (name, parts) in saved(g) {
            self.label = exit_name(name);
            let exits: Vec<Tensor> = parts.iter().map(|&s| self.tensor(g.states[s].exit)).collect();
            self.result(&exit_name(name), &exits);
        }
        // What is an output is described there.
        let outputs: HashSet<&str> =
            self.out.output.iter().filter_map(|o| o.name.as_deref()).collect();
        self.out.value_info.retain(|v| !v.name.as_deref().is_some_and(|n| outputs.contains(n)));
        let opset = if self.dilated_pool { OPSET_OF_DILATED_POOLS } else { OPSET };
        let mut domains = vec![("", opset)];
        domains.extend(self.training.then_some((domains::TRAINING, 1)));
        let import = |(domain, version): (&str, i64)| OperatorSetIdProto {
            domain: Some(domain.to_owned()),
            version: Some(version),
        };
        Ok(ModelProto {
            ir_version: Some(IR_VERSION),
            opset_import: domains.into_iter().map(import).collect(),
            producer_name: Some("arenic".into()),
            producer_version: Some(env!("CARGO_PKG_VERSION").into()),
            graph: Some(self.out),
            ..ModelProto::default()
        })
    }

    /// An output, of these parts one below the other.
    fn result(&mut self, name: &str, parts: &[Tensor]) {
        let mut ty = parts[0].ty.clone();
        match parts {
            [part] if part.name == name => {}
            [part] => self.node_into("Identity", &[&part.name], vec![name.to_owned()], vec![]),
            parts => {
                if let Some(rows) = ty.shape.first_mut() {
                    *rows = parts.iter().filter_map(|p| p.ty.shape.first()).sum();
                }
                let names: Vec<&str> = parts.iter().map(|p| p.name.as_str()).collect();
                self.node_into("Concat", &names, vec![name.to_owned()], vec![int("axis", 0)]);
            }
        }
        self.out.output.push(info(name, &ty));
    }
}

/// States by the name that they are saved under, parts by rows.
fn saved(g: &Graph) -> Vec<(&str, Vec<StateId>)> {
    let mut all: Vec<(&str, Vec<StateId>)> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    for (s, state) in &g.states {
        let i = *index.entry(&state.name).or_insert_with(|| {
            all.push((&state.name, Vec::new()));
            all.len() - 1
        });
        all[i].1.push(s);
    }
    for (_, parts) in &mut all {
        parts.sort_by_key(|&s| g.states[s].rows.map_or(0, |r| r.first));
    }
    all
}

/// A name that none of these is, made of this one; from now on it is one of them.
fn unlike(taken: &mut HashSet<String>, like: &str) -> String {
    let mut name = like.to_owned();
    let mut count = 0;
    while !taken.insert(name.clone()) {
        count += 1;
        name = format!("{like}_{count}");
    }
    name
}

fn exit_name(state: &str) -> String {
    format!("{}{state}", state::PREFIX)
}

fn nonempty(name: &str, otherwise: &str) -> String {
    if name.is_empty() { otherwise } else { name }.to_owned()
}

/// Extents, as ONNX has them.
pub(super) fn signed(list: &[usize]) -> Vec<i64> {
    list.iter().map(|&d| d as i64).collect()
}

/// The code of an element type.
pub(super) fn code(dtype: DType) -> i32 {
    (match dtype {
        DType::Bool => DataType::Bool,
        DType::U8 => DataType::Uint8,
        DType::I8 => DataType::Int8,
        DType::U16 => DataType::Uint16,
        DType::I16 => DataType::Int16,
        DType::U32 => DataType::Uint32,
        DType::I32 => DataType::Int32,
        DType::U64 => DataType::Uint64,
        DType::I64 => DataType::Int64,
        DType::Bf16 => DataType::Bfloat16,
        DType::F32 => DataType::Float,
        DType::F64 => DataType::Double,
    }) as i32
}

/// A tensor with contents.
pub(in crate::onnx) fn tensor(name: &str, ty: &TensorType, bytes: Bytes) -> TensorProto {
    let len = ty.bytes() as usize;
    let raw = if bytes.len() > len { bytes.slice(..len) } else { bytes };
    TensorProto {
        name: Some(name.to_owned()),
        dims: signed(&ty.shape),
        data_type: Some(code(ty.dtype)),
        raw_data: Some(raw),
        ..TensorProto::default()
    }
}

fn info(name: &str, ty: &TensorType) -> ValueInfoProto {
    use tensor_shape_proto::{Dimension, dimension::Value};
    let extent =
        |&d: &usize| Dimension { denotation: None, value: Some(Value::DimValue(d as i64)) };
    let shape = TensorShapeProto { dim: ty.shape.iter().map(extent).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(code(ty.dtype)), shape: Some(shape) };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(tensor)),
            ..TypeProto::default()
        }),
        ..ValueInfoProto::default()
    }
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(kind as i32),
        ..AttributeProto::default()
    }
}

/// An attribute that is an integer.
pub(super) fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { i: Some(i), ..attribute(name, AttributeType::Int) }
}

/// An attribute that is a float.
pub(super) fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { f: Some(f), ..attribute(name, AttributeType::Float) }
}

/// An attribute that is a word.
pub(super) fn text(name: &str, s: &'static str) -> AttributeProto {
    AttributeProto { s: Some(s.into()), ..attribute(name, AttributeType::String) }
}

/// An attribute that is a list of extents, axes or the like.
pub(super) fn ints(name: &str, list: &[usize]) -> AttributeProto {
    AttributeProto { ints: signed(list), ..attribute(name, AttributeType::Ints) }
}

impl Writer<'_> {
    /// An initializer with these numbers.
    pub(super) fn numbers(&mut self, dtype: DType, shape: &[usize], list: &[f64]) -> String {
        let name = self.fresh(&format!("{}/numbers", self.label));
        let bytes: Vec<u8> = list.iter().flat_map(|&x| fold::scalar_bytes(dtype, x)).collect();
        self.out.initializer.push(tensor(&name, &TensorType::new(dtype, shape), bytes.into()));
        name
    }
}
