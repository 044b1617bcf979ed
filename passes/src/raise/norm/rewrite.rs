//! Operators in the place of normalisations and their gradients.

use super::group::{Replaced, Role};
use super::{Kind, Source};
use crate::PassError;
use arenic_ir::graph::{Data, Def, Graph, NodeId, ValueId};
use arenic_ir::op::Op;
use arenic_ir::types::{DType, TensorType};
use cranelift_entity::SecondaryMap;

/// Puts operators in the place of what was found.
pub(super) fn apply(g: &mut Graph, found: &[Replaced]) -> Result<(), PassError> {
    let old: Vec<NodeId> = g.nodes.keys().collect();
    let mut r = Rewrite { g, with: SecondaryMap::new(), before: SecondaryMap::new() };
    for replaced in found {
        r.normalisation(replaced)?;
    }
    let Rewrite { g, with, before } = r;
    let order: Vec<NodeId> =
        old.into_iter().flat_map(|n| before[n].iter().copied().chain([n])).collect();
    g.replace_uses(&with);
    *g = g.arranged(&order);
    Ok(())
}

struct Rewrite<'a> {
    g: &'a mut Graph,
    /// Values that others take the place of.
    with: SecondaryMap<ValueId, Option<ValueId>>,
    /// New nodes, before which old ones they come.
    before: SecondaryMap<NodeId, Vec<NodeId>>,
}

impl Rewrite<'_> {
    fn normalisation(&mut self, found: &Replaced) -> Result<(), PassError> {
        let Replaced { kind, x, ref ty, .. } = *found;
        let [scale, mean, inv_std] = match found.source {
            Source::Operator { scale, mean, inv_std, .. } => [scale, mean, inv_std],
            Source::Written { epsilon, .. } => {
                let Some(at) = found.forward else { return Ok(()) };
                let affine = found.affine.as_ref();
                let scale = self.parameter(at, found, affine.and_then(|a| a.scale), 1.0)?;
                let mut operands = vec![x, scale];
                let bias = affine.and_then(|a| a.bias);
                if bias.is_some() || kind == Kind::Batch {
                    operands.push(self.parameter(at, found, bias, 0.0)?);
                }
                let (op, roles) = match kind {
                    Kind::Layer { axis } => {
                        (Op::LayerNorm { axis, epsilon }, &[Role::Y, Role::Mean, Role::InvStd][..])
                    }
                    Kind::Batch => (
                        Op::BatchNorm { epsilon },
                        &[Role::Y, Role::Mean, Role::Variance, Role::InvStd][..],
                    ),
                };
                let given = self.insert(at, op, operands, found, roles)?;
                [scale, given[1], given[given.len() - 1]]
            }
        };
        let Some(dy) = found.dy else { return Ok(()) };
        let Some(at) = found.parameters.into_iter().chain(found.operand).min() else {
            return Ok(());
        };
        let dy = self.reshaped(at, dy, &ty.shape)?;
        let mut sums = Vec::new();
        if let Some(at) = found.parameters {
            let op = match kind {
                Kind::Layer { axis } => Op::LayerNormParamGrad { axis },
                Kind::Batch => Op::BatchNormParamGrad,
            };
            let roles = &[Role::Dscale, Role::Dbias];
            sums = self.insert(at, op, vec![x, dy, mean, inv_std], found, roles)?;
        }
        if let Some(at) = found.operand {
            let mut operands = vec![x, dy, scale, mean, inv_std];
            let op = match kind {
                Kind::Layer { axis } => Op::LayerNormInputGrad { axis },
                Kind::Batch => {
                    operands.extend(sums);
                    Op::BatchNormInputGrad
                }
            };
            self.insert(at, op, operands, found, &[Role::Dx])?;
        }
        Ok(())
    }

    /// A scale or bias in the shape that the operator takes, or this number where there is none.
    fn parameter(
        &mut self,
        at: NodeId,
        found: &Replaced,
        v: Option<ValueId>,
        number: f32,
    ) -> Result<ValueId, PassError> {
        let TensorType { dtype, ref shape } = found.ty;
        let whole = match found.kind {
            Kind::Layer { axis } => &shape[axis..],
            Kind::Batch => &shape[1..2],
        };
        let Some(v) = v else {
            let shape = if found.kind == Kind::Batch { whole } else { &[] };
            let ty = TensorType::new(dtype, shape);
            let one = match dtype {
                DType::F64 => f64::from(number).to_le_bytes().to_vec(),
                _ => number.to_le_bytes().to_vec(),
            };
            let data = Data::Bytes(one.repeat(ty.elements()).into());
            return Ok(self.g.add_const("", ty, data));
        };
        let one = self.g.ty(v).elements() == 1 && found.kind != Kind::Batch;
        self.reshaped(at, v, if one { &[] } else { whole })
    }

    /// The same elements in this shape. By a node and no view, of which there are none yet where
    /// the graph is differentiated afterwards.
    fn reshaped(&mut self, at: NodeId, v: ValueId, shape: &[usize]) -> Result<ValueId, PassError> {
        let mut of = v;
        loop {
            if self.g.ty(of).shape == shape {
                return Ok(of);
            }
            match self.g.values[of].def {
                Def::View { of: before, .. }
                    if self.g.ty(before).bytes() == self.g.ty(v).bytes() =>
                {
                    of = before;
                }
                _ => break,
            }
        }
        let node = self.node(at, Op::Reshape { shape: shape.to_vec() }, vec![v])?;
        Ok(self.g.result(node).unwrap_or(v))
    }

    /// Adds a node just before `at`.
    fn node(&mut self, at: NodeId, op: Op, operands: Vec<ValueId>) -> Result<NodeId, PassError> {
        let name = self.g.nodes[at].name.clone();
        let node = self.g.add_node(name, op, operands)?;
        self.before[at].push(node);
        Ok(node)
    }

    /// Adds an operator just before `at`, whose results take the place of those with their roles.
    fn insert(
        &mut self,
        at: NodeId,
        op: Op,
        operands: Vec<ValueId>,
        found: &Replaced,
        roles: &[Role],
    ) -> Result<Vec<ValueId>, PassError> {
        let node = self.node(at, op, operands)?;
        let given: Vec<ValueId> = self.g.nodes[node].outputs.iter().copied().flatten().collect();
        for (&v, &role) in given.iter().zip(roles) {
            for &(old, _) in found.results.iter().filter(|(_, is)| *is == role) {
                if self.with[old].is_some() {
                    continue;
                }
                let shape = self.g.ty(old).shape.clone();
                let new = self.reshaped(at, v, &shape)?;
                self.g.values[new].name = self.g.values[old].name.clone();
                self.with[old] = Some(new);
            }
        }
        Ok(given)
    }
}
