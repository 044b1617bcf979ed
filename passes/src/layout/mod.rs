//! Channels last where convolutions gain.
//!
//! Tensor cores multiply along channels: a library that computes a convolution from images,
//! channels, rows, columns turns its tensors before and after ("Convolutional Layers User's Guide",
//! NVIDIA, §Tensor Layouts), which [`Device::kernel_seconds`](arenic_ir::cost::Device::kernel_seconds)
//! counts. Here a region of the graph has its channels last instead ([`Op::ChannelsLast`]):
//! convolutions, and what is indifferent between them ([`crate::turn`]). Transposes stand where the region
//! ends.
//!
//! Which operators are in it is a least cut ([`choose`]): an operator costs what it takes more on its
//! side, a tensor whose maker and reader lie on different sides costs a transpose, one for all
//! readers. So no other region of this graph takes less time by these estimates. A state is turned
//! for each reader, so that no second copy of it lives from the forward to the backward part.
//!
//! The named pipelines have it for GPUs alone: a CPU's convolutions take channels first, and nothing would be turned.
//!
//! Sound because every operator computes the same elements from the same elements, which lie in
//! other places. Sums along several axes, those of normalisations, may be added in another order.

mod costs;
#[cfg(test)]
mod tests;

use crate::dead_code::DeadCode;
use crate::turn::{Axes, choose, rewrite};
use crate::views::Views;
use crate::{Cx, GraphPass, PassError, Stats, devices};
use arenic_ir::{Graph, Op};
use costs::Costs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Stores tensors with their channels last where convolutions gain by it.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Layout {
    /// Which convolutions.
    pub convolutions: Convolutions,
}

/// Which convolutions have their channels last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Convolutions {
    /// Those by which the step gains time, as the device is described.
    #[default]
    Gaining,
    /// All of them.
    All,
}

impl GraphPass for Layout {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let device = devices::or_cpu(cx.device)?;
        let (target, convolutions) = (cx.target, self.convolutions);
        let costs = Costs { device: &device, target, convolutions };
        let turned = choose(g, &Axes::ChannelsLast, &costs);
        let count = turned.values().filter(|t| **t).count() as u64;
        if count > 0 {
            rewrite(g, &Axes::ChannelsLast, &turned)?;
            DeadCode {}.run(g, cx)?;
            Views {}.run(g, cx)?;
        }
        let transposes = g.nodes.values().filter(|node| matches!(node.op, Op::Transpose { .. }));
        let transposes = transposes.count() as u64;
        Ok(Stats::from([("channels_last", count), ("transposes", transposes)]))
    }
}
