//! How the CUDA kernels share out their work.

use crate::reduce::{self, ReducePlan};
use arenic_ir::backend::Math;
use arenic_ir::op::families::Attention;
use arenic_ir::types::{DType, TensorType};

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

/// What multiplies an attention's tiles, a policy of `warp.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionCore {
    /// Multiplications and additions.
    Fma,
    /// Tensor cores, of `f32` that is rounded to TF32.
    Tf32,
    /// Tensor cores, of `bf16`.
    Bf16,
}

/// What multiplies the tiles of an attention of such elements.
pub fn attention_core(dtype: DType, math: Math) -> AttentionCore {
    match (dtype, math) {
        (DType::Bf16, _) => AttentionCore::Bf16,
        (DType::F32, Math::Tf32) => AttentionCore::Tf32,
        _ => AttentionCore::Fma,
    }
}

/// The largest tiles for which a block's shared memory has room; `None` if rows are too long.
pub fn attention_tile(op: Attention, x: &[&TensorType]) -> Option<AttentionTile> {
    let gradient = matches!(op, Attention::AttentionGrad { .. });
    let [q, _, v] = &op.spec().heads_first(x);
    let matrix = |t: &TensorType| [t.shape[t.rank() - 2], t.shape[t.rank() - 1]];
    let ([queries, depth], [keys, width]) = (matrix(q), matrix(v));
    let size = q.dtype.size() as usize;
    // Rows are filled up for the instructions that multiply them, and 16 bytes longer.
    let is_narrow = q.dtype == DType::Bf16;
    let (multiple, more) = (if is_narrow { 16 } else { 8 }, 16 / size);
    let [depth, width] = [depth, width].map(|n| n.next_multiple_of(multiple) + more);
    let of_rows = if gradient { depth + width } else { depth };
    let most = queries.max(keys).next_multiple_of(16);
    let fits = |tile: &AttentionTile| {
        let own = if tile.shared { tile.rows * of_rows } else { 2 * more };
        // What probabilities go through; tensor cores take them from registers.
        let staged = if is_narrow { 0 } else { tile.rows * (tile.columns + more) };
        // Of gradients the next tile is loaded beside the one that is computed, whose rows have numbers.
        let tiles = if gradient { 2 } else { 1 };
        let numbers = if gradient { 2 * 3 * tile.columns * size.max(4) / size } else { 0 };
        let elements = own + tiles * tile.columns * (depth + width) + numbers + staged;
        tile.rows <= most
            && tile.columns.is_multiple_of(multiple)
            && elements * size <= SHARED_BYTES
    };
    // Many queries load keys half as often in tiles that are twice as high, and sums of rows are taken half as
    // often of tiles that are twice as wide; of gradients the sums leave no registers for either.
    let wide = is_narrow && !gradient && keys >= MANY;
    [
        (if wide && queries >= MANY { 128 } else { 64 }, if wide { 64 } else { 32 }, true),
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

/// How the gradient of a mask is shared out: a block has a tile of one of its matrices, and adds up what the matrices
/// of scores give that share it, or a part of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskSums {
    /// Matrices of the mask.
    pub matrices: usize,
    /// Tiles of one of them along queries and along keys.
    pub tiles: [usize; 2],
    /// Parts of the terms, one after another, each with sums of its own where there are several.
    pub parts: usize,
    /// Elements of the gradient.
    pub elements: usize,
}

/// Shares out the gradient of a mask, if the operator has one and its rows are not too long.
pub fn mask_sums(op: Attention, x: &[&TensorType]) -> Option<MaskSums> {
    let (mask, tile) = (op.trained_mask(x)?, attention_tile(op, x)?);
    let [q, k, _] = &op.spec().heads_first(x);
    let [queries, keys] = [q, k].map(|t| t.shape[t.rank() - 2]);
    let matrices = mask.shape[..mask.rank().saturating_sub(2)].iter().product::<usize>();
    let tiles = [queries.div_ceil(tile.rows), keys.div_ceil(tile.columns)];
    let blocks = tiles.into_iter().fold(matrices, usize::saturating_mul).max(1);
    let elements = [queries, keys].into_iter().fold(matrices, usize::saturating_mul);
    let terms = q.shape[..q.rank() - 2].iter().product::<usize>() / matrices.max(1);
    let most = (PRODUCT_BLOCKS / blocks).min(MASK_SUMS / elements.max(1)).min(terms);
    Some(MaskSums { matrices, tiles, parts: most.max(1), elements })
}

impl MaskSums {
    /// Elements of the sums of parts; 0 for one part.
    pub fn partial_elements(&self) -> u64 {
        if self.parts == 1 { 0 } else { (self.parts as u64).saturating_mul(self.elements as u64) }
    }
}

/// Elements that the parts of a mask's gradient may have together.
const MASK_SUMS: usize = 1 << 20;

/// Queries or keys of an attention from which on its tiles are as large as can be.
const MANY: usize = 128;

/// Shared memory that every device gives a block.
const SHARED_BYTES: usize = 48 << 10;

/// Blocks of a product that fill a large device, two on each of some 132 processors.
const PRODUCT_BLOCKS: usize = 264;

/// Least terms of a part of a product's sums.
pub const LEAST_TERMS: usize = 256;

/// Parts into which the sums of a product of so many rows, columns and terms are cut, so that
/// few results of long sums fill the device.
pub fn product_parts(batches: usize, [m, n, k]: [usize; 3]) -> usize {
    let tiles = [m, n].map(|extent| extent.div_ceil(PRODUCT_TILE));
    let tiles = tiles.into_iter().fold(batches, usize::saturating_mul);
    (PRODUCT_BLOCKS / tiles.max(1)).clamp(1, (k / LEAST_TERMS).max(1))
}

/// Elements of the partial results of a reduction; 0 if it is one part.
pub fn partial_sums(plan: &ReducePlan) -> u64 {
    match reduce(plan).parts {
        1 => 0,
        parts => plan.partial_results(parts),
    }
}

/// Sums over all axes but the second one.
pub fn channel_sums(x: &TensorType) -> ReducePlan {
    let axes: Vec<usize> = (0..x.rank()).filter(|&a| a != 1).collect();
    reduce::reduce(x, &axes)
}

/// Sums over the axes before `axis`.
pub fn row_sums(x: &TensorType, axis: usize) -> ReducePlan {
    reduce::reduce(x, &(0..axis).collect::<Vec<_>>())
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
    /// Neighbouring threads have neighbouring results, or groups of such, `width` of them; each result
    /// has `height` threads, a power of two.
    Columns {
        /// Groups of results of a block.
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
    /// Neighbouring results of one thread, whose terms it loads at once; those of columns alone are more than one.
    pub each: usize,
}

/// Neighbouring results of one thread where their terms lie side by side: of `bf16` 16 bytes.
const EACH: usize = 8;

/// Terms from which on there are threads enough where each has several results.
const MANY_TERMS: usize = 1 << 17;

impl Tiling {
    /// Results whose terms lie side by side.
    fn lanes(results: usize, terms: usize) -> Tiling {
        let lanes = match terms {
            1024.. if results < 1 << 13 => THREADS,
            _ => (terms / 4).next_power_of_two().min(32),
        };
        let parts = if lanes == THREADS { pieces(results, terms / 4096) } else { 1 };
        Tiling { terms, sharing: Sharing::Lanes(lanes), parts: 1, share: terms, each: 1 }
            .cut(parts, THREADS)
    }

    /// Results that lie side by side, in runs of `inner`.
    fn columns(results: usize, terms: usize, inner: usize) -> Tiling {
        let is_large = inner.is_multiple_of(EACH) && results.saturating_mul(terms) >= MANY_TERMS;
        let each = if is_large { EACH } else { 1 };
        // Of neighbours that one thread has.
        let (groups, inner) = (results / each, inner / each);
        let most = match inner {
            32.. => 8,
            _ => (THREADS / inner + 1).next_power_of_two() / 2,
        };
        let mut height = 1;
        while height < most && groups * height < BLOCKS * THREADS && terms / (8 * height) > 0 {
            height *= 2;
        }
        let mut width = groups.min(THREADS / height);
        if width > inner {
            width -= width % inner;
        }
        let sharing = match height {
            1 => Sharing::Lanes(1),
            _ => Sharing::Columns { width, height },
        };
        let least = if is_large { 8 } else { 16 };
        let parts = pieces(groups.div_ceil(width), terms / (least * height));
        Tiling { terms, sharing, parts: 1, share: terms, each }.cut(parts, height)
    }

    /// Few results of few terms each, which lie side by side: so many threads of a result that the blocks are many
    /// and each thread has few terms.
    fn few_columns(results: usize, terms: usize) -> Tiling {
        let height = (terms / 4).next_power_of_two().min(32);
        let sharing = match height {
            1 => Sharing::Lanes(1),
            _ => Sharing::Columns { width: results.min(THREADS / height), height },
        };
        Tiling { terms, sharing, parts: 1, share: terms, each: 1 }
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
            Sharing::Columns { .. } => Tiling::few_columns(results, self.parts),
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

    fn tiling(shape: &[usize], axes: &[usize]) -> (ReducePlan, Tiling) {
        let plan = reduce::reduce(&TensorType::new(DType::F32, shape), axes);
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
                            assert!(plan.results.is_multiple_of(t.each), "{t:?}");
                            if let Sharing::Columns { width, height } = t.sharing {
                                assert!(width * height <= THREADS && height.is_power_of_two());
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn few_results_fill_the_device() {
        let blocks = |shape: &[usize], axes: &[usize]| {
            let (plan, t) = tiling(shape, axes);
            let width = match t.sharing {
                Sharing::Lanes(lanes) => THREADS / lanes,
                Sharing::Columns { width, .. } => width,
            };
            (plan.results / t.each).div_ceil(width) * t.parts
        };
        assert_eq!(blocks(&[128, 64, 56, 56], &[0, 2, 3]), 1024);
        assert_eq!(blocks(&[1 << 24], &[0]), 1041);
        assert_eq!(blocks(&[4096, 768], &[0]), 192);
        assert_eq!(blocks(&[1 << 18, 64], &[0]), 1024);
    }
}
