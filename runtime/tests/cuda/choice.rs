//! Libraries or kernels of our own: which are taken, that steps compute the same either way, and
//! that they are captured; on a simulated driver.

use super::random::Random;
use super::simulated::{Behaviour, LIBRARY_BYTES, Simulated, WAYS};
use arenic_backends::cuda::library::{Epilogue, LibraryCall};
use arenic_ir::graph::{Def, ValueId};
use arenic_ir::text::Module;
use arenic_runtime::cuda::driver::DriverError;
use arenic_runtime::cuda::{AlgorithmChoice, CudaExecutor, CudaOptions, SetupError};
use arenic_runtime::kernel::Draw;
use arenic_runtime::machine::{Machine, StepFailure};
use arenic_runtime::reference::evaluate;
use std::collections::{BTreeSet, HashMap};

/// Two equal products, one with a bias, a convolution, and a product too small for a library.
const STEP: &str = r#"graph "products" {
  input v0: f32[64,64] "a"
  input v1: f32[64,64] "b"
  input v2: f32[64] "bias"
  input v3: f32[1,4,16,16] "x"
  input v4: f32[8,4,3,3] "w"
  n0 mat_mul {"trans_a":false,"trans_b":false} (v0, v1) -> (v5: f32[64,64])
  n1 mat_mul {"trans_a":false,"trans_b":false} (v5, v1) -> (v6: f32[64,64])
  n2 gemm {"alpha":0.5,"beta":1.0,"trans_a":false,"trans_b":true} (v6, v0, v2) -> (v7: f32[64,64])
  n3 conv {"window":{"kernel":[3,3],"strides":[1,1],"dilations":[1,1],"pads_begin":[1,1],"pads_end":[1,1]},"group":1} (v3, v4) -> (v8: f32[1,8,16,16])
  n4 mat_mul {"trans_a":false,"trans_b":false} (v7, v2) -> (v9: f32[64])
  output "y" v7
  output "z" v8
  output "small" v9
}
program {
  target cuda workspace 33554432
  align 256
  device 109312
  host 0
  home v0 device[0+16384]
  home v1 device[16384+16384]
  home v2 device[32768+256]
  home v3 device[33024+4096]
  home v4 device[37120+1152]
  run n0 stream0 (device[0+16384], device[16384+16384]) -> (device[38400+16384]) scratch device[71168+12288]
  run n1 stream0 (device[38400+16384], device[16384+16384]) -> (device[54784+16384]) scratch device[71168+12288]
  record stream0 event0
  wait stream1 event0
  run n2 stream1 (device[54784+16384], device[0+16384], device[32768+256]) -> (device[38400+16384]) scratch device[71168+12288]
  run n3 stream0 (device[33024+4096], device[37120+1152]) -> (device[83456+8192]) scratch device[91648+3328]
  run n4 stream1 (device[38400+16384], device[32768+256]) -> (device[109056+256])
  record stream1 event1
  wait stream0 event1
  output device[38400+16384]
  output device[83456+8192]
  output device[109056+256]
}
"#;

/// A product with a GELU and one with its slope, beside what the first was applied to.
const GELU: &str = r#"graph "a layer and its gradient" {
  input v0: f32[64,64] "a"
  input v1: f32[64,64] "b"
  input v2: f32[64] "bias"
  n0 gemm_gelu {"trans_b":true} (v0, v1, v2) -> (v3: f32[64,64] "y", v4: f32[64,64] "z")
  n1 gemm_gelu_grad (v3, v1, v4) -> (v5: f32[64,64] "dz")
  output "y" v3
  output "dz" v5
}
program {
  target cuda workspace 33554432
  align 256
  device 98560
  host 0
  home v0 device[0+16384]
  home v1 device[16384+16384]
  home v2 device[32768+256]
  run n0 stream0 (device[0+16384], device[16384+16384], device[32768+256]) -> (device[33024+16384], device[49408+16384]) scratch device[82176+16384]
  run n1 stream0 (device[33024+16384], device[16384+16384], device[49408+16384]) -> (device[65792+16384]) scratch device[82176+16384]
  output device[33024+16384]
  output device[65792+16384]
}
"#;

