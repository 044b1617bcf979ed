//! arenic compiles whole ONNX training steps to memory-planned artifacts and trains with
//! them out of one arena.
//!
//! This crate is the facade: [`compile`] takes a model through the passes to a checked
//! [`Artifact`](artifact::Artifact), [`train`] runs one, [`explain`] says why it needs what
//! it needs, [`report`] shows it as a page. [`frontier`] and [`largest`] compile many times,
//! to say what a byte limit costs and what fits it. [`onnx`], [`data`], [`instance`],
//! [`placement`] and [`trace`] read what users have.

pub mod artifact;
pub mod compile;
pub mod data;
pub mod evaluator;
pub mod explain;
pub mod frontier;
pub mod gpu_code;
mod heap;
pub mod instance;
pub mod kinds;
pub mod largest;
pub mod mapping;
pub mod onnx;
pub mod placement;
pub mod report;
pub mod trace;
pub mod train;
