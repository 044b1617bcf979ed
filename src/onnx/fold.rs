//! The graph under construction, and what of it is known at compile time.

use super::error::Fault;
use arenic_backends::CPU;
use arenic_ir::types::bf16;
use arenic_ir::{DType, Data, Def, Graph, Op, State, TensorType, ValueId};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::evaluate;
use bytes::Bytes;
use cranelift_entity::SecondaryMap;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Largest result of a folded node.
pub(super) const MAX_FOLDED: u64 = 64 << 10;
/// A result this small is folded even where it is larger than its operands. Above it, a
/// constant would hold bytes throughout the step that a node holds for a moment.
const MAX_GROWN: u64 = 1 << 10;
/// Largest operands of a folded node, and the largest scratch.
const MAX_OPERANDS: u64 = 1 << 20;
/// Bytes that one import may make in all.
const BUDGET: u64 = 256 << 20;
/// How far back a compile-time value is looked for.
const MAX_DEPTH: usize = 64;

/// Where a constant comes from.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Origin {
    /// Stored in a node or computed: its value is part of the program.
    #[default]
    Program,
    /// Stored under a name that a run may load other contents into.
    Initializer,
}

/// The graph under construction.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) g: Graph,
    origin: SecondaryMap<ValueId, Origin>,
    /// Initializers whose contents shaped the graph.
    consumed: BTreeSet<ValueId>,
    /// Contents of values that nodes compute from constants, looked up on demand.
    known: HashMap<ValueId, Option<Bytes>>,
    made: u64,
    /// Values that a gradient is asked of: what depends on them stays.
    pinned: HashSet<ValueId>,
    /// Running statistics that nodes update.
    pub(super) statistics: Vec<Statistic>,
    /// Among how many ranks the rows are divided that a batch normalisation goes by; 0 and 1 divide nothing.
    pub(super) ranks: usize,
}

/// A running statistic of a node.
pub(super) struct Statistic {
    /// The node's result, without which nobody needs the statistic.
    pub(super) result: ValueId,
    /// Its value before the step.
    pub(super) now: ValueId,
    /// Its value afterwards.
    pub(super) next: ValueId,
}

impl Builder {
    /// Adds a constant that a run may override by name.
    pub(super) fn initializer(&mut self, name: &str, ty: TensorType, data: Data) -> ValueId {
        let v = self.g.add_const(name, ty, data);
        self.origin[v] = Origin::Initializer;
        v
    }

    /// Adds a constant of the program itself.
    pub(super) fn constant(&mut self, ty: TensorType, bytes: impl Into<Bytes>) -> ValueId {
        self.g.add_const("", ty, Data::Bytes(bytes.into()))
    }

    /// Keeps what is computed from a value, so that gradients find their way to it.
    pub(super) fn pin(&mut self, v: ValueId) {
        self.pinned.insert(v);
    }

    /// Names of constants whose contents can no longer be replaced.
    pub(super) fn bound(&self) -> BTreeSet<String> {
        let program =
            self.g.consts().map(|(v, _)| v).filter(|&v| self.origin[v] == Origin::Program);
        let all = program.chain(self.consumed.iter().copied());
        all.map(|v| self.g.values[v].name.clone()).filter(|name| !name.is_empty()).collect()
    }

    /// Takes `bytes` from what an import may make.
    pub(super) fn spend(&mut self, bytes: u64) -> bool {
        let left = BUDGET.saturating_sub(self.made);
        if bytes <= left {
            self.made += bytes;
        }
        bytes <= left
    }

    /// Adds a node, or the constants it gives where all of its operands are constants.
    pub(super) fn emit(
        &mut self,
        name: &str,
        op: Op,
        inputs: Vec<ValueId>,
    ) -> Result<Vec<ValueId>, Fault> {
        if let Some(results) = self.folded(&op, &inputs)? {
            return Ok(results.into_iter().map(|(ty, b)| self.constant(ty, b)).collect());
        }
        let node = self.g.add_node(name, op, inputs)?;
        Ok(self.g.nodes[node].outputs.iter().flatten().copied().collect())
    }

