//! Order: which task runs when. The order decides the peak.
//!
//! The candidates are definition order, list schedulers forwards and backwards
//! ([`list`]) and, while the min-cut certificate ([`cut`]) leaves a gap, what the search
//! ([`improve`]) makes of them; ties go to definition order, so that distances between
//! uses survive. The candidate with the lowest live peak after in-place sharing is kept, of
//! equals the one that placement heuristics put lowest.
//! Sound because every candidate is a topological order of the plan's dependences, which
//! `Plan::set_order` checks again.
//!
//! `problem` is scheduling without a graph. `search` looks for an order within a budget, `branch` is branch and bound,
//! and `window` a part of an order as a problem of its own. `lifetime` is OLLA's integer program, which `order_ilp` and
//! `order_place_ilp` solve; this pass asks no solver.

mod bound;
mod branch;
mod cut;
mod improve;
mod late_update;
pub mod lifetime;
mod limits;
mod list;
mod problem;
mod search;
mod settle;
#[cfg(test)]
mod tests;
mod window;

use crate::place::{Place, Placer, Wish, place_slots};
use crate::share;
use crate::{Cx, PassError, PlanOutcome, PlanPass, Progress, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{BufferKind, Fact, Plan, PlanError, TaskId, TaskKind};
use arenic_ir::program::Space;
pub use bound::{Held, PeakBound};
pub(crate) use bound::{held, node, peak_bound};
use cranelift_entity::{EntityRef, SecondaryMap};
pub use cut::Certificate;
pub use improve::{OrderCandidate, Solution, certify, portfolio, solve};
use improve::{first, improved};
pub(crate) use late_update::waits;
use late_update::{EarlyUpdate, LateUpdates};
use limits::DEFAULT_EFFORT;
pub use limits::Limits;
use list::{Rule, schedule};
pub use problem::{Invalid, Kind, Problem, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub(crate) use settle::settled;
pub use window::window;

/// Orders the tasks so that the live peak is low.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Order {
    /// Method that makes candidates.
    pub method: Method,
    /// Effort to look for better orders with the method `best`, in seconds of the reference core.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
}

impl Default for Order {
    fn default() -> Self {
        Order { method: Method::default(), effort: DEFAULT_EFFORT }
    }
}

/// Methods that make orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Every method below, forwards and on the reversed graph, then a search; the best
    /// result is kept.
    #[default]
    Best,
    /// The order of definition in the model, each state committed as soon as it can be.
    Definition,
    /// The ready task with the largest (bytes freed − bytes allocated).
    FreedMinusAllocated,
    /// The ready task that keeps the peak so far and frees most.
    LeastPeakFirst,
    /// Definition order, but tasks that free at least as much as they allocate run at once.
    EagerFree,
    /// Operands just before their reader, the heaviest first.
    DepthFirst,
    /// `freed_minus_allocated` on the reversed graph.
    FreedMinusAllocatedReversed,
    /// `least_peak_first` on the reversed graph.
    LeastPeakFirstReversed,
    /// `eager_free` on the reversed graph.
    EagerFreeReversed,
    /// `depth_first` on the reversed graph.
    DepthFirstReversed,
}

impl Method {
    fn rule(self) -> Option<(Rule, bool)> {
        match self {
            Method::Best => None,
            Method::Definition => Some((Rule::Definition, false)),
            Method::FreedMinusAllocated => Some((Rule::FreedMinusAllocated, false)),
            Method::LeastPeakFirst => Some((Rule::LeastPeakFirst, false)),
            Method::EagerFree => Some((Rule::EagerFree, false)),
            Method::DepthFirst => Some((Rule::DepthFirst, false)),
            Method::FreedMinusAllocatedReversed => Some((Rule::FreedMinusAllocated, true)),
            Method::LeastPeakFirstReversed => Some((Rule::LeastPeakFirst, true)),
            Method::EagerFreeReversed => Some((Rule::EagerFree, true)),
            Method::DepthFirstReversed => Some((Rule::DepthFirst, true)),
        }
    }
}

impl PlanPass for Order {
    fn needs(&self) -> &[Fact] {
        &[]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Order]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, cx: &Cx) -> Result<PlanOutcome, PassError> {
        let p = problem(g, plan)?;
        let report = |progress: &Progress| cx.search.report(progress);
        let mut certificate: Option<Certificate> = None;
        let candidates = match self.method.rule() {
            Some((rule, reversed)) => {
                let order = schedule(&p, rule, reversed, &vec![0; p.len()]);
                vec![OrderCandidate { method: rule.name(reversed), peak: p.peak(&order), order }]
            }
            None => {
                let effort = cx.search.effort(self.effort);
                let limits = Limits::new(effort, cx.search.seed, cx.search.deadline());
                let (candidates, proved) = searched(&p, &limits, &report);
                certificate = Some(proved);
                candidates
            }
        };
        let (peak, method) = choose(g, plan, &p, candidates)?;
        if let Some(proved) = certificate.as_mut().filter(|proved| !proved.is_whole) {
            // By a better order the work goes to operators that matter more.
            let order: Vec<usize> = plan.order()?.iter().map(|t| t.index()).collect();
            let again = certify(&p, &order);
            if again.by_cut > proved.by_cut {
                *proved = Certificate { bound: again.bound.max(proved.bound), ..again };
            }
        }
        let bound = certificate.as_ref().map_or(0, |proved| proved.bound);
        report(&Progress { method, incumbent: peak, bound });
        let mut stats = Stats::from([("live_peak_bytes", peak)]);
        stats.extend(certificate.as_ref().map(|proved| ("lower_bound_bytes", proved.bound)));
        // Under control edges nothing is proved about the graph.
        let is_of_graph = plan.control_edges().is_empty();
        let proved = certificate.filter(|_| is_of_graph);
        let bound = proved.map(|proved| peak_bound(plan, &p, &proved));
        Ok(PlanOutcome { stats, bound })
    }
}

