//! Measures a program's operators on a device, and copies over its link.
//!
//! Operators are measured one by one, as [`crate::profile`] does it: each alone in memory, so that
//! a step which does not fit can be measured, too. A sample is one graph of as many calls as take
//! some time, since a step is replayed as a graph; what the launch of a kernel costs there is in
//! its time. Operands that caches hold stay in them between calls.

use super::staged::{ALIGN, Side, Staged};
use super::{Chooser, CudaOptions, Prepare, Prepared, SetupError, lower_all};
use crate::cuda::choose::AlgorithmChoice;
use crate::cuda::driver::{Driver, DriverError, EventHandle, ModuleHandle, StreamHandle};
use crate::cuda::nvrtc::Image;
use crate::cuda::work::Work;
use crate::executor::{StepError, node_label};
use crate::kernel::Draw;
use crate::profile::{
    COPY_BYTES, LEAST_SAMPLES, MOST_SECONDS, MeasureError, SAMPLES, median, operand, rounded,
};
use arenic_ir::TargetInfo;
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::profile::{KernelTime, KernelTimes, Machine, Profile};
use arenic_ir::program::{Command, PerSpace, Program, Range, Space, StreamId};
use std::collections::HashMap;
use std::time::Instant;

/// A sample is of as many calls as take so many seconds, far above what events resolve.
const SAMPLE_SECONDS: f64 = 200e-6;
const MOST_CALLS: f64 = 200.0;

/// What cannot be measured to be more takes so many seconds.
const LEAST_SECONDS: f64 = 1e-9;

/// Measures every operator of a program, each once for the same operands, and copies between the
/// device and pinned memory. The profile bears the device's name.
///
/// # Errors
/// An operator alone does not fit the device, or the driver fails.
pub fn profile(
    g: &Graph,
    program: &Program,
    images: &[Image],
    driver: &impl Driver,
) -> Result<Profile, MeasureError> {
    let (module, work) = lower_all(g, program).map_err(SetupError::from)?;
    let (mut nodes, mut times) = (Vec::new(), KernelTimes::default());
    for n in g.nodes.keys().filter(|n| work.contains_key(n)) {
        // The seconds are found below; here each operator is met once.
        if times.insert(&time_of(g, n, LEAST_SECONDS)) {
            nodes.push(n);
        }
    }
    let target = program.target;
    let need = nodes.iter().map(|&n| Places::of(g, n, target).bytes).max().unwrap_or(0);
    let free = driver.memory()?.free;
    if free < need {
        let (device, missing) = (driver.name(), need - free);
        return Err(SetupError::Memory { device, free, arena: need, missing }.into());
    }
    let module = match module.is_empty() {
        true => None,
        false => Some(driver.load(&module.source(), images)?),
    };
    let bench = Bench::new(driver, module, target, need)?;
    let mut workspace_bytes = None;
    let mut kernels = Vec::new();
    for n in nodes {
        let (time, workspace) = bench.measure(g, n, &work)?;
        kernels.push(time);
        // None is less than some.
        workspace_bytes = workspace_bytes.max(workspace);
    }
    let machine = Machine { workspace_bytes, ..bench.copy_rates()? };
    Ok(Profile { machine, kernels })
}

fn time_of(g: &Graph, n: NodeId, seconds: f64) -> KernelTime {
    let operands = g.input_types(n).into_iter().cloned().collect();
    KernelTime { operator: g.nodes[n].op.clone(), operands, seconds }
}

/// Where an operator's tensors are while it is measured.
struct Places {
    reads: Vec<Range>,
    writes: Vec<Option<Range>>,
    scratch: Option<Range>,
    bytes: u64,
}

