//! What tests of strategies share.

use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;
use arenic_passes::limit::{Kept, keep_limit};
use arenic_passes::tail::Tail;
use arenic_passes::{Cx, PassError, Strategy};
use arenic_programs::CELL;
use arenic_programs::steps::device;

/// What a strategy makes of a plan under a limit on the slow device; `None` if it finds nothing.
pub(crate) fn kept(
    strategy: &dyn Strategy,
    g: &Graph,
    plan: &Plan,
    limit: u64,
    link: f64,
) -> Option<Kept> {
    let device = device(link);
    let cx = Cx { device: Some(&device), ..Cx::new(TargetInfo { align: CELL, ..CPU.target() }) };
    match keep_limit(g, plan.clone(), limit, &Tail::default(), &cx, ("strategy", strategy)) {
        Ok(kept) => Some(kept),
        Err(PassError::Limit { .. } | PassError::DeviceMemory { .. }) => None,
        Err(e) => panic!("{e}"),
    }
}
