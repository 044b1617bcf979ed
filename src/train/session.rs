//! A program that steps when it is told to, on a thread of its own.
//!
//! The thread owns everything that a step needs, and a GPU's context is current on it. It waits between
//! steps. Whoever has the [`Session`] gives one order at a time, and touches the machine's memory only
//! while none is open: inputs are written to where the machine reads them. A step goes on where its caller stops
//! waiting. A forward pass that evaluates has a session and arenas of its own.

mod ready;

use super::added::More;
use super::error::class_error;
use super::{Initial, Place, Step, TrainError, Work, images, on_cpu, on_device, ready_one};
use crate::artifact::{Artifact, Target};
use crate::gpu_code::Trust;
use crate::heap;
use arenic_ir::graph::{StateId, ValueId};
use arenic_passes::Purpose;
use arenic_runtime::cuda::{self, Cuda};
use arenic_runtime::executor::ExecutorOptions;
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::{DeviceError, Machine};
use arenic_runtime::variants::{Another, Variants};
pub(crate) use ready::{Home, Ports, Ready};
pub use ready::{Port, Slot};
use ready::{ports, ready, slots};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a program is run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    pub(crate) place: Place,
    /// Threads of kernels; 0 takes one per core.
    pub(crate) threads: usize,
    pub(crate) deterministic: bool,
    pub(crate) trust: Trust,
    pub(crate) poison: bool,
}

/// What is to be done, by a variant.
enum Order {
    /// Adds a step over the arenas that are there.
    Add(Arc<Target>),
    /// With inputs that the device's memory has, and where.
    Step(usize, Draw, Vec<(usize, u64)>),
    Read(usize, StateId),
    Write(usize, ValueId, Vec<u8>),
}

enum Reply {
    Added(Result<Ports, TrainError>),
    /// Where inputs and outputs are for the next step, if they are elsewhere.
    Stepped(Result<Option<Vec<Option<Slot>>>, TrainError>),
    Read(Result<Vec<u8>, DeviceError>),
    Written(Result<(), DeviceError>),
}

/// How long a thread looks for a message before it sleeps: about what it takes to fall asleep and be
/// woken, which is longer than a small step.
const PATIENCE: Duration = Duration::from_micros(50);

/// A message that is there, or comes soon. Other threads may run meanwhile.
fn soon<T>(messages: &Receiver<T>) -> Result<T, TryRecvError> {
    let begun = Instant::now();
    loop {
        match messages.try_recv() {
            Err(TryRecvError::Empty) if begun.elapsed() < PATIENCE => std::thread::yield_now(),
            other => return other,
        }
    }
}

/// A program that steps on a thread of its own.
pub(crate) struct Session {
    ready: Ready,
    /// `None` once the thread is told to end.
    orders: Option<Sender<Order>>,
    replies: Receiver<Reply>,
    thread: Option<JoinHandle<()>>,
    /// A step was begun whose end nobody waited for.
    is_open: bool,
    /// Inputs that the device's memory has for the next step.
    lent: Vec<(usize, u64)>,
}

impl Session {
    /// Makes an artifact's variants ready, or the forward pass that evaluates one of them.
    ///
    /// # Errors
    /// It cannot be run here, or states lack values.
    pub(crate) fn new(
        artifact: Arc<Artifact>,
        purpose: Purpose,
        variant: usize,
        initial: Initial,
        how: How,
    ) -> Result<Session, TrainError> {
        let (orders, received) = channel();
        let (sent, replies) = channel();
        let (tell, told) = channel();
        let body = move || {
            let failed = tell.clone();
            let trust = how.trust;
            let serving = Serving { initial, trust, tell, orders: received, replies: sent };
            if let Err(e) = serve(&artifact, purpose, variant, how, serving) {
                // Where it was ready before, nobody listens.
                let _ = failed.send(Err(e));
            }
        };
        let thread = std::thread::Builder::new().name("arenic".into()).spawn(body);
        let thread = thread.map_err(|e| TrainError::Thread(e.to_string()))?;
        let ready = told.recv().unwrap_or(Err(TrainError::Ended))?;
        let (thread, lent) = (Some(thread), Vec::new());
        Ok(Session { ready, orders: Some(orders), replies, thread, is_open: false, lent })
    }

