//! Matrix products by cuBLASLt, which allocates nothing: its workspace is the arena's.

use super::super::driver::{DriverError, StreamHandle};
use super::super::work::Request;
use super::ready::{Ready, has_all};
use arenic_backends::cuda::library::{Added, Epilogue, Matrix, Product};
use arenic_ir::{DType, Math};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use sys::cublasLtMatmulAlgoConfigAttributes_t as Config;
use sys::cublasLtMatmulDescAttributes_t as Attribute;
use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
use sys::cublasLtMatrixLayoutAttribute_t as Layout;
use sys::cublasLtReductionScheme_t as Reduction;

/// Ways that are asked for.
const WAYS: usize = 8;

/// All that is called here.
const SYMBOLS: [&str; 14] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoConfigGetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
];

fn failed(call: &'static str) -> impl Fn(CublasError) -> DriverError {
    move |e| DriverError::Failed { call, message: e.to_string() }
}

/// The library, in the context that was current when it was made.
pub(super) struct Blas {
    handle: u64,
}

/// A product in one way.
pub(super) struct ProductCall {
    descriptors: Arc<Descriptors>,
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    /// How many addresses are those of operands; results follow.
    operands: usize,
}

/// A product as the library knows it.
struct Descriptors {
    product: Product,
    /// Alpha and beta, of which the library reads those of the product's type.
    scalars: [f32; 2],
    wide_scalars: [f64; 2],
    operation: u64,
    /// Those of `a`, `b` and `d`; `c` is stored as `d` is.
    matrices: [u64; 3],
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: each was made by the library, or never, and is given back once.
        unsafe {
            if self.operation != 0 {
                let _ = result::destroy_matmul_desc(self.operation as sys::cublasLtMatmulDesc_t);
            }
            for matrix in self.matrices.into_iter().filter(|&m| m != 0) {
                let _ = result::destroy_matrix_layout(matrix as sys::cublasLtMatrixLayout_t);
            }
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by the library, given back once.
        let _ = unsafe { result::destroy_handle(self.handle as sys::cublasLtHandle_t) };
    }
}

/// The types of elements, and how they are multiplied.
fn types(p: &Product) -> (sys::cudaDataType, sys::cublasComputeType_t) {
    use sys::cublasComputeType_t as Compute;
    match (p.dtype, p.math) {
        (DType::Bf16, _) => (sys::cudaDataType::CUDA_R_16BF, Compute::CUBLAS_COMPUTE_32F),
        (DType::F64, _) => (sys::cudaDataType::CUDA_R_64F, Compute::CUBLAS_COMPUTE_64F),
        (_, Math::F32) => (sys::cudaDataType::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F),
        (_, Math::Tf32) => (sys::cudaDataType::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F_FAST_TF32),
    }
}

/// What is done to the sums.
fn epilogue(p: &Product) -> sys::cublasLtEpilogue_t {
    use sys::cublasLtEpilogue_t::{
        CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DGELU,
        CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_GELU_BIAS,
    };
    match (p.epilogue, p.added == Added::Bias) {
        (Epilogue::Plain, false) => CUBLASLT_EPILOGUE_DEFAULT,
        (Epilogue::Plain, true) => CUBLASLT_EPILOGUE_BIAS,
        (Epilogue::Gelu { keeps_z: false }, false) => CUBLASLT_EPILOGUE_GELU,
        (Epilogue::Gelu { keeps_z: false }, true) => CUBLASLT_EPILOGUE_GELU_BIAS,
        (Epilogue::Gelu { keeps_z: true }, false) => CUBLASLT_EPILOGUE_GELU_AUX,
        (Epilogue::Gelu { keeps_z: true }, true) => CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        (Epilogue::GeluGradient, _) => CUBLASLT_EPILOGUE_DGELU,
    }
}

/// The place in which the library finds the address of the third operand or of the second
/// result.
fn pointers(p: &Product) -> [Option<Attribute>; 2] {
    let beside = Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
    let third = match (p.epilogue, p.added) {
        (Epilogue::GeluGradient, _) => Some(beside),
        (_, Added::Bias) => Some(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER),
        _ => None,
    };
    [third, (p.epilogue == Epilogue::Gelu { keeps_z: true }).then_some(beside)]
}

