//! arenic compiles whole ONNX training steps to memory-planned artifacts and trains with
//! them out of one arena.
//!
//! A [`Model`] is a decoded ONNX file. A [`Compiler`] makes an [`Artifact`] of it, within a byte limit if
//! there is one: programs that a checker has proved to implement the model. A [`Trainer`] trains with
//! an artifact, batch by batch.
//!
//! ```
//! use arenic::{Compiler, Limit, Model, Optimizer, Trainer};
//!
//! let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/forward/tiny_resnet.onnx");
//! let forward = Model::open(path)?.dim("batch", 4);
//! let compiler = Compiler::new().loss("cross_entropy", Optimizer::Adamw);
//! let mut trainer = Trainer::new(compiler.memory(Limit::Part(0.9)).compile(&forward)?)?;
//! let x = vec![0.1_f32; trainer.input("x").map_or(0, |ty| ty.elements())];
//! let batch = [("x", x[..].into()), ("target", [1, 2, 3, 4i64][..].into()), ("lr", 1e-3.into())];
//! println!("loss {}", trainer.step(&batch)?["loss"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Beside these there are [`placement`] of bare buffers, [`instance`]s of bare memory graphs, [`report`]s of
//! what lies where, and [`data`] files. Other modules are parts of the command line and of the Python
//! package: they may change with any version.

pub mod artifact;
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod compile;
mod compiler;
pub mod data;
mod drops;
#[doc(hidden)]
pub mod dynamic;
#[doc(hidden)]
pub mod evaluator;
#[doc(hidden)]
pub mod explain;
mod frontier;
#[doc(hidden)]
pub mod gpu_code;
mod heap;
pub mod instance;
mod kinds;
mod largest;
mod limit;
#[doc(hidden)]
pub mod mapping;
mod model;
#[cfg(feature = "mpi")]
pub mod mpi;
#[doc(hidden)]
pub mod onnx;
pub mod placement;
mod recipe;
pub mod report;
mod size;
mod tensor;
#[doc(hidden)]
pub mod trace;
#[doc(hidden)]
pub mod train;
#[doc(hidden)]
pub mod trainer;

pub use arenic_ir::{Backend, DType, TensorType};
pub use arenic_passes::differentiate::{Differentiate, Optimizer};
pub use artifact::Artifact;
pub use compile::{CompileError, Compiled};
pub use compiler::{Compiler, Variant, Watch};
pub use drops::{DroppedBranch, DroppedStructure, Drops};
pub use dynamic::Dynamic;
pub use limit::Limit;
pub use model::Model;
pub use recipe::Recipe;
pub use tensor::{Input, Tensor};
pub use train::{Initial, InputError, Place, TrainError};
pub use trainer::{Trainer, TrainerOptions};

/// Bytes for people, for example `3.2 MiB`.
fn human_bytes(n: u64) -> String {
    indicatif::HumanBytes(n).to_string()
}
