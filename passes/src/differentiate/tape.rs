//! What reverse mode works on: the graph that grows behind the forward nodes, and the
//! gradients that were given to each value so far.

use super::chains::Chains;
use crate::Evaluate;
use arenic_ir::graph::{Data, Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, TypeError, Unary};
use arenic_ir::types::{DType, TensorType, bf16};
use cranelift_entity::SecondaryMap;
use std::collections::HashMap;

/// A part of the gradient of a value.
#[derive(Clone, Debug)]
pub(super) enum Gradient {
    /// Of every element; an axis of extent 1 stands for one whose elements have all the same.
    Dense(ValueId),
    /// Of the elements `starts + i · steps` alone; zero elsewhere.
    Part { starts: Vec<usize>, steps: Vec<usize>, of: ValueId },
}

/// A graph under differentiation.
pub(super) struct Tape<'a> {
    pub(super) g: &'a mut Graph,
    /// Gradients in the order in which they were given.
    given: SecondaryMap<ValueId, Vec<Gradient>>,
    scalars: HashMap<(DType, u64), ValueId>,
    evaluator: Option<&'a dyn Evaluate>,
    chains: Chains,
    /// Names new nodes.
    pub(super) name: String,
}

impl<'a> Tape<'a> {
    pub(super) fn new(g: &'a mut Graph, evaluator: Option<&'a dyn Evaluate>) -> Self {
        let (given, scalars) = (SecondaryMap::new(), HashMap::new());
        let chains = Chains::new(g);
        Tape { g, given, scalars, evaluator, chains, name: String::new() }
    }

    /// What an operator of one operand and one result makes of this one.
    pub(super) fn evaluate(
        &self,
        op: &Op,
        ty: &TensorType,
        operand: &[u8],
    ) -> Result<Vec<u8>, TypeError> {
        let results = self.evaluator.and_then(|e| e.evaluate(op, &[(ty, operand)]));
        let first = results.and_then(|r| r.into_iter().next());
        first.ok_or_else(|| TypeError(format!("{} cannot be evaluated here", op.name())))
    }

    pub(super) fn ty(&self, v: ValueId) -> TensorType {
        self.g.ty(v).clone()
    }

    pub(super) fn shape(&self, v: ValueId) -> Vec<usize> {
        self.g.ty(v).shape.clone()
    }

    /// Adds a node and gives its results.
    pub(super) fn node(&mut self, op: Op, x: Vec<ValueId>) -> Result<Vec<ValueId>, TypeError> {
        let n = self.g.add_node(self.name.clone(), op, x)?;
        Ok(self.g.nodes[n].outputs.iter().flatten().copied().collect())
    }

    /// Adds a node and gives its first result.
    pub(super) fn emit(&mut self, op: Op, x: Vec<ValueId>) -> Result<ValueId, TypeError> {
        let first = self.node(op, x)?.first().copied();
        first.ok_or_else(|| TypeError("a node without results".into()))
    }

    /// Result `i` of a node, which nobody may have read before.
    pub(super) fn result(&mut self, n: NodeId, i: usize) -> Result<ValueId, TypeError> {
        if let Some(v) = self.g.nodes[n].outputs[i] {
            return Ok(v);
        }
        let ty = self.g.output_types(n)?.swap_remove(i);
        let v = self.g.add_value("", ty, Def::Node { node: n, output: i });
        self.g.nodes[n].outputs[i] = Some(v);
        Ok(v)
    }

    /// A forward value for the backward part: where it lies inside of a chain of elementwise
    /// operators, it is computed again from what the chain begins with, which alone is kept.
    pub(super) fn saved(&mut self, v: ValueId) -> Result<ValueId, TypeError> {
        if !self.chains.is_inside(v) {
            return Ok(v);
        }
        if let Some(again) = self.chains.again[v] {
            return Ok(again);
        }
        let Def::Node { node, .. } = self.g.values[v].def else { return Ok(v) };
        let Node { op, inputs, .. } = self.g.nodes[node].clone();
        let inputs = inputs.into_iter().map(|x| self.saved(x)).collect::<Result<_, _>>()?;
        let again = self.emit(op, inputs)?;
        self.chains.again[v] = Some(again);
        Ok(again)
    }

    /// How many values of chains are computed again instead of being kept.
    pub(super) fn computed_again(&self) -> u64 {
        self.chains.again.values().flatten().count() as u64
    }