impl Descriptors {
    fn new(product: &Product) -> Result<Descriptors, DriverError> {
        let p = product;
        let (ty, compute) = types(p);
        let beta = match p.added {
            Added::Matrix(beta) => beta,
            Added::Nothing | Added::Bias => 0.0,
        };
        let mut made = Descriptors {
            product: p.clone(),
            scalars: [p.alpha, beta],
            wide_scalars: [p.alpha.into(), beta.into()],
            operation: 0,
            matrices: [0; 3],
        };
        // Scalars are of the type in which sums are taken.
        let scale = match p.dtype {
            DType::F64 => sys::cudaDataType::CUDA_R_64F,
            _ => sys::cudaDataType::CUDA_R_32F,
        };
        let operation = result::create_matmul_desc(compute, scale)
            .map_err(failed("cublasLtMatmulDescCreate"))?;
        made.operation = operation as u64;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(p.a.transposed))?;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(p.b.transposed))?;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue(p) as u32))?;
        if matches!(p.epilogue, Epilogue::Gelu { keeps_z: true } | Epilogue::GeluGradient) {
            // Its elements are of the result's type where nothing else is said.
            let leading = p.d.leading as i64;
            made.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &leading)?;
        }
        for (i, matrix) in [p.a, p.b, p.d].iter().enumerate() {
            made.matrices[i] = layout(ty, matrix)?;
            if p.batches > 1 {
                made.batch(i, p.batches, matrix.stride)?;
            }
        }
        Ok(made)
    }

    /// Sets an attribute of the product, of a type that the library knows it to have.
    fn set<T>(&self, which: Attribute, to: &T) -> Result<(), DriverError> {
        let (operation, size) = (self.operation as sys::cublasLtMatmulDesc_t, size_of::<T>());
        // SAFETY: a descriptor that was made; the library reads these bytes and no others.
        unsafe {
            result::set_matmul_desc_attribute(operation, which, (&raw const *to).cast(), size)
        }
        .map_err(failed("cublasLtMatmulDescSetAttribute"))
    }

    fn batch(&self, matrix: usize, count: usize, stride: usize) -> Result<(), DriverError> {
        let (count, stride) = (count as i32, stride as i64);
        let matrix = self.matrices[matrix] as sys::cublasLtMatrixLayout_t;
        let failed = failed("cublasLtMatrixLayoutSetAttribute");
        // SAFETY: as above.
        unsafe {
            result::set_matrix_layout_attribute(
                matrix,
                Layout::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                (&raw const count).cast(),
                size_of_val(&count),
            )
            .map_err(&failed)?;
            result::set_matrix_layout_attribute(
                matrix,
                Layout::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                (&raw const stride).cast(),
                size_of_val(&stride),
            )
            .map_err(&failed)
        }
    }

    /// Says where the third operand and the second result are, where the product has them
    /// beside its matrices.
    fn set_pointers(&self, addresses: &[u64], operands: usize) -> Result<(), DriverError> {
        let [third, second] = pointers(&self.product);
        for (attribute, at) in [(third, 2), (second, operands + 1)] {
            if let Some(attribute) = attribute {
                self.set(attribute, &addresses[at])?;
            }
        }
        Ok(())
    }

    fn matrices(&self) -> [sys::cublasLtMatrixLayout_t; 3] {
        self.matrices.map(|m| m as sys::cublasLtMatrixLayout_t)
    }
}

fn layout(ty: sys::cudaDataType, m: &Matrix) -> Result<u64, DriverError> {
    let made = result::create_matrix_layout(ty, m.rows as u64, m.columns as u64, m.leading as i64);
    Ok(made.map_err(failed("cublasLtMatrixLayoutCreate"))? as u64)
}

/// How parts of a sum may be added up: in the workspace, in order, never in the result, and in the
/// type that sums are taken in (`cublasLtReductionScheme_t`: of the output's type, each part would be
/// rounded to `bf16`). Sums in one part are always allowed.
fn reductions(dtype: DType) -> u32 {
    let compute = Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    match dtype {
        DType::Bf16 => compute,
        _ => compute | Reduction::CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE as u32,
    }
}

/// What the library keeps to when it chooses.
struct Preferences(sys::cublasLtMatmulPreference_t);

impl Preferences {
    fn new(p: &Product, request: &Request) -> Result<Preferences, DriverError> {
        let made =
            result::create_matmul_pref().map_err(failed("cublasLtMatmulPreferenceCreate"))?;
        let made = Preferences(made);
        made.set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &request.workspace)?;
        let reductions = reductions(p.dtype);
        made.set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions)?;
        let d = request.call.operands().len();
        let c = if matches!(p.added, Added::Matrix(_)) { 2 } else { d };
        for (which, operand) in [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 0),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 1),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d),
        ] {
            made.set(which, &(request.alignments[operand] as u32))?;
        }
        Ok(made)
    }

    fn set<T>(&self, which: Preference, to: &T) -> Result<(), DriverError> {
        // SAFETY: it was made; the library reads these bytes and no others.
        unsafe {
            let to = (&raw const *to).cast();
            result::set_matmul_pref_attribute(self.0, which, to, size_of::<T>())
        }
        .map_err(failed("cublasLtMatmulPreferenceSetAttribute"))
    }
}

