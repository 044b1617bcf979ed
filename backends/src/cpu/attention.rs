//! The CPU's tiling of attention: scores exist a block of rows at a time.

use arenic_ir::op::AttentionSpec;
use arenic_ir::types::TensorType;

/// Elements that a block of scores aims at, so that two of them fit a core's cache.
const BLOCK: usize = 64 << 10;

/// Least rows of a block: with fewer, packing keys and values costs more than multiplying them.
const LEAST_ROWS: usize = 16;

/// Most rows of a block.
const MOST_ROWS: usize = 128;

/// Most blocks that are worked on at once.
const LANES: usize = 16;

/// Elements that blocks of scores together aim at.
const SCORES: usize = 1 << 20;

/// How attention is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Matrices of keys in the batch.
    pub batch: usize,
    /// Matrices of queries that share one of keys.
    pub group: usize,
    /// Queries of a matrix, `T`.
    pub queries: usize,
    /// Keys and values of each, `S`.
    pub keys: usize,
    /// Elements of a query and of a key, `D`.
    pub depth: usize,
    /// Elements of a value, `E`.
    pub width: usize,
    /// Queries of a block.
    pub rows: usize,
    /// Blocks of a matrix of queries.
    pub blocks: usize,
    /// Parts that the blocks of all queries of a matrix of keys are cut into for gradients. Each gives partial sums
    /// of keys' and values' gradients, where there are several.
    pub parts: usize,
    /// Lanes that share the blocks, or the parts; each has scratch of its own.
    pub lanes: usize,
}

/// How the gradient of a mask is summed: each of its matrices over all matrices of queries that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskSums {
    /// Matrices of the mask.
    pub matrices: usize,
    /// Lanes that may add to different sums of one part at once.
    pub lanes: usize,
    /// Parts of the terms, one after another, each with sums of its own where there are several.
    pub parts: usize,
}

/// Shares out an attention of operands that `infer` accepts.
pub fn tiling(spec: &AttentionSpec, x: &[&TensorType]) -> Attention {
    let [q, k, v] = &spec.heads_first(x);
    let matrix = |t: &TensorType| [t.shape[t.rank() - 2], t.shape[t.rank() - 1]];
    let ([queries, depth], [keys, width]) = (matrix(q), matrix(v));
    let batch = k.shape[..k.rank() - 2].iter().product::<usize>();
    let rows = (BLOCK / keys).clamp(LEAST_ROWS, MOST_ROWS).min(queries.max(1));
    let blocks = queries.div_ceil(rows);
    let group = q.shape[..q.rank() - 2].iter().product::<usize>() / batch.max(1);
    let parts = LANES.div_ceil(batch.max(1)).min(group.saturating_mul(blocks)).max(1);
    let all = batch.saturating_mul(group).saturating_mul(blocks).max(1);
    let lanes = (SCORES / rows.saturating_mul(keys)).clamp(1, LANES).min(all);
    Attention { batch, group, queries, keys, depth, width, rows, blocks, parts, lanes }
}

impl Attention {
    /// Elements of one block of scores.
    pub fn block(&self) -> usize {
        self.rows.saturating_mul(self.keys)
    }

    /// Elements of the scratch of an attention.
    pub fn forward_elements(&self) -> usize {
        self.lanes.saturating_mul(self.block())
    }

    /// Elements of the scratch of its gradient, and of a mask's: probabilities and their gradients, and partial
    /// sums, of a mask's all but the first, which are in the result.
    pub fn gradient_elements(&self, of_mask: Option<MaskSums>) -> usize {
        let scores = self.forward_elements().saturating_mul(2);
        let of_keys = self.partial_elements(self.depth.saturating_add(self.width));
        let of_mask =
            of_mask.map_or(0, |m| self.mask_elements(m.matrices).saturating_mul(m.parts - 1));
        scores.saturating_add(of_keys).saturating_add(of_mask)
    }

