//! Measures kernels and copies.
//!
//! Kernels are measured one by one, each with its own operands and results alone in memory
//! (tvDNN's profiling on demand), so that a step which does not fit can be measured, too.
//! Contents are made up: floats between a quarter and three quarters, indices in range.

use crate::cpu;
use crate::cuda::SetupError;
use crate::cuda::driver::DriverError;
use crate::executor::{StepError, node_label};
use crate::kernel::{Call, Draw, KernelError};
use crate::memory::{AlignedBytes, OutOfMemory};
use crate::reference::{EvaluateError, alone};
use arenic_ir::graph::{Graph, Node, NodeId, ValueId};
use arenic_ir::profile::{KernelTime, KernelTimes, Machine, Profile};
use arenic_ir::types::bf16;
use arenic_ir::{DType, Op, TensorType};
use rayon::ThreadPoolBuilder;
use std::time::Instant;

/// A sample is of as many calls as take so many seconds.
const SAMPLE_SECONDS: f64 = 50e-6;

/// A kernel has this many samples, or where they take more than so many seconds the least.
pub(crate) const SAMPLES: usize = 9;
pub(crate) const MOST_SECONDS: f64 = 0.5;
pub(crate) const LEAST_SAMPLES: usize = 3;

/// Bytes of a measured copy: more than caches hold.
pub(crate) const COPY_BYTES: usize = 64 << 20;

/// Why nothing could be measured.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MeasureError {
    /// Threads could not be started.
    #[error("{0} threads could not be started: {1}")]
    Threads(usize, String),
    /// A kernel cannot be run.
    #[error("{node}: {error}")]
    Kernel {
        /// The node: operator and name.
        node: String,
        /// Why.
        error: EvaluateError,
    },
    /// Memory for copies.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A device is not to be had.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A device's driver fails.
    #[error("the device failed: {0}")]
    Driver(#[from] DriverError),
    /// A kernel refuses contents that were made up for it.
    #[error(transparent)]
    Refused(StepError),
}

/// Measures every kernel of a verified graph, each operator once for the same operands, and
/// copies between two arenas, on so many threads (0: one per core). `device` is the name that
/// the profile bears.
///
/// # Errors
/// Threads or memory are not to be had, or an operator has no kernel.
pub fn profile(g: &Graph, device: &str, threads: usize) -> Result<Profile, MeasureError> {
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| MeasureError::Threads(threads, e.to_string()))?;
    let kernels = pool.install(|| kernels(g))?;
    let (one_way, both) = copy_rates()?;
    let machine = Machine {
        device: device.to_owned(),
        threads: pool.current_num_threads(),
        to_host_bytes_per_second: one_way,
        to_device_bytes_per_second: one_way,
        both_bytes_per_second: both,
        workspace_bytes: None,
    };
    Ok(Profile { machine, kernels })
}

fn kernels(g: &Graph) -> Result<Vec<KernelTime>, MeasureError> {
    let (mut kernels, mut times) = (Vec::new(), KernelTimes::default());
    for (n, node) in &g.nodes {
        let operands = g.input_types(n);
        if times.seconds(&node.op, &operands).is_none() {
            let kernel = measure(g, n, &operands)?;
            times.insert(&kernel);
            kernels.push(kernel);
        }
    }
    Ok(kernels)
}

fn measure(g: &Graph, n: NodeId, operands: &[&TensorType]) -> Result<KernelTime, MeasureError> {
    let Node { op, outputs, .. } = &g.nodes[n];
    let refused = |error| MeasureError::Kernel { node: node_label(g, n), error };
    let filled =
        (0..operands.len()).map(|k| operand(op, operands, k)).collect::<Result<Vec<_>, _>>();
    let filled = filled.map_err(|e| refused(e.into()))?;
    let timed = alone(op, operands, &filled, Draw::default(), |call| {
        with_results(call, outputs, |call| median_seconds(|| cpu::run(call)))
    });
    let (seconds, _) = timed.map_err(refused)?;
    let operands = operands.iter().map(|&ty| ty.clone()).collect();
    Ok(KernelTime { operator: op.clone(), operands, seconds })
}

