//! The CPU's backend.

pub mod attention;
pub mod depthwise;
pub mod shifted;
pub mod sums;
pub mod tiling;
pub mod winograd;

use crate::exchange::{Exchange, Sizes};
use crate::reduce::reduce;
use arenic_ir::TargetInfo;
use arenic_ir::backend::{Kernels, SumOrder};
use arenic_ir::op::families::{
    Attention, Convolution, Elementwise, Indexing, Norm, Pool, Product, Recurrent, Reducing,
    Resizing, Softmax, Wrapping,
};
use arenic_ir::op::{Extents, Family, Op, Reduction, channels_last};
use arenic_ir::types::{DType, TensorType, has_bf16};
use shifted::Shifted;
use sums::product;
use tiling::{
    Conv, ConvTranspose, ConvWeight, GRU_STATES, LSTM_GRAD_STATES, LSTM_STATES, ProductUpdate,
    RNN_GRAD_STATES, channel_sums, channels, conv, conv_transpose, conv_weight, packed_for_steps,
    product_parts, product_update, rows,
};

/// The CPU.
pub(crate) struct Cpu;

/// The messages of exchanges between ranks: through memory that caches hold.
pub const MESSAGES: Sizes = Sizes { messages: 256 << 10, direct: 8 << 10 };

impl Kernels for Cpu {
    fn takes(&self, op: &Op, _: &[&TensorType], _: &[&TensorType]) -> bool {
        !matches!(op, Op::Opaque { .. })
    }

    fn scratch_bytes(&self, op: &Op, _: TargetInfo, x: &[&TensorType], y: &[&TensorType]) -> u64 {
        let all = || x.iter().chain(y).copied();
        if takes_bf16(op) || !has_bf16(all().map(|t| t.dtype)) {
            return own_scratch_bytes(op, x, y);
        }
        let read = x.iter().enumerate().filter(|&(i, _)| widens(op, x.len(), i)).map(|(_, t)| *t);
        let narrow = read.chain(y.iter().copied()).filter(|t| t.dtype == DType::Bf16);
        let widened = narrow.map(widened_bytes).fold(0, u64::saturating_add);
        let wide =
            |types: &[&TensorType]| types.iter().map(|t| t.accumulated()).collect::<Vec<_>>();
        let (x, y) = (wide(x), wide(y));
        let [x, y] = [&x, &y].map(|t| t.iter().collect::<Vec<_>>());
        widened.saturating_add(own_scratch_bytes(op, &x, &y))
    }