    /// Shares out the gradient of a mask of these scores, so that few matrices of a mask leave no lane idle.
    pub fn mask_sums(&self, mask: &TensorType) -> MaskSums {
        let matrices = mask.shape[..mask.rank().saturating_sub(2)].iter().product::<usize>();
        // Parts of an attention have other queries of one matrix; of several, they may have the same.
        let each = if self.group == 1 { self.parts } else { 1 };
        let lanes = matrices.saturating_mul(each);
        let elements = self.mask_elements(matrices);
        let terms = self.batch.saturating_mul(self.parts) / lanes.max(1);
        let most = (self.lanes / lanes.max(1)).min(1 + SCORES / elements.max(1)).min(terms);
        MaskSums { matrices, lanes, parts: most.max(1) }
    }

    /// Elements of so many matrices of scores.
    pub fn mask_elements(&self, matrices: usize) -> usize {
        [self.queries, self.keys].into_iter().fold(matrices, usize::saturating_mul)
    }

    /// Elements of partial sums with so many per key; 0 for one part.
    pub fn partial_elements(&self, each: usize) -> usize {
        if self.parts == 1 {
            return 0;
        }
        [self.parts, self.keys, each].into_iter().fold(self.batch, usize::saturating_mul)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CPU, CUDA};
    use arenic_ir::op::Op;
    use arenic_ir::types::DType;

    /// Operands of the gradient of an attention of sequences, heads and positions, with a mask of matrices for so
    /// many of both.
    fn operands([batch, heads, t]: [usize; 3], mask: [usize; 2]) -> Vec<TensorType> {
        let of = |shape: &[usize]| TensorType::new(DType::F32, shape);
        let (matrix, row) = (of(&[batch, heads, t, 32]), of(&[batch, heads, t]));
        let [m, row] = [matrix, row].map(|x| move || x.clone());
        vec![m(), m(), m(), row(), row(), m(), of(&[mask[0], mask[1], t, t])]
    }

    #[test]
    fn few_matrices_of_a_mask_leave_no_lane_idle() {
        for (extents, mask, lanes, parts) in [
            // A mask for all, for each head, for everything, and one that is too large for parts.
            ([64, 3, 49], [1, 1], 16, 16),
            ([64, 3, 49], [1, 3], 16, 5),
            ([64, 3, 49], [64, 3], 16, 1),
            ([32, 1, 2048], [1, 1], 16, 1),
        ] {
            let x = operands(extents, mask);
            let x: Vec<&TensorType> = x.iter().collect();
            let t = tiling(&AttentionSpec::scaled(1.0), &x);
            let sums = t.mask_sums(x[6]);
            assert_eq!((t.lanes, sums.parts), (lanes, parts), "{extents:?} {mask:?}");
            let partial = t.mask_elements(sums.matrices) * (sums.parts - 1);
            assert!(partial <= SCORES, "{extents:?} {mask:?}: {partial}");
        }
    }

    /// Parts are part of the order of sums; of what has none, they take no scratch.
    #[test]
    fn parts_of_a_mask_are_ordered_and_have_scratch() {
        let spec = AttentionSpec::scaled(1.0);
        let op = |of_mask| Op::AttentionGrad { spec, of_mask, has_result: false };
        for target in [CPU.target(), CUDA.target()] {
            let told = |of_mask, mask| {
                let x = operands([64, 3, 49], mask);
                let x: Vec<&TensorType> = x.iter().collect();
                let y = op(of_mask).infer(&x).unwrap();
                let y: Vec<&TensorType> = y.iter().collect();
                let order = op(of_mask).sum_order(target.backend, &x, &y).unwrap();
                (order, op(of_mask).scratch_bytes(target, &x, &y))
            };
            let (none, least) = told(false, [1, 1]);
            let (whole, same) = told(true, [64, 3]);
            let (cut, more) = told(true, [1, 1]);
            assert!(none != whole && whole != cut, "{whole:?} {cut:?}");
            assert!(least == same && same < more, "{least} {same} {more}");
        }
    }
}
