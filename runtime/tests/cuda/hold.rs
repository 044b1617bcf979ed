//! Runs cases on a device, simulated or not, and by the CPU backend, and compares.

use super::device::{CHUNK, Device, GUARD, Image, Job};
use super::pairs::placements;
use super::{Case, Close, Tensor, place};
use arenic_backends::CUDA;
use arenic_backends::cuda::library::{LibraryCall, describe};
use arenic_ir::types::bf16;
use arenic_ir::{DType, Op, TargetInfo, TensorType};
use arenic_runtime::cuda::driver::AlgorithmCandidate;
use arenic_runtime::cuda::nvrtc::{self, Architecture};
use arenic_runtime::cuda::{Argument, HEADERS, Module, Request, Work, lower};
use arenic_runtime::kernel::{Draw, KernelError};
use arenic_runtime::reference::{EvaluateError, evaluate};
use std::fs;
use std::path::Path;

/// Rounds that cases take in turn.
const ROUNDS: [u64; 3] = [0, 3, 1 << 33];

/// The number of the node that runs.
const NODE: u64 = 42;

/// `Refusal` of `arenic.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refusal {
    node_plus_one: u64,
    code: u64,
    value: i64,
    extent: i64,
}

/// A case ready to run.
struct Prepared {
    case: Case,
    results: Vec<TensorType>,
    /// Results that nobody reads, as bits.
    unread: usize,
    /// Operands begin at any element: they may be parts of tensors.
    shifted: bool,
    work: Vec<Work>,
    draw: Draw,
    /// How a library would compute it.
    call: Option<LibraryCall>,
}

/// What the addresses of operands are multiples of.
fn alignments(case: &Case, shifted: bool) -> Vec<u64> {
    let of = |t: &Tensor| if shifted { t.ty.dtype.size() } else { GUARD as u64 };
    case.inputs.iter().map(of).collect()
}

impl Case {
    fn target(&self) -> TargetInfo {
        TargetInfo { math: self.math, ..CUDA.target() }
    }
}

impl Prepared {
    fn is_read(&self, o: usize) -> bool {
        self.unread >> o & 1 == 0
    }
}

/// Every case gives what the CPU backend gives; one with several results also where some of
/// them are not read, and one that a library can compute also by its description. Returns how
/// many of those there are.
pub(super) fn hold(cases: Vec<Case>) -> usize {
    let mut module = Module::default();
    let mut rounds = ROUNDS.into_iter().cycle();
    let mut prepare = |case: Case, unread: usize, shifted: bool| {
        let draw = Draw { seed: 7, step: 3, round: rounds.next().unwrap_or(0) };
        let types: Vec<&TensorType> = case.inputs.iter().map(|t| &t.ty).collect();
        let results = case.op.infer(&types).unwrap_or_else(|e| panic!("{:?}: {e}", case.op));
        let read = |(o, y)| (unread >> o & 1 == 0).then_some(y);
        let wanted: Vec<Option<&TensorType>> = results.iter().enumerate().map(read).collect();
        let alignments = alignments(&case, shifted);
        let target = case.target();
        let work = lower(&case.op, &types, &alignments, &wanted, target, &mut module).unwrap();
        let read: Vec<&TensorType> = wanted.iter().map_while(|y| *y).collect();
        let call = describe(&case.op, case.math, &types, &read).ok();
        asks_where_it_may(&case, call.as_ref(), &work);
        Prepared { case, results, unread, shifted, work, draw, call }
    };
    let mut prepared = Vec::new();
    for (i, case) in cases.into_iter().enumerate() {
        let all = prepare(case.clone(), 0, i % 4 > 1);
        let results = all.results.len();
        prepared.push(all);
        if results > 1 {
            prepared.push(prepare(case, 1 + i % ((1 << results) - 2), i % 4 < 2));
        }
    }
    let devices = Device::all(&module);
    if place::gpu().is_none() {
        compile_for_devices(&module);
    }
    for p in &prepared {
        let operands: Vec<(&TensorType, &[u8])> =
            p.case.inputs.iter().map(|t| (&t.ty, &t.bytes[..])).collect();
        let expected = match evaluate(&p.case.op, &operands, p.draw) {
            Ok(results) => Ok(results),
            Err(EvaluateError::Kernel(e)) => Err(refusal(&e)),
            Err(e) => panic!("{:?}: {e}", p.case.op),
        };
        let types: Vec<&TensorType> = p.case.inputs.iter().map(|t| &t.ty).collect();
        let pairs = p.case.op.in_place_pairs(&types, &p.results.iter().collect::<Vec<_>>());
        let pairs: Vec<_> = pairs.into_iter().filter(|&(_, o)| p.is_read(o)).collect();
        // The first is the one in which nothing is in place.
        let places = placements(&pairs, &p.case.roots(), p.results.len());
        for device in &devices {
            let ways = p.library(device).into_iter().map(Some);
            for way in [None].into_iter().chain(ways) {
                let mut apart = None;
                for place in &places {
                    let label = || p.label(place, device, way.as_ref());
                    let Some(found) = p.run(device, place, way.as_ref()) else { continue };
                    let expected = match way {
                        Some(_) => expected.clone().map(|results| by_library(&p.case.op, results)),
                        None => expected.clone(),
                    };
                    p.compare(&expected, &found, p.close(way.as_ref()), &label);
                    let Ok(found) = found else { continue };
                    let apart = apart.get_or_insert_with(|| found.clone());
                    assert!(*apart == found, "other bits than apart: {}", label());
                }
            }
        }
    }
    prepared.iter().filter(|p| p.call.is_some()).count()
}

