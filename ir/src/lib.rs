//! The intermediate representation of arenic, and the checker of what is made of it.
//!
//! There are three levels, each with one representation:
//!
//! | level | says | made by |
//! |---|---|---|
//! | [`Graph`] | what is computed: pure operators on values in SSA form | import, rewritten by passes |
//! | [`Plan`] | when and where: order, slots and addresses, as side tables over the frozen graph | planning passes |
//! | [`Program`] | what a machine does: commands with byte ranges, streams and events, in the order in which the host issues them | lowering |
//!
//! Everything above a program makes it; everything below it only executes it.
//!
//! # Where to find what
//!
//! - **Operators.** [`Op`] lists all of them, with operands, results and attributes. [`op::Family`] sorts them into
//!   families, and [`op::families`] has the operators of each: who must answer for every operator matches these two,
//!   without a wildcard. What is true of an operator on every backend is a method of [`Op`]: [`Op::infer`] its types,
//!   [`Op::in_place_pairs`] which results may take which operands' bytes, [`Op::cuts`] its parts, [`Op::work`] its
//!   arithmetic.
//! - **Backends.** [`Kernels`](backend::Kernels) is all that planner and checker ask of one: scratch, the order of sums,
//!   what libraries compute, which types there are kernels for. No module of this crate names a backend, but for
//!   `op/scalar.rs`, whose rows have a function's text in CUDA C++ and its name in ONNX. Whoever reads a module says
//!   which backends its program may name; everything else takes its backend from a [`TargetInfo`].
//! - **The checker.** [`check::check`] judges a program against its graph and gives its [`check::Footprint`];
//!   [`check::Invariant`] lists what it proves. It shares no code with whatever made the program.
//!   [`verify`](verify::verify) judges the graph alone.
//! - **Text.** [`text::Module`] prints and parses graph, plan and program.
//! - **Times.** [`cost::Device`] predicts what an operator takes on a device.
//!
//! # A program and its judge
//!
//! The program below computes `-exp(x)` in place. If its second kernel reads other bytes than the first one wrote, the
//! checker says so.
//!
//! ```
//! use arenic_ir::check::{Invariant, check};
//! use arenic_ir::text::Module;
//!
//! let text = r#"graph "negated" {
//!   input v0: f32[16] "x"
//!   n0 unary {"f":"exp"} (v0) -> (v1: f32[16])
//!   n1 unary {"f":"neg"} (v1) -> (v2: f32[16] "y")
//!   output "y" v2
//! }
//! program {
//!   align 64
//!   device 128
//!   host 0
//!   home v0 device[0+64]
//!   run n0 stream0 (device[0+64]) -> (device[64+64])
//!   run n1 stream0 (device[64+64]) -> (device[64+64])
//!   output device[64+64]
//! }"#;
//! let footprint = |text: &str| {
//!     let module = Module::parse(text, &arenic_backends::ALL).unwrap();
//!     check(&module.graph, &module.program.unwrap())
//! };
//! assert_eq!(footprint(text).unwrap().arena_bytes.device, 128);
//! let wrong = text.replace("n1 stream0 (device[64+64])", "n1 stream0 (device[0+64])");
//! assert_eq!(footprint(&wrong).unwrap_err()[0].invariant, Invariant::Content);
//! ```

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
