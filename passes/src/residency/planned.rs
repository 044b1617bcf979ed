//! A plan with its addresses and what it takes.

use crate::lower::Lower;
use crate::place::{Place, Placer, Wish, place_within};
use crate::place_smartpool::PlaceSmartpool;
use crate::share::Sharing;
use crate::simulate::{roofline, simulate};
use crate::sync::Sync;
use crate::{Cx, PassError, ProgramPass, Search};
use arenic_ir::cost::Device;
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;
use arenic_ir::program::{PerSpace, Program, Space};

/// Steps of search for the addresses of each plan, less than a tenth of a second.
const PLACE_WORK: u64 = 4_000_000;

/// How plans get their slots and addresses: as the rest of the pipeline will give them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Layout {
    /// In place where that is possible, by search.
    #[default]
    Searched,
    /// Bytes of its own for each buffer, best fit by decreasing size.
    SmartPool,
    /// In place, by heuristics alone and whatever the limits are: the same for each of them.
    Heuristic,
}

/// A plan with its addresses and what it takes.
#[derive(Clone)]
pub(crate) struct Planned {
    /// Order, slots and placement.
    pub(crate) plan: Plan,
    /// Arena sizes in bytes.
    pub(crate) arena: PerSpace<u64>,
    /// The simulated step, in seconds.
    pub(crate) seconds: f64,
}

impl Planned {
    /// Shares, places and simulates a plan.
    pub(crate) fn of(
        g: &Graph,
        mut plan: Plan,
        device: &Device,
        cx: &Cx,
        layout: Layout,
    ) -> Result<Planned, PassError> {
        let sharing = Sharing::new(g, &plan)?;
        let (sharing, placer): (_, &dyn Placer) = match layout {
            Layout::Searched | Layout::Heuristic => (sharing, &Place::default()),
            Layout::SmartPool => (sharing.not_in_place(), &PlaceSmartpool::default()),
        };
        let slots = sharing.assign()?;
        plan.set_slots(slots);
        let (work, limits) = match layout {
            Layout::Searched | Layout::SmartPool => (PLACE_WORK, cx.limits),
            Layout::Heuristic => (0, PerSpace::default()),
        };
        let search = Search { time_limit: None, progress: None, ..cx.search };
        let wish = Wish { capacity: None, work: Some(work), search };
        place_within(&mut plan, &limits, placer, &wish)?;
        let mut program = Program::new(cx.target);
        Lower {}.run(g, &plan, &mut program)?;
        Sync {}.run(g, &plan, &mut program)?;
        let kernel = roofline(g, device);
        let seconds = simulate(&program, device, &kernel).seconds;
        let arena = plan.placement()?.sizes;
        Ok(Planned { plan, arena, seconds })
    }

    /// The fastest of some plans; of equal ones the first.
    pub(crate) fn fastest<const N: usize>(plans: [Option<Planned>; N]) -> Option<Planned> {
        plans.into_iter().flatten().min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }

    /// True where nothing is copied to another memory space.
    pub(crate) fn moves_nothing(&self) -> bool {
        self.plan.buffers.values().all(|b| b.space == Space::Device)
    }

    /// True where the arenas keep the limits.
    pub(crate) fn fits(&self, limits: &PerSpace<Option<u64>>) -> bool {
        let keeps = |limit: Option<u64>, bytes| limit.is_none_or(|most| bytes <= most);
        keeps(limits.device, self.arena.device) && keeps(limits.host, self.arena.host)
    }
}