/// What a library takes: operands in its order, one that is made before, then results.
fn addresses(call: &LibraryCall, scratch: u64) -> impl Iterator<Item = Argument> {
    let made = call.made_bytes();
    let operands = call.operands().iter().map(|&i| Argument::Input(i));
    let operands = operands.chain((made > 0).then(|| Argument::Scratch(scratch - made)));
    operands.chain(call.results().iter().map(|&o| Argument::Output(o)))
}

/// A library is asked for what it can compute and what is not too small, and has its workspace.
fn asks_where_it_may(case: &Case, call: Option<&LibraryCall>, work: &[Work]) {
    let asked: Vec<_> = work
        .iter()
        .filter_map(|work| match work {
            Work::Library(asked) => Some((&asked.request, &asked.arguments, &asked.instead)),
            Work::Launch(_) | Work::Copy { .. } | Work::Exchange { .. } => None,
        })
        .collect();
    let Some(&(request, arguments, instead)) = asked.first() else { return };
    // The product alone, where addresses are none that the library has it with its function for.
    let has_function = matches!(case.op, Op::GemmGelu { .. } | Op::GemmGeluGrad { .. });
    let is_all = work.len() == 1 && Some(&request.call) == call;
    assert!(asked.len() == 1 && (is_all || has_function), "{:?}: {request:?}", case.op);
    assert!(!instead.is_empty() && arguments.len() == addresses(&request.call, u64::MAX).count());
    assert_eq!(request.alignments.len(), arguments.len());
    let bytes: u64 = case.inputs.iter().map(|t| t.ty.bytes()).sum();
    // Those of an attention do with little.
    let is_forward = matches!(&request.call, LibraryCall::Attention(a) if !a.gradients);
    let has_some = request.workspace >= if is_forward { 1024 } else { bytes / 8 };
    assert!(has_some || bytes < 4096, "{} of {bytes}", request.workspace);
}

