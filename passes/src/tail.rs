//! What makes a step of an ordered plan: sharing, addresses, the program, and the seconds that it
//! takes on the device.
//!
//! A strategy under a byte limit has its plans finished by the passes that follow it in the
//! pipeline, and returns what they made of the best one. So a plan is judged by what will be
//! written, and what was judged is what is written. Plans that are tried are placed with little
//! effort; the one that is taken is placed with the pipeline's own where that may still be of use
//! ([`Depth`]).

use crate::lower::Lower;
use crate::place::Place;
use crate::share_in_place::ShareInPlace;
use crate::simulate::simulate_step;
use crate::sync::Sync;
use crate::{Cx, PassError, PlanPass, ProgramPass, Search, Stats};
use arenic_ir::cost::Device;
use arenic_ir::graph::Graph;
use arenic_ir::plan::{Fact, Plan};
use arenic_ir::program::{PerSpace, Program, Space};
use std::sync::Arc;

/// Effort of each search for a plan on trial, in seconds of the reference core: less than a tenth of
/// a second for its addresses.
const TRIAL: f64 = 0.05;

/// The passes that follow a strategy, or the order where there is none.
#[derive(Clone)]
pub struct Tail {
    plan: Vec<NamedPass<dyn PlanPass>>,
    program: Vec<NamedPass<dyn ProgramPass>>,
    /// Bytes of device memory above the limit of a plan, which the passes that make its program may use.
    spare: u64,
}

/// A pass with its name.
pub type NamedPass<P> = (String, Arc<P>);

/// How hard the passes search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As the pipeline says.
    Full,
    /// As little as many plans can be tried with.
    Trial,
    /// Not at all, and whatever the limits are: the same for each of them.
    Outline,
}

/// In place, the exact search for addresses, one stream after another.
impl Default for Tail {
    fn default() -> Self {
        Tail::new(Vec::new(), Vec::new())
    }
}

impl Tail {
    /// Passes that go on with an ordered plan, with their names. The default pipeline's take the place of those
    /// that are missing, so that there always is a program to judge.
    pub fn new(
        plan: Vec<NamedPass<dyn PlanPass>>,
        program: Vec<NamedPass<dyn ProgramPass>>,
    ) -> Tail {
        let mut tail = Tail { plan, program, spare: 0 };
        let gives = |fact| tail.plan.iter().any(|(_, pass)| pass.gives().contains(&fact));
        let (shares, places) = (gives(Fact::Slots), gives(Fact::Placement));
        if !shares {
            let needs = |(_, pass): &NamedPass<dyn PlanPass>| pass.needs().contains(&Fact::Slots);
            let at = tail.plan.iter().position(needs).unwrap_or(tail.plan.len());
            tail.plan.insert(at, ("share_in_place".into(), Arc::new(ShareInPlace::default())));
        }
        if !places {
            tail.plan.push(("place".into(), Arc::new(Place::default())));
        }
        if tail.program.is_empty() {
            tail.program.push(("lower".into(), Arc::new(Lower {})));
            tail.program.push(("sync".into(), Arc::new(Sync {})));
        }
        tail
    }

    /// Bytes of device memory above a plan's arena that would make the step shorter.
    pub fn room(&self, g: &Graph, cx: &Cx) -> u64 {
        self.program.iter().map(|(_, pass)| pass.room(g, cx)).sum()
    }

    /// Seconds that the step takes longer because there was no such room.
    pub fn missed_seconds(&self, g: &Graph, program: &Program, device: &Device, cx: &Cx) -> f64 {
        self.program.iter().map(|(_, pass)| pass.missed_seconds(g, program, device, cx)).sum()
    }

    /// Bytes of device memory above the limit of a plan.
    pub fn spare(&self) -> u64 {
        self.spare
    }

    /// The same passes for plans that leave so many bytes of the limit to them.
    pub fn with_spare(&self, bytes: u64) -> Tail {
        Tail { spare: bytes, ..self.clone() }
    }

