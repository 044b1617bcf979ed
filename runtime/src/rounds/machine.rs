//! Steps in rounds, whatever machine the parts are.

use super::whole::{AFTER, BEFORE, MAIN, PARTS, WholeStep};
use crate::cuda::driver::Driver;
use crate::cuda::nvrtc::Image;
use crate::cuda::{self, CudaExecutor};
use crate::executor::{Executor, ExecutorOptions, SetupError};
use crate::kernel::Draw;
use crate::machine::{DeviceError, Machine, StepFailure};
use crate::memory::{AlignedBytes, OutOfMemory};
use crate::ranks::Communicator;
use crate::ways::Way;
use arenic_ir::check::Footprint;
use arenic_ir::graph::{StateId, ValueId};
use arenic_ir::program::Span;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A step in rounds, ready to run.
pub struct InRounds<'s, 'g, M> {
    step: &'s WholeStep<'g>,
    /// In the order of their turns. Nobody else has them, and one is used at a time.
    parts: Vec<M>,
    /// The whole batch, by input; nothing of what no part reads.
    fed: Vec<Option<Held>>,
    /// Inputs that the next step copies from the device's memory.
    lent: BTreeMap<ValueId, u64>,
    /// By output, of all rounds; nothing of what is read where the last part leaves it.
    given: Vec<Held>,
    footprint: Footprint,
    library_bytes: u64,
    clock: &'static str,
    /// The part whose turn it is or was when the step failed.
    turn: usize,
    /// Parts that have had a turn in this step, or several, and ended it.
    ended: [bool; PARTS],
}

impl<M> InRounds<'_, '_, M> {
    /// One of its machines.
    pub(crate) fn any(&self) -> Option<&M> {
        self.parts.first()
    }
}

/// Bytes beside the arenas.
struct Held {
    memory: AlignedBytes,
    len: usize,
}

impl Held {
    fn new(len: usize) -> Result<Held, OutOfMemory> {
        Ok(Held { memory: AlignedBytes::zeroed(len as u64)?, len })
    }

    fn bytes(&self) -> &[u8] {
        &self.memory.as_slice()[..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.as_mut_slice()[..self.len]
    }
}

impl<'s, 'g> InRounds<'s, 'g, Executor<'g>> {
    /// Checks all parts, allocates their arenas and prepares them to run on the CPU.
    ///
    /// # Errors
    /// As for [`Executor::new`]. Violations name parts by the order of their turns, from 0.
    pub fn on_cpu(step: &'s WholeStep<'g>, options: ExecutorOptions) -> Result<Self, SetupError> {
        let parts = step.parts.map(|part| (part.graph, part.program)).to_vec();
        // SAFETY: they stay in this type, all of whose methods use one after another; what `output`
        // and `state` borrow from one keeps others from being used.
        let mut steps = unsafe { Executor::taking_turns(&[parts], options) }?;
        Self::of_cpu(step, steps.pop().unwrap_or_default())
    }

    /// A step of executors for its parts.
    pub(crate) fn of_cpu(
        step: &'s WholeStep<'g>,
        parts: Vec<Executor<'g>>,
    ) -> Result<Self, SetupError> {
        let library_bytes = parts[MAIN].library_bytes();
        let clock = "wall times of the last round of one step on the CPU";
        InRounds::new(step, parts, library_bytes, clock).map_err(SetupError::Batch)
    }

    /// Runs all parts as one of several ranks.
    pub(crate) fn join(&mut self, ranks: &Arc<dyn Communicator>) {
        self.parts.iter_mut().for_each(|part| part.join(Arc::clone(ranks)));
    }
}

