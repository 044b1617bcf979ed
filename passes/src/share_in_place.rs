//! In-place sharing: an output takes over an input's slot, a state's exit value is
//! written straight home.
//!
//! From the MXNet note ("Squeeze the Memory Consumption of Deep Learning"): an output
//! may take an input's bytes only where the operator declares the pair and no one reads
//! the input later. Sound because a declared kernel reads each element before it writes
//! there, and because live ranges say that nothing else needs the old value: not a later
//! reader, not an output, not another operand of the same task.
//!
//! A state's exit value lives in the state's home when the old value is dead by then;
//! the commit that would copy it home then costs nothing. Constants have a home that
//! nothing may write into.

use crate::share::{self, Sharing};
use crate::{Cx, PassError, PlanOutcome, PlanPass};
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Fact, Plan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lets outputs take over dead inputs' bytes, and exit values their state's home.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShareInPlace {
    /// If false, every buffer keeps bytes of its own.
    pub enabled: bool,
}

impl Default for ShareInPlace {
    fn default() -> Self {
        ShareInPlace { enabled: true }
    }
}

impl PlanPass for ShareInPlace {
    fn needs(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Slots]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, _: &Cx) -> Result<PlanOutcome, PassError> {
        let sharing = Sharing::new(g, plan)?;
        let slots = if self.enabled { sharing } else { sharing.not_in_place() }.assign()?;
        let stats = share::statistics(g, plan, &slots);
        plan.set_slots(slots);
        Ok(stats.into())
    }
}
