//! Races within a block: every family of kernels that shares memory runs under ThreadSanitizer with a thread
//! of the system for each of a block's, without a report, and with the bits of the emulator. Each barrier of
//! their text, removed, must give a report (`make test-all`): else the barrier is not needed, or the cases do
//! not show it.

#[path = "../support/lowered.rs"]
mod lowered;

use arenic_emulator::races::{BASE, Launch, Program};
use arenic_ir::types::bf16;
use arenic_ir::{DType, Math, TensorType};
use arenic_runtime::cuda::{Argument, HEADERS, Module, Work};
use lowered::{Lowered, lowered};
use std::fs;
use std::path::{Path, PathBuf};

/// An operator that shares memory.
struct Case {
    name: &'static str,
    /// The files with barriers that its kernels come to; empty for the text that is made for it.
    files: &'static [&'static str],
    math: Math,
    /// The operator and its operands.
    graph: &'static str,
}

const fn case(
    name: &'static str,
    files: &'static [&'static str],
    math: Math,
    graph: &'static str,
) -> Case {
    Case { name, files, math, graph }
}

/// Each loop over tiles is run twice or more, and each function that shares memory called twice, where its barriers
/// are for that.
const CASES: &[Case] = &[
    case(
        "layer norm by a block",
        &["arenic.cuh"],
        Math::F32,
        r#"layer_norm {"axis":1,"epsilon":1e-5} (v0: f32[2,1500], v1: f32[1500], v2: f32[1500])"#,
    ),
    case("softmax by a block", &[], Math::F32, r#"softmax {"axis":1} (v0: f32[2,1500])"#),
    case(
        "statistics of log softmax by a block",
        &[],
        Math::F32,
        "log_softmax_stats (v0: f32[2,1500])",
    ),
    case(
        "sums of columns",
        &["reduce.cuh"],
        Math::F32,
        r#"reduce {"f":"sum","axes":[0],"keep":false} (v0: f32[600,48])"#,
    ),
    case(
        "batch norm",
        &[],
        Math::F32,
        r#"batch_norm {"epsilon":1e-5} (v0: f32[4,3,16,16], v1: f32[3], v2: f32[3])"#,
    ),
    case("transpose", &["movement.cuh"], Math::F32, r#"transpose {"perm":[1,0]} (v0: f32[70,65])"#),
    case("product", &["product.cuh"], Math::F32, "mat_mul (v0: f32[70,40], v1: f32[40,65])"),
    case(
        "convolution",
        &[],
        Math::F32,
        r#"conv {"window":{"kernel":[3,3],"strides":[1,1],"pads_begin":[1,1],"pads_end":[1,1],"dilations":[1,1]},"group":1} (v0: f32[1,3,8,8], v1: f32[5,3,3,3])"#,
    ),
    case(
        "scatter",
        &["indexing.cuh"],
        Math::F32,
        r#"scatter_elements {"axis":0,"reduction":"add"} (v0: f32[40], v1: i64[300], v2: f32[300])"#,
    ),
    case(
        "update",
        &[""],
        Math::F32,
        r#"adam {"alpha":0.9,"beta":0.99,"epsilon":0.001,"norm_coefficient":0.0,"norm_coefficient_post":0.0} (v0: f32[], v1: i64[], v2: f32[5000], v3: f32[5000], v4: f32[5000], v5: f32[5000])"#,
    ),
    case(
        "attention",
        &["attention.cuh", "warp.cuh"],
        Math::F32,
        r#"attention {"spec":{"scale":0.5}} (v0: f32[1,40,16], v1: f32[1,70,16], v2: f32[1,70,16])"#,
    ),
    case(
        "gradient of attention",
        &["attention.cuh", "warp.cuh"],
        Math::F32,
        r#"attention_grad {"spec":{"scale":0.5}} (v0: f32[1,70,16], v1: f32[1,40,16], v2: f32[1,40,16], v3: f32[1,70], v4: f32[1,70], v5: f32[1,70,16])"#,
    ),
    case(
        "gradient of a mask",
        &["attention.cuh"],
        Math::F32,
        r#"attention_grad {"spec":{"scale":0.5},"of_mask":true} (v0: f32[2,20,16], v1: f32[2,20,16], v2: f32[2,20,16], v3: f32[2,20], v4: f32[2,20], v5: f32[2,20,16], v6: f32[20,20])"#,
    ),
    case(
        "attention in TF32",
        &[],
        Math::Tf32,
        r#"attention {"spec":{"scale":0.5}} (v0: f32[1,40,16], v1: f32[1,70,16], v2: f32[1,70,16])"#,
    ),
    case(
        "gradient of attention in bf16",
        &[],
        Math::F32,
        r#"attention_grad {"spec":{"scale":0.5,"causal":true,"positions_first":true},"has_result":true} (v0: bf16[1,70,1,16], v1: bf16[1,70,1,16], v2: bf16[1,70,1,16], v3: f32[1,1,70], v4: f32[1,1,70], v5: bf16[1,70,1,16], v6: bf16[1,70,1,16])"#,
    ),
];

/// The barriers of a text.
const BARRIERS: [&str; 2] = ["__syncthreads();", "__syncwarp();"];

fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../emulated")
}

/// What a case launches, in memory that begins at an address.
struct Ready {
    module: Module,
    work: Vec<Work>,
    memory: Vec<u8>,
    inputs: Vec<u64>,
    outputs: Vec<u64>,
    scratch: u64,
    draw: u64,
    refusal: u64,
}

impl Ready {
    fn of(case: &Case) -> Ready {
        let mut module = Module::default();
        let Lowered { inputs: x, results: y, scratch_bytes, work } =
            lowered(case.graph, case.math, &mut module);
        let mut memory = Vec::new();
        let mut put = |bytes: Vec<u8>| {
            let at = memory.len() as u64;
            memory.extend(bytes);
            memory.resize((memory.len() + 256).next_multiple_of(256), 0xEE);
            at
        };
        let inputs = x.iter().enumerate().map(|(i, ty)| put(filled(ty, i as u64))).collect();
        let outputs = y.iter().map(|ty| put(vec![0xA5; ty.bytes() as usize])).collect();
        let scratch = put(vec![0xCD; scratch_bytes as usize]);
        let draw = put(vec![0; 24]);
        let refusal = put(vec![0; 32]);
        Ready { module, work, memory, inputs, outputs, scratch, draw, refusal }
    }

    fn word(&self, argument: &Argument, base: u64) -> u64 {
        match *argument {
            Argument::Input(i) => base + self.inputs[i],
            Argument::Output(o) => base + self.outputs[o],
            Argument::Scratch(at) => base + self.scratch + at,
            Argument::Draw => base + self.draw,
            Argument::Refusal => base + self.refusal,
            Argument::Node => 0,
            Argument::Rank => 0,
            Argument::Number(number) => number,
        }
    }

    /// The launches of our own kernels, with memory at an address; what is copied before is copied
    /// at once.
    fn launches(&mut self, base: u64) -> Vec<Launch> {
        let work = std::mem::take(&mut self.work);
        let mut launches = Vec::new();
        self.add(&work, base, &mut launches);
        self.work = work;
        launches
    }

    fn add(&mut self, works: &[Work], base: u64, launches: &mut Vec<Launch>) {
        for work in works {
            match work {
                Work::Launch(launch) => launches.push(Launch {
                    kernel: launch.kernel.to_string(),
                    grid: launch.grid,
                    threads: launch.threads,
                    words: launch.arguments.iter().map(|a| self.word(a, base)).collect(),
                }),
                Work::Copy { from, to, bytes } => {
                    assert!(launches.is_empty(), "a copy between kernels");
                    let [from, to] = [from, to].map(|a| self.word(a, 0) as usize);
                    self.memory.copy_within(from..from + *bytes as usize, to);
                }
                Work::Library(asked) => self.add(&asked.instead, base, launches),
                // What others would have sent is in scratch.
                Work::Exchange { .. } => {}
            }
        }
    }

    /// What the sanitizer reports, and the memory afterwards.
    fn race(&mut self, source: &str, headers: &[(&str, &str)]) -> (Vec<String>, Vec<u8>) {
        let program = Program::compile(source, headers, &cache()).unwrap_or_else(|e| panic!("{e}"));
        let launches = self.launches(BASE);
        let mut memory = self.memory.clone();
        let reports = program.run(&mut memory, &launches).unwrap_or_else(|e| panic!("{e}"));
        (reports, memory)
    }

    /// The memory after the emulator, whose threads run one after another.
    fn emulated(&mut self) -> Vec<u8> {
        let source = self.module.source();
        let module = arenic_emulator::Module::compile(&source, HEADERS, &cache()).unwrap();
        let launches = self.launches(0);
        let mut memory = vec![0; self.memory.len() + 256];
        let first = memory.as_ptr() as usize;
        let shift = first.next_multiple_of(256) - first;
        memory[shift..][..self.memory.len()].copy_from_slice(&self.memory);
        let base = (first + shift) as u64;
        for (launch, place) in launches.iter().zip(self.launches(base)) {
            let Launch { kernel, grid, threads, .. } = launch;
            // SAFETY: all addresses are those of this memory.
            unsafe { module.launch(kernel, *grid, [*threads, 1, 1], 0, &place.words) }.unwrap();
        }
        memory[shift..][..self.memory.len()].to_vec()
    }
}

/// Numbers in [0.5, 1.5), and small integers.
fn filled(ty: &TensorType, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::new();
    for _ in 0..ty.elements() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let x = 0.5 + (state >> 40) as f32 / (1u64 << 24) as f32;
        match ty.dtype {
            DType::F32 => bytes.extend(x.to_le_bytes()),
            DType::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
            DType::I64 => bytes.extend((state % 30 + 1).to_le_bytes()),
            dtype => panic!("no case has {dtype:?}"),
        }
    }
    bytes
}

