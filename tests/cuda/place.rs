//! Where tests of the CUDA backend run and read their files.
//!
//! They run on a simulated driver, and where `ARENIC_TEST_DEVICE` names a GPU, as `cuda:0`, on
//! that. `ARENIC_TEST_ROOT` names the folder of `models/` and `tests/` where the tests run on
//! another machine than they were built on.

use arenic_runtime::cuda::Cuda;
use std::env;
use std::path::PathBuf;

/// The GPU that tests are to run on.
pub(crate) fn gpu() -> Option<Cuda> {
    let name = env::var("ARENIC_TEST_DEVICE").ok().filter(|name| !name.is_empty())?;
    let number = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    let Some(number) = number else {
        panic!("ARENIC_TEST_DEVICE is `{name}`, and names a GPU by its number, as `cuda:0`");
    };
    Some(Cuda::new(number).unwrap_or_else(|e| panic!("ARENIC_TEST_DEVICE is `{name}`: {e}")))
}

/// A file of this repository.
pub(crate) fn file(path: &str) -> PathBuf {
    let built = || PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = env::var_os("ARENIC_TEST_ROOT").filter(|root| !root.is_empty());
    root.map_or_else(built, PathBuf::from).join(path)
}
