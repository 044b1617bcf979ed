//! Arithmetic and memory traffic of an operator, for estimates of time.

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
    /// What kind of arithmetic it is.
    pub kind: WorkKind,
    /// Bytes of tensors that are transposed, before or after, where tensor cores compute: those of
    /// convolutions whose channels are not last.
    pub turned_bytes: u64,
    /// Of a convolution the channels of its input or of its output in a group, whichever are fewer: where they are
    /// few, tensor cores compute in vain for those that are missing. `u64::MAX` for everything else.
    pub channels: u64,
}

/// What kind of arithmetic an operator does. Devices have a rate for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Functions of elements, and sums.
    Elementwise,
    /// Products of matrices, as libraries compute them.
    Product,
    /// Products of matrices whose results are used and not stored, so that no library has them.
    FusedProduct,
    /// Products of matrices with a softmax between, of which only tiles are stored.
    Attention,
}

impl Work {
    /// So many operations on operands `x` and results `y`, all of which are read or written once.
    pub(super) fn new(flops: u64, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let dtype = match arithmetic(x, y) {
            // Products alone are multiplied in it.
            DType::Bf16 => DType::F32,
            dtype => dtype,
        };
        let bytes = bytes(x).saturating_add(bytes(y));
        Work {
            flops,
            bytes,
            dtype,
            kind: WorkKind::Elementwise,
            turned_bytes: 0,
            channels: u64::MAX,
        }
    }

    /// The same of products of matrices.
    pub(super) fn of_matrices(flops: u64, x: &[&TensorType], y: &[&TensorType]) -> Work {
        Work { dtype: arithmetic(x, y), kind: WorkKind::Product, ..Work::new(flops, x, y) }
    }

    /// The same of products whose results are not stored.
    pub(super) fn of_fused_product(flops: u64, x: &[&TensorType], y: &[&TensorType]) -> Work {
        Work { kind: WorkKind::FusedProduct, ..Work::new(flops, x, y) }
    }

    /// The same of an attention.
    pub(super) fn of_attention(flops: u64, x: &[&TensorType], y: &[&TensorType]) -> Work {
        Work { dtype: arithmetic(x, y), kind: WorkKind::Attention, ..Work::new(flops, x, y) }
    }

    /// The same where as many bytes are read as the tensors `read` have, and `y` are written.
    pub(super) fn reading(self, read: &[&TensorType], y: &[&TensorType]) -> Work {
        Work { bytes: bytes(read).saturating_add(bytes(y)), ..self }
    }
}

/// The type of the first operand or result of floats, or else of the first one.
fn arithmetic(x: &[&TensorType], y: &[&TensorType]) -> DType {
    let mut dtypes = x.iter().chain(y).map(|t| t.dtype);
    let first = dtypes.clone().next().unwrap_or(DType::F32);
    dtypes.find(|d| d.is_float()).unwrap_or(first)
}

fn bytes(types: &[&TensorType]) -> u64 {
    types.iter().fold(0, |sum, t| sum.saturating_add(t.bytes()))
}

#[cfg(test)]
mod tests {
    use super::super::{Binary, Op, Window};
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
        assert_eq!((w.dtype, w.kind, w.turned_bytes), (DType::F32, WorkKind::Product, 0));
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
        assert_eq!(whole.channels, 2);
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
