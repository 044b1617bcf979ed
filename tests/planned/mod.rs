//! A model, compiled by the default pipeline and run beside the reference interpreter.

use arenic::compile::Kernels;
use arenic::onnx::{ImportOptions, import_bytes};
use arenic_ir::{Def, Graph, TargetInfo, TensorType};
use arenic_passes::Cx;
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_runtime::executor::{Executor, Options};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Tensors by name: type and contents.
pub(crate) type Tensors = BTreeMap<String, (TensorType, Vec<u8>)>;

/// A compiled model.
pub(crate) struct Planned {
    imported: Graph,
    graph: Graph,
    program: arenic_ir::Program,
}

impl Planned {
    /// Imports and compiles an encoded model, with `bind` as constants.
    pub(crate) fn new(model: Bytes, bind: Tensors) -> Result<Planned, String> {
        let options = ImportOptions { bind, ..ImportOptions::default() };
        let imported =
            import_bytes(model, None, &options).map_err(|e| format!("import: {e}"))?.graph;
        let pipeline = Pipeline::default_pipeline().map_err(|e| e.to_string())?;
        let cx = Cx { target: TargetInfo::CPU, evaluate: Some(&Kernels) };
        let module = pipeline
            .run(imported.clone(), &cx, RunOptions::default())
            .map_err(|e| format!("pipeline: {e}"))?
            .module;
        let program = module.program.ok_or("the pipeline made no program")?;
        Ok(Planned { imported, graph: module.graph, program })
    }

    /// Results of each of `steps` steps, in the order of the model's outputs. Every step
    /// is fed the same inputs.
    pub(crate) fn run(&self, inputs: &Tensors, steps: u64) -> Result<Vec<Vec<Vec<u8>>>, String> {
        let options = Options { threads: 1, poison: true };
        let mut executor =
            Executor::new(&self.graph, &self.program, options).map_err(|e| e.to_string())?;
        for (v, data) in self.graph.consts() {
            if let Some(home) = executor.const_mut(v) {
                home.copy_from_slice(data.bytes().ok_or("a constant without data")?);
            }
        }
        let mut reference = Reference::new(&self.imported).map_err(|e| e.to_string())?;
        for (v, data) in self.imported.consts() {
            let bytes = data.bytes().ok_or("a constant without data")?;
            reference.value_mut(v).ok_or("a constant that is no root")?.copy_from_slice(bytes);
        }
        let mut all = Vec::new();
        for step in 0..steps {
            let draw = Draw { seed: 0, step };
            feed(&self.graph, inputs, |v, bytes| {
                executor.input_mut(v).into_iter().for_each(|home| home.copy_from_slice(bytes));
            })?;
            feed(&self.imported, inputs, |v, bytes| {
                reference.value_mut(v).into_iter().for_each(|home| home.copy_from_slice(bytes));
            })?;
            executor.step(draw).map_err(|e| format!("executor: {e}"))?;
            reference.step(draw).map_err(|e| format!("reference: {e}"))?;
            for (i, output) in self.imported.outputs.iter().enumerate() {
                if executor.output(i) != reference.value(output.value) {
                    return Err(format!(
                        "step {step}: `{}` is not what the reference interpreter gives",
                        output.name
                    ));
                }
            }
            all.push((0..self.outputs().count()).map(|i| executor.output(i).to_vec()).collect());
        }
        Ok(all)
    }

    /// Name and type of every output.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.graph.outputs.iter().map(|o| (o.name.as_str(), self.graph.ty(o.value)))
    }
}

/// Gives every fed input its bytes.
fn feed(
    g: &Graph,
    inputs: &Tensors,
    mut fill: impl FnMut(arenic_ir::ValueId, &[u8]),
) -> Result<(), String> {
    for v in g.inputs() {
        let value = &g.values[v];
        debug_assert!(matches!(value.def, Def::Input));
        let (ty, bytes) =
            inputs.get(&value.name).ok_or_else(|| format!("nothing for input `{}`", value.name))?;
        if *ty != value.ty {
            return Err(format!("input `{}` is {}, not {ty}", value.name, value.ty));
        }
        fill(v, bytes);
    }
    Ok(())
}
