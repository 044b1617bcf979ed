//! What libraries compute, by plain loops over the host's memory: every extent, stride and flag
//! is taken as the library takes it.

mod attention;

use arenic_backends::cuda::library::{
    Added, Convolution, Direction, Epilogue, LibraryCall, Matrix, Product,
};
use arenic_ir::DType;
use arenic_ir::op::gelu;
use arenic_ir::types::bf16;

/// Computes a call on operands in its order, then its results.
///
/// # Safety
/// The addresses are those of such tensors, aligned to their elements; a result overlaps no
/// operand, except that the first may be the matrix that is added.
pub unsafe fn compute(call: &LibraryCall, addresses: &[u64]) {
    let made = usize::from(call.made_bytes() > 0);
    let (operands, results) = addresses.split_at(call.operands().len() + made);
    assert_eq!(results.len(), call.results().len(), "results of {call:?}");
    let result = &results[0];
    // SAFETY: the caller's promise.
    unsafe {
        match call {
            LibraryCall::Product(p) => match p.dtype {
                DType::F64 => product::<f64, f64>(p, operands, results),
                DType::Bf16 => product::<Bf16, f32>(p, operands, results),
                _ => product::<f32, f32>(p, operands, results),
            },
            LibraryCall::Convolution(c) if c.dtype == DType::Bf16 => {
                convolution::<Bf16>(c, operands, *result);
            }
            LibraryCall::Convolution(c) => convolution::<f32>(c, operands, *result),
            LibraryCall::Attention(a) if a.dtype == DType::Bf16 => {
                attention::compute::<Bf16>(a, operands, results);
            }
            LibraryCall::Attention(a) => attention::compute::<f32>(a, operands, results),
        }
    }
}

/// What sums are taken in.
trait Float:
    Copy + From<f32> + Into<f64> + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self>
{
    fn of(x: f64) -> Self;
}

impl Float for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }
}

impl Float for f64 {
    fn of(x: f64) -> f64 {
        x
    }
}

/// GELU in its tanh form, and its slope.
fn gelu(z: f64) -> [f64; 2] {
    let t = (gelu::SCALE * (z + gelu::CUBIC * z * z * z)).tanh();
    let inner = gelu::SCALE * (1.0 + 3.0 * gelu::CUBIC * z * z);
    [0.5 * z * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * z * (1.0 - t * t) * inner]
}

/// An element as it is stored.
trait Element<F>: Copy {
    fn read(self) -> F;
    fn of(sum: F) -> Self;
}

impl<F: Float> Element<F> for F {
    fn read(self) -> F {
        self
    }
    fn of(sum: F) -> F {
        sum
    }
}

/// A `bf16`.
#[derive(Clone, Copy)]
struct Bf16(u16);

impl Element<f32> for Bf16 {
    fn read(self) -> f32 {
        bf16::to_f32(self.0)
    }
    fn of(sum: f32) -> Bf16 {
        Bf16(bf16::from_f32(sum))
    }
}

/// A matrix of a batch in memory.
struct Stored<'a> {
    matrix: &'a Matrix,
    first: usize,
}

impl Stored<'_> {
    /// Where the element of a row and a column of what the product takes is.
    fn at(&self, row: usize, column: usize) -> usize {
        let m = self.matrix;
        let (row, column) = if m.transposed { (column, row) } else { (row, column) };
        assert!(row < m.rows && column < m.columns && m.rows <= m.leading, "{m:?}");
        self.first + row + column * m.leading
    }
}

