//! Softmax attention, as cuDNN takes it.

use arenic_ir::types::DType;

/// Softmax attention without masks, or the gradients of its operands. Matrices are rows of elements
/// that lie side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// The type of all elements; sums and statistics are `F32`.
    pub dtype: DType,
    /// The gradients of queries, keys and values are computed, of them, the result, its gradient and
    /// the statistics; else the result.
    pub gradients: bool,
    /// Sequences; each has `heads` matrices of queries and `key_heads` of keys and of values.
    pub batch: usize,
    /// Matrices of queries, and of the result, in a sequence.
    pub heads: usize,
    /// Matrices of keys, and of values, in a sequence; each is read by as many of queries.
    pub key_heads: usize,
    /// Rows of queries.
    pub queries: usize,
    /// Rows of keys and of values.
    pub keys: usize,
    /// Elements of a query and a key.
    pub depth: usize,
    /// Elements of a value.
    pub width: usize,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// Query `t` has the keys up to `t` alone (top-left diagonal).
    pub causal: bool,
    /// The result's statistics are stored: of each query the logarithm of the sum of exponentials of
    /// its scores.
    pub keeps_statistics: bool,
    /// Strides, in elements, from sequence to sequence, matrix to matrix and row to row of queries,
    /// keys, values and the result. Gradients lie as what they are of.
    pub strides: [[usize; 3]; 4],
}
