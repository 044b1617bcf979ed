//! Convolutions by cuDNN, through its functions that take an algorithm by its number: these
//! allocate nothing, and say what they need and whether they give the same bits each time.

use super::super::driver::{DriverError, StreamHandle};
use super::super::work::Request;
use super::ready::{Ready, has_all};
use arenic_backends::cuda::library::{Convolution, Direction};
use arenic_ir::{DType, Math};
use cudarc::cudnn::result::{self, CudnnError};
use cudarc::cudnn::sys;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use sys::cudnnConvolutionBwdDataAlgo_t as InputGradientAlgorithm;
use sys::cudnnConvolutionBwdFilterAlgo_t as FilterGradientAlgorithm;
use sys::cudnnConvolutionFwdAlgo_t as ForwardAlgorithm;
use sys::cudnnMathType_t as MathType;

/// Ways that are asked for: more than there are.
const WAYS: usize = 24;

/// All that is called here.
const SYMBOLS: [&str; 25] = [
    "cudnnAddTensor",
    "cudnnConvolutionBackwardData",
    "cudnnConvolutionBackwardFilter",
    "cudnnConvolutionForward",
    "cudnnCreate",
    "cudnnCreateConvolutionDescriptor",
    "cudnnCreateFilterDescriptor",
    "cudnnCreateTensorDescriptor",
    "cudnnDestroy",
    "cudnnDestroyConvolutionDescriptor",
    "cudnnDestroyFilterDescriptor",
    "cudnnDestroyTensorDescriptor",
    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    "cudnnGetConvolutionBackwardDataWorkspaceSize",
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnGetConvolutionForwardWorkspaceSize",
    "cudnnGetVersion",
    "cudnnSetConvolution2dDescriptor",
    "cudnnSetConvolutionGroupCount",
    "cudnnSetConvolutionMathType",
    "cudnnSetFilter4dDescriptor",
    "cudnnSetStream",
    "cudnnSetTensor4dDescriptor",
];

/// The major version whose numbers and structures are those that are used here.
const MAJOR: usize = 9;

fn failed(call: &'static str) -> impl Fn(CudnnError) -> DriverError {
    move |e| DriverError::Failed { call, message: e.to_string() }
}

/// The library, in the context that was current when it was made.
pub(super) struct Dnn {
    handle: u64,
}

/// A convolution in one way.
pub(super) struct ConvolutionCall {
    descriptors: Descriptors,
    way: Way,
    workspace: usize,
}

/// An algorithm, by its number.
#[derive(Clone, Copy, Debug)]
enum Way {
    Forward(ForwardAlgorithm),
    InputGradient(InputGradientAlgorithm),
    FilterGradient(FilterGradientAlgorithm),
}

/// What the library says of an algorithm.
struct Found {
    way: Way,
    status: sys::cudnnStatus_t,
    determinism: sys::cudnnDeterminism_t,
    math: MathType,
}

/// A convolution as the library knows it; zero where something was not made.
#[derive(Default)]
struct Descriptors {
    input: u64,
    output: u64,
    filter: u64,
    convolution: u64,
    bias: u64,
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: each was made by the library, or never, and is given back once.
        unsafe {
            for tensor in [self.input, self.output, self.bias].into_iter().filter(|&t| t != 0) {
                let _ = result::destroy_tensor_descriptor(tensor as sys::cudnnTensorDescriptor_t);
            }
            if self.filter != 0 {
                let filter = self.filter as sys::cudnnFilterDescriptor_t;
                let _ = result::destroy_filter_descriptor(filter);
            }
            if self.convolution != 0 {
                let _ = result::destroy_convolution_descriptor(self.convolution());
            }
        }
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        // SAFETY: made by the library, given back once.
        let _ = unsafe { result::destroy_handle(self.handle()) };
    }
}

