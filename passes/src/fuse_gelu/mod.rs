//! A GELU and its gradient as parts of the matrix products before and behind them.
//!
//! A transformer's layer applies GELU to the result of a linear layer, and reverse mode multiplies a
//! product, the gradient of the GELU's result, by its slope. Both are an epilogue of the product
//! that cuBLASLt has: [`Op::GemmGelu`](arenic_ir::Op::GemmGelu) gives what GELU is applied to, `z`, and the result, and
//! [`Op::GemmGeluGrad`](arenic_ir::Op::GemmGeluGrad) the gradient of `z`. What is stored is then read and written once less, and
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
//!
//! The named pipelines have it for GPUs alone. A CPU's products have no epilogue, so that the GELU is a pass of its own
//! there in any case: a step of GPT-2 (6 layers, 2 × 128, one thread) took 0.97 to 1.06 times as long in seven
//! pairs of runs, of a tiny GPT 0.95 times, and the arenas stay.

mod find;

use crate::rewrite::{Editor, GraphView, rows};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Graph, NodeId, ValueId};
use arenic_ir::op::TypeError;
use find::{Forward, Gradient};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Makes GELU in its tanh form, and its gradient, parts of the matrix products beside them.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FuseGelu {
    /// Take a GELU into the product that it is applied to.
    pub forward: bool,
    /// Take its slope into the product that it is multiplied by.
    pub backward: bool,
}

impl Default for FuseGelu {
    fn default() -> FuseGelu {
        FuseGelu { forward: true, backward: true }
    }
}

impl GraphPass for FuseGelu {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let (forward, gradients) = find::all(self, &GraphView::new(g), cx.target);
        let mut e = Editor::new(g);
        forward.iter().try_for_each(|found| found.replace(&mut e))?;
        gradients.iter().try_for_each(|found| found.replace(&mut e))?;
        e.finish();
        Ok(Stats::from([
            ("gelus", forward.len() as u64),
            ("gelu_gradients", gradients.len() as u64),
        ]))
    }
}

impl Forward {
    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let mut operands = factors(e, self.at, self.product)?;
        if let Some(&bias) = e.g.nodes[self.product].inputs.get(2) {
            let columns = e.g.ty(bias).elements();
            operands.push(e.reshaped(self.at, bias, &[columns])?);
        }
        let &[y, z] = &e.node(self.at, self.op.clone(), operands)?[..] else {
            return Err(TypeError("a gemm_gelu has two results".into()).into());
        };
        self.y.iter().try_for_each(|&old| e.replace(self.at, old, y))?;
        e.replace(self.at, self.z, z)
    }
}

impl Gradient {
    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let at = self.product;
        let mut operands = factors(e, at, at)?;
        let matrix = rows(&e.g.ty(self.dy).shape);
        operands.push(e.reshaped(at, self.z, &matrix)?);
        let dz = e.value(at, self.op.clone(), operands)?;
        e.replace(at, self.dz, dz)
    }
}

/// The factors of a product as matrices.
fn factors(e: &mut Editor, at: NodeId, product: NodeId) -> Result<Vec<ValueId>, PassError> {
    let &[a, b, ..] = &e.g.nodes[product].inputs[..] else {
        return Err(TypeError("a product has two operands".into()).into());
    };
    let left = rows(&e.g.ty(a).shape);
    Ok(vec![e.reshaped(at, a, &left)?, b])
}
