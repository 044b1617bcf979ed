//! The native module `arenic._native`: what the package's Python parts are made of.
//!
//! Everything that takes time releases the interpreter. Compilations run on a thread of their own, and steps on their
//! trainer's, so that the thread which waits can ask for signals: Ctrl-C is answered while they go on.

#![expect(clippy::needless_pass_by_value, reason = "Python hands arguments over by value")]

mod compile;
mod dlpack;
mod errors;
mod step;
mod tensors;
mod trainer;

use pyo3::prelude::*;

/// Runs the command line with these arguments, of which the first is the program's name; gives its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<String>) -> PyResult<u8> {
    errors::guarded(|| Ok(py.detach(|| arenic::cli::main(arguments))))
}

/// Native parts of the package `arenic`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::add(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(compile::compile, module)?)?;
    module.add_function(wrap_pyfunction!(compile::export, module)?)?;
    module.add_function(wrap_pyfunction!(step::load, module)?)?;
    module.add_class::<step::Step>()?;
    module.add_class::<trainer::Trainer>()?;
    module.add_class::<trainer::Memory>()
}
