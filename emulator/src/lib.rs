//! Runs CUDA C++ kernels on the CPU, for tests.
//!
//! The text is compiled by the system's C++ compiler with a header (`include/emulate.h`) that
//! makes threads fibers. What runs here is *emulated*: it shows that a kernel computes what it
//! should and that its threads meet at their barriers. It shows neither races nor speed, and
//! nothing of a GPU's compiler. [`library`] does what libraries do, by plain loops; [`races`] runs the same
//! text with a thread of the system for each of a kernel's, to see what no barrier orders.

pub mod library;
pub mod races;

use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs, io};

/// The header that makes CUDA C++ plain C++.
const EMULATE: &str = include_str!("../include/emulate.h");

/// What it shares with the one of [`races`].
const DEVICE: &str = include_str!("../include/device.h");

/// Held by the thread that compiles: others that need the same kernels, as ranks do, wait for them.
static BUILDING: Mutex<()> = Mutex::new(());

/// Why a module could not be made or a kernel not be run.
#[derive(Debug, thiserror::Error)]
pub enum EmulationError {
    /// The file system or the compiler's process.
    #[error("cannot run the C++ compiler: {0}")]
    Io(#[from] io::Error),
    /// The text is no C++.
    #[error("the C++ compiler refuses the kernels:\n{0}")]
    Compile(String),
    /// The compiled module cannot be loaded.
    #[error("{0}")]
    Load(#[from] libloading::Error),
    /// The module has no such kernel.
    #[error("there is no kernel {kernel}")]
    NoKernel {
        /// Its name.
        kernel: String,
    },
    /// Threads of a block wait for each other for ever.
    #[error("kernel {kernel}: {message}")]
    Deadlock {
        /// The kernel.
        kernel: String,
        /// Where.
        message: String,
    },
}

/// Blocks of a grid, or threads of a block, along x, y and z.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim3 {
    /// Along x.
    pub x: u32,
    /// Along y.
    pub y: u32,
    /// Along z.
    pub z: u32,
}

impl From<[u32; 3]> for Dim3 {
    fn from([x, y, z]: [u32; 3]) -> Self {
        Dim3 { x, y, z }
    }
}

#[repr(C)]
struct EmulatedLaunch {
    grid: Dim3,
    block: Dim3,
    seed: u64,
    message: *mut u8,
    message_bytes: u64,
}

/// Kernels compiled for the CPU.
pub struct Module {
    libraries: Vec<libloading::Library>,
    /// Of each kernel the number of its library and its symbol there.
    places: HashMap<String, (usize, String)>,
}

impl Module {
    /// Compiles the text of a module with its headers (name and text): what is before the first line
    /// that begins with `KERNEL(` is every kernel's, and each such line begins one. Kernels that were compiled
    /// before, whatever their names and with whatever others, are taken from `cache`, a folder.
    ///
    /// # Errors
    /// There is no C++ compiler, or it refuses the text.
    pub fn compile(
        source: &str,
        headers: &[(&str, &str)],
        cache: &Path,
    ) -> Result<Module, EmulationError> {
        fs::create_dir_all(cache)?;
        let headers = [headers, &[("emulate.h", EMULATE), ("device.h", DEVICE)]].concat();
        let (before, kernels) = kernels(source);
        let named: Vec<(&str, String)> = kernels
            .iter()
            .map(|(name, text)| (*name, digest(&format!("{before}{text}"), &headers)))
            .collect();
        // The file of a kernel's digest has the name of its library.
        let note = |digest: &str| cache.join(format!("{digest}.kernel"));
        let library = |digest: &str| {
            let library = cache.join(fs::read_to_string(note(digest)).ok()?);
            library.exists().then_some(library)
        };
        let building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        let all = named.iter().zip(&kernels).map(|((_, digest), (_, text))| (&digest[..], *text));
        let missing: BTreeMap<&str, &str> =
            all.filter(|(digest, _)| library(digest).is_none()).collect();
        if !missing.is_empty() {
            let mut text = before.to_owned();
            text.extend(missing.iter().map(|(digest, rest)| format!("KERNEL(k{digest}{rest}")));
            let name = format!("{}.so", digest(&text, &headers));
            build(&text, &headers, &["-fPIC", "-shared"], cache, &cache.join(&name))?;
            for digest in missing.keys() {
                let mut file = tempfile::NamedTempFile::new_in(cache)?;
                file.write_all(name.as_bytes())?;
                file.persist(note(digest)).map_err(|e| e.error)?;
            }
        }
        drop(building);
        let mut paths: Vec<PathBuf> = Vec::new();
        let mut places = HashMap::new();
        for (name, digest) in named {
            let missing = || io::Error::other("a library was removed meanwhile");
            let path = library(&digest).ok_or_else(missing)?;
            let number = paths.iter().position(|p| *p == path).unwrap_or_else(|| {
                paths.push(path);
                paths.len() - 1
            });
            places.insert(name.to_owned(), (number, format!("emulated_k{digest}")));
        }
        // SAFETY: each was made from the given text; loading it runs no code of it.
        let load = |path| unsafe { libloading::Library::new(path) };
        let libraries = paths.iter().map(load).collect::<Result<_, _>>()?;
        Ok(Module { libraries, places })
    }

