//! Steps, and what is fed to them and kept between them.

use super::{Capture, CudaExecutor};
use crate::cuda::driver::{Driver, DriverError};
use crate::kernel::Draw;
use crate::machine::{DeviceError, Machine, StepFailure};
use crate::ways::Way;
use arenic_ir::check::Footprint;
use arenic_ir::graph::{Def, StateId, ValueId};
use arenic_ir::program::Span;
use std::borrow::Cow;

impl From<DriverError> for DeviceError {
    fn from(error: DriverError) -> DeviceError {
        DeviceError(error.to_string())
    }
}

impl From<DriverError> for StepFailure {
    fn from(error: DriverError) -> StepFailure {
        StepFailure::Device(error.into())
    }
}

impl<D: Driver> Machine for CudaExecutor<'_, D> {
    fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// What libraries hold of the device's memory beside the arena, with their code and that of
    /// our own kernels as far as it was loaded by their side.
    fn library_bytes(&self) -> u64 {
        self.library_bytes
    }

    /// Each step reads the side of what is staged that the one before it did not.
    fn is_fed_anew(&self, _: ValueId) -> bool {
        true
    }

    fn feeds_ahead(&self) -> bool {
        true
    }

    fn send_ahead(&mut self) -> Result<(), DeviceError> {
        Ok(self.send()?)
    }

    fn is_in_host_memory(&self) -> bool {
        false
    }

    fn input_mut(&mut self, v: ValueId) -> Option<&mut [u8]> {
        // A step that failed before this one began may have left it lent.
        self.lent.remove(&v);
        // What the driver refuses it refuses the next step, too.
        let _ = self.call_back();
        let fed = self.staged.inputs.iter().find(|fed| fed.value == v)?;
        let address = self.staged.side(self.fed) + fed.at;
        // SAFETY: pinned memory of this length, which no copy uses before this side's step begins.
        Some(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, fed.home.len as usize) })
    }

    fn stream(&self) -> Option<u64> {
        Some(self.streams[0].0)
    }

    unsafe fn feed_from(&mut self, v: ValueId, address: u64) {
        self.lent.insert(v, address);
    }

    fn fill_home<E: From<DeviceError>>(
        &mut self,
        v: ValueId,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_input = |v| matches!(self.graph.values[v].def, Def::Input);
        let Some(home) = self.homes.get(&v).filter(|_| !is_input(v)) else { return Ok(()) };
        let mut bytes = vec![0; home.len as usize];
        fill(&mut bytes)?;
        // The home lies in its arena (`check`).
        let put = self.staged.put(&*self.driver, self.streams[0], self.address(home), &bytes);
        Ok(put.map_err(DeviceError::from)?)
    }

    fn state(&self, s: StateId) -> Result<Cow<'_, [u8]>, DeviceError> {
        let Some(home) = self.graph.states.get(s).and_then(|s| self.homes.get(&s.enter)) else {
            return Ok(Cow::Borrowed(&[]));
        };
        let mut bytes = vec![0u8; home.len as usize];
        let mut at = self.address(home);
        for piece in bytes.chunks_mut(self.staged.room() as usize) {
            let through = self.staged.piece();
            // SAFETY: as in `Staged::put`.
            unsafe {
                self.driver.copy(self.streams[0], at, through, piece.len() as u64)?;
                self.driver.synchronize(self.streams[0])?;
                std::ptr::copy_nonoverlapping(
                    through as *const u8,
                    piece.as_mut_ptr(),
                    piece.len(),
                );
            }
            at += piece.len() as u64;
        }
        Ok(Cow::Owned(bytes))
    }

    /// A step on a device runs to its end, whatever its kernels refuse.
    fn written_states(&self) -> Vec<StateId> {
        self.graph.states.keys().collect()
    }

    fn output(&self, i: usize) -> &[u8] {
        let Some((range, at)) = self.staged.outputs.get(i) else { return &[] };
        let address = self.staged.side(self.fed.other()) + at;
        // SAFETY: pinned memory of this length, which no copy uses once the side's step has ended.
        unsafe { std::slice::from_raw_parts(address as *const u8, range.len as usize) }
    }

    /// The first step is run as it is issued, later ones as one graph where the driver can
    /// capture it.
    fn begin(&mut self, draw: Draw) -> Result<(), StepFailure> {
        let (side, first) = (self.fed, self.streams[0]);
        self.staged.put_draw(side, draw);
        self.feed(side)?;
        match self.captured {
            Capture::Later => {
                self.issue(side)?;
                self.driver.synchronize(first)?;
                self.captured = self.capture();
            }
            // SAFETY: what was captured is what `issue` issues.
            Capture::Graphs(graphs) => unsafe {
                self.driver.run(first, graphs[side as usize])?;
            },
            Capture::Refused => self.issue(side)?,
        }
        self.fed = side.other();
        Ok(())
    }

    fn finish(&mut self) -> Result<(), StepFailure> {
        self.driver.synchronize(self.streams[0])?;
        self.outcome(self.fed.other())
    }

    /// Runs the step as it is issued, not as a graph. Recording events takes time on the device,
    /// too, so that such a step is slower.
    fn timed_step(&mut self, draw: Draw) -> Result<Vec<Span>, StepFailure> {
        self.timed(draw)
    }

    fn clock(&self) -> &'static str {
        "times of events around each command of one step, which was issued command by command \
         and not replayed as a graph"
    }

    fn ways(&self) -> Vec<Way> {
        self.ways.clone()
    }
}
