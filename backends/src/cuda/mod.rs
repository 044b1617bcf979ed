//! The CUDA backend. Scratch is enough for our own kernels, and for a library's workspace where one
//! may compute the operator.

pub mod library;
pub mod tiling;

use crate::CUDA;
use crate::exchange::{Exchange, Sizes};
use crate::reduce::{self, ReducePlan};
use arenic_ir::TargetInfo;
use arenic_ir::backend::{Kernels, SumOrder};
use arenic_ir::op::families::{
    Attention, Collective, Convolution, Elementwise, Indexing, Movement, Norm, Opaque, Pool,
    Product, Random, Recurrent, Reducing, Resizing, Softmax, Update, Wrapping,
};
use arenic_ir::op::{Extents, Family, Op, Reduction, channels_last};
use arenic_ir::types::{DType, TensorType, has_bf16};
use library::LibraryCall;
use tiling::{
    AttentionCore, Sharing, Tiling, attention_tile, channel_sums, partial_sums, product_parts,
    row_lanes, row_sums,
};

/// A GPU, by CUDA.
pub(crate) struct Cuda;

/// The messages of exchanges between ranks: so large that links between GPUs are busy for longer than
/// it takes to begin.
pub const MESSAGES: Sizes = Sizes { messages: 16 << 20, direct: 64 << 10 };

impl Kernels for Cuda {
    fn takes(&self, op: &Op, x: &[&TensorType], y: &[&TensorType]) -> bool {
        let has_tile = match op.family() {
            Family::Attention(op) => attention_tile(op, x).is_some(),
            _ => true,
        };
        has_tile
            && match kernel_types(op) {
                KernelTypes::None => false,
                KernelTypes::NotBf16 => !has_bf16(x.iter().chain(y).map(|t| t.dtype)),
                KernelTypes::All => true,
            }
    }