impl Descriptors {
    fn new(c: &Convolution, math: MathType) -> Result<Descriptors, DriverError> {
        let layout = match c.channels_last {
            true => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
            false => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
        };
        let tensor = |extents| tensor(c.dtype, layout, extents);
        let mut made = Descriptors { input: tensor(c.input)?, ..Descriptors::default() };
        made.output = tensor(c.output)?;
        if c.bias {
            let result = match c.direction {
                Direction::Forward => c.output,
                Direction::InputGradient => c.input,
                Direction::FilterGradient => c.filter,
            };
            made.bias = tensor([1, result[1], 1, 1])?;
        }
        made.filter = result::create_filter_descriptor()
            .map_err(failed("cudnnCreateFilterDescriptor"))? as u64;
        made.convolution = result::create_convolution_descriptor()
            .map_err(failed("cudnnCreateConvolutionDescriptor"))? as u64;
        let of = |pair: [usize; 2]| pair.map(|n| n as i32);
        let ([pad_h, pad_w], [u, v], [d_h, d_w]) = (of(c.pads), of(c.strides), of(c.dilations));
        let stored = stored(c.dtype);
        // The window is not turned around.
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let convolution = made.convolution();
        // SAFETY: these were made.
        unsafe {
            let extents = c.filter.map(|n| n as i32);
            result::set_filter4d_descriptor(made.filter(), stored, layout, extents)
                .map_err(failed("cudnnSetFilter4dDescriptor"))?;
            result::set_convolution2d_descriptor(
                convolution,
                pad_h,
                pad_w,
                u,
                v,
                d_h,
                d_w,
                mode,
                FLOAT,
            )
            .map_err(failed("cudnnSetConvolution2dDescriptor"))?;
            result::set_convolution_group_count(convolution, c.group as i32)
                .map_err(failed("cudnnSetConvolutionGroupCount"))?;
            result::set_convolution_math_type(convolution, math)
                .map_err(failed("cudnnSetConvolutionMathType"))?;
        }
        Ok(made)
    }

    fn input(&self) -> sys::cudnnTensorDescriptor_t {
        self.input as sys::cudnnTensorDescriptor_t
    }

    fn output(&self) -> sys::cudnnTensorDescriptor_t {
        self.output as sys::cudnnTensorDescriptor_t
    }

    fn filter(&self) -> sys::cudnnFilterDescriptor_t {
        self.filter as sys::cudnnFilterDescriptor_t
    }

