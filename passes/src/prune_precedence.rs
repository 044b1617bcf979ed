//! Precedence pruning: which pairs of buffers can never be alive together.
//!
//! Two sufficient conditions (OLLA, section 4.2): the maximum useful lifetimes do not
//! overlap, or all readers of one buffer are in the transitive fan-in of the other's writer.
//! Sound because both hold in every order. No pair is stored; programs that decide about
//! addresses ask the fact pair by pair and leave the constraints of such pairs out.

use crate::{Cx, PassError, PlanOutcome, PlanPass, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{BufferId, Fact, Plan, Precedence};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Finds pairs of buffers that are alive together in no order.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrunePrecedence {}

/// Statistics look at every pair; beyond this many buffers only spans are counted.
const MAX_COUNTED: usize = 1_000;

impl PlanPass for PrunePrecedence {
    fn needs(&self) -> &[Fact] {
        &[Fact::Spans]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Precedence]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, _: &Cx) -> Result<PlanOutcome, PassError> {
        let precedence = Precedence::new(g, plan)?;
        let buffers: Vec<BufferId> = plan.buffers.keys().collect();
        let pairs = buffers.len() * buffers.len().saturating_sub(1) / 2;
        let mut stats = Stats::from([
            ("pairs", pairs as u64),
            ("pruned_by_spans", apart_by_spans(plan, &buffers)?),
        ]);
        if buffers.len() <= MAX_COUNTED {
            let by_fan_in = buffers.iter().enumerate().map(|(i, &a)| {
                let pruned = |&&b: &&BufferId| {
                    !precedence.spans_apart(a, b)
                        && (precedence.precedes(a, b) || precedence.precedes(b, a))
                };
                buffers[..i].iter().filter(pruned).count() as u64
            });
            stats.insert("pruned_by_fan_in", by_fan_in.sum());
        }
        plan.set_precedence(precedence);
        Ok(stats.into())
    }
}

/// Pairs whose maximum useful lifetimes do not overlap: for each buffer those that end
/// before it begins.
fn apart_by_spans(plan: &Plan, buffers: &[BufferId]) -> Result<u64, PassError> {
    let spans = plan.spans()?;
    let mut ends: Vec<u32> =
        buffers.iter().filter_map(|&b| spans.useful[b]).map(|r| r.last).collect();
    ends.sort_unstable();
    let before = |first: u32| ends.partition_point(|&end| end < first) as u64;
    let used = ends.len() as u64;
    let unused = buffers.len() as u64 - used;
    let disjoint: u64 =
        buffers.iter().filter_map(|&b| spans.useful[b]).map(|r| before(r.first)).sum();
    // A buffer that no task uses is apart from every other.
    Ok(disjoint + unused * used + unused * unused.saturating_sub(1) / 2)
}
