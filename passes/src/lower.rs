//! Lowering: tasks in order become commands with byte ranges.
//!
//! A commit whose source and destination are the same bytes is left out: the exit value
//! was written straight home. Sound by nothing but `check`, which shares no code with
//! this file.

use crate::{Cx, PassError, ProgramPass, Stats};
use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::plan::{BufferId, BufferKind, Fact, Placement, Plan, Slots, Task, TaskKind};
use arenic_ir::program::{Command, Home, Program, Range};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Turns the plan into a program.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Lower {}

impl ProgramPass for Lower {
    fn needs(&self) -> &[Fact] {
        &[Fact::Order, Fact::Slots, Fact::Placement]
    }

    fn run(
        &self,
        g: &Graph,
        plan: &Plan,
        program: &mut Program,
        _: &Cx,
    ) -> Result<Stats, PassError> {
        let at = Addresses { plan, slots: plan.slots()?, placement: plan.placement()? };
        program.sizes = at.placement.sizes;
        program.homes.clear();
        program.ahead.clear();
        program.commands.clear();
        for (b, buffer) in &plan.buffers {
            let homed =
                matches!(buffer.kind, BufferKind::Input | BufferKind::Const | BufferKind::Enter(_));
            if let (true, Some(value)) = (homed, buffer.holds) {
                program.homes.push(Home { value, range: at.buffer(b) });
            }
        }
        let mut commits_left_out = 0;
        for &t in plan.order()? {
            let task = &plan.tasks[t];
            let command = at.command(g, task);
            match command {
                Some(command) => program.commands.push(command),
                None => commits_left_out += 1,
            }
        }
        program.outputs = g
            .outputs
            .iter()
            .map(|o| {
                let root = plan.buffer_of[g.resolve(o.value).root];
                root.map_or(at.nowhere(), |b| at.value(g, o.value, b))
            })
            .collect();
        Ok(Stats::from([
            ("commands", program.commands.len() as u64),
            ("commits_left_out", commits_left_out),
        ]))
    }
}

struct Addresses<'a> {
    plan: &'a Plan,
    slots: &'a Slots,
    placement: &'a Placement,
}

impl Addresses<'_> {
    fn nowhere(&self) -> Range {
        Range { space: arenic_ir::program::Space::Device, offset: 0, len: 0 }
    }

    fn buffer(&self, b: BufferId) -> Range {
        let buffer = &self.plan.buffers[b];
        let offset = self.slots.of[b].map_or(0, |s| self.placement.offset[s]);
        Range { space: buffer.space, offset, len: buffer.bytes }
    }

    /// A value's bytes within the buffer of its root.
    fn value(&self, g: &Graph, v: ValueId, b: BufferId) -> Range {
        let root = self.buffer(b);
        Range { offset: root.offset + g.resolve(v).offset, len: g.ty(v).bytes(), ..root }
    }

    fn command(&self, g: &Graph, task: &Task) -> Option<Command> {
        match task.kind {
            TaskKind::Run(node) => {
                let operands = g.nodes[node].inputs.iter().zip(&task.reads);
                Some(Command::Run {
                    node,
                    stream: task.stream,
                    reads: operands.map(|(&v, &b)| self.value(g, v, b)).collect(),
                    writes: task.writes.iter().map(|b| b.map(|b| self.buffer(b))).collect(),
                    scratch: task.scratch.map(|b| self.buffer(b)),
                })
            }
            TaskKind::Copy { offset } | TaskKind::Commit { offset, .. } => {
                let to = self.buffer(task.writes.first().copied().flatten()?);
                let root = self.buffer(*task.reads.first()?);
                let from = Range { offset: root.offset + offset, len: to.len, ..root };
                (from != to).then_some(Command::Copy { stream: task.stream, from, to })
            }
        }
    }
}
