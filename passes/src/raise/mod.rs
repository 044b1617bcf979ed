//! One operator in the place of several into which exporters have taken it apart.
//!
//! Exporters lower a convolution's backward pass to what inference has: the gradient of its
//! weight becomes a convolution of transposed operands whose result is transposed again
//! ([`conv`]), and that of its operand may be one of a weight turned around. As one operator it
//! needs no copies of a layer's activations, and a backend can hand it to a library. Normalisations and their gradients become chains of arithmetic ([`norm`]),
//! which are told by what they compute of their operands ([`crate::rewrite`]); two bounds become a minimum of a
//! maximum ([`clamp`]). Sound because both sides are the same sums of the same terms; a kernel may take them in another
//! order, so the last bits may differ.

mod clamp;
mod conv;
mod norm;

use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::Graph;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Recognises what exporters have taken apart: convolutions' gradients, normalisations, bounds.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Raise {}

impl GraphPass for Raise {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let weight_gradients = conv::weight_gradients(g)?;
        let operand_gradients = conv::operand_gradients(g);
        let norms = norm::normalisations(g)?;
        let clamps = clamp::clamps(g)?;
        Ok(Stats::from([
            ("weight_gradients", weight_gradients),
            ("operand_gradients", operand_gradients),
            ("layer_norms", norms.layer_norms),
            ("layer_norm_gradients", norms.layer_norm_gradients),
            ("batch_norms", norms.batch_norms),
            ("batch_norm_gradients", norms.batch_norm_gradients),
            ("clamps", clamps),
        ]))
    }
}
