//! A GELU and its gradient as parts of the matrix products before and behind them.
//!
//! A transformer's layer applies GELU to the result of a linear layer, and reverse mode multiplies a
//! product, the gradient of the GELU's result, by its slope. Both are an epilogue of the product
//! that cuBLASLt has: [`Op::GemmGelu`] gives what GELU is applied to, `z`, and the result, and
//! [`Op::GemmGeluGrad`] the gradient of `z`. What is stored is then read and written once less, and
//! of what exporters store for the backward part (`tanh`, its square) only `z` remains. It is the
//! tanh form of GELU ([`arenic_ir::op::gelu`]) that the library has; one by `erf` stays as it is.
//!
//! [`find`] tells both by the polynomials that they are in `z`, `tanh` and the product, so that
//! the order of factors and terms does not matter. Sound because both sides are the same function;
//! its arithmetic may be in another order, so the last bits may differ.
//!
//! Only where no order of the graph needs more memory afterwards, scratch aside. Take any order.
//! The gradient is computed where its product was: `z`, or what was computed of it for the slope, is
//! alive there, and the result takes the place of the product's. The GELU is computed where it was,
//! if what the product reads is alive then anyway, since somebody who depends on the GELU reads it
//! (the gradient of the weight), and `z` is not needed earlier. Where nobody else reads `z`, it is
//! computed where the product was, its result in place of the product's.
//!
//! It comes before `precision`, whose casts it does not look through, and which makes both operators
//! narrow as it does other products.
//!
//! Under a byte limit a GELU of its own can be repeated from `z` at little cost, and one with a
//! product only with it: `forward: false` leaves it alone.

mod find;

use crate::dead_code::live;
use crate::expression::Reading;
use crate::products::rows;
use crate::views::Views;
use crate::{Cx, GraphPass, PassError, Stats, Targets};
use arenic_ir::graph::{Graph, NodeId, ValueId};
use arenic_ir::op::{Op, TypeError};
use cranelift_entity::SecondaryMap;
use find::{Forward, Gradient};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Makes GELU in its tanh form, and its gradient, parts of the matrix products beside them.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FuseGelu {
    /// Whose programs are rewritten.
    pub target: Targets,
    /// Take a GELU into the product that it is applied to.
    pub forward: bool,
    /// Take its slope into the product that it is multiplied by.
    pub backward: bool,
}

impl Default for FuseGelu {
    fn default() -> FuseGelu {
        FuseGelu { target: Targets::All, forward: true, backward: true }
    }
}

impl GraphPass for FuseGelu {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        if !self.target.includes(cx) {
            return Ok(Stats::new());
        }
        let (forward, gradients) = find::all(self, &Reading::new(g), cx.target);
        let order: Vec<NodeId> = g.nodes.keys().collect();
        let with = SecondaryMap::new();
        let mut rewrite = Rewrite { g, with, before: SecondaryMap::new() };
        forward.iter().try_for_each(|found| rewrite.forward(found))?;
        gradients.iter().try_for_each(|found| rewrite.gradient(found))?;
        let Rewrite { g, with, mut before } = rewrite;
        g.replace_uses(&with);
        // What is dead may stand where what it reads is not there yet.
        let live = live(g);
        let order = order.into_iter().flat_map(|n| {
            let new = std::mem::take(&mut before[n]);
            new.into_iter().chain([n]).filter(|&n| live[n])
        });
        *g = g.arranged(&order.collect::<Vec<_>>());
        Views {}.run(g, cx)?;
        Ok(Stats::from([
            ("gelus", forward.len() as u64),
            ("gelu_gradients", gradients.len() as u64),
        ]))
    }
}

struct Rewrite<'a> {
    g: &'a mut Graph,
    /// Values that others take the place of.
    with: SecondaryMap<ValueId, Option<ValueId>>,
    /// New nodes, before which old ones they come.
    before: SecondaryMap<NodeId, Vec<NodeId>>,
}

impl Rewrite<'_> {
    fn forward(&mut self, found: &Forward) -> Result<(), PassError> {
        let at = found.at;
        let mut operands = self.factors(at, found.product)?;
        if let Some(&bias) = self.g.nodes[found.product].inputs.get(2) {
            let columns = self.g.ty(bias).elements();
            operands.push(self.reshaped(at, bias, &[columns])?);
        }
        let given = self.node(at, found.op.clone(), operands)?;
        let &[Some(y), Some(z)] = &self.g.nodes[given].outputs[..] else {
            return Err(TypeError("a gemm_gelu has two results".into()).into());
        };
        found.y.iter().try_for_each(|&old| self.replace(at, old, y))?;
        self.replace(at, found.z, z)
    }

    fn gradient(&mut self, found: &Gradient) -> Result<(), PassError> {
        let at = found.product;
        let mut operands = self.factors(at, at)?;
        let matrix = rows(&self.g.ty(found.dy).shape);
        operands.push(self.reshaped(at, found.z, &matrix)?);
        let given = self.node(at, found.op.clone(), operands)?;
        let Some(dz) = self.g.result(given) else { return Ok(()) };
        self.replace(at, found.dz, dz)
    }

    /// The factors of a product as matrices.
    fn factors(&mut self, at: NodeId, product: NodeId) -> Result<Vec<ValueId>, PassError> {
        let &[a, b, ..] = &self.g.nodes[product].inputs[..] else {
            return Err(TypeError("a product has two operands".into()).into());
        };
        let left = rows(&self.g.ty(a).shape);
        Ok(vec![self.reshaped(at, a, &left)?, b])
    }

    /// Adds a node just before `at`.
    fn node(&mut self, at: NodeId, op: Op, operands: Vec<ValueId>) -> Result<NodeId, PassError> {
        let node = self.g.add_node(self.g.nodes[at].name.clone(), op, operands)?;
        self.before[at].push(node);
        Ok(node)
    }

    /// The same elements in this shape.
    fn reshaped(&mut self, at: NodeId, v: ValueId, shape: &[usize]) -> Result<ValueId, PassError> {
        if self.g.ty(v).shape == shape {
            return Ok(v);
        }
        let node = self.node(at, Op::Reshape { shape: shape.to_vec() }, vec![v])?;
        Ok(self.g.result(node).unwrap_or(v))
    }

    /// Puts a value, in its shape, in the place of another.
    fn replace(&mut self, at: NodeId, old: ValueId, new: ValueId) -> Result<(), PassError> {
        let shape = self.g.ty(old).shape.clone();
        let new = self.reshaped(at, new, &shape)?;
        self.g.values[new].name = self.g.values[old].name.clone();
        self.with[old] = Some(new);
        Ok(())
    }
}