    /// What is known of the machine.
    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Chooses the variant that is fed, and whose outputs are read. What it was fed before another one stepped is
    /// gone.
    ///
    /// # Errors
    /// Those of a step that nobody waited for.
    pub(crate) fn choose(&mut self, variant: usize) -> Result<(), TrainError> {
        self.settle()?;
        self.take_back();
        self.ready.chosen = variant;
        Ok(())
    }

    /// The bytes of input `i`, to be filled before the next step; `None` where the step does not read it.
    pub(crate) fn input_mut(&mut self, i: usize) -> Option<&mut [u8]> {
        self.settle().ok()?;
        let slot = self.ready.ports().inputs[i].slot?;
        // SAFETY: memory of the machine, which the thread leaves alone while no step is open, and which lives as
        // long as the thread does, that is, as this.
        Some(unsafe { std::slice::from_raw_parts_mut(slot.ptr, slot.len) })
    }

    /// Has the next step copy input `i` from an address of the device's memory.
    ///
    /// # Safety
    /// As for [`Machine::feed_from`], on the stream of [`Ready::stream`].
    pub(crate) unsafe fn lend(&mut self, i: usize, address: u64) {
        self.lent.push((i, address));
    }

    /// Forgets what was lent to the next step.
    pub(crate) fn take_back(&mut self) {
        self.lent.clear();
    }

    /// The bytes of output `i` after a step.
    pub(crate) fn output(&self, i: usize) -> &[u8] {
        match self.ready.ports().outputs[i].slot {
            // SAFETY: as in `input_mut`.
            Some(slot) if !self.is_open => unsafe {
                std::slice::from_raw_parts(slot.ptr, slot.len)
            },
            _ => &[],
        }
    }

    /// Begins a step; [`Session::wait`] says how it ended.
    ///
    /// # Errors
    /// A step that was open failed, or the thread ended.
    pub(crate) fn begin(&mut self, draw: Draw) -> Result<(), TrainError> {
        self.settle()?;
        let lent = std::mem::take(&mut self.lent);
        self.send(Order::Step(self.ready.chosen, draw, lent))?;
        self.is_open = true;
        Ok(())
    }

