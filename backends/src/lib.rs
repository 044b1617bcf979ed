//! The backends of arenic: what planner and checker are told of their kernels.
//!
//! A backend is a value of [`Backend`], with an implementation of [`Kernels`]: how much scratch an
//! operator takes, in which order it adds, whether a library may compute it. `arenic_ir` and the
//! passes know that trait alone and are handed backends from above. Each folder here holds one
//! backend's answers and the tilings that they follow from; the kernels in `arenic_runtime` go by
//! the same functions, so that the two cannot disagree.
//!
//! To add a backend, add a folder, and its line in [`ALL`].

pub mod cpu;
pub mod cuda;
pub mod exchange;
pub mod reduce;

pub use arenic_ir::Backend;
pub use arenic_ir::backend::Kernels;

/// The CPU. Buffers begin at cache lines.
pub const CPU: Backend =
    Backend { name: "cpu", kernels: &cpu::Cpu, align: cpu::ALIGN, workspace: 0 };

/// GPUs, by CUDA. Buffers begin where `cuMemAlloc` would have them, which is more than any vector
/// load needs; the workspace is the most that an operator may have, most have less.
pub const CUDA: Backend =
    Backend { name: "cuda", kernels: &cuda::Cuda, align: 256, workspace: 256 << 20 };

/// All of them.
pub const ALL: [Backend; 2] = [CPU, CUDA];
