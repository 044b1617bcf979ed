//! What programs are for: whose kernels run, and what these need.

/// Whose kernels run a program: they say what scratch each operator needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// The CPU's.
    #[default]
    Cpu,
    /// Those for GPUs, by CUDA.
    Cuda,
}

impl Backend {
    /// All of them.
    pub const ALL: [Backend; 2] = [Backend::Cpu, Backend::Cuda];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::Cuda => "cuda",
        }
    }
}

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

impl TargetInfo {
    /// The CPU backend: a cache line.
    pub const CPU: TargetInfo =
        TargetInfo { backend: Backend::Cpu, align: 64, workspace: 0, math: Math::F32 };

    /// The CUDA backend: what `cuMemAlloc` aligns to, and more than any vector load needs;
    /// the workspace that cuBLAS recommends for large devices.
    pub const CUDA: TargetInfo =
        TargetInfo { backend: Backend::Cuda, align: 256, workspace: 32 << 20, math: Math::F32 };

    /// What a backend needs at least.
    pub fn of(backend: Backend) -> TargetInfo {
        match backend {
            Backend::Cpu => TargetInfo::CPU,
            Backend::Cuda => TargetInfo::CUDA,
        }
    }
}