    /// Waits for the end of the step that was begun; `None` where it goes on after `limit`.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> Option<Result<(), TrainError>> {
        if !self.is_open {
            return Some(Ok(()));
        }
        let reply = match (soon(&self.replies), limit) {
            (Err(TryRecvError::Empty), Some(limit)) => match self.replies.recv_timeout(limit) {
                Err(RecvTimeoutError::Timeout) => return None,
                other => other.ok(),
            },
            (Err(TryRecvError::Empty), None) => self.replies.recv().ok(),
            (reply, _) => reply.ok(),
        };
        self.is_open = false;
        Some(match reply {
            Some(Reply::Stepped(Ok(slots))) => {
                let Ports { inputs, outputs, .. } = &mut self.ready.variants[self.ready.chosen];
                let ports = inputs.iter_mut().chain(outputs);
                ports.zip(slots.into_iter().flatten()).for_each(|(port, slot)| port.slot = slot);
                Ok(())
            }
            Some(Reply::Stepped(Err(e))) => Err(e),
            _ => Err(TrainError::Ended),
        })
    }

    /// True while a step runs whose end nobody waited for.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Waits for a step that nobody waited for.
    ///
    /// # Errors
    /// Those of that step.
    pub(crate) fn settle(&mut self) -> Result<(), TrainError> {
        self.wait(None).unwrap_or(Ok(()))
    }

    /// Adds a step to those that there are, over the same arenas: `check_variants` judges it first. The states
    /// stay as they are. Gives its place among the variants.
    ///
    /// # Errors
    /// It does not fit the others; the device fails, or the thread ended. The others go on.
    pub(crate) fn add(&mut self, target: Arc<Target>) -> Result<usize, TrainError> {
        self.settle()?;
        self.send(Order::Add(target))?;
        match self.replies.recv() {
            Ok(Reply::Added(ports)) => self.ready.variants.push(ports?),
            _ => return Err(TrainError::Ended),
        }
        Ok(self.ready.variants.len() - 1)
    }

    /// A state's bytes.
    ///
    /// # Errors
    /// The device fails, or the thread ended.
    pub(crate) fn read(&mut self, home: &Home) -> Result<Vec<u8>, TrainError> {
        self.settle()?;
        let mut bytes = Vec::with_capacity(home.ty.bytes() as usize);
        for part in &home.parts {
            match (part.slot, part.state) {
                // SAFETY: as in `input_mut`.
                (Some(slot), _) => bytes
                    .extend_from_slice(unsafe { std::slice::from_raw_parts(slot.ptr, slot.len) }),
                (None, Some(state)) => {
                    self.send(Order::Read(part.variant, state))?;
                    match self.replies.recv() {
                        Ok(Reply::Read(read)) => bytes.extend(read?),
                        _ => return Err(TrainError::Ended),
                    }
                }
                (None, None) => {}
            }
        }
        Ok(bytes)
    }

    /// Replaces a state or a constant by bytes of its type.
    ///
    /// # Errors
    /// The device fails, or the thread ended.
    ///
    /// # Panics
    /// There are fewer bytes than the type takes.
    pub(crate) fn write(&mut self, home: &Home, bytes: &[u8]) -> Result<(), TrainError> {
        self.settle()?;
        assert_eq!(bytes.len() as u64, home.ty.bytes(), "bytes of another type");
        let each = bytes.len() / home.parts.len().max(1);
        for (part, bytes) in home.parts.iter().zip(bytes.chunks(each.max(1))) {
            match part.slot {
                // SAFETY: as in `input_mut`; nobody else has the memory while this is borrowed.
                Some(slot) => unsafe { std::slice::from_raw_parts_mut(slot.ptr, slot.len) }
                    .copy_from_slice(bytes),
                None => {
                    self.send(Order::Write(part.variant, part.value, bytes.to_vec()))?;
                    match self.replies.recv() {
                        Ok(Reply::Written(written)) => written?,
                        _ => return Err(TrainError::Ended),
                    }
                }
            }
        }
        Ok(())
    }

    fn send(&self, order: Order) -> Result<(), TrainError> {
        let orders = self.orders.as_ref().ok_or(TrainError::Ended)?;
        orders.send(order).map_err(|_| TrainError::Ended)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was told as `Ended`.
            let _ = thread.join();
        }
    }
}

fn serve(
    artifact: &Artifact,
    purpose: Purpose,
    variant: usize,
    how: How,
    serving: Serving,
) -> Result<(), TrainError> {
    let variants = match purpose {
        Purpose::Step => how.place.programs(artifact)?,
        // Forward passes have arenas of their own.
        Purpose::Evaluation => {
            how.place.evaluations(artifact)?.into_iter().skip(variant).take(1).collect()
        }
    };
    match how.place.gpu(0) {
        None => {
            let threads = how.threads;
            let how = ExecutorOptions { threads, poison: how.poison, stress: None };
            on_cpu(&variants, how, None, serving)
        }
        Some(n) => {
            let options = cuda::CudaOptions { deterministic: how.deterministic };
            on_device(
                Cuda::new(n).map_err(DeviceError::from)?,
                &variants,
                how.trust,
                options,
                None,
                serving,
            )
        }
    }
}

/// What the thread does.
struct Serving {
    initial: Initial,
    trust: Trust,
    tell: Sender<Result<Ready, TrainError>>,
    orders: Receiver<Order>,
    replies: Sender<Reply>,
}

