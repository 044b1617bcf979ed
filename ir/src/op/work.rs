//! Arithmetic and memory traffic of each operator, for estimates of time.

use super::{Interpolation, Op, channels_last};
use crate::types::{DType, TensorType};

/// What an operator does once, whatever the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations; a multiply-add counts two, a function like `exp` one.
    pub flops: u64,
    /// Bytes read and written, each operand and result once.
    pub bytes: u64,
    /// The element type that the arithmetic is done in.
    pub dtype: DType,
    /// The arithmetic is products of matrices: what tensor cores compute.
    pub is_product: bool,
    /// Bytes of tensors that are turned, before or after, where tensor cores compute: those of
    /// convolutions whose channels are not last.
    pub turned_bytes: u64,
}

impl Op {
    /// The operator's work on operands and results of these types, as `infer` gives them.
    ///
    /// Gathers read as many elements as they write; a product counts its multiply-adds,
    /// so that a convolution's gradients come to what the convolution itself does.
    pub fn work(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> Work {
        let bytes =
            |types: &[&TensorType]| types.iter().fold(0u64, |sum, t| sum.saturating_add(t.bytes()));
        let (read, written) = match self {
            Op::Slice { .. } => (bytes(outputs), bytes(outputs)),
            Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } => {
                (bytes(outputs).saturating_add(bytes(&inputs[1..])), bytes(outputs))
            }
            _ => (bytes(inputs), bytes(outputs)),
        };
        let mut dtypes = inputs.iter().chain(outputs).map(|t| t.dtype);
        let first = dtypes.clone().next().unwrap_or(DType::F32);
        let dtype = match dtypes.find(|d| d.is_float()).unwrap_or(first) {
            // Products alone are multiplied in it.
            DType::Bf16 if !self.is_product() => DType::F32,
            dtype => dtype,
        };
        Work {
            flops: self.flops(inputs, outputs),
            bytes: read.saturating_add(written),
            dtype,
            is_product: self.is_product(),
            turned_bytes: self.turned_bytes(inputs, outputs),
        }
    }

    /// Bytes of what [`Work::turned_bytes`] counts. Where a group has one channel there is
    /// nothing for tensor cores.
    fn turned_bytes(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let channels = inputs.first().and_then(|x| x.shape.get(1));
        match self {
            Op::Conv { group, .. }
            | Op::ConvTranspose { group, .. }
            | Op::ConvWeightGrad { group, .. }
                if channels != Some(group) =>
            {
                let turned = inputs.iter().chain(outputs).filter(|t| channels_last::is_turned(t));
                turned.fold(0, |sum, t| sum.saturating_add(t.bytes()))
            }
            _ => 0,
        }
    }

