//! Text of plans.
//!
//! ```text
//! plan {
//!   b0: input v0 32 bytes align 64 device live 0..1 slot0
//!   b1: scratch 64 bytes align 64 device
//!   b2: value v1 32 bytes align 64 device release t1 live 0..1 slot1
//!   b3: value v1 32 bytes align 64 host final live 1..1 slot2
//!   t0: run n0 stream0 (b0) -> (b2, _) scratch b1
//!   t1: commit s0 +0 stream0 (b2) -> (b3)
//!   control (t3 -> t5)
//!   spans (0..0, 1..1)
//!   useful (0..1, _, 0..1)
//!   preserved (0..1, _, _)
//!   precedence
//!   order (t0, t1)
//!   slots 1
//!   slot0: 64 bytes align 64 device live 0..1 at 128
//!   arena device 4096 host 0
//! }
//! ```
//!
//! Several buffers may hold a value, one after another. It is in the first of them where a step
//! asks for the value, or in the one that is `final`.

use super::lexer::Lexer;
use super::{TextError, write_list};
use crate::graph::{Graph, ValueId};
use crate::plan::{
    Buffer, BufferId, BufferKind, LiveRange, Placement, Plan, Precedence, Slot, SlotId, Slots,
    Spans, Task, TaskId, TaskKind,
};
use crate::space::{PerSpace, Space};
use cranelift_entity::{EntityRef, SecondaryMap};
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {{")?;
        let mut first: SecondaryMap<ValueId, Option<BufferId>> = SecondaryMap::new();
        for (b, buffer) in &self.buffers {
            write!(f, "  {b}: {}", buffer.kind.name())?;
            if let BufferKind::Enter(s) | BufferKind::Exit(s) = buffer.kind {
                write!(f, " {s}")?;
            }
            if let Some(v) = buffer.holds {
                write!(f, " {v}")?;
            }
            write!(f, " {} bytes align {} {}", buffer.bytes, buffer.align, buffer.space)?;
            if let Some(v) = buffer.holds.filter(|_| !matches!(buffer.kind, BufferKind::Exit(_))) {
                let first = *first[v].get_or_insert(b);
                if first != b && self.buffer_of[v] == Some(b) {
                    write!(f, " final")?;
                }
            }
            if let Some(t) = buffer.release {
                write!(f, " release {t}")?;
            }
            if let Ok(Some(live)) = self.live(b) {
                write!(f, " live {}..{}", live.first, live.last)?;
            }
            if let Some(slot) = self.slots().ok().and_then(|s| s.of[b]) {
                write!(f, " {slot}")?;
            }
            writeln!(f)?;
        }
        for (t, task) in &self.tasks {
            write!(f, "  {t}: ")?;
            match task.kind {
                TaskKind::Run(n) => write!(f, "run {n}")?,
                TaskKind::Copy { offset } => write!(f, "copy +{offset}")?,
                TaskKind::Commit { state, offset } => write!(f, "commit {state} +{offset}")?,
            }
            write!(f, " {} (", task.stream)?;
            write_list(f, &task.reads)?;
            f.write_str(") -> (")?;
            let result = |b: &Option<BufferId>| b.map_or("_".into(), |b| b.to_string());
            write_list(f, task.writes.iter().map(result))?;
            f.write_str(")")?;
            if let Some(b) = task.scratch {
                write!(f, " scratch {b}")?;
            }
            writeln!(f)?;
        }
        if !self.control_edges().is_empty() {
            f.write_str("  control (")?;
            write_list(f, self.control_edges().iter().map(|(a, b)| format!("{a} -> {b}")))?;
            writeln!(f, ")")?;
        }
        if let Ok(spans) = self.spans() {
            f.write_str("  spans (")?;
            let span = |t| format!("{}..{}", spans.asap[t], spans.alap[t]);
            write_list(f, self.tasks.keys().map(span))?;
            writeln!(f, ")")?;
            for (name, ranges) in [("useful", &spans.useful), ("preserved", &spans.preserved)] {
                let range = |b| match ranges[b] {
                    Some(LiveRange { first, last }) => format!("{first}..{last}"),
                    None => "_".into(),
                };
                write!(f, "  {name} (")?;
                write_list(f, self.buffers.keys().map(range))?;
                writeln!(f, ")")?;
            }
        }
        if self.precedence().is_ok() {
            writeln!(f, "  precedence")?;
        }
        if let Ok(order) = self.order() {
            f.write_str("  order (")?;
            write_list(f, order)?;
            writeln!(f, ")")?;
        }
        if let Ok(slots) = self.slots() {
            writeln!(f, "  slots {}", slots.slots.len())?;
            let placement = self.placement().ok();
            for (s, slot) in &slots.slots {
                let Slot { bytes, align, space, live, away } = slot;
                write!(f, "  {s}: {bytes} bytes align {align} {space} ")?;
                write!(f, "live {}..{}", live.first, live.last)?;
                for away in away {
                    write!(f, " away {}..{}", away.first, away.last)?;
                }
                if let Some(placement) = placement {
                    write!(f, " at {}", placement.offset[s])?;
                }
                writeln!(f)?;
            }
            if let Some(placement) = placement {
                let sizes = placement.sizes;
                writeln!(f, "  arena device {} host {}", sizes.device, sizes.host)?;
            }
        }
        writeln!(f, "}}")
    }
}

