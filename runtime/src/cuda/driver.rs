//! What the backend asks of a device's driver.
//!
//! A trait, since a test puts a simulated driver in its place: one that runs streams in
//! adversarial orders and fails where it is told to.

use super::nvrtc::Image;
use super::work::Request;
use std::fmt;

/// A device's driver with one context. Addresses are the device's own, or those of pinned host
/// memory; handles live as long as the driver.
pub trait Driver {
    /// The device's name, for messages.
    fn name(&self) -> String;

    /// Free and all memory of the device, in bytes.
    ///
    /// # Errors
    /// The device is lost.
    fn memory(&self) -> Result<Memory, DriverError>;

    /// An address of so many bytes of device memory, zeroed, aligned to 256.
    ///
    /// # Errors
    /// There is no such memory.
    fn allocate(&self, bytes: u64) -> Result<u64, DriverError>;

    /// An address of so many bytes of pinned host memory, zeroed, which is read as fast as
    /// other memory is.
    ///
    /// # Errors
    /// There is no such memory.
    fn allocate_pinned(&self, bytes: u64) -> Result<u64, DriverError>;

    /// Loads the kernels of a module's text, from the first of its images that runs on the device;
    /// without one the text is compiled.
    ///
    /// # Errors
    /// They cannot be compiled or loaded.
    fn load(&self, source: &str, images: &[Image]) -> Result<ModuleHandle, DriverError>;

    /// A kernel by its name.
    ///
    /// # Errors
    /// There is none of this name.
    fn function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle, DriverError>;

    /// A stream that does not wait for any other by itself.
    ///
    /// # Errors
    /// The driver refuses.
    fn stream(&self) -> Result<StreamHandle, DriverError>;

    /// An event.
    ///
    /// # Errors
    /// The driver refuses.
    fn event(&self) -> Result<EventHandle, DriverError>;

    /// An event that knows when it was recorded.
    ///
    /// # Errors
    /// The driver refuses.
    fn timed_event(&self) -> Result<EventHandle, DriverError>;

    /// Seconds between two such events, which have been recorded and waited for.
    ///
    /// # Errors
    /// The driver refuses.
    fn elapsed_seconds(&self, from: EventHandle, to: EventHandle) -> Result<f64, DriverError>;

    /// Launches a kernel; `words` are its parameters, one for each.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// What the parameters point to is valid for all that the kernel reads and writes when the
    /// stream comes to it.
    unsafe fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        grid: [u32; 3],
        threads: u32,
        words: &[u64],
    ) -> Result<(), DriverError>;

    /// Copies bytes between any two addresses of the device or of pinned memory.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// Both are valid for so many bytes when the stream comes to it, and do not overlap.
    unsafe fn copy(
        &self,
        stream: StreamHandle,
        from: u64,
        to: u64,
        bytes: u64,
    ) -> Result<(), DriverError>;

    /// Records an event after all that was issued on the stream.
    ///
    /// # Errors
    /// The driver refuses.
    fn record(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError>;

    /// Lets a stream wait for what an event recorded last.
    ///
    /// # Errors
    /// The driver refuses.
    fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError>;

    /// Waits until the stream has done all that was issued.
    ///
    /// # Errors
    /// Something that was issued has failed.
    fn synchronize(&self, stream: StreamHandle) -> Result<(), DriverError>;

    /// The ways in which libraries do what is asked within the workspace, as they would choose.
    ///
    /// # Errors
    /// No library is there, or it refuses; either says so.
    fn candidates(&self, request: &Request) -> Result<Vec<AlgorithmCandidate>, DriverError>;

    /// Has a library compute in one of its ways; takes the addresses of its operands and its
    /// results, in its order, and of a workspace of the bytes that were asked for.
    ///
    /// # Errors
    /// The library refuses.
    ///
    /// # Safety
    /// The addresses are aligned as was said when candidates were asked for, and valid for what
    /// the library reads and writes when the stream comes to it.
    unsafe fn call(
        &self,
        stream: StreamHandle,
        call: CallHandle,
        addresses: &[u64],
        workspace: u64,
    ) -> Result<(), DriverError>;

    /// This process among the ranks that exchange tensors with its device; alone where it has joined none.
    fn rank(&self) -> Rank;

    /// Sends to other ranks and receives from them, all at once: no transfer waits for another. Of those
    /// between two ranks, what one sends first is what the other receives first.
    ///
    /// # Errors
    /// The library refuses, or has lost another rank.
    ///
    /// # Safety
    /// Addresses are of the device's memory, and valid for so many bytes when the stream comes to it; what
    /// is sent is not received into.
    unsafe fn exchange(
        &self,
        stream: StreamHandle,
        transfers: &[Transfer],
    ) -> Result<(), DriverError>;

    /// From here on what is issued on the stream, and on streams that wait for it, is recorded
    /// and not run.
    ///
    /// # Errors
    /// The driver refuses.
    fn begin_capture(&self, stream: StreamHandle) -> Result<(), DriverError>;

    /// Ends the capture; the graph can be run as often as one likes.
    ///
    /// # Errors
    /// What was issued cannot be captured; nothing is being captured any more.
    fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle, DriverError>;

    /// Runs a graph on a stream.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// As for everything that was captured.
    unsafe fn run(&self, stream: StreamHandle, graph: GraphHandle) -> Result<(), DriverError>;
}

/// A process among several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Which one it is, from 0.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// Bytes of device memory that the library for exchanges took.
    pub library_bytes: u64,
}

impl Rank {
    /// A process without others.
    pub const ALONE: Rank = Rank { rank: 0, ranks: 1, library_bytes: 0 };
}

/// Bytes to another rank, or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The other rank.
    pub peer: usize,
    /// To it, or from it.
    pub direction: Direction,
    /// Where they are in this device's memory.
    pub address: u64,
    /// How many, at least one.
    pub bytes: u64,
}

/// Whether bytes are sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the other rank.
    Sent,
    /// From the other rank.
    Received,
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What nobody has allocated.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

/// One way in which a library does what is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct AlgorithmCandidate {
    /// What is called.
    pub call: CallHandle,
    /// The library's name and the number by which it knows the way.
    pub name: String,
    /// Bytes of workspace that it uses, at most those that were asked for.
    pub workspace: u64,
    /// It gives the same bits whenever it runs on this device.
    pub deterministic: bool,
}

macro_rules! handles {
    ($($name:ident $what:literal)*) => {$(
        #[doc = $what]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub u64);
    )*};
}
handles! {
    ModuleHandle "A loaded module."
    FunctionHandle "A kernel."
    StreamHandle "A stream."
    EventHandle "An event."
    CallHandle "A call of a library, ready to run."
    GraphHandle "A captured step, ready to run."
}

/// Why a driver refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// A library is not there.
    #[error("{0}")]
    Missing(String),
    /// Memory of the device, or pinned memory, that cannot be had.
    #[error("{bytes} bytes of {kind} memory cannot be allocated")]
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
        /// Whose.
        kind: MemoryKind,
    },
    /// Kernels cannot be compiled.
    #[error(transparent)]
    Compile(#[from] super::nvrtc::CompileError),
    /// Ranks cannot go on together.
    #[error(transparent)]
    Rank(#[from] crate::ranks::RankError),
    /// Any other failure, which leaves the context unusable if it came from a kernel.
    #[error("{call}: {message}")]
    Failed {
        /// The call that said so.
        call: &'static str,
        /// What it said.
        message: String,
    },
}

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The device's.
    Device,
    /// The host's, pinned.
    Pinned,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryKind::Device => "device",
            MemoryKind::Pinned => "pinned host",
        })
    }
}
