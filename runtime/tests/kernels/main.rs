//! Kernels against index-by-index implementations, in place against out of place, and
//! different numbers of threads against each other.

mod attention;
mod axes;
mod channels_last;
mod cuts;
mod fused;
mod fused_norms;
mod in_place;
mod narrow;
mod norms;
#[path = "../support/pairs.rs"]
mod pairs;
mod pool_grads;
mod products;
#[path = "../support/programs.rs"]
mod programs;
#[path = "../support/random.rs"]
mod random;
mod recurrences;
mod resize;
mod tiles;
mod windows;

use arenic_backends::CPU;
use arenic_ir::types::bf16;
use arenic_ir::{DType, Op, TensorType};
use arenic_runtime::cpu;
use arenic_runtime::kernel::{Call, Destination, Draw, Operand, Scratch};
use arenic_runtime::memory::AlignedBytes;
use random::Random;

impl Random {
    /// A tensor of numbers in [-1, 1), or of small integers.
    fn tensor(&mut self, dtype: DType, shape: impl Into<Vec<usize>>) -> Tensor {
        let ty = TensorType::new(dtype, shape);
        let values = (0..ty.elements())
            .map(|_| match dtype.is_float() {
                true => (self.bits() >> 40) as f64 / (1 << 23) as f64 - 1.0,
                false => (self.bits() % 7) as f64,
            })
            .collect();
        Tensor { ty, values }
    }
}

/// A tensor whose elements are held as `f64`, whatever its type.
#[derive(Clone, Debug)]
struct Tensor {
    ty: TensorType,
    values: Vec<f64>,
}

impl Tensor {
    fn new(dtype: DType, shape: impl Into<Vec<usize>>, values: Vec<f64>) -> Self {
        let ty = TensorType::new(dtype, shape);
        assert_eq!(ty.elements(), values.len());
        Tensor { ty, values }
    }

    fn bytes(&self) -> Vec<u8> {
        fn all<const N: usize>(values: &[f64], f: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
            let mut bytes = vec![0; N * values.len()];
            bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(b, &v)| *b = f(v));
            bytes
        }
        let values = &self.values;
        match self.ty.dtype {
            DType::Bf16 => all(values, |v| bf16::from_f32(v as f32).to_le_bytes()),
            DType::F32 => all(values, |v| (v as f32).to_le_bytes()),
            DType::F64 => all(values, f64::to_le_bytes),
            DType::I64 => all(values, |v| (v as i64).to_le_bytes()),
            DType::I32 => all(values, |v| (v as i32).to_le_bytes()),
            DType::U32 => all(values, |v| (v as u32).to_le_bytes()),
            DType::U64 => all(values, |v| (v as u64).to_le_bytes()),
            DType::U16 => all(values, |v| (v as u16).to_le_bytes()),
            DType::I16 => all(values, |v| (v as i16).to_le_bytes()),
            DType::U8 | DType::Bool => all(values, |v| [v as u8]),
            DType::I8 => all(values, |v| (v as i8).to_le_bytes()),
        }
    }

    fn of_bytes(ty: &TensorType, bytes: &[u8]) -> Self {
        fn all<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            bytes.as_chunks().0.iter().map(|&b| f(b)).collect()
        }
        let values = match ty.dtype {
            DType::Bf16 => all(bytes, |b| bf16::to_f32(u16::from_le_bytes(b)).into()),
            DType::F32 => all(bytes, |b| f32::from_le_bytes(b).into()),
            DType::F64 => all(bytes, f64::from_le_bytes),
            DType::I64 => all(bytes, |b| i64::from_le_bytes(b) as f64),
            DType::I32 => all(bytes, |b| i32::from_le_bytes(b).into()),
            DType::U32 => all(bytes, |b| u32::from_le_bytes(b).into()),
            DType::U64 => all(bytes, |b| u64::from_le_bytes(b) as f64),
            DType::U16 => all(bytes, |b| u16::from_le_bytes(b).into()),
            DType::I16 => all(bytes, |b| i16::from_le_bytes(b).into()),
            DType::U8 | DType::Bool => all(bytes, |b| u8::from_le_bytes(b).into()),
            DType::I8 => all(bytes, |b| i8::from_le_bytes(b).into()),
        };
        Tensor { ty: ty.clone(), values }
    }
}

/// An operand or a result as kernels see it.
type Bytes = (TensorType, Vec<u8>);

/// Applies an operator: those results that are wanted. Result `o` takes the bytes of operand `i` for each pair
/// `(i, o)` of `place`; operand `i` has the bytes of operand `roots[i]`, and scratch holds garbage before.
fn run(
    op: &Op,
    inputs: &[&Bytes],
    roots: &[usize],
    place: &[(usize, usize)],
    wanted: &[bool],
) -> Vec<Bytes> {
    let types: Vec<&TensorType> = inputs.iter().map(|(ty, _)| ty).collect();
    let results = op.infer(&types).expect("operands fit");
    let memory: Vec<AlignedBytes> =
        inputs.iter().map(|(_, bytes)| AlignedBytes::copy_of(bytes)).collect();
    let own: Vec<AlignedBytes> =
        results.iter().map(|t| AlignedBytes::copy_of(&vec![0xAB; t.bytes() as usize])).collect();
    let scratch_bytes = op.scratch_bytes(CPU.target(), &types, &results.iter().collect::<Vec<_>>());
    assert!(scratch_bytes <= 24 << 20, "{op:?} takes {scratch_bytes} bytes of scratch");
    let scratch = AlignedBytes::copy_of(&vec![0xCD; scratch_bytes as usize]);
    let at = |i: usize| match place.iter().find(|&&(_, result)| i == result) {
        Some(&(operand, _)) => &memory[operand],
        None => &own[i],
    };
    let operands: Vec<Operand> = types
        .iter()
        .zip(roots.iter().map(|&root| &memory[root]))
        // SAFETY: an aligned allocation of the operand's length that outlives the call.
        .map(|(ty, bytes)| unsafe { Operand::new(ty, bytes.as_ptr()) })
        .collect();
    let targets: Vec<Option<Destination>> = results
        .iter()
        .enumerate()
        // SAFETY: as above; an operand's bytes only for a pair that the operator declares.
        .map(|(i, ty)| wanted[i].then(|| unsafe { Destination::new(ty, at(i).as_ptr()) }))
        .collect();
    cpu::run(&Call {
        op,
        inputs: &operands,
        outputs: &targets,
        // SAFETY: an aligned allocation of this length, used by this call alone.
        scratch: unsafe { Scratch::new(scratch.as_ptr(), scratch_bytes as usize) },
        draw: Draw::default(),
    })
    .expect("contents fit");
    let kept = results.iter().enumerate().filter(|&(i, _)| wanted[i]);
    kept.map(|(i, ty)| (ty.clone(), at(i).as_slice()[..ty.bytes() as usize].to_vec())).collect()
}

