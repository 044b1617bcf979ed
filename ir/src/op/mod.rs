//! The operator table: what an operator is, what it computes and how it may use memory.
//!
//! One variant of [`Op`] is one operator. Its semantics are ONNX's (opset 18 unless a
//! newer one says more), with every shape operand already an attribute. Operators fall into
//! families ([`Family`]), and a family has one file, which says of each of its operators what is
//! true on every backend:
//!
//! - [`Op::arity`] and [`Op::infer`]: how many operands it takes, and result types from theirs;
//! - [`Op::in_place_pairs`]: which output may take which input's bytes;
//! - [`Op::cuts`]: along which axes it may be cut into parts;
//! - [`Op::work`]: its arithmetic and memory traffic;
//! - [`Op::moves_elements`] and [`Op::narrowing`]: whether it looks at elements, and what it has to
//!   do with `bf16`.
//!
//! Nothing of this has a default. A backend says the rest: scratch ([`Op::scratch_bytes`]), the
//! order of sums ([`Op::sum_order`]), and whether a library may compute it ([`Op::may_use_library`]).
//!
//! Arithmetic on [`DType::Bf16`](crate::types::DType::Bf16) is that on `f32`: operands are widened,
//! results rounded once. Statistics beside a `bf16` operand are `f32`, as are a normalisation's
//! factors with their gradients, a mask of attention, and the gradient in a `ProductUpdate`.
//!
//! An operand that ONNX calls optional is either present at its usual position or, when
//! absent, the last ones are left off; flags say so where one in the middle is missing.
//!
//! # Adding an operator
//!
//! Add its variant to the list in `operators.rs`, under its family, and its row to the family's file. Where a family
//! does not answer as a whole, the compiler then asks
//! - in `backends/src/cpu` and `cuda` for scratch, the order of sums and the types that there are kernels for;
//! - in `runtime/src/cpu/mod.rs`, and in the family's file of `runtime/src/cuda`, for the kernels;
//! - in `passes/src/differentiate/rules` for the gradient, and in `roles.rs` beside it what a weight is that it reads;
//! - in `passes/src/accumulate/rules.rs` and `shard/needs.rs` what a part of the batch's rows makes of it;
//! - in `src/onnx/export/ops.rs` how it is written. A row in `src/onnx/ops` imports it.
//!
//! Tests ask for cases: `ir/tests/extents.rs` walks over all operators; `tests/differential` wants a generator for each
//! row of the importer; the in-place tests of both backends want operands for each operator with pairs
//! (`runtime/tests/support/pairs.rs`). What nobody says is no promise: an unknown order of sums keeps no bits.

mod attention;
mod attributes;
pub mod channels_last;
mod collective;
mod convolution;
mod cut;
mod elementwise;
mod error;
mod extents;
mod family;
pub mod fused_norm;
pub mod gelu;
mod indexing;
mod movement;
mod narrowing;
mod norm;
mod opaque;
mod operators;
mod padding;
mod pointwise;
mod pool;
mod product;
mod random;
mod recurrence;
mod reducing;
mod resize;
mod rows;
mod scalar;
mod softmax;
mod update;
mod window;
mod work;
mod wrapping;

pub use attention::Matrices;
pub use attributes::{AttentionDropout, AttentionSpec, PoolIndices, Reduction, Rng, Scatter};
pub use collective::{MAX_RANKS, part_type};
pub use cut::{Assembly, Cut};
pub use error::{MAX_RANK, TypeError};
pub use extents::Extents;
pub use narrowing::{Bf16Role, Narrowing};
pub use operators::{Family, Op, families};
pub use padding::{PaddedAxis, Padding};
pub use pointwise::{Kind, MAX_OPERANDS, MAX_STEPS, Step, kinds};
pub use product::ProductOperands;
pub use recurrence::{Activation, Recurrence};
pub use resize::{
    Coordinates, Crop, Interpolation, NearestMode, Places, Position, Positions, ResizeSpec, Scale,
};
pub use scalar::{Binary, BinaryRow, Gradient, GradientStep, Kept, Takes, Unary, UnaryRow};
pub use window::Window;
pub use work::{Work, WorkKind};