    /// Runs a kernel: every block, one after another. `seed` decides in which order threads
    /// run between barriers: 0 as they are numbered, 1 the other way round.
    ///
    /// # Errors
    /// There is no such kernel, or its threads wait for each other for ever.
    ///
    /// # Safety
    /// `words` are the kernel's parameters, one for each, and what they point to is valid for
    /// all that the kernel reads and writes.
    pub unsafe fn launch(
        &self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        seed: u64,
        words: &[u64],
    ) -> Result<(), EmulationError> {
        let missing = || EmulationError::NoKernel { kernel: kernel.into() };
        let (library, symbol) = self.places.get(kernel).ok_or_else(missing)?;
        let mut message = [0u8; 256];
        let mut launch = EmulatedLaunch {
            grid: grid.into(),
            block: block.into(),
            seed,
            message: message.as_mut_ptr(),
            message_bytes: message.len() as u64,
        };
        // SAFETY: `KERNEL` of `emulate.h` defines the symbol with this type; what the words
        // mean is the caller's promise.
        unsafe {
            type Emulated = unsafe extern "C" fn(*mut EmulatedLaunch, *const u64);
            let f = self.libraries[*library].get::<Emulated>(symbol.as_bytes())?;
            f(&raw mut launch, words.as_ptr());
        }
        let message = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy();
        if message.is_empty() {
            return Ok(());
        }
        Err(EmulationError::Deadlock { kernel: kernel.into(), message: message.into_owned() })
    }
}

/// What a text has before its kernels, and of each kernel its name and what follows it, up to the next.
fn kernels(source: &str) -> (&str, Vec<(&str, &str)>) {
    const KERNEL: &str = "KERNEL(";
    let begins = |(at, _): &(usize, &str)| *at == 0 || source.as_bytes()[at - 1] == b'\n';
    let starts: Vec<usize> =
        source.match_indices(KERNEL).filter(begins).map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([source.len()]);
    let kernel = |(&start, end): (&usize, usize)| {
        let text = &source[start + KERNEL.len()..end];
        text.split_at(text.find(',').unwrap_or(text.len()))
    };
    let first = starts.first().copied().unwrap_or(source.len());
    (&source[..first], starts.iter().zip(ends).map(kernel).collect())
}

/// A digest of a source, which has no name, and its headers, as hexadecimal digits.
pub fn digest(source: &str, headers: &[(&str, &str)]) -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in headers.iter().chain(&[("", source)]) {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

/// Compiles a module with more flags of the compiler.
fn build(
    source: &str,
    headers: &[(&str, &str)],
    flags: &[&str],
    cache: &Path,
    library: &Path,
) -> Result<(), EmulationError> {
    let folder = tempfile::tempdir_in(cache)?;
    for (name, text) in headers.iter().chain(&[("module.cpp", source)]) {
        fs::write(folder.path().join(name), text)?;
    }
    let made: PathBuf = folder.path().join("module.so");
    let compiler = env::var_os("CXX").filter(|c| !c.is_empty()).unwrap_or_else(|| "c++".into());
    let output = Command::new(compiler)
        .args(["-std=c++17", "-Og", "-ffp-contract=off", "-fno-strict-aliasing"])
        .args(flags)
        .arg("-w")
        .arg("-o")
        .arg(&made)
        .arg(folder.path().join("module.cpp"))
        .output()?;
    if !output.status.success() {
        return Err(EmulationError::Compile(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    // Another process may have made it meanwhile: it is the same.
    fs::rename(&made, library)?;
    Ok(())
}

#[cfg(test)]
mod tests;
