//! Kernels against naive evaluation, index by index, over many small shapes; and what
//! every kernel promises besides: the same bits in place and on any number of threads.

mod elementwise;
mod indexed;
mod moved;
mod products;
mod random;
mod updated;

use crate::cpu;
use crate::kernel::{Call, Destination, Draw, Element, KernelError, Operand, Scratch};
use crate::memory::AlignedBytes;
use arenic_backends::CPU;
use arenic_ir::types::bf16;
use arenic_ir::{DType, Op, TensorType};
use rayon::ThreadPoolBuilder;

/// A tensor in bytes of its own.
#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    ty: TensorType,
    bytes: Vec<u8>,
}

/// Element types as tests write them.
trait Typed: Element + PartialEq + std::fmt::Debug {
    const DTYPE: DType;
}

macro_rules! typed {
    ($($t:ty: $d:ident),*) => {$(
        impl Typed for $t {
            const DTYPE: DType = DType::$d;
        }
    )*};
}
typed!(u8: U8, i8: I8, u16: U16, i16: I16, u32: U32, i32: I32, u64: U64, i64: I64, f32: F32, f64: F64);

impl Tensor {
    fn new<T: Typed>(shape: &[usize], values: &[T]) -> Tensor {
        let ty = TensorType::new(T::DTYPE, shape);
        assert_eq!(ty.elements(), values.len());
        // SAFETY: numbers have no padding.
        let bytes = unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values))
        };
        Tensor { ty, bytes: bytes.to_vec() }
    }

    /// The elements; those of any type of `T`'s size.
    fn values<T: Element>(&self) -> Vec<T> {
        assert_eq!(self.ty.dtype.size() as usize, size_of::<T>());
        self.bytes
            .chunks_exact(size_of::<T>())
            // SAFETY: the bytes of one element.
            .map(|b| unsafe { b.as_ptr().cast::<T>().read_unaligned() })
            .collect()
    }
}

/// Draws test data; the same every time.
struct Source(u64);

impl Source {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    /// Up to `rank` axes, the first perhaps long; 1 often and 0 now and then.
    fn shape(&mut self, rank: usize) -> Vec<usize> {
        (0..self.below(rank + 1))
            .map(|i| if i == 0 { self.extent() } else { self.extent().min(6) })
            .collect()
    }

    fn extent(&mut self) -> usize {
        match self.below(40) {
            0 => 0,
            1..=9 => 1,
            10..=36 => 2 + self.below(5),
            _ => 60 + self.below(20),
        }
    }

    /// A shape that broadcasts to `shape`.
    fn broadcast_to(&mut self, shape: &[usize]) -> Vec<usize> {
        let skip = if self.below(3) == 0 { self.below(shape.len() + 1) } else { 0 };
        shape[skip..].iter().map(|&d| if self.below(3) == 0 { 1 } else { d }).collect()
    }

    /// Elements of a type: small numbers, extremes, and for floats the special ones.
    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let ty = TensorType::new(dtype, shape);
        let mut bytes = Vec::new();
        for _ in 0..ty.elements() {
            let kind = self.below(12);
            let small = self.below(9) as i64 - 4;
            let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0][self.below(4)];
            let x = (self.word() >> 11) as f64 / (1u64 << 52) as f64 * 8.0 - 8.0;
            match dtype {
                DType::Bool => bytes.push((small & 1) as u8),
                DType::Bf16 => {
                    let x = if kind == 0 { special as f32 } else { x as f32 };
                    bytes.extend(bf16::from_f32(x).to_le_bytes());
                }
                DType::F32 => {
                    let x = if kind == 0 { special as f32 } else { x as f32 };
                    bytes.extend(x.to_le_bytes());
                }
                DType::F64 => bytes.extend(if kind == 0 { special } else { x }.to_le_bytes()),
                _ => {
                    let word = match kind {
                        0 => self.word(),
                        1 => i64::MIN as u64 | 1 << 31 | 1 << 15 | 1 << 7,
                        _ => small as u64,
                    };
                    bytes.extend(&word.to_le_bytes()[..dtype.size() as usize]);
                }
            }
        }
        Tensor { ty, bytes }
    }
}

/// Every index of a shape, in row-major order.
fn all_indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut indices = vec![vec![]];
    for &d in shape {
        indices = indices
            .into_iter()
            .flat_map(|i: Vec<usize>| (0..d).map(move |k| [&i[..], &[k]].concat()))
            .collect();
    }
    indices
}

