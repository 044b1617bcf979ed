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
        let each = self.values.iter();
        match self.ty.dtype {
            DType::Bf16 => each.flat_map(|&v| bf16::from_f32(v as f32).to_le_bytes()).collect(),
            DType::F32 => each.flat_map(|&v| (v as f32).to_le_bytes()).collect(),
            DType::F64 => each.flat_map(|&v| v.to_le_bytes()).collect(),
            DType::I64 => each.flat_map(|&v| (v as i64).to_le_bytes()).collect(),
            DType::I32 => each.flat_map(|&v| (v as i32).to_le_bytes()).collect(),
            DType::U32 => each.flat_map(|&v| (v as u32).to_le_bytes()).collect(),
            DType::U64 => each.flat_map(|&v| (v as u64).to_le_bytes()).collect(),
            DType::U16 => each.flat_map(|&v| (v as u16).to_le_bytes()).collect(),
            DType::I16 => each.flat_map(|&v| (v as i16).to_le_bytes()).collect(),
            DType::U8 | DType::Bool => each.map(|&v| v as u8).collect(),
            DType::I8 => each.map(|&v| v as i8 as u8).collect(),
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

/// Applies an operator. `place` says which operand's bytes which result takes, `wanted` which
/// results are computed; scratch holds garbage before.
fn apply(
    op: &Op,
    inputs: &[&Tensor],
    place: impl IntoIterator<Item = (usize, usize)>,
    wanted: &[bool],
) -> Vec<Tensor> {
    let roots: Vec<usize> = (0..inputs.len()).collect();
    apply_shared(op, inputs, &roots, place, wanted)
}

/// The same; operand `i` has the bytes of operand `roots[i]`.
fn apply_shared(
    op: &Op,
    inputs: &[&Tensor],
    roots: &[usize],
    place: impl IntoIterator<Item = (usize, usize)>,
    wanted: &[bool],
) -> Vec<Tensor> {
    let types: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let results = op.infer(&types).expect("operands fit");
    let memory: Vec<AlignedBytes> =
        inputs.iter().map(|t| AlignedBytes::copy_of(&t.bytes())).collect();
    let own: Vec<AlignedBytes> =
        results.iter().map(|t| AlignedBytes::copy_of(&vec![0xAB; t.bytes() as usize])).collect();
    let scratch_bytes = op.scratch_bytes(CPU.target(), &types, &results.iter().collect::<Vec<_>>());
    assert!(scratch_bytes <= 24 << 20, "{op:?} takes {scratch_bytes} bytes of scratch");
    let scratch = AlignedBytes::copy_of(&vec![0xCD; scratch_bytes as usize]);
    let place: Vec<(usize, usize)> = place.into_iter().collect();
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
    results
        .iter()
        .enumerate()
        .filter(|&(i, _)| wanted[i])
        .map(|(i, ty)| Tensor::of_bytes(ty, &at(i).as_slice()[..ty.bytes() as usize]))
        .collect()
}

/// The first result, after checking what `all` checks.
fn evaluate(op: &Op, inputs: &[&Tensor]) -> Tensor {
    all(op, inputs).remove(0)
}

/// All results on one thread, after checking that more threads, every set of declared pairs that
/// go together, and each result alone give the same bits.
fn all(op: &Op, inputs: &[&Tensor]) -> Vec<Tensor> {
    let types: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let results = op.infer(&types).expect("operands fit");
    let wanted = vec![true; results.len()];
    let on = |threads: usize, place: &[(usize, usize)]| {
        pool(threads).install(|| apply(op, inputs, place.iter().copied(), &wanted))
    };
    let one = on(1, &[]);
    let same = |other: Vec<Tensor>| {
        other.iter().zip(&one).for_each(|(a, b)| assert_same(a, b, op));
    };
    for threads in [2, 7] {
        same(on(threads, &[]));
    }
    let pairs = op.in_place_pairs(&types, &results.iter().collect::<Vec<_>>());
    let apart: Vec<usize> = (0..inputs.len()).collect();
    for way in &pairs::placements(&pairs, &apart, results.len())[1..] {
        same(on(2, way));
    }
    // Each alone, and all without it.
    for (o, alone) in one.iter().enumerate().filter(|_| results.len() > 1) {
        let wanted: Vec<bool> = (0..results.len()).map(|i| i == o).collect();
        assert_same(&apply(op, inputs, None, &wanted)[0], alone, op);
        let others: Vec<bool> = wanted.iter().map(|w| !w).collect();
        let found = apply(op, inputs, None, &others);
        let rest = (0..results.len()).filter(|&i| i != o).map(|i| &one[i]);
        found.iter().zip(rest).for_each(|(a, b)| assert_same(a, b, op));
    }
    one
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
