//! cuDNN's functions, from the library that the system's loader finds under its versioned name.
//!
//! `cudarc`, whose types these are, asks for `libcudnn.so` before `libcudnn.so.9`. The first name comes with a
//! system's files for developers, the second with every cuDNN, and PyTorch's package has the second alone: an older
//! cuDNN of the system would be taken instead of the one in `LD_LIBRARY_PATH`.

#![allow(non_snake_case, reason = "functions have the library's names")]

use super::super::super::driver::DriverError;
use cudarc::cudnn::sys::*;
use libloading::Library;
use std::ffi::{c_int, c_void};
use std::sync::LazyLock;

/// The library, by the major version whose numbers and structures are those that are used here.
const LIBRARY: &str = if cfg!(windows) { "cudnn64_9.dll" } else { "libcudnn.so.9" };

/// Looks a function up.
///
/// # Safety
/// The library has no function of this name and of another type.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|f| *f).map_err(|_| format!("the cuDNN that is found here has no function {name}"))
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $of:ty),*);)*) => {
        /// All that is called here; it stays loaded.
        struct Functions {
            _library: Library,
            version: usize,
            $($name: unsafe extern "C" fn($($of),*) -> cudnnStatus_t,)*
        }

        impl Functions {
            fn load() -> Result<Functions, String> {
                // SAFETY: NVIDIA's library, whose functions have the types of its header.
                unsafe {
                    let library = Library::new(LIBRARY)
                        .map_err(|_| format!("there is no cuDNN here ({LIBRARY})"))?;
                    let get_version: unsafe extern "C" fn() -> usize =
                        function(&library, "cudnnGetVersion")?;
                    Ok(Functions {
                        version: get_version(),
                        $($name: function(&library, stringify!($name))?,)*
                        _library: library,
                    })
                }
            }
        }

        $(
            /// The library's function; an error where there is no library.
            ///
            /// # Safety
            /// As its manual says.
            pub(super) unsafe fn $name($($argument: $of),*) -> cudnnStatus_t {
                match &*LOADED {
                    // SAFETY: the caller's promise.
                    Ok(functions) => unsafe { (functions.$name)($($argument),*) },
                    Err(_) => cudnnStatus_t::CUDNN_STATUS_NOT_INITIALIZED,
                }
            }
        )*
    };
}

functions! {
    cudnnAddTensor(
        handle: cudnnHandle_t, alpha: *const c_void, of_a: cudnnTensorDescriptor_t, a: *const c_void,
        beta: *const c_void, of_c: cudnnTensorDescriptor_t, c: *mut c_void
    );
    cudnnBackendCreateDescriptor(kind: cudnnBackendDescriptorType_t, made: *mut cudnnBackendDescriptor_t);
    cudnnBackendDestroyDescriptor(descriptor: cudnnBackendDescriptor_t);
    cudnnBackendExecute(
        handle: cudnnHandle_t, plan: cudnnBackendDescriptor_t, pack: cudnnBackendDescriptor_t
    );
    cudnnBackendFinalize(descriptor: cudnnBackendDescriptor_t);
    cudnnBackendGetAttribute(
        descriptor: cudnnBackendDescriptor_t, which: cudnnBackendAttributeName_t,
        ty: cudnnBackendAttributeType_t, most: i64, count: *mut i64, values: *mut c_void
    );
    cudnnBackendSetAttribute(
        descriptor: cudnnBackendDescriptor_t, which: cudnnBackendAttributeName_t,
        ty: cudnnBackendAttributeType_t, count: i64, values: *const c_void
    );
    cudnnCreate(made: *mut cudnnHandle_t);
    cudnnCreateTensorDescriptor(made: *mut cudnnTensorDescriptor_t);
    cudnnDestroy(handle: cudnnHandle_t);
    cudnnDestroyTensorDescriptor(descriptor: cudnnTensorDescriptor_t);
    cudnnSetStream(handle: cudnnHandle_t, stream: cudaStream_t);
    cudnnSetTensor4dDescriptor(
        descriptor: cudnnTensorDescriptor_t, format: cudnnTensorFormat_t, ty: cudnnDataType_t,
        images: c_int, channels: c_int, height: c_int, width: c_int
    );
}

static LOADED: LazyLock<Result<Functions, String>> = LazyLock::new(Functions::load);

/// The version of the library.
///
/// # Errors
/// It is not there, or lacks a function.
pub(super) fn version() -> Result<usize, DriverError> {
    match &*LOADED {
        Ok(functions) => Ok(functions.version),
        Err(why) => Err(DriverError::Missing(why.clone())),
    }
}
