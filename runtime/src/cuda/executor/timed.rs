//! A step whose commands are timed, each by two events on its stream.

use super::{CudaExecutor, Issued};
use crate::cuda::driver::Driver;
use crate::kernel::Draw;
use crate::machine::StepFailure;
use arenic_ir::program::Span;

impl<D: Driver> CudaExecutor<'_, D> {
    /// One step with an event before and after each command of the program.
    pub(super) fn timed(&mut self, draw: Draw) -> Result<Vec<Span>, StepFailure> {
        let driver = &*self.driver;
        let begun = driver.timed_event()?;
        let pair = || Ok::<_, StepFailure>([driver.timed_event()?, driver.timed_event()?]);
        let events: Vec<_> = self.issued.iter().map(|_| pair()).collect::<Result<_, _>>()?;
        let side = self.fed;
        self.staged.put_draw(side, draw);
        // Before any other stream begins.
        self.driver.record(self.streams[0], begun)?;
        self.feed(side)?;
        let driver = &*self.driver;
        self.issue_around(side, || {
            for (Issued { stream, commands }, [start, end]) in self.issued.iter().zip(&events) {
                let stream = self.streams[*stream];
                driver.record(stream, *start)?;
                let commands = &self.commands[commands.clone()];
                commands.iter().try_for_each(|command| self.issue_one(command))?;
                driver.record(stream, *end)?;
            }
            Ok(())
        })?;
        self.driver.synchronize(self.streams[0])?;
        self.fed = side.other();
        self.outcome(side)?;
        let seconds = |event| Ok::<_, StepFailure>(driver.elapsed_seconds(begun, event)?);
        let span = |&[start, end]: &[_; 2]| Ok(Span { start: seconds(start)?, end: seconds(end)? });
        events.iter().map(span).collect()
    }
}
