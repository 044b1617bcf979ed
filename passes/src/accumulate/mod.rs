//! Micro-batches: the step runs in rounds, each on an equal part of the batch's rows.
//!
//! The whole step is there already, with its batch: forward and backward part, losses, updates. What
//! each operator makes of a part of the rows follows from the operator table ([`rows`]): parts of
//! results, or terms of sums. Gradients and losses are such sums; they are carried from round to
//! round, in a momentum that takes their terms or in bytes of their own ([`totals`]), and what depends on them
//! runs once, after the last round ([`divide`]). A sum of `bf16` is carried in `f32` and rounded at its end, as the whole
//! batch rounds it once. So the memory of a step is that of one round and of
//! the sums, and one round is planned, however many there are.
//!
//! Sound because every cut is one of the table: parts along an axis are computed as the whole
//! computes them, and terms add up to the whole's sums, in another order. An operator that needs all
//! rows at once, as batch normalisation does for its statistics, is refused by name, unless it
//! depends on inputs alone, as the number of targets that count does: then it runs once on the whole
//! batch, before the first round. Random operators draw for an element what they draw for it in the
//! whole batch.
//!
//! Gradient accumulation is common practice; that it be chosen together with recomputation under one
//! byte limit is Huang et al., "GPipe" (2019), section 2.3, turned round: there micro-batches are
//! given, and recomputation follows.

mod divide;
mod grow;
pub(crate) mod part;
pub(crate) mod rows;
pub(crate) mod rules;
mod totals;

use crate::rounds::{Divides, Division};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::Graph;
use arenic_ir::op::TypeError;
use rows::{Batch, Rows, batches};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Runs the step in rounds, each on a part of the batch's rows.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Accumulate {
    /// How many rounds; without it as many as make the step fastest under the byte limit.
    #[schemars(range(min = 1, max = 65536))]
    pub rounds: Option<usize>,
}

/// Why a step cannot run in rounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccumulateError {
    /// No input holds a batch.
    #[error("the step has no batch to be cut into micro-batches: no input that is read has rows")]
    NoBatch,
    /// The batch has no equal parts.
    #[error("the {extent} rows of `{name}` are no {count} equal micro-batches")]
    Uneven {
        /// The input.
        name: String,
        /// Its rows.
        extent: usize,
        /// Rounds.
        count: usize,
    },
    /// An operator needs all rows at once.
    #[error(
        "{op} `{name}` needs all rows of the batch at once{}, so that the step cannot run in \
         micro-batches with the same result; compile it without --accumulate",
        .sum.as_ref().map_or(String::new(), |sum| format!(" (the sum `{sum}` over them)"))
    )]
    Operator {
        /// The operator.
        op: String,
        /// The node's name, or its result's.
        name: String,
        /// The operand that is a sum over all rows, where that is the reason.
        sum: Option<String>,
    },
    /// A state has a row for each row of the batch.
    #[error(
        "the state `{0}` has rows of the batch, which the next micro-batch would read; compile the \
         step without --accumulate"
    )]
    State(String),
    /// An output that cannot be put together from micro-batches.
    #[error(
        "the output `{0}` cannot be put together from micro-batches; compile the step without \
         --accumulate, or without that output"
    )]
    Output(String),
    /// Types that do not fit: a defect of the pass.
    #[error(transparent)]
    Type(#[from] TypeError),
}

impl GraphPass for Accumulate {
    /// A step in one round is the graph as it is.
    fn run(&self, _: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        Ok(Stats::new())
    }

    fn divides(&self, cx: &Cx) -> Option<&dyn Divides> {
        let is_step = cx.purpose == crate::Purpose::Step;
        let wanted = match self.rounds {
            Some(rounds) => rounds > 1,
            None => cx.limits.device.is_some(),
        };
        (is_step && wanted).then_some(self)
    }
}

impl Divides for Accumulate {
    fn counts(&self, g: &Graph) -> Result<Vec<u32>, PassError> {
        if let Some(rounds) = self.rounds {
            return Ok(vec![u32::try_from(rounds).unwrap_or(u32::MAX)]);
        }
        let mut refusal = AccumulateError::NoBatch;
        for Batch { rows, .. } in batches(g) {
            let mut possible = vec![1];
            for count in (2..=rows).filter(|n| rows.is_multiple_of(*n)) {
                match Rows::new(g, count) {
                    Ok(_) => possible.push(count as u32),
                    Err(e) if refusal == AccumulateError::NoBatch => refusal = e,
                    Err(_) => {}
                }
            }
            if possible.len() > 1 {
                return Ok(possible);
            }
        }
        Err(refusal.into())
    }

    fn divide(&self, g: &Graph, count: u32, _: &Cx) -> Result<Division, PassError> {
        let rows = Rows::new(g, count as usize)?;
        Ok(divide::divide(&rows)?)
    }
}