/// Holds a module against CUDA C++ by NVRTC, where there is one: what the emulator accepts is C++, and CUDA C++ is a
/// little less. `make test-all` makes machine code and PTX of it, too, which takes ten times as long; in `make test`
/// `machine_code` does that with some kernels, among them all that hold PTX. A text that was accepted is marked in the
/// target folder, and not looked at again.
fn compile_for_devices(module: &Module) {
    let Some((major, minor)) = nvrtc::version() else {
        let required = std::env::var("ARENIC_REQUIRE_NVRTC").is_ok_and(|v| v == "1");
        assert!(!required, "{}", nvrtc::CompileError::Missing);
        eprintln!("NOT COMPILED FOR GPUs: {}", nvrtc::CompileError::Missing);
        return;
    };
    let marks = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("../nvrtc-{major}.{minor}"));
    fs::create_dir_all(&marks).unwrap();
    // How NVRTC is asked counts, too.
    let asked = [("nvrtc.rs", include_str!("../../src/cuda/nvrtc.rs"))];
    let headers = [HEADERS, &asked].concat();
    let check = |source: &str| nvrtc::check(source, 90);
    let machine = |source: &str| nvrtc::compile(source, Architecture::Machine(90)).map(|_| ());
    let older = |source: &str| nvrtc::compile(source, Architecture::Virtual(80)).map(|_| ());
    type Way<'a> = (&'a str, &'a dyn Fn(&str) -> Result<(), nvrtc::CompileError>);
    let ways: &[Way] = match std::env::var_os("ARENIC_WIDE") {
        None => &[("checked", &check)],
        Some(_) => &[("sm_90", &machine), ("compute_80", &older)],
    };
    for (name, accepts) in ways {
        for first in (0..module.len()).step_by(CHUNK) {
            let source = module.source_of(first..module.len().min(first + CHUNK));
            let digest = arenic_emulator::digest(&source, &headers);
            let mark = marks.join(format!("{digest}.{name}"));
            if mark.exists() {
                continue;
            }
            accepts(&source).unwrap_or_else(|e| panic!("{e}"));
            fs::write(mark, []).unwrap();
        }
    }
}

/// What a library gives where the CPU gives this: of a row of an attention's scores one number and a 1.
fn by_library(op: &Op, mut results: Vec<(TensorType, Vec<u8>)>) -> Vec<(TensorType, Vec<u8>)> {
    if !matches!(op, Op::Attention { .. }) {
        return results;
    }
    let [max, sum] = [1, 2].map(|o| floats(DType::F32, &results[o].1));
    let logarithms = max.iter().zip(&sum).map(|(max, sum)| (max + sum.ln()) as f32);
    results[1].1 = logarithms.flat_map(f32::to_le_bytes).collect();
    results[2].1 = max.iter().flat_map(|_| 1f32.to_le_bytes()).collect();
    results
}

fn refusal(e: &KernelError) -> Refusal {
    let refusal = Refusal { node_plus_one: NODE + 1, ..Refusal::default() };
    match *e {
        KernelError::IndexOutOfRange { index, extent } => {
            Refusal { code: 1, value: index, extent: extent as i64, ..refusal }
        }
        KernelError::DivisionByZero => Refusal { code: 2, ..refusal },
        KernelError::Ratio(_) => Refusal { code: 3, ..refusal },
        ref e => panic!("{e}"),
    }
}

impl Prepared {
    /// The ways of the device's libraries to compute the case.
    fn library(&self, device: &Device) -> Vec<AlgorithmCandidate> {
        let Some(call) = &self.call else { return Vec::new() };
        let alignments = alignments(&self.case, self.shifted);
        let of = |argument| match argument {
            Argument::Input(i) => alignments[i],
            _ => GUARD as u64,
        };
        let scratch = self.scratch_bytes();
        let alignments: Vec<u64> = addresses(call, scratch).map(of).collect();
        // What is beside a call is launched where an operator asks for it.
        let is_apart = matches!(call, LibraryCall::Attention(_)) && self.beside().is_none();
        if !call.takes(&alignments) || is_apart {
            return Vec::new();
        }
        let workspace = scratch - call.made_bytes();
        device.ways(&Request { call: call.clone(), alignments, workspace })
    }

