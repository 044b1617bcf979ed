//! What training needs of a program that is ready to step, wherever it runs.

use crate::executor::{Executor, StepError};
use crate::kernel::Draw;
use crate::ways::Way;
use arenic_ir::check::Footprint;
use arenic_ir::graph::{StateId, ValueId};
use arenic_ir::program::Span;
use std::borrow::Cow;

/// The device failed, in its driver's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// Why a step failed; states may then be half updated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepFailure {
    /// A kernel refused its operands' contents.
    #[error(transparent)]
    Refused(#[from] StepError),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] DeviceError),
}

/// A program ready to step.
pub trait Machine {
    /// What the checker said about the program.
    fn footprint(&self) -> &Footprint;

    /// At most so many bytes are allocated beside the arenas.
    fn library_bytes(&self) -> u64;

    /// True where an input must be fed again before every step, even the same: the step reuses
    /// its bytes once it has read them, or the next one reads others.
    fn is_fed_anew(&self, v: ValueId) -> bool;

    /// True where the next step may be fed between [`Machine::begin`] and [`Machine::finish`].
    fn feeds_ahead(&self) -> bool;

    /// Lets what was fed for the next step go to the device while this one runs, between [`Machine::begin`] and
    /// [`Machine::finish`]; none of it is fed again. Where a machine does not feed ahead this does nothing.
    ///
    /// # Errors
    /// The device refuses.
    fn send_ahead(&mut self) -> Result<(), DeviceError>;

    /// True where inputs, outputs and homes lie in memory of this process, each at an address of its own as long as
    /// the machine lives.
    fn is_in_host_memory(&self) -> bool;

    /// The bytes of a fed input, to be filled before the next step begins; `None` where the step
    /// does not read it.
    fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]>;

    /// The stream on which inputs are copied, as the driver numbers it, where [`Machine::feed_from`] takes
    /// them from a device's memory.
    fn stream(&self) -> Option<u64>;

    /// Has the next step copy an input from an address of the device's memory, whatever
    /// [`Machine::input_mut`] holds, unless that is asked for again. Whether the step succeeds or fails, it
    /// is the only one. Without a [`Machine::stream`] this does nothing.
    ///
    /// # Safety
    /// From there on the device has as many bytes as the input takes. They are written before the step in
    /// the order of the stream, and nobody changes or frees them until the step has ended.
    unsafe fn feed_from(&mut self, v: ValueId, address: u64);

    /// Fills the home of a constant, or of a state's value as a step begins, where it has one.
    ///
    /// # Errors
    /// Those of `fill`, and of the device.
    fn fill_home<E: From<DeviceError>>(
        &mut self,
        v: ValueId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E>;

    /// A state's bytes between steps; empty if the step does not read it.
    ///
    /// # Errors
    /// The device fails.
    fn state(&self, s: StateId) -> Result<Cow<'_, [u8]>, DeviceError>;

    /// After a step that failed: the states whose bytes it may have written. The others are as
    /// they were before it.
    fn written_states(&self) -> Vec<StateId>;

    /// The bytes of an output after a step, in the graph's order of outputs.
    fn output(&self, i: usize) -> &[u8];

    /// Begins a step, which may have ended when this returns; nothing but inputs is touched until
    /// [`Machine::finish`].
    ///
    /// # Errors
    /// Those of [`Machine::step`].
    fn begin(&mut self, draw: Draw) -> Result<(), StepFailure>;

    /// Waits for the end of the step that was begun.
    ///
    /// # Errors
    /// Those of [`Machine::step`].
    fn finish(&mut self) -> Result<(), StepFailure>;

    /// Runs one step.
    ///
    /// # Errors
    /// A kernel refused its operands' contents, or the device failed; states may then be half
    /// updated.
    fn step(&mut self, draw: Draw) -> Result<(), StepFailure> {
        self.begin(draw)?;
        self.finish()
    }

    /// Runs one step and says when each command of the program ran.
    ///
    /// # Errors
    /// As for [`Machine::step`].
    fn timed_step(&mut self, draw: Draw) -> Result<Vec<Span>, StepFailure>;

    /// Where the times of [`Machine::timed_step`] come from, in words.
    fn clock(&self) -> &'static str;

    /// Which way products, convolutions and attentions go; empty where there is but one.
    fn ways(&self) -> Vec<Way>;
}

impl Machine for Executor<'_> {
    fn footprint(&self) -> &Footprint {
        self.footprint()
    }

    fn library_bytes(&self) -> u64 {
        self.library_bytes()
    }

    fn is_fed_anew(&self, v: ValueId) -> bool {
        self.is_overwritten(v)
    }

    fn feeds_ahead(&self) -> bool {
        false
    }

    fn send_ahead(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn is_in_host_memory(&self) -> bool {
        true
    }

    fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        self.input_mut(v)
    }

    fn stream(&self) -> Option<u64> {
        None
    }

    unsafe fn feed_from(&mut self, _: ValueId, _: u64) {}

    fn fill_home<E: From<DeviceError>>(
        &mut self,
        v: ValueId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.carried_mut(v).map_or(Ok(()), fill)
    }

    fn state(&self, s: StateId) -> Result<Cow<'_, [u8]>, DeviceError> {
        Ok(Cow::Borrowed(self.state(s)))
    }

    fn written_states(&self) -> Vec<StateId> {
        self.written_states()
    }

    fn output(&self, i: usize) -> &[u8] {
        self.output(i)
    }

    fn begin(&mut self, draw: Draw) -> Result<(), StepFailure> {
        Ok(self.step(draw)?)
    }

    fn finish(&mut self) -> Result<(), StepFailure> {
        Ok(())
    }

    fn timed_step(&mut self, draw: Draw) -> Result<Vec<Span>, StepFailure> {
        Ok(self.timed_step(draw)?)
    }

    fn clock(&self) -> &'static str {
        "wall times of one step on the CPU"
    }

    fn ways(&self) -> Vec<Way> {
        Vec::new()
    }
}