/// The orders of the list schedulers, then those of searches, and why none has a much lower peak.
fn searched(
    p: &Problem,
    limits: &Limits,
    report: &dyn Fn(&Progress),
) -> (Vec<OrderCandidate>, Certificate) {
    let mut candidates = portfolio(p);
    let first = first(p, &candidates);
    let known = certify(p, &first.order);
    let whole = improved(p, first.clone(), known.clone(), limits, report);
    let candidate = |Solution { order, peak, method, .. }| OrderCandidate { method, order, peak };
    if p.len() <= PLACED.1 {
        // A shorter search often finds another order that is as good as a plan.
        let shorter = Limits { steps: limits.steps / 10, ..*limits };
        candidates.push(candidate(improved(p, first, known, &shorter, &|_| {})));
    }
    let certificate = whole.certificate.clone();
    candidates.push(candidate(whole));
    (candidates, certificate)
}

/// Sets the order that has the lowest live peak after in-place sharing, of equals the one
/// that heuristics place lowest; its peak in bytes, and what made it. Each is also tried with
/// late updates. The first of equals stays: definition order, where it is one.
///
/// # Errors
/// A candidate is no order.
pub fn choose(
    g: &Graph,
    plan: &mut Plan,
    p: &Problem,
    candidates: Vec<OrderCandidate>,
) -> Result<(u64, &'static str), PassError> {
    let late = LateUpdates::new(g, plan);
    let mut all: Vec<(u64, usize, &'static str, Vec<TaskId>)> = Vec::new();
    for OrderCandidate { method, order, peak } in candidates {
        let order: Vec<TaskId> = order.into_iter().map(TaskId::new).collect();
        let searched = method != Rule::Definition.name(false);
        if let Some(late) = late.apply(&order).filter(|_| searched) {
            let tasks: Vec<usize> = late.iter().map(|t| t.index()).collect();
            all.push((p.peak(&tasks), all.len() + 1, method, late));
        }
        all.push((peak, all.len(), method, order));
    }
    // A problem's peak shares every declared pair that it can, so it is no higher than the
    // plan's: once it reaches the best plan's peak, the rest cannot be better.
    all.sort_by_key(|&(peak, i, ..)| (peak, i));
    let mut best: Option<Chosen> = None;
    let mut placed = 0;
    for (bound, index, method, order) in all {
        if best.as_ref().is_some_and(|b| bound > b.peak) {
            break;
        }
        plan.set_order(g, order.clone())?;
        let slots = share::assign(g, plan)?;
        let peak = slots.live_peak()[Space::Device];
        if best.as_ref().is_some_and(|b| peak > b.peak) {
            continue;
        }
        plan.set_slots(slots);
        // Of orders with one peak, one may be easier to place than another; none is lower than
        // one without fragmentation.
        let improvable =
            best.as_ref().is_none_or(|b| peak < b.peak || b.arena > b.peak || index < b.index);
        let tries = improvable && placed < PLACED.0 && plan.tasks.len() <= PLACED.1;
        let arena = if tries { arena(plan)? } else { u64::MAX };
        placed += usize::from(tries);
        let chosen = Chosen { peak, arena, index, method, order };
        if best.as_ref().is_none_or(|b| chosen.key() < b.key()) {
            best = Some(chosen);
        }
    }
    let Some(Chosen { peak, method, order, .. }) = best else { return Ok((0, "definition")) };
    plan.set_order(g, order)?;
    Ok((peak, method))
}

/// Orders that are placed on trial, and tasks beyond which none is.
const PLACED: (usize, usize) = (12, 5_000);

/// The size of the device's arena by heuristics alone, in bytes.
pub(crate) fn arena(plan: &mut Plan) -> Result<u64, PassError> {
    let heuristics = Place { effort: 0.0 };
    place_slots(plan, |_, _, _, problem| heuristics.place(problem, &Wish::default()))?;
    Ok(plan.placement()?.sizes.device)
}

/// An order with what is compared.
struct Chosen {
    peak: u64,
    arena: u64,
    index: usize,
    method: &'static str,
    order: Vec<TaskId>,
}

impl Chosen {
    fn key(&self) -> (u64, u64, usize) {
        (self.peak, self.arena, self.index)
    }
}

/// The live peak of definition order under in-place sharing, in bytes of device memory.
///
/// # Errors
/// The graph cannot be planned; see [`PassError`].
pub fn definition_order_peak(g: &Graph, cx: &Cx) -> Result<u64, PassError> {
    let mut plan = Plan::new(g, cx.target)?;
    let order = plan.tasks.keys().collect();
    plan.set_order(g, order)?;
    Ok(share::assign(g, &plan)?.live_peak()[Space::Device])
}

/// The plan's device memory as a bare scheduling problem. A state's home counts throughout, and an exit
/// value counts nothing where it is written straight home: in every order, or where its update comes after
/// all readers of the old value. Scratch is alive for its task alone, and every pair is there that
/// operators declare.
///
/// # Errors
/// Sizes or dependences that no plan of a verified graph has.
pub fn problem(g: &Graph, plan: &Plan) -> Result<Problem, PassError> {
    bare_problem(g, plan, Sharing::Exact)
}

/// Which buffers of a problem share bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Those of the pairs that operators declare, and exit values and their states' homes where the order
    /// allows it.
    Exact,
    /// The same, but exit values are written home in any order.
    HomesInAnyOrder,
    /// None: every buffer has bytes of its own, a state's exit value too.
    None,
}

