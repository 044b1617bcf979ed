//! In which order the CPU's kernels add up what makes one element of a result.
//!
//! They choose by extents: a packing library or plain loops, one sum or partial ones. These choices
//! are made here, where kernels ask for them and where it can be told whether an operator and a
//! part of it (see [`Op::cuts`](arenic_ir::Op::cuts)) give an element the same bits.

use arenic_ir::op::Extents;

/// How a matrix product is computed on one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By the packing library: sums of [`LIBRARY_DEPTH`] terms, one after another.
    Library,
    /// By a plain loop.
    Plain,
    /// The transposed product, which is the same one, by a plain loop.
    PlainTransposed,
}

impl Route {
    /// How a product of these extents is computed.
    pub fn of(e: Extents) -> Route {
        if e.n <= PLAIN_ROWS && e.m > e.n {
            Route::PlainTransposed
        } else if e.m <= PLAIN_ROWS || e.multiplications() <= PLAIN {
            Route::Plain
        } else {
            Route::Library
        }
    }
}

/// Rows of the result that a plain product accumulates at a time; with so few, packing does
/// not pay.
pub const PLAIN_ROWS: usize = 4;

/// Multiplications up to which a plain loop beats packing.
const PLAIN: usize = 6 << 10;

/// Terms that the packing library sums before it adds them to the result, which it then reads
/// again: a sum that is cut at multiples of them keeps its bits.
pub const LIBRARY_DEPTH: usize = 256;

/// The order of a product with a packed matrix: its terms one by one, whatever the extents.
pub(super) const ONE_BY_ONE: [usize; 1] = [usize::MAX];

/// True for the order of a product that the packing library sums, all of it in one go.
pub(super) fn is_by_packing_library(order: &[usize]) -> bool {
    order == [Route::Library as usize, 1]
}

/// The order of a product's sums, whose terms are cut into `parts`.
pub(super) fn product(e: Extents, parts: usize) -> Vec<usize> {
    let depth = e.k / parts.max(1);
    // The last part also takes what is left over.
    let last = e.k - (parts.max(1) - 1) * depth;
    let routes = [depth, last].map(|k| Route::of(Extents { k, ..e }));
    if routes == [Route::Library; 2] && parts <= 1 {
        return vec![Route::Library as usize, 1];
    }
    // Plain loops differ where rows or columns are dense because there is but one.
    let dense = [usize::from(e.m == 1), usize::from(e.n == 1)];
    [routes.map(|r| r as usize).as_slice(), &[parts], &dense].concat()
}

#[cfg(test)]
mod tests {
    use crate::CPU;
    use arenic_ir::Op;
    use arenic_ir::backend::SumOrder;
    use arenic_ir::types::{DType, TensorType};

    fn order(op: &Op, x: &[&[usize]]) -> SumOrder {
        let x: Vec<TensorType> =
            x.iter().map(|shape| TensorType::new(DType::F32, shape.to_vec())).collect();
        let x: Vec<&TensorType> = x.iter().collect();
        let y = op.infer(&x).unwrap_or_else(|e| panic!("{e}"));
        op.sum_order(CPU, &x, &y.iter().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn rows_of_a_product_are_summed_as_the_whole_is() {
        let op = Op::MatMul { trans_a: false, trans_b: false };
        let whole = order(&op, &[&[512, 300], &[300, 400]]);
        assert_eq!(whole, order(&op, &[&[64, 300], &[300, 400]]));
        assert_eq!(whole, order(&op, &[&[512, 300], &[300, 25]]));
    }

    #[test]
    fn not_rows_that_plain_loops_take() {
        let op = Op::MatMul { trans_a: false, trans_b: false };
        let whole = order(&op, &[&[512, 300], &[300, 400]]);
        assert_ne!(whole, order(&op, &[&[4, 300], &[300, 400]]));
        assert_ne!(whole, order(&op, &[&[512, 300], &[300, 2]]));
    }

    #[test]
    fn not_few_results_of_a_long_sum() {
        let op = Op::MatMul { trans_a: false, trans_b: false };
        let whole = order(&op, &[&[512, 9000], &[9000, 400]]);
        assert_ne!(whole, order(&op, &[&[32, 9000], &[9000, 400]]));
    }
}
