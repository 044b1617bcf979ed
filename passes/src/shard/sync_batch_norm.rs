//! Batch normalisation over the rows of all ranks.
//!
//! Its statistics are means over the batch, which ranks add up like all others, so the operator and its gradients are
//! written down as the means, sums and elementwise arithmetic that they are. `fuse_elementwise` makes
//! few operators of them. Sound because these are the operators' definitions; bits differ, as sums
//! are taken in another order. This is PyTorch's `SyncBatchNorm`.

use crate::PassError;
use crate::rewrite::Editor;
use arenic_ir::graph::{Graph, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Unary};
use arenic_ir::types::{DType, TensorType};

/// Takes batch normalisations of floats apart; gives how many operators that were.
pub(super) fn take_apart(g: &mut Graph) -> Result<u64, PassError> {
    let nodes: Vec<NodeId> = g.nodes.keys().collect();
    let mut editor = Editor::new(g);
    let mut count = 0;
    for n in nodes {
        let node = &editor.g.nodes[n];
        let (op, inputs) = (node.op.clone(), node.inputs.clone());
        let outputs = node.outputs.clone();
        let of_norm =
            matches!(op, Op::BatchNorm { .. } | Op::BatchNormParamGrad | Op::BatchNormInputGrad);
        if !of_norm || !matches!(editor.g.ty(inputs[0]).dtype, DType::F32 | DType::F64) {
            continue;
        }
        let ty = editor.g.ty(inputs[0]).clone();
        let mut channels = Channels { editor: &mut editor, at: n, ty };
        let made = match op {
            Op::BatchNorm { epsilon } => channels.forward(&inputs, epsilon)?,
            Op::BatchNormParamGrad => channels.of_parameters(&inputs)?,
            _ => channels.of_input(&inputs)?,
        };
        for (old, new) in outputs.into_iter().zip(made) {
            if let Some(old) = old {
                editor.replace(n, old, new)?;
            }
        }
        count += 1;
    }
    editor.finish();
    Ok(count)
}

/// A tensor whose second axis has channels.
struct Channels<'e, 'g> {
    editor: &'e mut Editor<'g>,
    at: NodeId,
    ty: TensorType,
}

impl Channels<'_, '_> {
    fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> Result<ValueId, PassError> {
        self.editor.value(self.at, Op::Binary { f }, vec![a, b])
    }

    fn number(&mut self, x: f64) -> ValueId {
        let scalar = TensorType::scalar(self.ty.dtype);
        self.editor.constant(scalar, x)
    }

    /// Combines all elements of each channel.
    fn reduced(&mut self, f: Reduction, x: ValueId) -> Result<ValueId, PassError> {
        let axes = (0..self.ty.rank()).filter(|&axis| axis != 1).collect();
        self.editor.value(self.at, Op::Reduce { f, axes, keep: false }, vec![x])
    }

    /// A number for each channel, in a shape that broadcasts to the tensor's.
    fn spread(&mut self, x: ValueId) -> Result<ValueId, PassError> {
        let mut shape = vec![1; self.ty.rank() - 1];
        shape[0] = self.ty.shape[1];
        self.editor.reshaped(self.at, x, &shape)
    }

    fn with_channels(&mut self, f: Binary, a: ValueId, b: ValueId) -> Result<ValueId, PassError> {
        let b = self.spread(b)?;
        self.binary(f, a, b)
    }

    fn forward(&mut self, inputs: &[ValueId], epsilon: f32) -> Result<Vec<ValueId>, PassError> {
        let (x, scale, bias) = (inputs[0], inputs[1], inputs[2]);
        let mean = self.reduced(Reduction::Mean, x)?;
        let centered = self.with_channels(Binary::Sub, x, mean)?;
        let square = self.binary(Binary::Mul, centered, centered)?;
        let var = self.reduced(Reduction::Mean, square)?;
        let (epsilon, one) = (self.number(epsilon.into()), self.number(1.0));
        let sum = self.binary(Binary::Add, var, epsilon)?;
        let root = self.editor.value(self.at, Op::Unary { f: Unary::Sqrt }, vec![sum])?;
        let inv_std = self.binary(Binary::Div, one, root)?;
        let normal = self.with_channels(Binary::Mul, centered, inv_std)?;
        let scaled = self.with_channels(Binary::Mul, normal, scale)?;
        let y = self.with_channels(Binary::Add, scaled, bias)?;
        Ok(vec![y, mean, var, inv_std])
    }

    /// `(x − mean) · inv_std`.
    fn normal(&mut self, x: ValueId, mean: ValueId, inv: ValueId) -> Result<ValueId, PassError> {
        let centered = self.with_channels(Binary::Sub, x, mean)?;
        self.with_channels(Binary::Mul, centered, inv)
    }

    fn of_parameters(&mut self, inputs: &[ValueId]) -> Result<Vec<ValueId>, PassError> {
        let (x, dy, mean, inv_std) = (inputs[0], inputs[1], inputs[2], inputs[3]);
        let normal = self.normal(x, mean, inv_std)?;
        let product = self.binary(Binary::Mul, dy, normal)?;
        Ok(vec![self.reduced(Reduction::Sum, product)?, self.reduced(Reduction::Sum, dy)?])
    }

    fn of_input(&mut self, inputs: &[ValueId]) -> Result<Vec<ValueId>, PassError> {
        let &[x, dy, scale, mean, inv_std, dscale, dbias] = inputs else { return Ok(Vec::new()) };
        let elements = self.ty.elements() / self.ty.shape[1].max(1);
        let share = self.number(1.0 / elements.max(1) as f64);
        let normal = self.normal(x, mean, inv_std)?;
        let along = self.with_channels(Binary::Mul, normal, dscale)?;
        let both = self.with_channels(Binary::Add, along, dbias)?;
        let mean_of_both = self.binary(Binary::Mul, both, share)?;
        let rest = self.binary(Binary::Sub, dy, mean_of_both)?;
        let factor = self.binary(Binary::Mul, scale, inv_std)?;
        Ok(vec![self.with_channels(Binary::Mul, rest, factor)?])
    }
}
