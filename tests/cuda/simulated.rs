//! A driver without a device: kernels and libraries are emulated, memory is the host's. Streams
//! run when someone waits for them, in an order that a seed decides and events alone restrict,
//! times are what a seed says, and a call can be made to fail. What is sent to other ranks is read, and what is
//! received is written, at any time while the exchange is under way.

#[path = "fabric.rs"]
mod fabric;

use arenic_backends::cuda::library::{Epilogue, LibraryCall, Product};
use arenic_emulator::Module;
use arenic_emulator::library::compute;
use arenic_runtime::cuda::driver::{
    AlgorithmCandidate, CallHandle, Direction, Driver, DriverError, EventHandle, FunctionHandle,
    GraphHandle, Memory, MemoryKind, ModuleHandle, Rank, StreamHandle, Transfer,
};
use arenic_runtime::cuda::nvrtc::Image;
use arenic_runtime::cuda::{HEADERS, Request};
use arenic_runtime::memory::AlignedBytes;
#[allow(unused_imports, reason = "not all tests that have a simulated driver have ranks")]
pub(crate) use fabric::{Port, fabric};
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::path::Path;

/// How the driver behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    /// Decides which stream goes on, and in which order threads run.
    pub(crate) seed: u64,
    /// Bytes of device memory.
    pub(crate) memory: u64,
    /// The call of this name and number, from 0, fails.
    pub(crate) fails: Option<(&'static str, u32)>,
    /// Steps can be captured.
    pub(crate) captures: bool,
    /// There are libraries.
    pub(crate) libraries: bool,
    /// They have products with functions of their sums.
    pub(crate) epilogues: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        let (libraries, epilogues) = (true, true);
        Behaviour { seed: 0, memory: 1 << 30, fails: None, captures: true, libraries, epilogues }
    }
}

/// The ways in which libraries do everything, in their order, and whether each always gives the
/// same bits: the first is not taken where that is asked for, the second refuses when called.
pub(crate) const WAYS: [(&str, bool); 3] = [("atomic", false), ("refusing", true), ("good", true)];

/// Bytes of device memory that libraries take.
pub(crate) const LIBRARY_BYTES: u64 = 3 << 20;

/// The driver.
pub(crate) struct Simulated {
    behaviour: Behaviour,
    state: RefCell<State>,
    port: Option<Port>,
}

#[derive(Default)]
struct State {
    memory: Vec<AlignedBytes>,
    modules: Vec<Module>,
    functions: Vec<(usize, String)>,
    streams: Vec<VecDeque<Item>>,
    /// Of each event how often it was issued, and how often its stream has come to it.
    events: Vec<(u64, u64)>,
    /// Microseconds: each launch and each copy takes one. Of each event when it was recorded.
    clock: u64,
    recorded_at: Vec<u64>,
    graphs: Vec<Vec<(usize, Item)>>,
    /// What was asked of libraries; each way of each is a call.
    requests: Vec<Request>,
    capture: Option<Captured>,
    random: u64,
    calls: Vec<(&'static str, u32)>,
    /// Something failed: nothing works any more.
    lost: bool,
}

struct Captured {
    origin: usize,
    streams: BTreeSet<usize>,
    events: BTreeSet<usize>,
    items: Vec<(usize, Item)>,
    /// Streams with work that nobody waits for yet.
    loose: BTreeSet<usize>,
}

/// What a stream does.
#[derive(Clone, Debug)]
enum Item {
    Launch {
        function: usize,
        grid: [u32; 3],
        threads: u32,
        words: Vec<u64>,
    },
    Call {
        request: usize,
        addresses: Vec<u64>,
        workspace: u64,
    },
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// Transfers that are left.
    Exchange(Vec<Transfer>),
    Record {
        event: usize,
        time: u64,
    },
    Wait {
        event: usize,
        time: u64,
    },
}

impl Simulated {
    pub(crate) fn new(behaviour: Behaviour) -> Simulated {
        let random = behaviour.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let state = RefCell::new(State { random, ..State::default() });
        Simulated { behaviour, state, port: None }
    }

    /// One of several ranks, each of which has such a device.
    #[allow(dead_code, reason = "not all tests that have a simulated driver have ranks")]
    pub(crate) fn among(behaviour: Behaviour, port: Port) -> Simulated {
        Simulated { port: Some(port), ..Simulated::new(behaviour) }
    }

    /// How often a call was made.
    pub(crate) fn calls(&self, call: &str) -> u32 {
        let state = self.state.borrow();
        state.calls.iter().find(|(name, _)| *name == call).map_or(0, |(_, n)| *n)
    }

