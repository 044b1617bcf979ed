//! The CUDA driver, by cudarc's thin layer: raw addresses and handles, no events behind the
//! back. Libraries are loaded when they are first needed, and asked for before that, since a
//! missing one ends the process.

mod blas;
mod dnn;
mod libraries;
mod peers;
mod ready;

use super::driver::{
    AlgorithmCandidate, CallHandle, Driver, DriverError, EventHandle, FunctionHandle, GraphHandle,
    Memory, MemoryKind, ModuleHandle, Rank, StreamHandle, Transfer,
};
use super::nvrtc::{self, Architecture, Image};
use super::work::Request;
use crate::ranks::Communicator;
use cudarc::driver::result::{self, DriverError as Failure};
use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use libraries::Libraries;
use peers::Peers;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device with its primary context.
pub struct Cuda {
    name: String,
    /// Ten times the compute capability.
    capability: u32,
    device: sys::CUdevice,
    /// On which memory is zeroed. Nobody else waits for it, and it for nobody: the context is never
    /// synchronised as a whole, which fails while another thread captures a step, and ends its
    /// capture (`clippy.toml` forbids it).
    upkeep: u64,
    /// What is given back at the end.
    owned: Mutex<Owned>,
    libraries: Mutex<Libraries>,
    /// The other ranks' GPUs; none where this process is alone.
    peers: Option<Peers>,
}

#[derive(Default)]
struct Owned {
    device: Vec<u64>,
    pinned: Vec<u64>,
    streams: Vec<u64>,
    events: Vec<u64>,
    modules: Vec<u64>,
    graphs: Vec<u64>,
}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its name.
    pub name: String,
    /// Ten times its compute capability.
    pub capability: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Their clock, in hertz.
    pub clock: u64,
    /// The clock of its memory, in hertz; each tick moves two words as wide as the bus.
    pub memory_clock: u64,
    /// Width of the bus to its memory, in bits.
    pub memory_bus: u32,
    /// Copies that run beside kernels at once.
    pub copy_engines: u32,
}

/// The least compute capability, times ten, that kernels are made for.
pub const LEAST_CAPABILITY: u32 = 80;

/// What the driver says of an error, and its name.
fn said(e: Failure) -> String {
    let text = |s: Result<&std::ffi::CStr, Failure>| {
        s.map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
    };
    format!("{} ({})", text(e.error_string()), text(e.error_name()))
}

fn failed(call: &'static str) -> impl Fn(Failure) -> DriverError {
    move |e| DriverError::Failed { call, message: said(e) }
}

fn attribute(device: sys::CUdevice, which: Attribute) -> Result<i32, DriverError> {
    // SAFETY: a device that the driver gave.
    unsafe { result::device::get_attribute(device, which) }.map_err(failed("cuDeviceGetAttribute"))
}

/// The CUDA that kernels are compiled with, as the driver numbers versions, and the first
/// driver that has it.
const CUDA_VERSION: i32 = 13_000;
const FIRST_DRIVER: u32 = 580;

/// The newest CUDA whose code the driver takes.
fn version() -> Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: writes one number; may be called before anything else.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .map_err(failed("cuDriverGetVersion"))?;
    Ok(version)
}

