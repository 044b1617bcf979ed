//! Runs kernels with a thread of the system for each of theirs, under ThreadSanitizer (Serebryany and Iskhodzhanov,
//! WBIA 2009), which reports accesses to memory that nothing orders. `include/threads.h` says what orders them.

use crate::{DEVICE, EmulationError, digest};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The header that makes threads of the system of a block's.
const THREADS: &str = include_str!("../include/threads.h");

/// Where a program's memory begins: words of launches that are addresses count from here on.
pub const BASE: u64 = 0x10_0000_0000;

/// Exit code of a program in which the sanitizer found something.
const FOUND: i32 = 66;

/// Bytes of a kernel's name in the file of launches.
const NAME: usize = 16;

/// Kernels compiled for ThreadSanitizer.
pub struct Program {
    path: PathBuf,
}

/// One launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel's name, of less than 16 bytes.
    pub kernel: String,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// The kernel's parameters, one for each.
    pub words: Vec<u64>,
}

impl Program {
    /// Compiles the text of a module with its headers (name and text). What was compiled before is taken
    /// from `cache`, a folder.
    ///
    /// # Errors
    /// There is no C++ compiler, it has no ThreadSanitizer, or it refuses the text.
    pub fn compile(
        source: &str,
        headers: &[(&str, &str)],
        cache: &Path,
    ) -> Result<Program, EmulationError> {
        fs::create_dir_all(cache)?;
        let headers = [headers, &[("emulate.h", THREADS), ("device.h", DEVICE)]].concat();
        let path = cache.join(format!("{}.tsan", digest(source, &headers)));
        if !path.exists() {
            let flags = ["-g", "-fsanitize=thread", "-pthread"];
            crate::build(source, &headers, &flags, cache, &path)?;
        }
        Ok(Program { path })
    }

    /// Runs launches one after another in a memory of their own, which begins at [`BASE`]. Gives what the
    /// sanitizer reports, one line for each pair of accesses.
    ///
    /// # Errors
    /// The program cannot be run, or its threads wait for each other for ever.
    pub fn run(
        &self,
        memory: &mut [u8],
        launches: &[Launch],
    ) -> Result<Vec<String>, EmulationError> {
        let mut file = tempfile::NamedTempFile::new()?;
        let mut put = |x: u64| file.write_all(&x.to_le_bytes());
        put(memory.len() as u64)?;
        file.write_all(memory)?;
        file.write_all(&(launches.len() as u64).to_le_bytes())?;
        for launch in launches {
            let mut name = [0; NAME];
            let length = launch.kernel.len().min(NAME - 1);
            name[..length].copy_from_slice(&launch.kernel.as_bytes()[..length]);
            file.write_all(&name)?;
            let counts = launch.grid.into_iter().chain([launch.threads]).map(u64::from);
            let counts = counts.chain([launch.words.len() as u64]);
            for word in counts.chain(launch.words.iter().copied()) {
                file.write_all(&word.to_le_bytes())?;
            }
        }
        file.flush()?;
        // Blocks are processes, which begin threads.
        let options = format!("exitcode={FOUND} die_after_fork=0");
        let output =
            Command::new(&self.path).arg(file.path()).env("TSAN_OPTIONS", options).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let reports: Vec<String> =
            said.lines().filter_map(|l| l.strip_prefix("SUMMARY: ")).map(str::to_owned).collect();
        match (output.status.code(), reports.is_empty()) {
            (Some(0), true) | (Some(FOUND), false) => {}
            _ => {
                let message = said.into_owned();
                return Err(EmulationError::Deadlock { kernel: "of a program".into(), message });
            }
        }
        let found = fs::read(file.path())?;
        memory.copy_from_slice(&found);
        Ok(reports)
    }
}
