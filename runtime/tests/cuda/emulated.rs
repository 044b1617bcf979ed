//! Runs cases through the emulator and the CPU backend, and compares.

use super::{Case, Close, Tensor};
use arenic_emulator::Module as Emulated;
use arenic_emulator::library::compute;
use arenic_ir::op::library::{LibraryCall, describe};
use arenic_ir::{DType, Math, TargetInfo, TensorType};
use arenic_runtime::cuda::nvrtc::{self, Architecture};
use arenic_runtime::cuda::{Argument, HEADERS, Module, Work, lower};
use arenic_runtime::kernel::{Draw, KernelError};
use arenic_runtime::memory::AlignedBytes;
use arenic_runtime::reference::{EvaluateError, evaluate};
use std::path::Path;

const DRAW: Draw = Draw { seed: 7, step: 3 };

/// Orders in which threads run between barriers.
const SEEDS: [u64; 3] = [0, 1, 77];

/// Bytes beside each tensor that must stay as they are.
const GUARD: usize = 256;

/// Kernels that are compiled together.
const CHUNK: usize = 150;

/// `Refusal` of `arenic.cuh`.
#[repr(C)]
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
    /// How a library would compute it.
    call: Option<LibraryCall>,
}

/// Who computes a case.
#[derive(Clone, Copy, Debug)]
enum Route {
    /// Our own kernels, with threads in an order.
    Kernels(u64),
    /// A library.
    Library,
}

/// What the addresses of operands are multiples of.
fn alignments(case: &Case, shifted: bool) -> Vec<u64> {
    let of = |t: &Tensor| if shifted { t.ty.dtype.size() } else { GUARD as u64 };
    case.inputs.iter().map(of).collect()
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
    let mut prepare = |case: Case, unread: usize, shifted: bool| {
        let types: Vec<&TensorType> = case.inputs.iter().map(|t| &t.ty).collect();
        let results = case.op.infer(&types).unwrap_or_else(|e| panic!("{:?}: {e}", case.op));
        let read = |(o, y)| (unread >> o & 1 == 0).then_some(y);
        let wanted: Vec<Option<&TensorType>> = results.iter().enumerate().map(read).collect();
        let alignments = alignments(&case, shifted);
        let target = TargetInfo::CUDA;
        let work = lower(&case.op, &types, &alignments, &wanted, target, &mut module).unwrap();
        let read: Vec<&TensorType> = wanted.iter().copied().flatten().collect();
        let call = describe(&case.op, Math::F32, &types, &read);
        asks_where_it_may(&case, call.as_ref(), &work);
        Prepared { case, results, unread, shifted, work, call }
    };
    let mut prepared = Vec::new();
    for (i, case) in cases.into_iter().enumerate() {
        let all = prepare(case.clone(), 0, i % 2 == 1);
        let results = all.results.len();
        prepared.push(all);
        if results > 1 {
            prepared.push(prepare(case, 1 + i % ((1 << results) - 2), i % 2 == 0));
        }
    }
    let modules = compile(&module);
    compile_for_devices(&module);
    for p in &prepared {
        let operands: Vec<(&TensorType, &[u8])> =
            p.case.inputs.iter().map(|t| (&t.ty, &t.bytes[..])).collect();
        let expected = match evaluate(&p.case.op, &operands, DRAW) {
            Ok(results) => Ok(results),
            Err(EvaluateError::Kernel(e)) => Err(refusal(&e)),
            Err(e) => panic!("{:?}: {e}", p.case.op),
        };
        let types: Vec<&TensorType> = p.case.inputs.iter().map(|t| &t.ty).collect();
        let pairs = p.case.op.in_place_pairs(&types, &p.results.iter().collect::<Vec<_>>());
        let pairs = pairs.into_iter().filter(|&(_, o)| p.is_read(o));
        let places = [None].into_iter().chain(pairs.map(Some));
        let routes = SEEDS.map(Route::Kernels).into_iter();
        let routes: Vec<Route> = routes.chain(p.call.iter().map(|_| Route::Library)).collect();
        for (place, route) in places.flat_map(|place| routes.iter().map(move |r| (place, *r))) {
            let found = p.run(&modules, place, route);
            let label = || {
                let shapes: Vec<String> = types.iter().map(|t| t.to_string()).collect();
                let unread = p.unread;
                format!(
                    "{:?} on {shapes:?}, {place:?} in place, {unread:b} unread, {route:?}",
                    p.case.op
                )
            };
            match (&expected, found) {
                (Ok(expected), Ok(found)) => {
                    for (o, ((ty, expected), found)) in expected.iter().zip(found).enumerate() {
                        if !p.is_read(o) {
                            assert!(found.bytes.iter().all(|&b| b == 0xA5), "{}", label());
                            continue;
                        }
                        if let Some(why) = differs(ty, expected, &found.bytes, p.case.close) {
                            panic!("result {o} of {}: {why}", label());
                        }
                    }
                }
                (Err(expected), Err(found)) => {
                    assert_eq!(found.code, expected.code, "{}", label());
                    assert_eq!(found.node_plus_one, 43, "{}", label());
                }
                (expected, found) => {
                    panic!(
                        "{}: {:?}, on the CPU {:?}",
                        label(),
                        found.err(),
                        expected.as_ref().err()
                    );
                }
            }
        }
    }
    prepared.iter().filter(|p| p.call.is_some()).count()
}

