//! What an operator's builder sees: its node, its operands, the graph to add to.

use super::Mode;
use super::attributes::Access;
use super::error::Fault;
use super::flatten::{FlatNode, Names, Tensor};
use super::fold::{self, Builder};
use super::proto::TensorProto;
use super::read::Reader;
use arenic_ir::{DType, Data, Op, TensorType, ValueId};
use std::collections::HashSet;

/// What a tensor of the model became.
#[derive(Clone, Default)]
pub(super) enum Slot {
    /// Nothing yet.
    #[default]
    Undefined,
    /// A value.
    Value(ValueId),
    /// A sequence of tensors.
    Sequence(Vec<ValueId>),
    /// The `Indices` of a 1×1 `MaxPool` with stride 1: 0, 1, 2, … in the shape of `x`.
    /// PyTorch's exporter makes them only to take a small slice; they stay unmade
    /// until something else reads them.
    Positions {
        /// What is pooled.
        x: ValueId,
        /// The pool.
        op: Op,
        /// The node's name.
        node: String,
    },
}

/// The results of a node, `None` for one that was not asked for.
pub(super) type Built = Result<Vec<Option<ValueId>>, Fault>;

/// One node in its surroundings.
pub(super) struct Cx<'a, 'm> {
    pub(super) b: &'a mut Builder,
    pub(super) slots: &'a mut [Slot],
    /// How often each tensor is read, by nodes, outputs and states.
    pub(super) uses: &'a [u32],
    /// Results of `Constant` nodes that are weights.
    pub(super) literals: &'a HashSet<Tensor>,
    pub(super) reader: &'a mut Reader,
    pub(super) names: &'a Names<'m>,
    pub(super) node: &'a FlatNode<'m>,
    pub(super) mode: Mode,
}

impl<'a, 'm> Cx<'a, 'm> {
    pub(super) fn attributes(&self) -> Access<'a, 'm> {
        Access(&self.node.attributes)
    }

    /// How many operands the node lists.
    pub(super) fn count(&self) -> usize {
        self.node.inputs.len()
    }

    fn tensor(&self, i: usize) -> Option<Tensor> {
        self.node.inputs.get(i).copied().flatten()
    }

    /// True where somebody reads result `i`.
    pub(super) fn wants(&self, i: usize) -> bool {
        self.node.outputs.get(i).copied().flatten().is_some_and(|t| self.uses[t] > 0)
    }

    /// Operand `i`, which must be there.
    pub(super) fn input(&mut self, i: usize) -> Result<ValueId, Fault> {
        self.optional(i)?.ok_or_else(|| Fault(format!("operand {i} is missing")))
    }

    /// Operand `i`, where it is there.
    pub(super) fn optional(&mut self, i: usize) -> Result<Option<ValueId>, Fault> {
        let Some(t) = self.tensor(i) else { return Ok(None) };
        self.made(t).map(Some)
    }

    /// What operand `i` is, made or not.
    pub(super) fn slot(&self, i: usize) -> Slot {
        self.tensor(i).map(|t| self.slots[t].clone()).unwrap_or_default()
    }

    /// Operand `i`, which must be a sequence.
    pub(super) fn sequence(&self, i: usize) -> Result<Vec<ValueId>, Fault> {
        match self.slot(i) {
            Slot::Sequence(parts) => Ok(parts),
            _ => Err(Fault(format!("operand {i} is no sequence"))),
        }
    }

    /// What a tensor became.
    pub(super) fn made(&mut self, t: Tensor) -> Result<ValueId, Fault> {
        made(self.b, self.slots, self.names, t)
    }

    /// All operands, none of which may be missing.
    pub(super) fn inputs(&mut self) -> Result<Vec<ValueId>, Fault> {
        (0..self.count()).map(|i| self.input(i)).collect()
    }

    pub(super) fn ty(&self, v: ValueId) -> TensorType {
        self.b.g.ty(v).clone()
    }