/// Contents of every input, and of every output as the CPU has it.
struct Contents {
    module: Module,
    inputs: Vec<(ValueId, Vec<u8>)>,
    expected: Vec<Vec<u8>>,
}

fn contents() -> Contents {
    contents_of(STEP)
}

fn contents_of(step: &str) -> Contents {
    let module = Module::parse(step, &arenic_backends::ALL).unwrap();
    let g = &module.graph;
    let mut r = Random(5);
    let mut known: HashMap<ValueId, Vec<u8>> = HashMap::new();
    let mut inputs = Vec::new();
    for (v, value) in &g.values {
        if matches!(value.def, Def::Input) {
            let bytes = r.tame(value.ty.dtype, value.ty.shape.to_vec()).bytes;
            inputs.push((v, bytes.clone()));
            known.insert(v, bytes);
        }
    }
    for node in g.nodes.values() {
        let operands: Vec<_> = node.inputs.iter().map(|v| (g.ty(*v), &known[v][..])).collect();
        let results = evaluate(&node.op, &operands, Draw::default()).unwrap();
        for (v, (_, bytes)) in node.outputs.iter().zip(results) {
            known.insert(v.unwrap(), bytes.to_vec());
        }
    }
    let expected = g.outputs.iter().map(|output| known[&output.value].clone()).collect();
    Contents { module, inputs, expected }
}

impl Contents {
    fn executor(
        &self,
        behaviour: Behaviour,
        options: CudaOptions,
    ) -> Result<CudaExecutor<'_, Simulated>, SetupError> {
        let program = self.module.program.as_ref().unwrap();
        CudaExecutor::new(&self.module.graph, program, &[], Simulated::new(behaviour), options)
    }

    /// Runs steps and compares what each gives.
    fn steps(&self, executor: &mut CudaExecutor<'_, Simulated>) -> Result<(), StepFailure> {
        for _ in 0..3 {
            for (v, bytes) in &self.inputs {
                executor.input_mut(*v).unwrap().copy_from_slice(bytes);
            }
            executor.step(Draw::default())?;
            for (i, expected) in self.expected.iter().enumerate() {
                let floats = |bytes: &[u8]| -> Vec<f32> {
                    bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
                };
                for (a, b) in floats(expected).into_iter().zip(floats(executor.output(i))) {
                    assert!((a - b).abs() <= 1e-4 * (1.0 + a.abs()), "{a} and {b} in output {i}");
                }
            }
        }
        Ok(())
    }
}

fn names(choices: &[AlgorithmChoice]) -> Vec<&str> {
    choices.iter().map(|choice| &choice.way().name[..]).collect()
}

const MEASURED: CudaOptions = CudaOptions { deterministic: false };

#[test]
fn the_first_way_that_gives_the_same_bits_is_taken_without_a_look_at_time() {
    let contents = contents();
    for seed in 0..4 {
        let behaviour = Behaviour { seed, ..Behaviour::default() };
        let mut executor = contents.executor(behaviour, CudaOptions::default()).unwrap();
        let choices = executor.choices();
        assert_eq!(names(choices), ["good"; 3]);
        assert_eq!(choices.iter().map(|c| c.calls).collect::<Vec<_>>(), [2, 1, 1]);
        for choice in choices {
            let tried: Vec<&str> = choice.tried.iter().map(|t| &t.name[..]).collect();
            assert_eq!(tried, ["refusing", "good", "kernels"]);
            assert!(choice.tried[0].refused.is_some() && choice.refused.is_none());
            assert!(choice.tried.iter().all(|t| t.seconds.is_none()));
        }
        assert_eq!(executor.driver().calls("elapsed_seconds"), 0);
        assert_eq!(executor.library_bytes(), LIBRARY_BYTES);
        contents.steps(&mut executor).unwrap();
        assert!(executor.is_captured());
    }
}