/// A library is asked for what it can compute and what is not too small, and has its workspace.
fn asks_where_it_may(case: &Case, call: Option<&LibraryCall>, work: &[Work]) {
    let asked: Vec<_> = work
        .iter()
        .filter_map(|work| match work {
            Work::Library { request, arguments, own } => Some((request, arguments, own)),
            Work::Launch(_) | Work::Copy { .. } => None,
        })
        .collect();
    let Some(&(request, arguments, own)) = asked.first() else { return };
    assert_eq!((asked.len(), work.len(), Some(&request.call)), (1, 1, call), "{:?}", case.op);
    assert!(!own.is_empty() && arguments.len() == request.call.operands().len() + 1);
    assert_eq!(request.alignments.len(), arguments.len());
    let bytes: u64 = case.inputs.iter().map(|t| t.ty.bytes()).sum();
    assert!(request.workspace >= bytes / 8 || bytes < 4096, "{} of {bytes}", request.workspace);
}

/// Compiles a module in parts, on two threads.
fn compile(module: &Module) -> Vec<Emulated> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/emulated");
    let starts: Vec<usize> = (0..module.len()).step_by(CHUNK).collect();
    let part = |&first: &usize| {
        let source = module.source_of(first..module.len().min(first + CHUNK));
        Emulated::compile(&source, HEADERS, &cache).unwrap_or_else(|e| panic!("{e}"))
    };
    std::thread::scope(|scope| {
        let half = starts.len().div_ceil(2);
        let (first, second) = starts.split_at(half);
        let other = scope.spawn(|| second.iter().map(part).collect::<Vec<_>>());
        let mut all: Vec<Emulated> = first.iter().map(part).collect();
        all.extend(other.join().unwrap());
        all
    })
}

/// Compiles a module by NVRTC, where there is one: what the emulator accepts is C++, and CUDA
/// C++ is a little less.
fn compile_for_devices(module: &Module) {
    if !nvrtc::is_present() {
        let required = std::env::var("ARENIC_REQUIRE_NVRTC").is_ok_and(|v| v == "1");
        assert!(!required, "{}", nvrtc::CompileError::Missing);
        eprintln!("NOT COMPILED FOR GPUs: {}", nvrtc::CompileError::Missing);
        return;
    }
    for architecture in [Architecture::Machine(90), Architecture::Virtual(80)] {
        for first in (0..module.len()).step_by(CHUNK) {
            let source = module.source_of(first..module.len().min(first + CHUNK));
            let image = nvrtc::compile(&source, architecture).unwrap_or_else(|e| panic!("{e}"));
            assert!(!image.is_empty());
        }
    }
}

fn refusal(e: &KernelError) -> Refusal {
    let refusal = Refusal { node_plus_one: 43, ..Refusal::default() };
    match *e {
        KernelError::IndexOutOfRange { index, extent } => {
            Refusal { code: 1, value: index, extent: extent as i64, ..refusal }
        }
        KernelError::DivisionByZero => Refusal { code: 2, ..refusal },
        KernelError::Ratio(_) => Refusal { code: 3, ..refusal },
        ref e => panic!("{e}"),
    }
}

/// Bytes with guards on both sides.
struct Guarded {
    memory: AlignedBytes,
    first: usize,
}

impl Guarded {
    /// Results and scratch are aligned.
    fn new(bytes: &[u8]) -> Guarded {
        Guarded::from(bytes, GUARD)
    }

    fn from(bytes: &[u8], first: usize) -> Guarded {
        let memory = [&vec![0xEE; first], bytes, &[0xEE; GUARD]].concat();
        Guarded { memory: AlignedBytes::copy_of(&memory), first }
    }

    fn address(&self) -> u64 {
        self.memory.as_ptr() as u64 + self.first as u64
    }

    fn bytes(&self, n: usize) -> &[u8] {
        let all = self.memory.as_slice();
        let (before, after) = (&all[..self.first], &all[self.first + n..][..GUARD]);
        assert!([before, after].concat().iter().all(|&b| b == 0xEE), "bytes beside were written");
        &all[self.first..][..n]
    }
}