    fn scratch_bytes(
        &self,
        op: &Op,
        target: TargetInfo,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> u64 {
        let of_library = match library::call(op, target.math, x, y) {
            Ok(call) => call.made_bytes().saturating_add(workspace(&call, op, target, x, y)),
            Err(_) => 0,
        };
        own_scratch_bytes(op, x, y).max(of_library)
    }

    /// How many parts a sum has, how long each is, and how many threads share it.
    fn sum_order(&self, op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Option<SumOrder> {
        match self.may_use_library(op, CUDA.target(), x, y) {
            true => None,
            false => own_sum_order(op, x, y).map(SumOrder),
        }
    }

    fn sum_grain(&self) -> usize {
        tiling::LEAST_TERMS
    }

    /// A part's sum is finished before it is added.
    fn continues_sums(&self, _: &SumOrder) -> bool {
        false
    }

    fn may_use_library(
        &self,
        op: &Op,
        target: TargetInfo,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> bool {
        library::call(op, target.math, x, y).is_ok()
    }

    fn has_tensor_cores_for(&self, op: &Op, target: TargetInfo, x: &[&TensorType]) -> bool {
        let is_attention = matches!(op, Op::Attention { .. } | Op::AttentionGrad { .. });
        is_attention && tiling::attention_core(x[0].dtype, target.math) != AttentionCore::Fma
    }
}

/// True where there is a kernel for `bf16` operands or results.
pub fn takes_bf16(op: &Op) -> bool {
    kernel_types(op) == KernelTypes::All
}

/// What an operator's kernels take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelTypes {
    /// There is no kernel.
    None,
    /// All that the operator has, but no `bf16`.
    NotBf16,
    /// All that the operator has.
    All,
}

/// What the kernels of an operator take. No operator has any by default.
fn kernel_types(op: &Op) -> KernelTypes {
    use KernelTypes::{All, None, NotBf16};
    match op.family() {
        Family::Movement(op) => match op {
            Movement::Reshape { .. }
            | Movement::Slice { .. }
            | Movement::Pad { .. }
            | Movement::Transpose { .. }
            | Movement::Expand { .. }
            | Movement::Concat { .. }
            | Movement::Copy => All,
        },
        Family::Indexing(of) => match of {
            Indexing::Gather { .. }
            | Indexing::GatherElements { .. }
            | Indexing::GatherNd { .. }
            | Indexing::ScatterElements { .. }
            | Indexing::ScatterNd { .. } => match op.moves_elements() {
                true => All,
                false => NotBf16,
            },
            Indexing::TopK { .. } => NotBf16,
        },
        Family::Elementwise(op) => match op {
            Elementwise::Cast { .. }
            | Elementwise::Unary { .. }
            | Elementwise::Binary { .. }
            | Elementwise::Where
            | Elementwise::Clip { .. }
            | Elementwise::Pointwise { .. } => All,
        },
        Family::Random(op) => match op {
            Random::Dropout { .. } => All,
            Random::RandomUniform { .. } => NotBf16,
        },
        Family::Reducing(op) => match op {
            Reducing::Reduce { .. } | Reducing::PointwiseReduce { .. } => All,
        },
        Family::Softmax(op) => match op {
            Softmax::Softmax { .. }
            | Softmax::LogSoftmax { .. }
            | Softmax::SoftmaxGrad { .. }
            | Softmax::LogSoftmaxGrad { .. }
            | Softmax::LogSoftmaxStats
            | Softmax::SoftmaxOfStats
            | Softmax::CrossEntropyGrad => All,
        },
        Family::Norm(op) => match op {
            Norm::LayerNorm { .. }
            | Norm::LayerNormParamGrad { .. }
            | Norm::LayerNormInputGrad { .. }
            | Norm::BatchNorm { .. }
            | Norm::BatchNormParamGrad
            | Norm::BatchNormInputGrad
            | Norm::FusedNorm { .. }
            | Norm::FusedNormGrad { .. } => All,
        },
        Family::Product(op) => match op {
            Product::MatMul { .. }
            | Product::Gemm { .. }
            | Product::GemmGelu { .. }
            | Product::GemmGeluGrad { .. }
            | Product::ProductUpdate { .. } => All,
        },
        Family::Convolution(op) => match op {
            Convolution::Conv { .. }
            | Convolution::ConvTranspose { .. }
            | Convolution::ConvWeightGrad { .. } => All,
        },
        Family::Pool(op) => match op {
            Pool::MaxPool { .. }
            | Pool::AveragePool { .. }
            | Pool::MaxPoolGrad { .. }
            | Pool::AveragePoolGrad { .. } => All,
        },
        Family::Resizing(op) => match op {
            Resizing::Resize { .. } => NotBf16,
        },
        Family::Attention(op) => match op {
            Attention::Attention { .. } | Attention::AttentionGrad { .. } => All,
        },
        Family::Recurrent(op) => match op {
            Recurrent::Lstm { .. }
            | Recurrent::LstmGrad { .. }
            | Recurrent::Gru { .. }
            | Recurrent::GruGrad { .. }
            | Recurrent::Rnn { .. }
            | Recurrent::RnnGrad { .. } => NotBf16,
        },
        Family::Update(op) => match op {
            Update::Adam { .. } | Update::Adagrad { .. } | Update::Momentum { .. } => NotBf16,
        },
        Family::Wrapping(op) => match op {
            Wrapping::ChannelsLast { of } | Wrapping::ForEach { of, .. } => kernel_types(of),
        },
        Family::Collective(op) => match op {
            Collective::AllReduce { .. }
            | Collective::ReduceScatter { .. }
            | Collective::AllGather { .. }
            | Collective::OwnPart { .. } => All,
        },
        Family::Opaque(op) => match op {
            Opaque::Opaque { .. } => None,
        },
    }
}

/// Bytes of scratch that our own kernels of an operator need.
fn own_scratch_bytes(op: &Op, x: &[&TensorType], y: &[&TensorType]) -> u64 {
    match op.family() {
        // No kernel of these families has any.
        Family::Movement(_)
        | Family::Indexing(_)
        | Family::Elementwise(_)
        | Family::Random(_)
        | Family::Softmax(_)
        | Family::Pool(_)
        | Family::Update(_)
        | Family::Opaque(_) => 0,
        Family::Collective(op) => {
            // Terms as they come from every rank. Parts that are gathered come where they belong.
            let exchange = Exchange::new(op, x, MESSAGES);
            let sums = exchange.filter(|_| !matches!(op, Collective::AllGather { .. }));
            let elements = sums.map_or(0, |e| e.ranks.saturating_mul(e.piece));
            (elements as u64).saturating_mul(x[0].dtype.size())
        }
        Family::Product(op) => partial_results(of_product(op, x, y), y),
        Family::Convolution(op) => partial_results(Some(of_convolution(op, x, y)), y),
        Family::Reducing(op) => {
            let (x, f, axes) = op.reduction(x);
            let wide = f == Reduction::Mean && x.dtype.is_int();
            let size = if wide { DType::I64 } else { x.dtype.accumulated() }.size();
            partial_sums(&reduce::reduce(&x, axes)).saturating_mul(size)
        }
        Family::Norm(op) => {
            let elements = match op {
                Norm::LayerNorm { .. } | Norm::LayerNormInputGrad { .. } => 0,
                Norm::LayerNormParamGrad { axis } => {
                    partial_sums(&row_sums(x[0], *axis)).saturating_mul(2)
                }
                Norm::BatchNorm { .. } => {
                    let partial = partial_sums(&channel_sums(x[0]));
                    partial.saturating_add(2 * x[0].shape[1] as u64)
                }
                Norm::BatchNormParamGrad => partial_sums(&channel_sums(x[0])).saturating_mul(2),
                Norm::BatchNormInputGrad => 0,
                // It follows from the first operand alone, which both have.
                Norm::FusedNorm { of, .. } | Norm::FusedNormGrad { of, .. } => {
                    return own_scratch_bytes(of, x, y);
                }
            };
            elements.saturating_mul(x[0].dtype.accumulated().size())
        }
        Family::Attention(op) => match op {
            Attention::Attention { .. } => 0,
            // Of every row the sum of its probabilities times their gradients, and parts of a mask's.
            Attention::AttentionGrad { .. } => {
                let of_mask = tiling::mask_sums(op, x).map_or(0, |sums| sums.partial_elements());
                x[3].bytes().saturating_add(of_mask.saturating_mul(x[3].dtype.size()))
            }
        },
        Family::Recurrent(op) => {
            let elements = op.extents(x[0]).state().saturating_mul(states(op)) as u64;
            elements.saturating_mul(x[0].dtype.size())
        }
        Family::Resizing(Resizing::Resize { spec }) => {
            spec.table_bytes((0..spec.sizes.len()).filter(|&a| !spec.keeps(a, x[0].shape[a])))
        }
        Family::Wrapping(Wrapping::ForEach { .. }) => 0,
        Family::Wrapping(Wrapping::ChannelsLast { of }) => {
            channels_last::as_first(x, y, |x, y| own_scratch_bytes(of, x, y))
        }
    }
}

fn own_sum_order(op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Option<Vec<usize>> {
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
            reduction_order(&reduce::reduce(&x, axes))
        }
        Family::Softmax(op) => match op {
            Softmax::Softmax { axis }
            | Softmax::LogSoftmax { axis }
            | Softmax::SoftmaxGrad { axis }
            | Softmax::LogSoftmaxGrad { axis } => vec![row_lanes(x[0], *axis..axis + 1)],
            Softmax::LogSoftmaxStats => {
                let last = x[0].rank().saturating_sub(1);
                vec![row_lanes(x[0], last..x[0].rank())]
            }
            Softmax::SoftmaxOfStats | Softmax::CrossEntropyGrad => NONE,
        },
        Family::Norm(op) => match op {
            Norm::LayerNorm { axis, .. } | Norm::LayerNormInputGrad { axis } => {
                vec![row_lanes(x[0], *axis..x[0].rank())]
            }
            Norm::LayerNormParamGrad { axis } => reduction_order(&row_sums(x[0], *axis)),
            Norm::BatchNorm { .. } | Norm::BatchNormParamGrad => {
                reduction_order(&channel_sums(x[0]))
            }
            Norm::BatchNormInputGrad => NONE,
            // It follows from the first operand alone, which both have.
            Norm::FusedNorm { of, .. } | Norm::FusedNormGrad { of, .. } => {
                return own_sum_order(of, x, y);
            }
        },
        Family::Product(op) => product_order(of_product(op, x, y)?),
        Family::Convolution(op) => product_order(of_convolution(op, x, y)),
        Family::Pool(op) => match op {
            Pool::MaxPool { .. }
            | Pool::AveragePool { .. }
            | Pool::MaxPoolGrad { .. }
            | Pool::AveragePoolGrad { .. } => NONE,
        },
        Family::Resizing(op) => match op {
            Resizing::Resize { .. } => NONE,
        },
        // Along axes that are in no cut, so that each row has its own; but for a mask's.
        Family::Attention(op) => match op {
            Attention::Attention { .. } => NONE,
            Attention::AttentionGrad { .. } => {
                tiling::mask_sums(op, x).map(|sums| sums.parts).into_iter().collect()
            }
        },
        Family::Recurrent(op) => match op {
            Recurrent::Lstm { .. }
            | Recurrent::LstmGrad { .. }
            | Recurrent::Gru { .. }
            | Recurrent::GruGrad { .. }
            | Recurrent::Rnn { .. }
            | Recurrent::RnnGrad { .. } => NONE,
        },
        Family::Wrapping(Wrapping::ForEach { .. }) => NONE,
        Family::Wrapping(Wrapping::ChannelsLast { of }) => {
            let of = |x: &[&TensorType], y: &[&TensorType]| Cuda.sum_order(of, x, y);
            return channels_last::as_first(x, y, of).map(|order| order.0);
        }
        Family::Collective(_) | Family::Opaque(_) => return None,
    })
}