    /// A constant scalar.
    pub(super) fn scalar(&mut self, dtype: DType, x: f64) -> ValueId {
        let bytes: Vec<u8> = match dtype {
            DType::F64 => x.to_le_bytes().to_vec(),
            DType::Bf16 => bf16::from_f32(x as f32).to_le_bytes().to_vec(),
            DType::F32 => (x as f32).to_le_bytes().to_vec(),
            DType::Bool => vec![u8::from(x != 0.0)],
            // Integers here are small: indices that are ignored, counters, zeros.
            _ => (x as i64).to_le_bytes()[..dtype.size() as usize].to_vec(),
        };
        let g = &mut *self.g;
        *self.scalars.entry((dtype, x.to_bits())).or_insert_with(|| {
            g.add_const("", TensorType::scalar(dtype), Data::Bytes(bytes.into()))
        })
    }

    /// A constant of one row.
    pub(super) fn row(&mut self, dtype: DType, list: &[f64]) -> Result<ValueId, TypeError> {
        let bytes: Vec<u8> = match dtype {
            DType::F64 => list.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => list.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
        };
        let stored = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let ty = TensorType::new(stored, [1, list.len()]);
        let row = self.g.add_const("", ty, Data::Bytes(bytes.into()));
        self.cast(row, dtype)
    }

    /// A constant scalar of the element type of `v`.
    pub(super) fn number(&mut self, v: ValueId, x: f64) -> ValueId {
        self.scalar(self.g.ty(v).dtype, x)
    }

    /// The value of a constant scalar of floats.
    pub(super) fn known(&self, v: ValueId) -> Option<f64> {
        let ty = self.g.ty(v);
        let bytes = self.g.const_bytes(v).filter(|_| ty.elements() == 1)?;
        match ty.dtype {
            DType::Bf16 => {
                Some(bf16::to_f32(u16::from_le_bytes(bytes[..].try_into().ok()?)).into())
            }
            DType::F32 => Some(f64::from(f32::from_le_bytes(bytes[..].try_into().ok()?))),
            DType::F64 => Some(f64::from_le_bytes(bytes[..].try_into().ok()?)),
            _ => None,
        }
    }

    pub(super) fn unary(&mut self, f: Unary, x: ValueId) -> Result<ValueId, TypeError> {
        self.emit(Op::Unary { f }, vec![x])
    }

    pub(super) fn binary(
        &mut self,
        f: Binary,
        a: ValueId,
        b: ValueId,
    ) -> Result<ValueId, TypeError> {
        self.emit(Op::Binary { f }, vec![a, b])
    }

    pub(super) fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, TypeError> {
        self.binary(Binary::Mul, a, b)
    }

    /// `x` times a number; `x` itself where that is 1.
    pub(super) fn scaled(&mut self, x: ValueId, by: f64) -> Result<ValueId, TypeError> {
        if by == 1.0 {
            return Ok(x);
        }
        if by == -1.0 {
            return self.unary(Unary::Neg, x);
        }
        let by = self.number(x, by);
        self.mul(x, by)
    }

    /// `a` where the condition holds, else `b`.
    pub(super) fn select(
        &mut self,
        condition: ValueId,
        a: ValueId,
        b: ValueId,
    ) -> Result<ValueId, TypeError> {
        self.emit(Op::Where, vec![condition, a, b])
    }

    /// `x` where the condition holds, else zero.
    pub(super) fn masked(&mut self, condition: ValueId, x: ValueId) -> Result<ValueId, TypeError> {
        let zero = self.number(x, 0.0);
        self.select(condition, x, zero)
    }

    /// Zero where the condition holds, else `x`.
    pub(super) fn unless(&mut self, condition: ValueId, x: ValueId) -> Result<ValueId, TypeError> {
        let zero = self.number(x, 0.0);
        self.select(condition, zero, x)
    }

    pub(super) fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, TypeError> {
        if self.g.ty(x).dtype == to {
            return Ok(x);
        }
        self.emit(Op::Cast { to }, vec![x])
    }

