//! Operators in the place of normalisations and their gradients.

use super::group::{Replaced, Role};
use super::{Kind, Source};
use crate::PassError;
use crate::rewrite::Editor;
use arenic_ir::graph::{NodeId, ValueId};
use arenic_ir::op::Op;
use arenic_ir::types::TensorType;

impl Replaced {
    /// Puts operators in the place of what was found.
    pub(super) fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let Replaced { kind, x, ref ty, .. } = *self;
        let [scale, mean, inv_std] = match self.source {
            Source::Operator { scale, mean, inv_std, .. } => [scale, mean, inv_std],
            Source::Written { epsilon, .. } => {
                let Some(at) = self.forward else { return Ok(()) };
                let affine = self.affine.as_ref();
                let scale = self.parameter(e, at, affine.and_then(|a| a.scale), 1.0)?;
                let mut operands = vec![e.reshaped(at, x, &ty.shape)?, scale];
                let bias = affine.and_then(|a| a.bias);
                if bias.is_some() || kind == Kind::Batch {
                    operands.push(self.parameter(e, at, bias, 0.0)?);
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
                let given = self.place(e, at, op, operands, roles)?;
                [scale, given[1], given[given.len() - 1]]
            }
        };
        let Some(dy) = self.dy else { return Ok(()) };
        let Some(at) = self.parameters.into_iter().chain(self.operand).min() else {
            return Ok(());
        };
        let dy = e.reshaped(at, dy, &ty.shape)?;
        let mut sums = Vec::new();
        if let Some(at) = self.parameters {
            let op = match kind {
                Kind::Layer { axis } => Op::LayerNormParamGrad { axis },
                Kind::Batch => Op::BatchNormParamGrad,
            };
            let roles = &[Role::Dscale, Role::Dbias];
            let x = e.reshaped(at, x, &ty.shape)?;
            sums = self.place(e, at, op, vec![x, dy, mean, inv_std], roles)?;
        }
        if let Some(at) = self.operand {
            let x = e.reshaped(at, x, &ty.shape)?;
            let mut operands = vec![x, dy, scale, mean, inv_std];
            let op = match kind {
                Kind::Layer { axis } => Op::LayerNormInputGrad { axis },
                Kind::Batch => {
                    operands.extend(sums);
                    Op::BatchNormInputGrad
                }
            };
            self.place(e, at, op, operands, &[Role::Dx])?;
        }
        Ok(())
    }

    /// A scale or bias in the shape that the operator takes; this number if there is none.
    fn parameter(
        &self,
        e: &mut Editor,
        at: NodeId,
        v: Option<ValueId>,
        number: f64,
    ) -> Result<ValueId, PassError> {
        let TensorType { dtype, ref shape } = self.ty;
        let whole = match self.kind {
            Kind::Layer { axis } => &shape[axis..],
            Kind::Batch => &shape[1..2],
        };
        let Some(v) = v else {
            let shape = if self.kind == Kind::Batch { whole } else { &[] };
            return Ok(e.constant(TensorType::new(dtype, shape), number));
        };
        let one = e.g.ty(v).elements() == 1 && self.kind != Kind::Batch;
        e.reshaped(at, v, if one { &[] } else { whole })
    }

    /// Adds an operator just before `at`, whose results take the place of those with their roles.
    fn place(
        &self,
        e: &mut Editor,
        at: NodeId,
        op: Op,
        operands: Vec<ValueId>,
        roles: &[Role],
    ) -> Result<Vec<ValueId>, PassError> {
        let given = e.node(at, op, operands)?;
        for (&new, &role) in given.iter().zip(roles) {
            for &(old, _) in self.results.iter().filter(|(_, is)| *is == role) {
                if !e.is_replaced(old) {
                    e.replace(at, old, new)?;
                }
            }
        }
        Ok(given)
    }
}
