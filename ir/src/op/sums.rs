//! In which order kernels add up what makes one element of a result.
//!
//! Kernels choose by extents: on the CPU a packing library or plain loops, one sum or partial
//! ones; on a GPU how many threads and blocks share a sum.
//! These choices are made here, where kernels ask for them and where it can be told whether
//! an operator and a part of it (see [`Op::cuts`]) give an element the same bits.

use super::scratch::cuda;
use super::scratch::{
    Conv, ConvTranspose, ConvWeight, ProductUpdate, attention, channel_sums, channels, conv,
    conv_transpose, conv_weight, product_parts, product_update, reduce, rows,
};
use super::{Assembly, Cut, Extents, Family, Op, channels_last};
use crate::target::Backend;
use crate::types::{DType, TensorType};

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

/// The order of an operator's sums. Where it is the same for two operators that differ only in
/// the extents of axes along which nothing is summed, so are the bits of their elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumOrder(Vec<usize>);

impl Op {
    /// The order of this operator's sums by a backend's kernels; `None` if it is unknown, as it is
    /// where a library may compute the operator. No cut of such an operator keeps bits.
    pub fn sum_order(
        &self,
        backend: Backend,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> Option<SumOrder> {
        match backend {
            Backend::Cpu => {
                let [x, y] = [x, y].map(accumulated);
                self.cpu_sum_order(&x.iter().collect::<Vec<_>>(), &y.iter().collect::<Vec<_>>())
            }
            Backend::Cuda => cuda::sum_order(self, x, y),
        }
        .map(SumOrder)
    }

    /// Empty for operators that have no sums, or whose sums have one order at every extent.
    fn cpu_sum_order(&self, x: &[&TensorType], y: &[&TensorType]) -> Option<Vec<usize>> {
        Some(match self {
            Op::MatMul { trans_a, trans_b } => {
                let (_, e) = Extents::of_mat_mul([x[0], x[1], y[0]], *trans_a, *trans_b);
                product(e, product_parts(y[0].elements(), e.k))
            }
            Op::Gemm { alpha, trans_a, trans_b, .. } => {
                let e = Extents::of_gemm(x[0], x[1], *trans_a, *trans_b);
                scaled(*alpha, e, product_parts(y[0].elements(), e.k))
            }
            Op::GemmGelu { trans_a, trans_b } | Op::GemmGeluGrad { trans_a, trans_b } => {
                let e = Extents::of_gemm(x[0], x[1], *trans_a, *trans_b);
                product(e, product_parts(y[0].elements(), e.k))
            }
            Op::ProductUpdate { alpha, trans_a, trans_b, .. } => {
                let [.., a, b] = x else { return None };
                let e = Extents::of_gemm(a, b, *trans_a, *trans_b);
                let parts = match product_update(e.m * e.n, e.k) {
                    ProductUpdate::Tiles { .. } => 1,
                    ProductUpdate::Parts { parts, .. } => parts,
                };
                scaled(*alpha, e, parts)
            }
            Op::Conv { window, group } => {
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
            Op::ConvTranspose { group, .. } => match conv_transpose(*group, x[0], x[1]) {
                ConvTranspose::Direct => vec![0],
                ConvTranspose::Columns(tile) => {
                    [vec![1, tile.rows], product(tile.extents(*group, x[0], x[1]), 1)].concat()
                }
            },
            Op::ConvWeightGrad { window, group } => {
                let n: usize = y[0].shape[1..].iter().product();
                let size = x[1].shape[2..].iter().product();
                let m = x[1].shape[1] / group;
                let k = match conv_weight(window, *group, x[0], x[1]) {
                    ConvWeight::Pointwise => size,
                    ConvWeight::Columns(tile) => tile.positions,
                };
                [vec![k, size], product(Extents { m, k, n }, 1)].concat()
            }
            Op::Reduce { .. } | Op::PointwiseReduce { .. } => {
                let (x, _, axes) = self.reduction(x)?;
                let plan = reduce(&x, axes);
                let reduced = (0..plan.rank).filter(|&i| plan.reduced(i));
                let extents = reduced.map(|i| plan.extents[i]);
                [usize::from(plan.inner_reduced), plan.parts].into_iter().chain(extents).collect()
            }
            Op::ChannelsLast { of } => {
                return channels_last::as_first(x, y, |x, y| of.cpu_sum_order(x, y));
            }
            Op::AttentionGrad { .. } => vec![attention::tiling(x[0], x[1], x[2]).parts],
            Op::LayerNormParamGrad { axis } => vec![channel_sums(rows(x[0], *axis)).parts],
            Op::BatchNorm { .. } | Op::BatchNormParamGrad => {
                vec![channel_sums(channels(x[0])).parts]
            }
            Op::Lstm { .. }
            | Op::LstmGrad { .. }
            | Op::Gru { .. }
            | Op::GruGrad { .. }
            | Op::Rnn { .. }
            | Op::RnnGrad { .. } => {
                let Family::Recurrent(op) = self.family() else { return None };
                op.products(op.extents(x[0])).into_iter().flat_map(|e| product(e, 1)).collect()
            }
            // Along the last axis by rows, else by columns.
            Op::Softmax { axis }
            | Op::LogSoftmax { axis }
            | Op::SoftmaxGrad { axis }
            | Op::LogSoftmaxGrad { axis } => {
                let inner: usize = x[0].shape[axis + 1..].iter().product();
                vec![usize::from(inner == 1)]
            }
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
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::TopK { .. }
            | Op::Cast { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Where
            | Op::Clip { .. }
            | Op::Pointwise { .. }
            | Op::Dropout { .. }
            | Op::RandomUniform { .. }
            | Op::SoftmaxOfStats
            | Op::CrossEntropyGrad
            | Op::BatchNormInputGrad
            | Op::MaxPool { .. }
            | Op::AveragePool { .. }
            | Op::MaxPoolGrad { .. }
            | Op::AveragePoolGrad { .. }
            | Op::Resize { .. }
            | Op::Adam { .. }
            | Op::Adagrad { .. }
            | Op::Momentum { .. }
            // Sums along axes that are in no cut, of which each row has its own.
            | Op::Attention { .. }
            | Op::LogSoftmaxStats
            | Op::LayerNorm { .. }
            | Op::LayerNormInputGrad { .. } => Vec::new(),
            Op::Opaque { .. } => return None,
        })
    }

    /// True where the whole that is put together from the parts of a cut, which end at
    /// `ends`, has the bits of the uncut operator.
    pub fn cut_keeps_bits(
        &self,
        backend: Backend,
        cut: &Cut,
        ends: &[usize],
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> bool {
        if !cut.keeps_bits {
            return false;
        }
        let Some(whole) = self.sum_order(backend, x, y) else { return false };
        let mut first = 0;
        let mut extents: Vec<usize> =
            ends.iter().map(|&end| end - std::mem::replace(&mut first, end)).collect();
        let accumulates = cut.results.contains(&Assembly::Accumulate);
        // On a GPU a part's sum is finished before it is added.
        // A part of a sum in `bf16` is rounded before the next is added.
        let narrow = y.iter().any(|t| t.dtype == DType::Bf16);
        if accumulates && (narrow || backend == Backend::Cuda) {
            return false;
        }
        if accumulates && !extents.iter().rev().skip(1).all(|e| e.is_multiple_of(LIBRARY_DEPTH)) {
            return false;
        }
        extents.sort_unstable();
        extents.dedup();
        extents.into_iter().all(|extent| {
            let part = |(t, &axis): (&&TensorType, &Option<usize>)| match axis {
                Some(axis) => t.with_extent(axis, extent),
                None => (*t).clone(),
            };
            let operands: Vec<TensorType> = x.iter().zip(&cut.operands).map(part).collect();
            let operands: Vec<&TensorType> = operands.iter().collect();
            let op = self.part(cut, extent);
            let Ok(results) = op.infer(&operands) else { return false };
            let order = op.sum_order(backend, &operands, &results.iter().collect::<Vec<_>>());
            order.is_some_and(|order| {
                order == whole && (!accumulates || order.is_by_packing_library())
            })
        })
    }
}

/// The types that sums are taken in.
fn accumulated(types: &[&TensorType]) -> Vec<TensorType> {
    types.iter().map(|t| t.accumulated()).collect()
}

impl SumOrder {
    /// A product that is summed by the CPU's library, all of it in one go.
    fn is_by_packing_library(&self) -> bool {
        self.0 == [Route::Library as usize, 1]
    }
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

    fn order(op: &Op, x: &[&[usize]]) -> SumOrder {
        let x: Vec<TensorType> =
            x.iter().map(|shape| TensorType::new(DType::F32, shape.to_vec())).collect();
        let x: Vec<&TensorType> = x.iter().collect();
        let y = op.infer(&x).unwrap_or_else(|e| panic!("{e}"));
        op.sum_order(Backend::Cpu, &x, &y.iter().collect::<Vec<_>>()).unwrap()
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