    /// The kernels before a library's call and after it, where the operator asks for one.
    fn beside(&self) -> Option<[&[Work]; 2]> {
        match &self.work[..] {
            [Work::Library(asked)] => Some([&asked.before, &asked.after]),
            _ => None,
        }
    }

    fn scratch_bytes(&self) -> u64 {
        let types: Vec<&TensorType> = self.case.inputs.iter().map(|t| &t.ty).collect();
        let results: Vec<&TensorType> = self.results.iter().collect();
        self.case.op.scratch_bytes(self.case.target(), &types, &results)
    }

    fn label(
        &self,
        place: &[(usize, usize)],
        device: &Device,
        way: Option<&AlgorithmCandidate>,
    ) -> String {
        let shapes: Vec<String> = self.case.inputs.iter().map(|t| t.ty.to_string()).collect();
        let (unread, device) = (self.unread, &device.label);
        let way = way.map_or("kernels", |way| &way.name);
        let (op, roots) = (&self.case.op, self.case.roots());
        format!(
            "{op:?} in {:?} on {shapes:?} of {roots:?}, {place:?} in place, {unread:b} unread, {device}, {way}",
            self.case.math
        )
    }

    /// How near to the CPU's a result is in this way.
    fn close(&self, way: Option<&AlgorithmCandidate>) -> Close {
        let close = self.case.close;
        let Some(LibraryCall::Convolution(c)) = self.call.as_ref().filter(|_| way.is_some()) else {
            return close;
        };
        if !(c.bias && c.dtype == DType::Bf16) {
            return close;
        }
        // The sum is rounded, then the bias is added: a sum that the bias cancels is off by its own
        // last bit, and is no larger than result and bias together.
        let bias = floats(c.dtype, &self.case.inputs[2].bytes)
            .into_iter()
            .fold(0.0, |most: f64, x| most.max(x.abs()));
        Close { absolute: close.absolute + bias / 256.0, ..close }
    }

    /// Holds what was found against what the CPU backend gives.
    fn compare(
        &self,
        expected: &Result<Vec<(TensorType, Vec<u8>)>, Refusal>,
        found: &Result<Vec<Tensor>, Refusal>,
        close: Close,
        label: &dyn Fn() -> String,
    ) {
        match (expected, found) {
            (Ok(expected), Ok(found)) => {
                for (o, ((ty, expected), found)) in expected.iter().zip(found).enumerate() {
                    if !self.is_read(o) {
                        assert!(found.bytes.iter().all(|&b| b == 0xA5), "{}", label());
                        continue;
                    }
                    if let Some(why) = differs(ty, expected, &found.bytes, close) {
                        panic!("result {o} of {}: {why}", label());
                    }
                }
            }
            (Err(expected), Err(found)) => {
                assert_eq!(found.code, expected.code, "{}", label());
                assert_eq!(found.node_plus_one, NODE + 1, "{}", label());
            }
            (expected, found) => {
                let (found, expected) = (found.as_ref().err(), expected.as_ref().err());
                panic!("{}: {found:?}, on the CPU {expected:?}", label());
            }
        }
    }

