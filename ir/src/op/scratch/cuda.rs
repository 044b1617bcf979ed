//! Scratch memory of the CUDA kernels, in bytes, and the tilings that it follows from.

use super::ReducePlan;
use crate::op::families::Recurrent;
use crate::op::{Extents, Family, Op, Reduction, channels_last};
use crate::target::TargetInfo;
use crate::types::{DType, TensorType};

/// Bytes of scratch that an operator needs while it runs: enough for our own kernels, and for a
/// library's workspace where one may compute it.
pub(super) fn scratch_bytes(
    op: &Op,
    target: TargetInfo,
    x: &[&TensorType],
    y: &[&TensorType],
) -> u64 {
    let workspace = match op.library_call(target, x, y) {
        Some(_) => workspace(target, x, y),
        None => 0,
    };
    own_scratch_bytes(op, x, y).max(workspace)
}

/// Bytes that a library may have beside operands and results: what the target allows, but never
/// more than a quarter of them, so that the arena is about what tensors take. Most algorithms
/// do with less; transforms of all that is read do not, and are not taken.
fn workspace(target: TargetInfo, x: &[&TensorType], y: &[&TensorType]) -> u64 {
    let touched = x.iter().chain(y).map(|t| t.bytes()).fold(0, u64::saturating_add);
    let most = target.workspace.min(touched / 4);
    most - most % target.align.max(1)
}