fn live_range(lexer: &mut Lexer) -> Result<LiveRange, TextError> {
    let first = lexer.number()?;
    lexer.expect("..")?;
    let last = lexer.number()?;
    if first > last || last > 1 << 28 {
        return Err(lexer.error(format!("{first}..{last} is no live range")));
    }
    Ok(LiveRange { first, last })
}

fn space(lexer: &mut Lexer) -> Result<Space, TextError> {
    match Space::ALL.into_iter().find(|s| lexer.accept_word(s.name())) {
        Some(space) => Ok(space),
        None => Err(lexer.error("expected a space")),
    }
}

/// `64 bytes align 64 device`
fn extent(lexer: &mut Lexer) -> Result<(u64, u64, Space), TextError> {
    let bytes = lexer.number()?;
    lexer.expect_word("bytes")?;
    lexer.expect_word("align")?;
    let align: u64 = lexer.number()?;
    if !align.is_power_of_two() || align > 1 << 30 || bytes > crate::types::MAX_TENSOR_BYTES {
        return Err(lexer.error("not a size and an alignment that is a power of two"));
    }
    Ok((bytes, align, space(lexer)?))
}

/// The buffer, whether it is the final one of its value, its live range and its slot.
fn parse_buffer(
    lexer: &mut Lexer,
    g: &Graph,
) -> Result<(Buffer, bool, Option<LiveRange>, Option<SlotId>), TextError> {
    let kind = match lexer.word()? {
        "input" => BufferKind::Input,
        "const" => BufferKind::Const,
        "state" => BufferKind::Enter(lexer.id("s")?),
        "exit" => BufferKind::Exit(lexer.id("s")?),
        "value" => BufferKind::Value,
        "scratch" => BufferKind::Scratch,
        other => return Err(lexer.error(format!("`{other}` is no kind of buffer"))),
    };
    let mut holds: Option<ValueId> = None;
    if kind != BufferKind::Scratch {
        holds = Some(lexer.id("v")?);
    }
    let state_known = match kind {
        BufferKind::Enter(s) | BufferKind::Exit(s) => g.states.is_valid(s),
        _ => true,
    };
    if !state_known || holds.is_some_and(|v| !g.values.is_valid(v)) {
        return Err(lexer.error("the graph has no such value or state"));
    }
    let (bytes, align, space) = extent(lexer)?;
    let is_final = lexer.accept_word("final");
    let release = if lexer.accept_word("release") { Some(lexer.id("t")?) } else { None };
    let live = if lexer.accept_word("live") { Some(live_range(lexer)?) } else { None };
    let slot = if lexer.peek_id("slot") { Some(lexer.id("slot")?) } else { None };
    Ok((Buffer { holds, kind, bytes, align, space, release }, is_final, live, slot))
}