    fn folded(
        &mut self,
        op: &Op,
        inputs: &[ValueId],
    ) -> Result<Option<Vec<(TensorType, Bytes)>>, Fault> {
        let mut operands = Vec::with_capacity(inputs.len());
        for &v in inputs {
            match &self.g.values[v].def {
                Def::Const(Data::Bytes(b)) if self.may_fold(v) => operands.push(b.clone()),
                _ => return Ok(None),
            }
        }
        let read: u64 = operands.iter().map(|b| b.len() as u64).sum();
        let made: u64 = op.infer(&self.g.types_of(inputs))?.iter().map(TensorType::bytes).sum();
        if made > MAX_GROWN.max(read) {
            return Ok(None);
        }
        let results = self.apply(op, inputs, &operands);
        if results.is_some() {
            self.consume(inputs);
        }
        Ok(results)
    }

    /// A run may load other contents into a float initializer, so these stay. Integers
    /// and scalars are what exporters put shapes and literals into.
    fn may_fold(&self, v: ValueId) -> bool {
        let ty = self.g.ty(v);
        !self.pinned.contains(&v)
            && (self.origin[v] == Origin::Program || !ty.dtype.is_float() || ty.rank() == 0)
    }

    /// Makes states of initializers of floats that are used and whose contents did not shape
    /// the graph; running statistics get their next value.
    pub(super) fn release(&mut self, used: &SecondaryMap<ValueId, bool>) {
        let statistics: HashMap<ValueId, ValueId> =
            self.statistics.iter().filter(|s| used[s.result]).map(|s| (s.now, s.next)).collect();
        for v in self.g.values.keys().collect::<Vec<_>>() {
            let value = &self.g.values[v];
            let Def::Const(data) = &value.def else { continue };
            let next = statistics.get(&v).copied();
            let free = self.origin[v] == Origin::Initializer && !self.consumed.contains(&v);
            if !free || !value.ty.dtype.is_float() || !(used[v] || next.is_some()) {
                continue;
            }
            let state = self.g.states.next_key();
            let (name, init) = (value.name.clone(), Some(data.clone()));
            self.g.values[v].def = Def::State(state);
            self.g.states.push(State {
                name,
                rows: None,
                part_of: None,
                carried: false,
                enter: v,
                exit: next.unwrap_or(v),
                init,
            });
        }
    }

    fn consume(&mut self, values: &[ValueId]) {
        let origin = &self.origin;
        self.consumed.extend(values.iter().filter(|&&v| origin[v] == Origin::Initializer));
    }

    /// Applies an operator to known contents, where that is cheap and succeeds. A failure
    /// is left to the run, since the node may be dead.
    fn apply(
        &mut self,
        op: &Op,
        inputs: &[ValueId],
        operands: &[Bytes],
    ) -> Option<Vec<(TensorType, Bytes)>> {
        let types = self.g.types_of(inputs);
        let results = op.infer(&types).ok()?;
        let read: u64 = operands.iter().map(|b| b.len() as u64).sum();
        let made: u64 = results.iter().map(TensorType::bytes).sum();
        let scratch = op.scratch_bytes(CPU.target(), &types, &results.iter().collect::<Vec<_>>());
        let random = op.rng().is_some() || inputs.is_empty();
        if random || made > MAX_FOLDED || read.max(scratch) > MAX_OPERANDS || !self.spend(made) {
            return None;
        }
        if let Op::Reshape { .. } = op {
            return Some(results.into_iter().zip(operands.iter().cloned()).collect());
        }
        let types = self.g.types_of(inputs);
        let operands: Vec<(&TensorType, &[u8])> =
            types.into_iter().zip(operands.iter().map(|b| &b[..])).collect();
        let results = evaluate(op, &operands, Draw::default()).ok()?;
        Some(results.into_iter().map(|(ty, bytes)| (ty, bytes.into())).collect())
    }

    /// The contents of a value, where they follow from constants. Whatever initializers
    /// they follow from are bound: what the caller makes of the contents stays.
    pub(super) fn contents(&mut self, v: ValueId) -> Option<Bytes> {
        self.contents_within(v, MAX_DEPTH)
    }