/// Position of an index of some broadcast result in an operand of this shape.
fn flat(shape: &[usize], index: &[usize]) -> usize {
    let index = &index[index.len() - shape.len()..];
    shape.iter().zip(index).fold(0, |at, (&d, &i)| at * d + if d == 1 { 0 } else { i })
}

/// How an operator is run.
#[derive(Clone, Copy, Default)]
struct Setting<'a> {
    draw: Draw,
    /// The output that takes an input's bytes.
    pair: Option<(usize, usize)>,
    /// Outputs that nobody reads.
    unread: &'a [usize],
}

/// Runs an operator; outputs that nobody reads come back empty.
fn run_as(op: &Op, inputs: &[Tensor], setting: Setting) -> Result<Vec<Tensor>, KernelError> {
    let types: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let results = op.infer(&types).expect("operands fit");
    let sources: Vec<AlignedBytes> =
        inputs.iter().map(|t| AlignedBytes::copy_of(&t.bytes)).collect();
    let places: Vec<AlignedBytes> =
        results.iter().map(|ty| AlignedBytes::copy_of(&vec![0xa5; ty.bytes() as usize])).collect();
    let place = |o: usize| match setting.pair {
        Some((i, paired)) if paired == o => sources[i].as_ptr(),
        _ => places[o].as_ptr(),
    };
    let operands: Vec<Operand> = types
        .iter()
        .zip(&sources)
        // SAFETY: aligned bytes that outlive the call.
        .map(|(ty, bytes)| unsafe { Operand::new(ty, bytes.as_ptr()) })
        .collect();
    let targets: Vec<Option<Destination>> = results
        .iter()
        .enumerate()
        .map(|(o, ty)| {
            // SAFETY: aligned bytes that outlive the call, shared as the table declares.
            let destination = || unsafe { Destination::new(ty, place(o)) };
            (!setting.unread.contains(&o)).then(destination)
        })
        .collect();
    let (inputs, outputs) = (&operands[..], &targets[..]);
    let bytes = op.scratch_bytes(CPU.target(), &types, &results.iter().collect::<Vec<_>>());
    let memory = AlignedBytes::copy_of(&vec![0xcd; bytes as usize]);
    // SAFETY: aligned bytes that outlive the call, of this call alone.
    let scratch = unsafe { Scratch::new(memory.as_ptr(), bytes as usize) };
    cpu::run(&Call { op, inputs, outputs, scratch, draw: setting.draw })?;
    Ok(results
        .iter()
        .enumerate()
        .map(|(o, ty)| {
            let n = if targets[o].is_some() { ty.bytes() as usize } else { 0 };
            // SAFETY: the result's bytes, no longer written.
            let bytes = unsafe { std::slice::from_raw_parts(place(o), n) };
            Tensor { ty: ty.clone(), bytes: bytes.to_vec() }
        })
        .collect())
}

/// Runs an operator in every way that must give the same bits, and gives those.
fn run_all_ways(op: &Op, inputs: &[Tensor], draw: Draw) -> Vec<Tensor> {
    let setting = Setting { draw, ..Setting::default() };
    let results = run_as(op, inputs, setting).expect("contents fit");
    let types: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let result_types: Vec<&TensorType> = results.iter().map(|t| &t.ty).collect();
    for pair in op.in_place_pairs(&types, &result_types) {
        let again = run_as(op, inputs, Setting { pair: Some(pair), ..setting });
        assert_eq!(again.as_ref(), Ok(&results), "{op:?} with {pair:?} in place");
    }
    if inputs.iter().map(|t| t.ty.elements()).max() > Some(4 << 10) || inputs.is_empty() {
        for threads in [1, 2, 7] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let again = pool.install(|| run_as(op, inputs, setting));
            assert_eq!(again.as_ref(), Ok(&results), "{op:?} on {threads} threads");
        }
    }
    results
}

/// As `run_all_ways`, for operators with one result.
fn run(op: &Op, inputs: &[Tensor]) -> Tensor {
    run_all_ways(op, inputs, Draw::default()).swap_remove(0)
}

/// The error that an operator refuses its operands with.
fn refusal(op: &Op, inputs: &[Tensor]) -> KernelError {
    run_as(op, inputs, Setting::default()).expect_err("contents do not fit")
}