    fn convolution(&self) -> sys::cudnnConvolutionDescriptor_t {
        self.convolution as sys::cudnnConvolutionDescriptor_t
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

fn tensor(
    dtype: DType,
    layout: sys::cudnnTensorFormat_t,
    extents: [usize; 4],
) -> Result<u64, DriverError> {
    let made = result::create_tensor_descriptor().map_err(failed("cudnnCreateTensorDescriptor"))?;
    // SAFETY: it was made, and is given back where nobody will.
    unsafe {
        let set =
            result::set_tensor4d_descriptor(made, layout, stored(dtype), extents.map(|n| n as i32));
        if let Err(e) = set {
            let _ = result::destroy_tensor_descriptor(made);
            return Err(failed("cudnnSetTensor4dDescriptor")(e));
        }
    }
    Ok(made as u64)
}

impl Dnn {
    pub(super) fn new() -> Result<Dnn, DriverError> {
        // SAFETY: loads a library by its name, and looks for symbols.
        let is_present = unsafe { sys::is_culib_present() };
        if !is_present {
            let message = "there is no cuDNN here (libcudnn.so.9)".to_owned();
            return Err(DriverError::Missing(message));
        }
        has_all("cuDNN", &SYMBOLS, |symbol| {
            // SAFETY: as above; what the symbol is stays unused.
            unsafe { sys::culib().get::<*const c_void>(symbol.as_bytes()).is_ok() }
        })?;
        let version = result::get_version();
        // From 9 on versions have five digits, before that four.
        if version / 10_000 != MAJOR {
            return Err(DriverError::Missing(format!(
                "the cuDNN that is found here has the version {version}; {MAJOR}.x is needed"
            )));
        }
        let handle = result::create_handle().map_err(failed("cudnnCreate"))?;
        Ok(Dnn { handle: handle as u64 })
    }

    fn handle(&self) -> sys::cudnnHandle_t {
        self.handle as sys::cudnnHandle_t
    }

    pub(super) fn candidates(
        &self,
        convolution: &Convolution,
        request: &Request,
    ) -> Result<Vec<Ready<ConvolutionCall>>, DriverError> {
        let allowed = match convolution.math {
            // Of `bf16` as they are stored: nothing is rounded once more.
            _ if convolution.dtype == DType::Bf16 => MathType::CUDNN_TENSOR_OP_MATH,
            Math::F32 => MathType::CUDNN_FMA_MATH,
            Math::Tf32 => MathType::CUDNN_DEFAULT_MATH,
        };
        let asked = Descriptors::new(convolution, allowed)?;
        let mut ready: Vec<Ready<ConvolutionCall>> = Vec::new();
        for found in self.ways(convolution.direction, &asked)? {
            // What the library would do by other means, it does here as it is told.
            let math = match convolution.math {
                _ if convolution.dtype == DType::Bf16 => found.math,
                Math::F32 => MathType::CUDNN_FMA_MATH,
                Math::Tf32 => found.math,
            };
            let name = format!("cuDNN {:?} {math:?}", found.way);
            if found.status != sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS
                || ready.iter().any(|known| known.name == name)
            {
                continue;
            }
            let descriptors = Descriptors::new(convolution, math)?;
            // It is the last to know: what it suggested may not be possible after all.
            let Ok(workspace) = self.workspace(&descriptors, found.way) else { continue };
            if workspace as u64 > request.workspace {
                continue;
            }
            ready.push(Ready {
                name,
                workspace: workspace as u64,
                deterministic: found.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC,
                call: ConvolutionCall { descriptors, way: found.way, workspace },
            });
        }
        Ok(ready)
    }

    /// What the library would do, the best first.
    fn ways(&self, direction: Direction, d: &Descriptors) -> Result<Vec<Found>, DriverError> {
        // Each direction has a function, an order of operands and structures of its own.
        macro_rules! ask {
            ($function:ident($($operand:expr),*) as $perf:ident, $way:expr) => {{
                let mut all: [MaybeUninit<sys::$perf>; WAYS] = [MaybeUninit::zeroed(); WAYS];
                let mut count = 0;
                // SAFETY: these were made; there is room for so many, and as many are filled as is
                // said.
                unsafe {
                    let (most, to) = (WAYS as i32, all.as_mut_ptr().cast());
                    sys::$function(self.handle(), $($operand),*, most, &raw mut count, to)
                        .result()
                        .map_err(failed(stringify!($function)))?;
                    let count = (count.max(0) as usize).min(WAYS);
                    let found = all[..count].iter().map(|p| p.assume_init()).map(|p| Found {
                        way: $way(p.algo),
                        status: p.status,
                        determinism: p.determinism,
                        math: p.mathType,
                    });
                    found.collect()
                }
            }};
        }
        Ok(match direction {
            Direction::Forward => ask!(
                cudnnGetConvolutionForwardAlgorithm_v7(
                    d.input(),
                    d.filter(),
                    d.convolution(),
                    d.output()
                ) as cudnnConvolutionFwdAlgoPerf_t,
                Way::Forward
            ),
            Direction::InputGradient => ask!(
                cudnnGetConvolutionBackwardDataAlgorithm_v7(
                    d.filter(),
                    d.output(),
                    d.convolution(),
                    d.input()
                ) as cudnnConvolutionBwdDataAlgoPerf_t,
                Way::InputGradient
            ),
            Direction::FilterGradient => ask!(
                cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                    d.input(),
                    d.output(),
                    d.convolution(),
                    d.filter()
                ) as cudnnConvolutionBwdFilterAlgoPerf_t,
                Way::FilterGradient
            ),
        })
    }

    fn workspace(&self, d: &Descriptors, way: Way) -> Result<usize, CudnnError> {
        // SAFETY: these were made.
        unsafe {
            match way {
                Way::Forward(algorithm) => result::get_convolution_forward_workspace_size(
                    self.handle(),
                    d.input(),
                    d.filter(),
                    d.convolution(),
                    d.output(),
                    algorithm,
                ),
                Way::InputGradient(algorithm) => {
                    result::get_convolution_backward_data_workspace_size(
                        self.handle(),
                        d.filter(),
                        d.output(),
                        d.convolution(),
                        d.input(),
                        algorithm,
                    )
                }
                Way::FilterGradient(algorithm) => {
                    result::get_convolution_backward_filter_workspace_size(
                        self.handle(),
                        d.input(),
                        d.output(),
                        d.convolution(),
                        d.filter(),
                        algorithm,
                    )
                }
            }
        }
    }

    /// # Safety
    /// As for [`Driver::call`](super::super::driver::Driver::call).
    pub(super) unsafe fn call(
        &self,
        call: &ConvolutionCall,
        stream: StreamHandle,
        addresses: &[u64],
        workspace: u64,
    ) -> Result<(), DriverError> {
        let d = &call.descriptors;
        let (&to, operands) = addresses.split_last().unwrap_or((&0, &[]));
        let (x, w) = (operands[0] as *const c_void, operands[1] as *const c_void);
        let to = to as *mut c_void;
        // Scalars are floats, which are read before the calls return.
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero): (*const c_void, *const c_void) =
            ((&raw const one).cast(), (&raw const zero).cast());
        let (bytes, workspace) = (call.workspace, workspace as *mut c_void);
        // SAFETY: what was made for this convolution; addresses are the caller's promise.
        unsafe {
            result::set_stream(self.handle(), stream.0 as sys::cudaStream_t)
                .map_err(failed("cudnnSetStream"))?;
            let (made, name) = match call.way {
                Way::Forward(algorithm) => {
                    let made = result::convolution_forward(
                        self.handle(),
                        one,
                        d.input(),
                        x,
                        d.filter(),
                        w,
                        d.convolution(),
                        algorithm,
                        workspace,
                        bytes,
                        zero,
                        d.output(),
                        to,
                    );
                    (made, "cudnnConvolutionForward")
                }
                Way::InputGradient(algorithm) => {
                    let made = result::convolution_backward_data(
                        self.handle(),
                        one,
                        d.filter(),
                        w,
                        d.output(),
                        x,
                        d.convolution(),
                        algorithm,
                        workspace,
                        bytes,
                        zero,
                        d.input(),
                        to,
                    );
                    (made, "cudnnConvolutionBackwardData")
                }
                Way::FilterGradient(algorithm) => {
                    let made = result::convolution_backward_filter(
                        self.handle(),
                        one,
                        d.input(),
                        x,
                        d.output(),
                        w,
                        d.convolution(),
                        algorithm,
                        workspace,
                        bytes,
                        zero,
                        d.filter(),
                        to,
                    );
                    (made, "cudnnConvolutionBackwardFilter")
                }
            };
            made.map_err(failed(name))?;
            if d.bias == 0 {
                return Ok(());
            }
            let result = match call.way {
                Way::Forward(_) => d.output(),
                Way::InputGradient(_) => d.input(),
                // A weight's gradient has no bias (`library::describe`).
                Way::FilterGradient(_) => return Ok(()),
            };
            let (bias, of) = (operands[2] as *const c_void, d.bias as sys::cudnnTensorDescriptor_t);
            sys::cudnnAddTensor(self.handle(), one, of, bias, one, result, to)
                .result()
                .map_err(failed("cudnnAddTensor"))
        }
    }
}