/// A kernel has a thread of the system for each of its own, under a sanitizer: seconds for each case.
#[test]
fn kernels_that_share_memory_have_no_races() {
    for case in CASES {
        let mut ready = Ready::of(case);
        let source = ready.module.source();
        // What has been run without a report is marked, and not run again.
        let about = [HEADERS, &[("emulated", include_str!("main.rs"))]].concat();
        let digest = arenic_emulator::digest(&source, &about);
        let mark = cache().join(format!("{digest}.no-race"));
        if mark.exists() {
            continue;
        }
        let (reports, found) = ready.race(&source, HEADERS);
        assert!(reports.is_empty(), "{}: {reports:#?}", case.name);
        assert!(found == ready.emulated(), "{}: other bits than emulated", case.name);
        assert!(found != ready.memory, "{}: nothing was written", case.name);
        fs::write(mark, []).unwrap();
    }
}

/// A text without one of its barriers.
fn without(text: &str, at: usize, barrier: &str) -> String {
    format!("{};{}", &text[..at], &text[at + barrier.len()..])
}

/// The places of all barriers of a text, in order.
fn barriers(text: &str) -> Vec<(usize, &'static str)> {
    let mut all: Vec<_> = BARRIERS
        .into_iter()
        .flat_map(|barrier| text.match_indices(barrier).map(move |(at, _)| (at, barrier)))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn every_barrier_that_is_removed_is_missed() {
    if std::env::var_os("ARENIC_WIDE").is_none() {
        return;
    }
    let mut missing = Vec::new();
    let mut count = 0;
    let mut remove = |file: &str, nth: usize, show: &dyn Fn() -> bool| {
        count += 1;
        if !show() {
            missing.push(format!("barrier {nth} of `{file}`"));
        }
    };
    for &(file, text) in HEADERS {
        for (nth, (at, barrier)) in barriers(text).into_iter().enumerate() {
            let changed = without(text, at, barrier);
            let replaced = |&(name, text): &(&'static str, &'static str)| {
                (name, if name == file { changed.as_str() } else { text })
            };
            let headers: Vec<(&str, &str)> = HEADERS.iter().map(replaced).collect();
            remove(file, nth, &|| {
                CASES.iter().filter(|case| case.files.contains(&file)).any(|case| {
                    let mut ready = Ready::of(case);
                    let source = ready.module.source();
                    !ready.race(&source, &headers).0.is_empty()
                })
            });
        }
    }
    // Those in the text that is made for an operator.
    for case in CASES.iter().filter(|case| case.files.contains(&"")) {
        let mut ready = Ready::of(case);
        let source = ready.module.source();
        for (nth, (at, barrier)) in barriers(&source).into_iter().enumerate() {
            let changed = without(&source, at, barrier);
            let reports = ready.race(&changed, HEADERS).0;
            remove(case.name, nth, &|| !reports.is_empty());
        }
    }
    assert!(count >= 16, "{count} barriers were removed");
    assert!(missing.is_empty(), "without these no case has a race: {missing:#?}");
}
