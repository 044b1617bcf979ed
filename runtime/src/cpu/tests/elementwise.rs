//! Unary and binary functions, casts, choice and clipping.

use super::{Source, Tensor, all_indices, flat, refusal, run};
use crate::kernel::KernelError;
use arenic_ir::op::{Binary, Unary};
use arenic_ir::types::bf16;
use arenic_ir::{DType, Op, TensorType};

/// A number of any element type.
#[derive(Clone, Copy, Debug)]
enum Number {
    Int(i128),
    Real(f64),
}
use Number::{Int, Real};

/// Element `i` of a tensor.
fn number(x: &Tensor, i: usize) -> Number {
    let size = x.ty.dtype.size() as usize;
    let bytes = &x.bytes[i * size..(i + 1) * size];
    macro_rules! read {
        ($t:ty) => {
            <$t>::from_le_bytes(bytes.try_into().unwrap())
        };
    }
    match x.ty.dtype {
        DType::Bool | DType::U8 => Int(bytes[0].into()),
        DType::I8 => Int(read!(i8).into()),
        DType::U16 => Int(read!(u16).into()),
        DType::I16 => Int(read!(i16).into()),
        DType::U32 => Int(read!(u32).into()),
        DType::I32 => Int(read!(i32).into()),
        DType::U64 => Int(read!(u64).into()),
        DType::I64 => Int(read!(i64).into()),
        DType::Bf16 => Real(bf16::to_f32(read!(u16)).into()),
        DType::F32 => Real(read!(f32).into()),
        DType::F64 => Real(read!(f64)),
    }
}

/// The number as an element type holds it: integers wrapped, floats rounded.
fn held(x: Number, dtype: DType) -> Number {
    match (x, dtype) {
        (Int(x), DType::Bool | DType::U8) => Int((x as u8).into()),
        (Int(x), DType::I8) => Int((x as i8).into()),
        (Int(x), DType::U16) => Int((x as u16).into()),
        (Int(x), DType::I16) => Int((x as i16).into()),
        (Int(x), DType::U32) => Int((x as u32).into()),
        (Int(x), DType::I32) => Int((x as i32).into()),
        (Int(x), DType::U64) => Int((x as u64).into()),
        (Int(x), DType::I64) => Int((x as i64).into()),
        (Real(x), DType::Bf16) => Real(bf16::round(x as f32).into()),
        (Real(x), DType::F32) => Real((x as f32).into()),
        (x, _) => x,
    }
}

/// Equal, all NaN alike; or for floats within a relative tolerance.
fn assert_close(got: Number, want: Number, tolerance: f64, what: &dyn std::fmt::Debug) {
    let close = match (got, want) {
        (Int(a), Int(b)) => a == b,
        (Real(a), Real(b)) => {
            a.is_nan() && b.is_nan() || a == b || (a - b).abs() <= tolerance * b.abs()
        }
        _ => false,
    };
    assert!(close, "{what:?} gave {got:?}, not {want:?}");
}

fn assert_elements(y: &Tensor, tolerance: f64, op: &Op, want: impl Fn(&[usize]) -> Number) {
    for (i, index) in all_indices(&y.ty.shape).iter().enumerate() {
        let want = held(want(index), y.ty.dtype);
        assert_close(number(y, i), want, tolerance, &(op, &y.ty, index));
    }
}

/// Shapes for whichever round: mostly small, some beyond one task.
fn shape(source: &mut Source, round: usize) -> Vec<usize> {
    match round % 25 {
        7 => vec![50_000 + source.below(9)],
        13 => vec![300, 130],
        19 => vec![2, 3, 20_001],
        _ => source.shape(4),
    }
}

fn unary(f: Unary, x: Number) -> Number {
    match (f, x) {
        (Unary::Not, Int(x)) => Int(1 - x),
        (Unary::Abs, Int(x)) => Int(x.abs()),
        (Unary::Neg, Int(x)) => Int(-x),
        (Unary::Relu, Int(x)) => Int(x.max(0)),
        (Unary::Sign, Int(x)) => Int(x.signum()),
        (Unary::Sign, Real(x)) => Real(if x == 0.0 || x.is_nan() { x } else { x.signum() }),
        (f, Real(x)) => Real(match f {
            Unary::Abs => x.abs(),
            Unary::Atan => x.atan(),
            Unary::Atanh => libm::atanh(x),
            Unary::Ceil => x.ceil(),
            Unary::Cos => x.cos(),
            Unary::Erf => libm::erf(x),
            Unary::Exp => x.exp(),
            Unary::Floor => x.floor(),
            Unary::Log => x.ln(),
            Unary::Neg => -x,
            Unary::Reciprocal => 1.0 / x,
            Unary::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Unary::Sin => x.sin(),
            Unary::Sqrt => x.sqrt(),
            Unary::Tanh => x.tanh(),
            Unary::Not | Unary::Sign => unreachable!(),
        }),
        _ => unreachable!(),
    }
}

