//! SmartPool's placement (Zhang et al., "Efficient Memory Management for GPU-based Deep
//! Learning Systems", section III-C): buffers by decreasing size, each into a hole between
//! those that are placed already and alive at the same time.
//!
//! Best fit, the paper's default, takes the smallest hole that is large enough; first fit
//! takes the lowest. Without a hole a buffer goes on top. Sound because holes lie between
//! all neighbours in time.

use arenic_passes::place::{Fit, Placer, Problem, Sequence, Solution, Wish, one_pass};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Places slots by decreasing size, each into a hole among its neighbours (SmartPool).
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlaceSmartpool {
    /// Which hole a slot takes.
    pub fit: Fit,
}

impl Placer for PlaceSmartpool {
    fn place(&self, p: &Problem, wish: &Wish) -> Solution {
        let method = match self.fit {
            Fit::First => "first_fit_by_size",
            Fit::Best => "best_fit_by_size",
        };
        // Unlimited work always ends in a placement.
        let offsets = one_pass(p, (Sequence::Size, self.fit), &[], &mut u64::MAX.clone());
        Solution::of(p, offsets.unwrap_or_default(), method, wish.capacity)
    }
}