    fn sum_order(&self, op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Option<SumOrder> {
        sum_order(op, x, y).map(SumOrder)
    }

    fn sum_grain(&self) -> usize {
        sums::LIBRARY_DEPTH
    }

    fn continues_sums(&self, order: &SumOrder) -> bool {
        sums::is_by_packing_library(&order.0)
    }

    fn may_use_library(&self, _: &Op, _: TargetInfo, _: &[&TensorType], _: &[&TensorType]) -> bool {
        false
    }

    fn has_tensor_cores_for(&self, _: &Op, _: TargetInfo, _: &[&TensorType]) -> bool {
        false
    }
}

/// What addresses in scratch, and of buffers, are multiples of, in bytes.
pub const ALIGN: u64 = 64;

/// True where a kernel takes `bf16` without widening whole operands.
///
/// Kernels that move elements take `bf16` as it is, and some convert what they read and write.
/// Every other one is a kernel of `f32` between conversions: operands are widened into scratch,
/// and results rounded out of it. Sound because arithmetic on `bf16` is that on `f32`, rounded
/// once.
pub fn takes_bf16(op: &Op) -> bool {
    match op.family() {
        Family::Elementwise(Elementwise::Cast { .. } | Elementwise::Pointwise { .. }) => true,
        Family::Reducing(Reducing::PointwiseReduce { .. }) => true,
        Family::Collective(_) => true,
        Family::Wrapping(Wrapping::ForEach { of, .. }) => takes_bf16(of),
        _ => op.moves_elements(),
    }
}

/// True for an operand that a kernel of `f32` is given as one, of so many: all but what products multiply, of which
/// kernels widen a block at a time.
pub fn widens(op: &Op, operands: usize, operand: usize) -> bool {
    let Family::Product(op) = op.family() else { return true };
    let first = match op {
        Product::MatMul { .. }
        | Product::Gemm { .. }
        | Product::GemmGelu { .. }
        | Product::GemmGeluGrad { .. } => 0,
        Product::ProductUpdate { .. } => operands.saturating_sub(2),
    };
    !(first..first + 2).contains(&operand)
}

/// Bytes of scratch that a tensor takes as `f32`, up to where the next one begins.
pub fn widened_bytes(ty: &TensorType) -> u64 {
    ty.accumulated().bytes().next_multiple_of(ALIGN)
}

/// Bytes of scratch that a tensor takes whose channels are moved, up to where the next one begins.
pub fn moved_bytes(ty: &TensorType) -> u64 {
    ty.bytes().next_multiple_of(ALIGN)
}

/// Bytes of scratch of a kernel on types that it takes as they are.
fn own_scratch_bytes(op: &Op, x: &[&TensorType], y: &[&TensorType]) -> u64 {
    let (elements, dtype) = match op.family() {
        // No kernel of these families has any.
        Family::Movement(_)
        | Family::Indexing(_)
        | Family::Elementwise(_)
        | Family::Random(_)
        | Family::Softmax(_)
        | Family::Pool(_)
        | Family::Update(_)
        | Family::Opaque(_) => return 0,
        Family::Convolution(op) => (scratch_of_convolution(op, x, y) as u64, y[0].dtype),
        Family::Product(op) => match scratch_of_product(op, x, y) {
            Some(elements) => (elements as u64, y[0].dtype),
            None => return 0,
        },
        Family::Reducing(op) => {
            let (x, f, axes) = op.reduction(x);
            let plan = reduce(&x, axes);
            if plan.parts == 1 {
                return 0;
            }
            let wide = f == Reduction::Mean && x.dtype.is_int();
            (plan.partial_results(plan.parts), if wide { DType::I64 } else { x.dtype })
        }
        Family::Norm(op) => {
            let elements = match op {
                Norm::LayerNorm { .. } | Norm::LayerNormInputGrad { .. } => 0,
                Norm::LayerNormParamGrad { axis } => channel_sums(rows(x[0], *axis)).elements(2),
                Norm::BatchNorm { .. } => {
                    let stats = 2 * x[0].shape[1] as u64;
                    stats.saturating_add(channel_sums(channels(x[0])).elements(2))
                }
                Norm::BatchNormParamGrad => channel_sums(channels(x[0])).elements(2),
                Norm::BatchNormInputGrad => 0,
                // It follows from the first operand alone, which both have.
                Norm::FusedNorm { of, .. } | Norm::FusedNormGrad { of, .. } => {
                    return own_scratch_bytes(of, x, y);
                }
            };
            (elements, x[0].dtype)
        }
        Family::Attention(op) => {
            let tiling = attention::tiling(op.spec(), x);
            let elements = match op {
                Attention::Attention { .. } => tiling.forward_elements(),
                Attention::AttentionGrad { .. } => {
                    tiling.gradient_elements(op.trained_mask(x).map(|mask| tiling.mask_sums(mask)))
                }
            };
            (elements as u64, y.first().map_or(x[0].dtype, |t| t.dtype))
        }
        Family::Recurrent(op) => {
            let of = op.extents(x[0]);
            let packed = op.products(of).into_iter().map(|e| packed_for_steps(of, x[0].dtype, e));
            let packed = packed.flatten().fold(0, usize::saturating_add);
            let elements = of.state().saturating_mul(states(op)).saturating_add(packed);
            (elements as u64, x[0].dtype)
        }
        Family::Resizing(Resizing::Resize { spec }) => {
            return spec.table_bytes(0..spec.sizes.len());
        }
        Family::Collective(op) => {
            // What is packed, and what is received.
            let messages = |e: Exchange| (e.sent + e.ranks).saturating_mul(e.piece);
            (Exchange::new(op, x, MESSAGES).map_or(0, messages) as u64, x[0].dtype)
        }
        Family::Wrapping(Wrapping::ForEach { .. }) => return 0,
        Family::Wrapping(Wrapping::ChannelsLast { of }) => {
            let moved = x.iter().chain(y).filter(|t| channels_last::is_turned(t));
            let moved = moved.map(|t| moved_bytes(t)).fold(0, u64::saturating_add);
            let own = |x: &[&TensorType], y: &[&TensorType]| own_scratch_bytes(of, x, y);
            return moved.saturating_add(channels_last::as_first(x, y, own));
        }
    };
    elements.saturating_mul(dtype.size())
}

fn scratch_of_convolution(op: Convolution, x: &[&TensorType], y: &[&TensorType]) -> usize {
    match op {
        Convolution::Conv { window, group } => match conv(window, *group, x[0], x[1], y[0]) {
            Conv::Columns(c) => c.elements(),
            Conv::Shifted(s) => s.elements(),
            Conv::Winograd(s) => s.elements(),
            Conv::Whole => {
                let inner = x[1].shape[1..].iter().product();
                partial_results(y[0].elements(), inner)
            }
            Conv::Pointwise | Conv::Depthwise(_) | Conv::Direct => 0,
        },
        Convolution::ConvTranspose { window, group, .. } => {
            match conv_transpose(window, *group, x[0], x[1], y[0]) {
                ConvTranspose::Columns(c) => c.elements(),
                ConvTranspose::Winograd(s) => s.elements(),
                ConvTranspose::Shifted(parts) => {
                    parts.iter().map(Shifted::elements).max().unwrap_or(0)
                }
                ConvTranspose::Pointwise | ConvTranspose::Depthwise(_) | ConvTranspose::Direct => 0,
            }
        }
        Convolution::ConvWeightGrad { window, group } => {
            match conv_weight(window, *group, x[0], x[1]) {
                ConvWeight::Columns(c) => c.elements(),
                ConvWeight::Shifted(s) => s.elements(),
                ConvWeight::Winograd(s) => s.elements(),
                ConvWeight::Pointwise(s) => s.elements(),
                ConvWeight::Depthwise(_) => 0,
            }
        }
    }
}

/// `None` if there is no result, or too few operands.
fn scratch_of_product(op: Product, x: &[&TensorType], y: &[&TensorType]) -> Option<usize> {
    let results = y.first()?.elements();
    Some(match op {
        Product::MatMul { trans_a, .. }
        | Product::Gemm { trans_a, .. }
        | Product::GemmGelu { trans_a, .. }
        | Product::GemmGeluGrad { trans_a, .. } => {
            let a = &x[0].shape;
            partial_results(results, a[a.len() - if *trans_a { 2 } else { 1 }])
        }
        Product::ProductUpdate { trans_a, .. } => {
            let a = x[x.len().checked_sub(2)?];
            product_update(results, a.shape[usize::from(!*trans_a)]).elements()
        }
    })
}

/// Elements of a product's partial results; 0 where each is one sum.
fn partial_results(results: usize, k: usize) -> usize {
    match product_parts(results, k) {
        1 => 0,
        parts => parts.saturating_mul(results),
    }
}

/// States in the scratch of a recurrence's kernel: a step's gates, should nobody read them, and
/// what goes from step to step.
fn states(op: Recurrent) -> usize {
    let states = match op {
        Recurrent::Lstm { .. } => &LSTM_STATES[..],
        Recurrent::LstmGrad { .. } => &LSTM_GRAD_STATES,
        Recurrent::Gru { .. } | Recurrent::GruGrad { .. } => &GRU_STATES,
        Recurrent::RnnGrad { .. } => &RNN_GRAD_STATES,
        Recurrent::Rnn { .. } => &[],
    };
    states.iter().sum()
}

/// The order of an operator's sums; `None` if it is unknown.
fn sum_order(op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Option<Vec<usize>> {
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
            // It follows from the first operand alone, which both have.
            Norm::FusedNorm { of, .. } | Norm::FusedNormGrad { of, .. } => {
                return of_accumulated(of, x, y);
            }
        },
        Family::Product(op) => order_of_product(op, x, y)?,
        Family::Convolution(op) => order_of_convolution(op, x, y),
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
            Attention::AttentionGrad { spec, .. } => {
                let tiling = attention::tiling(spec, x);
                let of_mask = op.trained_mask(x).map(|mask| tiling.mask_sums(mask).parts);
                [tiling.parts].into_iter().chain(of_mask).collect()
            }
        },
        Family::Recurrent(op) => {
            let of = op.extents(x[0]);
            let of_step = op.products(of).into_iter();
            let order = |e| match packed_for_steps(of, x[0].dtype, e) {
                Some(_) => sums::ONE_BY_ONE.to_vec(),
                None => product(e, 1),
            };
            of_step.flat_map(order).collect()
        }
        Family::Wrapping(op) => match op {
            Wrapping::ChannelsLast { of } => {
                return channels_last::as_first(x, y, |x, y| of_accumulated(of, x, y));
            }
            Wrapping::ForEach { .. } => NONE,
        },
        // Collectives are in no cut.
        Family::Collective(_) | Family::Opaque(_) => return None,
    })
}