    fn contents_within(&mut self, v: ValueId, depth: usize) -> Option<Bytes> {
        let (node, output) = match &self.g.values[v].def {
            Def::Const(data) => {
                let bytes = data.bytes().cloned();
                self.consume(&[v]);
                return bytes;
            }
            &Def::Node { node, output } => (node, output),
            _ => return None,
        };
        if let Some(known) = self.known.get(&v) {
            return known.clone();
        }
        let inputs = self.g.nodes[node].inputs.clone();
        let operands: Option<Vec<Bytes>> = match depth.checked_sub(1) {
            Some(depth) => inputs.iter().map(|&i| self.contents_within(i, depth)).collect(),
            None => None,
        };
        let op = self.g.nodes[node].op.clone();
        let results = operands.and_then(|o| self.apply(&op, &inputs, &o));
        let bytes = results.and_then(|r| r.into_iter().nth(output)).map(|(_, bytes)| bytes);
        self.known.insert(v, bytes.clone());
        bytes
    }
}

/// The elements of a tensor of 32- or 64-bit signed integers.
pub(super) fn to_ints(ty: &TensorType, bytes: &[u8]) -> Option<Vec<i64>> {
    match ty.dtype {
        DType::I64 => Some(elements(bytes, i64::from_le_bytes).collect()),
        DType::I32 => Some(elements(bytes, i32::from_le_bytes).map(i64::from).collect()),
        _ => None,
    }
}

/// The elements of a tensor of floats.
pub(super) fn to_floats(ty: &TensorType, bytes: &[u8]) -> Option<Vec<f64>> {
    match ty.dtype {
        DType::F64 => Some(elements(bytes, f64::from_le_bytes).collect()),
        DType::F32 => Some(elements(bytes, f32::from_le_bytes).map(f64::from).collect()),
        DType::Bf16 => Some(elements(bytes, from_bf16).collect()),
        _ => None,
    }
}

/// One element of any type; `None` for an integer that no double holds exactly.
pub(super) fn to_number(dtype: DType, bytes: &[u8]) -> Option<f64> {
    let exact = |x: i128| {
        let number = x as f64;
        (number as i128 == x).then_some(number)
    };
    match dtype {
        DType::F64 => elements(bytes, f64::from_le_bytes).next(),
        DType::F32 => elements(bytes, f32::from_le_bytes).next().map(f64::from),
        DType::Bf16 => elements(bytes, from_bf16).next(),
        DType::Bool | DType::U8 => elements(bytes, u8::from_le_bytes).next().map(f64::from),
        DType::I8 => elements(bytes, i8::from_le_bytes).next().map(f64::from),
        DType::U16 => elements(bytes, u16::from_le_bytes).next().map(f64::from),
        DType::I16 => elements(bytes, i16::from_le_bytes).next().map(f64::from),
        DType::U32 => elements(bytes, u32::from_le_bytes).next().map(f64::from),
        DType::I32 => elements(bytes, i32::from_le_bytes).next().map(f64::from),
        DType::U64 => exact(elements(bytes, u64::from_le_bytes).next()?.into()),
        DType::I64 => exact(elements(bytes, i64::from_le_bytes).next()?.into()),
    }
}

fn from_bf16(bytes: [u8; 2]) -> f64 {
    bf16::to_f32(u16::from_le_bytes(bytes)).into()
}

fn elements<T, const N: usize>(bytes: &[u8], of: impl Fn([u8; N]) -> T) -> impl Iterator<Item = T> {
    bytes.as_chunks::<N>().0.iter().map(move |c| of(*c))
}

/// One element of any type, little-endian; a number out of an integer's range saturates.
pub(super) fn scalar_bytes(dtype: DType, x: f64) -> Vec<u8> {
    match dtype {
        DType::Bool => vec![u8::from(x != 0.0)],
        DType::U8 => vec![x as u8],
        DType::I8 => (x as i8).to_le_bytes().into(),
        DType::U16 => (x as u16).to_le_bytes().into(),
        DType::I16 => (x as i16).to_le_bytes().into(),
        DType::U32 => (x as u32).to_le_bytes().into(),
        DType::I32 => (x as i32).to_le_bytes().into(),
        DType::U64 => (x as u64).to_le_bytes().into(),
        DType::I64 => (x as i64).to_le_bytes().into(),
        DType::Bf16 => bf16::from_f32(x as f32).to_le_bytes().into(),
        DType::F32 => (x as f32).to_le_bytes().into(),
        DType::F64 => x.to_le_bytes().into(),
    }
}