#[test]
fn the_fastest_way_is_taken_where_that_is_asked_for() {
    let contents = contents();
    let mut taken = BTreeSet::new();
    for seed in 0..12 {
        let behaviour = Behaviour { seed, ..Behaviour::default() };
        let mut executor = contents.executor(behaviour, MEASURED).unwrap();
        for choice in executor.choices() {
            assert_eq!(choice.tried.len(), WAYS.len() + 1);
            for way in &choice.tried {
                assert_eq!(way.seconds.is_none(), way.name == "refusing");
                let seconds = way.seconds.unwrap_or(f64::INFINITY);
                assert!(choice.way().seconds.unwrap() <= seconds, "{choice:?}");
            }
        }
        taken.extend(names(executor.choices()).into_iter().map(str::to_owned));
        contents.steps(&mut executor).unwrap();
    }
    assert_eq!(taken.into_iter().collect::<Vec<_>>(), ["atomic", "good", "kernels"]);
}

#[test]
fn a_gelu_and_its_slope_are_epilogues_of_the_librarys_products() {
    let contents = contents_of(GELU);
    for options in [CudaOptions::default(), MEASURED] {
        let mut executor = contents.executor(Behaviour::default(), options).unwrap();
        let asked = executor.choices().iter().map(|choice| match &choice.request.call {
            LibraryCall::Product(p) => (p.epilogue, choice.request.alignments.len()),
            call => panic!("{call:?}"),
        });
        // Where ways are measured, so are the products that they would be without.
        let asked = asked.filter(|(epilogue, _)| *epilogue != Epilogue::Plain);
        let wanted = [(Epilogue::Gelu { keeps_z: true }, 5), (Epilogue::GeluGradient, 4)];
        assert_eq!(asked.collect::<Vec<_>>(), wanted);
        contents.steps(&mut executor).unwrap();
    }
    for options in [CudaOptions::default(), MEASURED] {
        let behaviour = Behaviour { libraries: false, ..Behaviour::default() };
        let mut executor = contents.executor(behaviour, options).unwrap();
        assert_eq!(names(executor.choices()), ["kernels"; 4]);
        contents.steps(&mut executor).unwrap();
    }
}

#[test]
fn products_go_by_a_library_that_has_them_without_a_gelu() {
    let contents = contents_of(GELU);
    for options in [CudaOptions::default(), MEASURED] {
        let behaviour = Behaviour { epilogues: false, ..Behaviour::default() };
        let mut executor = contents.executor(behaviour, options).unwrap();
        let by_library = executor.choices().iter().filter(|c| c.tried.len() > 1);
        let plain = |choice: &AlgorithmChoice| match &choice.request.call {
            LibraryCall::Product(p) => p.epilogue == Epilogue::Plain,
            call => panic!("{call:?}"),
        };
        assert!(by_library.clone().count() == 2 && by_library.clone().all(plain));
        if options == CudaOptions::default() {
            assert!(by_library.clone().all(|choice| choice.way().name == "good"));
            assert!(executor.choices().iter().all(|c| plain(c) || c.way().name == "kernels"));
        }
        contents.steps(&mut executor).unwrap();
    }
}

#[test]
fn without_libraries_our_own_kernels_do_everything() {
    let contents = contents();
    for options in [CudaOptions::default(), MEASURED] {
        let behaviour = Behaviour { libraries: false, ..Behaviour::default() };
        let mut executor = contents.executor(behaviour, options).unwrap();
        assert_eq!(names(executor.choices()), ["kernels"; 3]);
        let missing = |c: &AlgorithmChoice| matches!(c.refused, Some(DriverError::Missing(_)));
        assert!(executor.choices().iter().all(missing));
        assert_eq!((executor.driver().calls("call"), executor.library_bytes()), (0, 0));
        contents.steps(&mut executor).unwrap();
    }
}

#[test]
fn a_device_that_fails_while_ways_are_chosen_is_told() {
    let contents = contents();
    for call in ["candidates", "call", "elapsed_seconds", "memory"] {
        for number in [0, 1, 2] {
            let fails = Some((call, number));
            let behaviour = Behaviour { fails, ..Behaviour::default() };
            let told = match contents.executor(behaviour, MEASURED) {
                Ok(mut executor) => contents.steps(&mut executor).map_err(|e| e.to_string()),
                Err(e) => Err(e.to_string()),
            };
            assert!(told.as_ref().is_err_and(|e| e.contains("lost")), "{call} {number}: {told:?}");
        }
    }
}
