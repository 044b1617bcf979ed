//! Graphs of operations, and the plans by which cuDNN runs one.

use super::super::super::driver::DriverError;
use super::descriptor::{Attribute, Descriptor, Kind};
use cudarc::cudnn::sys;
use std::sync::Arc;
use sys::cudnnBackendHeurMode_t as Mode;
use sys::cudnnBackendNumericalNote_t as Note;

/// Bytes that addresses of tensors are multiples of.
const ALIGNMENT: i64 = 16;

/// Engines that a heuristic is asked for, each perhaps with several settings.
const ENGINES: usize = 32;

/// Settings of one engine among the plans.
const SETTINGS: usize = 2;

/// The device that is planned for.
pub(super) enum Device {
    /// The one of a handle's context.
    Present(u64),
    /// One that is described, and need not be there.
    #[cfg(test)]
    Described(Descriptor),
}

impl Device {
    /// Tells a descriptor, by one of its two attributes.
    fn tell(
        &self,
        to: &Descriptor,
        [handle, properties]: [Option<Attribute>; 2],
    ) -> Result<(), DriverError> {
        match (self, handle, properties) {
            (&Device::Present(there), Some(handle), _) => {
                to.set(handle, &[there as sys::cudnnHandle_t])
            }
            #[cfg(test)]
            (Device::Described(device), _, Some(properties)) => to.set_to(properties, &[device]),
            _ => Ok(()),
        }
    }
}

/// Where the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On the device, at an address that a run names.
    Device,
    /// At an address in the host's memory, which is read before a run's call returns.
    Host,
    /// Nowhere: one operation hands them to another.
    Virtual,
}

/// Operations on tensors, as they are put together.
#[derive(Default)]
pub(super) struct Operations {
    /// Descriptors that others were made of.
    kept: Vec<Descriptor>,
    operations: Vec<Descriptor>,
}

impl Operations {
    /// A tensor by a number of its own, by which a run names its address; extents and strides are in
    /// elements.
    pub(super) fn tensor(
        number: i64,
        place: Place,
        dtype: sys::cudnnDataType_t,
        [extents, strides]: [&[i64]; 2],
    ) -> Result<Descriptor, DriverError> {
        let made = Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        made.set(Attribute::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[number])?;
        made.set(Attribute::CUDNN_ATTR_TENSOR_DATA_TYPE, &[dtype])?;
        made.set(Attribute::CUDNN_ATTR_TENSOR_DIMENSIONS, extents)?;
        made.set(Attribute::CUDNN_ATTR_TENSOR_STRIDES, strides)?;
        made.set(Attribute::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNMENT])?;
        match place {
            Place::Device => {}
            Place::Host => made.set(Attribute::CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[true])?,
            Place::Virtual => made.set(Attribute::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[true])?,
        }
        made.finalized()
    }

    /// Adds an operation and what it was made of.
    pub(super) fn add(&mut self, operation: Descriptor, of: impl IntoIterator<Item = Descriptor>) {
        self.operations.push(operation);
        self.kept.extend(of);
    }

    /// Keeps what operations were made of.
    pub(super) fn keep(&mut self, of: impl IntoIterator<Item = Descriptor>) {
        self.kept.extend(of);
    }

    /// The operations as one graph.
    fn graph(self, device: &Device) -> Result<Graph, DriverError> {
        let graph = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        device.tell(&graph, [Some(Attribute::CUDNN_ATTR_OPERATIONGRAPH_HANDLE), None])?;
        let operations: Vec<_> = self.operations.iter().collect();
        graph.set_to(Attribute::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations)?;
        Ok(Graph { graph: graph.finalized()?, _of: self })
    }
}

struct Graph {
    graph: Descriptor,
    _of: Operations,
}

/// What plans are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Factors may be rounded to what tensor cores multiply.
    pub(super) rounds: bool,
    /// Bytes of workspace at most.
    pub(super) workspace: u64,
    /// So many plans at most.
    pub(super) plans: usize,
}

