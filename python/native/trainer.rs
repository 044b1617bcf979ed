//! Training, with arrays over the arena.

use crate::compile::LOOK;
use crate::dlpack;
use crate::errors::{self, DataError, of_training};
use crate::step::{Step, Typed, typed};
use crate::tensors::tensors;
use arenic::TrainerOptions;
use arenic::data::TensorFile;
use arenic::gpu_code::Trust;
use arenic::train::{Initial, Place, TrainError};
use arenic::trainer::access::{self, Port, Slot};
use arenic_ir::DType;
use arenic_ir::types::TensorType;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The name, the element type and the shape of an input or an output, and its bytes; `None` for an input that the
/// step does not read.
type Located = (String, &'static str, Vec<usize>, Option<Memory>);

/// States under training, with the machine that steps.
#[pyclass(module = "arenic._native", frozen)]
pub(crate) struct Trainer {
    trainer: Mutex<arenic::Trainer>,
    place: Place,
}

/// Bytes of a trainer's machine, for `numpy.asarray`.
#[pyclass(module = "arenic._native", frozen)]
pub(crate) struct Memory {
    /// Keeps the machine alive.
    _owner: Py<Trainer>,
    slot: Slot,
    ty: TensorType,
}

#[pymethods]
impl Memory {
    /// See NumPy's array interface, version 3.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", typestr(self.ty.dtype))?;
        interface.set_item("shape", pyo3::types::PyTuple::new(py, &self.ty.shape)?)?;
        interface.set_item("data", (self.slot.ptr.addr(), false))?;
        Ok(interface)
    }
}

/// NumPy has no `bf16`: its bits are shown.
fn typestr(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::U16 | DType::Bf16 => "<u2",
        DType::I16 => "<i2",
        DType::U32 => "<u4",
        DType::I32 => "<i4",
        DType::U64 => "<u8",
        DType::I64 => "<i8",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
    }
}

impl Trainer {
    /// Calls `f` with the trainer, which is free but for another thread that uses it: then this waits without the
    /// interpreter, which that thread may need to end.
    fn read<R: Send>(&self, py: Python<'_>, f: impl FnOnce(&mut arenic::Trainer) -> R + Send) -> R {
        py.detach(|| f(&mut self.trainer.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Calls `f` with the trainer and without the interpreter.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut arenic::Trainer) -> Result<R, TrainError> + Send,
    ) -> PyResult<R> {
        errors::guarded(|| {
            let done =
                py.detach(|| f(&mut self.trainer.lock().unwrap_or_else(PoisonError::into_inner)));
            done.map_err(|e| of_training(&e))
        })
    }

    /// Calls `f`, which waits as long as it is told, until it gives something, and asks for signals meanwhile.
    fn watched<R: Send>(
        &self,
        py: Python<'_>,
        mut f: impl FnMut(&mut arenic::Trainer) -> Option<Result<R, TrainError>> + Send,
    ) -> PyResult<R> {
        errors::guarded(|| {
            loop {
                let done = py
                    .detach(|| f(&mut self.trainer.lock().unwrap_or_else(PoisonError::into_inner)));
                match done {
                    Some(done) => return done.map_err(|e| of_training(&e)),
                    None => py.check_signals()?,
                }
            }
        })
    }
}

fn located(owner: &Bound<'_, Trainer>, ports: &[Port]) -> Vec<Located> {
    let place = |port: &Port| {
        let (name, dtype, shape) = typed(&port.name, &port.ty);
        let memory = port.slot.map(|slot| Memory {
            _owner: owner.clone().unbind(),
            slot,
            ty: port.ty.clone(),
        });
        (name, dtype, shape, memory)
    };
    ports.iter().map(place).collect()
}

#[pymethods]
impl Trainer {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keywords, in Python")]
    fn new(
        py: Python<'_>,
        step: &Step,
        device: &str,
        threads: usize,
        seed: Option<u64>,
        init: Option<PathBuf>,
        tensors: BTreeMap<String, (String, Vec<usize>, Vec<u8>)>,
        skip: Vec<String>,
        zeros: Vec<String>,
        deterministic: bool,
        trust_gpu_code: bool,
        dynamic: bool,
    ) -> PyResult<Trainer> {
        let place: Place = device.parse().map_err(errors::DeviceError::new_err::<String>)?;
        let patterns = |given: Vec<String>| {
            let pattern = |text: &String| {
                arenic::train::pattern(text)
                    .map_err(|e| DataError::new_err(format!("`{text}`: {e}")))
            };
            given.iter().map(pattern).collect::<PyResult<Vec<_>>>()
        };
        let (skip, zeros, tensors) =
            (patterns(skip)?, patterns(zeros)?, crate::tensors::tensors(tensors)?);
        let trust = if trust_gpu_code { Trust::Artifact } else { Trust::Own };
        let artifact = step.artifact.clone();
        let dynamic = dynamic.then(|| arenic::cli::dynamic(&artifact)).transpose();
        let dynamic = dynamic.map_err(|e| errors::of_compiling(&e))?;
        errors::guarded(|| {
            let made = py.detach(|| {
                let file = init.map(TensorFile::open).transpose()?;
                let initial = Initial { tensors, file, skip, zeros };
                let options =
                    TrainerOptions { place, threads, seed, initial, deterministic, trust, dynamic };
                arenic::Trainer::with_options(artifact, options)
            });
            Ok(Trainer { trainer: Mutex::new(made.map_err(|e| of_training(&e))?), place })
        })
    }