unsafe fn product<T: Element<F>, F: Float>(p: &Product, operands: &[u64], results: &[u64]) {
    let of = |address: u64| address as *const T;
    let (a, b, d) = (of(operands[0]), of(operands[1]), results[0] as *mut T);
    let third = operands.get(2).map(|&address| of(address));
    let beside = results.get(1).map(|&address| address as *mut T);
    for batch in 0..p.batches {
        let [in_a, in_b, in_d] =
            [&p.a, &p.b, &p.d].map(|matrix| Stored { matrix, first: batch * matrix.stride });
        for column in 0..p.n {
            for row in 0..p.m {
                let mut sum = F::from(0.0);
                // SAFETY: the caller's promise.
                unsafe {
                    for k in 0..p.k {
                        let (x, y) = (*a.add(in_a.at(row, k)), *b.add(in_b.at(k, column)));
                        sum = sum + x.read() * y.read();
                    }
                    sum = F::from(p.alpha) * sum;
                    let place = in_d.at(row, column);
                    match (p.added, third.filter(|_| p.epilogue != Epilogue::GeluGradient)) {
                        (Added::Nothing, None) => {}
                        (Added::Matrix(beta), Some(c)) => {
                            sum = sum + F::from(beta) * (*c.add(place)).read();
                        }
                        (Added::Bias, Some(bias)) => sum = sum + (*bias.add(row)).read(),
                        (added, _) => panic!("{added:?} with other operands"),
                    }
                    match (p.epilogue, beside, third) {
                        (Epilogue::Plain, None, _) => {}
                        (Epilogue::Gelu { keeps_z }, z, _) if keeps_z == z.is_some() => {
                            if let Some(z) = z {
                                *z.add(place) = T::of(sum);
                            }
                            sum = F::of(gelu(sum.into())[0]);
                        }
                        (Epilogue::GeluGradient, None, Some(z)) => {
                            let z: F = (*z.add(place)).read();
                            sum = sum * F::of(gelu(z.into())[1]);
                        }
                        (epilogue, ..) => panic!("{epilogue:?} with other operands or results"),
                    }
                    *d.add(place) = T::of(sum);
                }
            }
        }
    }
}

unsafe fn convolution<T: Element<f32>>(c: &Convolution, operands: &[u64], result: u64) {
    let [images, inputs, rows, columns] = c.input;
    let [channels, depth, taps_down, taps_across] = c.filter;
    let [_, outputs, down, across] = c.output;
    assert_eq!((c.output[0], outputs, depth * c.group), (images, channels, inputs), "{c:?}");
    // What is read, twice, and what is made.
    let (first, second, to) = match c.direction {
        Direction::Forward => (c.input, c.filter, c.output),
        Direction::InputGradient => (c.output, c.filter, c.input),
        Direction::FilterGradient => (c.input, c.output, c.filter),
    };
    // SAFETY: the caller's promise.
    let of = |i: usize, elements: usize| unsafe {
        std::slice::from_raw_parts(operands[i] as *const T, elements)
    };
    let (x, w) = (of(0, first.iter().product()), of(1, second.iter().product()));
    let bias = if c.bias { of(2, to[1]) } else { &[] };
    // SAFETY: as above.
    let result = unsafe { std::slice::from_raw_parts_mut(result as *mut T, to.iter().product()) };
    let channel = |i: usize| match c.channels_last {
        true => i % to[1],
        false => i / (to[2] * to[3]) % to[1],
    };
    let first = |i: usize| bias.get(channel(i)).map_or(0.0, |b| b.read());
    // Where an element of a tensor of these extents is.
    let place = |[_, channels, rows, columns]: [usize; 4], [n, c_, row, column]: [usize; 4]| match c
        .channels_last
    {
        true => ((n * rows + row) * columns + column) * channels + c_,
        false => ((n * channels + c_) * rows + row) * columns + column,
    };
    let mut y: Vec<f32> = (0..result.len()).map(first).collect();
    // Where a tap of a window lies, if it is in the input.
    let source = |at: usize, tap: usize, axis: usize| {
        let from = (at * c.strides[axis] + tap * c.dilations[axis]).checked_sub(c.pads[axis])?;
        (from < [rows, columns][axis]).then_some(from)
    };
    for (image, channel) in (0..images).flat_map(|i| (0..channels).map(move |o| (i, o))) {
        let first = channel / (channels / c.group) * depth;
        for (i, j) in (0..down).flat_map(|i| (0..across).map(move |j| (i, j))) {
            let output = place(c.output, [image, channel, i, j]);
            for (input, s, t) in (0..depth).flat_map(|input| {
                (0..taps_down).flat_map(move |s| (0..taps_across).map(move |t| (input, s, t)))
            }) {
                let (Some(row), Some(column)) = (source(i, s, 0), source(j, t, 1)) else {
                    continue;
                };
                let weight = place(c.filter, [channel, input, s, t]);
                let input = place(c.input, [image, first + input, row, column]);
                let (first, second, to) = match c.direction {
                    Direction::Forward => (input, weight, output),
                    Direction::InputGradient => (output, weight, input),
                    Direction::FilterGradient => (input, output, weight),
                };
                y[to] += x[first].read() * w[second].read();
            }
        }
    }
    for (result, sum) in result.iter_mut().zip(y) {
        *result = T::of(sum);
    }
}
