//! What each rank has a part of alone, so that no level takes more bytes than the one before.

use super::Job;
use crate::compile::{CompileError, Compiled, Constraints};
use arenic_passes::pipeline::RunOptions;
use arenic_passes::shard::{Level, bucket_bytes};

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
            let pass = self.compiler.sharded(level, bucket);
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
}
