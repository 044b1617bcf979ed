//! What a step gives: scalars, which are reported, and tensors.

use arenic_ir::graph::Graph;
use arenic_ir::types::{DType, TensorType, bf16};
use arenic_runtime::machine::Machine;

/// Which outputs are scalars, reported at every step, and which are tensors.
pub(super) struct Outputs {
    pub(super) scalars: Vec<usize>,
    pub(super) tensors: Vec<usize>,
    /// The scalar that must stay finite.
    pub(super) loss: Option<usize>,
}

impl Outputs {
    pub(super) fn new(g: &Graph) -> Outputs {
        let is_scalar = |i: &usize| g.ty(g.outputs[*i].value).elements() == 1;
        let (scalars, tensors): (Vec<usize>, Vec<usize>) =
            (0..g.outputs.len()).partition(is_scalar);
        let loss = crate::kinds::loss(g).filter(|_| !g.states.is_empty());
        Outputs { scalars, tensors, loss }
    }

    pub(super) fn tensor_types(&self, g: &Graph) -> Vec<(String, TensorType)> {
        let output = |&i: &usize| (g.outputs[i].name.clone(), g.ty(g.outputs[i].value).clone());
        self.tensors.iter().map(output).collect()
    }

    pub(super) fn scalars<'g>(&self, g: &'g Graph, executor: &impl Machine) -> Vec<(&'g str, f64)> {
        let output = |&i: &usize| {
            let dtype = g.ty(g.outputs[i].value).dtype;
            (g.outputs[i].name.as_str(), scalar(dtype, executor.output(i)))
        };
        self.scalars.iter().map(output).collect()
    }

    pub(super) fn non_finite_loss(&self, scalars: &[(&str, f64)]) -> Option<String> {
        let at = self.scalars.iter().position(|&i| Some(i) == self.loss)?;
        (!scalars[at].1.is_finite()).then(|| scalars[at].0.to_owned())
    }
}

/// The first element as a number.
pub(crate) fn scalar(dtype: DType, bytes: &[u8]) -> f64 {
    let mut wide = [0u8; 8];
    let n = (dtype.size() as usize).min(bytes.len());
    wide[..n].copy_from_slice(&bytes[..n]);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 => bits as f64,
        DType::I8 => f64::from(bits as i8),
        DType::I16 => f64::from(bits as i16),
        DType::I32 => f64::from(bits as i32),
        DType::I64 => bits as i64 as f64,
        DType::Bf16 => bf16::to_f32(bits as u16).into(),
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        DType::F64 => f64::from_bits(bits),
    }
}