    fn contents(&mut self, i: usize, v: ValueId) -> Result<bytes::Bytes, Fault> {
        let ty = self.b.g.ty(v);
        if ty.bytes() > fold::MAX_FOLDED {
            return Err(Fault(format!("operand {i} is {ty}, too long for its purpose")));
        }
        self.b.contents(v).ok_or_else(|| {
            let name = self.tensor(i).map_or("", |t| self.names.name(t));
            let hint = match self.b.g.values[v].def {
                arenic_ir::Def::Input => " (--bind NAME=FILE makes a constant of an input)",
                arenic_ir::Def::Const(Data::Absent) => "; its data is missing",
                _ => "",
            };
            Fault(format!("operand {i}, `{name}`, must be known when the model is compiled{hint}"))
        })
    }

    /// The contents of a constant operand of integers, whatever its shape.
    pub(super) fn ints(&mut self, i: usize) -> Result<Option<Vec<i64>>, Fault> {
        let Some(v) = self.optional(i)? else { return Ok(None) };
        let ty = self.ty(v);
        if !matches!(ty.dtype, DType::I32 | DType::I64) || ty.rank() > 1 {
            return Err(Fault(format!("operand {i} is {ty}, no list of i64 or i32")));
        }
        let bytes = self.contents(i, v)?;
        fold::to_ints(&ty, &bytes).map(Some).ok_or_else(|| "no list of integers".into())
    }

    /// The contents of a constant operand of floats.
    pub(super) fn floats(&mut self, i: usize) -> Result<Option<Vec<f64>>, Fault> {
        let Some(v) = self.optional(i)? else { return Ok(None) };
        let ty = self.ty(v);
        if !ty.dtype.is_float() || ty.rank() > 1 {
            return Err(Fault(format!("operand {i} is {ty}, no list of floats")));
        }
        let bytes = self.contents(i, v)?;
        fold::to_floats(&ty, &bytes).map(Some).ok_or_else(|| "no list of floats".into())
    }

    /// The contents of a constant operand of conditions, a byte each.
    pub(super) fn bools(&mut self, i: usize) -> Result<Option<(TensorType, bytes::Bytes)>, Fault> {
        let Some(v) = self.optional(i)? else { return Ok(None) };
        let ty = self.ty(v);
        if ty.dtype != DType::Bool {
            return Err(Fault(format!("operand {i} is {ty}, not of conditions")));
        }
        let bytes = self.contents(i, v)?;
        Ok(Some((ty, bytes)))
    }

    /// The contents of a constant operand with one element, whatever its type.
    pub(super) fn one(&mut self, i: usize) -> Result<Option<(TensorType, bytes::Bytes)>, Fault> {
        let Some(v) = self.optional(i)? else { return Ok(None) };
        let ty = self.ty(v);
        if ty.elements() != 1 {
            return Err(Fault(format!("operand {i} is {ty}, no scalar")));
        }
        let bytes = self.contents(i, v)?;
        Ok(Some((ty, bytes)))
    }

    /// A tensor that an attribute holds.
    pub(super) fn stored(&mut self, t: &TensorProto) -> Result<(TensorType, Data), Fault> {
        Ok(self.reader.tensor(t)?)
    }

    /// Adds a constant scalar.
    pub(super) fn scalar(&mut self, dtype: DType, x: f64) -> ValueId {
        self.b.constant(TensorType::scalar(dtype), fold::scalar_bytes(dtype, x))
    }

    /// Adds an operator, named for the node, and gives its results.
    pub(super) fn emit(&mut self, op: Op, inputs: Vec<ValueId>) -> Result<Vec<ValueId>, Fault> {
        let has = |dtype| inputs.iter().any(|&v| self.b.g.ty(v).dtype == dtype);
        // Weights in bf16 beside inputs in f32 are what a half-converted module is exported as.
        let mixed = has(DType::Bf16) && has(DType::F32);
        let hint = "; export the model in f32 (`module.float()`), and let --precision bf16 have \
                    products in bf16";
        self.b.emit(&self.node.name, op, inputs).map_err(|fault| match mixed {
            true => Fault(format!("{}{hint}", fault.0)),
            false => fault,
        })
    }

