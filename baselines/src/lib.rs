//! Planners of single papers, as passes of arenic to compare its own with.
//!
//! No other pipeline needs them: `order`, `budget` and `place` are what arenic plans with, and `budget` keeps
//! limits that these refuse. They are what those are measured against, so they follow their papers;
//! the head of each file says where it departs from one. They are a crate of their own because one of them runs
//! what it plans with: the network of [`plan_dqn`] is trained by arenic's runtime. Whoever reads a pipeline
//! says that it may name them by [`WithBaselines`] instead of [`Standard`](arenic_passes::Standard), which has OLLA's
//! alone; the command and the Python package do.
//!
//! | paper | passes | pipeline |
//! |---|---|---|
//! | Zhang et al., "Efficient Memory Management for GPU-based Deep Learning Systems": SmartPool and AutoSwap | [`place_smartpool`], [`swap_autoswap`] | `smartpool`, `autoswap` |
//! | Park et al., "Transparent GPU Memory Management for DNNs", PPoPP 2018: tvDNN | [`swap_ilp`] | `tvdnn` |
//! | "GPU memory management for deep neural networks using deep Q-network" (anonymous, under review) | [`plan_dqn`] | `dqn` |
//! | Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016) | [`recompute`], its methods `sqrt` and `greedy` | `recompute` |
//! | Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020 | [`recompute_ilp`] | `checkmate` |
//! | "Squeeze the Memory Consumption of Deep Learning", MXNet's note on memory | `share_parallel`, of the standard passes | `mxnet` |
//!
//! The pipeline `definition` is what a plain runtime would need: definition order, no sharing, first fit.

#[cfg(test)]
mod fixtures;
pub mod place_smartpool;
pub mod plan_dqn;
pub mod recompute;
pub mod recompute_ilp;
pub mod swap_autoswap;
pub mod swap_ilp;

/// The named pipelines of this crate: name and YAML.
pub const NAMED: &[(&str, &str)] = &[
    ("definition", include_str!("pipelines/definition.yaml")),
    ("smartpool", include_str!("pipelines/smartpool.yaml")),
    ("autoswap", include_str!("pipelines/autoswap.yaml")),
    ("dqn", include_str!("pipelines/dqn.yaml")),
    ("mxnet", include_str!("pipelines/mxnet.yaml")),
    ("checkmate", include_str!("pipelines/checkmate.yaml")),
    ("recompute", include_str!("pipelines/recompute.yaml")),
    ("tvdnn", include_str!("pipelines/tvdnn.yaml")),
];

arenic_passes::passes! {
    /// The standard passes and pipelines, and those of this crate.
    pub struct WithBaselines beside arenic_passes::Standard, pipelines NAMED;
    strategy swap_autoswap::SwapAutoswap in "swap_autoswap/mod.rs",
    strategy plan_dqn::PlanDqn in "plan_dqn/mod.rs",
    strategy recompute::Recompute in "recompute/mod.rs",
    strategy recompute_ilp::RecomputeIlp in "recompute_ilp/mod.rs",
    strategy swap_ilp::SwapIlp in "swap_ilp/mod.rs",
    plan place_smartpool::PlaceSmartpool,
}
