//! From text to code for a device, by NVRTC, which is loaded when it is first needed.

use super::HEADERS;
use cudarc::nvrtc::result::{NvrtcError, compile_program, destroy_program, get_program_log};
use cudarc::nvrtc::sys;
use std::ffi::{CString, c_char, c_int};
use std::ptr;

/// Kernels compiled for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// What for.
    pub architecture: Architecture,
    /// A cubin, or PTX with a NUL at its end.
    pub code: Vec<u8>,
}

/// What code is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Machine code (a cubin) for devices of this compute capability, ten times it, for
    /// example 90, and its later minor versions.
    Machine(u32),
    /// PTX, which the driver of any device of at least this capability compiles again.
    Virtual(u32),
}

impl Architecture {
    /// True where a device of this compute capability, times ten, runs the code.
    pub fn runs_on(self, capability: u32) -> bool {
        match self {
            Architecture::Machine(n) => n / 10 == capability / 10 && n <= capability,
            Architecture::Virtual(n) => n <= capability,
        }
    }

    /// NVRTC's name for it.
    pub fn name(self) -> String {
        match self {
            Architecture::Machine(n) => format!("sm_{n}"),
            Architecture::Virtual(n) => format!("compute_{n}"),
        }
    }
}

/// Why text was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// There is no NVRTC.
    #[error(
        "kernels are compiled by NVRTC, and no libnvrtc.so was found: install CUDA 12 or newer or \
         the Python package `nvidia-cuda-nvrtc` and name its folder in LD_LIBRARY_PATH, or run the \
         code that the artifact holds, which nothing can verify, with `--trust-gpu-code`"
    )]
    Missing,
    /// NVRTC refuses the text, which is a defect of this program.
    #[error("NVRTC refuses the kernels for {architecture}:\n{log}")]
    Refused {
        /// What for.
        architecture: String,
        /// What it says.
        log: String,
    },
    /// NVRTC fails in another way.
    #[error("NVRTC fails: {0}")]
    Failed(String),
}

impl From<NvrtcError> for CompileError {
    fn from(e: NvrtcError) -> Self {
        CompileError::Failed(e.to_string())
    }
}

/// True where NVRTC can be loaded.
pub fn is_present() -> bool {
    // SAFETY: loads a library by its name, and nothing else.
    unsafe { sys::is_culib_present() }
}

/// The version of NVRTC, major and minor; `None` if there is no NVRTC.
pub fn version() -> Option<(i32, i32)> {
    if !is_present() {
        return None;
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are written to, and nothing else.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result().ok()?;
    Some((major, minor))
}

/// Destroys a program however its compilation ends.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `nvrtcCreateProgram`, not destroyed yet. Its failure frees nothing.
        let _ = unsafe { destroy_program(self.0) };
    }
}

/// Compiles the text of a module: a cubin or PTX, as `cuModuleLoadData` takes it.
///
/// Nothing is contracted to fused multiply-adds that the text does not say, so that elementwise
/// arithmetic rounds as on the CPU.
///
/// # Errors
/// NVRTC is missing or refuses the text.
pub fn compile(source: &str, architecture: Architecture) -> Result<Vec<u8>, CompileError> {
    let program = compiled(source, architecture, &[])?;
    type Size = unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult;
    type Get = unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult;
    let (size, get): (Size, Get) = match architecture {
        Architecture::Machine(_) => (sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
        Architecture::Virtual(_) => (sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
    };
    let mut bytes = 0;
    // SAFETY: a compiled program, and room for what it says it has.
    unsafe {
        size(program.0, &raw mut bytes).result()?;
        let mut image = vec![0u8; bytes];
        get(program.0, image.as_mut_ptr().cast()).result()?;
        Ok(image)
    }
}

/// Holds the text of a module against CUDA C++ for devices of this compute capability, ten times it, without
/// optimizing it: a tenth of what [`compile`] takes. PTX that the text has in it is not looked at.
///
/// # Errors
/// NVRTC is missing or refuses the text.
pub fn check(source: &str, capability: u32) -> Result<(), CompileError> {
    compiled(source, Architecture::Virtual(capability), &["--device-debug"]).map(|_| ())
}

/// Compiles a text with more options.
fn compiled(
    source: &str,
    architecture: Architecture,
    more: &[&str],
) -> Result<Program, CompileError> {
    if !is_present() {
        return Err(CompileError::Missing);
    }
    let text = |s: &str| CString::new(s).map_err(|e| CompileError::Failed(e.to_string()));
    let source = text(source)?;
    let names = HEADERS.iter().map(|h| text(h.0)).collect::<Result<Vec<_>, _>>()?;
    let texts = HEADERS.iter().map(|h| text(h.1)).collect::<Result<Vec<_>, _>>()?;
    let pointers = |of: &[CString]| of.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
    let (names, texts) = (pointers(&names), pointers(&texts));
    let mut program: sys::nvrtcProgram = ptr::null_mut();
    // SAFETY: strings that end in NUL and as many of them as said; they outlive the program.
    unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            source.as_ptr(),
            c"module.cu".as_ptr(),
            names.len() as c_int,
            texts.as_ptr(),
            names.as_ptr(),
        )
        .result()?;
    }
    let program = Program(program);
    let architecture = architecture.name();
    let mut options = vec![
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".into(),
        "--fmad=false".into(),
        "--device-as-default-execution-space".into(),
    ];
    options.extend(more.iter().map(ToString::to_string));
    // SAFETY: a program that was made above.
    if unsafe { compile_program(program.0, &options) }.is_err() {
        // SAFETY: as above.
        let log = unsafe { get_program_log(program.0) }?;
        let log = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect::<Vec<_>>();
        let log = String::from_utf8_lossy(&log).into_owned();
        return Err(CompileError::Refused { architecture, log });
    }
    Ok(program)
}
