//! A driver with a module's kernels, and the memory of one case at a time.

use super::place;
use super::simulated::{Behaviour, Simulated};
use arenic_runtime::cuda::driver::{
    AlgorithmCandidate, CallHandle, Driver, DriverError, FunctionHandle, StreamHandle,
};
use arenic_runtime::cuda::nvrtc::{self, Architecture};
use arenic_runtime::cuda::{Argument, KernelId, Launch, Module, Request, Work};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Orders in which emulated threads run between barriers.
const SEEDS: [u64; 3] = [0, 1, 77];

/// Bytes beside each piece that must stay as they are, and what they are. Pieces begin at
/// multiples of it.
pub(super) const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xEE;

/// Kernels that are compiled together.
pub(super) const CHUNK: usize = 150;

/// The same for a GPU, by as many threads as there are processors: NVRTC takes seconds for long ones.
const CHUNK_OF_GPU: usize = 12;

/// What a case reads and writes, in one run of bytes with guards between.
pub(super) struct Image {
    bytes: Vec<u8>,
    pieces: Vec<Range<usize>>,
}

impl Image {
    pub(super) fn new() -> Image {
        Image { bytes: vec![GUARD_BYTE; GUARD], pieces: Vec::new() }
    }

    /// Adds a piece, so many bytes behind where it would be aligned; gives its number.
    pub(super) fn put(&mut self, bytes: &[u8], shift: usize) -> usize {
        let first = self.bytes.len() + shift;
        let end = first + bytes.len();
        self.bytes.resize(first, GUARD_BYTE);
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize((end + GUARD).next_multiple_of(GUARD), GUARD_BYTE);
        self.pieces.push(first..end);
        self.pieces.len() - 1
    }

    /// Where a piece begins.
    pub(super) fn at(&self, piece: usize) -> u64 {
        self.pieces[piece].start as u64
    }

    pub(super) fn read(&self, piece: usize) -> &[u8] {
        &self.bytes[self.pieces[piece].clone()]
    }

    /// True where no byte beside the pieces was written.
    pub(super) fn is_guarded(&self) -> bool {
        let ends = self.pieces.iter().map(|p| p.end);
        let starts = self.pieces.iter().map(|p| p.start).chain([self.bytes.len()]);
        let mut between = [0].into_iter().chain(ends).zip(starts);
        between.all(|(from, to)| self.bytes[from..to].iter().all(|&b| b == GUARD_BYTE))
    }
}

