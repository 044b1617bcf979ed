//! A model, compiled by the default pipeline and run beside the reference interpreter.

use arenic::evaluator::Kernels;
use arenic::onnx::{ImportOptions, import_bytes};
use arenic_ir::graph::ValueId;
use arenic_ir::{Graph, Program, TargetInfo, TensorType};
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Cx, Standard};
use arenic_runtime::cuda::driver::Driver;
use arenic_runtime::cuda::{CudaExecutor, CudaOptions};
use arenic_runtime::executor::{Executor, ExecutorOptions};
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::{DeviceError, Machine};
use arenic_runtime::reference::Reference;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Tensors by name: type and contents.
pub(crate) type Tensors = BTreeMap<String, (TensorType, Vec<u8>)>;

/// A compiled model.
pub(crate) struct Planned {
    graph: Graph,
    program: Program,
}

impl Planned {
    /// Imports and compiles an encoded model, with `bind` as constants.
    pub(crate) fn new(target: TargetInfo, model: Bytes, bind: Tensors) -> Result<Planned, String> {
        let options = ImportOptions { bind, ..ImportOptions::default() };
        let graph = import_bytes(model, None, &options).map_err(|e| format!("import: {e}"))?.graph;
        let pipeline = Pipeline::named("default", &Standard).ok_or("no default pipeline")?;
        let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(target) };
        let module = pipeline
            .run(graph, &cx, RunOptions::default())
            .map_err(|e| format!("pipeline: {e}"))?
            .module;
        let program = module.program.ok_or("the pipeline made no program")?;
        Ok(Planned { graph: module.graph, program })
    }

    /// Results of each of `steps` steps on the CPU, in the order of the model's outputs. Every
    /// step is fed the same inputs.
    pub(crate) fn run(&self, inputs: &Tensors, steps: u64) -> Result<Vec<Vec<Vec<u8>>>, String> {
        let g = &self.graph;
        let options = ExecutorOptions { threads: 1, poison: true, ..ExecutorOptions::default() };
        let mut executor = Executor::new(g, &self.program, options).map_err(|e| e.to_string())?;
        let mut reference = Reference::new(g).map_err(|e| e.to_string())?;
        for (v, data) in g.consts() {
            let bytes = data.bytes().ok_or("a constant without data")?;
            let homes = [executor.carried_mut(v), reference.value_mut(v)];
            homes.into_iter().flatten().for_each(|home| home.copy_from_slice(bytes));
        }
        let mut all = Vec::new();
        for step in 0..steps {
            let draw = Draw { seed: 0, step, round: 0 };
            for v in g.inputs() {
                let bytes = self.input(inputs, v)?;
                let homes = [executor.input_mut(v), reference.value_mut(v)];
                homes.into_iter().flatten().for_each(|home| home.copy_from_slice(bytes));
            }
            executor.step(draw).map_err(|e| format!("executor: {e}"))?;
            reference.step(draw).map_err(|e| format!("reference: {e}"))?;
            let results = (0..g.outputs.len()).map(|i| executor.output(i).to_vec());
            let results: Vec<Vec<u8>> = results.collect();
            for (result, output) in results.iter().zip(&g.outputs) {
                if result != reference.value(output.value) {
                    let name = &output.name;
                    return Err(format!("`{name}` is not as the reference interpreter's"));
                }
            }
            all.push(results);
        }
        Ok(all)
    }

    /// The same on a device, without the reference interpreter.
    #[allow(dead_code, reason = "not every test has a device")]
    pub(crate) fn run_on(
        &self,
        driver: impl Driver,
        inputs: &Tensors,
        steps: u64,
    ) -> Result<Vec<Vec<Vec<u8>>>, String> {
        let g = &self.graph;
        let executor = CudaExecutor::new(g, &self.program, &[], driver, CudaOptions::default());
        let mut executor = executor.map_err(|e| e.to_string())?;
        for (v, data) in g.consts() {
            let bytes = data.bytes().ok_or("a constant without data")?;
            let fill = |home: &mut [u8]| {
                home.copy_from_slice(bytes);
                Ok::<_, DeviceError>(())
            };
            executor.fill_home(v, fill).map_err(|e| e.to_string())?;
        }
        let run = |step| {
            for v in g.inputs() {
                let bytes = self.input(inputs, v)?;
                if let Some(home) = executor.input_mut(v) {
                    home.copy_from_slice(bytes);
                }
            }
            executor.step(Draw { seed: 0, step, round: 0 }).map_err(|e| format!("device: {e}"))?;
            Ok((0..g.outputs.len()).map(|i| executor.output(i).to_vec()).collect())
        };
        (0..steps).map(run).collect()
    }

    /// What an input is fed.
    fn input<'a>(&self, inputs: &'a Tensors, v: ValueId) -> Result<&'a [u8], String> {
        let value = &self.graph.values[v];
        let missing = || format!("nothing for input `{}`", value.name);
        let (ty, bytes) = inputs.get(&value.name).ok_or_else(missing)?;
        if *ty != value.ty {
            return Err(format!("input `{}` is {}, not {ty}", value.name, value.ty));
        }
        Ok(bytes)
    }

    /// Name and type of every output.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.graph.outputs.iter().map(|o| (o.name.as_str(), self.graph.ty(o.value)))
    }
}
