//! The passes of arenic and the pipeline that runs them.
//!
//! A pass is one file and one line in the list below. Its struct *is* its YAML entry:
//! fields are options with defaults, unknown ones are refused, and the first line of its
//! doc comment is its help.

pub mod cluster;
pub mod devices;
pub mod pipeline;
mod registry;
pub mod search;
pub mod simulate;

pub mod accumulate;
pub mod attention;
pub mod budget;
pub mod certificate;
pub mod dead_code;
pub mod detach_states;
pub mod differentiate;
pub mod early_update;
mod error;
#[cfg(test)]
mod fixtures;
mod flow;
pub mod fold_constants;
pub mod fuse_cross_entropy;
pub mod fuse_elementwise;
pub mod fuse_gelu;
pub mod fuse_sums;
pub mod fuse_transposes;
pub mod fuse_updates;
mod homes;
pub mod layout;
pub mod lower;
mod minimum;
mod mip;
pub mod order;
pub mod order_ilp;
pub mod order_place_ilp;
mod pass;
pub mod place;
pub mod place_ilp;
pub mod place_pyramid;
pub mod place_smartpool;
pub mod plan_dqn;
pub mod precision;
pub mod prune_precedence;
pub mod raise;
pub mod recompute;
mod residency;
mod rewrite;
pub mod rounds;
pub mod section;
pub mod shard;
mod share;
pub mod share_in_place;
pub mod share_parallel;
pub mod spans;
pub mod streams;
pub mod swap_autoswap;
pub mod swap_ilp;
pub mod sync;
pub mod views;
pub mod yaml;

pub use error::PassError;
pub use homes::StateHomes;
pub use minimum::Minimum;
pub use pass::{
    Cx, Evaluate, GraphPass, OffersVariants, PlanPass, ProgramPass, Purpose, Stats, Turns, Variants,
};
pub use registry::{Pass, PassInfo};
pub use search::{Progress, Search};

registry::passes! {
    graph fold_constants::FoldConstants,
    graph dead_code::DeadCode,
    graph fuse_transposes::FuseTransposes,
    graph differentiate::Differentiate,
    graph shard::Shard,
    graph accumulate::Accumulate,
    graph views::Views,
    graph raise::Raise,
    graph attention::Attention,
    graph fuse_cross_entropy::FuseCrossEntropy,
    graph fuse_updates::FuseUpdates,
    graph fuse_sums::FuseSums,
    graph fuse_gelu::FuseGelu,
    graph precision::Precision,
    graph layout::Layout,
    graph fuse_elementwise::FuseElementwise,
    graph section::Section,
    graph detach_states::DetachStates,
    plan streams::Streams,
    plan spans::Spans,
    plan early_update::EarlyUpdate,
    plan prune_precedence::PrunePrecedence,
    plan order::Order,
    plan order_ilp::OrderIlp,
    plan order_place_ilp::OrderPlaceIlp,
    plan budget::Budget,
    plan swap_autoswap::SwapAutoswap,
    plan plan_dqn::PlanDqn,
    plan recompute::Recompute,
    plan swap_ilp::SwapIlp,
    plan share_in_place::ShareInPlace,
    plan share_parallel::ShareParallel,
    plan place::Place,
    plan place_pyramid::PlacePyramid,
    plan place_smartpool::PlaceSmartpool,
    plan place_ilp::PlaceIlp,
    program lower::Lower,
    program sync::Sync,
}