fn order_of_product(op: Product, x: &[&TensorType], y: &[&TensorType]) -> Option<Vec<usize>> {
    Some(match op {
        Product::MatMul { trans_a, trans_b } => {
            let (_, e) = Extents::of_mat_mul([x[0], x[1], y[0]], *trans_a, *trans_b);
            product(e, product_parts(y[0].elements(), e.k))
        }
        Product::Gemm { trans_a, trans_b, .. } => {
            let e = Extents::of_gemm(x[0], x[1], *trans_a, *trans_b);
            product(e, product_parts(y[0].elements(), e.k))
        }
        Product::GemmGelu { trans_a, trans_b } | Product::GemmGeluGrad { trans_a, trans_b } => {
            let e = Extents::of_gemm(x[0], x[1], *trans_a, *trans_b);
            product(e, product_parts(y[0].elements(), e.k))
        }
        Product::ProductUpdate { trans_a, trans_b, .. } => {
            let [.., a, b] = x else { return None };
            let e = Extents::of_gemm(a, b, *trans_a, *trans_b);
            let parts = match product_update(e.m * e.n, e.k) {
                ProductUpdate::Tiles { .. } => 1,
                ProductUpdate::Parts { parts, .. } => parts,
            };
            product(e, parts)
        }
    })
}