impl Work<()> for Serving {
    fn with<'s, 'g: 's, M: Another<'g>>(
        self,
        machines: &mut Variants<'s, 'g, M>,
        steps: &[Step<'s>],
        more: More<'s, 'g>,
    ) -> Result<(), TrainError>
    where
        TrainError: From<M::Error>,
    {
        let Serving { initial, trust, tell, orders, replies } = self;
        let mut steps = steps.to_vec();
        heap::give_back();
        let progress = super::initial::load(&initial, &steps, machines, 0)?;
        // Files are not kept open for nothing.
        drop(initial);
        let ready = ready(&steps, machines, progress)?;
        if tell.send(Ok(ready)).is_err() {
            return Ok(());
        }
        let next = || match soon(&orders) {
            Err(TryRecvError::Empty) => orders.recv().ok(),
            order => order.ok(),
        };
        while let Some(order) = next() {
            let reply = match order {
                Order::Add(target) => {
                    Reply::Added(added(target, trust, machines, &mut steps, more))
                }
                Order::Step(variant, draw, lent) => {
                    let step = &steps[variant];
                    let (g, machine) = (step.graph, machines.at(variant));
                    let at = |(i, address)| Some((step.inputs().nth(i)?, address));
                    let lent: Vec<(ValueId, u64)> = lent.into_iter().filter_map(at).collect();
                    for &(v, address) in &lent {
                        // SAFETY: that of `Session::lend`.
                        unsafe { machine.feed_from(v, address) };
                    }
                    Reply::Stepped(match machine.step(draw) {
                        Ok(()) if machine.is_in_host_memory() => Ok(None),
                        Ok(()) => Ok(Some(slots(step, machine))),
                        Err(error) => {
                            let error = TrainError::Step { step: draw.step, error };
                            let is_lent = |v| lent.iter().any(|&(input, _)| input == v);
                            let fed = |v| match is_lent(v) {
                                true => None,
                                false => machine.input_mut(v).map(|bytes| bytes.to_vec()),
                            };
                            Err(class_error(g, error, fed))
                        }
                    })
                }
                Order::Read(variant, state) => {
                    Reply::Read(machines.read(variant).state(state).map(|b| b.into_owned()))
                }
                Order::Write(variant, value, bytes) => {
                    Reply::Written(machines.at(variant).fill_home(value, |home| {
                        home.copy_from_slice(&bytes);
                        Ok::<(), DeviceError>(())
                    }))
                }
            };
            if replies.send(reply).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Makes a step ready beside others, over their arenas.
fn added<'s, 'g: 's, M: Another<'g>>(
    target: Arc<Target>,
    trust: Trust,
    machines: &mut Variants<'s, 'g, M>,
    steps: &mut Vec<Step<'s>>,
    more: More<'s, 'g>,
) -> Result<Ports, TrainError>
where
    TrainError: From<M::Error>,
{
    let target: &'g Target = more.targets.push(target);
    let whole: &'s Option<_> = more.whole.push(target.whole_step()?);
    let (ready, images) = (ready_one(target, whole), images(target, trust)?);
    // Where a library's ways are tried on a device, they are tried on the bytes of the arena.
    let mut kept = Vec::new();
    for (variant, step) in steps.iter().enumerate() {
        let machine = machines.read(variant);
        for (s, state) in step.graph.states.iter().filter(|_| !machine.is_in_host_memory()) {
            kept.push((variant, state.enter, machine.state(s)?.into_owned()));
        }
    }
    machines.add(ready, &images)?;
    for (variant, value, bytes) in kept {
        machines.at(variant).fill_home(value, |home| {
            home.copy_from_slice(&bytes);
            Ok::<(), DeviceError>(())
        })?;
    }
    let (step, variant) = (Step::of(target, &ready), steps.len());
    machines.hold(variant, step.held());
    steps.push(step);
    Ok(ports(&step, machines.at(variant)))
}