/// The same call with only those results that the node has: a kernel may do without the others' work.
fn with_results<R>(call: &Call, of: &[Option<ValueId>], run: impl FnOnce(&Call) -> R) -> R {
    let outputs = call.outputs.iter().zip(of).map(|(to, v)| to.filter(|_| v.is_some()));
    run(&Call { outputs: &outputs.collect::<Vec<_>>(), ..*call })
}

/// Seconds of a call once its memory is there.
fn median_seconds(call: impl Fn() -> Result<(), KernelError>) -> Result<f64, KernelError> {
    let sample = |calls: usize| -> Result<f64, KernelError> {
        let start = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        Ok(start.elapsed().as_secs_f64().max(1e-9) / calls as f64)
    };
    call()?;
    let calls = (SAMPLE_SECONDS / sample(1)?).ceil().min(1e5) as usize;
    let mut samples = Vec::new();
    let start = Instant::now();
    while samples.len() < SAMPLES
        && (samples.len() < LEAST_SAMPLES || start.elapsed().as_secs_f64() < MOST_SECONDS)
    {
        samples.push(sample(calls)?);
    }
    Ok(rounded(median(samples)))
}

pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// To four digits; a measurement has no more.
pub(crate) fn rounded(x: f64) -> f64 {
    format!("{x:.3e}").parse().unwrap_or(x)
}

/// Made-up contents for an operand.
pub(crate) fn operand(
    op: &Op,
    operands: &[&TensorType],
    k: usize,
) -> Result<AlignedBytes, OutOfMemory> {
    let ty = operands[k];
    let mut bytes = AlignedBytes::zeroed(ty.bytes())?;
    let extent = indexed_extent(op, operands, k);
    let elements = bytes.as_mut_slice().chunks_exact_mut(ty.dtype.size() as usize);
    for (i, element) in elements.take(ty.elements()).enumerate() {
        let fraction = 0.25 + (i % 64) as f64 / 128.0;
        match (ty.dtype, extent) {
            (DType::Bf16, _) => {
                element.copy_from_slice(&bf16::from_f32(fraction as f32).to_le_bytes());
            }
            (DType::F32, _) => element.copy_from_slice(&(fraction as f32).to_le_bytes()),
            (DType::F64, _) => element.copy_from_slice(&fraction.to_le_bytes()),
            (DType::Bool, _) => element[0] = (i % 2) as u8,
            (_, extent) => {
                // Not zero, which would be a divisor.
                let x = extent.map_or(1, |extent| i % extent) as u64;
                element.copy_from_slice(&x.to_le_bytes()[..element.len()]);
            }
        }
    }
    Ok(bytes)
}

/// The least extent that an operand of indices selects from; `None` for other operands.
fn indexed_extent(op: &Op, operands: &[&TensorType], k: usize) -> Option<usize> {
    let data = &operands.first()?.shape;
    // Each row of the indices selects along so many axes.
    let row = |from: usize| Some(from..from + *operands[k].shape.last()?);
    let axes = match (op, k) {
        (Op::Gather { axis }, 1)
        | (Op::GatherElements { axis }, 1)
        | (Op::ScatterElements { axis, .. }, 1) => *axis..axis + 1,
        (Op::GatherNd { batch_dims }, 1) => row(*batch_dims)?,
        (Op::ScatterNd { .. }, 1) => row(0)?,
        (Op::CrossEntropyGrad, 3) => data.len().checked_sub(1)?..data.len(),
        _ => return None,
    };
    Some(data.get(axes)?.iter().copied().min().unwrap_or(1).max(1))
}

