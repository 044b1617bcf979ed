//! In which order the CPU's kernels add up what makes one element of a result.
//!
//! They choose by extents: a packing library or plain loops, one sum or partial ones. These choices
//! are made here, where kernels ask for them and where it can be told whether an operator and a
//! part of it (see [`Op::cuts`]) give an element the same bits.

use super::attention;
use super::tiling::{
    Conv, ConvTranspose, ConvWeight, ProductUpdate, channel_sums, channels, conv, conv_transpose,
    conv_weight, product_parts, product_update, rows,
};
use crate::backend::reduce::reduce;
use crate::op::families::{
    Attention, Convolution, Indexing, Norm, Pool, Product, Resizing, Softmax, Wrapping,
};
use crate::op::{Extents, Family, Op, channels_last};
use crate::types::TensorType;

impl Extents {
    /// How a product of these extents is computed.
    pub fn route(self) -> Route {
        if self.n <= PLAIN_ROWS && self.m > self.n {
            Route::PlainTransposed
        } else if self.m <= PLAIN_ROWS || self.multiplications() <= PLAIN {
            Route::Plain
        } else {
            Route::Library
        }
    }
}

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

/// Rows of the result that a plain product accumulates at a time; with so few, packing does
/// not pay.
pub const PLAIN_ROWS: usize = 4;

/// Multiplications up to which a plain loop beats packing.
const PLAIN: usize = 6 << 10;

/// Terms that the packing library sums before it adds them to the result, which it then reads
/// again: a sum that is cut at multiples of them keeps its bits.
pub const LIBRARY_DEPTH: usize = 256;