impl Places {
    fn of(g: &Graph, n: NodeId, target: TargetInfo) -> Places {
        let node = &g.nodes[n];
        let inputs = g.input_types(n);
        let outputs = node.op.infer(&inputs).unwrap_or_default();
        let scratch = node.op.scratch_bytes(target, &inputs, &outputs.iter().collect::<Vec<_>>());
        let mut bytes = 0;
        let mut place = |len: u64| {
            let offset = bytes;
            bytes += len.next_multiple_of(ALIGN);
            Range { space: Space::Device, offset, len }
        };
        let reads = inputs.iter().map(|ty| place(ty.bytes())).collect();
        let written = |v: &Option<_>| v.map(|v| g.ty(v).bytes());
        let writes = node.outputs.iter().map(|v| written(v).map(&mut place)).collect();
        let scratch = (scratch > 0).then(|| place(scratch));
        Places { reads, writes, scratch, bytes }
    }
}

/// Memory and a stream for one operator at a time.
struct Bench<'a, D> {
    driver: &'a D,
    module: Option<ModuleHandle>,
    target: TargetInfo,
    arenas: PerSpace<u64>,
    staged: Staged,
    streams: [StreamHandle; 2],
    begun: EventHandle,
    ended: EventHandle,
    /// Between the streams.
    joined: EventHandle,
}

impl<'a, D: Driver> Bench<'a, D> {
    fn new(
        driver: &'a D,
        module: Option<ModuleHandle>,
        target: TargetInfo,
        bytes: u64,
    ) -> Result<Self, DriverError> {
        Ok(Bench {
            driver,
            module,
            target,
            arenas: PerSpace { device: driver.allocate(bytes)?, host: 0 },
            staged: Staged::of_nothing(driver)?,
            streams: [driver.stream()?, driver.stream()?],
            begun: driver.timed_event()?,
            ended: driver.timed_event()?,
            joined: driver.event()?,
        })
    }

    /// The time of an operator, and the workspace that a library used for it.
    fn measure(
        &self,
        g: &Graph,
        n: NodeId,
        work: &HashMap<NodeId, Vec<Work>>,
    ) -> Result<(KernelTime, Option<u64>), MeasureError> {
        let places = Places::of(g, n, self.target);
        let (op, types) = (&g.nodes[n].op, g.input_types(n));
        for (k, place) in places.reads.iter().enumerate() {
            let contents = operand(op, &types, k)?;
            let bytes = &contents.as_slice()[..place.len as usize];
            self.staged.put(
                self.driver,
                self.streams[0],
                self.arenas.device + place.offset,
                bytes,
            )?;
        }
        let Places { reads, writes, scratch, .. } = places;
        let (stream, mut prepared) = (StreamId::default(), Vec::new());
        let command = Command::Run { node: n, stream, reads, writes, scratch };
        let mut prepare = Prepare {
            driver: self.driver,
            module: self.module,
            arenas: &self.arenas,
            staged: &self.staged,
            streams: &HashMap::from([(stream, 0)]),
            rank: self.driver.rank(),
            first: self.streams[0],
            // As a step chooses that is run.
            chooser: Chooser::new(self.driver, self.streams[0], CudaOptions::default()),
            events: HashMap::new(),
            functions: HashMap::new(),
        };
        prepare.command(&command, work, &mut prepared)?;
        self.begin()?;
        self.issue(&prepared, 1)?;
        self.end()?;
        if let Some((_, error)) = self.staged.refusal(Side::Even) {
            return Err(MeasureError::Refused(StepError { node: node_label(g, n), error }));
        }
        let seconds = if prepared.is_empty() { LEAST_SECONDS } else { self.seconds(&prepared)? };
        let choices = prepare.chooser.into_choices();
        let ways = choices.iter().map(AlgorithmChoice::way).filter(|way| way.is_by_library());
        Ok((time_of(g, n, seconds), ways.map(|way| way.workspace).max()))
    }