impl Drop for Preferences {
    fn drop(&mut self) {
        // SAFETY: made by the library, given back once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

impl Blas {
    pub(super) fn new() -> Result<Blas, DriverError> {
        // SAFETY: loads a library by its name, and looks for symbols.
        let is_present = unsafe { sys::is_culib_present() };
        if !is_present {
            let message = "there is no cuBLASLt here (libcublasLt.so.13)".to_owned();
            return Err(DriverError::Missing(message));
        }
        has_all("cuBLASLt", &SYMBOLS, |symbol| {
            // SAFETY: as above; what the symbol is stays unused.
            unsafe { sys::culib().get::<*const c_void>(symbol.as_bytes()).is_ok() }
        })?;
        let handle = result::create_handle().map_err(failed("cublasLtCreate"))?;
        Ok(Blas { handle: handle as u64 })
    }

    pub(super) fn candidates(
        &self,
        product: &Product,
        request: &Request,
    ) -> Result<Vec<Ready<ProductCall>>, DriverError> {
        let descriptors = Arc::new(Descriptors::new(product)?);
        // Addresses are others in each call; here their alignment is all that is known.
        descriptors.set_pointers(&request.alignments, request.call.operands().len())?;
        let preferences = Preferences::new(product, request)?;
        let mut found: [MaybeUninit<sys::cublasLtMatmulHeuristicResult_t>; WAYS] =
            [MaybeUninit::zeroed(); WAYS];
        let mut count = 0;
        let [a, b, d] = descriptors.matrices();
        // SAFETY: all of these were made, and there is room for so many ways; the library fills
        // as many as it says.
        let found = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle as sys::cublasLtHandle_t,
                descriptors.operation as sys::cublasLtMatmulDesc_t,
                a,
                b,
                d,
                d,
                preferences.0,
                WAYS as i32,
                found.as_mut_ptr().cast(),
                &raw mut count,
            )
            .result()
            .map_err(failed("cublasLtMatmulAlgoGetHeuristic"))?;
            let count = (count.max(0) as usize).min(WAYS);
            found[..count].iter().map(|way| way.assume_init()).collect::<Vec<_>>()
        };
        let fits = |way: &sys::cublasLtMatmulHeuristicResult_t| {
            way.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
                && way.workspaceSize as u64 <= request.workspace
        };
        let ready = |way: sys::cublasLtMatmulHeuristicResult_t| Ready {
            name: name(&way.algo),
            workspace: way.workspaceSize as u64,
            // Those that add up in the order in which parts end are not asked for.
            deterministic: true,
            call: ProductCall {
                descriptors: Arc::clone(&descriptors),
                algorithm: way.algo,
                workspace: way.workspaceSize,
                operands: request.call.operands().len(),
            },
        };
        Ok(found.into_iter().filter(fits).map(ready).collect())
    }

    /// # Safety
    /// As for [`Driver::call`](super::super::driver::Driver::call).
    pub(super) unsafe fn call(
        &self,
        call: &ProductCall,
        stream: StreamHandle,
        addresses: &[u64],
        workspace: u64,
    ) -> Result<(), DriverError> {
        let made = &*call.descriptors;
        let (operands, results) = addresses.split_at(call.operands);
        made.set_pointers(addresses, call.operands)?;
        let d = results[0];
        let c = if matches!(made.product.added, Added::Matrix(_)) { operands[2] } else { d };
        // Scalars are read before the call returns.
        let [alpha, beta]: [*const c_void; 2] = match made.product.dtype {
            DType::F64 => made.wide_scalars.each_ref().map(|s| (&raw const *s).cast()),
            _ => made.scalars.each_ref().map(|s| (&raw const *s).cast()),
        };
        let [layout_a, layout_b, layout_d] = made.matrices();
        // SAFETY: what was made for this product; addresses are the caller's promise.
        unsafe {
            result::matmul(
                self.handle as sys::cublasLtHandle_t,
                made.operation as sys::cublasLtMatmulDesc_t,
                alpha,
                beta,
                operands[0] as *const c_void,
                layout_a,
                operands[1] as *const c_void,
                layout_b,
                c as *const c_void,
                layout_d,
                d as *mut c_void,
                layout_d,
                &raw const call.algorithm,
                workspace as *mut c_void,
                call.workspace,
                stream.0 as sys::cudaStream_t,
            )
        }
        .map_err(failed("cublasLtMatmul"))
    }
}

/// What the library calls an algorithm; numbers that it does not tell are −1.
fn name(algorithm: &sys::cublasLtMatmulAlgo_t) -> String {
    let [id, tile, parts] = [
        Config::CUBLASLT_ALGO_CONFIG_ID,
        Config::CUBLASLT_ALGO_CONFIG_TILE_ID,
        Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
    ]
    .map(|which| {
        let (mut figure, mut written) = (-1i32, 0);
        // SAFETY: these attributes have four bytes.
        let status = unsafe {
            sys::cublasLtMatmulAlgoConfigGetAttribute(
                &raw const *algorithm,
                which,
                (&raw mut figure).cast(),
                size_of_val(&figure),
                &raw mut written,
            )
        };
        status.result().map_or(-1, |()| figure)
    });
    format!("cuBLASLt {id}, tile {tile}, {parts} parts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_sums_of_bf16_stay_f32() {
        // By the numbers of `cublasLt.h`: 2 is the type of sums, 4 that of the output.
        assert_eq!(reductions(DType::Bf16), 2);
        assert_eq!([DType::F32, DType::F64].map(reductions), [6, 6]);
    }
}