/// Sums of products: batches, then rows, columns and terms of each.
type Contraction = (usize, [usize; 3]);

/// The order of the sums of a contraction.
fn product_order((batches, extents): Contraction) -> Vec<usize> {
    vec![product_parts(batches, extents), extents[2]]
}

/// `None` if there are too few operands.
fn of_product(op: Product, x: &[&TensorType], y: &[&TensorType]) -> Option<Contraction> {
    let gemm = |a, b, trans_a: bool, trans_b: bool| {
        let e = Extents::of_gemm(a, b, trans_a, trans_b);
        (1, [e.m, e.n, e.k])
    };
    Some(match op {
        Product::MatMul { trans_a, trans_b } => {
            let (batches, e) = Extents::of_mat_mul([x[0], x[1], y[0]], *trans_a, *trans_b);
            (batches.max(1), [e.m, e.n, e.k])
        }
        Product::Gemm { trans_a, trans_b, .. }
        | Product::GemmGelu { trans_a, trans_b }
        | Product::GemmGeluGrad { trans_a, trans_b } => gemm(x[0], x[1], *trans_a, *trans_b),
        Product::ProductUpdate { trans_a, trans_b, .. } => {
            let [.., a, b] = x else { return None };
            gemm(a, b, *trans_a, *trans_b)
        }
    })
}