impl<'s, 'g, D: Driver> InRounds<'s, 'g, CudaExecutor<'g, D>> {
    /// Checks all parts, allocates their arenas and prepares them to run on a device; `images` are
    /// their kernels, in the order of their turns: the part before the rounds, a round, the part
    /// after.
    ///
    /// # Errors
    /// As for [`CudaExecutor::new`]. Violations name parts by the order of their turns, from 0.
    pub fn on_device(
        step: &'s WholeStep<'g>,
        images: [&[Image]; 3],
        driver: D,
        options: cuda::CudaOptions,
    ) -> Result<Self, cuda::SetupError> {
        let part = |i: usize| {
            let (graph, program) = (step.parts[i].graph, step.parts[i].program);
            cuda::Part { graph, program, images: images[i] }
        };
        let parts = [BEFORE, MAIN, AFTER].map(part).to_vec();
        let mut steps = CudaExecutor::taking_turns(&[parts], driver, options)?;
        Self::of_device(step, steps.pop().unwrap_or_default())
    }

    /// A step of executors for its parts.
    pub(crate) fn of_device(
        step: &'s WholeStep<'g>,
        parts: Vec<CudaExecutor<'g, D>>,
    ) -> Result<Self, cuda::SetupError> {
        let library_bytes = parts.iter().map(Machine::library_bytes).sum();
        let clock = "times of events around each command of the last round of one step, which was \
                     issued command by command and not replayed as a graph";
        InRounds::new(step, parts, library_bytes, clock).map_err(cuda::SetupError::Batch)
    }
}

impl<'s, 'g, M: Machine> InRounds<'s, 'g, M> {
    fn new(
        step: &'s WholeStep<'g>,
        mut parts: Vec<M>,
        library_bytes: u64,
        clock: &'static str,
    ) -> Result<Self, OutOfMemory> {
        let mut footprint = parts[MAIN].footprint().clone();
        parts.iter().for_each(|part| footprint.cover(part.footprint()));
        let mut is_read = |&(part, v): &(usize, ValueId)| parts[part].input_mut(v).is_some();
        let fed = step.inputs.iter().map(|fed| {
            let is_read = fed.to.iter().any(&mut is_read);
            is_read.then(|| Held::new(fed.bytes)).transpose()
        });
        let fed = fed.collect::<Result<_, _>>()?;
        let given =
            step.outputs.iter().map(|of| Held::new(if of.part == AFTER { 0 } else { of.bytes }));
        let given = given.collect::<Result<_, _>>()?;
        let (turn, ended) = (BEFORE, [false; PARTS]);
        let lent = BTreeMap::new();
        Ok(InRounds { step, parts, fed, lent, given, footprint, library_bytes, clock, turn, ended })
    }

    /// Feeds a part what it reads of the batch, in this round.
    fn feed(&mut self, part: usize, round: u32, lent: &BTreeMap<ValueId, u64>) {
        let machine = &mut self.parts[part];
        for (fed, bytes) in self.step.inputs.iter().zip(&self.fed) {
            let Some(bytes) = bytes.as_ref().map(Held::bytes) else { continue };
            for &(_, v) in fed.to.iter().filter(|(p, _)| *p == part) {
                let Some(home) = machine.input_mut(v) else { continue };
                let is_part = fed.by_rows && part == MAIN;
                let first = if is_part { round as usize * home.len() } else { 0 };
                match lent.get(&fed.value) {
                    // SAFETY: the rows of what was lent.
                    Some(address) => unsafe { machine.feed_from(v, address + first as u64) },
                    None => home.copy_from_slice(&bytes[first..first + home.len()]),
                }
            }
        }
    }

