//! One step: the commands of every stream, with their addresses.

use super::streams::{EndOnPanic, Ended, Events};
use super::stress::Delays;
use super::{StepError, node_label};
use crate::cpu;
use crate::kernel::{Call, Destination, Draw, Operand, Scratch};
use crate::ranks::{self, Communicator};
use crate::workers::Workers;
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::program::Span;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What dead bytes are filled with under [`super::ExecutorOptions::poison`]: NaN as a float of
/// either width, −1 as an integer.
pub(super) const POISON: u8 = 0xff;

/// A command with its addresses.
pub(super) enum Prepared<'g> {
    Run {
        node: NodeId,
        inputs: Vec<Operand<'g>>,
        outputs: Vec<Option<Destination<'g>>>,
        scratch: Scratch,
    },
    Copy {
        from: *const u8,
        to: *mut u8,
        len: usize,
    },
    Record(usize),
    Wait(usize),
}

/// Addresses to fill with poison once a command is done.
pub(super) struct Dead {
    pub(super) ptr: *mut u8,
    pub(super) len: usize,
}

/// When each command of one step runs.
pub(super) struct Clock {
    begun: Instant,
    /// Nanoseconds since then.
    spans: Vec<[AtomicU64; 2]>,
}

/// Writes a command's time down when it is dropped.
struct Timed<'a> {
    clock: &'a Clock,
    command: usize,
    start: u64,
}

impl Clock {
    pub(super) fn new(commands: usize) -> Clock {
        let spans = std::iter::repeat_with(Default::default).take(commands).collect();
        Clock { begun: Instant::now(), spans }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn time(&self, command: usize) -> Timed<'_> {
        Timed { clock: self, command, start: self.now() }
    }

    pub(super) fn spans(&self) -> Vec<Span> {
        let seconds = |at: &AtomicU64| at.load(Relaxed) as f64 * 1e-9;
        let span =
            |[start, end]: &[AtomicU64; 2]| Span { start: seconds(start), end: seconds(end) };
        self.spans.iter().map(span).collect()
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let [start, end] = &self.clock.spans[self.command];
        start.store(self.start, Relaxed);
        end.store(self.clock.now(), Relaxed);
    }
}

/// What is run concurrently: the commands in issue order, and which of them each stream runs.
pub(super) struct StepCommands<'g> {
    pub(super) graph: &'g Graph,
    pub(super) commands: Vec<Prepared<'g>>,
    /// Per command, what dies with it; empty without [`super::ExecutorOptions::poison`].
    pub(super) dead: Vec<Vec<Dead>>,
    pub(super) streams: Vec<Vec<usize>>,
    /// How many commands of each stream were begun in the last step.
    pub(super) begun: Vec<AtomicUsize>,
    pub(super) events: Events,
    pub(super) delays: Option<Delays>,
    /// When commands ran, where that is asked for.
    pub(super) clock: Option<Clock>,
    /// Where kernels run, whatever stream they are of.
    pub(super) workers: Arc<Workers>,
    /// The other ranks that run the program, too.
    pub(super) ranks: Option<Arc<dyn Communicator>>,
    /// Of the kernels that refused their operands in this step the one issued first.
    pub(super) refused: Mutex<Option<(usize, StepError)>>,
}

// SAFETY: the raw addresses point into the arenas of the executor that owns this.
unsafe impl Send for StepCommands<'_> {}
// SAFETY: several streams go through the addresses at once, each for its own commands.
// `check` proved (I8) that of two commands that use the same bytes, one of them writing,
// one comes after the other by streams and events; and what comes before an event's record
// happens before what comes after its wait (`Events`). So no accesses race.
unsafe impl Sync for StepCommands<'_> {}

impl StepCommands<'_> {
    /// Runs the commands of a stream.
    pub(super) fn run(&self, stream: usize, draw: Draw) {
        let _end = EndOnPanic(&self.events);
        if let (Some(commands), Some(begun)) = (self.streams.get(stream), self.begun.get(stream)) {
            begun.store(self.run_all(commands, draw), Relaxed);
        }
    }

    /// Runs commands until one of them ends the step; says how many were begun.
    fn run_all(&self, commands: &[usize], draw: Draw) -> usize {
        for (k, &i) in commands.iter().enumerate() {
            if let Some(delays) = &self.delays {
                delays.before(i, draw.step);
            }
            let _timed = self.clock.as_ref().map(|clock| clock.time(i));
            match &self.commands[i] {
                Prepared::Run { node, inputs, outputs, scratch } => {
                    let op = &self.graph.nodes[*node].op;
                    let call = Call { op, inputs, outputs, scratch: *scratch, draw };
                    let ran = match op.ranks() {
                        None => self.workers.kernel(|| cpu::run(&call)),
                        Some(_) => ranks::run(&call, self.ranks.as_deref()),
                    };
                    if let Err(error) = ran {
                        let node = node_label(self.graph, *node);
                        self.refuse(i, StepError { node, error });
                        return k + 1;
                    }
                }
                Prepared::Copy { from, to, len } => {
                    // SAFETY: `check` proved both ranges in bounds and disjoint.
                    unsafe { std::ptr::copy_nonoverlapping(*from, *to, *len) };
                }
                Prepared::Record(event) => self.events.record(*event),
                Prepared::Wait(event) => {
                    if let Err(Ended) = self.events.wait(*event) {
                        return k + 1;
                    }
                }
            }
            for dead in self.dead.get(i).into_iter().flatten() {
                // SAFETY: `check` proved that no later command needs these bytes, and under
                // poison commands run in issue order.
                unsafe { std::ptr::write_bytes(dead.ptr, POISON, dead.len) };
            }
        }
        commands.len()
    }

    /// The address ranges that the last step may have written: those of the commands that were
    /// begun, in whole.
    pub(super) fn written(&self) -> Vec<std::ops::Range<usize>> {
        let mut written = Vec::new();
        let mut add = |ptr: *const u8, len: usize| {
            let first = ptr as usize;
            written.push(first..first + len);
        };
        for (commands, begun) in self.streams.iter().zip(&self.begun) {
            for &i in commands.iter().take(begun.load(Relaxed)) {
                match &self.commands[i] {
                    Prepared::Run { outputs, scratch, .. } => {
                        for target in outputs.iter().flatten() {
                            add(target.bytes(), target.ty().bytes() as usize);
                        }
                        let (first, len) = scratch.span();
                        add(first, len);
                    }
                    Prepared::Copy { to, len, .. } => add(*to, *len),
                    Prepared::Record(_) | Prepared::Wait(_) => {}
                }
                for dead in self.dead.get(i).into_iter().flatten() {
                    add(dead.ptr, dead.len);
                }
            }
        }
        written
    }

    /// Ends the step: what waits for this command would wait for ever.
    fn refuse(&self, command: usize, error: StepError) {
        let mut first = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|(issued, _)| command < *issued) {
            *first = Some((command, error));
        }
        self.events.end();
    }

    /// What the step that just ended came to.
    pub(super) fn outcome(&self) -> Result<(), StepError> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        refused.map_or(Ok(()), |(_, error)| Err(error))
    }
}
