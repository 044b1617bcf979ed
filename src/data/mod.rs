//! Files that a run reads and writes: batches, states and outputs.
//!
//! Tensor bytes are never gathered on the heap: files are mapped, and batches are read from
//! them straight to where they are used. A file must not be cut short or rewritten in place
//! by someone else while the program runs: values may change, and touching what was cut off
//! of a mapping stops the program (`SIGBUS`). Replacing a file by renaming another one over
//! it, as arenic itself does, is always safe.

pub mod atomic;
pub mod batches;
pub mod error;
mod mapped;
mod npy;
pub mod npz;
pub mod npz_write;
pub mod tensors;
#[cfg(test)]
mod tests;

pub use atomic::{AtomicFile, try_to_write};
pub(crate) use batches::parse_scalar;
pub use batches::{Batches, Mix, Mixed, Mixing, Notice, Share, Structure, Wanted};
pub use error::{ArrayProblem, DataError};
pub use mapped::Array;
pub use npz::Npz;
pub use npz_write::OutputSpool;
pub use tensors::{Progress, TensorFile, in_file_order, save, save_streamed};

#[cfg(target_endian = "big")]
compile_error!("arenic maps little-endian files in place; big-endian machines are not supported");
