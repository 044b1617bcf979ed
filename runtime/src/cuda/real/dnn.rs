//! Convolutions and attentions by cuDNN, through its graph interface: heuristics name engines for the
//! device, the best first, and each says what workspace it needs and whether it gives the same bits
//! each time. Nothing is allocated on the device.

mod attention;
mod convolution;
mod descriptor;
mod functions;
mod plan;
#[cfg(test)]
mod tests;

use super::super::driver::{DriverError, StreamHandle};
use super::super::work::Request;
use super::ready::Ready;
use arenic_backends::cuda::library::{Attention, Convolution, Direction};
use arenic_ir::{DType, Math};
use attention::Sums;
use cudarc::cudnn::sys;
use plan::{Device, Plan, Wanted};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Ways that are asked for.
const WAYS: usize = 5;

/// The major version whose numbers and structures are those that are used here.
const MAJOR: usize = 9;

/// The first version whose attentions are taken. Before it gradients over keys that are no multiple of
/// 128 were wrong, and 9.10 had other mistakes; NVIDIA's frontend refuses those or goes around them.
const ATTENTIONS_FROM: usize = 91_501;

/// What parts of a workspace begin at a multiple of, in bytes.
const PART: u64 = 256;

fn checked(call: &'static str, status: sys::cudnnStatus_t) -> Result<(), DriverError> {
    let failed =
        |e: cudarc::cudnn::CudnnError| DriverError::Failed { call, message: e.to_string() };
    status.result().map_err(failed)
}

/// The library, in the context that was current when it was made.
pub(super) struct Dnn {
    handle: u64,
    device: Device,
}

/// A convolution or an attention in one way.
pub(super) struct DnnCall {
    plan: Plan,
    /// The numbers of the plan's tensors, which of the call's addresses each has, and how many bytes
    /// behind it each begins.
    tensors: Vec<(i64, usize, u64)>,
    /// Scalars by their numbers: the plan reads them here, where they stay as long as the call does.
    scalars: Vec<(i64, f32)>,
    /// Tensors between operations, and where each begins in the workspace.
    between: Vec<(i64, u64)>,
    /// Where the plan's own workspace begins.
    own: u64,
    bias: Option<Bias>,
}

impl Drop for Dnn {
    fn drop(&mut self) {
        // SAFETY: made by the library, given back once.
        let _ = unsafe { functions::cudnnDestroy(self.handle()) };
    }
}

/// What sums and factors are, whatever is stored.
const FLOAT: sys::cudnnDataType_t = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;

fn stored(dtype: DType) -> sys::cudnnDataType_t {
    match dtype {
        DType::Bf16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        _ => FLOAT,
    }
}

/// What is added to a result: an element for each channel. No engine of a gradient adds it.
#[derive(Default)]
struct Bias {
    bias: u64,
    result: u64,
}

impl Bias {
    /// Of a convolution that has one; a weight's gradient has none (`library::describe`).
    fn of(c: &Convolution) -> Result<Option<Bias>, DriverError> {
        let result = match c.direction {
            Direction::Forward => c.output,
            Direction::InputGradient => c.input,
            Direction::FilterGradient => return Ok(None),
        };
        if !c.bias {
            return Ok(None);
        }
        let layout = match c.channels_last {
            true => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
            false => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
        };
        let mut made = Bias::default();
        for (to, extents) in [(&mut made.bias, [1, result[1], 1, 1]), (&mut made.result, result)] {
            let mut tensor = null_mut();
            // SAFETY: the library writes one handle.
            let made = unsafe { functions::cudnnCreateTensorDescriptor(&raw mut tensor) };
            checked("cudnnCreateTensorDescriptor", made)?;
            *to = tensor as u64;
            let ([n, channels, h, w], ty) = (extents.map(|n| n as i32), stored(c.dtype));
            // SAFETY: it was made.
            let set = unsafe {
                functions::cudnnSetTensor4dDescriptor(tensor, layout, ty, n, channels, h, w)
            };
            checked("cudnnSetTensor4dDescriptor", set)?;
        }
        Ok(Some(made))
    }
}

impl Drop for Bias {
    fn drop(&mut self) {
        for tensor in [self.bias, self.result].into_iter().filter(|&t| t != 0) {
            // SAFETY: made by the library, given back once.
            let _ = unsafe {
                functions::cudnnDestroyTensorDescriptor(tensor as sys::cudnnTensorDescriptor_t)
            };
        }
    }
}

/// What plans of a convolution are wanted.
fn wanted(c: &Convolution, workspace: u64) -> Wanted {
    // Of `bf16` as they are stored: nothing is rounded once more.
    let rounds = c.dtype == DType::Bf16 || c.math == Math::Tf32;
    Wanted { rounds, workspace, plans: WAYS }
}