#[test]
fn unary_functions() {
    use Unary::*;
    let all = [
        Abs, Atan, Atanh, Ceil, Cos, Erf, Exp, Floor, Log, Neg, Not, Reciprocal, Relu, Sigmoid,
        Sign, Sin, Sqrt, Tanh,
    ];
    let mut source = Source(11);
    for (i, f) in all.into_iter().enumerate() {
        for d in DType::ALL.into_iter().filter(|&d| f.takes(d)) {
            for round in 0..8 {
                let shape = shape(&mut source, i + 3 * round);
                let x = source.tensor(d, &shape);
                let op = Op::Unary { f };
                let y = run(&op, std::slice::from_ref(&x));
                let tolerance = if d == DType::F32 { 4e-7 } else { 2e-15 };
                assert_elements(&y, tolerance, &op, |i| unary(f, number(&x, flat(&shape, i))));
            }
        }
    }
}

fn binary(f: Binary, a: Number, b: Number) -> Number {
    let truth = |t: bool| Int(t.into());
    match (f, a, b) {
        (Binary::Add, Int(a), Int(b)) => Int(a + b),
        (Binary::Sub, Int(a), Int(b)) => Int(a - b),
        (Binary::Mul, Int(a), Int(b)) => Int(a.wrapping_mul(b)),
        (Binary::Div, Int(a), Int(b)) => Int(a / b),
        (Binary::Rem, Int(a), Int(b)) => Int(a % b),
        (Binary::Max, Int(a), Int(b)) => Int(a.max(b)),
        (Binary::Min, Int(a), Int(b)) => Int(a.min(b)),
        (Binary::Pow, Int(a), Int(b)) if b >= 0 => {
            Int((0..b).fold(1, |y: i128, _| y.wrapping_mul(a)))
        }
        (Binary::Pow, Int(a), Int(b)) => Int((a as f64).powf(b as f64) as i128),
        (Binary::And, Int(a), Int(b)) => Int(a & b),
        (Binary::Or, Int(a), Int(b)) => Int(a | b),
        (Binary::Xor, Int(a), Int(b)) => Int(a ^ b),
        (Binary::Equal, Int(a), Int(b)) => truth(a == b),
        (Binary::Less, Int(a), Int(b)) => truth(a < b),
        (Binary::LessOrEqual, Int(a), Int(b)) => truth(a <= b),
        (Binary::Greater, Int(a), Int(b)) => truth(a > b),
        (Binary::GreaterOrEqual, Int(a), Int(b)) => truth(a >= b),
        (f, Real(a), Real(b)) => match f {
            Binary::Add => Real(a + b),
            Binary::Sub => Real(a - b),
            Binary::Mul => Real(a * b),
            Binary::Div => Real(a / b),
            Binary::Rem => Real(a % b),
            Binary::Pow => Real(a.powf(b)),
            Binary::Max => Real(if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }),
            Binary::Min => Real(if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }),
            Binary::Equal => truth(a == b),
            Binary::Less => truth(a < b),
            Binary::LessOrEqual => truth(a <= b),
            Binary::Greater => truth(a > b),
            Binary::GreaterOrEqual => truth(a >= b),
            Binary::And | Binary::Or | Binary::Xor => unreachable!(),
        },
        _ => unreachable!(),
    }
}

#[test]
fn binary_functions() {
    use Binary::*;
    let all = [
        Add,
        And,
        Div,
        Equal,
        Greater,
        GreaterOrEqual,
        Less,
        LessOrEqual,
        Max,
        Min,
        Mul,
        Or,
        Pow,
        Rem,
        Sub,
        Xor,
    ];
    let mut source = Source(12);
    for (i, f) in all.into_iter().enumerate() {
        for d in DType::ALL.into_iter().filter(|&d| f.takes(d)) {
            for round in 0..12 {
                let shape = shape(&mut source, i + 3 * round);
                // One operand of the result's shape; or either broadcast along axes.
                let (mut p, mut q) = (source.broadcast_to(&shape), shape.clone());
                if round % 3 == 0 {
                    std::mem::swap(&mut p, &mut q);
                }
                let a = source.tensor(d, &p);
                let mut b = source.tensor(d, &q);
                if matches!(f, Div | Rem) && !d.is_float() {
                    let size = d.size() as usize;
                    b.bytes.chunks_mut(size).for_each(|b| b[0] |= 1);
                }
                if f == Pow && !d.is_float() {
                    let size = d.size() as usize;
                    for b in b.bytes.chunks_mut(size) {
                        b[1..].fill(0);
                        b[0] &= 63;
                    }
                }
                let op = Op::Binary { f };
                let y = run(&op, &[a.clone(), b.clone()]);
                let tolerance = match f {
                    Pow if d == DType::F32 => 2e-7,
                    Pow => 1e-15,
                    _ => 0.0,
                };
                assert_elements(&y, tolerance, &op, |i| {
                    binary(f, number(&a, flat(&p, i)), number(&b, flat(&q, i)))
                });
            }
        }
    }
}

