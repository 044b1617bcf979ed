//! What is asked of a backend, and what of it a program names.

use super::library::LibraryCall;
use crate::op::Op;
use crate::types::TensorType;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// What a backend says of its kernels. No method has a default.
///
/// `x` are the operands' types, `y` those of the results.
pub trait Kernels: Sync {
    /// What programs for this backend need at least.
    fn target(&self) -> TargetInfo;

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

    /// The call by which a library may compute the operator on the target; `None` if the backend's
    /// own kernels do. Last results that nobody reads may be left out of `y`.
    fn library_call(
        &self,
        op: &Op,
        target: TargetInfo,
        x: &[&TensorType],
        y: &[&TensorType],
    ) -> Option<LibraryCall>;
}

/// Whose kernels run a program.
#[derive(Clone, Copy)]
pub struct Backend {
    name: &'static str,
    kernels: &'static dyn Kernels,
}

impl Backend {
    /// A backend with its name in the text form.
    pub const fn new(name: &'static str, kernels: &'static dyn Kernels) -> Backend {
        Backend { name, kernels }
    }

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// What the backend says of its kernels.
    pub fn kernels(self) -> &'static dyn Kernels {
        self.kernels
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
