//! Errors as Python has them.

use arenic::cli::CommandError;
use arenic::train::{InitialError, TrainError};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

create_exception!(arenic, Error, PyException, "What arenic cannot do, why, and how to mend it.");
create_exception!(arenic, CompileError, Error, "A model cannot be read or compiled.");
create_exception!(
    arenic,
    DataError,
    Error,
    "Data does not fit, or a file cannot be read or written."
);
create_exception!(
    arenic,
    DeviceError,
    Error,
    "A step cannot run on this device, or the device failed."
);
create_exception!(arenic, NonFiniteError, Error, "The loss is NaN or infinite.");
create_exception!(arenic, InternalError, Error, "A defect of arenic.");

/// Adds the exceptions to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("CompileError", py.get_type::<CompileError>())?;
    module.add("DataError", py.get_type::<DataError>())?;
    module.add("DeviceError", py.get_type::<DeviceError>())?;
    module.add("NonFiniteError", py.get_type::<NonFiniteError>())?;
    module.add("InternalError", py.get_type::<InternalError>())
}

fn worded(message: &str, help: Option<&str>) -> String {
    match help {
        Some(help) => format!("{message}\nhelp: {help}"),
        None => message.to_owned(),
    }
}

/// Why a model could not be compiled.
pub(crate) fn of_compiling(e: &CommandError) -> PyErr {
    CompileError::new_err(worded(&e.message, e.help.as_deref()))
}

/// Why a trainer could not do what it was asked for.
pub(crate) fn of_training(e: &TrainError) -> PyErr {
    let text = worded(&e.to_string(), e.help().as_deref());
    match e {
        _ if e.is_non_finite() => NonFiniteError::new_err(text),
        TrainError::Ended => InternalError::new_err(text),
        TrainError::Dynamic(_) => CompileError::new_err(text),
        TrainError::Input(_) | TrainError::Data(_) | TrainError::Class { .. } => {
            DataError::new_err(text)
        }
        TrainError::Initial(InitialError::Device(_)) => DeviceError::new_err(text),
        TrainError::Initial(_) => DataError::new_err(text),
        TrainError::Step { error, .. } => match error {
            arenic::train::StepFailure::Refused(_) => DataError::new_err(text),
            arenic::train::StepFailure::Device(_) => DeviceError::new_err(text),
        },
        _ => DeviceError::new_err(text),
    }
}

/// Calls `f`; a panic in it is an [`InternalError`].
pub(crate) fn guarded<R>(f: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(of_panic(&*panic)))
}

/// A panic as an error.
pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> PyErr {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
    InternalError::new_err(worded(said, Some("this is a defect of arenic; please report it")))
}
