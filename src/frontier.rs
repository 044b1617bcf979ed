//! The memory–time frontier of a model: how long its step takes under one byte limit after
//! another.

use crate::compile::{CompileError, Compiled};
use arenic_ir::cost::Device;

/// A plan that keeps a limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    /// Bytes of its arena on the device.
    pub(crate) arena_bytes: u64,
    /// Seconds of a step, simulated.
    pub(crate) step_seconds: f64,
    /// Seconds of every kernel once.
    pub(crate) unlimited_step_seconds: f64,
    /// Seconds that it takes at least, where tensors are computed again and none is moved.
    pub(crate) step_seconds_bound: Option<f64>,
    /// Bytes that a step copies between device and host memory.
    pub(crate) swapped_bytes: u64,
    /// Nodes that run again.
    pub(crate) recomputed_nodes: u64,
}

impl Point {
    /// The part by which the step is longer than its kernels.
    pub(crate) fn overhead(&self) -> f64 {
        (self.step_seconds / self.unlimited_step_seconds - 1.0).max(0.0)
    }

    /// The least that part can be, where it is known.
    pub(crate) fn overhead_bound(&self) -> Option<f64> {
        Some((self.step_seconds_bound? / self.unlimited_step_seconds - 1.0).max(0.0))
    }
}

/// What a limit leads to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LimitOutcome {
    /// A plan that keeps it.
    Kept(Point),
    /// No plan keeps it; the least limit that can be kept, in bytes, where that is known.
    Impossible(Option<u64>),
}

/// A model's compilations under limits on device memory.
pub(crate) struct Frontier<'a, F> {
    device: &'a Device,
    compile: F,
    unlimited: Point,
    least: Option<u64>,
}

impl<'a, F: FnMut(Option<u64>) -> Result<Compiled, CompileError>> Frontier<'a, F> {
    /// Compiles without a limit; `compile` takes one in bytes.
    ///
    /// # Errors
    /// See [`CompileError`].
    pub(crate) fn new(device: &'a Device, mut compile: F) -> Result<Self, CompileError> {
        let unlimited = point(&compile(None)?, device)?;
        Ok(Frontier { device, compile, unlimited, least: None })
    }

    /// The plan without a limit.
    pub(crate) fn unlimited(&self) -> &Point {
        &self.unlimited
    }

    /// The plan under a limit in bytes.
    ///
    /// # Errors
    /// What is wrong besides that nothing keeps the limit; see [`CompileError`].
    pub(crate) fn under(&mut self, limit: u64) -> Result<LimitOutcome, CompileError> {
        if self.least.is_some_and(|least| limit < least) {
            return Ok(LimitOutcome::Impossible(self.least));
        }
        match (self.compile)(Some(limit)) {
            Ok(compiled) => Ok(LimitOutcome::Kept(point(&compiled, self.device)?)),
            Err(e) if e.is_of_limits() => {
                let least = e.minimum().map(|least| least.bytes);
                self.least = self.least.or(least);
                Ok(LimitOutcome::Impossible(least))
            }
            Err(e) => Err(e),
        }
    }
}

fn point(compiled: &Compiled, device: &Device) -> Result<Point, CompileError> {
    let target = compiled.target()?;
    let (step_seconds, unlimited_step_seconds) = compiled.seconds(device)?;
    Ok(Point {
        arena_bytes: target.figures.arena_bytes,
        step_seconds,
        unlimited_step_seconds,
        step_seconds_bound: compiled.report.seconds_bound(),
        swapped_bytes: target.figures.swapped_bytes,
        recomputed_nodes: target.figures.recomputed_nodes,
    })
}
