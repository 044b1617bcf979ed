//! OLLA's placement without its integer program: the pyramid (function 5; see
//! [`crate::place::pyramid`]), then everything else by decreasing size, each in the
//! smallest gap that is large enough.
//!
//! Sound because nested lives are stacked, and the rest is only put into gaps between what
//! is alive at the same time.

use crate::place::{Fit, Placer, Problem, Sequence, Solution, Wish, one_pass, pyramid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Places nested lifetimes as a pyramid (OLLA, function 5), the rest by best fit.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlacePyramid {}

impl Placer for PlacePyramid {
    fn place(&self, p: &Problem, wish: &Wish) -> Solution {
        let pass = (Sequence::Size, Fit::Best);
        // Unlimited work always ends in a placement.
        let offsets = one_pass(p, pass, &pyramid(p), &mut u64::MAX.clone());
        Solution::of(p, offsets.unwrap_or_default(), "pyramid", wish.capacity)
    }
}
