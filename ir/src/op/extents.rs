//! Extents of matrix products.

use crate::types::TensorType;

/// Extents of a matrix product: `m × k` by `k × n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Rows of the result.
    pub m: usize,
    /// Terms of each sum.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
}

impl Extents {
    /// Multiplications of the product; saturates.
    pub fn multiplications(self) -> usize {
        self.m.saturating_mul(self.k).saturating_mul(self.n)
    }

    /// The extents of a `MatMul`, and how many products there are. Where `b` is one matrix for all
    /// of `a`'s batch, that batch's rows are rows of one product.
    pub fn of_mat_mul(
        [a, b, y]: [&TensorType; 3],
        trans_a: bool,
        trans_b: bool,
    ) -> (usize, Extents) {
        let (mut m, k) = matrix(a, trans_a, true);
        let (_, n) = matrix(b, trans_b, false);
        let vectors = usize::from(a.rank() == 1) + usize::from(b.rank() == 1);
        let batch_axes = (y.rank() + vectors).saturating_sub(2);
        let mut count: usize = y.shape[..batch_axes].iter().product();
        if b.elements() == k * n && !trans_a && a.elements() == count.saturating_mul(m * k) {
            m *= count;
            count = count.min(1);
        }
        (count, Extents { m, k, n })
    }

    /// The extents of a `Gemm`.
    pub fn of_gemm(a: &TensorType, b: &TensorType, trans_a: bool, trans_b: bool) -> Extents {
        let (m, k) = matrix(a, trans_a, true);
        let (_, n) = matrix(b, trans_b, false);
        Extents { m, k, n }
    }
}

/// Rows and columns of an operand's last two axes.
fn matrix(x: &TensorType, trans: bool, vector_is_row: bool) -> (usize, usize) {
    let (rows, columns) = match x.shape[..] {
        [] => (1, 1),
        [n] if vector_is_row => (1, n),
        [n] => (n, 1),
        [.., rows, columns] => (rows, columns),
    };
    if trans { (columns, rows) } else { (rows, columns) }
}