    /// Counts a call, and fails it where that is asked for.
    fn called(&self, call: &'static str) -> Result<std::cell::RefMut<'_, State>, DriverError> {
        let mut state = self.state.borrow_mut();
        let at = match state.calls.iter().position(|(name, _)| *name == call) {
            Some(at) => at,
            None => {
                state.calls.push((call, 0));
                state.calls.len() - 1
            }
        };
        let number = state.calls[at].1;
        state.calls[at].1 += 1;
        let fails = self.behaviour.fails == Some((call, number));
        if fails || state.lost {
            state.lost = true;
            return Err(DriverError::Failed { call, message: "the device is lost".into() });
        }
        Ok(state)
    }
}

impl State {
    fn allocate(&mut self, bytes: u64) -> u64 {
        let memory = AlignedBytes::zeroed(bytes + 256).expect("memory");
        let address = (memory.as_ptr() as u64).next_multiple_of(256);
        self.memory.push(memory);
        address
    }

    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % n
    }

    /// Puts an item at the end of a stream, or into what is being captured.
    fn issue(&mut self, stream: usize, item: Item) {
        if let Some(captured) = &mut self.capture {
            if let Item::Wait { event, .. } = item
                && captured.events.contains(&event)
            {
                captured.streams.insert(stream);
            }
            assert!(captured.streams.contains(&stream), "a stream that is not captured was used");
            match item {
                Item::Record { event, .. } => {
                    captured.events.insert(event);
                    captured.loose.remove(&stream);
                }
                _ if stream != captured.origin => {
                    captured.loose.insert(stream);
                }
                _ => {}
            }
            captured.items.push((stream, item));
            return;
        }
        // Events count when they are issued, also by a graph.
        let item = match item {
            Item::Record { event, .. } => {
                self.events[event].0 += 1;
                Item::Record { event, time: self.events[event].0 }
            }
            Item::Wait { event, .. } => Item::Wait { event, time: self.events[event].0 },
            item => item,
        };
        self.streams[stream].push_back(item);
    }

    /// Lets streams go on, one item at a time, until one of them has nothing left.
    fn drain(&mut self, stream: usize, seed: u64, port: Option<&Port>) {
        while !self.streams[stream].is_empty() {
            let ready: Vec<usize> = (0..self.streams.len())
                .filter(|&s| match self.streams[s].front() {
                    Some(Item::Wait { event, time }) => self.events[*event].1 >= *time,
                    Some(Item::Exchange(left)) => !possible(left, port).is_empty(),
                    item => item.is_some(),
                })
                .collect();
            if ready.is_empty() {
                self.wait_for_peers(port);
                continue;
            }
            let next = ready[self.below(ready.len())];
            let Some(item) = self.streams[next].pop_front() else { continue };
            match item {
                Item::Exchange(left) => self.transfer(next, left, port),
                item => self.run(&item, seed),
            }
        }
    }

    /// Nothing goes on here before a message of another rank is there.
    fn wait_for_peers(&self, port: Option<&Port>) {
        let awaited: Vec<usize> = self
            .streams
            .iter()
            .filter_map(|stream| match stream.front() {
                Some(Item::Exchange(left)) => Some(left.iter().map(|transfer| transfer.peer)),
                _ => None,
            })
            .flatten()
            .collect();
        assert!(!awaited.is_empty(), "streams wait for each other for ever");
        port.expect("ranks").wait(&awaited);
    }

    /// One of the transfers that are left, whichever may come next.
    fn transfer(&mut self, stream: usize, mut left: Vec<Transfer>, port: Option<&Port>) {
        let possible = possible(&left, port);
        let Transfer { peer, direction, address, bytes } =
            left.remove(possible[self.below(possible.len())]);
        let port = port.expect("ranks");
        match direction {
            // SAFETY: the executor's promise, which is what is tested here.
            Direction::Sent => port.send(peer, unsafe {
                std::slice::from_raw_parts(address as *const u8, bytes as usize)
            }),
            Direction::Received => {
                let message = port.receive(peer).expect("a message");
                assert_eq!(message.len() as u64, bytes, "what rank {peer} sends is not expected");
                // SAFETY: as above.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        message.as_ptr(),
                        address as *mut u8,
                        message.len(),
                    );
                };
            }
        }
        if !left.is_empty() {
            self.streams[stream].push_front(Item::Exchange(left));
        }
    }

    fn run(&mut self, item: &Item, seed: u64) {
        match item {
            Item::Launch { function, grid, threads, words } => {
                self.clock += 1;
                let (module, name) = &self.functions[*function];
                let threads = [*threads, 1, 1];
                // SAFETY: the executor's promise, which is what is tested here.
                unsafe { self.modules[*module].launch(name, *grid, threads, seed, words) }
                    .unwrap_or_else(|e| panic!("{e}"));
            }
            Item::Call { request, addresses, workspace } => {
                // Now more, now less than our own kernels take.
                self.clock += (self.random >> 7) % 3;
                let Request { call, workspace: bytes, .. } = &self.requests[*request];
                // SAFETY: as above.
                unsafe {
                    // All of the workspace is the library's.
                    (*workspace as *mut u8).write_bytes(0xA7, *bytes as usize);
                    compute(call, addresses);
                }
            }
            Item::Copy { from, to, bytes } => {
                self.clock += 1;
                // SAFETY: as above.
                unsafe {
                    std::ptr::copy_nonoverlapping(*from as *const u8, *to as *mut u8, *bytes);
                };
            }
            Item::Record { event, time } => {
                self.events[*event].1 = *time;
                self.recorded_at[*event] = self.clock;
            }
            Item::Wait { .. } => {}
            Item::Exchange(_) => unreachable!("exchanges are run transfer by transfer"),
        }
    }
}

