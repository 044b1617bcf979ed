//! What each rank has a part of alone, so that no level takes more bytes than the one before; under a limit, which parameters
//! stay whole from one pass to the other.

use super::Job;
use crate::compile::{CompileError, Compiled, Constraints};
use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::op::Op;
use arenic_ir::types::TensorType;
use arenic_passes::pipeline::RunOptions;
use arenic_passes::shard::{Level, Shard, bucket_bytes};
use std::collections::BTreeSet;

/// Parts of all parameters' bytes that are tried to be kept.
const KEPT: [f64; 4] = [1.0, 0.5, 0.25, 0.125];

/// A step that is no longer than this times what its kernels take hides its exchanges.
const HIDDEN: f64 = 1.01;

impl Job<'_> {
    /// For several ranks: a level that has its part of more never takes more bytes. Where messages of many tensors
    /// would make it do so there are smaller ones, and where parts of parameters save less than it takes to
    /// gather them, the parameters stay whole.
    pub(super) fn least_level(
        &self,
        constraints: Constraints,
        options: RunOptions,
    ) -> Result<Compiled, CompileError> {
        let arena = |made: &Compiled| Ok::<u64, CompileError>(made.target()?.figures.arena_bytes);
        let usual = bucket_bytes(constraints.device)?;
        let plan = |level, bucket, options| {
            let pass = Shard { bucket_bytes: bucket, ..self.compiler.sharded(level) };
            let pipeline = self.pipeline.clone().on_ranks(pass);
            self.plan_by(&pipeline, self.step()?, constraints, options)
        };
        let wanted = self.compiler.shard;
        let mut options = Some(options);
        // One graph has the levels between these.
        let levels = [Level::None, Level::Optimizer, Level::Parameters];
        let is_before = |level: &Level| match wanted {
            Level::Parameters => *level < wanted,
            _ => *level == Level::None,
        };
        let mut before: Option<Compiled> = None;
        for level in levels.into_iter().filter(is_before).chain([wanted]) {
            let own = if level == wanted { options.take() } else { None };
            let mut made = plan(level, None, own.unwrap_or_default())?;
            if let Some(before) = before.take() {
                let most = arena(&before)?;
                for bucket in [usual / 4, 0] {
                    if arena(&made)? <= most {
                        break;
                    }
                    made = plan(level, Some(bucket), RunOptions::default())?;
                }
                if arena(&made)? > most {
                    self.watch.note(&format!(
                        "--shard {} would take more bytes here than it saves; the level before it is taken",
                        level.name()
                    ));
                    made = before;
                }
            }
            before = Some(made);
        }
        before.ok_or(CompileError::NoProgram)
    }

    /// For several ranks that share the parameters, under a limit: parameters that it has room for stay whole from the
    /// forward pass to the backward pass, if the step is shorter by it than where all are gathered once more.
    pub(super) fn least_gathered(
        &self,
        constraints: Constraints,
        options: RunOptions,
    ) -> Result<Compiled, CompileError> {
        let device = self.compiler.timed()?;
        let mut best = self.plan(self.step()?, constraints, options)?;
        let (mut least, kernels) = best.seconds(&device)?;
        // Gathers that kernels hide cost nothing.
        if least <= kernels * HIDDEN {
            return Ok(best);
        }
        let all = gathered_bytes(&best.target()?.graph);
        for part in KEPT {
            if self.watch.is_stopped() {
                break;
            }
            let kept_bytes = (all as f64 * part) as u64;
            let pass = Shard { kept_bytes, ..self.compiler.sharded(Level::Parameters) };
            let pipeline = self.pipeline.clone().on_ranks(pass);
            match self.plan_by(&pipeline, self.step()?, constraints, RunOptions::default()) {
                Ok(kept) => {
                    let (seconds, _) = kept.seconds(&device)?;
                    if seconds < least {
                        (best, least) = (kept, seconds);
                    }
                }
                Err(e) if e.is_of_limits() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(best)
    }
}

/// Bytes of the parameters that ranks gather of their parts.
fn gathered_bytes(g: &Graph) -> u64 {
    let gathers = g.nodes.values().filter(|node| matches!(node.op, Op::AllGather { .. }));
    let read: BTreeSet<ValueId> = gathers.flat_map(|node| &node.inputs).copied().collect();
    let parts = g.states.values().filter(|state| read.contains(&state.enter));
    parts.filter_map(|state| state.part_of.as_ref()).map(TensorType::bytes).sum()
}