fn of_convolution(op: Convolution, x: &[&TensorType], y: &[&TensorType]) -> Contraction {
    let windowed = |group: usize, k: usize| {
        let channels = y[0].shape[1];
        (group, [channels / group, y[0].elements() / channels.max(1), k])
    };
    match op {
        Convolution::Conv { window, group } => {
            windowed(*group, x[1].shape[1].saturating_mul(window.taps()))
        }
        Convolution::ConvTranspose { window, group, .. } => {
            windowed(*group, (x[0].shape[1] / group).saturating_mul(window.taps()))
        }
        Convolution::ConvWeightGrad { group, .. } => {
            let dy = x[1];
            let filter = y[0].shape[1..].iter().product();
            let terms = dy.shape[0] * dy.shape[2..].iter().product::<usize>();
            (*group, [dy.shape[1] / group, filter, terms])
        }
    }
}

/// What NVIDIA recommends for cuBLAS on large devices, in bytes.
const USUAL_WORKSPACE: u64 = 32 << 20;

/// Bytes that a library may have beside operands and results: what the target allows, but never
/// more than a quarter of them, so that the arena is about what tensors take. Most algorithms
/// do with less; transforms of all that is read do not, and are not taken, but for that which an
/// image needs whose channels are too few for tensor cores. The gradients of an attention have what cuDNN adds
/// up those of queries in.
fn workspace(
    call: &LibraryCall,
    op: &Op,
    target: TargetInfo,
    x: &[&TensorType],
    y: &[&TensorType],
) -> u64 {
    let touched = x.iter().chain(y).map(|t| t.bytes()).fold(0, u64::saturating_add);
    let usual = (touched / 4).min(USUAL_WORKSPACE);
    let align = target.align.max(1);
    let wanted = match call {
        LibraryCall::Attention(a) => {
            let in_order = Some(a.workspace_in_order()).filter(|&bytes| bytes <= usual);
            let most = in_order.unwrap_or(0).max(a.workspace());
            most.checked_next_multiple_of(align).unwrap_or(most)
        }
        LibraryCall::Product(_) | LibraryCall::Convolution(_) => {
            usual.saturating_add(filled_up(op, x))
        }
    };
    let most = target.workspace.min(wanted);
    most - most % align
}