impl Prepared {
    /// Runs the case by one route; `place` puts a result where an operand is.
    fn run(
        &self,
        modules: &[Emulated],
        place: Option<(usize, usize)>,
        route: Route,
    ) -> Result<Vec<Tensor>, Refusal> {
        let types: Vec<&TensorType> = self.case.inputs.iter().map(|t| &t.ty).collect();
        let result_types: Vec<&TensorType> = self.results.iter().collect();
        let scratch = self.case.op.scratch_bytes(TargetInfo::CUDA, &types, &result_types) as usize;
        // Where a result takes an operand's place, that is a whole tensor.
        let operand = |(i, t): (usize, &Tensor)| match place {
            Some((p, _)) if p == i => Guarded::new(&t.bytes),
            _ if self.shifted => Guarded::from(&t.bytes, GUARD + t.ty.dtype.size() as usize),
            _ => Guarded::new(&t.bytes),
        };
        let inputs: Vec<Guarded> = self.case.inputs.iter().enumerate().map(operand).collect();
        let own = |ty: &TensorType| Guarded::new(&vec![0xA5; ty.bytes() as usize]);
        let outputs: Vec<Guarded> = self.results.iter().map(own).collect();
        let scratch_bytes = Guarded::new(&vec![0xCD; scratch]);
        let result = |o: usize| match place {
            Some((i, paired)) if paired == o => &inputs[i],
            _ => &outputs[o],
        };
        let mut refused = Refusal::default();
        let draw = [DRAW.seed, DRAW.step];
        let refusal = &raw mut refused;
        let word = |argument: &Argument| match *argument {
            Argument::Input(i) => inputs[i].address(),
            Argument::Output(o) => result(o).address(),
            Argument::Scratch(at) => scratch_bytes.address() + at,
            Argument::Draw => draw.as_ptr() as u64,
            Argument::Refusal => refusal as u64,
            Argument::Node => 42,
        };
        match (route, &self.call) {
            (Route::Kernels(seed), _) => {
                for work in &self.work {
                    self.kernels(work, modules, seed, word);
                }
            }
            (Route::Library, Some(call)) => {
                let operands = call.operands().iter().map(|&i| inputs[i].address());
                let addresses: Vec<u64> = operands.chain([result(0).address()]).collect();
                // SAFETY: the tensors that it was made for.
                unsafe { compute(call, &addresses) };
            }
            (Route::Library, None) => unreachable!("no library can compute this"),
        }
        scratch_bytes.bytes(scratch);
        for (i, t) in self.case.inputs.iter().enumerate() {
            let kept = inputs[i].bytes(t.bytes.len()) == t.bytes;
            assert!(kept || place.is_some_and(|(p, _)| p == i), "operand {i} was written");
        }
        if refused != Refusal::default() {
            return Err(refused);
        }
        let tensor = |(o, ty): (usize, &TensorType)| {
            outputs[o].bytes(ty.bytes() as usize);
            let bytes = result(o).bytes(ty.bytes() as usize).to_vec();
            Tensor { ty: ty.clone(), bytes }
        };
        Ok(self.results.iter().enumerate().map(tensor).collect())
    }

    /// Does one thing by our own kernels.
    fn kernels(
        &self,
        work: &Work,
        modules: &[Emulated],
        seed: u64,
        word: impl Fn(&Argument) -> u64,
    ) {
        let launches = match work {
            Work::Copy { from, to, bytes } => {
                let (from, to) = (word(from), word(to));
                if from != to {
                    // SAFETY: both tensors have these bytes.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            from as *const u8,
                            to as *mut u8,
                            *bytes as usize,
                        );
                    };
                }
                return;
            }
            Work::Launch(launch) => std::slice::from_ref(launch),
            Work::Library { own, .. } => own,
        };
        for launch in launches {
            let words: Vec<u64> = launch.arguments.iter().map(&word).collect();
            let number = cranelift_entity::EntityRef::index(launch.kernel);
            let (name, threads) = (launch.kernel.to_string(), [launch.threads, 1, 1]);
            let module = &modules[number / CHUNK];
            // SAFETY: the kernel's own parameters.
            unsafe { module.launch(&name, launch.grid, threads, seed, &words) }
                .unwrap_or_else(|e| panic!("{:?}: {e}", self.case.op));
        }
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
    let floats = |bytes: &[u8]| -> Vec<f64> {
        match ty.dtype {
            DType::F32 => {
                bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect()
            }
            _ => bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
        }
    };
    for (at, (a, b)) in floats(expected).into_iter().zip(floats(found)).enumerate() {
        let near = (a - b).abs() <= close.absolute + close.relative * a.abs();
        if !(near || a == b || a.is_nan() && b.is_nan()) {
            return Some(format!("element {at}: {b}, not {a}"));
        }
    }
    None
}