    /// Runs the case by our own kernels or in a library's way; `place` puts results where operands
    /// are. None where the library refuses after all.
    fn run(
        &self,
        device: &Device,
        place: &[(usize, usize)],
        way: Option<&AlgorithmCandidate>,
    ) -> Option<Result<Vec<Tensor>, Refusal>> {
        let mut image = Image::new();
        let roots = self.case.roots();
        let is_taken = |i: usize| place.iter().any(|&(p, _)| p == roots[i]);
        let mut inputs: Vec<usize> = Vec::new();
        for (i, t) in self.case.inputs.iter().enumerate() {
            // Where a result takes an operand's place, that is a whole tensor.
            let is_whole = !self.shifted || is_taken(i);
            inputs.push(match roots[i] {
                root if root < i => inputs[root],
                _ => image.put(&t.bytes, if is_whole { 0 } else { t.ty.dtype.size() as usize }),
            });
        }
        let own = |ty: &TensorType| image.put(&vec![0xA5; ty.bytes() as usize], 0);
        let outputs: Vec<usize> = self.results.iter().map(own).collect();
        let scratch = image.put(&vec![0xCD; self.scratch_bytes() as usize], 0);
        let words = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
        let Draw { seed, step, round } = self.draw;
        let draw = image.put(&words(&[seed, step, round]), 0);
        let refused = image.put(&words(&[0; 4]), 0);
        let result = |o: usize| match place.iter().find(|&&(_, paired)| paired == o) {
            Some(&(i, _)) => inputs[i],
            None => outputs[o],
        };
        let starts: Vec<u64> = (0..=refused).map(|piece| image.at(piece)).collect();
        let word = |argument: &Argument, base: u64| match *argument {
            Argument::Input(i) => base + starts[inputs[i]],
            Argument::Output(o) => base + starts[result(o)],
            Argument::Scratch(at) => base + starts[scratch] + at,
            Argument::Draw => base + starts[draw],
            Argument::Refusal => base + starts[refused],
            Argument::Node => NODE,
            Argument::Rank => 0,
            Argument::Number(number) => number,
        };
        let job = match (way, &self.call) {
            (Some(way), Some(call)) => Job::Call {
                call: way.call,
                arguments: addresses(call, self.scratch_bytes()).collect(),
                beside: self.beside().unwrap_or_default(),
            },
            _ => Job::Kernels(&self.work),
        };
        match device.run(&mut image, &job, word) {
            Ok(()) => {}
            Err(_) if way.is_some() => return None,
            Err(e) => panic!("{:?}: {e}", self.case.op),
        }
        assert!(image.is_guarded(), "{:?}: bytes beside were written", self.case.op);
        for (i, t) in self.case.inputs.iter().enumerate() {
            let kept = image.read(inputs[i]) == t.bytes;
            assert!(kept || is_taken(i), "operand {i} was written");
        }
        let found: Vec<u64> = image
            .read(refused)
            .as_chunks()
            .0
            .iter()
            .map(|&word| u64::from_le_bytes(word))
            .collect();
        if found[0] != 0 {
            return Some(Err(Refusal {
                node_plus_one: found[0],
                code: found[1],
                value: found[2].cast_signed(),
                extent: found[3].cast_signed(),
            }));
        }
        let tensor = |(o, ty): (usize, &TensorType)| Tensor {
            ty: ty.clone(),
            bytes: image.read(result(o)).to_vec(),
        };
        Some(Ok(self.results.iter().enumerate().map(tensor).collect()))
    }
}

/// Elements of a type of floats.
fn floats(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::Bf16 => {
            let wide = |&b| f64::from(bf16::to_f32(u16::from_le_bytes(b)));
            bytes.as_chunks().0.iter().map(wide).collect()
        }
        DType::F32 => {
            bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect()
        }
        _ => bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
    }
}

/// Where two tensors are not as close as they should be.
fn differs(ty: &TensorType, expected: &[u8], found: &[u8], close: Close) -> Option<String> {
    if !ty.dtype.is_float() {
        let size = ty.dtype.size() as usize;
        let at = expected.chunks(size).zip(found.chunks(size)).position(|(a, b)| a != b)?;
        let piece = |x: &[u8]| x[at * size..][..size].to_vec();
        return Some(format!("element {at}: {:?}, not {:?}", piece(found), piece(expected)));
    }
    // What is rounded on one side of a tie may be on the other of the next.
    let rounding = if ty.dtype == DType::Bf16 && close.relative > 0.0 { 1.0 / 128.0 } else { 0.0 };
    let relative = close.relative + rounding;
    for (at, (a, b)) in
        floats(ty.dtype, expected).into_iter().zip(floats(ty.dtype, found)).enumerate()
    {
        let near = (a - b).abs() <= close.absolute + relative * a.abs();
        if !(near || a == b || a.is_nan() && b.is_nan()) {
            return Some(format!("element {at}: {b}, not {a}"));
        }
    }
    None
}