    /// Keeps what a part has given in this round.
    fn collect(&mut self, part: usize, round: u32) {
        for (of, to) in self.step.outputs.iter().zip(&mut self.given) {
            if of.part == part {
                let bytes = self.parts[part].output(of.index);
                let first = if of.by_rows { round as usize * bytes.len() } else { 0 };
                to.bytes_mut()[first..first + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    /// Runs everything but the end of the last part; gives when the commands of the last round ran
    /// where that is asked for.
    fn run(&mut self, draw: Draw, is_timed: bool) -> Result<Vec<Span>, StepFailure> {
        // However the step ends, nothing is lent to the next one.
        let lent = &std::mem::take(&mut self.lent);
        self.ended = [false; PARTS];
        self.turn = BEFORE;
        self.feed(BEFORE, 0, lent);
        // What is drawn before the first round is drawn for all rounds of the rank.
        self.parts[BEFORE].step(draw)?;
        self.ended[BEFORE] = true;
        self.collect(BEFORE, 0);

        self.turn = MAIN;
        let mut spans = Vec::new();
        let ahead = self.parts[MAIN].feeds_ahead();
        self.feed(MAIN, 0, lent);
        for round in 0..self.step.count {
            // Of all ranks' rounds: a rank has its own one after another.
            let of_all = draw.round * u64::from(self.step.count) + u64::from(round);
            let draw = Draw { round: of_all, ..draw };
            let next = Some(round + 1).filter(|&next| next < self.step.count);
            if is_timed && next.is_none() {
                spans = self.parts[MAIN].timed_step(draw)?;
            } else {
                self.parts[MAIN].begin(draw)?;
                if let Some(next) = next.filter(|_| ahead) {
                    self.feed(MAIN, next, lent);
                }
                self.parts[MAIN].finish()?;
            }
            self.ended[MAIN] = true;
            self.collect(MAIN, round);
            if let Some(next) = next.filter(|_| !ahead) {
                self.feed(MAIN, next, lent);
            }
        }

        self.turn = AFTER;
        self.feed(AFTER, 0, lent);
        self.parts[AFTER].begin(draw)?;
        Ok(spans)
    }
}

impl<M: Machine> Machine for InRounds<'_, '_, M> {
    /// Arenas and peaks are the largest of any part, all else is of a round.
    fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// With the whole batch, and what is collected of it.
    fn library_bytes(&self) -> u64 {
        let held = self.fed.iter().flatten().chain(&self.given).map(|held| held.len as u64);
        self.library_bytes + held.sum::<u64>()
    }

    fn is_fed_anew(&self, _: ValueId) -> bool {
        false
    }

    fn feeds_ahead(&self) -> bool {
        self.parts[MAIN].feeds_ahead()
    }

    /// Parts take turns over the arenas.
    fn send_ahead(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn is_in_host_memory(&self) -> bool {
        self.parts[MAIN].is_in_host_memory()
    }

    fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        self.lent.remove(&v);
        let place = self.step.inputs.iter().position(|fed| fed.value == v)?;
        self.fed[place].as_mut().map(Held::bytes_mut)
    }

    fn stream(&self) -> Option<u64> {
        self.parts[MAIN].stream()
    }

    unsafe fn feed_from(&mut self, v: ValueId, address: u64) {
        self.lent.insert(v, address);
    }

    fn fill_home<E: From<DeviceError>>(
        &mut self,
        v: ValueId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(&(part, of_part)) = self.step.homes.get(&v) else { return Ok(()) };
        self.parts[part].fill_home(of_part, fill)
    }

    fn state(&self, s: StateId) -> Result<Cow<'_, [u8]>, DeviceError> {
        match self.step.states.get(s.as_u32() as usize) {
            Some(&of_part) => self.parts[MAIN].state(of_part),
            None => Ok(Cow::Borrowed(&[])),
        }
    }

    /// A part that has ended wrote the states that it changes; the one that failed may have
    /// written others.
    fn written_states(&self) -> Vec<StateId> {
        let of_turn = match self.ended[AFTER] {
            true => Vec::new(),
            false => self.parts[self.turn].written_states(),
        };
        let is_changed = |s: StateId| {
            let parts = self.step.parts.iter().zip(self.ended).filter(|(_, ended)| *ended);
            parts.map(|(part, _)| &part.graph.states[s]).any(|state| state.exit != state.enter)
        };
        let states = self.step.graph().states.keys().zip(&self.step.states);
        let written = states.filter(|&(_, &s)| of_turn.contains(&s) || is_changed(s));
        written.map(|(s, _)| s).collect()
    }

    fn output(&self, i: usize) -> &[u8] {
        match self.step.outputs.get(i) {
            Some(of) if of.part == AFTER => self.parts[AFTER].output(of.index),
            Some(_) => self.given[i].bytes(),
            None => &[],
        }
    }

    fn begin(&mut self, draw: Draw) -> Result<(), StepFailure> {
        self.run(draw, false).map(drop)
    }

    fn finish(&mut self) -> Result<(), StepFailure> {
        self.parts[AFTER].finish()?;
        self.ended[AFTER] = true;
        Ok(())
    }

    fn timed_step(&mut self, draw: Draw) -> Result<Vec<Span>, StepFailure> {
        let spans = self.run(draw, true)?;
        self.finish()?;
        Ok(spans)
    }

    fn clock(&self) -> &'static str {
        self.clock
    }

    /// Those of a round, and of the parts before and after.
    fn ways(&self) -> Vec<Way> {
        self.parts.iter().flat_map(Machine::ways).collect()
    }
}