/// The same on tensors, which have bytes of their own.
fn apply(
    op: &Op,
    inputs: &[&Tensor],
    place: Option<(usize, usize)>,
    wanted: &[bool],
) -> Vec<Tensor> {
    let roots: Vec<usize> = (0..inputs.len()).collect();
    let inputs: Vec<Bytes> = inputs.iter().map(|t| (t.ty.clone(), t.bytes())).collect();
    let place: Vec<(usize, usize)> = place.into_iter().collect();
    let found = run(op, &inputs.iter().collect::<Vec<_>>(), &roots, &place, wanted);
    found.iter().map(|(ty, bytes)| Tensor::of_bytes(ty, bytes)).collect()
}

/// The first result, after checking what `all` checks.
fn evaluate(op: &Op, inputs: &[&Tensor]) -> Tensor {
    all(op, inputs).remove(0)
}

/// All results on one thread, after checking that more threads, every set of declared pairs that
/// go together, and each result alone give the same bits.
fn all(op: &Op, inputs: &[&Tensor]) -> Vec<Tensor> {
    let inputs: Vec<Bytes> = inputs.iter().map(|t| (t.ty.clone(), t.bytes())).collect();
    let inputs: Vec<&Bytes> = inputs.iter().collect();
    let types: Vec<&TensorType> = inputs.iter().map(|(ty, _)| ty).collect();
    let results = op.infer(&types).expect("operands fit");
    let apart: Vec<usize> = (0..inputs.len()).collect();
    let wanted = vec![true; results.len()];
    let some = |threads: usize, place: &[(usize, usize)], wanted: &[bool]| {
        pool(threads).install(|| run(op, &inputs, &apart, place, wanted))
    };
    let on = |threads: usize, place: &[(usize, usize)]| some(threads, place, &wanted);
    let one = on(1, &[]);
    let same = |found: &[Bytes], how: &str| assert!(found == one, "bits differ for {op:?}, {how}");
    for threads in [2, 7] {
        same(&on(threads, &[]), "by several threads");
    }
    let pairs = op.in_place_pairs(&types, &results.iter().collect::<Vec<_>>());
    for way in &pairs::placements(&pairs, &apart, results.len())[1..] {
        same(&on(2, way), "in place");
    }
    // Each alone, and all without it.
    for o in (0..one.len()).filter(|_| results.len() > 1) {
        let wanted: Vec<bool> = (0..results.len()).map(|i| i == o).collect();
        let others: Vec<bool> = wanted.iter().map(|w| !w).collect();
        for threads in [1, 2] {
            let mut found = some(threads, &[], &others);
            found.insert(o, some(threads, &[], &wanted).remove(0));
            same(&found, "some alone");
        }
    }
    one.iter().map(|(ty, bytes)| Tensor::of_bytes(ty, bytes)).collect()
}

fn pool(threads: usize) -> &'static rayon::ThreadPool {
    use std::sync::OnceLock;
    static POOLS: [OnceLock<rayon::ThreadPool>; 8] = [const { OnceLock::new() }; 8];
    POOLS[threads].get_or_init(|| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool")
    })
}

fn assert_same(a: &Tensor, b: &Tensor, op: &Op) {
    assert_eq!(a.ty, b.ty);
    assert!(bits(a) == bits(b), "bits differ for {op:?}");
}

fn bits(t: &Tensor) -> Vec<u64> {
    t.values.iter().map(|v| v.to_bits()).collect()
}

fn assert_close(got: &Tensor, want: &[f64], tolerance: f64, what: &dyn std::fmt::Debug) {
    assert_eq!(got.values.len(), want.len());
    for (i, (&g, &w)) in got.values.iter().zip(want).enumerate() {
        let fits =
            (g - w).abs() <= tolerance * w.abs().max(1.0) || (g.is_nan() && w.is_nan()) || g == w;
        assert!(fits, "{what:?}: element {i} of {} is {g}, not {w}", got.ty);
    }
}

/// All indices of a shape, in order.
fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    (0..shape.iter().product()).map(move |flat| {
        let mut rest: usize = flat;
        let mut at = vec![0; shape.len()];
        for d in (0..shape.len()).rev() {
            at[d] = rest % shape[d];
            rest /= shape[d];
        }
        at
    })
}

fn flat(at: &[usize], shape: &[usize]) -> usize {
    at.iter().zip(shape).fold(0, |f, (&i, &d)| f * d + i)
}
