//! Planners of single papers, as passes of arenic to compare its own with.
//!
//! No pipeline for users needs them: `order`, `budget` and `place` are what arenic plans with, and `budget` keeps
//! limits that these refuse. They are what those are measured against (BENCHMARKS.md), so they follow their papers;
//! the head of each file says where it departs from one. Whoever reads a
//! pipeline says whether it may name them: [`WithBaselines`] instead of
//! [`Standard`](arenic_passes::Standard). The binary `arenic` knows them if it is built with the feature
//! `baselines`.
//!
//! | paper | passes | pipeline |
//! |---|---|---|
//! | Steiner et al., "OLLA: Optimizing the Lifetime and Location of Arrays to Reduce the Memory Usage of Neural Networks", later "MODeL" | [`spans`], [`early_update`], [`prune_precedence`], [`order_ilp`], [`order_place_ilp`], [`place_pyramid`], [`place_ilp`] | `olla` |
//! | Zhang et al., "Efficient Memory Management for GPU-based Deep Learning Systems": SmartPool and AutoSwap | [`place_smartpool`], [`swap_autoswap`] | `smartpool`, `autoswap` |
//! | Park et al., "Transparent GPU Memory Management for DNNs", PPoPP 2018: tvDNN | [`swap_ilp`] | `tvdnn` |
//! | "GPU memory management for deep neural networks using deep Q-network" (anonymous, under review) | [`plan_dqn`] | `dqn` |
//! | Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016) | [`recompute`], its methods `sqrt` and `greedy` | `recompute` |
//! | "Squeeze the Memory Consumption of Deep Learning", MXNet's note on memory | `share_parallel`, of the standard passes | `mxnet` |
//!
//! The pipeline `definition` is what a plain runtime would need: definition order, no sharing, first fit.

pub mod early_update;
#[cfg(test)]
mod fixtures;
pub mod order_ilp;
pub mod order_place_ilp;
pub mod place_ilp;
pub mod place_pyramid;
pub mod place_smartpool;
pub mod plan_dqn;
pub mod prune_precedence;
pub mod recompute;
pub mod spans;
pub mod swap_autoswap;
pub mod swap_ilp;

/// The named pipelines of this crate: name and YAML.
pub const NAMED: &[(&str, &str)] = &[
    ("definition", include_str!("pipelines/definition.yaml")),
    ("olla", include_str!("pipelines/olla.yaml")),
    ("smartpool", include_str!("pipelines/smartpool.yaml")),
    ("autoswap", include_str!("pipelines/autoswap.yaml")),
    ("dqn", include_str!("pipelines/dqn.yaml")),
    ("mxnet", include_str!("pipelines/mxnet.yaml")),
    ("recompute", include_str!("pipelines/recompute.yaml")),
    ("tvdnn", include_str!("pipelines/tvdnn.yaml")),
];

arenic_passes::passes! {
    /// The standard passes and pipelines, and those of this crate.
    pub struct WithBaselines beside arenic_passes::Standard, pipelines NAMED;
    plan spans::Spans,
    plan early_update::EarlyUpdate,
    plan prune_precedence::PrunePrecedence,
    plan order_ilp::OrderIlp in "order_ilp/mod.rs",
    plan order_place_ilp::OrderPlaceIlp,
    strategy swap_autoswap::SwapAutoswap in "swap_autoswap/mod.rs",
    strategy plan_dqn::PlanDqn in "plan_dqn/mod.rs",
    strategy recompute::Recompute in "recompute/mod.rs",
    strategy swap_ilp::SwapIlp in "swap_ilp/mod.rs",
    plan place_pyramid::PlacePyramid,
    plan place_smartpool::PlaceSmartpool,
    plan place_ilp::PlaceIlp,
}