#[test]
fn both_operands_broadcast_over_many_axes() {
    let mut source = Source(13);
    for _ in 0..200 {
        let shape: Vec<usize> = (0..8).map(|_| 1 + source.below(3)).collect();
        let (p, q) = (source.broadcast_to(&shape), source.broadcast_to(&shape));
        let (a, b) = (source.tensor(DType::I32, &p), source.tensor(DType::I32, &q));
        let op = Op::Binary { f: Binary::Sub };
        let y = run(&op, &[a.clone(), b.clone()]);
        assert_elements(&y, 0.0, &op, |i| {
            binary(Binary::Sub, number(&a, flat(&p, i)), number(&b, flat(&q, i)))
        });
    }
}

#[test]
fn one_value_may_be_both_operands_in_place() {
    // The same bytes three times over: both operands and the result.
    let x = Tensor::new(&[200], &(0..200).collect::<Vec<i32>>());
    let shared = crate::memory::AlignedBytes::copy_of(&x.bytes);
    // SAFETY: aligned bytes that outlive the call, in place as the table declares.
    let (operand, target) = unsafe {
        (
            crate::kernel::Operand::new(&x.ty, shared.as_ptr()),
            crate::kernel::Destination::new(&x.ty, shared.as_ptr()),
        )
    };
    crate::cpu::run(&crate::kernel::Call {
        op: &Op::Binary { f: Binary::Mul },
        inputs: &[operand, operand],
        outputs: &[Some(target)],
        scratch: crate::kernel::Scratch::NONE,
        draw: crate::kernel::Draw::default(),
    })
    .unwrap();
    let squares = Tensor::new(&[200], &(0..200).map(|i| i * i).collect::<Vec<i32>>());
    assert_eq!(&shared.as_slice()[..800], &squares.bytes[..]);
}

#[test]
fn powers() {
    let op = Op::Binary { f: Binary::Pow };
    let x = [-1.5f32, 0.0, -0.0, 3.1, f32::INFINITY, f32::NEG_INFINITY, 1e30];
    let a = Tensor::new(&[7], &x);
    let squares = run(&op, &[a.clone(), Tensor::new(&[], &[2f32])]);
    assert_eq!(squares, Tensor::new(&[7], &x.map(|x| x * x)));
    let cubes = run(&op, &[a.clone(), Tensor::new(&[1, 1], &[3f32])]);
    assert_eq!(cubes, Tensor::new(&[1, 7], &x.map(|x| x * x * x)));
    let roots = run(&op, &[a, Tensor::new(&[], &[0.5f32])]);
    assert_eq!(roots.values::<f32>()[2..6], [0.0, 3.1f32.powf(0.5), f32::INFINITY, f32::INFINITY]);

    let base = Tensor::new(&[6], &[2i8, 1, -1, -1, 0, -3]);
    let exponent = Tensor::new(&[6], &[-1i8, -7, -3, -4, -1, 3]);
    let y = run(&op, &[base, exponent]);
    assert_eq!(y.values::<i8>(), [0, 1, -1, 1, i8::MAX, -27]);
    let y = run(&op, &[Tensor::new(&[], &[3u64]), Tensor::new(&[], &[u64::MAX])]);
    // 3 has order 2⁶² in the odd residues, and 2⁶⁴ − 1 is −1 modulo that.
    assert_eq!(y.values::<u64>()[0].wrapping_mul(3), 1);
}

#[test]
fn integers_divide_towards_zero_and_never_by_it() {
    let op = Op::Binary { f: Binary::Div };
    let a = Tensor::new(&[4], &[7i32, -7, i32::MIN, 1]);
    let b = Tensor::new(&[4], &[-2i32, 2, -1, 1]);
    assert_eq!(run(&op, &[a.clone(), b]).values::<i32>(), [-3, -3, i32::MIN, 1]);
    let zero = Tensor::new(&[4], &[1i32, 0, 1, 1]);
    assert_eq!(refusal(&op, &[a, zero]), KernelError::DivisionByZero);
    // Nothing is divided by this zero.
    let none = Tensor::new::<i32>(&[0], &[]);
    assert_eq!(run(&op, &[none.clone(), Tensor::new(&[], &[0i32])]), none);
}