/// Channels that tensor cores take at once.
const CHANNELS: usize = 8;

/// Bytes of a convolution's image whose channels, which are last, are filled up to as many as tensor cores
/// take; 0 where they need not be, or are too many for that to be worth its while. cuDNN fills them up in its
/// workspace: with it ResNet-50's first convolution takes 1.8 ms on an H200 instead of 3.1 without tensor cores, and
/// its weight's gradient 1.1 instead of 5.2.
fn filled_up(op: &Op, x: &[&TensorType]) -> u64 {
    let Op::ChannelsLast { of } = op else { return 0 };
    if !matches!(**of, Op::Conv { .. } | Op::ConvWeightGrad { .. }) {
        return 0;
    }
    match x[0].shape.last() {
        Some(&channels @ 1..CHANNELS) => x[0].bytes() / channels as u64 * CHANNELS as u64,
        _ => 0,
    }
}

/// States in the scratch of a recurrence's kernels. What all threads of a step read is not what they
/// write, so that it takes the place of two steps.
fn states(op: Recurrent) -> usize {
    match op {
        Recurrent::Lstm { .. } => 3,
        Recurrent::Gru { .. } => 4,
        Recurrent::LstmGrad { .. } | Recurrent::GruGrad { .. } => 9,
        Recurrent::RnnGrad { .. } => 2,
        Recurrent::Rnn { .. } => 0,
    }
}

/// Bytes of the parts of all sums of a contraction; 0 where each sum is one part.
fn partial_results(of: Option<Contraction>, y: &[&TensorType]) -> u64 {
    let Some((batches, [m, n, k])) = of else { return 0 };
    // Sums of `bf16` are `f32`.
    let size = y.first().map_or(0, |t| t.dtype.accumulated().size());
    let elements = match product_parts(batches, [m, n, k]) {
        1 => 0,
        parts => [batches, m, n].into_iter().fold(parts, usize::saturating_mul) as u64,
    };
    elements.saturating_mul(size)
}