    /// The same elements under another shape; `x` itself where it has that.
    pub(super) fn reshape(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId, TypeError> {
        if self.g.ty(x).shape == shape {
            return Ok(x);
        }
        self.emit(Op::Reshape { shape: shape.to_vec() }, vec![x])
    }

    pub(super) fn expand(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId, TypeError> {
        if self.g.ty(x).shape == shape {
            return Ok(x);
        }
        self.emit(Op::Expand { shape: shape.to_vec() }, vec![x])
    }

    pub(super) fn transpose(&mut self, x: ValueId, perm: Vec<usize>) -> Result<ValueId, TypeError> {
        if perm.is_sorted() {
            return Ok(x);
        }
        self.emit(Op::Transpose { perm }, vec![x])
    }

    /// The sum over some axes, which stay with extent 1 where `keep` says so.
    pub(super) fn sum(
        &mut self,
        x: ValueId,
        axes: Vec<usize>,
        keep: bool,
    ) -> Result<ValueId, TypeError> {
        if axes.is_empty() {
            return Ok(x);
        }
        self.emit(Op::Reduce { f: Reduction::Sum, axes, keep }, vec![x])
    }

    /// Zeros.
    pub(super) fn zeros(&mut self, ty: &TensorType) -> Result<ValueId, TypeError> {
        let zero = self.scalar(ty.dtype, 0.0);
        self.expand(zero, &ty.shape)
    }

    /// The sum over what broadcasting to `x`'s shape repeated of `shape`: the gradient of an
    /// operand that was broadcast.
    pub(super) fn sum_to(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId, TypeError> {
        let from = self.shape(x);
        let extra = from.len().saturating_sub(shape.len());
        let repeated = |i: &usize| *i < extra || (shape[i - extra] == 1 && from[*i] != 1);
        let axes = (0..from.len()).filter(repeated).collect();
        let sum = self.sum(x, axes, true)?;
        self.reshape(sum, shape)
    }

    /// Adds to the gradient of `v`, whose elements all have one.
    pub(super) fn give(&mut self, v: ValueId, gradient: ValueId) {
        self.given[v].push(Gradient::Dense(gradient));
    }

    /// Adds to the gradient of some elements of `v`.
    pub(super) fn give_part(
        &mut self,
        v: ValueId,
        starts: Vec<usize>,
        steps: Vec<usize>,
        of: ValueId,
    ) {
        self.given[v].push(Gradient::Part { starts, steps, of });
    }

    /// The gradient of `v`, once nobody will give to it any more: the sum of what was given,
    /// in that order. An axis may have extent 1 for all of its elements.
    pub(super) fn collect(&mut self, v: ValueId) -> Result<Option<ValueId>, TypeError> {
        let given = std::mem::take(&mut self.given[v]);
        if let Some(joined) = self.joined(v, &given)? {
            return Ok(Some(joined));
        }
        let ty = self.ty(v);
        let mut sum = None;
        for gradient in given {
            let next = match gradient {
                Gradient::Dense(of) => of,
                Gradient::Part { starts, steps, of } => {
                    let shape = ty.shape.clone();
                    self.emit(Op::Pad { starts, steps, shape, value: 0.0 }, vec![of])?
                }
            };
            sum = Some(match sum {
                None => next,
                Some(sum) => self.binary(Binary::Add, sum, next)?,
            });
        }
        Ok(sum)
    }

    /// Parts that lie beside each other along one axis and are all of `v`, as one tensor: the
    /// gradient of what was split.
    fn joined(&mut self, v: ValueId, given: &[Gradient]) -> Result<Option<ValueId>, TypeError> {
        let whole = self.shape(v);
        let mut parts = Vec::new();
        let mut along = None;
        for gradient in given {
            let Gradient::Part { starts, steps, of } = gradient else { return Ok(None) };
            let shape = self.shape(*of);
            let differs: Vec<usize> = (0..whole.len()).filter(|&i| shape[i] != whole[i]).collect();
            let &[axis] = &differs[..] else { return Ok(None) };
            if *along.get_or_insert(axis) != axis || steps[axis] != 1 {
                return Ok(None);
            }
            parts.push((starts[axis], shape[axis], *of));
        }
        let Some(axis) = along else { return Ok(None) };
        parts.sort_unstable_by_key(|&(start, ..)| start);
        let mut end = 0;
        for &(start, extent, _) in &parts {
            if start != end {
                return Ok(None);
            }
            end += extent;
        }
        if end != whole[axis] {
            return Ok(None);
        }
        let operands = parts.into_iter().map(|(.., of)| of).collect();
        self.emit(Op::Concat { axis }, operands).map(Some)
    }
}