/// A version as people write it.
fn readable(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Whether a driver for this version takes the kernels.
fn is_new_enough(version: i32) -> Result<(), DriverError> {
    if version >= CUDA_VERSION {
        return Ok(());
    }
    Err(DriverError::Missing(format!(
        "the driver is for CUDA {}; arenic's kernels need {} (driver {FIRST_DRIVER} or newer)",
        readable(version),
        readable(CUDA_VERSION)
    )))
}

impl Cuda {
    /// The device of this number.
    ///
    /// # Errors
    /// There is no driver, no such device, or it is too old.
    pub fn new(ordinal: u32) -> Result<Cuda, DriverError> {
        // SAFETY: loads a library by its name, and nothing else.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverError::Missing(
                "there is no CUDA driver here (no libcuda.so.1); `--device cpu` runs without a GPU"
                    .into(),
            ));
        }
        is_new_enough(version()?)?;
        result::init().map_err(failed("cuInit"))?;
        let count = result::device::get_count().map_err(failed("cuDeviceGetCount"))?;
        let Some(number) = i32::try_from(ordinal).ok().filter(|&n| n < count) else {
            let message = match count {
                0 => "the CUDA driver sees no GPU".to_owned(),
                n => format!("there is no cuda:{ordinal}; the driver sees {n} (from cuda:0 on)"),
            };
            return Err(DriverError::Missing(message));
        };
        let device = result::device::get(number).map_err(failed("cuDeviceGet"))?;
        let name = result::device::get_name(device).map_err(failed("cuDeviceGetName"))?;
        let attribute = |which| attribute(device, which);
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let capability = (10 * major + minor) as u32;
        if capability < LEAST_CAPABILITY {
            return Err(DriverError::Missing(format!(
                "{name} has compute capability {major}.{minor}; kernels need 8.0 or newer"
            )));
        }
        // SAFETY: as above; the context is current from here on, on this thread.
        unsafe {
            let context =
                result::primary_ctx::retain(device).map_err(failed("cuDevicePrimaryCtxRetain"))?;
            result::ctx::set_current(context).map_err(failed("cuCtxSetCurrent"))?;
        }
        let upkeep = new_stream()?;
        let owned = Owned { streams: vec![upkeep], ..Owned::default() };
        let (owned, libraries) = (Mutex::new(owned), Mutex::default());
        Ok(Cuda { name, capability, device, upkeep, owned, libraries, peers: None })
    }

    /// Joins other ranks, each of which has a GPU of its own and does so, too.
    ///
    /// # Errors
    /// There is no NCCL on some rank, or it refuses, as it does where two ranks have one GPU.
    pub fn join(&mut self, ranks: Arc<dyn Communicator>) -> Result<(), DriverError> {
        let free = self.memory()?.free;
        let mut peers = Peers::join(ranks)?;
        let room = self.allocate(2 * peers.rank.ranks as u64)?;
        peers.connect(room)?;
        peers.rank.library_bytes = free.saturating_sub(self.memory()?.free);
        self.peers = Some(peers);
        Ok(())
    }

    /// What the device says of itself.
    ///
    /// # Errors
    /// The driver fails.
    pub fn attributes(&self) -> Result<Attributes, DriverError> {
        let figure = |which| attribute(self.device, which).map(|n| n.max(0) as u32);
        let kilohertz = |which| figure(which).map(|n| u64::from(n) * 1000);
        Ok(Attributes {
            name: self.name.clone(),
            capability: self.capability,
            memory_bytes: self.memory()?.total,
            multiprocessors: figure(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            clock: kilohertz(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_clock: kilohertz(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            memory_bus: figure(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
            copy_engines: figure(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
        })
    }

    fn own(&self, which: impl FnOnce(&mut Owned) -> &mut Vec<u64>, handle: u64) -> u64 {
        which(&mut locked(&self.owned)).push(handle);
        handle
    }
}

/// A stream that does not wait for the legacy one.
fn new_stream() -> Result<u64, DriverError> {
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
    Ok(stream.map_err(failed("cuStreamCreate"))? as u64)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let owned = std::mem::take(&mut *locked(&self.owned));
        let libraries = std::mem::take(&mut *locked(&self.libraries));
        // Streams would wait for ranks that are lost: what is under way with them is given up first.
        let peers = self.peers.take().filter(|peers| !peers.is_lost());
        // SAFETY: each was made by this driver and is given back once. Where the device is lost
        // all of these fail, and nothing is left to be done about it.
        unsafe {
            for &stream in &owned.streams {
                let _ = result::stream::synchronize(stream as sys::CUstream);
            }
            drop(libraries);
            for graph in owned.graphs {
                let _ = result::graph::exec_destroy(graph as sys::CUgraphExec);
            }
            drop(peers);
            for module in owned.modules {
                let _ = result::module::unload(module as sys::CUmodule);
            }
            for event in owned.events {
                let _ = result::event::destroy(event as sys::CUevent);
            }
            for stream in owned.streams {
                let _ = result::stream::destroy(stream as sys::CUstream);
            }
            for address in owned.device {
                let _ = result::free_sync(address);
            }
            for address in owned.pinned {
                let _ = result::free_host(address as *mut _);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

impl Driver for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn memory(&self) -> Result<Memory, DriverError> {
        let (free, total) = result::mem_get_info().map_err(failed("cuMemGetInfo"))?;
        Ok(Memory { free: free as u64, total: total as u64 })
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        let refused = |_| DriverError::OutOfMemory { bytes, kind: MemoryKind::Device };
        let size = bytes.max(1) as usize;
        // SAFETY: the memory is zeroed before anyone reads it.
        unsafe {
            let address = self.own(|o| &mut o.device, result::malloc_sync(size).map_err(refused)?);
            let upkeep = self.upkeep as sys::CUstream;
            result::memset_d8_async(address, 0, size, upkeep).map_err(failed("cuMemsetD8Async"))?;
            result::stream::synchronize(upkeep).map_err(failed("cuStreamSynchronize"))?;
            Ok(address)
        }
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<u64, DriverError> {
        let refused = |_| DriverError::OutOfMemory { bytes, kind: MemoryKind::Pinned };
        let size = bytes.max(1) as usize;
        // SAFETY: the memory is zeroed before anyone reads it. No flags: write-combined memory
        // would be slow to read.
        unsafe {
            let address = result::malloc_host(size, 0).map_err(refused)?;
            address.cast::<u8>().write_bytes(0, size);
            Ok(self.own(|o| &mut o.pinned, address as u64))
        }
    }

    fn load(&self, source: &str, images: &[Image]) -> Result<ModuleHandle, DriverError> {
        let made = images.iter().find(|i| i.architecture.runs_on(self.capability));
        let compiled = match made {
            Some(_) => Vec::new(),
            None => nvrtc::compile(source, Architecture::Machine(self.capability))?,
        };
        let code = made.map_or(&compiled, |image| &image.code);
        // SAFETY: a whole image, as NVRTC made it; PTX ends in NUL.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) }
            .map_err(|e| DriverError::Failed { call: "cuModuleLoadData", message: said(e) })?;
        Ok(ModuleHandle(self.own(|o| &mut o.modules, module as u64)))
    }

    fn function(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle, DriverError> {
        let call = "cuModuleGetFunction";
        let name =
            CString::new(name).map_err(|e| DriverError::Failed { call, message: e.to_string() })?;
        // SAFETY: a module of this driver.
        let function = unsafe { result::module::get_function(module.0 as sys::CUmodule, name) };
        Ok(FunctionHandle(function.map_err(failed(call))? as u64))
    }

    fn stream(&self) -> Result<StreamHandle, DriverError> {
        Ok(StreamHandle(self.own(|o| &mut o.streams, new_stream()?)))
    }

    fn event(&self) -> Result<EventHandle, DriverError> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(failed("cuEventCreate"))?;
        Ok(EventHandle(self.own(|o| &mut o.events, event as u64)))
    }

    fn timed_event(&self) -> Result<EventHandle, DriverError> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
            .map_err(failed("cuEventCreate"))?;
        Ok(EventHandle(self.own(|o| &mut o.events, event as u64)))
    }

    fn elapsed_seconds(&self, from: EventHandle, to: EventHandle) -> Result<f64, DriverError> {
        // SAFETY: two events of this driver.
        let milliseconds =
            unsafe { result::event::elapsed(from.0 as sys::CUevent, to.0 as sys::CUevent) };
        Ok(f64::from(milliseconds.map_err(failed("cuEventElapsedTime"))?) * 1e-3)
    }

    unsafe fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        grid: [u32; 3],
        threads: u32,
        words: &[u64],
    ) -> Result<(), DriverError> {
        let mut parameters: Vec<*mut std::ffi::c_void> =
            words.iter().map(|w| std::ptr::from_ref(w).cast_mut().cast()).collect();
        // SAFETY: one pointer to each parameter, which the driver reads before it returns; what
        // they mean is the caller's promise.
        unsafe {
            result::launch_kernel(
                function.0 as sys::CUfunction,
                (grid[0], grid[1], grid[2]),
                (threads, 1, 1),
                0,
                stream.0 as sys::CUstream,
                &mut parameters,
            )
        }
        .map_err(failed("cuLaunchKernel"))
    }

    unsafe fn copy(
        &self,
        stream: StreamHandle,
        from: u64,
        to: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise. With unified addresses, which every device has that is
        // new enough, the driver sees by itself which memory is whose.
        unsafe { sys::cuMemcpyAsync(to, from, bytes as usize, stream.0 as sys::CUstream) }
            .result()
            .map_err(failed("cuMemcpyAsync"))
    }

    fn record(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        // SAFETY: an event and a stream of this driver.
        unsafe { result::event::record(event.0 as sys::CUevent, stream.0 as sys::CUstream) }
            .map_err(failed("cuEventRecord"))
    }

    fn wait(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        unsafe {
            result::stream::wait_event(stream.0 as sys::CUstream, event.0 as sys::CUevent, flags)
        }
        .map_err(failed("cuStreamWaitEvent"))
    }

    fn synchronize(&self, stream: StreamHandle) -> Result<(), DriverError> {
        if let Some(peers) = &self.peers {
            return peers.synchronize(stream);
        }
        // SAFETY: a stream of this driver.
        unsafe { result::stream::synchronize(stream.0 as sys::CUstream) }
            .map_err(failed("cuStreamSynchronize"))
    }

    fn candidates(&self, request: &Request) -> Result<Vec<AlgorithmCandidate>, DriverError> {
        locked(&self.libraries).candidates(request)
    }

    unsafe fn call(
        &self,
        stream: StreamHandle,
        call: CallHandle,
        addresses: &[u64],
        workspace: u64,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { locked(&self.libraries).call(stream, call, addresses, workspace) }
    }

    fn rank(&self) -> Rank {
        self.peers.as_ref().map_or(Rank::ALONE, |peers| peers.rank)
    }

    unsafe fn exchange(
        &self,
        stream: StreamHandle,
        transfers: &[Transfer],
    ) -> Result<(), DriverError> {
        match &self.peers {
            // SAFETY: the caller's promise.
            Some(peers) => unsafe { peers.exchange(stream, transfers) },
            // A process alone has nobody to send to.
            None => Ok(()),
        }
    }

    fn begin_capture(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a stream of this driver.
        unsafe { result::stream::begin_capture(stream.0 as sys::CUstream, mode) }
            .map_err(failed("cuStreamBeginCapture"))
    }

    fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle, DriverError> {
        // SAFETY: a stream of this driver; the graph is destroyed once it is instantiated.
        unsafe {
            let graph = result::stream::end_capture(stream.0 as sys::CUstream)
                .map_err(failed("cuStreamEndCapture"))?;
            let mut executable: sys::CUgraphExec = std::ptr::null_mut();
            let made = sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0).result();
            let _ = result::graph::destroy(graph);
            made.map_err(failed("cuGraphInstantiate"))?;
            Ok(GraphHandle(self.own(|o| &mut o.graphs, executable as u64)))
        }
    }

    unsafe fn run(&self, stream: StreamHandle, graph: GraphHandle) -> Result<(), DriverError> {
        // SAFETY: a graph and a stream of this driver; what is captured is the caller's promise.
        unsafe { result::graph::launch(graph.0 as sys::CUgraphExec, stream.0 as sys::CUstream) }
            .map_err(failed("cuGraphLaunch"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_driver_is_told_apart() {
        assert_eq!(is_new_enough(13_000), Ok(()));
        assert_eq!(is_new_enough(13_020), Ok(()));
        let said = is_new_enough(12_040).unwrap_err().to_string();
        assert_eq!(
            said,
            "the driver is for CUDA 12.4; arenic's kernels need 13.0 (driver 580 or newer)"
        );
    }
}