    /// Inputs, and where they are fed.
    fn inputs(slf: &Bound<'_, Self>) -> Vec<Located> {
        let inputs = slf.get().read(slf.py(), |trainer| access::inputs(trainer).to_vec());
        located(slf, &inputs)
    }

    /// Outputs, and where they are after a step.
    fn outputs(slf: &Bound<'_, Self>) -> Vec<Located> {
        let outputs = slf.get().read(slf.py(), |trainer| access::outputs(trainer).to_vec());
        located(slf, &outputs)
    }

    /// Names of the variants, and the inputs of each.
    fn variants(&self, py: Python<'_>) -> Vec<(String, Vec<Typed>)> {
        let inputs = |ports: &[Port]| ports.iter().map(|p| typed(&p.name, &p.ty)).collect();
        self.read(py, |trainer| {
            let variants = access::variants(trainer);
            variants.map(|(name, ports)| (name.to_owned(), inputs(ports))).collect()
        })
    }

    /// The variant of a structure (of the first one, where none is named) whose inputs have these shapes, which is
    /// compiled where there is none; `None` if there is no such size.
    fn grow(
        &self,
        py: Python<'_>,
        structure: Option<String>,
        shapes: BTreeMap<String, Vec<usize>>,
    ) -> PyResult<Option<usize>> {
        let shapes: Vec<(&str, &[usize])> =
            shapes.iter().map(|(name, shape)| (name.as_str(), &shape[..])).collect();
        self.with(py, |trainer| access::grow(trainer, structure.as_deref(), &shapes))
    }

    /// How many variants there are that the step was compiled with.
    fn compiled(&self, py: Python<'_>) -> usize {
        self.read(py, |trainer| access::compiled(trainer))
    }

    /// Chooses the variant that inputs, outputs and the next step are of.
    fn choose(&self, py: Python<'_>, variant: usize) -> PyResult<()> {
        self.with(py, |trainer| access::choose(trainer, variant))
    }

    /// Names and types of states.
    fn states(&self, py: Python<'_>) -> Vec<Typed> {
        self.read(py, |trainer| trainer.states().map(|(name, ty)| typed(name, ty)).collect())
    }

    /// The bytes of a state; `None` where it does not lie in one piece in this process's memory.
    fn state_memory(slf: &Bound<'_, Self>, name: &str) -> PyResult<Option<Memory>> {
        let found = slf.get().read(slf.py(), |trainer| access::state(trainer, name));
        let found = found.map_err(|e| of_training(&e))?;
        let _owner = slf.clone().unbind();
        Ok(found.map(|(slot, ty)| Memory { _owner, slot, ty }))
    }

