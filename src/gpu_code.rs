//! Code of a program's kernels for GPUs: made with the artifact, so that nothing has to be
//! compiled where it runs.
//!
//! `check` proves a program, but nobody can prove machine code: an artifact's code is run only
//! where the user says so ([`Trust::Artifact`]). Otherwise the text of the kernels, which this
//! binary writes, is what counts: its code comes from this user's own [`cache`], or is compiled.

mod cache;

use crate::artifact::{KernelImage, Kernels};
use arenic_ir::{Graph, Program};
use arenic_runtime::cuda::nvrtc::{self, Architecture, CompileError, Image};
use arenic_runtime::cuda::{HEADERS, Unsupported, source};
use cache::Cache;

/// What code is made for: Hopper itself, and any GPU from Ampere on by way of the driver.
const ARCHITECTURES: [Architecture; 2] = [Architecture::Machine(90), Architecture::Virtual(80)];

/// Whose code for GPUs is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// What this binary compiled for this user.
    #[default]
    Own,
    /// What the artifact holds, too, if it says that it was compiled from the same text.
    Artifact,
}

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

/// A program's kernels, compiled, or as the user's cache has them; `None` where there is no NVRTC.
///
/// # Errors
/// The backend has no kernel for an operator, or NVRTC refuses one.
pub fn make(g: &Graph, program: &Program) -> Result<Option<Kernels>, CodeError> {
    let source = source(g, program)?;
    if !nvrtc::is_present() {
        return Ok(None);
    }
    let digest = digest(&source);
    let cache = Cache::of_user();
    let mut images = Vec::new();
    for architecture in ARCHITECTURES {
        let code = match cache.as_ref().and_then(|cache| cache.read(&digest, architecture)) {
            Some(code) => code,
            None => {
                let code = nvrtc::compile(&source, architecture)?;
                if let Some(cache) = &cache {
                    cache.write(&digest, architecture, &code);
                }
                code
            }
        };
        let (capability, is_ptx) = match architecture {
            Architecture::Machine(n) => (n, false),
            Architecture::Virtual(n) => (n, true),
        };
        images.push(KernelImage { capability, is_ptx, code });
    }
    Ok(Some(Kernels { source_digest: digest.as_bytes().to_vec(), images }))
}

/// The images that a program may run by; where there are none, its text is compiled when it is
/// loaded.
///
/// # Errors
/// The backend has no kernel for an operator.
pub fn images(
    kernels: Option<&Kernels>,
    g: &Graph,
    program: &Program,
    trust: Trust,
) -> Result<Vec<Image>, Unsupported> {
    let digest = digest(&source(g, program)?);
    let held = kernels.filter(|k| trust == Trust::Artifact && k.source_digest == digest.as_bytes());
    let Some(held) = held else {
        let own = |architecture| {
            let code = Cache::of_user()?.read(&digest, architecture)?;
            Some(Image { architecture, code })
        };
        return Ok(ARCHITECTURES.into_iter().filter_map(own).collect());
    };
    let image = |i: &KernelImage| Image {
        architecture: match i.is_ptx {
            true => Architecture::Virtual(i.capability),
            false => Architecture::Machine(i.capability),
        },
        code: i.code.clone(),
    };
    // PTX is read up to its NUL.
    let whole = |i: &&KernelImage| !i.is_ptx || i.code.ends_with(&[0]);
    Ok(held.images.iter().filter(whole).map(image).collect())
}

/// Of the text and of the headers that it includes.
fn digest(source: &str) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in HEADERS.iter().chain(&[("", source)]) {
        for part in [name, text] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arenic_ir::text::Module;

    /// A program for a GPU, with code that no compiler made.
    fn forged() -> (Graph, Program, Kernels) {
        let text = r#"graph "" {
  input v0: f32[64] "x"
  n0 unary {"f":"exp"} (v0) -> (v1: f32[64])
  output "y" v1
}
program {
  target cuda
  align 256
  device 256
  host 0
  home v0 device[0+256]
  run n0 stream0 (device[0+256]) -> (device[0+256])
  output device[0+256]
}
"#;
        let module = Module::parse(text, &arenic_backends::ALL).unwrap();
        let (g, program) = (module.graph, module.program.unwrap());
        let source_digest = digest(&source(&g, &program).unwrap()).as_bytes().to_vec();
        let image = KernelImage { capability: 90, is_ptx: false, code: b"forged".to_vec() };
        (g, program, Kernels { source_digest, images: vec![image] })
    }

    #[test]
    fn code_of_an_artifact_is_run_only_where_it_is_trusted() {
        let (g, program, kernels) = forged();
        let runs = |kernels: &Kernels, trust| {
            let images = images(Some(kernels), &g, &program, trust).unwrap();
            images.iter().any(|image| image.code == b"forged")
        };
        assert!(!runs(&kernels, Trust::Own));
        assert!(runs(&kernels, Trust::Artifact));
        // Code of another text is nobody's.
        let other = Kernels { source_digest: vec![0; 32], ..kernels };
        assert!(!runs(&other, Trust::Artifact));
    }
}