/// Calls of an attention, those first that always give the same bits; as many of either kind as are
/// wanted.
fn attentions(a: &Attention, device: &Device, wanted: Wanted) -> Result<Vec<DnnCall>, DriverError> {
    let mut calls = Vec::new();
    // NVIDIA's frontend asks no engine for these, though one would answer.
    if a.gradients && a.queries == 1 && a.keys == 1 {
        return Ok(calls);
    }
    for sums in attention::sums(a) {
        let mut own = 0;
        let between = attention::between(a, *sums).into_iter().map(|(number, bytes)| {
            let at = own;
            own = bytes.div_ceil(PART).saturating_mul(PART).saturating_add(own);
            (number, at)
        });
        let between: Vec<_> = between.collect();
        let Some(workspace) = wanted.workspace.checked_sub(own) else { continue };
        let wanted = Wanted { workspace, ..wanted };
        for mut plan in plan::plans(attention::operations(a, *sums)?, device, wanted)? {
            plan.deterministic &= *sums == Sums::Ordered;
            calls.push(DnnCall {
                plan,
                tensors: attention::tensors(a),
                scalars: attention::scalars(a),
                between: between.clone(),
                own,
                bias: None,
            });
        }
    }
    Ok(calls)
}

/// Calls with their names, by their plans.
fn ready(calls: Vec<DnnCall>) -> Vec<Ready<DnnCall>> {
    let named = calls.into_iter().enumerate().map(|(number, call)| {
        let cores = if call.plan.by_tensor_cores { ", tensor cores" } else { "" };
        Ready {
            name: format!("cuDNN plan {number}, engine {}{cores}", call.plan.engine),
            workspace: call.own + call.plan.workspace,
            deterministic: call.plan.deterministic,
            call,
        }
    });
    named.collect()
}

impl Dnn {
    pub(super) fn new() -> Result<Dnn, DriverError> {
        is_there()?;
        let mut handle = null_mut();
        // SAFETY: the library writes one handle.
        checked("cudnnCreate", unsafe { functions::cudnnCreate(&raw mut handle) })?;
        let handle = handle as u64;
        Ok(Dnn { handle, device: Device::Present(handle) })
    }

    fn handle(&self) -> sys::cudnnHandle_t {
        self.handle as sys::cudnnHandle_t
    }

    pub(super) fn convolutions(
        &self,
        c: &Convolution,
        request: &Request,
    ) -> Result<Vec<Ready<DnnCall>>, DriverError> {
        let operations = convolution::operations(c)?;
        let plans = plan::plans(operations, &self.device, wanted(c, request.workspace))?;
        let [first, second, last] = convolution::order(c.direction);
        let tensors = vec![(first, 0, 0), (second, 1, 0), (last, if c.bias { 3 } else { 2 }, 0)];
        let calls = plans.into_iter().map(|plan| {
            Ok(DnnCall {
                plan,
                tensors: tensors.clone(),
                scalars: Vec::new(),
                between: Vec::new(),
                own: 0,
                bias: Bias::of(c)?,
            })
        });
        Ok(ready(calls.collect::<Result<_, DriverError>>()?))
    }

    pub(super) fn attentions(
        &self,
        a: &Attention,
        request: &Request,
    ) -> Result<Vec<Ready<DnnCall>>, DriverError> {
        takes_attentions(functions::version()?)?;
        // As they are stored, elements are what tensor cores multiply.
        let rounds = a.dtype == DType::Bf16;
        let wanted = Wanted { rounds, workspace: request.workspace, plans: WAYS };
        Ok(ready(attentions(a, &self.device, wanted)?))
    }

    /// # Safety
    /// As for [`Driver::call`](super::super::driver::Driver::call).
    pub(super) unsafe fn call(
        &self,
        call: &DnnCall,
        stream: StreamHandle,
        addresses: &[u64],
        workspace: u64,
    ) -> Result<(), DriverError> {
        let to = addresses.last().copied().unwrap_or(0);
        let given = call.tensors.iter().map(|&(number, at, first)| (number, addresses[at] + first));
        let scalars = call.scalars.iter().map(|(number, of)| (*number, (&raw const *of) as u64));
        let between = call.between.iter().map(|&(number, at)| (number, workspace + at));
        let tensors: Vec<_> = given.chain(scalars).chain(between).collect();
        // SAFETY: what was made for this call; addresses are the caller's promise.
        unsafe {
            let set = functions::cudnnSetStream(self.handle(), stream.0 as sys::cudaStream_t);
            checked("cudnnSetStream", set)?;
            call.plan.run(self.handle, &tensors, workspace + call.own)?;
            let Some(added) = &call.bias else { return Ok(()) };
            // Scalars are floats, which are read before the call returns.
            let one = 1.0f32;
            let one = (&raw const one).cast();
            let of = |tensor: u64| tensor as sys::cudnnTensorDescriptor_t;
            let (x, y) = (addresses[2] as *const c_void, to as *mut c_void);
            let made = functions::cudnnAddTensor(
                self.handle(),
                one,
                of(added.bias),
                x,
                one,
                of(added.result),
                y,
            );
            checked("cudnnAddTensor", made)
        }
    }
}

/// Refuses attentions of a version that has mistakes in them.
fn takes_attentions(version: usize) -> Result<(), DriverError> {
    if version < ATTENTIONS_FROM {
        return Err(DriverError::Missing(format!(
            "the cuDNN that is found here has the version {version}; attentions are taken from \
             {ATTENTIONS_FROM} on"
        )));
    }
    Ok(())
}

/// Refuses where the library is not there, or another one than is known.
fn is_there() -> Result<(), DriverError> {
    let version = functions::version()?;
    // From 9 on versions have five digits, before that four.
    if version / 10_000 != MAJOR {
        return Err(DriverError::Missing(format!(
            "the cuDNN that is found here has the version {version}; {MAJOR}.x is needed"
        )));
    }
    Ok(())
}
