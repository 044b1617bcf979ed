//! Softmax attention, as cuDNN takes it.

use super::{LibraryCall, MOST, NoCall};
use arenic_ir::op::{Matrices, families};
use arenic_ir::types::{DType, TensorType};

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
    /// The first element of each of these: queries, keys and values may be one tensor, and their gradients
    /// another.
    pub first: [usize; 4],
    /// They are.
    pub packed: bool,
}

/// Bytes beside what formulas tell: small tables of the engines, and parts that begin at multiples
/// of 256.
const SLACK: u64 = 1024;

/// What the elements of rows are multiples of, and how many the gradients of a row have at most.
const MULTIPLE: usize = 8;
const LONGEST: usize = 256;

/// The call that computes an attention, or all gradients but that of a mask.
pub(super) fn describe(
    op: families::Attention,
    x: &[&TensorType],
    y: &[&TensorType],
) -> Result<LibraryCall, NoCall> {
    let spec = op.spec();
    // Without masks no row is without scores, whatever would become of one.
    if x.len() > op.first_mask() || spec.dropout.is_some() || spec.softcap.is_some() {
        return Err(NoCall::Scores);
    }
    let gradients = match op {
        families::Attention::Attention { .. } if [1, 3].contains(&y.len()) => false,
        families::Attention::AttentionGrad { has_result: true, .. }
            if y.len() == spec.gradients() =>
        {
            true
        }
        _ => return Err(NoCall::Results),
    };
    if x[0].dtype != DType::Bf16 {
        return Err(NoCall::Elements);
    }
    let [q, k, v] = &spec.heads_first(x);
    let matrix = |t: &TensorType| [t.shape[t.rank() - 2], t.shape[t.rank() - 1]];
    let ([queries, depth], [keys, width]) = (matrix(q), matrix(v));
    let fits = |n: usize| n.is_multiple_of(MULTIPLE) && n <= LONGEST;
    if ![depth, width].into_iter().all(fits) {
        return Err(NoCall::Rows);
    }
    let matrices = spec.matrices(x);
    let heads = matrices[0].heads;
    let batch = q.shape[..q.rank() - 2].iter().product::<usize>() / heads.max(1);
    let strides = matrices.map(|Matrices { sequence, head, row, .. }| [sequence, head, row]);
    let scores = [batch, heads, queries, keys].into_iter().fold(1, usize::saturating_mul);
    if scores == 0 || [q, k, v].iter().any(|t| t.elements() > MOST) {
        return Err(NoCall::Extent);
    }
    Ok(LibraryCall::Attention(Attention {
        dtype: DType::Bf16,
        gradients,
        batch,
        heads,
        key_heads: matrices[1].heads,
        queries,
        keys,
        depth,
        width,
        scale: spec.scale as f32,
        causal: spec.causal,
        keeps_statistics: !gradients && y.len() == 3,
        strides,
        first: matrices.map(|of| of.first),
        packed: spec.packed,
    }))
}

impl Attention {
    /// The factors of how many multiplications of elements there are.
    pub(super) fn factors(&self) -> Vec<usize> {
        let elements = self.depth.saturating_add(self.width);
        vec![self.batch, self.heads, self.queries, self.keys, elements]
    }

    /// The first byte of each tensor of the call, operands and then results, behind its address: of
    /// queries, keys and values and their gradients where these are parts.
    pub fn begins(&self) -> Vec<u64> {
        let [q, k, v, y] = self.first.map(|first| first as u64 * self.dtype.size());
        match self.gradients {
            // The result, its gradient and the statistics.
            true => vec![q, k, v, y, y, 0, q, k, v],
            // The result, and the statistics.
            false => vec![q, k, v, y, 0],
        }
    }

    /// Bytes of the statistics.
    pub fn statistics_bytes(&self) -> u64 {
        self.of([self.queries, size_of::<f32>()])
    }

    /// Bytes of workspace with which the ways are possible that add up gradients of queries in any order.
    ///
    /// These formulas and those of [`Attention::workspace_in_order`] are what the engines of cuDNN 9.19
    /// report for described GPUs from `sm_80` to `sm_120` (`make cudnn-plans` compares some); NVIDIA's
    /// frontend has the tensors that it adds itself in `scaled_dot_product_flash_attention.h`.
    pub fn workspace(&self) -> u64 {
        if !self.gradients {
            return SLACK;
        }
        // Twice: engines for Hopper sum in a tensor of ours, others in one of their own.
        let rows = self.queries.saturating_add(self.queries.next_multiple_of(8));
        let sums = self.of([rows, self.depth]).saturating_mul(size_of::<f32>() as u64);
        self.in_both_ways().saturating_add(sums)
    }

    /// Bytes of workspace with which the ways are possible that always give the same bits. These
    /// store the gradients of scores, where the others add to sums of `f32`.
    pub fn workspace_in_order(&self) -> u64 {
        if !self.gradients {
            return SLACK;
        }
        let scores = [self.queries.next_multiple_of(64), self.keys.next_multiple_of(128)];
        let scores = self.of(scores).saturating_mul(self.dtype.size());
        self.in_both_ways().saturating_add(scores)
    }

    /// What gradients need in each way: a sum of each row, and where several matrices of queries read
    /// the same keys and values, the gradients of each.
    fn in_both_ways(&self) -> u64 {
        let rows = self.statistics_bytes();
        let grouped = match self.heads == self.key_heads {
            true => 0,
            false => self.of([self.keys, self.depth.saturating_add(self.width)]),
        };
        let grouped = grouped.saturating_mul(self.dtype.size());
        SLACK.saturating_add(rows).saturating_add(grouped)
    }

    /// Elements of so many rows and columns for each matrix of queries.
    fn of(&self, matrix: [usize; 2]) -> u64 {
        let factors = [self.batch, self.heads].into_iter().chain(matrix);
        factors.fold(1, |product, n| product.saturating_mul(n as u64))
    }
}
