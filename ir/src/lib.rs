//! The intermediate representation of arenic.
//!
//! Three levels, each with one representation: the [`graph`] says what is computed, the
//! [`plan`] says when and where (typed side tables over the frozen graph), and the
//! [`program`] is the narrow waist: commands with byte ranges, streams and events in
//! host-issue order. [`check`](check::check) judges a program against its graph and
//! shares no code with whatever made the program.
//!
//! A graph's nodes are operators: [`op`] has them by family, with what is true of each on every
//! backend. Kernels are elsewhere. What planner and checker must know of them, above all how
//! much scratch they take and in which order they add, is asked of a [`backend`] by one trait,
//! [`Kernels`](backend::Kernels).

pub mod backend;
pub mod check;
pub mod cost;
pub mod graph;
pub mod op;
pub mod plan;
pub mod profile;
pub mod program;
pub mod rounds;
pub mod space;
pub mod text;
pub mod types;
pub mod verify;

pub use backend::{Backend, Math, TargetInfo};
pub use graph::{Data, Def, Graph, Node, NodeId, Output, State, StateId, Value, ValueId};
pub use op::Op;
pub use plan::Plan;
pub use program::Program;
pub use rounds::Rounds;
pub use space::{PerSpace, Space};
pub use types::{DType, TensorType};
