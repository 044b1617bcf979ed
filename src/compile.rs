//! From a model file to a checked artifact.

use crate::artifact::{Artifact, Certificate, Provenance, Target};
use crate::onnx::{ImportError, ImportOptions, Imported, import_file};
use arenic_ir::check::Footprint;
use arenic_ir::text::Module;
use arenic_ir::{Graph, Op, TargetInfo, TensorType};
use arenic_passes::certificate::certificate;
use arenic_passes::order::definition_order_peak;
use arenic_passes::pipeline::{Pipeline, RunError, RunOptions};
use arenic_passes::{Cx, Evaluate, PassError, Search};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference;
use std::collections::BTreeMap;
use std::path::Path;

/// The name of the CPU target in artifacts.
pub const CPU: &str = "cpu";

/// Why a model could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The model cannot be read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The pipeline failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The figures about the plan could not be computed.
    #[error(transparent)]
    Figures(#[from] PassError),
    /// The model file could not be read again for its digest.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

/// What a compilation gives.
pub struct Compiled {
    /// The artifact; `None` where the pipeline made no program.
    pub artifact: Option<Artifact>,
    /// Graph, plan and program as far as the pipeline went.
    pub module: Module,
    /// What the checker says of the program.
    pub footprint: Option<Footprint>,
    /// Initializers that nothing depends on.
    pub unused: Vec<String>,
}

/// Compiles a model for the CPU target.
///
/// # Errors
/// See [`CompileError`].
pub fn compile(
    model: &Path,
    import: &ImportOptions,
    pipeline: &Pipeline,
    search: Search,
    options: RunOptions,
) -> Result<Compiled, CompileError> {
    let Imported { graph, bound, unused } = import_file(model, import)?;
    let cx = Cx { target: TargetInfo::CPU, evaluate: Some(&Kernels), search };
    let outcome = pipeline.run(graph, &cx, options)?;
    let found = outcome.lower_bound();
    let module = outcome.module;
    let artifact = match (&outcome.footprint, &module.program) {
        (Some(footprint), Some(program)) => {
            let certificate = certificate(&module.graph, program.nodes(), &cx)?;
            let bound_bytes = certificate.bound.max(found);
            let target = Target {
                name: CPU.into(),
                graph: module.graph.clone(),
                program: program.clone(),
                statistics: statistics(&module.graph, footprint, bound_bytes, &cx)?,
                certificate: Certificate::from(&certificate),
                bound,
            };
            let provenance = provenance(model, pipeline)?;
            Some(Artifact { targets: vec![target], provenance, runnable: !import.plan_only })
        }
        _ => None,
    };
    Ok(Compiled { artifact, module, footprint: outcome.footprint, unused })
}

/// The figures of a plan; peaks and arenas come from the checker (invariant I11).
fn statistics(
    g: &Graph,
    footprint: &Footprint,
    bound: u64,
    cx: &Cx,
) -> Result<BTreeMap<String, u64>, CompileError> {
    let (arena, peak) = (footprint.arena_bytes, footprint.live_peak_bytes);
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.sum::<u64>();
    let figures = [
        ("arena_bytes", arena.device),
        ("live_peak_bytes", peak.device),
        ("lower_bound_bytes", bound),
        ("definition_order_bytes", definition_order_peak(g, cx)?),
        ("fragmentation_bytes", arena.device.saturating_sub(peak.device)),
        ("host_arena_bytes", arena.host),
        ("state_bytes", sum(&mut g.states.values().map(|s| g.ty(s.enter).bytes()))),
        ("constant_bytes", sum(&mut g.consts().map(|(v, _)| g.ty(v).bytes()))),
        ("nodes", g.nodes.len() as u64),
    ];
    Ok(figures.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect())
}

fn provenance(model: &Path, pipeline: &Pipeline) -> Result<Provenance, CompileError> {
    let mut hasher = blake3::Hasher::new();
    std::fs::File::open(model)
        .and_then(|file| hasher.update_reader(file).map(drop))
        .map_err(|error| CompileError::Io { path: model.to_owned(), error })?;
    Ok(Provenance {
        compiler: format!("arenic {}", env!("CARGO_PKG_VERSION")),
        model: model.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned()),
        model_digest: hasher.finalize().as_bytes().to_vec(),
        passes: pipeline.names().map(str::to_owned).collect(),
    })
}

/// The runtime's kernels as the passes' evaluator of constants.
pub struct Kernels;

impl Evaluate for Kernels {
    fn evaluate(&self, op: &Op, inputs: &[(&TensorType, &[u8])]) -> Option<Vec<Vec<u8>>> {
        let results = reference::evaluate(op, inputs, Draw::default()).ok()?;
        Some(results.into_iter().map(|(_, bytes)| bytes).collect())
    }
}
