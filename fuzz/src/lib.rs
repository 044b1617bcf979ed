//! Fuzzers: one body per reader of arenic, as plain functions of bytes.
//!
//! A body reads the bytes as a user's command would read a file, and then does with what it read
//! what such commands do. Errors are fine. A panic, an abort, a hang or a huge allocation is a
//! defect, and so is any result that the body proves wrong. libFuzzer runs the bodies
//! (`fuzz_targets`, `make fuzz`), and so does an ordinary test ([`short`]).
//!
//! | target | what it runs |
//! |---|---|
//! | `onnx_step`, `onnx_forward` | import, passes without searches, three steps beside the reference |
//! | `checkpoint` | ONNX Runtime's checkpoint beside two fixed models |
//! | `npz`, `safetensors` | files of tensors, batches, progress |
//! | `envelope`, `artifact` | artifacts, from bytes or from texts, with their digest made right; all commands on them |
//! | `text` | what was printed and parsed prints the same |
//! | `placement`, `memory_graph`, `trace`, `snapshot` | `place`, `order`, `trace`: no collisions, bounds below peaks |
//! | `pipeline_yaml`, `device_yaml` | pipelines and devices as text |
//! | `pipelines` | random pipelines and limits on random graphs, judged by the interpreter for three steps |
//! | `programs` | random programs with up to eight changes: what `check` accepts is right for three steps |
//!
//! libFuzzer and [`mutate`] change inputs. One that did harm goes to `fuzz/artifacts`; once mended it goes to
//! `fuzz/corpus/TARGET`, with a name that says what was wrong.

pub mod short;

mod artifact;
mod execute;
mod files;
mod modules;
pub mod mutate;
mod onnx;
mod passes;
mod placed;
mod tensors;

use mutate::Form;

/// What is fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// The name, also of the folder of its corpus.
    pub name: &'static str,
    /// What its inputs are.
    pub form: Form,
    /// What is run on an input; true where that was read, and all was done with it.
    pub body: fn(&[u8]) -> bool,
}

/// Every target.
pub const TARGETS: [FuzzTarget; 16] = [
    FuzzTarget { name: "onnx_step", form: Form::Onnx, body: onnx::step },
    FuzzTarget { name: "onnx_forward", form: Form::Onnx, body: onnx::forward },
    FuzzTarget { name: "checkpoint", form: Form::Bytes, body: onnx::checkpoint },
    FuzzTarget { name: "npz", form: Form::Bytes, body: tensors::npz },
    FuzzTarget { name: "safetensors", form: Form::Bytes, body: tensors::safetensors },
    FuzzTarget { name: "envelope", form: Form::Bytes, body: artifact::envelope },
    FuzzTarget { name: "artifact", form: Form::Text, body: artifact::module },
    FuzzTarget { name: "text", form: Form::Text, body: modules::text },
    FuzzTarget { name: "placement", form: Form::Text, body: placed::placement },
    FuzzTarget { name: "memory_graph", form: Form::Text, body: placed::memory_graph },
    FuzzTarget { name: "trace", form: Form::Text, body: placed::trace },
    FuzzTarget { name: "snapshot", form: Form::Text, body: placed::trace },
    FuzzTarget { name: "pipeline_yaml", form: Form::Text, body: passes::pipeline },
    FuzzTarget { name: "device_yaml", form: Form::Text, body: passes::device },
    FuzzTarget { name: "pipelines", form: Form::Choices, body: passes::pipelines },
    FuzzTarget { name: "programs", form: Form::Choices, body: modules::programs },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|t| t.name == name)
}

#[cfg(feature = "libfuzzer")]
#[doc(hidden)]
pub use libfuzzer_sys;

/// The entry points of libFuzzer for the target of this name. Every other change is one of
/// [`mutate`], the rest are libFuzzer's.
#[cfg(feature = "libfuzzer")]
#[macro_export]
macro_rules! libfuzzer {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            if let Some(target) = $crate::target($name) {
                let _ = (target.body)(data);
            }
        });
        $crate::libfuzzer_sys::fuzz_mutator!(|data: &mut [u8],
                                              size: usize,
                                              max: usize,
                                              seed: u32| {
            $crate::changed($name, data, size, max, seed)
        });
    };
}

/// Changes the first `size` bytes within the buffer and gives their new number.
#[cfg(feature = "libfuzzer")]
#[doc(hidden)]
pub fn changed(name: &str, data: &mut [u8], size: usize, max: usize, seed: u32) -> usize {
    let mut random = arenic_programs::Random::new(seed.into());
    if let Some(target) = target(name).filter(|_| random.chance(50)) {
        let input = data[..size].to_vec();
        let new = mutate::mutate(&mut random, target.form, &input, &input);
        if new.len() <= max && !new.is_empty() {
            data[..new.len()].copy_from_slice(&new);
            return new.len();
        }
    }
    libfuzzer_sys::fuzzer_mutate(data, size, max)
}