/// Bytes per second of a copy that is alone, and of each of two at once.
fn copy_rates() -> Result<(f64, f64), OutOfMemory> {
    let arena = || AlignedBytes::zeroed(COPY_BYTES as u64);
    let mut pairs = [(arena()?, arena()?), (arena()?, arena()?)];
    let rate = |(to, from): &mut (AlignedBytes, AlignedBytes)| {
        let seconds = (0..SAMPLES).map(|_| {
            let start = Instant::now();
            to.as_mut_slice().copy_from_slice(from.as_slice());
            start.elapsed().as_secs_f64().max(1e-9)
        });
        COPY_BYTES as f64 / median(seconds.collect())
    };
    // Once more for the pages.
    pairs.iter_mut().for_each(|pair| _ = rate(pair));
    let [first, second] = &mut pairs;
    let one_way = rate(first);
    let both = std::thread::scope(|scope| {
        let other = scope.spawn(|| rate(second));
        let one = rate(first);
        other.join().map_or(one, |other| one.min(other))
    });
    Ok((rounded(one_way), rounded(both)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arenic_ir::text::Module;

    #[test]
    fn every_operator_is_measured_once_for_the_same_operands() {
        let text = r#"graph "g" {
  input v0: f32[6,5] "x"
  input v1: i64[4] "rows"
  input v2: i64[3,2] "cells"
  const v3: f32[] "ratio" = [0.25]
  input v4: i32[6,5] "n"
  n0 gather {"axis":0} (v0, v1) -> (v5: f32[4,5])
  n1 gather {"axis":0} (v0, v1) -> (v6: f32[4,5])
  n2 gather_nd {"batch_dims":0} (v0, v2) -> (v7: f32[3])
  n3 dropout {"rng":{"stream":1}} (v0, v3) -> (v8: f32[6,5], v9: bool[6,5])
  n4 dropout {"rng":{"stream":2}} (v8, v3) -> (v10: f32[6,5], v11: bool[6,5])
  n5 where (v11, v10, v0) -> (v12: f32[6,5])
  n6 binary {"f":"div"} (v4, v4) -> (v13: i32[6,5])
  n7 log_softmax_stats (v0) -> (v14: f32[6,1], v15: f32[6,1])
  n8 scatter_nd {"reduction":"add"} (v0, v2, v7) -> (v16: f32[6,5])
  output "a" v5
}
"#;
        let g = Module::parse(text, &arenic_backends::ALL).unwrap().graph;
        let profile = profile(&g, "here", 1).unwrap();
        assert_eq!(profile.kernels.len(), 7);
        assert!(profile.kernels.iter().all(|k| k.seconds > 0.0 && k.seconds < 1.0));
        assert_eq!((profile.machine.device.as_str(), profile.machine.threads), ("here", 1));
        assert!(profile.machine.to_host_bytes_per_second > 1e6);
        assert_eq!(Profile::parse(&profile.to_string()).unwrap(), profile);
    }

    #[test]
    fn only_results_that_a_node_has_are_measured() {
        let text = r#"graph "g" {
  input v0: f32[1,1,4,4] "x"
  n0 max_pool {"window":{"kernel":[2,2],"strides":[2,2],"dilations":[1,1],"pads_begin":[0,0],"pads_end":[0,0]}} (v0) -> (v1: f32[1,1,2,2], _)
  output "y" v1
}
"#;
        let g = Module::parse(text, &arenic_backends::ALL).unwrap().graph;
        let (n, node) = g.nodes.iter().next().unwrap();
        let types = g.input_types(n);
        let x = [operand(&node.op, &types, 0).unwrap()];
        let written = |call: &Call| call.outputs.iter().map(Option::is_some).collect::<Vec<_>>();
        let both = |call: &Call| Ok((written(call), with_results(call, &node.outputs, written)));
        let (both, _) = alone(&node.op, &types, &x, Draw::default(), both).unwrap();
        assert_eq!(both, (vec![true, true], vec![true, false]));
    }

    #[test]
    fn indices_are_in_range_and_differ() {
        let types: Vec<TensorType> = ["f32[3,7]", "i64[20]"].map(|t| t.parse().unwrap()).into();
        let types: Vec<&TensorType> = types.iter().collect();
        let indices = operand(&Op::Gather { axis: 1 }, &types, 1).unwrap();
        let indices = indices.as_slice()[..160].chunks_exact(8);
        let indices: Vec<u8> = indices.map(|i| i[0]).collect();
        assert_eq!(indices[..8], [0, 1, 2, 3, 4, 5, 6, 0]);
    }
}
