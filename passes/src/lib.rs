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
pub mod drop_layers;
pub mod early_update;
mod error;
pub mod explain;
pub mod feed_constants;
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
pub mod report;
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
mod tail;
pub mod views;
pub mod yaml;

pub use error::PassError;
pub use homes::{Pinned, StateHomes};
pub use pass::{
    Cx, Evaluate, GraphPass, InParts, PlanOutcome, PlanPass, ProgramPass, Purpose, Stats, Strategy,
    Turns,
};
pub use registry::{Pass, PassInfo};
pub use report::{Minimum, PlanReport, StepTimes};
pub use residency::{Problem, StrategyResult};
pub use search::{Progress, Search};

registry::passes! {
    graph fold_constants::FoldConstants,
    graph dead_code::DeadCode,
    graph fuse_transposes::FuseTransposes,
    graph differentiate::Differentiate in "differentiate/mod.rs",
    graph shard::Shard in "shard/mod.rs",
    graph accumulate::Accumulate in "accumulate/mod.rs",
    graph views::Views,
    graph raise::Raise in "raise/mod.rs",
    graph attention::Attention in "attention/mod.rs",
    graph fuse_cross_entropy::FuseCrossEntropy,
    graph fuse_updates::FuseUpdates in "fuse_updates/mod.rs",
    graph fuse_sums::FuseSums,
    graph fuse_gelu::FuseGelu in "fuse_gelu/mod.rs",
    graph precision::Precision in "precision/mod.rs",
    graph layout::Layout in "layout/mod.rs",
    graph fuse_elementwise::FuseElementwise in "fuse_elementwise/mod.rs",
    graph section::Section in "section/mod.rs",
    graph detach_states::DetachStates,
    plan streams::Streams,
    plan spans::Spans,
    plan early_update::EarlyUpdate,
    plan prune_precedence::PrunePrecedence,
    plan order::Order in "order/mod.rs",
    plan order_ilp::OrderIlp,
    plan order_place_ilp::OrderPlaceIlp,
    strategy budget::Budget in "budget/mod.rs",
    strategy swap_autoswap::SwapAutoswap in "swap_autoswap/mod.rs",
    strategy plan_dqn::PlanDqn in "plan_dqn/mod.rs",
    strategy recompute::Recompute in "recompute/mod.rs",
    strategy swap_ilp::SwapIlp in "swap_ilp/mod.rs",
    plan share_in_place::ShareInPlace,
    plan share_parallel::ShareParallel,
    plan place::Place in "place/mod.rs",
    plan place_pyramid::PlacePyramid,
    plan place_smartpool::PlaceSmartpool,
    plan place_ilp::PlaceIlp,
    program lower::Lower,
    program sync::Sync,
}