fn parse_task(lexer: &mut Lexer, g: &Graph, plan: &Plan) -> Result<Task, TextError> {
    let kind = match lexer.word()? {
        "run" => TaskKind::Run(lexer.id("n")?),
        "copy" => {
            lexer.expect("+")?;
            TaskKind::Copy { offset: lexer.number()? }
        }
        "commit" => {
            let state = lexer.id("s")?;
            lexer.expect("+")?;
            TaskKind::Commit { state, offset: lexer.number()? }
        }
        other => return Err(lexer.error(format!("`{other}` is no kind of task"))),
    };
    let known = match kind {
        TaskKind::Run(n) => g.nodes.is_valid(n),
        TaskKind::Commit { state, .. } => g.states.is_valid(state),
        TaskKind::Copy { .. } => true,
    };
    if !known {
        return Err(lexer.error("the graph has no such node or state"));
    }
    let stream = lexer.id("stream")?;
    let buffer = |l: &mut Lexer| {
        let b: BufferId = l.id("b")?;
        if plan.buffers.is_valid(b) { Ok(b) } else { Err(l.error(format!("{b} is not defined"))) }
    };
    let reads = lexer.list(buffer)?;
    lexer.expect("->")?;
    let writes = lexer.list(|l| if l.accept_word("_") { Ok(None) } else { buffer(l).map(Some) })?;
    let scratch = if lexer.accept_word("scratch") { Some(buffer(lexer)?) } else { None };
    Ok(Task { kind, stream, reads, writes, scratch })
}

pub(super) fn parse(lexer: &mut Lexer, g: &Graph) -> Result<Plan, TextError> {
    let mut plan = Plan::default();
    let (mut spans, mut order) = (None::<Spans>, None::<Vec<TaskId>>);
    let (mut control, mut precedence) = (Vec::new(), false);
    let mut live: Vec<Option<LiveRange>> = Vec::new();
    let (mut slots, mut placement) = (Slots::default(), Placement::default());
    let (mut slot_count, mut arena) = (None::<usize>, None::<PerSpace<u64>>);

    lexer.expect_word("plan")?;
    lexer.expect("{")?;
    while !lexer.accept("}") {
        if lexer.peek_id("b") {
            let b = next_id(lexer, "b", plan.buffers.next_key())?;
            let (buffer, is_final, range, slot) = parse_buffer(lexer, g)?;
            if let (Some(v), true) = (buffer.holds, !matches!(buffer.kind, BufferKind::Exit(_)))
                && (is_final || plan.buffer_of[v].is_none())
            {
                plan.buffer_of[v] = Some(b);
            }
            plan.buffers.push(buffer);
            live.push(range);
            slots.of[b] = slot;
        } else if lexer.peek_id("t") {
            next_id(lexer, "t", plan.tasks.next_key())?;
            let task = parse_task(lexer, g, &plan)?;
            plan.tasks.push(task);
        } else if lexer.accept_word("spans") {
            let ranges = lexer.list(live_range)?;
            let table = spans.get_or_insert_default();
            for (t, range) in plan.tasks.keys().zip(ranges) {
                table.asap[t] = range.first;
                table.alap[t] = range.last;
            }
        } else if lexer.accept_word("useful") {
            spans.get_or_insert_default().useful = ranges_of_buffers(lexer, &plan)?;
        } else if lexer.accept_word("preserved") {
            spans.get_or_insert_default().preserved = ranges_of_buffers(lexer, &plan)?;
        } else if lexer.accept_word("control") {
            control = lexer.list(|l| {
                let before: TaskId = l.id("t")?;
                l.expect("->")?;
                Ok((before, l.id("t")?))
            })?;
        } else if lexer.accept_word("precedence") {
            precedence = true;
        } else if lexer.accept_word("slots") {
            slot_count = Some(lexer.number()?);
        } else if lexer.accept_word("order") {
            order = Some(lexer.list(|l| l.id("t"))?);
        } else if lexer.peek_id("slot") {
            let s = next_id(lexer, "slot", slots.slots.next_key())?;
            let (bytes, align, space) = extent(lexer)?;
            lexer.expect_word("live")?;
            let live = live_range(lexer)?;
            let mut away: Vec<LiveRange> = Vec::new();
            while lexer.accept_word("away") {
                let range = live_range(lexer)?;
                let before = away.last().map_or(live.first, |a| a.last);
                if range.first <= before || range.last >= live.last {
                    return Err(lexer.error(format!("{s} is away outside its live range")));
                }
                away.push(range);
            }
            slots.slots.push(Slot { bytes, align, space, live, away });
            if lexer.accept_word("at") {
                placement.offset[s] = lexer.number()?;
            }
        } else if lexer.accept_word("arena") {
            lexer.expect_word("device")?;
            let device = lexer.number()?;
            lexer.expect_word("host")?;
            arena = Some(PerSpace { device, host: lexer.number()? });
        } else {
            return Err(lexer.error("expected an item of a plan or `}`"));
        }
    }
    if let Some(t) =
        plan.buffers.values().filter_map(|b| b.release).find(|&t| !plan.tasks.is_valid(t))
    {
        return Err(lexer.error(format!("{t} is not defined")));
    }
    if !control.is_empty() {
        plan.add_control_edges(g, control).map_err(|e| lexer.error(e.to_string()))?;
    }
    if let Some(spans) = spans {
        plan.set_spans(spans);
    }
    if precedence {
        let table = Precedence::new(g, &plan).map_err(|e| lexer.error(e.to_string()))?;
        plan.set_precedence(table);
    }
    if let Some(order) = order {
        plan.set_order(g, order).map_err(|e| lexer.error(e.to_string()))?;
        for (b, &range) in plan.buffers.keys().zip(&live) {
            if plan.live(b).ok() != Some(range) {
                return Err(lexer.error(format!("the live range of {b} does not follow")));
            }
        }
    }
    if let Some(count) = slot_count {
        if count != slots.slots.len() {
            return Err(lexer.error(format!("{count} slots announced")));
        }
        let known = |s: SlotId| s.index() < slots.slots.len();
        if let Some(b) = plan.buffers.keys().find(|&b| slots.of[b].is_some_and(|s| !known(s))) {
            return Err(lexer.error(format!("{b} is in a slot that is not defined")));
        }
        plan.set_slots(slots);
    }
    if let Some(sizes) = arena {
        placement.sizes = sizes;
        plan.set_placement(placement);
    }
    Ok(plan)
}

