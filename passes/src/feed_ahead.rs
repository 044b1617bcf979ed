//! Room in the arena where large inputs of the next step wait while a step runs.
//!
//! An input's home is used for other tensors once the step has read it, so that the next batch comes to a device
//! only after the step has ended: 154 MB of images take some 3 ms of a GPU's PCIe. Here it gets bytes of its own
//! above all others, where it is put meanwhile and from where it is copied home, a thirtieth of that time. Sound because nothing
//! else uses these bytes, which the checker holds.
//!
//! Only where a byte limit has room for it, and for a step that takes turns with no other: what the next step is
//! is known then. It is for GPUs: a CPU's inputs are where they are. This is the prefetching of data loaders, in the same
//! arena.

use crate::{Cx, PassError, ProgramPass, Stats, Turns};
use arenic_ir::graph::{Def, Graph};
use arenic_ir::plan::{Fact, Plan};
use arenic_ir::program::{Home, Program, Range, Space};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lets large inputs of the next step be fed while a step runs.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FeedAhead {
    /// Bytes of an input from which on it is worth its room.
    pub least_bytes: u64,
}

impl Default for FeedAhead {
    fn default() -> Self {
        FeedAhead { least_bytes: 1 << 20 }
    }
}

impl ProgramPass for FeedAhead {
    fn needs(&self) -> &[Fact] {
        &[Fact::Placement]
    }

    fn run(&self, g: &Graph, _: &Plan, program: &mut Program, cx: &Cx) -> Result<Stats, PassError> {
        let none = Stats::from([("inputs", 0), ("bytes", 0)]);
        if cx.turns != Turns::Alone {
            return Ok(none);
        }
        let is_large = |h: &&Home| {
            matches!(g.values[h.value].def, Def::Input) && h.range.len >= self.least_bytes
        };
        let (align, below) = (program.target.align, program.sizes.device);
        let mut top = below;
        let mut ahead = Vec::new();
        for home in program.homes.iter().filter(is_large) {
            let offset = top.next_multiple_of(align);
            let range = Range { space: Space::Device, offset, len: home.range.len };
            ahead.push(Home { value: home.value, range });
            top = range.end().next_multiple_of(align);
        }
        if ahead.is_empty() || cx.limits.device.is_some_and(|limit| top > limit) {
            return Ok(none);
        }
        let inputs = ahead.len() as u64;
        (program.ahead, program.sizes.device) = (ahead, top);
        Ok(Stats::from([("inputs", inputs), ("bytes", top - below)]))
    }
}
