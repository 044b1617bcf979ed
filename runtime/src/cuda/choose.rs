//! Which way each product and convolution goes: one of a library's, or our own kernels.
//!
//! Asked once for all that is equal, before anything is loaded: where choices are measured, the
//! arena's own bytes are what is computed on. A choice follows from what is asked for alone,
//! which follows from shapes and the target: it is the same under every byte limit.

use super::driver::{
    AlgorithmCandidate, CallHandle, Driver, DriverError, EventHandle, StreamHandle,
};
use super::work::Request;

/// How an executor is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Nothing depends on time: of each library the first way that it would choose and that
    /// always gives the same bits. Else all ways are measured, and the fastest taken, which may
    /// be another one the next time.
    pub deterministic: bool,
}

impl Default for CudaOptions {
    /// The same inputs give the same bits.
    fn default() -> CudaOptions {
        CudaOptions { deterministic: true }
    }
}

/// The way that a product or a convolution goes.
#[derive(Clone, Debug, PartialEq)]
pub struct AlgorithmChoice {
    /// What is computed.
    pub request: Request,
    /// How often in a step; where ways are measured, also as a part of what was measured beside
    /// the one that is taken.
    pub calls: usize,
    /// The library's ways that were tried, in its order, and our own kernels.
    pub tried: Vec<Trial>,
    /// Which of them is taken.
    pub taken: usize,
    /// Ways of the library that were not tried, since they do not always give the same bits.
    pub others: usize,
    /// Why no library is asked any further.
    pub refused: Option<DriverError>,
}

/// One way, tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The library's name of it; `kernels` for our own.
    pub name: String,
    /// Bytes of workspace that it uses; of our own kernels, all that there is.
    pub workspace: u64,
    /// Seconds that it took, the median of a few; not where choices are deterministic.
    pub seconds: Option<f64>,
    /// What the library said as it refused after all.
    pub refused: Option<DriverError>,
    call: Option<CallHandle>,
}

impl Trial {
    /// True for a library's way.
    pub fn is_by_library(&self) -> bool {
        self.call.is_some()
    }
}

impl AlgorithmChoice {
    /// The way that is taken.
    pub fn way(&self) -> &Trial {
        &self.tried[self.taken]
    }
}

/// Times that each way is measured, and calls of it each time.
const REPETITIONS: usize = 5;
const CALLS: usize = 3;

/// Seconds after which a way is not measured again.
const ENOUGH: f64 = 0.05;

/// A way whose first call takes so many times as long as the best so far is not measured further.
const HOPELESS: f64 = 3.0;

/// Chooses on a stream that nothing else uses.
pub(super) struct Chooser<'a, D> {
    driver: &'a D,
    stream: StreamHandle,
    options: CudaOptions,
    /// Events around what is measured, once something is.
    timers: Option<[EventHandle; 2]>,
    choices: Vec<AlgorithmChoice>,
}

impl<'a, D: Driver> Chooser<'a, D> {
    pub(super) fn new(driver: &'a D, stream: StreamHandle, options: CudaOptions) -> Self {
        Chooser { driver, stream, options, timers: None, choices: Vec::new() }
    }

    /// True where ways are measured, and so is what is done without the library.
    pub(super) fn measures(&self) -> bool {
        !self.options.deterministic
    }

    pub(super) fn into_choices(self) -> Vec<AlgorithmChoice> {
        self.choices
    }

    /// The library's call to be made, or none for our own kernels, which `own` issues.
    ///
    /// # Errors
    /// The device fails; where only a library does, there are other ways.
    ///
    /// # Safety
    /// As for [`Driver::call`], of a stream that is waited for before this returns.
    pub(super) unsafe fn choose(
        &mut self,
        request: &Request,
        addresses: &[u64],
        workspace: u64,
        own: &mut dyn FnMut() -> Result<(), DriverError>,
    ) -> Result<Option<CallHandle>, DriverError> {
        if let Some(known) = self.choices.iter_mut().find(|c| c.request == *request) {
            known.calls += 1;
            return Ok(known.way().call);
        }
        let (candidates, refused) = match self.driver.candidates(request) {
            Ok(candidates) => (candidates, None),
            Err(e) => (Vec::new(), Some(e)),
        };
        let deterministic = self.options.deterministic;
        let mut tried = Vec::new();
        let (candidates, others): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|c| c.deterministic || !deterministic);
        for candidate in candidates {
            let AlgorithmCandidate { call, name, workspace: bytes, .. } = candidate;
            let (driver, stream) = (self.driver, self.stream);
            // SAFETY: the caller's promise.
            let mut issue = || unsafe { driver.call(stream, call, addresses, workspace) };
            // A first call loads the library's kernels; that it may refuse shows now.
            let refused = issue().err();
            self.driver.synchronize(self.stream)?;
            let seconds = match (&refused, deterministic) {
                (None, false) => Some(self.measure(&mut issue, best(&tried))?),
                _ => None,
            };
            let done = deterministic && refused.is_none();
            tried.push(Trial { name, workspace: bytes, seconds, refused, call: Some(call) });
            if done {
                break;
            }
        }
        let seconds = if deterministic || tried.is_empty() {
            None
        } else {
            own()?;
            Some(self.measure(own, best(&tried))?)
        };
        let (name, workspace) = ("kernels".to_owned(), request.workspace);
        tried.push(Trial { name, workspace, seconds, refused: None, call: None });
        let possible = tried.iter().enumerate().filter(|(_, t)| t.refused.is_none());
        let time = |t: &Trial| t.seconds.unwrap_or(0.0);
        // The first of the fastest: without times, the library's.
        let taken = possible.min_by(|a, b| time(a.1).total_cmp(&time(b.1))).map_or(0, |(i, _)| i);
        let call = tried[taken].call;
        self.choices.push(AlgorithmChoice {
            request: request.clone(),
            calls: 1,
            tried,
            taken,
            others: others.len(),
            refused,
        });
        Ok(call)
    }

    /// Seconds of one call, the median of a few; of one alone where it takes far more than the best so far.
    fn measure(
        &mut self,
        issue: &mut dyn FnMut() -> Result<(), DriverError>,
        best: f64,
    ) -> Result<f64, DriverError> {
        let (driver, stream) = (self.driver, self.stream);
        let [begun, ended] = match self.timers {
            Some(timers) => timers,
            None => *self.timers.insert([driver.timed_event()?, driver.timed_event()?]),
        };
        let mut seconds = |calls: usize| {
            driver.record(stream, begun)?;
            (0..calls).try_for_each(|_| issue())?;
            driver.record(stream, ended)?;
            driver.synchronize(stream)?;
            Ok::<f64, DriverError>(driver.elapsed_seconds(begun, ended)? / calls as f64)
        };
        let first = seconds(1)?;
        if first > HOPELESS * best {
            return Ok(first);
        }
        let mut times: Vec<f64> = Vec::new();
        while times.len() < REPETITIONS && times.iter().sum::<f64>() * (CALLS as f64) < ENOUGH {
            times.push(seconds(CALLS)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

/// Seconds of the fastest way so far.
fn best(tried: &[Trial]) -> f64 {
    tried.iter().filter_map(|t| t.seconds).fold(f64::INFINITY, f64::min)
}