    /// Seconds of a call once its kernels are loaded.
    fn seconds(&self, prepared: &[Prepared]) -> Result<f64, DriverError> {
        let first = self.streams[0];
        self.driver.record(first, self.begun)?;
        self.issue(prepared, 1)?;
        let once = self.elapsed()?;
        let calls = (SAMPLE_SECONDS / once).ceil().clamp(1.0, MOST_CALLS) as usize;
        // Where the driver cannot capture, calls are issued one by one.
        let graph = match self.driver.begin_capture(first) {
            Ok(()) => {
                let issued = self.issue(prepared, calls);
                let graph = self.driver.end_capture(first);
                issued.and(graph).ok()
            }
            Err(_) => None,
        };
        let (mut samples, start) = (Vec::new(), Instant::now());
        while samples.len() < SAMPLES
            && (samples.len() < LEAST_SAMPLES || start.elapsed().as_secs_f64() < MOST_SECONDS)
        {
            self.driver.record(first, self.begun)?;
            match graph {
                // SAFETY: as in `issue`.
                Some(graph) => unsafe { self.driver.run(first, graph)? },
                None => self.issue(prepared, calls)?,
            }
            samples.push(self.elapsed()? / calls as f64);
        }
        Ok(rounded(median(samples)))
    }

    /// Seconds since `begun`, once the first stream is done.
    fn elapsed(&self) -> Result<f64, DriverError> {
        self.driver.record(self.streams[0], self.ended)?;
        self.driver.synchronize(self.streams[0])?;
        Ok(self.driver.elapsed_seconds(self.begun, self.ended)?.max(LEAST_SECONDS))
    }

    fn issue(&self, prepared: &[Prepared], calls: usize) -> Result<(), DriverError> {
        for command in (0..calls).flat_map(|_| prepared) {
            // SAFETY: every address lies in this arena, in places of its own, or in what is
            // staged; one stream orders all accesses.
            unsafe { command.issue(self.driver, &self.streams)? };
        }
        Ok(())
    }

    /// Sends seed, step and that nothing is refused to the device.
    fn begin(&self) -> Result<(), DriverError> {
        self.staged.put_draw(Side::Even, Draw::default());
        self.staged.send_draw(Side::Even, self.driver, self.streams[0])
    }

    /// Waits for what was issued, and fetches what was refused.
    fn end(&self) -> Result<(), DriverError> {
        self.staged.fetch_refusal(Side::Even, self.driver, self.streams[0])?;
        self.driver.synchronize(self.streams[0])
    }

    /// Bytes per second of a copy each way, and of each of two at once.
    fn copy_rates(&self) -> Result<Machine, DriverError> {
        let (driver, bytes) = (self.driver, COPY_BYTES as u64);
        let device = [driver.allocate(bytes)?, driver.allocate(bytes)?];
        let pinned = [driver.allocate_pinned(bytes)?, driver.allocate_pinned(bytes)?];
        let [first, second] = self.streams;
        let rate = |copies: &dyn Fn() -> Result<(), DriverError>| {
            let mut samples = Vec::new();
            for _ in 0..SAMPLES {
                driver.record(first, self.begun)?;
                copies()?;
                samples.push(self.elapsed()?);
            }
            Ok::<f64, DriverError>(rounded(bytes as f64 / median(samples)))
        };
        // SAFETY: allocations of this size, each used by one copy at a time.
        let to_host = || unsafe { driver.copy(first, device[0], pinned[0], bytes) };
        // SAFETY: as above.
        let to_device = |stream| unsafe { driver.copy(stream, pinned[1], device[1], bytes) };
        let both = || {
            driver.wait(second, self.begun)?;
            to_device(second)?;
            driver.record(second, self.joined)?;
            to_host()?;
            driver.wait(first, self.joined)
        };
        // Once more for the pages.
        both()?;
        self.elapsed()?;
        Ok(Machine {
            device: driver.name(),
            threads: 1,
            to_host_bytes_per_second: rate(&to_host)?,
            to_device_bytes_per_second: rate(&|| to_device(first))?,
            both_bytes_per_second: rate(&both)?,
            workspace_bytes: None,
        })
    }
}