/// A range or `_` for each buffer.
fn ranges_of_buffers(
    lexer: &mut Lexer,
    plan: &Plan,
) -> Result<SecondaryMap<BufferId, Option<LiveRange>>, TextError> {
    let range = |l: &mut Lexer| if l.accept_word("_") { Ok(None) } else { live_range(l).map(Some) };
    let ranges = lexer.list(range)?;
    let mut of_buffer = SecondaryMap::new();
    plan.buffers.keys().zip(ranges).for_each(|(b, range)| of_buffer[b] = range);
    Ok(of_buffer)
}

/// Reads `prefixN:` and insists on the next free number.
fn next_id<T: EntityRef + fmt::Display>(
    lexer: &mut Lexer,
    prefix: &str,
    next: T,
) -> Result<T, TextError> {
    let id: T = lexer.id(prefix)?;
    if id != next {
        return Err(lexer.error(format!("expected {next}")));
    }
    lexer.expect(":")?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use crate::graph::ValueId;
    use crate::plan::BufferId;
    use crate::text::Module;

    /// An output whose bytes end in host memory is alive there, no longer on the device.
    #[test]
    fn where_a_value_is_in_the_end_is_kept() {
        let text = r#"graph "g" {
  input v0: f32[4] "x"
  n0 unary {"f":"exp"} (v0) -> (v1: f32[4])
  n1 unary {"f":"neg"} (v0) -> (v2: f32[4])
  output "y" v1
  output "z" v2
}
plan {
  b0: input v0 16 bytes align 4 device live 0..2
  b1: value v1 16 bytes align 4 device live 0..1
  b2: value v1 16 bytes align 4 host final live 1..2
  b3: value v2 16 bytes align 4 device live 2..2
  t0: run n0 stream0 (b0) -> (b1)
  t1: copy +0 stream1 (b1) -> (b2)
  t2: run n1 stream0 (b0) -> (b3)
  order (t0, t1, t2)
}
"#;
        let module = Module::parse(text, &[]).unwrap();
        let plan = module.plan.as_ref().unwrap();
        assert_eq!(plan.buffer_of[ValueId::from_u32(1)], Some(BufferId::from_u32(2)));
        assert_eq!(module.to_string(), text);
    }
}