    /// Adds an operator and gives its first result.
    pub(super) fn emit1(&mut self, op: Op, inputs: Vec<ValueId>) -> Result<ValueId, Fault> {
        self.emit(op, inputs)?.first().copied().ok_or_else(|| "it has no result".into())
    }

    /// Adds an operator that is the whole node.
    pub(super) fn whole(&mut self, op: Op, inputs: Vec<ValueId>) -> Built {
        Ok(self.emit(op, inputs)?.into_iter().map(Some).collect())
    }

    /// The same elements under another shape.
    pub(super) fn reshape(&mut self, x: ValueId, shape: Vec<usize>) -> Result<ValueId, Fault> {
        self.emit1(Op::Reshape { shape }, vec![x])
    }

    /// The name of result 0 where that is a weight in a `Constant` node.
    pub(super) fn weight(&self) -> Option<&'a str> {
        let t = self.node.outputs.first().copied().flatten()?;
        self.literals.contains(&t).then(|| self.names.name(t))
    }

    /// The value itself under the node's name.
    pub(super) fn same(&mut self, x: ValueId) -> Result<ValueId, Fault> {
        let shape = self.ty(x).shape;
        self.reshape(x, shape)
    }

    /// `x` in another element type; itself where it has that.
    pub(super) fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, Fault> {
        if self.b.g.ty(x).dtype == to {
            return Ok(x);
        }
        self.emit1(Op::Cast { to }, vec![x])
    }

    /// The id that keys the node's random numbers: FNV-1a over its first result's name.
    pub(super) fn stream(&self) -> u64 {
        let first = self.node.outputs.iter().flatten().next();
        let name = first.map_or("", |&t| self.names.name(t));
        name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

/// The value of a tensor that is read.
pub(super) fn made(
    b: &mut Builder,
    slots: &mut [Slot],
    names: &Names,
    t: Tensor,
) -> Result<ValueId, Fault> {
    let v = match &slots[t] {
        Slot::Value(v) => return Ok(*v),
        Slot::Undefined => return Err(Fault(format!("`{}` is not defined", names.name(t)))),
        Slot::Sequence(_) => {
            return Err(Fault(format!("`{}` is a sequence, no tensor", names.name(t))));
        }
        Slot::Positions { x, op, node } => positions(b, *x, op, node)?,
    };
    b.g.values[v].name = names.name(t).to_owned();
    slots[t] = Slot::Value(v);
    Ok(v)
}

/// Makes the positions that nobody could do without: a constant where they are few.
fn positions(b: &mut Builder, x: ValueId, op: &Op, node: &str) -> Result<ValueId, Fault> {
    let ty = TensorType::new(DType::I64, b.g.ty(x).shape.as_slice());
    if ty.bytes() <= fold::MAX_FOLDED && b.spend(ty.bytes()) {
        let bytes: Vec<u8> = (0..ty.elements() as i64).flat_map(i64::to_le_bytes).collect();
        return Ok(b.constant(ty, bytes));
    }
    let results = b.emit(node, op.clone(), vec![x])?;
    results.get(1).copied().ok_or_else(|| "it has no indices".into())
}

/// An axis that may count from the end.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, Fault> {
    let r = rank as i64;
    if (-r..r).contains(&axis) {
        Ok(axis.rem_euclid(r) as usize)
    } else {
        Err(Fault(format!("axis {axis} of a tensor of rank {rank}")))
    }
}

/// Axes, sorted; none may be there twice.
pub(super) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, Fault> {
    let mut sorted = list.iter().map(|&a| axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
    sorted.sort_unstable();
    if sorted.windows(2).any(|w| w[0] == w[1]) {
        return Err(Fault(format!("axes {list:?} name one twice")));
    }
    Ok(sorted)
}

/// Extents from integers that must not be negative.
pub(super) fn extents(list: &[i64]) -> Result<Vec<usize>, Fault> {
    list.iter()
        .map(|&d| usize::try_from(d).map_err(|_| Fault(format!("{list:?} has a negative entry"))))
        .collect()
}
