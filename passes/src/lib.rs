//! The passes of arenic and the pipeline that runs them.
//!
//! A pass is one file, its `mod`, and one line in the list below ([`Standard`]). Its struct *is* its YAML entry:
//! fields are options with defaults, unknown ones are refused, and the first line of its
//! doc comment is its help. Another crate adds passes of its own to the list by [`passes!`]; the planners of most
//! single papers are such a crate, `arenic-baselines`. OLLA's, which this project began with, are here:
//!
//! | Steiner et al., "OLLA: Optimizing the Lifetime and Location of Arrays to Reduce the Memory Usage of Neural Networks", later "MODeL" | |
//! |---|---|
//! | spans, pruned pairs (sections 4.1, 4.2) | [`spans`], [`prune_precedence`] |
//! | control edges for early updates (4.3, functions 3 and 4) | [`early_update`] |
//! | order by integer program (program 14) | [`order_ilp`] |
//! | pyramid, addresses by integer program (function 5, program 15) | [`place_pyramid`], [`place_ilp`] |
//! | order and addresses at once (program 9) | [`order_place_ilp`] |
//!
//! The pipeline `olla` is the paper's sequence of them.

pub mod cluster;
pub mod devices;
pub mod pipeline;
pub mod registry;
pub mod search;
pub mod simulate;

pub mod accumulate;
pub mod align_classes;
pub mod attention;
pub mod attention_sums;
pub mod budget;
pub mod certificate;
mod commits;
pub mod dead_code;
pub mod detach_states;
pub mod differentiate;
pub mod drop_layers;
pub mod early_update;
mod error;
pub mod explain;
pub mod feed_ahead;
pub mod feed_constants;
mod flow;
pub mod fold_constants;
pub mod fuse_cross_entropy;
pub mod fuse_elementwise;
pub mod fuse_gelu;
pub mod fuse_norms;
pub mod fuse_sums;
pub mod fuse_transposes;
pub mod fuse_updates;
pub mod group_updates;
mod homes;
mod largest;
pub mod layout;
pub mod limit;
pub mod lower;
pub mod mip;
pub mod order;
pub mod order_ilp;
pub mod order_place_ilp;
pub mod overlap;
pub mod pack_attention;
mod pass;
pub mod patch_products;
pub mod place;
pub mod place_ilp;
pub mod place_pyramid;
pub mod pool_taps;
pub mod precision;
pub mod prune_precedence;
pub mod raise;
pub mod recompute;
pub mod report;
pub mod residency;
mod rewrite;
pub mod rounds;
pub mod scores;
pub mod section;
pub mod shard;
mod share;
pub mod share_in_place;
pub mod share_parallel;
pub mod sink_scatters;
pub mod sink_transposes;
pub mod spans;
pub mod strategy;
pub mod streams;
pub mod sync;
pub mod tail;
mod turn;
pub mod views;
pub mod yaml;

pub use error::PassError;
pub use homes::{Pinned, StateHomes};
pub use pass::{
    Cx, Evaluate, GraphPass, InParts, PlanOutcome, PlanPass, ProgramPass, Purpose, Stats, Turns,
};
pub use registry::{Pass, PassInfo, PassSet};
pub use report::{Minimum, PlanReport, StepTimes};
pub use search::{Progress, Search};
pub use strategy::{Problem, Strategy, StrategyResult};

crate::passes! {
    /// The passes of this crate, and the pipelines made of them.
    pub struct Standard beside (), pipelines pipeline::NAMED;
    graph fold_constants::FoldConstants,
    graph dead_code::DeadCode,
    graph fuse_transposes::FuseTransposes,
    graph differentiate::Differentiate in "differentiate/mod.rs",
    graph shard::Shard in "shard/mod.rs",
    graph accumulate::Accumulate in "accumulate/mod.rs",
    graph views::Views,
    graph raise::Raise in "raise/mod.rs",
    graph attention::Attention in "attention/mod.rs",
    graph pool_taps::PoolTaps,
    graph patch_products::PatchProducts,
    graph sink_transposes::SinkTransposes,
    graph attention_sums::AttentionSums,
    graph pack_attention::PackAttention,
    graph group_updates::GroupUpdates,
    graph fuse_cross_entropy::FuseCrossEntropy,
    graph sink_scatters::SinkScatters,
    graph fuse_updates::FuseUpdates in "fuse_updates/mod.rs",
    graph fuse_sums::FuseSums,
    graph fuse_gelu::FuseGelu in "fuse_gelu/mod.rs",
    graph precision::Precision in "precision/mod.rs",
    graph layout::Layout in "layout/mod.rs",
    graph align_classes::AlignClasses,
    graph fuse_elementwise::FuseElementwise in "fuse_elementwise/mod.rs",
    graph fuse_norms::FuseNorms in "fuse_norms/mod.rs",
    graph section::Section in "section/mod.rs",
    graph detach_states::DetachStates,
    plan streams::Streams,
    plan spans::Spans,
    plan early_update::EarlyUpdate,
    plan prune_precedence::PrunePrecedence,
    plan order_ilp::OrderIlp in "order_ilp/mod.rs",
    plan order_place_ilp::OrderPlaceIlp,
    plan order::Order in "order/mod.rs",
    strategy budget::Budget in "budget/mod.rs",
    plan overlap::Overlap in "overlap/mod.rs",
    plan share_in_place::ShareInPlace,
    plan share_parallel::ShareParallel,
    plan place::Place in "place/mod.rs",
    plan place_pyramid::PlacePyramid,
    plan place_ilp::PlaceIlp,
    program lower::Lower,
    program sync::Sync,
    program feed_ahead::FeedAhead,
}