/// A way to run a graph.
pub(super) struct Plan {
    plan: Descriptor,
    /// The library's number of the engine.
    pub(super) engine: i64,
    /// Bytes of workspace.
    pub(super) workspace: u64,
    /// It multiplies by tensor cores.
    pub(super) by_tensor_cores: bool,
    /// It always gives the same bits.
    pub(super) deterministic: bool,
    _graph: Arc<Graph>,
    _config: Descriptor,
}

/// Plans for the operations, in the order in which the library would choose.
///
/// # Errors
/// The library does not take the operations, or fails.
pub(super) fn plans(
    operations: Operations,
    device: &Device,
    wanted: Wanted,
) -> Result<Vec<Plan>, DriverError> {
    let graph = Arc::new(operations.graph(device)?);
    let mut found: Vec<Plan> = Vec::new();
    for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
        let heuristic = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        device.tell(&heuristic, [None, Some(Attribute::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP)])?;
        heuristic.set_to(Attribute::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&graph.graph])?;
        heuristic.set(Attribute::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?;
        // One of the two may have nothing to say of a graph.
        let Ok(heuristic) = heuristic.finalized() else { continue };
        let kind = Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
        let results = Attribute::CUDNN_ATTR_ENGINEHEUR_RESULTS;
        for config in heuristic.others(results, kind, ENGINES)? {
            if found.len() == wanted.plans {
                return Ok(found);
            }
            found.extend(plan(&graph, config, device, wanted, &found)?);
        }
    }
    Ok(found)
}

/// The plan of an engine, if it is such as is wanted, and not one too many of that engine.
fn plan(
    graph: &Arc<Graph>,
    config: Descriptor,
    device: &Device,
    wanted: Wanted,
    found: &[Plan],
) -> Result<Option<Plan>, DriverError> {
    let kind = Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR;
    let engines = config.others(Attribute::CUDNN_ATTR_ENGINECFG_ENGINE, kind, 1)?;
    let [engine] = &engines[..] else { return Ok(None) };
    let notes = engine.notes(Attribute::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE)?;
    let has = |note: Note| notes.contains(&(note as u32));
    let by_tensor_cores = has(Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    let rounds = by_tensor_cores || has(Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
    // Sums are of `f32` whatever is multiplied.
    if has(Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) || (rounds && !wanted.rounds) {
        return Ok(None);
    }
    let number = engine.number(Attribute::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?;
    if found.iter().filter(|plan| plan.engine == number).count() == SETTINGS {
        return Ok(None);
    }
    let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    let of = [
        Some(Attribute::CUDNN_ATTR_EXECUTION_PLAN_HANDLE),
        Some(Attribute::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP),
    ];
    device.tell(&plan, of)?;
    plan.set_to(Attribute::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[&config])?;
    // The engine is the last to know: what a heuristic names may not be possible after all.
    let Ok(plan) = plan.finalized() else { return Ok(None) };
    let workspace = plan.number(Attribute::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
    let Ok(workspace) = u64::try_from(workspace) else { return Ok(None) };
    let made = Plan {
        plan,
        engine: number,
        workspace,
        by_tensor_cores,
        deterministic: !has(Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC),
        _graph: Arc::clone(graph),
        _config: config,
    };
    Ok((workspace <= wanted.workspace).then_some(made))
}

impl Plan {
    /// Runs it on the handle's stream: tensors by their numbers, and a workspace of its size.
    ///
    /// # Safety
    /// Addresses are those of tensors as they were described, in the handle's context, and stay valid
    /// until the stream has come so far.
    pub(super) unsafe fn run(
        &self,
        handle: u64,
        tensors: &[(i64, u64)],
        workspace: u64,
    ) -> Result<(), DriverError> {
        let numbers: Vec<i64> = tensors.iter().map(|t| t.0).collect();
        let pointer = |address: u64| address as *mut std::ffi::c_void;
        let addresses: Vec<_> = tensors.iter().map(|t| pointer(t.1)).collect();
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(Attribute::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &numbers)?;
        pack.set(Attribute::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?;
        pack.set(Attribute::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[pointer(workspace)])?;
        let pack = pack.finalized()?;
        // SAFETY: the caller's promise.
        unsafe { self.plan.execute(handle as sys::cudnnHandle_t, &pack) }
    }
}
