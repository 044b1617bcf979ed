//! The CUDA backend.
//!
//! Shapes are known when a step is compiled, so kernels are made for them: `lower` turns
//! each operator into launches of kernels whose text has extents and strides as constants, and
//! [`Module`] collects the texts, each once. What takes more than an expression per element is
//! a template in `kernels/*.cuh`. Large products and convolutions may go by cuBLASLt and cuDNN
//! instead, which [`CudaOptions`] and the executor choose at the start; what is done without them stands beside
//! each call ([`Work::Library`]). Kernels keep the rules of the CPU's: the order of every sum follows from shapes,
//! in-place pairs are read before they are written, and contents that do not fit are refused, here by a word that the
//! host looks at. Multiplications and additions are fused only where the text says so, so that elementwise
//! arithmetic has the CPU's bits.

mod attention;
mod batch_norm;
mod choose;
mod collective;
mod convolution;
pub mod driver;
mod elementwise;
mod executor;
mod for_each;
mod index;
mod indexing;
mod lower;
mod module;
mod movement;
mod norm;
pub mod nvrtc;
mod packs;
mod pad;
mod pool;
mod pool_grad;
mod product;
mod random;
mod real;
mod recurrence;
mod reduce;
mod resize;
mod rows;
mod site;
mod softmax;
mod taps;
mod update;
mod work;

pub use choose::{AlgorithmChoice, CudaOptions, Trial};
pub(crate) use executor::Part;
pub use executor::{CudaExecutor, SetupError, profile, source};
pub use lower::lower;
pub use module::{Argument, HEADERS, Kernel, KernelId, Launch, Module};
pub use real::{Attributes, Cuda, LEAST_CAPABILITY};
pub use work::{Along, Asked, Message, Place, Request, Unsupported, Work};
