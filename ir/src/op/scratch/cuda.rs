//! Scratch memory of the CUDA kernels, in bytes, and the tilings that it follows from.

use super::ReducePlan;
use crate::op::{Op, Reduction};
use crate::types::{DType, TensorType};

/// Blocks that fill a large device (132 processors) once.
const BLOCKS: usize = 1056;

/// Threads of a block that shares out terms.
const THREADS: usize = 256;

/// Bytes of scratch that the CUDA kernels of an operator need while they run.
pub(super) fn scratch_bytes(op: &Op, x: &[&TensorType], _y: &[&TensorType]) -> u64 {
    match op {
        Op::Reduce { f, axes, .. } => {
            let plan = super::reduce(x[0], axes);
            let tiling = reduce(&plan);
            if tiling.parts == 1 {
                return 0;
            }
            let wide = *f == Reduction::Mean && x[0].dtype.is_int();
            let size = if wide { DType::I64 } else { x[0].dtype }.size();
            (plan.results * tiling.parts) as u64 * size
        }
        _ => 0,
    }
}

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
