//! The CUDA backend's kernels, emulated on the CPU, against the CPU backend: the same results
//! in place and out of place, whatever order threads run in, and not a byte beside them.
//!
//! A family has up to 900 kernels, which a C++ compiler makes in up to a minute where they are new or changed: they
//! are instances of templates, and a mistake in one is none in another. What was made is kept in `target/emulated`.
//!
//! Emulated is not run on a GPU: see `arenic_emulator`. Where `ARENIC_TEST_DEVICE` names one,
//! the same cases run there.

mod attention;
mod batch_norm;
mod choice;
mod convolution;
mod device;
mod elementwise;
mod fused_norm;
mod hold;
mod in_place;
mod indexing;
mod movement;
mod norm;
#[path = "../support/pairs.rs"]
mod pairs;
#[path = "../../../tests/cuda/place.rs"]
#[allow(dead_code, reason = "no case reads a file")]
mod place;
mod product;
#[path = "../support/programs.rs"]
mod programs;
#[path = "../support/random.rs"]
mod random;
mod random_operators;
mod ranks;
mod recurrence;
mod reduce;
#[path = "../../../tests/cuda/simulated.rs"]
mod simulated;
mod softmax;
mod update;
mod windows;

use arenic_ir::op::channels_last::{is_turned, to_last};
use arenic_ir::types::bf16;
use arenic_ir::{DType, Math, Op, TensorType};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::evaluate;
use hold::hold;
use random::Random;

/// A tensor in bytes of its own.
#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    ty: TensorType,
    bytes: Vec<u8>,
}

/// An operator on operands, and how far a result may be from the CPU's.
#[derive(Clone)]
struct Case {
    op: Op,
    inputs: Vec<Tensor>,
    /// Operand `i` is the same value as operand `shared[i]`; empty where each has its own.
    shared: Vec<usize>,
    math: Math,
    close: Close,
}

/// How close floats must be: |a − b| ≤ absolute + relative · |b|. Integers are equal.
#[derive(Clone, Copy, Debug)]
struct Close {
    relative: f64,
    absolute: f64,
}

impl Close {
    /// The same bits, up to the sign of zero.
    const EQUAL: Close = Close { relative: 0.0, absolute: 0.0 };
    /// A function of the standard library, of which each has its own last bits.
    const FUNCTION: Close = Close { relative: 1e-5, absolute: 1e-6 };
    /// A sum in another order.
    const SUM: Close = Close { relative: 1e-4, absolute: 1e-5 };
    /// A sum of thousands of terms, of which some cancel.
    const LONG_SUM: Close = Close { relative: 1e-4, absolute: 1e-4 };
    /// A sum in which one factor of each term is rounded by 2⁻¹¹, the terms' sizes together being
    /// below ten.
    const TF32: Close = Close { relative: 1e-4, absolute: 10.0 / 2048.0 };
    /// The same of factors that are rounded by 2⁻⁹.
    const BF16: Close = Close { relative: 1e-4, absolute: 10.0 / 512.0 };
}

impl Case {
    fn new(op: Op, inputs: impl Into<Vec<Tensor>>) -> Case {
        Case { op, inputs: inputs.into(), shared: Vec::new(), math: Math::F32, close: Close::EQUAL }
    }

    /// Of every operand the one whose bytes it has.
    fn roots(&self) -> Vec<usize> {
        (0..self.inputs.len()).map(|i| self.shared.get(i).copied().unwrap_or(i)).collect()
    }

    fn close(self, close: Close) -> Case {
        Case { close, ..self }
    }

    /// The same with channels last.
    fn channels_last(&self) -> Case {
        let turned = |t: &Tensor| {
            let perm = to_last(&(0..t.ty.rank()).collect::<Vec<_>>());
            let turn = Op::Transpose { perm };
            match is_turned(&t.ty) {
                true => evaluate(&turn, &[(&t.ty, &t.bytes)], Draw::default()).unwrap().remove(0),
                false => (t.ty.clone(), t.bytes.clone()),
            }
        };
        let tensor = |(ty, bytes)| Tensor { ty, bytes };
        let inputs = self.inputs.iter().map(|t| tensor(turned(t))).collect();
        Case { op: Op::ChannelsLast { of: Box::new(self.op.clone()) }, inputs, ..self.clone() }
    }
}