/// The order of an operator's sums; `None` if it is unknown. See
/// [`SumOrder`](crate::backend::SumOrder).
pub(super) fn order(op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Option<Vec<usize>> {
    // Sums are of these types, so that tilings are those for them.
    let [x, y] = [x, y].map(|types| types.iter().map(|t| t.accumulated()).collect::<Vec<_>>());
    of_accumulated(op, &x.iter().collect::<Vec<_>>(), &y.iter().collect::<Vec<_>>())
}

fn of_accumulated(op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Option<Vec<usize>> {
    /// No sums, or such that have one order at every extent.
    const NONE: Vec<usize> = Vec::new();
    Some(match op.family() {
        Family::Movement(_) | Family::Elementwise(_) | Family::Random(_) | Family::Update(_) => {
            NONE
        }
        Family::Indexing(op) => match op {
            Indexing::Gather { .. }
            | Indexing::GatherElements { .. }
            | Indexing::GatherNd { .. }
            | Indexing::ScatterElements { .. }
            | Indexing::ScatterNd { .. }
            | Indexing::TopK { .. } => NONE,
        },
        Family::Reducing(op) => {
            let (x, _, axes) = op.reduction(x);
            let plan = reduce(&x, axes);
            let reduced = (0..plan.rank).filter(|&i| plan.reduced(i));
            let extents = reduced.map(|i| plan.extents[i]);
            [usize::from(plan.inner_reduced), plan.parts].into_iter().chain(extents).collect()
        }
        Family::Softmax(op) => match op {
            // Along the last axis by rows, else by columns.
            Softmax::Softmax { axis }
            | Softmax::LogSoftmax { axis }
            | Softmax::SoftmaxGrad { axis }
            | Softmax::LogSoftmaxGrad { axis } => {
                let inner: usize = x[0].shape[axis + 1..].iter().product();
                vec![usize::from(inner == 1)]
            }
            // Along an axis that is in no cut.
            Softmax::LogSoftmaxStats => NONE,
            Softmax::SoftmaxOfStats | Softmax::CrossEntropyGrad => NONE,
        },
        Family::Norm(op) => match op {
            // Along axes that are in no cut.
            Norm::LayerNorm { .. } | Norm::LayerNormInputGrad { .. } => NONE,
            Norm::LayerNormParamGrad { axis } => vec![channel_sums(rows(x[0], *axis)).parts],
            Norm::BatchNorm { .. } | Norm::BatchNormParamGrad => {
                vec![channel_sums(channels(x[0])).parts]
            }
            Norm::BatchNormInputGrad => NONE,
        },
        Family::Product(op) => of_product(op, x, y)?,
        Family::Convolution(op) => of_convolution(op, x, y),
        Family::Pool(op) => match op {
            Pool::MaxPool { .. }
            | Pool::AveragePool { .. }
            | Pool::MaxPoolGrad { .. }
            | Pool::AveragePoolGrad { .. } => NONE,
        },
        Family::Resizing(op) => match op {
            Resizing::Resize { .. } => NONE,
        },
        Family::Attention(op) => match op {
            // Along axes that are in no cut.
            Attention::Attention { .. } => NONE,
            Attention::AttentionGrad { .. } => vec![attention::tiling(x[0], x[1], x[2]).parts],
        },
        Family::Recurrent(op) => {
            let of_step = op.products(op.extents(x[0]));
            of_step.into_iter().flat_map(|e| product(e, 1)).collect()
        }
        Family::Wrapping(op) => match op {
            Wrapping::ChannelsLast { of } => {
                return channels_last::as_first(x, y, |x, y| of_accumulated(of, x, y));
            }
        },
        Family::Opaque(_) => return None,
    })
}

fn of_product(op: Product, x: &[&TensorType], y: &[&TensorType]) -> Option<Vec<usize>> {
    Some(match op {
        Product::MatMul { trans_a, trans_b } => {
            let (_, e) = Extents::of_mat_mul([x[0], x[1], y[0]], *trans_a, *trans_b);
            product(e, product_parts(y[0].elements(), e.k))
        }
        Product::Gemm { alpha, trans_a, trans_b, .. } => {
            let e = Extents::of_gemm(x[0], x[1], *trans_a, *trans_b);
            scaled(*alpha, e, product_parts(y[0].elements(), e.k))
        }
        Product::GemmGelu { trans_a, trans_b } | Product::GemmGeluGrad { trans_a, trans_b } => {
            let e = Extents::of_gemm(x[0], x[1], *trans_a, *trans_b);
            product(e, product_parts(y[0].elements(), e.k))
        }
        Product::ProductUpdate { alpha, trans_a, trans_b, .. } => {
            let [.., a, b] = x else { return None };
            let e = Extents::of_gemm(a, b, *trans_a, *trans_b);
            let parts = match product_update(e.m * e.n, e.k) {
                ProductUpdate::Tiles { .. } => 1,
                ProductUpdate::Parts { parts, .. } => parts,
            };
            scaled(*alpha, e, parts)
        }
    })
}

fn of_convolution(op: Convolution, x: &[&TensorType], y: &[&TensorType]) -> Vec<usize> {
    match op {
        Convolution::Conv { window, group } => {
            let (images, w) = (x[0].shape[0], x[1]);
            let (m, k) = (w.shape[0] / group, w.shape[1..].iter().product());
            match conv(window, *group, x[0], w, y[0]) {
                Conv::Direct => vec![0],
                Conv::Pointwise => {
                    let n = y[0].shape[2..].iter().product();
                    [vec![1], product(Extents { m, k, n }, 1)].concat()
                }
                Conv::Whole => {
                    let e = Extents { m: images, k, n: m };
                    [vec![2], product(e, product_parts(y[0].elements(), k))].concat()
                }
                Conv::Columns(tile) => {
                    // What is folded gets the bias last, else it comes first.
                    let bias_last = usize::from(tile.folded && x.len() > 2);
                    [vec![3, tile.depth, bias_last], product(tile.extents(), 1)].concat()
                }
            }
        }
        Convolution::ConvTranspose { group, .. } => match conv_transpose(*group, x[0], x[1]) {
            ConvTranspose::Direct => vec![0],
            ConvTranspose::Columns(tile) => {
                [vec![1, tile.rows], product(tile.extents(*group, x[0], x[1]), 1)].concat()
            }
        },
        Convolution::ConvWeightGrad { window, group } => {
            let n: usize = y[0].shape[1..].iter().product();
            let size = x[1].shape[2..].iter().product();
            let m = x[1].shape[1] / group;
            let k = match conv_weight(window, *group, x[0], x[1]) {
                ConvWeight::Pointwise => size,
                ConvWeight::Columns(tile) => tile.positions,
            };
            [vec![k, size], product(Extents { m, k, n }, 1)].concat()
        }
    }
}

/// True for the order of a product that the packing library sums, all of it in one go.
pub(super) fn is_by_packing_library(order: &[usize]) -> bool {
    order == [Route::Library as usize, 1]
}

/// The order of a product's sums, whose terms are cut into `parts`.
fn product(e: Extents, parts: usize) -> Vec<usize> {
    let depth = e.k / parts.max(1);
    // The last part also takes what is left over.
    let last = e.k - (parts.max(1) - 1) * depth;
    let routes = [depth, last].map(|k| Extents { k, ..e }.route());
    if routes == [Route::Library; 2] && parts <= 1 {
        return vec![Route::Library as usize, 1];
    }
    // Plain loops differ where rows or columns are dense because there is but one.
    let dense = [usize::from(e.m == 1), usize::from(e.n == 1)];
    [routes.map(|r| r as usize).as_slice(), &[parts], &dense].concat()
}

/// The same for products that are scaled: the library rounds what it scales before it adds it
/// at the edges of its tiles, and only then, so that the extents decide.
fn scaled(alpha: f32, e: Extents, parts: usize) -> Vec<usize> {
    let exact = alpha.abs() == 1.0;
    let edges = if exact { Vec::new() } else { vec![e.m, e.n] };
    [product(e, parts), edges].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, SumOrder};
    use crate::types::DType;

    fn order(op: &Op, x: &[&[usize]]) -> SumOrder {
        let x: Vec<TensorType> =
            x.iter().map(|shape| TensorType::new(DType::F32, shape.to_vec())).collect();
        let x: Vec<&TensorType> = x.iter().collect();
        let y = op.infer(&x).unwrap_or_else(|e| panic!("{e}"));
        op.sum_order(Backend::CPU, &x, &y.iter().collect::<Vec<_>>()).unwrap()
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
