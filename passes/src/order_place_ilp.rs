//! Order and addresses at once: OLLA's program 9 (equations 1–8).
//!
//! To the lifetimes of equations 1–5 come an address per buffer and, for each pair of
//! buffers that may coexist, the two binaries of equation 6, which tie common lifetimes to
//! addresses (7a, 7b); the largest end is minimised (8). Pairs that `prune_precedence` tells
//! apart take no variable. For graphs of some tens of operators: the program has a row per
//! pair and step. Buffers keep bytes of their own, as in the paper. Sound because the order
//! is checked like any other, and addresses are used as a sequence only: slots are stacked in
//! it at their least free offsets, and the result is measured.

use crate::mip::{self, Failure, Var};
use crate::order::lifetime::{Lifetimes, add, decode};
use crate::order::{Problem, Sharing, bare_problem, certify, portfolio};
use crate::place::{Place, Placer, Solution, Wish, place_slots, stack};
use crate::share_in_place::ShareInPlace;
use crate::{Cx, PassError, PlanOutcome, PlanPass, Progress, Stats};
use arenic_ir::Graph;
use arenic_ir::plan::{BufferId, Fact, Plan, Precedence, SlotId, TaskId};
use cranelift_entity::{EntityRef, SecondaryMap};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Orders tasks and places buffers by one integer program (OLLA, equation 9).
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OrderPlaceIlp {
    /// Effort for the program, in seconds of the reference core.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
    /// Most tasks; larger graphs are refused.
    pub max_tasks: usize,
}

impl Default for OrderPlaceIlp {
    fn default() -> Self {
        OrderPlaceIlp { effort: 60.0, max_tasks: 50 }
    }
}

impl PlanPass for OrderPlaceIlp {
    fn needs(&self) -> &[Fact] {
        &[Fact::Precedence]
    }

    fn gives(&self) -> &[Fact] {
        &[Fact::Order, Fact::Slots, Fact::Placement]
    }

    fn run(&self, g: &Graph, plan: &mut Plan, cx: &Cx) -> Result<PlanOutcome, PassError> {
        if plan.tasks.len() > self.max_tasks {
            let (tasks, most) = (plan.tasks.len(), self.max_tasks);
            return Err(PassError::Other(format!(
                "{tasks} tasks are too many for one program over orders and addresses (most: {most}); use \
                 `order_ilp`, `share_in_place` and `place_ilp`"
            )));
        }
        let p = bare_problem(g, plan, Sharing::None)?;
        let precedence = plan.precedence()?.clone();
        let start = portfolio(&p).into_iter().min_by_key(|c| c.peak);
        let order = start.map_or_else(Vec::new, |c| c.order);
        let arena = establish(g, plan, &order, None, cx)?;
        let mut best = arena;
        let mut proved = arena == p.peak(&order) && certify(&p, &order).bound == arena;
        if !proved {
            let program = Joint::new(&p, &order, plan, &precedence, arena)?;
            let budget = cx.search.budget(self.effort);
            let limits = mip::Limits::new(&budget, cx.search.seed);
            match program.solve(&limits, cx) {
                Ok((found, sequence, optimal)) if p.is_order(&found) => {
                    best = establish(g, plan, &found, Some(&sequence), cx)?;
                    proved = optimal;
                }
                Ok(_) => return Err(PassError::Solver("the solution is no order".into())),
                Err(failure) => failure.unless_of_limits()?,
            }
            if best > arena {
                best = establish(g, plan, &order, None, cx)?;
            }
        }
        Ok(Stats::from([("arena_bytes", best), ("proved_optimal", u64::from(proved))]).into())
    }
}

/// Sets order, slots and placement; the arena's size. `sequence` has the buffers by address.
fn establish(
    g: &Graph,
    plan: &mut Plan,
    order: &[usize],
    sequence: Option<&[BufferId]>,
    cx: &Cx,
) -> Result<u64, PassError> {
    plan.set_order(g, order.iter().map(|&t| TaskId::new(t)).collect())?;
    ShareInPlace { enabled: false }.run(g, plan, cx)?;
    let mut rank: SecondaryMap<SlotId, usize> = SecondaryMap::new();
    for (i, &b) in sequence.unwrap_or_default().iter().enumerate() {
        if let Some(slot) = plan.slots()?.of[b] {
            rank[slot] = i;
        }
    }
    place_slots(plan, |_, _, slots, problem| match sequence {
        Some(_) => {
            let mut by_address: Vec<usize> = (0..slots.len()).collect();
            by_address.sort_by_key(|&i| rank[slots[i]]);
            Solution::of(problem, stack(problem, &by_address), "order_place_ilp", None)
        }
        None => Place { effort: 0.1 }.place(problem, &Wish::default()),
    })?;
    Ok(plan.placement()?.sizes.device)
}

