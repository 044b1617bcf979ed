//! Updates after the last reader of what they overwrite.
//!
//! An exit value that is computed before its state's old value is dead cannot be written
//! home and needs bytes of its own until the last reader of the old value has run. An order that a list scheduler makes
//! may have such updates. Here they wait for the old value's readers, everything else keeps its turn.

use crate::share::updated_buffers;
use arenic_ir::graph::Graph;
use arenic_ir::plan::{BufferId, Plan, TaskId};
use cranelift_entity::SecondaryMap;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

/// Which tasks wait for which, updates for the readers of what they overwrite included.
pub(super) struct LateUpdates {
    waits: Vec<(TaskId, TaskId)>,
    after: SecondaryMap<TaskId, Vec<TaskId>>,
    blocked: SecondaryMap<TaskId, usize>,
}

impl LateUpdates {
    pub(super) fn new(g: &Graph, plan: &Plan) -> Self {
        let mut late = LateUpdates {
            waits: waits(g, plan),
            after: SecondaryMap::new(),
            blocked: SecondaryMap::new(),
        };
        if late.waits.is_empty() {
            return late;
        }
        for (first, then) in plan.dependences(g).into_iter().chain(late.waits.iter().copied()) {
            late.after[first].push(then);
            late.blocked[then] += 1;
        }
        late
    }

    /// The order with updates late enough to be written home; `None` if it has them so
    /// already, or where an old value is read by what depends on the new one.
    pub(super) fn apply(&self, order: &[TaskId]) -> Option<Vec<TaskId>> {
        let mut position: SecondaryMap<TaskId, usize> = SecondaryMap::new();
        order.iter().enumerate().for_each(|(i, &t)| position[t] = i);
        if self.waits.iter().all(|&(before, after)| position[before] < position[after]) {
            return None;
        }
        let mut blocked = self.blocked.clone();
        let ready = order.iter().filter(|&&t| blocked[t] == 0);
        let mut ready: BinaryHeap<Reverse<usize>> = ready.map(|&t| Reverse(position[t])).collect();
        let mut late = Vec::with_capacity(order.len());
        while let Some(Reverse(i)) = ready.pop() {
            late.push(order[i]);
            for &next in &self.after[order[i]] {
                blocked[next] -= 1;
                if blocked[next] == 0 {
                    ready.push(Reverse(position[next]));
                }
            }
        }
        (late.len() == order.len()).then_some(late)
    }
}

/// An update that some order has before a reader of the old value that it replaces.
pub(super) struct EarlyUpdate {
    pub(super) update: TaskId,
    /// The buffer of the old value, the state's home.
    pub(super) enter: BufferId,
    /// The buffer that the new one is first in.
    pub(super) new: BufferId,
}

impl EarlyUpdate {
    /// Those of all states. Where two states have one exit value, it is the first one's.
    pub(super) fn all(g: &Graph, plan: &Plan) -> Vec<EarlyUpdate> {
        let mut readers: SecondaryMap<TaskId, Vec<TaskId>> = SecondaryMap::new();
        waits(g, plan).into_iter().for_each(|(reader, update)| readers[update].push(reader));
        let mut before: SecondaryMap<TaskId, Vec<TaskId>> = SecondaryMap::new();
        plan.dependences(g).into_iter().for_each(|(first, then)| before[then].push(first));
        let mut known: SecondaryMap<TaskId, Option<Vec<TaskId>>> = SecondaryMap::new();
        let writer = writers(plan);
        let mut claimed: SecondaryMap<BufferId, bool> = SecondaryMap::new();
        let mut all = Vec::new();
        for (s, updated) in updated_buffers(g, plan).iter() {
            let Some(&new) = updated.last().filter(|&&b| !claimed[b]) else { continue };
            claimed[new] = true;
            let (Some(update), Some(enter)) = (writer[new], plan.enter_buffer(g, s)) else {
                continue;
            };
            // Readers that the update needs are before it in every order.
            let late = known[update].get_or_insert_with(|| {
                let needed = ancestors(update, &before);
                readers[update].iter().copied().filter(|r| !needed.contains(r)).collect()
            });
            if late.iter().any(|&reader| plan.tasks[reader].reads.contains(&enter)) {
                all.push(EarlyUpdate { update, enter, new });
            }
        }
        all
    }
}

/// The tasks that a task waits for.
fn ancestors(of: TaskId, before: &SecondaryMap<TaskId, Vec<TaskId>>) -> HashSet<TaskId> {
    let (mut found, mut open) = (HashSet::new(), vec![of]);
    while let Some(t) = open.pop() {
        open.extend(before[t].iter().copied().filter(|&first| found.insert(first)));
    }
    found
}

/// The task that writes each buffer.
fn writers(plan: &Plan) -> SecondaryMap<BufferId, Option<TaskId>> {
    let mut writer: SecondaryMap<BufferId, Option<TaskId>> = SecondaryMap::new();
    for (t, task) in &plan.tasks {
        task.writes.iter().flatten().for_each(|&b| writer[b] = Some(t));
    }
    writer
}