/// The order of a reduction's sums: of its terms and, in parts, of the parts.
fn reduction_order(plan: &ReducePlan) -> Vec<usize> {
    let first = tiling::reduce(plan);
    let order = |t: Tiling| {
        let threads = match t.sharing {
            Sharing::Lanes(lanes) => [0, lanes],
            Sharing::Columns { height, .. } => [1, height],
        };
        [threads[0], threads[1], t.terms, t.parts, t.share]
    };
    let second = if first.parts > 1 { order(first.second(plan.results)) } else { [0; 5] };
    [order(first), second].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(dtype: DType, [m, n, k]: [usize; 3]) -> (Op, [TensorType; 3]) {
        let shapes = [[m, k], [k, n], [m, n]];
        let op = Op::MatMul { trans_a: false, trans_b: false };
        (op, shapes.map(|shape| TensorType::new(dtype, shape)))
    }

    /// The order of the sums of a product of integers, which no library computes.
    fn order_of_product(extents: [usize; 3]) -> Vec<usize> {
        let (op, [a, b, y]) = product(DType::I32, extents);
        own_sum_order(&op, &[&a, &b], &[&y]).unwrap()
    }

    #[test]
    fn no_cut_of_what_a_library_may_compute_keeps_bits() {
        for (dtype, extents, known) in [
            (DType::F32, [4096, 4096, 900], false),
            (DType::F64, [64, 64, 64], false),
            (DType::F32, [8, 8, 8], true),
            (DType::I32, [4096, 4096, 900], true),
        ] {
            let (op, [a, b, y]) = product(dtype, extents);
            let (x, y) = ([&a, &b], [&y]);
            assert_eq!(Cuda.sum_order(&op, &x, &y).is_some(), known);
            let rows = &op.cuts(&x, &y)[0];
            let ends = [rows.extent / 2, rows.extent];
            assert_eq!(op.cut_keeps_bits(CUDA, rows, &ends, &x, &y), known, "{dtype:?}");
        }
    }

    #[test]
    fn workspaces_stay_below_what_is_read_and_written() {
        let bytes = |target: TargetInfo, dtype, extents| {
            let (op, [a, b, y]) = product(dtype, extents);
            op.scratch_bytes(target, &[&a, &b], &[&y])
        };
        let cuda = CUDA.target();
        assert_eq!(bytes(cuda, DType::F32, [8192, 8192, 8192]), 32 << 20);
        assert_eq!(bytes(cuda, DType::F32, [1024, 1024, 1024]), 3 << 20);
        assert_eq!(bytes(TargetInfo { workspace: 4096, ..cuda }, DType::F32, [1024; 3]), 4096);
        assert_eq!(bytes(TargetInfo { workspace: 0, ..cuda }, DType::F32, [1024; 3]), 0);
        // Nor is there any where no library is asked.
        assert_eq!(bytes(cuda, DType::F32, [16, 16, 16]), 0);
        assert_eq!(bytes(cuda, DType::I32, [1024, 1024, 1024]), 0);
        // Our own kernels add up parts of long sums there.
        let own = bytes(TargetInfo { workspace: 0, ..cuda }, DType::F32, [16, 16, 9000]);
        assert!(own > 0 && bytes(cuda, DType::F32, [16, 16, 9000]) >= own);
    }

    #[test]
    fn rows_of_a_product_are_summed_as_the_whole_is_where_both_fill_the_device() {
        assert_eq!(order_of_product([4096, 4096, 900]), order_of_product([1024, 4096, 900]));
        assert_ne!(order_of_product([4096, 4096, 900]), order_of_product([64, 64, 900]));
        assert_ne!(order_of_product([4096, 4096, 900]), order_of_product([4096, 4096, 800]));
    }
}