/// Who computes a case.
pub(super) enum Job<'a> {
    /// Our own kernels, also where libraries could.
    Kernels(&'a [Work]),
    /// A library, on operands and results, with kernels before it and after it.
    Call { call: CallHandle, arguments: Vec<Argument>, beside: [&'a [Work]; 2] },
}

/// A GPU, or a simulated driver.
pub(super) struct Device {
    driver: Box<dyn Driver>,
    stream: StreamHandle,
    functions: RefCell<HashMap<KernelId, FunctionHandle>>,
    /// Kernels of a module.
    chunk: usize,
    modules: Vec<arenic_runtime::cuda::driver::ModuleHandle>,
    /// What libraries were asked for, and their ways.
    asked: RefCell<Vec<(Request, Vec<AlgorithmCandidate>)>>,
    /// Device memory and pinned memory of so many bytes.
    memory: Cell<(u64, u64, usize)>,
    /// What tells this device from others, for messages.
    pub(super) label: String,
}

/// The texts of modules of so many kernels each.
fn sources(module: &Module, chunk: usize) -> Vec<String> {
    let text = |first: usize| module.source_of(first..module.len().min(first + chunk));
    (0..module.len()).step_by(chunk).map(text).collect()
}

/// What they are compiled to, by threads that each take the next one.
fn compiled(sources: &[String], architecture: Architecture) -> Vec<nvrtc::Image> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let i = next.fetch_add(1, Relaxed);
            let Some(source) = sources.get(i) else { return made };
            let code = nvrtc::compile(source, architecture).unwrap_or_else(|e| panic!("{e}"));
            made.push((i, nvrtc::Image { architecture, code }));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut made: Vec<(usize, nvrtc::Image)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    made.sort_by_key(|(i, _)| *i);
    made.into_iter().map(|(_, image)| image).collect()
}

impl Device {
    /// The GPU that the environment names; without one simulated drivers, each with another
    /// order of threads.
    pub(super) fn all(module: &Module) -> Vec<Device> {
        if let Some(gpu) = place::gpu() {
            let label = gpu.name();
            let capability = gpu.attributes().unwrap().capability;
            let sources = sources(module, CHUNK_OF_GPU);
            let images = compiled(&sources, Architecture::Machine(capability));
            return vec![Device::new(Box::new(gpu), label, CHUNK_OF_GPU, &sources, &images)];
        }
        let sources = sources(module, CHUNK);
        let simulated = |seed| {
            let driver = Simulated::new(Behaviour { seed, ..Behaviour::default() });
            Device::new(Box::new(driver), format!("seed {seed}"), CHUNK, &sources, &[])
        };
        SEEDS.map(simulated).into()
    }

    /// With modules of so many kernels each, and what they were compiled to, where they were.
    fn new(
        driver: Box<dyn Driver>,
        label: String,
        chunk: usize,
        sources: &[String],
        images: &[nvrtc::Image],
    ) -> Device {
        let load = |(i, source): (usize, &String)| {
            let image = images.get(i).map_or(&[][..], std::slice::from_ref);
            driver.load(source, image).unwrap_or_else(|e| panic!("{e}"))
        };
        let modules = sources.iter().enumerate().map(load).collect();
        let stream = driver.stream().unwrap();
        let (functions, asked, memory) = (RefCell::default(), RefCell::default(), Cell::default());
        Device { driver, stream, functions, chunk, modules, asked, memory, label }
    }

    /// The ways in which libraries compute something; empty if there is no library.
    pub(super) fn ways(&self, request: &Request) -> Vec<AlgorithmCandidate> {
        let mut asked = self.asked.borrow_mut();
        if let Some((_, known)) = asked.iter().find(|(known, _)| known == request) {
            return known.clone();
        }
        let found = self.driver.candidates(request).unwrap_or_default();
        asked.push((request.clone(), found.clone()));
        found
    }

    fn function(&self, kernel: KernelId) -> FunctionHandle {
        let load = || {
            let module = self.modules[cranelift_entity::EntityRef::index(kernel) / self.chunk];
            self.driver.function(module, &kernel.to_string()).unwrap()
        };
        *self.functions.borrow_mut().entry(kernel).or_insert_with(load)
    }

    /// Does a job on the image; `word` is what is passed for an argument where the image is at an
    /// address.
    pub(super) fn run(
        &self,
        image: &mut Image,
        job: &Job,
        word: impl Fn(&Argument, u64) -> u64,
    ) -> Result<(), DriverError> {
        let (driver, size) = (&self.driver, image.bytes.len());
        if self.memory.get().2 < size {
            let room = size.next_power_of_two();
            let pinned = driver.allocate_pinned(room as u64)?;
            self.memory.set((driver.allocate(room as u64)?, pinned, room));
        }
        let (base, pinned, _) = self.memory.get();
        let word = |argument: &Argument| word(argument, base);
        // SAFETY: both have room for the image, and nothing that was issued uses them; what the
        // job reads and writes is in the image, which is what is tested here.
        unsafe {
            std::ptr::copy_nonoverlapping(image.bytes.as_ptr(), pinned as *mut u8, size);
            driver.copy(self.stream, pinned, base, size as u64)?;
            match job {
                Job::Kernels(work) => self.works(work, &word)?,
                Job::Call { call, arguments, beside: [before, after] } => {
                    let addresses: Vec<u64> = arguments.iter().map(word).collect();
                    self.works(before, &word)?;
                    driver.call(self.stream, *call, &addresses, word(&Argument::Scratch(0)))?;
                    self.works(after, &word)?;
                }
            }
            driver.copy(self.stream, base, pinned, size as u64)?;
            driver.synchronize(self.stream)?;
            std::ptr::copy_nonoverlapping(pinned as *const u8, image.bytes.as_mut_ptr(), size);
        }
        Ok(())
    }

    /// Without any library.
    ///
    /// # Safety
    /// As for [`Driver::launch`].
    unsafe fn works(
        &self,
        works: &[Work],
        word: &impl Fn(&Argument) -> u64,
    ) -> Result<(), DriverError> {
        works.iter().try_for_each(|work| match work {
            Work::Copy { from, to, bytes } => {
                let (from, to) = (word(from), word(to));
                // SAFETY: the caller's promise.
                let copy = || unsafe { self.driver.copy(self.stream, from, to, *bytes) };
                if from != to && *bytes > 0 { copy() } else { Ok(()) }
            }
            // SAFETY: the caller's promise.
            Work::Launch(launch) => unsafe { self.launch(launch, word) },
            // SAFETY: the caller's promise.
            Work::Library(asked) => unsafe { self.works(&asked.instead, word) },
            // Cases have one rank; `ranks` has several.
            Work::Exchange { .. } => unreachable!("an exchange of one rank"),
        })
    }

    /// # Safety
    /// As for [`Driver::launch`].
    unsafe fn launch(
        &self,
        launch: &Launch,
        word: impl Fn(&Argument) -> u64,
    ) -> Result<(), DriverError> {
        let words: Vec<u64> = launch.arguments.iter().map(word).collect();
        let function = self.function(launch.kernel);
        // SAFETY: the caller's promise.
        unsafe { self.driver.launch(self.stream, function, launch.grid, launch.threads, &words) }
    }
}