    /// Finishes a plan that has its order.
    ///
    /// # Errors
    /// What the passes refuse.
    pub fn finish(
        &self,
        g: &Graph,
        mut plan: Plan,
        device: &Device,
        cx: &Cx,
        depth: Depth,
    ) -> Result<Finished, PassError> {
        let quiet = |seconds| Search {
            effort: Some(seconds),
            time_limit: None,
            progress: None,
            ..cx.search
        };
        let cx = &match depth {
            Depth::Full => *cx,
            Depth::Trial => Cx { search: quiet(TRIAL), ..*cx },
            Depth::Outline => Cx { search: quiet(0.0), limits: PerSpace::default(), ..*cx },
        };
        let mut stats = Vec::with_capacity(self.plan.len() + self.program.len());
        let base = self.base(g, &plan, cx)?;
        for (name, pass) in &self.plan {
            stats.push((name.clone(), pass.run(g, &mut plan, cx)?.stats));
        }
        let device_limit = cx.limits.device.map(|limit| limit.saturating_add(self.spare));
        let cx = &Cx { limits: PerSpace { device: device_limit, ..cx.limits }, ..*cx };
        let mut program = Program::new(cx.target);
        for (name, pass) in &self.program {
            stats.push((name.clone(), pass.run(g, &plan, &mut program, cx)?));
        }
        let arena = plan.placement()?.sizes;
        let missed = self.missed_seconds(g, &program, device, cx);
        let seconds = simulate_step(g, &program, device).seconds + missed;
        Ok(Finished { plan, base, program, arena, seconds, stats })
    }

    /// The plan in its own order, with its slots, where some pass gives it another order; else `None`.
    fn base(&self, g: &Graph, plan: &Plan, cx: &Cx) -> Result<Option<Plan>, PassError> {
        if !self.plan.iter().any(|(_, pass)| pass.reorders(g)) {
            return Ok(None);
        }
        let mut base = plan.clone();
        for (_, pass) in self.plan.iter().filter(|(_, pass)| pass.gives().contains(&Fact::Slots)) {
            pass.run(g, &mut base, cx)?;
        }
        Ok(Some(base))
    }

    /// The program of a plan that has its addresses.
    ///
    /// # Errors
    /// What the passes refuse.
    pub fn program(&self, g: &Graph, plan: &Plan, cx: &Cx) -> Result<Program, PassError> {
        let mut program = Program::new(cx.target);
        for (_, pass) in &self.program {
            pass.run(g, plan, &mut program, cx)?;
        }
        Ok(program)
    }
}

/// A plan with its addresses, its program and what it takes.
#[derive(Clone)]
pub struct Finished {
    /// Order, slots and placement.
    pub plan: Plan,
    /// The plan as it was before passes gave it another order, with its slots; `None` where none does.
    base: Option<Plan>,
    /// What the device is told to do.
    pub program: Program,
    /// Arena sizes in bytes.
    pub arena: PerSpace<u64>,
    /// The simulated step, in seconds, with what it waits for before it begins.
    pub seconds: f64,
    /// What each pass counted, in order.
    pub stats: Vec<(String, Stats)>,
}

impl Finished {
    /// The fastest of some plans; of equal ones the first.
    pub fn fastest(plans: impl IntoIterator<Item = Option<Finished>>) -> Option<Finished> {
        plans.into_iter().flatten().min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }

    /// The plan that strategies change: in the order that it was given, with its slots.
    pub fn base(&self) -> &Plan {
        self.base.as_ref().unwrap_or(&self.plan)
    }

    /// True if nothing is copied to another memory space.
    pub fn moves_nothing(&self) -> bool {
        self.plan.buffers.values().all(|b| b.space == Space::Device)
    }

    /// True if the arenas keep the limits.
    pub fn fits(&self, limits: &PerSpace<Option<u64>>) -> bool {
        Space::ALL.iter().all(|&space| limits[space].is_none_or(|most| self.arena[space] <= most))
    }

    /// True if no arena could be smaller but one whose limit it keeps anyway.
    fn is_dense(&self, limits: &PerSpace<Option<u64>>) -> Result<bool, PassError> {
        let peak = self.plan.slots()?.live_peak();
        let is_dense = |&space| limits[space].is_some() || self.arena[space] <= peak[space];
        Ok(Space::ALL.iter().all(is_dense))
    }

    /// The plan placed with the pipeline's own effort, if an arena without a limit may be smaller so
    /// and the step is no slower.
    ///
    /// # Errors
    /// What the passes refuse.
    pub fn settled(
        self,
        tail: &Tail,
        g: &Graph,
        device: &Device,
        cx: &Cx,
    ) -> Result<Finished, PassError> {
        if self.is_dense(&cx.limits)? {
            return Ok(self);
        }
        let again = tail.finish(g, self.base().clone(), device, cx, Depth::Full)?;
        let smaller = Space::ALL
            .iter()
            .any(|&space| cx.limits[space].is_none() && again.arena[space] < self.arena[space]);
        let is_better = smaller && again.fits(&cx.limits) && again.seconds <= self.seconds;
        Ok(if is_better { again } else { self })
    }
}
