//! Backends: what planner and checker ask of whoever has the kernels.
//!
//! An operator says what is true everywhere ([`Op`]). How much scratch a kernel needs, in which
//! order it adds, what a library computes instead, and which types it takes is for a backend to
//! say: [`Kernels`] is all that is asked of one. The backends themselves are in crates above this
//! one, which pass them down as values: a [`Module`](crate::text::Module) is read with the backends
//! that its program may name, and everything else takes its backend from a [`TargetInfo`]. A
//! backend's kernels go by the functions that answer here, so that the two cannot disagree.

use crate::op::{Assembly, Cut, Op};
use crate::types::{DType, TensorType};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// What a backend says of its kernels. No method has a default.
///
/// `x` are the operands' types, `y` those of the results.
pub trait Kernels: Sync {
    /// True where there is a kernel for the operator on tensors of these types.
    fn takes(&self, op: &Op, x: &[&TensorType], y: &[&TensorType]) -> bool;

    /// Bytes of scratch that the operator needs on the target while it runs; zero for most.
    ///
    /// They follow from types alone, never from the number of threads, so that a plan made
    /// anywhere runs anywhere, with the same order of every sum.
    fn scratch_bytes(
        &self,
        op: &Op,
        target: TargetInfo,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> u64;

    /// The order of the operator's sums; `None` if it is unknown, as it is where a library may
    /// compute the operator.
    fn sum_order(&self, op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Option<SumOrder>;

    /// Terms that products sum at a time: parts of a sum begin at multiples of them.
    fn sum_grain(&self) -> usize;

    /// True where a product whose sums have this order continues the sums of what it is added to,
    /// so that parts at multiples of [`Kernels::sum_grain`] give the bits of the whole.
    fn continues_sums(&self, order: &SumOrder) -> bool;

    /// True where a library may compute the operator on the target; else the backend's own kernels
    /// do. Last results that nobody reads may be left out of `y`.
    fn may_use_library(
        &self,
        op: &Op,
        target: TargetInfo,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> bool;

    /// True where the backend's own kernels multiply the operator's matrices by tensor cores on the
    /// target.
    fn has_tensor_cores_for(&self, op: &Op, target: TargetInfo, x: &[&TensorType]) -> bool;
}

/// A backend: a name, and what its kernels need and say.
#[derive(Clone, Copy)]
pub struct Backend {
    /// The name in the text form.
    pub name: &'static str,
    /// What is asked of its kernels.
    pub kernels: &'static dyn Kernels,
    /// Alignment in bytes that its kernels need of every buffer at least: a power of two.
    pub align: u64,
    /// Bytes of workspace that a library should have for one operator.
    pub workspace: u64,
}

impl Backend {
    /// A target with this backend's own alignment and workspace, and exact arithmetic.
    pub const fn target(self) -> TargetInfo {
        let Backend { align, workspace, .. } = self;
        TargetInfo { backend: self, align, workspace, math: Math::F32 }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Backend {
    fn eq(&self, other: &Backend) -> bool {
        self.name == other.name
    }
}

impl Eq for Backend {}

impl Hash for Backend {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl PartialOrd for Backend {
    fn partial_cmp(&self, other: &Backend) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Backend {
    fn cmp(&self, other: &Backend) -> Ordering {
        self.name.cmp(other.name)
    }
}

/// The order of an operator's sums. Where it is the same for two operators that differ only in
/// the extents of axes along which nothing is summed, so are the bits of their elements. Empty for
/// operators that have no sums, or whose sums have one order at every extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumOrder(pub Vec<usize>);

/// How libraries multiply `f32` in products and convolutions; our own kernels do it exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Math {
    /// As they are.
    #[default]
    F32,
    /// Rounded to the 10 bits of TF32 before, for tensor cores; sums are `f32`.
    Tf32,
}

impl Math {
    /// All of them.
    pub const ALL: [Math; 2] = [Math::F32, Math::Tf32];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Math::F32 => "f32",
            Math::Tf32 => "tf32",
        }
    }
}

/// Who does an operator's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// A library may, by tensor cores where it has them for the types.
    Library,
    /// The backend's own kernels, by tensor cores.
    TensorCores,
    /// The backend's own kernels, by one thread for each sum (SIMT) or by the CPU's vectors.
    Lanes,
}

/// How plans depend on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetInfo {
    /// Whose kernels run.
    pub backend: Backend,
    /// Alignment of every buffer in device memory, in bytes.
    pub align: u64,
    /// Bytes of workspace that a library may have for one operator at most.
    pub workspace: u64,
    /// How libraries multiply.
    pub math: Math,
}

impl Op {
    /// Bytes of scratch that this operator needs on the target while it runs: see
    /// [`Kernels::scratch_bytes`].
    pub fn scratch_bytes(&self, target: TargetInfo, x: &[&TensorType], y: &[&TensorType]) -> u64 {
        target.backend.kernels.scratch_bytes(self, target, x, y)
    }

    /// The order of this operator's sums by a backend's kernels: see [`Kernels::sum_order`].
    pub fn sum_order(
        &self,
        backend: Backend,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> Option<SumOrder> {
        backend.kernels.sum_order(self, x, y)
    }

    /// True where a library may compute this operator on this target: see
    /// [`Kernels::may_use_library`].
    pub fn may_use_library(
        &self,
        target: TargetInfo,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> bool {
        target.backend.kernels.may_use_library(self, target, x, y)
    }

    /// Who does this operator's arithmetic on this target.
    pub fn unit(&self, target: TargetInfo, x: &[&TensorType], y: &[&TensorType]) -> Unit {
        let kernels = target.backend.kernels;
        // An attention is counted as our kernels compute it, also where a library may be faster.
        if kernels.has_tensor_cores_for(self, target, x) {
            Unit::TensorCores
        } else if kernels.may_use_library(self, target, x, y) {
            Unit::Library
        } else {
            Unit::Lanes
        }
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
        let kernels = backend.kernels;
        let Some(whole) = kernels.sum_order(self, x, y) else { return false };
        let mut first = 0;
        let mut extents: Vec<usize> =
            ends.iter().map(|&end| end - std::mem::replace(&mut first, end)).collect();
        if cut.results.contains(&Assembly::Accumulate) {
            // A part of a sum in `bf16` is rounded before the next is added.
            let is_rounded = y.iter().any(|t| t.dtype == DType::Bf16);
            let grain = kernels.sum_grain();
            let at_grains = extents.iter().rev().skip(1).all(|e| e.is_multiple_of(grain));
            if is_rounded || !at_grains || !kernels.continues_sums(&whole) {
                return false;
            }
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
            order.is_some_and(|order| order == whole)
        })
    }
}