/// Places of the transfers that may come next: of those with one rank the first one each way, of which one that is
/// received must be there.
fn possible(left: &[Transfer], port: Option<&Port>) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let first = |(_, t): &(usize, &Transfer)| seen.insert((t.peer, t.direction == Direction::Sent));
    let firsts = left.iter().enumerate().filter(first);
    let is_there = |t: &Transfer| {
        t.direction == Direction::Sent || port.is_some_and(|port| port.has_message(t.peer))
    };
    firsts.filter(|(_, t)| is_there(t)).map(|(i, _)| i).collect()
}

impl Driver for Simulated {
    fn name(&self) -> String {
        "a simulated GPU".into()
    }

    fn memory(&self) -> Result<Memory, DriverError> {
        let state = self.called("memory")?;
        let total = self.behaviour.memory;
        let taken = if state.requests.is_empty() { 0 } else { LIBRARY_BYTES };
        Ok(Memory { free: total - taken, total })
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        let refused = |_| DriverError::OutOfMemory { bytes, kind: MemoryKind::Device };
        let mut state = self.called("allocate").map_err(refused)?;
        assert!(state.capture.is_none(), "memory was allocated during a capture");
        Ok(state.allocate(bytes))
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<u64, DriverError> {
        let refused = |_| DriverError::OutOfMemory { bytes, kind: MemoryKind::Pinned };
        let mut state = self.called("allocate_pinned").map_err(refused)?;
        assert!(state.capture.is_none(), "pinned memory was allocated during a capture");
        Ok(state.allocate(bytes))
    }

    fn load(&self, source: &str, _: &[Image]) -> Result<ModuleHandle, DriverError> {
        let mut state = self.called("load")?;
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../emulated");
        let module = Module::compile(source, HEADERS, &cache).unwrap_or_else(|e| panic!("{e}"));
        state.modules.push(module);
        Ok(ModuleHandle(state.modules.len() as u64 - 1))
    }

    fn function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle, DriverError> {
        let mut state = self.called("function")?;
        state.functions.push((module.0 as usize, name.to_owned()));
        Ok(FunctionHandle(state.functions.len() as u64 - 1))
    }

    fn stream(&self) -> Result<StreamHandle, DriverError> {
        let mut state = self.called("stream")?;
        state.streams.push(VecDeque::new());
        Ok(StreamHandle(state.streams.len() as u64 - 1))
    }

    fn event(&self) -> Result<EventHandle, DriverError> {
        let mut state = self.called("event")?;
        state.events.push((0, 0));
        state.recorded_at.push(0);
        Ok(EventHandle(state.events.len() as u64 - 1))
    }

    fn timed_event(&self) -> Result<EventHandle, DriverError> {
        self.event()
    }

    fn elapsed_seconds(&self, from: EventHandle, to: EventHandle) -> Result<f64, DriverError> {
        let state = self.called("elapsed_seconds")?;
        let at = |event: EventHandle| {
            let event = event.0 as usize;
            let (issued, done) = state.events[event];
            assert!(issued > 0 && issued == done, "an event has not been recorded");
            state.recorded_at[event] as f64
        };
        Ok((at(to) - at(from)) * 1e-6)
    }

    unsafe fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        grid: [u32; 3],
        threads: u32,
        words: &[u64],
    ) -> Result<(), DriverError> {
        assert!(grid.iter().all(|&n| n > 0), "an empty grid");
        let (function, words) = (function.0 as usize, words.to_vec());
        let item = Item::Launch { function, grid, threads, words };
        self.called("launch")?.issue(stream.0 as usize, item);
        Ok(())
    }

    unsafe fn copy(
        &self,
        stream: StreamHandle,
        from: u64,
        to: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let item = Item::Copy { from, to, bytes: bytes as usize };
        self.called("copy")?.issue(stream.0 as usize, item);
        Ok(())
    }