fn order_of_convolution(op: Convolution, x: &[&TensorType], y: &[&TensorType]) -> Vec<usize> {
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
                // The bias, then channels and taps one after another.
                Conv::Shifted(_) => vec![4],
                // Channels one after another, then the bias.
                Conv::Winograd(_) => vec![6],
                Conv::Depthwise(_) => vec![5],
            }
        }
        Convolution::ConvTranspose { window, group, .. } => {
            match conv_transpose(window, *group, x[0], x[1], y[0]) {
                ConvTranspose::Direct => vec![0],
                ConvTranspose::Columns(tile) => {
                    [vec![1, tile.rows], product(tile.extents(*group, x[0], x[1]), 1)].concat()
                }
                ConvTranspose::Shifted(_) => vec![2],
                ConvTranspose::Winograd(_) => vec![5],
                ConvTranspose::Depthwise(_) => vec![3],
                ConvTranspose::Pointwise => {
                    let (m, k) = (x[1].shape[1], x[0].shape[1] / group);
                    let n = y[0].shape[2..].iter().product();
                    [vec![4], product(Extents { m, k, n }, 1)].concat()
                }
            }
        }
        Convolution::ConvWeightGrad { window, group } => {
            let n: usize = y[0].shape[1..].iter().product();
            let size = x[1].shape[2..].iter().product();
            let m = x[1].shape[1] / group;
            let (k, parts) = match conv_weight(window, *group, x[0], x[1]) {
                ConvWeight::Pointwise(sum) => (sum.positions, sum.parts),
                ConvWeight::Columns(tile) => (tile.positions, 1),
                ConvWeight::Depthwise(plan) => {
                    return vec![usize::MAX, plan.axes[0].positions, plan.band, plan.pitch];
                }
                ConvWeight::Winograd(way) => {
                    return vec![usize::MAX - 1, way.some_tiles];
                }
                ConvWeight::Shifted(tile) => {
                    return vec![tile.images, tile.grid.axes[0].output, tile.block()];
                }
            };
            [vec![k, size, parts], product(Extents { m, k, n }, 1)].concat()
        }
    }
}
