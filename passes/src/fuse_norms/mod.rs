//! Batch and layer normalisations with what is computed elementwise of their result, and their
//! gradients with what makes the gradient of that result, and what is computed of theirs.
//!
//! A rectifier, a residual sum or a cast that alone reads a normalisation's result becomes a part of
//! it ([`results`]): the result is never written and read again; so does a sum of gradients that alone
//! reads that of its operand, and with it the cast to `bf16` for the products before. Backward, the elementwise operator
//! that makes `dy` for the two gradients of one normalisation becomes a part of both
//! ([`gradients`]), which compute it each: it is read twice what `dy` is computed of, instead of
//! that once, `dy` written once and read twice. Only where that moves no more bytes, as
//! [`Op::work`](arenic_ir::Op::work) counts them (each operand and result with its own, so that a mask
//! counts a byte an element), and where no step is a function that takes a CPU longer than the bytes.
//!
//! Sound because the same functions are applied to the same elements, each rounded once, and sums are
//! taken in the same order: the bits stay the same. No order of the graph needs more memory
//! afterwards, scratch of sums aside: [`results`] and [`gradients`] say why. But for the casts: what they give is
//! half of a sum, and there from the sum on, which is some nodes earlier where an order puts any between.
//!
//! The named pipelines have it for GPUs alone. On a CPU steps are interpreted a strip at a time, which
//! takes longer than the bytes that they save, and twice backward: with it a step of MobileNetV2 (batch
//! 8, one thread) took 1.21 to 1.25 times as long.
//!
//! Elementwise operators are one node by `fuse_elementwise` already, which is why this comes after
//! it. This is XLA's and Inductor's fusion of elementwise operators into what they follow, and forward
//! what cuDNN and NVIDIA's Apex have as batch normalisation with addition and rectifier in one kernel;
//! in-place activated batch normalisation (Rota Bulò et al., 2018) fuses the same operators, but
//! inverts them backward, which changes bits.

mod gradients;
mod results;

use crate::rewrite::{Editor, GraphView};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::TargetInfo;
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::Op;
use arenic_ir::types::TensorType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Makes elementwise operators parts of the normalisations before them, or of the gradients behind them.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FuseNorms {}

impl GraphPass for FuseNorms {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        // Each finds what the one before it left.
        let norms = replaced(g, |view| results::all(view, cx.target, results::is_norm))?;
        let gradients = replaced(g, |view| gradients::all(view, cx.target))?;
        let sums = replaced(g, |view| results::all(view, cx.target, results::is_gradient))?;
        let casts = results::round(g)?;
        Ok(Stats::from([
            ("fused_norms", norms),
            ("fused_gradients", gradients),
            ("fused_sums_of_gradients", sums),
            ("fused_casts", casts),
        ]))
    }
}

/// Puts what is found in its place; says how many there are.
fn replaced(g: &mut Graph, found: impl FnOnce(&GraphView) -> Vec<Fused>) -> Result<u64, PassError> {
    let found = found(&GraphView::new(g));
    let mut e = Editor::new(g);
    found.iter().try_for_each(|fused| fused.replace(&mut e))?;
    e.finish();
    Ok(found.len() as u64)
}

/// A node that takes the place of another one.
struct Fused {
    /// The node whose results it gives.
    of: NodeId,
    /// Where it stands.
    at: NodeId,
    op: Op,
    inputs: Vec<Input>,
    /// The value that its first result is instead of, if not that of the node.
    result: Option<ValueId>,
}

/// An operand, in the shape in which it is read.
struct Input {
    value: ValueId,
    shape: Vec<usize>,
}

impl Input {
    fn whole(g: &Graph, value: ValueId) -> Input {
        Input { value, shape: g.ty(value).shape.clone() }
    }

    /// An operand of steps on tensors of one shape, which are read as tensors of another one: a tensor, or
    /// one element; none where it is broadcast otherwise.
    fn of_steps(g: &Graph, value: ValueId, read_as: &[usize], shape: &[usize]) -> Option<Input> {
        let ty = g.ty(value);
        if ty.shape == read_as {
            return Some(Input { value, shape: shape.to_vec() });
        }
        (ty.elements() == 1).then(|| Input { value, shape: Vec::new() })
    }

    fn ty(&self, g: &Graph) -> TensorType {
        TensorType::new(g.ty(self.value).dtype, self.shape.clone())
    }
}

impl Fused {
    /// Puts it there.
    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let inputs = self.inputs.iter().map(|x| e.reshaped(self.at, x.value, &x.shape));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let mut old = e.g.nodes[self.of].outputs.clone();
        if let (Some(first), Some(result)) = (old.first_mut(), self.result) {
            *first = Some(result);
        }
        let name = e.g.nodes[self.of].name.clone();
        let made = e.node(self.at, self.op.clone(), inputs)?;
        if let Some(&Def::Node { node, .. }) = made.first().map(|&v| &e.g.values[v].def) {
            e.g.nodes[node].name = name;
        }
        for (old, new) in old.into_iter().zip(made) {
            if let Some(old) = old {
                e.replace(self.at, old, new)?;
            }
        }
        Ok(())
    }

    /// The types of its results where it takes its operands and no more scratch than the node.
    fn results(&self, g: &Graph, target: TargetInfo) -> Option<Vec<TensorType>> {
        let x: Vec<TensorType> = self.inputs.iter().map(|x| x.ty(g)).collect();
        let x: Vec<&TensorType> = x.iter().collect();
        let y = self.op.infer(&x).ok()?;
        let own = &g.nodes[self.of];
        let scratch = |op: &Op, x: &[&TensorType], y: &[TensorType]| {
            op.scratch_bytes(target, x, &y.iter().collect::<Vec<_>>())
        };
        let own_x = g.input_types(self.of);
        let own_y = own.op.infer(&own_x).ok()?;
        (scratch(&self.op, &x, &y) <= scratch(&own.op, &own_x, &own_y)).then_some(y)
    }

    /// Bytes that it reads and writes.
    fn bytes(&self, g: &Graph, y: &[TensorType]) -> u64 {
        let x: Vec<TensorType> = self.inputs.iter().map(|x| x.ty(g)).collect();
        self.op.work(&x.iter().collect::<Vec<_>>(), &y.iter().collect::<Vec<_>>()).bytes
    }
}