impl Random {
    /// A shape of up to `rank` axes, some of extent 1 and now and then one of extent 0.
    fn shape(&mut self, rank: usize) -> Vec<usize> {
        (0..self.range(0, rank)).map(|_| self.extent()).collect()
    }

    fn extent(&mut self) -> usize {
        match self.range(0, 30) {
            0 => 0,
            1..=6 => 1,
            7..=28 => self.range(2, 7),
            _ => self.range(30, 70),
        }
    }

    /// A shape that broadcasts to `shape`.
    fn broadcast_to(&mut self, shape: &[usize]) -> Vec<usize> {
        let skip = if self.range(0, 2) == 0 { self.range(0, shape.len()) } else { 0 };
        shape[skip..].iter().map(|&d| if self.range(0, 2) == 0 { 1 } else { d }).collect()
    }

    /// Small numbers, and now and then extremes, infinities and NaN.
    fn wild(&mut self, dtype: DType, shape: impl Into<Vec<usize>>) -> Tensor {
        self.fill(dtype, shape, |r| match r.range(0, 12) {
            0 if dtype.is_float() => {
                r.choose(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e30, -1e30])
            }
            0 => r.choose(&[-9.3e18, 1.9e19, 128.0, -129.0, 255.0, 32768.0, 2147483648.0]),
            _ => r.uniform(-6.0, 6.0),
        })
    }

    /// Numbers in [-1, 1), or integers from 0 to 6.
    fn tame(&mut self, dtype: DType, shape: impl Into<Vec<usize>>) -> Tensor {
        self.fill(dtype, shape, |r| match dtype.is_float() {
            true => r.uniform(-1.0, 1.0),
            false => r.range(0, 6) as f64,
        })
    }

    /// Indices of an extent, from either end.
    fn indices(&mut self, dtype: DType, shape: impl Into<Vec<usize>>, extent: usize) -> Tensor {
        self.fill(dtype, shape, |r| {
            let i = r.range(0, extent.max(1) - 1) as f64;
            if r.chance() { i } else { i - extent as f64 }
        })
    }

    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (self.bits() >> 11) as f64 / (1u64 << 53) as f64 * (high - low)
    }

    fn fill(
        &mut self,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        mut element: impl FnMut(&mut Random) -> f64,
    ) -> Tensor {
        let ty = TensorType::new(dtype, shape);
        let mut bytes = Vec::with_capacity(ty.bytes() as usize);
        for _ in 0..ty.elements() {
            let x = element(self);
            match dtype {
                DType::Bool => bytes.push(u8::from(x > 0.0)),
                DType::U8 => bytes.extend((x as u8).to_le_bytes()),
                DType::I8 => bytes.extend((x as i8).to_le_bytes()),
                DType::U16 => bytes.extend((x as u16).to_le_bytes()),
                DType::I16 => bytes.extend((x as i16).to_le_bytes()),
                DType::U32 => bytes.extend((x as u32).to_le_bytes()),
                DType::I32 => bytes.extend((x as i32).to_le_bytes()),
                DType::U64 => bytes.extend((x as u64).to_le_bytes()),
                DType::I64 => bytes.extend((x as i64).to_le_bytes()),
                DType::Bf16 => bytes.extend(bf16::from_f32(x as f32).to_le_bytes()),
                DType::F32 => bytes.extend((x as f32).to_le_bytes()),
                DType::F64 => bytes.extend(x.to_le_bytes()),
            }
        }
        Tensor { ty, bytes }
    }
}

/// A test for each family of operators.
macro_rules! families {
    ($($family:ident)*) => {$(
        #[test]
        fn $family() {
            hold($family::cases(&mut Random(1)));
        }
    )*};
}
families! {
    batch_norm elementwise fused_norm in_place indexing movement norm random_operators recurrence reduce softmax update windows
}

#[test]
fn batch_norm_of_many() {
    hold(batch_norm::large(&mut Random(1)));
}

#[test]
fn attention() {
    let by_library = hold(attention::cases(&mut Random(1)));
    assert!(by_library >= 12, "{by_library}");
}

#[test]
fn convolution() {
    let by_library = hold(convolution::cases(&mut Random(1)));
    assert!(by_library >= 20, "{by_library}");
}

#[test]
fn product() {
    let by_library = hold(product::cases(&mut Random(1)));
    assert!(by_library >= 30, "{by_library}");
}