/// As [`problem`], with other sharing.
///
/// # Errors
/// As for [`problem`].
pub fn bare_problem(g: &Graph, plan: &Plan, sharing: Sharing) -> Result<Problem, PassError> {
    let shares = sharing != Sharing::None;
    let mut at_home: SecondaryMap<_, bool> = SecondaryMap::new();
    let updated = if shares { share::updated_buffers(g, plan) } else { SecondaryMap::new() };
    for &b in updated.values().flatten() {
        at_home[b] = true;
    }
    let early = match sharing {
        Sharing::Exact => EarlyUpdate::all(g, plan),
        Sharing::HomesInAnyOrder | Sharing::None => Vec::new(),
    };
    let mut pinned: SecondaryMap<_, bool> = SecondaryMap::new();
    for output in &g.outputs {
        if let Some(b) = plan.buffer_of[g.resolve(output.value).root] {
            pinned[b] = true;
        }
    }
    let tensors = plan.buffers.iter().map(|(b, buffer)| {
        let kind = match buffer.kind {
            BufferKind::Const | BufferKind::Enter(_) => Kind::Resident,
            BufferKind::Input if pinned[b] => Kind::Resident,
            BufferKind::Input => Kind::Input,
            _ if pinned[b] => Kind::Pinned,
            BufferKind::Exit(_) | BufferKind::Value | BufferKind::Scratch => Kind::Transient,
        };
        let free = matches!(buffer.kind, BufferKind::Exit(_)) || at_home[b];
        let bytes = if free || buffer.space != Space::Device { 0 } else { buffer.rounded() };
        Tensor { bytes, producer: None, readers: Vec::new(), kind }
    });
    let mut tensors: Vec<Tensor> = tensors.collect();
    let mut pairs = Vec::new();
    for (t, task) in &plan.tasks {
        for &b in &task.reads {
            tensors[b.index()].readers.push(t.index());
        }
        for &b in task.writes.iter().flatten().chain(&task.scratch) {
            tensors[b.index()].producer = Some(t.index());
        }
        let (TaskKind::Run(n), true) = (task.kind, shares) else { continue };
        let outputs = g.output_types(n)?;
        let declared =
            g.nodes[n].op.in_place_pairs(&g.input_types(n), &outputs.iter().collect::<Vec<_>>());
        for (input, output) in declared {
            let x = task.reads[input];
            if let Some(y) = task.writes[output]
                && !pinned[x]
            {
                pairs.push((t.index(), x.index(), y.index()));
            }
        }
    }
    // The old value is alive until the update, whose result takes over its bytes if no reader is left.
    for EarlyUpdate { update, enter, new } in early.into_iter().filter(|e| !pinned[e.enter]) {
        let (x, y) = (enter.index(), new.index());
        let reads_it = tensors[x].readers.contains(&update.index());
        tensors[x].kind = Kind::Input;
        tensors[x].readers.push(update.index());
        tensors[y] = Tensor { bytes: tensors[x].bytes, kind: Kind::Pinned, ..tensors[y].clone() };
        if !reads_it {
            pairs.push((update.index(), x, y));
        }
    }
    let dependences = plan.dependences(g);
    let dependences: Vec<_> = dependences.iter().map(|(a, b)| (a.index(), b.index())).collect();
    Ok(Problem::new(plan.tasks.len(), tensors, &dependences, &pairs)?)
}

impl From<Invalid> for PassError {
    fn from(invalid: Invalid) -> Self {
        match invalid {
            Invalid::TooLarge => PassError::TooLarge,
            Invalid::Cycle(t) => {
                PlanError::Order(format!("{} waits for itself", TaskId::new(t))).into()
            }
        }
    }
}