#[test]
fn casts() {
    let mut source = Source(14);
    for from in DType::ALL {
        for to in DType::ALL {
            for round in [0, 1, 7] {
                let shape = shape(&mut source, round);
                let x = source.tensor(from, &shape);
                let op = Op::Cast { to };
                let y = run(&op, std::slice::from_ref(&x));
                assert_elements(&y, 0.0, &op, |i| {
                    let x = number(&x, flat(&shape, i));
                    match (x, to) {
                        (Int(x), DType::Bool) => Int((x != 0).into()),
                        (Real(x), DType::Bool) => Int((x != 0.0).into()),
                        // One rounding, not two.
                        (Int(x), DType::F32) => Real((x as f32).into()),
                        (Int(x), DType::Bf16) => Real(bf16::round(x as f32).into()),
                        (Int(x), DType::F64) => Real(x as f64),
                        (Int(_), _) => x,
                        (Real(_), DType::Bf16 | DType::F32 | DType::F64) => x,
                        (Real(x), DType::U8) => Int((x as u8).into()),
                        (Real(x), DType::I8) => Int((x as i8).into()),
                        (Real(x), DType::U16) => Int((x as u16).into()),
                        (Real(x), DType::I16) => Int((x as i16).into()),
                        (Real(x), DType::U32) => Int((x as u32).into()),
                        (Real(x), DType::I32) => Int((x as i32).into()),
                        (Real(x), DType::U64) => Int((x as u64).into()),
                        (Real(x), DType::I64) => Int((x as i64).into()),
                    }
                });
            }
        }
    }
}

#[test]
fn where_chooses() {
    let mut source = Source(15);
    for round in 0..150 {
        let shape = shape(&mut source, round);
        let mut shapes = [shape.clone(), shape.clone(), shape.clone()];
        for s in &mut shapes {
            if source.below(2) == 0 {
                *s = source.broadcast_to(&shape);
            }
        }
        let d = DType::ALL[round % DType::ALL.len()];
        let c = source.tensor(DType::Bool, &shapes[0]);
        let (a, b) = (source.tensor(d, &shapes[1]), source.tensor(d, &shapes[2]));
        let y = run(&Op::Where, &[c.clone(), a.clone(), b.clone()]);
        assert_elements(&y, 0.0, &Op::Where, |i| {
            if c.bytes[flat(&shapes[0], i)] != 0 {
                number(&a, flat(&shapes[1], i))
            } else {
                number(&b, flat(&shapes[2], i))
            }
        });
    }
}

#[test]
fn clip_bounds() {
    let mut source = Source(16);
    for d in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        for round in 0..16 {
            let shape = shape(&mut source, round);
            let (min, max) = (round & 1 != 0, round & 2 != 0);
            let mut inputs = vec![source.tensor(d, &shape)];
            for _ in 0..usize::from(min) + usize::from(max) {
                inputs.push(source.tensor(d, &[][..]));
            }
            let op = Op::Clip { min, max };
            let y = run(&op, &inputs);
            assert_elements(&y, 0.0, &op, |i| {
                let mut x = number(&inputs[0], flat(&shape, i));
                if min {
                    x = binary(Binary::Max, x, number(&inputs[1], 0));
                }
                if max {
                    x = binary(Binary::Min, x, number(inputs.last().unwrap(), 0));
                }
                x
            });
        }
    }
    let nan = Tensor::new(&[], &[f32::NAN]);
    let one = Tensor::new(&[], &[1f32]);
    let y = run(&Op::Clip { min: true, max: true }, &[nan, one.clone(), one]);
    assert!(y.values::<f32>()[0].is_nan());
}

#[test]
fn not_a_number_stays_not_a_number() {
    let nan = Tensor::new(&[], &[f32::NAN]);
    let one = Tensor::new(&[], &[1f32]);
    for f in [Unary::Relu, Unary::Sign, Unary::Tanh, Unary::Sigmoid, Unary::Erf, Unary::Exp] {
        let y = run(&Op::Unary { f }, std::slice::from_ref(&nan));
        assert!(y.values::<f32>()[0].is_nan(), "{f:?}");
    }
    for f in [Binary::Max, Binary::Min] {
        for inputs in [[nan.clone(), one.clone()], [one.clone(), nan.clone()]] {
            assert!(run(&Op::Binary { f }, &inputs).values::<f32>()[0].is_nan(), "{f:?}");
        }
    }
}

#[test]
fn unread_results_are_not_computed() {
    let x = Tensor { ty: TensorType::scalar(DType::I32), bytes: vec![0; 4] };
    let setting = super::Setting { unread: &[0], ..Default::default() };
    let y = super::run_as(&Op::Binary { f: Binary::Div }, &[x.clone(), x], setting);
    assert!(y.unwrap()[0].bytes.is_empty());
}
