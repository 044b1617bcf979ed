//! Code of a program's kernels for GPUs: made with the artifact, so that nothing has to be
//! compiled where it runs.

use crate::artifact::{KernelImage, Kernels};
use arenic_ir::{Graph, Program};
use arenic_runtime::cuda::nvrtc::{self, Architecture, CompileError, Image};
use arenic_runtime::cuda::{Unsupported, source};

/// What code is made for: Hopper itself, and any GPU from Ampere on by way of the driver.
const ARCHITECTURES: [Architecture; 2] = [Architecture::Machine(90), Architecture::Virtual(80)];

/// Why kernels could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// An operator without a kernel.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The compiler failed.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// A program's kernels, compiled; `None` where there is no NVRTC.
///
/// # Errors
/// The backend has no kernel for an operator, or NVRTC refuses one.
pub fn make(g: &Graph, program: &Program) -> Result<Option<Kernels>, CodeError> {
    let source = source(g, program)?;
    if !nvrtc::is_present() {
        return Ok(None);
    }
    let mut images = Vec::new();
    for architecture in ARCHITECTURES {
        let code = nvrtc::compile(&source, architecture)?;
        let (capability, is_ptx) = match architecture {
            Architecture::Machine(n) => (n, false),
            Architecture::Virtual(n) => (n, true),
        };
        images.push(KernelImage { capability, is_ptx, code });
    }
    Ok(Some(Kernels { source_digest: digest(&source), images }))
}

/// The images of a program's kernels; none where they were compiled from another text.
///
/// # Errors
/// The backend has no kernel for an operator.
pub fn images(
    kernels: Option<&Kernels>,
    g: &Graph,
    program: &Program,
) -> Result<Vec<Image>, Unsupported> {
    let Some(kernels) = kernels else { return Ok(Vec::new()) };
    if kernels.source_digest != digest(&source(g, program)?) {
        return Ok(Vec::new());
    }
    let image = |i: &KernelImage| Image {
        architecture: match i.is_ptx {
            true => Architecture::Virtual(i.capability),
            false => Architecture::Machine(i.capability),
        },
        code: i.code.clone(),
    };
    // PTX is read up to its NUL.
    let whole = |i: &&KernelImage| !i.is_ptx || i.code.ends_with(&[0]);
    Ok(kernels.images.iter().filter(whole).map(image).collect())
}

fn digest(source: &str) -> Vec<u8> {
    blake3::hash(source.as_bytes()).as_bytes().to_vec()
}