/// Program 9.
struct Joint<'a> {
    lifetimes: Lifetimes<'a>,
    peak: Var,
    /// Address of each tensor that comes and goes, by index.
    addresses: Vec<(usize, Var)>,
}

impl<'a> Joint<'a> {
    fn new(
        p: &'a Problem,
        order: &[usize],
        plan: &Plan,
        precedence: &Precedence,
        arena: u64,
    ) -> Result<Self, PassError> {
        let mut lifetimes = Lifetimes::new(p, order);
        let height = lifetimes.units(arena.saturating_sub(p.resident()));
        // Equation 13 bounds equation 8 from below.
        let live = lifetimes.peak_of_live_bytes(arena);
        let peak = lifetimes.real(0.0, height, height);
        lifetimes.program.at_most(&[(1.0, live), (-1.0, peak)], 0.0);
        let tensors: Vec<usize> = (0..p.tensors()).filter(|&t| p.comes_and_goes(t)).collect();
        let offset = |t: usize| -> Result<u64, PassError> {
            let slot = plan.slots()?.of[BufferId::new(t)];
            let at = slot.map_or(0, |s| plan.placement().map_or(0, |p| p.offset[s]));
            Ok(at.saturating_sub(p.resident()))
        };
        let mut addresses = Vec::new();
        for &t in &tensors {
            let size = lifetimes.units(p.bytes(&[t]));
            let at = lifetimes.units(offset(t)?);
            let address = lifetimes.real(0.0, height, at);
            lifetimes.program.at_most(&[(1.0, address), (-1.0, peak)], -size);
            addresses.push((t, address));
        }
        for (n, &(i, ai)) in addresses.iter().enumerate() {
            for &(j, aj) in &addresses[..n] {
                if precedence.apart(BufferId::new(i), BufferId::new(j)) {
                    continue;
                }
                let (si, sj) = (p.bytes(&[i]), p.bytes(&[j]));
                let (oi, oj) = (offset(i)?, offset(j)?);
                let below = lifetimes.binary(oi + si <= oj);
                let above = lifetimes.binary(oj + sj <= oi && oi + si > oj);
                let (si, sj) = (lifetimes.units(si), lifetimes.units(sj));
                let rows = &mut lifetimes.program;
                rows.at_most(&[(1.0, below), (1.0, above)], 1.0);
                rows.at_most(&[(1.0, ai), (-1.0, aj), (height, below)], height - si);
                rows.at_most(&[(1.0, aj), (-1.0, ai), (height, above)], height - sj);
                for s in 0..p.len() {
                    let mut row = vec![(-1.0, below), (-1.0, above)];
                    let mut constant = 0.0;
                    for t in [i, j] {
                        add(&mut row, &mut constant, 1.0, lifetimes.preserved[t][s]);
                        row.extend(lifetimes.creates(t, s).map(|c| (1.0, c)));
                    }
                    // Alive at the same step: one lies below the other.
                    if row.len() > 2 || constant > 1.0 {
                        lifetimes.program.at_most(&row, 1.0 - constant);
                    }
                }
            }
        }
        Ok(Joint { lifetimes, peak, addresses })
    }

    /// The order, the buffers by address, and whether the solver proved them optimal.
    fn solve(
        self,
        limits: &mip::Limits,
        cx: &Cx,
    ) -> Result<(Vec<usize>, Vec<BufferId>, bool), Failure> {
        let Lifetimes { p, program, start, unit, created, .. } = self.lifetimes;
        let bytes = |units: f64| p.resident() + (units.max(0.0) * unit) as u64;
        let mut report = |objective: f64, bound: f64| {
            let (incumbent, bound) = (bytes(objective), bytes(bound));
            cx.search.report(&Progress { method: "order_place_ilp", incumbent, bound });
        };
        let answer = program.minimise(self.peak, &start, limits, &mut report)?;
        let mut by_address = self.addresses;
        by_address.sort_by(|a, b| answer.value(a.1).total_cmp(&answer.value(b.1)));
        let sequence = by_address.into_iter().map(|(t, _)| BufferId::new(t)).collect();
        Ok((decode(&answer, &created), sequence, answer.proved))
    }
}
