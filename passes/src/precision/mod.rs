//! Products in `bf16` beside state in `f32`, and activations in two bytes.
//!
//! Mixed precision as in "Mixed Precision Training" (Micikevicius et al., 2018) with the formats of
//! "A Study of BFLOAT16 for Deep Learning Training" (Kalamkar et al., 2019): products, convolutions
//! and attention take operands of `bf16` and add in `f32`; states, inputs, outputs, updates, losses
//! and statistics stay `f32`. A `bf16` has the exponents of an `f32`, so that gradients neither
//! overflow nor vanish and the loss is not scaled. What lies between products follows where all
//! that it reads is `bf16` already ([`choose`]); elementwise operators go on computing in `f32`, and
//! what several nodes read of them is stored in two bytes.
//!
//! A product rounds what it was added to, too, if that is an operand of it. So where a `gemm` adds a matrix of `f32`,
//! which may be a sum that grows from round to round, a state or a residual stream, the product stands alone, and its
//! `bf16` is added in `f32`: a term is rounded and the sum never. So it is where the sum is a gradient that leads to
//! nothing but updates, which has as many terms as its weight has uses. A bias is read for many elements and cast
//! as any other parameter; a matrix that is `bf16` already is a term like the product, and stays an operand.
//! It takes no more memory than a product that adds in `bf16`, which needs what it adds to in that type.
//!
//! Sound up to rounding: a value is rounded to 8 bits where a `cast` stands in the rewritten graph
//! or an operator gives `bf16`, and nowhere else; casting a `bf16` up changes nothing. A value in
//! `f32` is cast down once, for all that read it; one in `bf16` is cast up for each reader, so that
//! its `f32` form lives no longer than a reader runs, and `fuse_elementwise` can take it in.

mod choose;
mod rewrite;

use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::Graph;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Computes products in `bf16` beside state in `f32`, and stores activations in two bytes.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Precision {
    /// Type that products are computed in.
    pub to: Format,
}

/// What products are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// As everything else.
    F32,
    /// Operands of `bf16`, sums of `f32`.
    #[default]
    Bf16,
}

impl GraphPass for Precision {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        if self.to == Format::F32 {
            return Ok(Stats::new());
        }
        let choice = choose::choose(g);
        Ok(rewrite::rewrite(g, &choice)?)
    }
}
