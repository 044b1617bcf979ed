//! Spans: the earliest and the latest position of every task, and with them when each
//! buffer may and must be alive.
//!
//! ASAP is the longest path from the start, ALAP the last position minus the longest path
//! to the end; MUL and PRES follow (OLLA, section 4.1, equations 10–12). Sound for every
//! order that runs one task per position: all tasks on a path take a position each. Levels
//! are not capped at the critical path, which would rule such orders out.

use crate::{Cx, PassError, PlanOutcome, PlanPass, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{BufferKind, Fact, LiveRange, Plan, Spans as Table};
use cranelift_entity::SecondaryMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Computes the ASAP and ALAP position of every task, and each buffer's MUL and PRES range.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Spans {}

impl PlanPass for Spans {
    fn needs(&self) -> &[Fact] {
        &[]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Spans]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, _: &Cx) -> Result<PlanOutcome, PassError> {
        let spans = spans(g, plan);
        let path = plan.tasks.keys().map(|t| spans.asap[t] + 1).max().unwrap_or(0);
        let fixed = plan.tasks.keys().filter(|&t| spans.asap[t] == spans.alap[t]).count();
        plan.set_spans(spans);
        Ok(Stats::from([("critical_path", u64::from(path)), ("fixed_tasks", fixed as u64)]).into())
    }
}

/// The spans of the plan's tasks and buffers.
pub(crate) fn spans(g: &Graph, plan: &Plan) -> Table {
    let mut spans = Table::default();
    let order = plan.topological(g);
    let last = order.len().saturating_sub(1) as u32;
    let mut after: SecondaryMap<_, Vec<_>> = SecondaryMap::new();
    for (a, b) in plan.dependences(g) {
        after[a].push(b);
    }
    for &t in &order {
        for &next in &after[t] {
            spans.asap[next] = spans.asap[next].max(spans.asap[t] + 1);
        }
    }
    for &t in order.iter().rev() {
        let least = after[t].iter().map(|&next| spans.alap[next]).min();
        spans.alap[t] = least.map_or(last, |l| l.saturating_sub(1));
    }
    // First and last position at which each buffer is surely, or may be, in use.
    let mut used: SecondaryMap<_, Option<Use>> = SecondaryMap::new();
    let mut touch = |b, (asap, alap): (u32, u32), writes: bool| {
        let u = used[b].get_or_insert(Use { asap, alap, last_asap: asap, last_alap: alap });
        if writes {
            (u.asap, u.alap) = (asap, alap);
        }
        u.last_asap = u.last_asap.max(asap);
        u.last_alap = u.last_alap.max(alap);
    };
    for (t, task) in &plan.tasks {
        let span = (spans.asap[t], spans.alap[t]);
        task.reads.iter().for_each(|&b| touch(b, span, false));
        task.writes.iter().flatten().chain(&task.scratch).for_each(|&b| touch(b, span, true));
    }
    for (b, buffer) in &plan.buffers {
        match buffer.kind {
            BufferKind::Input | BufferKind::Enter(_) => touch(b, (0, 0), true),
            BufferKind::Const => {
                touch(b, (0, 0), true);
                touch(b, (last, last), false);
            }
            BufferKind::Exit(_) => touch(b, (last, last), false),
            BufferKind::Value | BufferKind::Scratch => {}
        }
    }
    let carried = g.states.values().filter(|s| g.resolve(s.exit).root == s.enter);
    let at_the_end = g.outputs.iter().map(|o| g.resolve(o.value).root);
    for root in at_the_end.chain(carried.map(|s| s.enter)) {
        if let Some(b) = plan.buffer_of[root] {
            touch(b, (last, last), false);
        }
    }
    for b in plan.buffers.keys() {
        let Some(u) = used[b] else { continue };
        spans.useful[b] = Some(LiveRange { first: u.asap, last: u.last_alap });
        // Equation 12 with the position of the writer itself: there the buffer is created.
        spans.preserved[b] =
            (u.alap <= u.last_asap).then_some(LiveRange { first: u.alap, last: u.last_asap });
    }
    spans
}

/// When a buffer is written, and when its last reader runs.
#[derive(Clone, Copy)]
struct Use {
    asap: u32,
    alap: u32,
    last_asap: u32,
    last_alap: u32,
}
