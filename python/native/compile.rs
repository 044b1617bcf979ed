//! Compiling, watched and interrupted from Python.

use crate::errors::{self, CompileError, DataError};
use crate::step::Step;
use arenic::cli::{CommandError, Request};
use arenic::{Model, Watch};
use arenic_passes::Progress;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often a thread that waits asks for signals.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Where a model is.
pub(crate) enum Given {
    Path(PathBuf),
    Bytes(Vec<u8>),
}

impl Given {
    pub(crate) fn of(model: &Bound<'_, PyAny>) -> PyResult<Given> {
        match model.cast::<PyBytes>() {
            Ok(bytes) => Ok(Given::Bytes(bytes.as_bytes().to_vec())),
            Err(_) => Ok(Given::Path(model.extract()?)),
        }
    }

    pub(crate) fn open(self) -> Result<Model, CommandError> {
        let model = match self {
            Given::Path(path) => Model::open(path),
            Given::Bytes(bytes) => Model::from_bytes(bytes),
        };
        model.map_err(|e| CommandError { message: e.to_string(), help: None })
    }
}

/// Compiles a model with the options of the command. `note` is called with each line that the command would print;
/// `progress` with a method, bytes, a bound in bytes, for every better plan.
#[pyfunction]
pub(crate) fn compile(
    py: Python<'_>,
    model: Option<Bound<'_, PyAny>>,
    options: Vec<String>,
    note: Py<PyAny>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Step> {
    let given = model.as_ref().map(Given::of).transpose()?;
    let request = Request::parse(&options).map_err(|e| errors::of_compiling(&e))?;
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(Calls { note, progress, raised: Mutex::new(None) });
    let (sender, mut receiver) = channel();
    let body = {
        let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
        move || {
            let compiled = catch_unwind(AssertUnwindSafe(|| {
                let model = given.map(Given::open).transpose()?;
                let note = |text: &str| calls.note(text, &stop);
                let progress = |p: &Progress| calls.progress(p, &stop);
                let watch = Watch {
                    stop: Some(&stop),
                    progress: Some(&progress),
                    note: Some(&note),
                    after_pass: None,
                };
                request.compile(model, &watch)
            }));
            let _ = sender.send(compiled);
        }
    };
    std::thread::Builder::new()
        .name("arenic compile".into())
        .stack_size(STACK)
        .spawn(body)
        .map_err(|e| CompileError::new_err(format!("a thread could not be started: {e}")))?;
    loop {
        let (back, received) = py.detach(move || {
            let received = receiver.recv_timeout(LOOK);
            (receiver, received)
        });
        receiver = back;
        match received {
            Ok(Ok(Ok(compiled))) => {
                if let Some(e) = calls.raised() {
                    return Err(e);
                }
                return Step::new(compiled);
            }
            Ok(Ok(Err(e))) => {
                return Err(calls.raised().unwrap_or_else(|| errors::of_compiling(&e)));
            }
            Ok(Err(panic)) => return Err(errors::of_panic(&*panic)),
            Err(RecvTimeoutError::Disconnected) => return Err(errors::of_panic(&"it vanished")),
            // The first one ends the search and keeps its best plan, a second one ends the waiting.
            Err(RecvTimeoutError::Timeout) => {
                if let Err(e) = py.check_signals() {
                    if stop.swap(true, Ordering::Relaxed) {
                        return Err(e);
                    }
                    calls.note.call1(
                        py,
                        ("warning: stopping; the best plan so far is kept (Ctrl-C again to leave it)",),
                    )?;
                }
            }
        }
    }
}

/// Graphs are deep, and so are the passes' recursions over what files hold.
const STACK: usize = 64 << 20;

/// What is called from the thread that compiles.
struct Calls {
    note: Py<PyAny>,
    progress: Option<Py<PyAny>>,
    /// What one of them raised, which ends the search.
    raised: Mutex<Option<PyErr>>,
}

impl Calls {
    fn note(&self, text: &str, stop: &AtomicBool) {
        self.keep(Python::attach(|py| self.note.call1(py, (text,)).map(drop)), stop);
    }

    fn progress(&self, p: &Progress, stop: &AtomicBool) {
        if let Some(progress) = &self.progress {
            let said = (p.method, p.incumbent, p.bound);
            self.keep(Python::attach(|py| progress.call1(py, said).map(drop)), stop);
        }
    }

    fn keep(&self, called: PyResult<()>, stop: &AtomicBool) {
        if let Err(e) = called {
            self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            stop.store(true, Ordering::Relaxed);
        }
    }

    fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Writes a forward model with other values for its weights. `weights` is a path, or has for each name the bytes of a
/// `(dtype, shape, bytes)`. Gives what there is to say.
#[pyfunction]
pub(crate) fn export(
    py: Python<'_>,
    model: Bound<'_, PyAny>,
    weights: BTreeMap<String, (String, Vec<usize>, Vec<u8>)>,
    output: PathBuf,
) -> PyResult<Vec<String>> {
    let given = Given::of(&model)?;
    errors::guarded(|| {
        let tensors = crate::tensors::tensors(weights)?;
        py.detach(|| {
            let model = given.open().map_err(|e| errors::of_compiling(&e))?;
            let written = arenic::onnx::trained::write(&model, &tensors, &output);
            written.map_err(|e| DataError::new_err(e.to_string()))
        })
    })
}
