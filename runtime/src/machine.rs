//! What training needs of a program that is ready to step, wherever it runs.

use crate::cuda::driver::{Driver, DriverError};
use crate::cuda::{CudaExecutor, DeviceStepError};
use crate::executor::Executor;
use crate::kernel::Draw;
use arenic_ir::check::Footprint;
use arenic_ir::graph::{StateId, ValueId};
use std::borrow::Cow;

/// A program ready to step.
pub trait Machine {
    /// What the checker said about the program.
    fn footprint(&self) -> &Footprint;

    /// At most so many bytes are allocated beside the arenas.
    fn library_bytes(&self) -> u64;

    /// True where the step reuses the bytes of a fed input once it has read them, so that it
    /// must be fed again before every step.
    fn is_overwritten(&self, v: ValueId) -> bool;

    /// The bytes of a fed input, to be filled before each step; `None` where the step does not
    /// read it.
    fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]>;

    /// Fills the home of a constant, or of a state's value as a step begins, where it has one.
    ///
    /// # Errors
    /// Those of `fill`, and of the device.
    fn fill_home<E: From<DriverError>>(
        &mut self,
        v: ValueId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E>;

    /// A state's bytes between steps; none where the step does not read it.
    ///
    /// # Errors
    /// The device fails.
    fn state(&self, s: StateId) -> Result<Cow<'_, [u8]>, DriverError>;

    /// The bytes of an output after a step, in the graph's order of outputs.
    fn output(&self, i: usize) -> &[u8];

    /// Runs one step.
    ///
    /// # Errors
    /// A kernel refused its operands' contents, or the device failed; states may then be half
    /// updated.
    fn step(&mut self, draw: Draw) -> Result<(), DeviceStepError>;
}

impl Machine for Executor<'_> {
    fn footprint(&self) -> &Footprint {
        self.footprint()
    }

    fn library_bytes(&self) -> u64 {
        self.library_bytes()
    }

    fn is_overwritten(&self, v: ValueId) -> bool {
        self.is_overwritten(v)
    }

    fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        self.input_mut(v)
    }

    fn fill_home<E: From<DriverError>>(
        &mut self,
        v: ValueId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.carried_mut(v).map_or(Ok(()), fill)
    }

    fn state(&self, s: StateId) -> Result<Cow<'_, [u8]>, DriverError> {
        Ok(Cow::Borrowed(self.state(s)))
    }

    fn output(&self, i: usize) -> &[u8] {
        self.output(i)
    }

    fn step(&mut self, draw: Draw) -> Result<(), DeviceStepError> {
        Ok(self.step(draw)?)
    }
}

impl<D: Driver> Machine for CudaExecutor<'_, D> {
    fn footprint(&self) -> &Footprint {
        self.footprint()
    }

    fn library_bytes(&self) -> u64 {
        self.library_bytes()
    }

    /// Inputs are copied to the device before every step.
    fn is_overwritten(&self, _: ValueId) -> bool {
        false
    }

    fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        self.input_mut(v)
    }

    fn fill_home<E: From<DriverError>>(
        &mut self,
        v: ValueId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(len) = self.carried_bytes(v) else { return Ok(()) };
        let mut bytes = vec![0; len as usize];
        fill(&mut bytes)?;
        Ok(self.fill(v, &bytes)?)
    }

    fn state(&self, s: StateId) -> Result<Cow<'_, [u8]>, DriverError> {
        Ok(Cow::Owned(self.state(s)?))
    }

    fn output(&self, i: usize) -> &[u8] {
        self.output(i)
    }

    fn step(&mut self, draw: Draw) -> Result<(), DeviceStepError> {
        self.step(draw)
    }
}
