//! A compiled step.

use crate::errors::{self, CompileError, DataError};
use arenic::Artifact;
use arenic::artifact::{Figures, Target};
use arenic::cli::Compilation;
use arenic::report::Report;
use arenic_ir::Graph;
use arenic_ir::types::TensorType;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A name, an element type and a shape.
pub(crate) type Typed = (String, &'static str, Vec<usize>);

pub(crate) fn typed(name: &str, ty: &TensorType) -> Typed {
    (name.to_owned(), ty.dtype.name(), ty.shape.clone())
}

/// An artifact.
#[pyclass(module = "arenic._native", frozen)]
pub(crate) struct Step {
    pub(crate) artifact: Arc<Artifact>,
    figures: BTreeMap<String, f64>,
}

impl Step {
    pub(crate) fn new(compiled: Compilation) -> PyResult<Step> {
        let Compilation { artifact, figures } = compiled;
        Ok(Step { artifact: Arc::new(artifact), figures })
    }

    fn target(&self) -> PyResult<&Target> {
        let none = || CompileError::new_err("the artifact holds no program");
        self.artifact.targets.first().ok_or_else(none)
    }

    /// Calls `f` with the graph of what is fed and given, of all rounds together.
    fn with_graph<R>(&self, f: impl FnOnce(&Graph) -> R) -> PyResult<R> {
        let target = self.target()?;
        let whole = target.whole_step().map_err(|e| CompileError::new_err(e.to_string()))?;
        Ok(f(whole.as_ref().map_or(&target.graph, |whole| whole.graph())))
    }

    fn page(&self) -> PyResult<String> {
        let target = self.target()?;
        let footprint = target.check_main().map_err(|_| {
            CompileError::new_err("the program does not implement its graph; see `arenic check`")
        })?;
        let report = Report::of_target(target, &self.artifact.provenance, &footprint);
        report.to_html().map_err(|e| CompileError::new_err(e.to_string()))
    }
}

#[pymethods]
impl Step {
    /// Bytes of the arenas on the device and in host memory, which all variants share.
    fn arena_bytes(&self) -> PyResult<(u64, u64)> {
        let arenas = self.artifact.arenas(&self.target()?.name);
        Ok((arenas.device, arenas.host))
    }

    /// Live peak, lower bound and states of the largest variant, in bytes.
    fn plan_bytes(&self) -> PyResult<(u64, u64, u64)> {
        let variants = self.artifact.variants(&self.target()?.name);
        let largest = variants.into_iter().max_by_key(|target| target.arena_bytes().device);
        let figures = largest.map_or_else(Figures::default, |target| target.figures);
        Ok((figures.live_peak_bytes, figures.lower_bound_bytes, figures.state_bytes))
    }

    /// Figures about the plan of the first target, in bytes unless named otherwise.
    fn figures(&self) -> BTreeMap<String, f64> {
        self.figures.clone()
    }

    /// The targets' names.
    fn targets(&self) -> Vec<String> {
        self.artifact.targets.iter().map(|target| target.name.clone()).collect()
    }

    /// The name of the model's file.
    fn model(&self) -> String {
        self.artifact.provenance.model.clone()
    }

    /// True where a search was cut short.
    fn is_cut(&self) -> bool {
        self.artifact.provenance.is_cut
    }

    /// Values of inputs where none are given.
    fn defaults(&self) -> BTreeMap<String, f64> {
        self.artifact.defaults.clone()
    }

    /// Names and types of inputs.
    fn inputs(&self) -> PyResult<Vec<Typed>> {
        self.with_graph(|g| g.inputs().map(|v| typed(&g.values[v].name, g.ty(v))).collect())
    }

    /// Names and types of outputs.
    fn outputs(&self) -> PyResult<Vec<Typed>> {
        self.with_graph(|g| g.outputs.iter().map(|o| typed(&o.name, g.ty(o.value))).collect())
    }

    /// Names and types of states.
    fn states(&self) -> PyResult<Vec<Typed>> {
        self.with_graph(|g| {
            let whole = g.states.iter().filter(|(_, s)| s.rows.is_none_or(|rows| rows.first == 0));
            whole.map(|(s, state)| typed(&state.name, &g.saved_type(s))).collect()
        })
    }

    /// Writes the artifact.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        errors::guarded(|| {
            let written = py.detach(|| self.artifact.write(&path));
            written.map_err(|e| DataError::new_err(e.to_string()))
        })
    }

    /// The page that shows what lies where in the arena.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        errors::guarded(|| py.detach(|| self.page()))
    }
}

/// Reads an artifact.
#[pyfunction]
pub(crate) fn load(py: Python<'_>, path: PathBuf) -> PyResult<Step> {
    errors::guarded(|| {
        let artifact = py.detach(|| Artifact::read(&path));
        let artifact = artifact.map_err(|e| DataError::new_err(e.to_string()))?;
        let figures = artifact.targets.first().map(|target| target.figures).unwrap_or_default();
        let number = |(name, figure): (&str, u64)| (name.to_owned(), figure as f64);
        let figures = figures.named().into_iter().map(number).collect();
        Step::new(Compilation { artifact, figures })
    })
}