/// Pairs (reader of a state's old value, first task that writes its new value).
pub(crate) fn waits(g: &Graph, plan: &Plan) -> Vec<(TaskId, TaskId)> {
    let writer = writers(plan);
    let mut update_of: SecondaryMap<_, Vec<TaskId>> = SecondaryMap::new();
    for (s, updated) in updated_buffers(g, plan).iter() {
        let update = updated.last().and_then(|&b| writer[b]);
        if let (Some(update), Some(enter)) = (update, plan.enter_buffer(g, s)) {
            update_of[enter].push(update);
        }
    }
    let mut pairs = Vec::new();
    for (t, task) in &plan.tasks {
        let updates = task.reads.iter().flat_map(|&b| &update_of[b]);
        pairs.extend(updates.filter(|&&u| u != t).map(|&u| (t, u)));
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Order;
    use crate::share;
    use crate::{Cx, PlanPass};
    use arenic_backends::CPU;
    use arenic_ir::TargetInfo;
    use arenic_ir::program::Space;
    use arenic_programs::CELL;
    use arenic_programs::steps::in_definition_order;
    use std::fmt::Write;

    /// A step of eight random operators, of which the last two update a state each, or one state
    /// together.
    fn step(random: &mut fastrand::Rng) -> String {
        let mut text = String::new();
        let exits = if random.u32(0..3) == 0 { ["v10", "v1"] } else { ["v9", "v10"] };
        // Bits of each value: two states, an input, then results.
        let mut bits = vec![32; 3];
        for n in 0..8 {
            let v = bits.len();
            let (to, line) = if n < 6 && random.u32(0..4) == 0 {
                let from = random.usize(0..v);
                let to = 96 - bits[from];
                (to, format!("cast {{\"to\":\"f{to}\"}} (v{from})"))
            } else {
                let of_f32: Vec<usize> = (0..v).filter(|&x| bits[x] == 32).collect();
                let mut any = || of_f32[random.usize(0..of_f32.len())];
                let (a, b) = (any(), any());
                match n {
                    7 if exits[0] == "v10" => (32, "unary {\"f\":\"tanh\"} (v9)".to_owned()),
                    6 | 7 => (32, format!("binary {{\"f\":\"sub\"}} (v{}, v{b})", n - 6)),
                    _ => (32, format!("binary {{\"f\":\"mul\"}} (v{a}, v{b})")),
                }
            };
            bits.push(to);
            writeln!(text, "  n{n} {line} -> (v{v}: f{to}[4])").unwrap();
        }
        let output = random.usize(3..9);
        let [w, m] = exits;
        format!(
            "graph \"step\" {{\n  state s0 \"w\": v0: f32[4] -> {w}\n  state s1 \"m\": v1: f32[4] -> {m}\n  \
             input v2: f32[4] \"x\"\n{text}  output \"y\" v{output}\n}}\n"
        )
    }

    /// The lowest live peak of all orders that begin with some tasks.
    fn lowest(g: &Graph, plan: &mut Plan, begun: &mut Vec<TaskId>) -> u64 {
        if begun.len() == plan.tasks.len() {
            plan.set_order(g, begun.clone()).unwrap();
            return share::assign(g, plan).unwrap().live_peak()[Space::Device];
        }
        let dependences = plan.dependences(g);
        let is_ready = |t: &TaskId| {
            !begun.contains(t) && dependences.iter().all(|(a, b)| b != t || begun.contains(a))
        };
        let ready: Vec<TaskId> = plan.tasks.keys().filter(is_ready).collect();
        let mut least = u64::MAX;
        for t in ready {
            begun.push(t);
            least = least.min(lowest(g, plan, begun));
            begun.pop();
        }
        least
    }

    #[test]
    fn optima_of_steps_with_states_are_found_and_mostly_proved() {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut early, mut found, mut proved) = (0, 0, 0);
        for _ in 0..40 {
            let text = step(&mut random);
            let (g, mut plan) = in_definition_order(&text);
            early += usize::from(!EarlyUpdate::all(&g, &plan).is_empty());
            let lowest = lowest(&g, &mut plan, &mut Vec::new());
            let cx = Cx::new(TargetInfo { align: CELL, ..CPU.target() });
            let stats = Order::default().run(&g, &mut plan, &cx).unwrap().stats;
            let (bound, peak) = (stats["lower_bound_bytes"], stats["live_peak_bytes"]);
            assert!(bound <= lowest && lowest <= peak, "{bound} {lowest} {peak}\n{text}");
            found += usize::from(lowest == peak);
            proved += usize::from(bound == peak);
        }
        assert!(early >= 10 && found >= 38 && proved >= 30, "{early} {found} {proved}");
    }
}