    /// True for products of matrices. Attention is half exponentials and moves, and so counts as
    /// other arithmetic.
    fn is_product(&self) -> bool {
        matches!(
            self,
            Op::MatMul { .. }
                | Op::Gemm { .. }
                | Op::GemmGelu { .. }
                | Op::GemmGeluGrad { .. }
                | Op::Conv { .. }
                | Op::ConvTranspose { .. }
                | Op::ConvWeightGrad { .. }
        ) || matches!(self, Op::ChannelsLast { of } if of.is_product())
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let input = |i: usize| inputs.get(i).map_or(0, |t: &&TensorType| t.elements() as u64);
        let output = outputs.first().map_or(0, |t| t.elements() as u64);
        let extent = |i: usize, axis: usize| {
            inputs.get(i).and_then(|t| t.shape.get(axis)).map_or(1, |&n| n.max(1) as u64)
        };
        // Elements that each result of a product sums over: the axis that both operands share.
        let inner = |i: usize, transposed: bool| {
            let rank = inputs.get(i).map_or(0, |t| t.rank());
            let from_end = if transposed && rank > 1 { 2 } else { 1 };
            rank.checked_sub(from_end).map_or(1, |axis| extent(i, axis))
        };
        let extent_from_end = |i: usize, from_end: usize| {
            inputs[i].rank().checked_sub(from_end).map_or(1, |axis| extent(i, axis))
        };
        match self {
            Op::Reshape { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Transpose { .. }
            | Op::Expand { .. }
            | Op::Concat { .. }
            | Op::Copy
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::Opaque { .. } => 0,
            Op::ScatterElements { .. } | Op::ScatterNd { .. } => input(2),
            Op::Cast { .. } | Op::Unary { .. } | Op::Binary { .. } | Op::Where => output,
            Op::Clip { .. } => times(output, 2),
            // A counter-based generator takes some ten rounds of integer arithmetic.
            Op::Dropout { .. } | Op::RandomUniform { .. } => times(output, 12),
            Op::Reduce { .. } => input(0),
            Op::TopK { .. } => times(input(0), 8),
            Op::Softmax { .. } | Op::LogSoftmax { .. } | Op::LogSoftmaxStats => times(input(0), 5),
            Op::SoftmaxOfStats => times(output, 3),
            Op::CrossEntropyGrad => times(output, 5),
            Op::SoftmaxGrad { .. } | Op::LogSoftmaxGrad { .. } => times(input(0), 4),
            Op::Attention { spec } | Op::AttentionGrad { spec } => {
                let (forward, d) = (matches!(self, Op::Attention { .. }), extent_from_end(0, 1));
                let (s, e) = (extent_from_end(1, 2), extent_from_end(2, 1));
                let each = if forward { 2 * d + 2 * e + 6 } else { 6 * d + 4 * e + 10 };
                let scores = times(input(0) / d, s);
                let each = each + if spec.dropout.is_some() { 12 } else { 0 };
                times(if spec.causal { scores.div_ceil(2) } else { scores }, each)
            }
            Op::LayerNorm { .. } | Op::BatchNorm { .. } => times(input(0), 8),
            Op::LayerNormParamGrad { .. } | Op::BatchNormParamGrad => times(input(0), 5),
            Op::LayerNormInputGrad { .. } => times(input(0), 12),
            Op::BatchNormInputGrad => times(input(0), 7),
            Op::MatMul { trans_a, .. } => times(times(output, 2), inner(0, *trans_a)),
            Op::Gemm { trans_a, .. } => {
                times(output, times(2, inner(0, *trans_a)).saturating_add(2))
            }
            Op::GemmGelu { trans_a, .. } => {
                times(output, times(2, inner(0, *trans_a)).saturating_add(10))
            }
            Op::GemmGeluGrad { trans_a, .. } => {
                times(output, times(2, inner(0, *trans_a)).saturating_add(18))
            }
            // Every result sums over one filter of the weight, every operand of the
            // transpose is spread over one.
            Op::Conv { .. } => times(times(output, 2), input(1) / extent(1, 0)),
            Op::ConvTranspose { .. } => times(times(input(0), 2), input(1) / extent(1, 0)),
            Op::ConvWeightGrad { .. } => {
                let filter = outputs.first().map_or(0, |t| t.elements() as u64) / extent(1, 1);
                times(times(input(1), 2), filter)
            }
            Op::MaxPool { window, .. } | Op::AveragePool { window, .. } => {
                times(output, window.taps() as u64)
            }
            Op::MaxPoolGrad { window, .. } | Op::AveragePoolGrad { window, .. } => {
                times(input(0), window.taps() as u64)
            }
            // A product with the recurrence's weight each step, and functions of each gate.
            Op::Lstm { .. } | Op::Gru { .. } | Op::Rnn { .. } => {
                times(input(0), times(2, extent(1, 1)).saturating_add(4))
            }
            Op::LstmGrad { .. } | Op::GruGrad { .. } => {
                times(input(0), times(2, extent(2, 1)).saturating_add(8))
            }
            Op::RnnGrad { .. } => times(input(0), times(2, extent(1, 1)).saturating_add(4)),
            Op::Resize { spec } => match spec.mode {
                Interpolation::Nearest(_) => output,
                Interpolation::Linear => times(output, 8),
                Interpolation::Cubic { .. } => times(output, 32),
            },
            Op::Adam { .. } => times(input(2), 12),
            Op::Adagrad { .. } => times(input(2), 8),
            Op::Momentum { .. } => times(input(2), 6),
            Op::Pointwise { steps, .. } => times(output, steps.len() as u64),
            Op::PointwiseReduce { steps, .. } => {
                let terms = inputs.iter().map(|t| t.elements() as u64).max().unwrap_or(0);
                times(terms, steps.len() as u64 + 1)
            }
            Op::ChannelsLast { of } => {
                channels_last::as_first(inputs, outputs, |x, y| of.flops(x, y))
            }
            Op::ProductUpdate { trans_a, update, .. } => {
                let product = inputs.len().saturating_sub(2);
                let multiplied = times(times(output, 2), inner(product, *trans_a));
                let steps = match update.as_ref() {
                    Op::Pointwise { steps, .. } => steps.len() as u64,
                    _ => 12,
                };
                multiplied.saturating_add(times(output, steps))
            }
        }
    }
}

fn times(a: u64, b: u64) -> u64 {
    a.saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use super::super::{Binary, Window};
    use super::*;

    fn work(op: &Op, inputs: &[&TensorType]) -> Work {
        let outputs = op.infer(inputs).unwrap();
        op.work(inputs, &outputs.iter().collect::<Vec<_>>())
    }

    fn f32s(shape: &[usize]) -> TensorType {
        TensorType::new(DType::F32, shape)
    }

    #[test]
    fn products_count_multiply_adds() {
        let plain = Op::MatMul { trans_a: false, trans_b: false };
        let w = work(&plain, &[&f32s(&[5, 8, 3]), &f32s(&[5, 3, 4])]);
        assert_eq!((w.flops, w.bytes), (2 * 5 * 8 * 4 * 3, 4 * (120 + 60 + 160)));
        assert_eq!((w.dtype, w.is_product, w.turned_bytes), (DType::F32, true, 0));
        let turned = Op::MatMul { trans_a: true, trans_b: false };
        assert_eq!(work(&turned, &[&f32s(&[5, 3, 8]), &f32s(&[5, 3, 4])]).flops, 960);
        let gemm = Op::Gemm { alpha: 1.0, beta: 1.0, trans_a: true, trans_b: true };
        let w = work(&gemm, &[&f32s(&[3, 8]), &f32s(&[4, 3]), &f32s(&[4])]);
        assert_eq!(w.flops, 2 * 8 * 4 * 3 + 2 * 8 * 4);
    }

    /// A convolution, and the transpose that is its input gradient, do the same work.
    #[test]
    fn a_convolution_and_its_input_gradient_are_equal() {
        let window = Window {
            kernel: vec![3, 3],
            strides: vec![1, 1],
            dilations: vec![1, 1],
            pads_begin: vec![1, 1],
            pads_end: vec![1, 1],
        };
        let conv = Op::Conv { window: window.clone(), group: 2 };
        let (x, w, y) = (f32s(&[2, 4, 5, 5]), f32s(&[6, 2, 3, 3]), f32s(&[2, 6, 5, 5]));
        let forward = work(&conv, &[&x, &w]).flops;
        assert_eq!(forward, 2 * (2 * 6 * 25) * (2 * 9));
        let transpose =
            Op::ConvTranspose { window: window.clone(), group: 2, output_padding: vec![0, 0] };
        assert_eq!(work(&transpose, &[&y, &w]).flops, forward);
        // What is turned where tensor cores compute it; there is nothing for them in a group of
        // one channel.
        let whole = work(&conv, &[&x, &w]);
        assert_eq!(whole.turned_bytes, whole.bytes);
        let last = Op::ChannelsLast { of: Box::new(conv) };
        let turned = work(&last, &[&f32s(&[2, 5, 5, 4]), &f32s(&[6, 3, 3, 2])]);
        assert_eq!(turned, Work { turned_bytes: 0, ..whole });
        let depthwise = Op::Conv { window, group: 4 };
        assert_eq!(work(&depthwise, &[&x, &f32s(&[4, 1, 3, 3])]).turned_bytes, 0);
    }

    #[test]
    fn gathers_read_what_they_write() {
        let table = f32s(&[50_000, 8]);
        let rows = TensorType::new(DType::I64, [4]);
        let w = work(&Op::Gather { axis: 0 }, &[&table, &rows]);
        assert_eq!((w.flops, w.bytes), (0, 2 * 4 * 8 * 4 + 4 * 8));
        let mixed = work(&Op::Binary { f: Binary::Equal }, &[&rows, &rows]);
        assert_eq!((mixed.flops, mixed.dtype), (4, DType::I64));
    }
}