    fn record(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        let item = Item::Record { event: event.0 as usize, time: 0 };
        self.called("record")?.issue(stream.0 as usize, item);
        Ok(())
    }

    fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        let item = Item::Wait { event: event.0 as usize, time: 0 };
        self.called("wait")?.issue(stream.0 as usize, item);
        Ok(())
    }

    fn synchronize(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let mut state = self.called("synchronize")?;
        assert!(state.capture.is_none(), "a stream was waited for during a capture");
        state.drain(stream.0 as usize, self.behaviour.seed, self.port.as_ref());
        Ok(())
    }

    fn candidates(&self, request: &Request) -> Result<Vec<AlgorithmCandidate>, DriverError> {
        let mut state = self.called("candidates")?;
        if !self.behaviour.libraries {
            return Err(DriverError::Missing("there are no libraries".into()));
        }
        assert!(!state.requests.contains(request), "{request:?} was asked for twice");
        let Request { call, alignments, .. } = request;
        assert!(call.takes(alignments), "{call:?} at multiples of {alignments:?} bytes");
        let has_function = |p: &Product| p.epilogue != Epilogue::Plain;
        let is_more = matches!(&request.call, LibraryCall::Product(p) if has_function(p));
        if is_more && !self.behaviour.epilogues {
            return Ok(Vec::new());
        }
        let first = state.requests.len() * WAYS.len();
        state.requests.push(request.clone());
        let candidate =
            |(way, &(name, deterministic)): (usize, &(&str, bool))| AlgorithmCandidate {
                call: CallHandle((first + way) as u64),
                name: name.into(),
                workspace: request.workspace,
                deterministic,
            };
        Ok(WAYS.iter().enumerate().map(candidate).collect())
    }

    unsafe fn call(
        &self,
        stream: StreamHandle,
        call: CallHandle,
        addresses: &[u64],
        workspace: u64,
    ) -> Result<(), DriverError> {
        let mut state = self.called("call")?;
        let (request, way) = (call.0 as usize / WAYS.len(), call.0 as usize % WAYS.len());
        if WAYS[way].0 == "refusing" {
            let message = "not supported after all".into();
            return Err(DriverError::Failed { call: "call", message });
        }
        let Request { alignments, workspace: bytes, .. } = &state.requests[request];
        let aligned = addresses.iter().zip(alignments).all(|(at, align)| at % align == 0);
        assert!(aligned && addresses.len() == alignments.len(), "{addresses:x?}: {alignments:?}");
        assert!(*bytes == 0 || workspace > 0 && workspace.is_multiple_of(256), "{workspace:x}");
        let item = Item::Call { request, addresses: addresses.to_vec(), workspace };
        state.issue(stream.0 as usize, item);
        Ok(())
    }

    fn rank(&self) -> Rank {
        let of = |port: &Port| Rank { rank: port.rank, ranks: port.ranks, library_bytes: 0 };
        self.port.as_ref().map_or(Rank::ALONE, of)
    }

    unsafe fn exchange(
        &self,
        stream: StreamHandle,
        transfers: &[Transfer],
    ) -> Result<(), DriverError> {
        let mut state = self.called("exchange")?;
        let Rank { rank, ranks, .. } = self.rank();
        let is_right = |t: &Transfer| t.peer != rank && t.peer < ranks && t.bytes > 0;
        assert!(!transfers.is_empty() && transfers.iter().all(is_right), "{transfers:?}");
        state.issue(stream.0 as usize, Item::Exchange(transfers.to_vec()));
        Ok(())
    }

    fn begin_capture(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let mut state = self.called("begin_capture")?;
        if !self.behaviour.captures {
            let message = "not supported".into();
            return Err(DriverError::Failed { call: "begin_capture", message });
        }
        let origin = stream.0 as usize;
        state.capture = Some(Captured {
            origin,
            streams: BTreeSet::from([origin]),
            events: BTreeSet::new(),
            items: Vec::new(),
            loose: BTreeSet::new(),
        });
        Ok(())
    }

    fn end_capture(&self, _: StreamHandle) -> Result<GraphHandle, DriverError> {
        let mut state = self.called("end_capture")?;
        let captured = state.capture.take().expect("a capture");
        assert!(captured.loose.is_empty(), "streams have not joined: {:?}", captured.loose);
        state.graphs.push(captured.items);
        Ok(GraphHandle(state.graphs.len() as u64 - 1))
    }

    unsafe fn run(&self, _: StreamHandle, graph: GraphHandle) -> Result<(), DriverError> {
        let mut state = self.called("run")?;
        for (stream, item) in state.graphs[graph.0 as usize].clone() {
            state.issue(stream, item);
        }
        Ok(())
    }
}