/// Bytes of scratch that our own kernels of an operator need.
fn own_scratch_bytes(op: &Op, x: &[&TensorType], y: &[&TensorType]) -> u64 {
    // Sums of `bf16` are `f32`.
    let size = y.first().map_or(0, |t| t.dtype.accumulated().size());
    match op {
        Op::MatMul { .. }
        | Op::Gemm { .. }
        | Op::GemmGelu { .. }
        | Op::GemmGeluGrad { .. }
        | Op::ProductUpdate { .. }
        | Op::Conv { .. }
        | Op::ConvTranspose { .. }
        | Op::ConvWeightGrad { .. } => match contraction(op, x, y) {
            Some((batches, extents)) => partial_results(batches, extents).saturating_mul(size),
            None => 0,
        },
        Op::ChannelsLast { of } => {
            channels_last::as_first(x, y, |x, y| own_scratch_bytes(of, x, y))
        }
        Op::Reduce { .. } | Op::PointwiseReduce { .. } => {
            let Some((x, f, axes)) = op.reduction(x) else { return 0 };
            let wide = f == Reduction::Mean && x.dtype.is_int();
            let size = if wide { DType::I64 } else { x.dtype.accumulated() }.size();
            partial_sums(&super::reduce(&x, axes)).saturating_mul(size)
        }
        // Of every row the sum of its probabilities times their gradients.
        Op::AttentionGrad { .. } => x[3].bytes(),
        Op::LayerNormParamGrad { axis } => {
            let sums = partial_sums(&row_sums(x[0], *axis)).saturating_mul(2);
            sums.saturating_mul(x[0].dtype.accumulated().size())
        }
        Op::BatchNorm { .. } => {
            let partial = partial_sums(&channel_sums(x[0]));
            let elements = partial.saturating_add(2 * x[0].shape[1] as u64);
            elements.saturating_mul(x[0].dtype.accumulated().size())
        }
        Op::BatchNormParamGrad => {
            let sums = partial_sums(&channel_sums(x[0])).saturating_mul(2);
            sums.saturating_mul(x[0].dtype.accumulated().size())
        }
        Op::Lstm { .. }
        | Op::LstmGrad { .. }
        | Op::Gru { .. }
        | Op::GruGrad { .. }
        | Op::Rnn { .. }
        | Op::RnnGrad { .. } => {
            let Family::Recurrent(op) = op.family() else { return 0 };
            let elements = op.extents(x[0]).state().saturating_mul(states(op)) as u64;
            elements.saturating_mul(x[0].dtype.size())
        }
        Op::Resize { spec } => {
            spec.table_bytes((0..spec.sizes.len()).filter(|&a| !spec.keeps(a, x[0].shape[a])))
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
        | Op::Adam { .. }
        | Op::Adagrad { .. }
        | Op::Momentum { .. }
        | Op::Attention { .. }
        | Op::Softmax { .. }
        | Op::LogSoftmax { .. }
        | Op::SoftmaxGrad { .. }
        | Op::LogSoftmaxGrad { .. }
        | Op::LogSoftmaxStats
        | Op::LayerNorm { .. }
        | Op::LayerNormInputGrad { .. }
        | Op::Opaque { .. } => 0,
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

/// What is a sum of products: batches, then rows, columns and terms of each.
fn contraction(op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Option<(usize, [usize; 3])> {
    let gemm = |a, b, trans_a: bool, trans_b: bool| {
        let e = Extents::of_gemm(a, b, trans_a, trans_b);
        (1, [e.m, e.n, e.k])
    };
    let windowed = |group: usize, k: usize| {
        let channels = y[0].shape[1];
        (group, [channels / group, y[0].elements() / channels.max(1), k])
    };
    Some(match op {
        Op::MatMul { trans_a, trans_b } => {
            let (batches, e) = Extents::of_mat_mul([x[0], x[1], y[0]], *trans_a, *trans_b);
            (batches.max(1), [e.m, e.n, e.k])
        }
        Op::Gemm { trans_a, trans_b, .. }
        | Op::GemmGelu { trans_a, trans_b }
        | Op::GemmGeluGrad { trans_a, trans_b } => gemm(x[0], x[1], *trans_a, *trans_b),
        Op::ProductUpdate { trans_a, trans_b, .. } => {
            let [.., a, b] = x else { return None };
            gemm(a, b, *trans_a, *trans_b)
        }
        Op::Conv { window, group } => windowed(*group, x[1].shape[1].saturating_mul(window.taps())),
        Op::ConvTranspose { window, group, .. } => {
            windowed(*group, (x[0].shape[1] / group).saturating_mul(window.taps()))
        }
        Op::ConvWeightGrad { group, .. } => {
            let dy = x[1];
            let filter = y[0].shape[1..].iter().product();
            let terms = dy.shape[0] * dy.shape[2..].iter().product::<usize>();
            (*group, [dy.shape[1] / group, filter, terms])
        }
        _ => return None,
    })
}

/// Rows and columns of a tile of a product.
pub const PRODUCT_TILE: usize = 64;

/// How the kernels of an attention share it out, `Attention` in `attention.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionTile {
    /// Queries of a block; keys for their gradients.
    pub rows: usize,
    /// Keys that they meet at a time; queries for gradients of keys.
    pub columns: usize,
    /// The block's rows are in shared memory, else they are read again and again.
    pub shared: bool,
}

/// The largest tiles for which a block's shared memory has room; none where rows are too long.
pub fn attention_tile(q: &TensorType, v: &TensorType, gradient: bool) -> Option<AttentionTile> {
    let matrix = |t: &TensorType| [t.shape[t.rank() - 2], t.shape[t.rank() - 1]];
    let ([queries, depth], [keys, width]) = (matrix(q), matrix(v));
    let size = q.dtype.size() as usize;
    // Rows are filled up for the instructions that multiply them, and 16 bytes longer.
    let (multiple, more) = (if q.dtype == DType::Bf16 { 16 } else { 8 }, 16 / size);
    let [depth, width] = [depth, width].map(|n| n.next_multiple_of(multiple) + more);
    let of_rows = if gradient { depth + width } else { depth };
    let most = queries.max(keys).next_multiple_of(16);
    let fits = |tile: &AttentionTile| {
        let own = if tile.shared { tile.rows * of_rows } else { 2 * more };
        // What probabilities go through; tensor cores take them from registers.
        let staged = tile.rows * (tile.columns + more);
        let elements = own + tile.columns * (depth + width) + staged;
        tile.rows <= most
            && tile.columns.is_multiple_of(multiple)
            && elements * size <= SHARED_BYTES
    };
    [
        (64, 32, true),
        (64, 16, true),
        (32, 16, true),
        (16, 16, true),
        (64, 16, false),
        (16, 16, false),
        (16, 8, false),
    ]
    .map(|(rows, columns, shared)| AttentionTile { rows, columns, shared })
    .into_iter()
    .find(fits)
}

/// Shared memory that every device gives a block.
const SHARED_BYTES: usize = 48 << 10;

/// Blocks of a product that fill a large device, two on each of some 132 processors.
const PRODUCT_BLOCKS: usize = 264;

/// Least terms of a part of a product's sums.
const LEAST_TERMS: usize = 256;

/// Parts into which the sums of a product of so many rows, columns and terms are cut, so that
/// few results of long sums fill the device.
pub fn product_parts(batches: usize, [m, n, k]: [usize; 3]) -> usize {
    let tiles = [m, n].map(|extent| extent.div_ceil(PRODUCT_TILE));
    let tiles = tiles.into_iter().fold(batches, usize::saturating_mul);
    (PRODUCT_BLOCKS / tiles.max(1)).clamp(1, (k / LEAST_TERMS).max(1))
}

/// Elements of the parts of all sums; none where each is one.
fn partial_results(batches: usize, [m, n, k]: [usize; 3]) -> u64 {
    match product_parts(batches, [m, n, k]) {
        1 => 0,
        parts => [batches, m, n].into_iter().fold(parts, usize::saturating_mul) as u64,
    }
}

/// The order of an operator's sums: how many parts a sum has, how long each is, and how many
/// threads share it; empty for operators without sums, or whose sums have one order at every
/// extent, and `None` if it is unknown or a library may choose it.
pub(in crate::op) fn sum_order(
    op: &Op,
    x: &[&TensorType],
    y: &[&TensorType],
) -> Option<Vec<usize>> {
    if op.library_call(TargetInfo::CUDA, x, y).is_some() {
        return None;
    }
    let product =
        |batches: usize, extents: [usize; 3]| vec![product_parts(batches, extents), extents[2]];
    Some(match op {
        Op::MatMul { .. }
        | Op::Gemm { .. }
        | Op::GemmGelu { .. }
        | Op::GemmGeluGrad { .. }
        | Op::ProductUpdate { .. }
        | Op::Conv { .. }
        | Op::ConvTranspose { .. }
        | Op::ConvWeightGrad { .. } => match contraction(op, x, y) {
            Some((batches, extents)) => product(batches, extents),
            None => return None,
        },
        Op::ChannelsLast { of } => {
            return channels_last::as_first(x, y, |x, y| sum_order(of, x, y));
        }
        Op::Reduce { .. } | Op::PointwiseReduce { .. } => {
            let order = |(x, _, axes)| reduction_order(&super::reduce(&x, axes));
            op.reduction(x).map(order)?
        }
        Op::LayerNormParamGrad { axis } => reduction_order(&row_sums(x[0], *axis)),
        Op::BatchNorm { .. } | Op::BatchNormParamGrad => reduction_order(&channel_sums(x[0])),
        Op::Softmax { axis }
        | Op::LogSoftmax { axis }
        | Op::SoftmaxGrad { axis }
        | Op::LogSoftmaxGrad { axis } => vec![row_lanes(x[0], *axis..axis + 1)],
        Op::LayerNorm { axis, .. } | Op::LayerNormInputGrad { axis } => {
            vec![row_lanes(x[0], *axis..x[0].rank())]
        }
        Op::LogSoftmaxStats => {
            let last = x[0].rank().saturating_sub(1);
            vec![row_lanes(x[0], last..x[0].rank())]
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
        | Op::AttentionGrad { .. }
        | Op::Lstm { .. }
        | Op::LstmGrad { .. }
        | Op::Gru { .. }
        | Op::GruGrad { .. }
        | Op::Rnn { .. }
        | Op::RnnGrad { .. } => Vec::new(),
        Op::Opaque { .. } => return None,
    })
}

/// The order of a reduction's sums: of its terms and, in parts, of the parts.
fn reduction_order(plan: &ReducePlan) -> Vec<usize> {
    let first = reduce(plan);
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

/// Partial results of a reduction; none where it is one part.
pub fn partial_sums(plan: &ReducePlan) -> u64 {
    match reduce(plan).parts {
        1 => 0,
        parts => plan.partial_results(parts),
    }
}

/// Sums over all axes but the second one.
pub fn channel_sums(x: &TensorType) -> ReducePlan {
    let axes: Vec<usize> = (0..x.rank()).filter(|&a| a != 1).collect();
    super::reduce(x, &axes)
}

/// Sums over the axes before `axis`.
pub fn row_sums(x: &TensorType, axis: usize) -> ReducePlan {
    super::reduce(x, &(0..axis).collect::<Vec<_>>())
}

/// Neighbouring threads that share a row along `axes`, neighbours: a few of a warp for short
/// rows, a block for long ones, one where other rows lie beside it.
pub fn row_lanes(x: &TensorType, axes: std::ops::Range<usize>) -> usize {
    let stride: usize = x.shape[axes.end..].iter().product();
    let rows = x.shape[..axes.start].iter().product::<usize>() * stride;
    match x.shape[axes].iter().product::<usize>() {
        _ if stride > 1 => 1,
        1025.. => THREADS,
        257.. if rows < 4096 => THREADS,
        n => (n / 4).next_power_of_two().min(32),
    }
}

/// Blocks of a reduction that fill a large device (132 processors) once.
const BLOCKS: usize = 1056;

/// Threads of a block that shares out terms.
const THREADS: usize = 256;

/// How a block's threads share the terms of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// So many neighbouring threads, a power of two, have a result.
    Lanes(usize),
    /// Neighbouring threads have neighbouring results, `width` of them; each result has
    /// `height` threads, a power of two.
    Columns {
        /// Results of a block.
        width: usize,
        /// Threads of a result.
        height: usize,
    },
}

/// How a reduction is shared out: the terms of every result are cut into parts, and so many
/// threads combine a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Terms of a result.
    pub terms: usize,
    /// Who combines them.
    pub sharing: Sharing,
    /// Parts; partial results of several are combined afterwards.
    pub parts: usize,
    /// Terms of one part, except perhaps the last.
    pub share: usize,
}

impl Tiling {
    /// Results whose terms lie side by side.
    fn lanes(results: usize, terms: usize) -> Tiling {
        let lanes = match terms {
            1024.. if results < 1 << 13 => THREADS,
            _ => (terms / 4).next_power_of_two().min(32),
        };
        let parts = if lanes == THREADS { pieces(results, terms / 4096) } else { 1 };
        Tiling { terms, sharing: Sharing::Lanes(lanes), parts: 1, share: terms }.cut(parts, THREADS)
    }

    /// Results that lie side by side, in runs of `inner`.
    fn columns(results: usize, terms: usize, inner: usize) -> Tiling {
        let most = match inner {
            32.. => 8,
            _ => (THREADS / inner + 1).next_power_of_two() / 2,
        };
        let mut height = 1;
        while height < most && results * height < BLOCKS * THREADS && terms / (8 * height) > 0 {
            height *= 2;
        }
        let mut width = results.min(THREADS / height);
        if width > inner {
            width -= width % inner;
        }
        let sharing = match height {
            1 => Sharing::Lanes(1),
            _ => Sharing::Columns { width, height },
        };
        let parts = pieces(results.div_ceil(width), terms / (16 * height));
        Tiling { terms, sharing, parts: 1, share: terms }.cut(parts, height)
    }

    fn cut(self, parts: usize, multiple: usize) -> Tiling {
        if parts == 1 {
            return self;
        }
        let share = self.terms.div_ceil(parts).next_multiple_of(multiple);
        Tiling { parts: self.terms.div_ceil(share), share, ..self }
    }

    /// How partial results are combined: those of lanes lie side by side, those of columns
    /// result by result.
    pub fn second(&self, results: usize) -> Tiling {
        let tiling = match self.sharing {
            Sharing::Lanes(_) => Tiling::lanes(results, self.parts),
            Sharing::Columns { .. } => Tiling::columns(results, self.parts, results),
        };
        Tiling { parts: 1, share: self.parts, ..tiling }
    }
}

/// Parts for each of so many blocks, so that together they fill the device.
fn pieces(blocks: usize, most: usize) -> usize {
    (BLOCKS / blocks).min(most).max(1)
}

/// Shares out a reduction of at least one element.
pub fn reduce(plan: &ReducePlan) -> Tiling {
    let extents = &plan.extents[..plan.rank];
    let terms = extents.iter().product::<usize>() / plan.results.max(1);
    match plan.inner_reduced {
        true => Tiling::lanes(plan.results.max(1), terms),
        false => Tiling::columns(plan.results.max(1), terms, extents[plan.rank - 1].max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Backend;

    fn tiling(shape: &[usize], axes: &[usize]) -> (ReducePlan, Tiling) {
        let plan = super::super::reduce(&TensorType::new(DType::F32, shape), axes);
        (plan, reduce(&plan))
    }

    #[test]
    fn every_term_is_in_one_part_and_blocks_are_small() {
        let extents = [1, 2, 3, 31, 32, 100, 1000, 5000, 100_000];
        for a in extents {
            for b in extents {
                for c in [1, 2, 5, 48, 4096] {
                    for axes in [&[0][..], &[1], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2], &[]] {
                        let (plan, first) = tiling(&[a, b, c], axes);
                        for t in [first, first.second(plan.results)] {
                            assert!(t.parts * t.share >= t.terms, "{t:?}");
                            assert!((t.parts - 1) * t.share < t.terms, "{t:?}");
                            if let Sharing::Columns { width, height } = t.sharing {
                                assert!(width * height <= THREADS && height.is_power_of_two());
                            }
                        }
                    }
                }
            }
        }
    }

    fn product(dtype: DType, [m, n, k]: [usize; 3]) -> (Op, [TensorType; 3]) {
        let shapes = [[m, k], [k, n], [m, n]];
        let op = Op::MatMul { trans_a: false, trans_b: false };
        (op, shapes.map(|shape| TensorType::new(dtype, shape)))
    }

    /// The order of the sums of a product of integers, which no library computes.
    fn product_order(extents: [usize; 3]) -> Vec<usize> {
        let (op, [a, b, y]) = product(DType::I32, extents);
        sum_order(&op, &[&a, &b], &[&y]).unwrap()
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
            assert_eq!(sum_order(&op, &x, &y).is_some(), known);
            let rows = &op.cuts(&x, &y)[0];
            let ends = [rows.extent / 2, rows.extent];
            assert_eq!(op.cut_keeps_bits(Backend::Cuda, rows, &ends, &x, &y), known, "{dtype:?}");
        }
    }

    #[test]
    fn workspaces_stay_below_what_is_read_and_written() {
        let bytes = |target: TargetInfo, dtype, extents| {
            let (op, [a, b, y]) = product(dtype, extents);
            op.scratch_bytes(target, &[&a, &b], &[&y])
        };
        let cuda = TargetInfo::CUDA;
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
        assert_eq!(product_order([4096, 4096, 900]), product_order([1024, 4096, 900]));
        assert_ne!(product_order([4096, 4096, 900]), product_order([64, 64, 900]));
        assert_ne!(product_order([4096, 4096, 900]), product_order([4096, 4096, 800]));
    }

    #[test]
    fn few_results_fill_the_device() {
        let blocks = |shape: &[usize], axes: &[usize]| {
            let (plan, t) = tiling(shape, axes);
            let width = match t.sharing {
                Sharing::Lanes(lanes) => THREADS / lanes,
                Sharing::Columns { width, .. } => width,
            };
            plan.results.div_ceil(width) * t.parts
        };
        assert_eq!(blocks(&[128, 64, 56, 56], &[0, 2, 3]), 1024);
        assert_eq!(blocks(&[1 << 24], &[0]), 1041);
        assert_eq!(blocks(&[4096, 768], &[0]), 768);
    }
}