    /// A copy of a state's bytes.
    fn read_state<'py>(
        &self,
        py: Python<'py>,
        name: &str,
    ) -> PyResult<Bound<'py, pyo3::types::PyBytes>> {
        let tensor = self.with(py, |trainer| trainer.state(name))?;
        Ok(pyo3::types::PyBytes::new(py, tensor.bytes()))
    }

    /// Replaces a state by `(dtype, shape, bytes)`.
    fn write_state(
        &self,
        py: Python<'_>,
        name: &str,
        tensor: (String, Vec<usize>, Vec<u8>),
    ) -> PyResult<()> {
        let all = tensors(BTreeMap::from([(name.to_owned(), tensor)]))?;
        self.with(py, |trainer| {
            all.iter().try_for_each(|(name, tensor)| trainer.set_state(name, tensor))
        })
    }

    /// The stream on which tensors of the trainer's GPU are copied to inputs, with the GPU's number; `None` on the CPU.
    /// With `evaluates` that of the forward pass.
    fn stream(&self, py: Python<'_>, evaluates: bool) -> PyResult<Option<(u32, u64)>> {
        let Some(gpu) = self.place.gpu(0) else { return Ok(None) };
        let stream = self.with(py, |trainer| access::stream(trainer, evaluates))?;
        Ok(stream.map(|stream| (gpu, stream)))
    }

    /// Has the next step copy an input from a tensor of the trainer's GPU, given by DLPack's capsule, which must live
    /// until the step has ended, and whose bytes are there in the order of [`Trainer::stream`]. False, and nothing
    /// done, for a tensor that is elsewhere, not dense, or of another type.
    fn lend(
        &self,
        py: Python<'_>,
        evaluates: bool,
        name: &str,
        capsule: &Bound<'_, PyCapsule>,
    ) -> PyResult<bool> {
        let Some(tensor) = dlpack::on_gpu(capsule)? else { return Ok(false) };
        self.with(py, |trainer| {
            let ports = match evaluates {
                true => access::evaluation(trainer)?.0,
                false => access::inputs(trainer).to_vec(),
            };
            let input = ports.iter().position(|port| port.name == name);
            let fits = |&i: &usize| ports[i].slot.is_some() && ports[i].ty == tensor.ty;
            let is_here = self.place.gpu(0) == Some(tensor.gpu);
            let Some(i) = input.filter(fits).filter(|_| is_here) else {
                return Ok(false);
            };
            // SAFETY: a tensor of so many bytes, which the caller keeps.
            unsafe { access::lend(trainer, evaluates, i, tensor.address) }?;
            Ok(true)
        })
    }

    /// Tells that states were written through their memory.
    fn touch(&self, py: Python<'_>) {
        self.read(py, access::touch);
    }

    /// Waits for a step that was left by Ctrl-C.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        self.watched(py, |trainer| access::wait(trainer, LOOK))
    }

    /// Runs a step with what the inputs hold; gives the scalar outputs in their order.
    fn run(&self, py: Python<'_>) -> PyResult<Vec<f64>> {
        let mut is_begun = false;
        self.watched(py, |trainer| {
            if !std::mem::replace(&mut is_begun, true)
                && let Err(e) = access::begin(trainer)
            {
                return Some(Err(e));
            }
            let done = access::wait(trainer, LOOK)?;
            Some(done.map(|()| access::scalars(trainer)))
        })
    }

    /// The forward pass with the states as they are now: its inputs, and its outputs.
    fn evaluation(slf: &Bound<'_, Self>) -> PyResult<(Vec<Located>, Vec<Located>)> {
        let (inputs, outputs) = slf.get().with(slf.py(), access::evaluation)?;
        Ok((located(slf, &inputs), located(slf, &outputs)))
    }

    /// Runs the forward pass with what its inputs hold; gives the figures by name.
    fn evaluate(&self, py: Python<'_>) -> PyResult<BTreeMap<String, f64>> {
        let mut is_begun = false;
        self.watched(py, |trainer| {
            let is_first = !std::mem::replace(&mut is_begun, true);
            access::evaluate(trainer, is_first, LOOK)
        })
    }

    /// Steps done so far.
    fn steps(&self, py: Python<'_>) -> u64 {
        self.read(py, |trainer| trainer.steps())
    }

    /// Bytes of the arena on the device.
    fn arena_bytes(&self, py: Python<'_>) -> u64 {
        self.read(py, |trainer| access::arena_bytes(trainer))
    }

    /// True where inputs and outputs lie elsewhere after each step.
    fn moves(&self, py: Python<'_>) -> bool {
        self.read(py, |trainer| access::moves(trainer))
    }

    /// Writes the states.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |trainer| trainer.save(&path))
    }

    /// Goes on from a file.
    fn restore(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |trainer| trainer.restore(&path))
    }
}
