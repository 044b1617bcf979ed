//! Calls of cuBLASLt and cuDNN that compute an operator, as their interfaces take them: matrices
//! column by column, tensors as images, channels, rows, columns.
//!
//! Plans depend on them: an operator that a library may compute has a workspace, and the order of
//! its sums is unknown. The executor issues the calls that are described here.

use arenic_ir::backend::Math;
use arenic_ir::op::{Extents, Op, Window, channels_last};
use arenic_ir::types::{DType, TensorType};
use std::fmt;

/// Extents and strides, in elements, that libraries take: their integers are signed.
const MOST: usize = i32::MAX as usize;

/// A call of a library that computes an operator. Extents and strides are in elements.
#[derive(Clone, Debug, PartialEq)]
pub enum LibraryCall {
    /// A matrix product.
    Product(Product),
    /// A convolution, or its gradient.
    Convolution(Convolution),
}

/// `d = alpha · op(a) · op(b) + beta · c` for each of a batch, where matrices are stored column
/// by column. A result that is stored row by row is the transpose of such a `d`, so that `a` is
/// the operator's second operand and `b` its first.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// The type of all elements: `Bf16`, whose sums are `F32`, `F32` or `F64`.
    pub dtype: DType,
    /// How elements are multiplied.
    pub math: Math,
    /// Rows of `d`.
    pub m: usize,
    /// Columns of `d`.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// Matrices of each operand and of the result.
    pub batches: usize,
    /// The first factor.
    pub a: Matrix,
    /// The second factor.
    pub b: Matrix,
    /// The result, and `c`.
    pub d: Matrix,
    /// What the product is multiplied by.
    pub alpha: f32,
    /// What is added.
    pub added: Added,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
}

/// A matrix as it is stored: column by column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The product takes its transpose.
    pub transposed: bool,
    /// Rows as stored.
    pub rows: usize,
    /// Columns as stored.
    pub columns: usize,
    /// From one column to the next.
    pub leading: usize,
    /// From one matrix of the batch to the next; 0 where all read the same one.
    pub stride: usize,
}

/// What is added to a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Added {
    /// Nothing.
    Nothing,
    /// A matrix stored as the result is, which may have its place, times this.
    Matrix(f32),
    /// An element for each row of `d`.
    Bias,
}

/// What becomes of sums before they are rounded and stored: functions of GELU's tanh form. The
/// matrix beside the result, `z`, is stored as the result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// Nothing.
    Plain,
    /// GELU is applied to them.
    Gelu {
        /// They are stored, too, as `z`.
        keeps_z: bool,
    },
    /// They are multiplied by GELU's slope at `z`.
    GeluGradient,
}

/// What the leading dimension of the matrix beside the result is a multiple of, in elements.
const BESIDE_MULTIPLE: usize = 8;

/// A two-dimensional cross-correlation, one group of channels after another, or the gradient of
/// one of its operands. Extents are of images, channels, rows, columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// The type of all elements: `F32`, or `Bf16`, whose sums are `F32`.
    pub dtype: DType,
    /// What is computed of it.
    pub direction: Direction,
    /// How elements are multiplied.
    pub math: Math,
    /// What the convolution reads: `direction` says which of the three is computed.
    pub input: [usize; 4],
    /// The weights: all output channels, input channels of a group, rows, columns.
    pub filter: [usize; 4],
    /// What the convolution gives.
    pub output: [usize; 4],
    /// Padding on either side of rows and of columns.
    pub pads: [usize; 2],
    /// Steps of the window.
    pub strides: [usize; 2],
    /// Distances between taps.
    pub dilations: [usize; 2],
    /// Groups of channels.
    pub group: usize,
    /// An element for each channel of the result is added.
    pub bias: bool,
    /// All three tensors are stored with their channels last.
    pub channels_last: bool,
}

/// What is computed of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Its output from input and filter.
    Forward,
    /// The gradient of its input from that of its output and the filter.
    InputGradient,
    /// The gradient of its filter from the input and the gradient of its output.
    FilterGradient,
}

impl LibraryCall {
    /// The operator's operands in the order in which the call takes them; its results follow.
    pub fn operands(&self) -> &'static [usize] {
        match self {
            LibraryCall::Product(Product {
                added: Added::Nothing,
                epilogue: Epilogue::Plain | Epilogue::Gelu { .. },
                ..
            }) => &[1, 0],
            LibraryCall::Product(_) => &[1, 0, 2],
            LibraryCall::Convolution(c) if !c.bias => &[0, 1],
            LibraryCall::Convolution(_) => &[0, 1, 2],
        }
    }

    /// How many of the operator's results it gives, the first ones.
    pub fn results(&self) -> usize {
        match self {
            LibraryCall::Product(p) if p.epilogue == Epilogue::Gelu { keeps_z: true } => 2,
            _ => 1,
        }
    }

    /// True where operands and results, in the call's order, may have addresses that are multiples
    /// of so many bytes. Convolutions read 16 at once, and so do products what is beside their sums.
    pub fn takes(&self, alignments: &[u64]) -> bool {
        let wide = match self {
            LibraryCall::Convolution(_) => alignments,
            LibraryCall::Product(p) if p.epilogue == Epilogue::GeluGradient => &alignments[2..],
            LibraryCall::Product(_) => &[],
        };
        wide.iter().all(|&a| a >= WIDE_ALIGNED)
    }

    /// Multiplications of elements.
    pub fn multiplications(&self) -> usize {
        let factors = match self {
            LibraryCall::Product(p) => [p.batches, p.m, p.n, p.k].to_vec(),
            LibraryCall::Convolution(c) => [&c.output[..], &c.filter[1..]].concat(),
        };
        factors.into_iter().fold(1, usize::saturating_mul)
    }
}

/// Why no library is asked for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NoCall {
    /// They have nothing of its kind.
    Operator,
    /// It has too few multiplications.
    Small,
    /// A tensor is empty, or has 2^31 elements or more.
    Extent,
    /// They do not multiply such elements.
    Elements,
    /// The matrices of a batch do not lie at one distance.
    Strides,
    /// They do not add this.
    Added,
    /// They have no GELU beside such rows, or of such elements.
    Gelu,
    /// The padding before is not that after.
    Padding,
    /// The convolution is over more than two axes, or its windows do not reach its whole output.
    Window,
    /// An operand is not at a multiple of 16 bytes.
    Alignment,
}

impl fmt::Display for NoCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoCall::Operator => "libraries have no such operator",
            NoCall::Small => "so few multiplications take no longer than a launch",
            NoCall::Extent => "a tensor is empty or has 2^31 elements or more",
            NoCall::Elements => "libraries do not multiply elements of this type",
            NoCall::Strides => "the matrices of its batch do not lie at one distance",
            NoCall::Added => "what is added is neither a matrix nor an element for each column",
            NoCall::Gelu => "rows beside a GELU are no multiple of 8 elements, or not f32 or bf16",
            NoCall::Padding => "libraries pad both sides alike",
            NoCall::Window => "libraries convolve over two axes, whole outputs alone",
            NoCall::Alignment => "an operand is not at a multiple of 16 bytes",
        })
    }
}

/// Bytes that libraries read at once where they do not ask how operands are aligned.
const WIDE_ALIGNED: u64 = 16;

/// Multiplications below which a library is not asked: so few take no longer than a launch does.
const LEAST_MULTIPLICATIONS: usize = 1 << 14;

/// The call by which a library may compute the operator. Last results that nobody reads may be left
/// out of `y`.
///
/// # Errors
/// Our own kernels compute it.
pub fn call(
    op: &Op,
    math: Math,
    x: &[&TensorType],
    y: &[&TensorType],
) -> Result<LibraryCall, NoCall> {
    let call = describe(op, math, x, y)?;
    if call.multiplications() < LEAST_MULTIPLICATIONS { Err(NoCall::Small) } else { Ok(call) }
}

/// The call that computes an operator, however small. Last results that nobody reads may be left out
/// of `y`.
///
/// # Errors
/// No library has one.
pub fn describe(
    op: &Op,
    math: Math,
    x: &[&TensorType],
    y: &[&TensorType],
) -> Result<LibraryCall, NoCall> {
    let keeps_z = y.len() > 1;
    let &[y, ..] = y else { return Err(NoCall::Operator) };
    let operands = x.iter().chain([&y]);
    if operands.clone().any(|t| t.elements() == 0 || t.elements() > MOST) {
        return Err(NoCall::Extent);
    }
    match op {
        Op::MatMul { trans_a, trans_b } => mat_mul([x[0], x[1], y], [*trans_a, *trans_b], math),
        Op::Gemm { alpha, beta, trans_a, trans_b } => {
            gemm(x, y, [*alpha, *beta], [*trans_a, *trans_b], math)
        }
        Op::GemmGelu { trans_a, trans_b } => {
            let call = gemm(x, y, [1.0, 1.0], [*trans_a, *trans_b], math)?;
            with_epilogue(call, Epilogue::Gelu { keeps_z })
        }
        Op::GemmGeluGrad { trans_a, trans_b } => {
            let call = gemm(&x[..2], y, [1.0, 1.0], [*trans_a, *trans_b], math)?;
            with_epilogue(call, Epilogue::GeluGradient)
        }
        Op::Conv { window, group } => {
            let output = convolved(x[0], x[1], y, window)?;
            convolution(Direction::Forward, y.dtype, output, window, *group, x.len() > 2, math)
        }
        Op::ConvTranspose { window, group, .. } => {
            let output = convolved(y, x[1], x[0], window)?;
            convolution(
                Direction::InputGradient,
                y.dtype,
                output,
                window,
                *group,
                x.len() > 2,
                math,
            )
        }
        Op::ConvWeightGrad { window, group } => {
            let output = convolved(x[0], y, x[1], window)?;
            convolution(Direction::FilterGradient, y.dtype, output, window, *group, false, math)
        }
        Op::ChannelsLast { of } => {
            let mut call = channels_last::as_first(x, &[y], |x, y| describe(of, math, x, y))?;
            if let LibraryCall::Convolution(c) = &mut call {
                c.channels_last = true;
            }
            Ok(call)
        }
        _ => Err(NoCall::Operator),
    }
}

fn mat_mul(
    [a, b, y]: [&TensorType; 3],
    trans: [bool; 2],
    math: Math,
) -> Result<LibraryCall, NoCall> {
    if [a, b].iter().zip(trans).any(|(x, trans)| x.rank() < 2 && trans) {
        return Err(NoCall::Operator);
    }
    let (batches, e) = Extents::of_mat_mul([a, b, y], trans[0], trans[1]);
    let vectors = usize::from(a.rank() == 1) + usize::from(b.rank() == 1);
    let batch = &y.shape[..(y.rank() + vectors).saturating_sub(2)];
    let stride = |x: &TensorType, matrix: usize| match batches <= 1 || x.rank() <= 2 {
        // The rows of all batches are rows of one product, or all read one matrix.
        true => Some(0),
        false => batch_stride(&x.shape[..x.rank() - 2], batch, matrix),
    };
    let strides = [stride(a, e.m * e.k), stride(b, e.k * e.n)];
    let [Some(stride_a), Some(stride_b)] = strides else { return Err(NoCall::Strides) };
    let strides = [stride_a, stride_b];
    product(y.dtype, math, batches.max(1), e, trans, strides, 1.0, Added::Nothing)
}

/// From one matrix of the batch to the next, where that is the same throughout.
fn batch_stride(shape: &[usize], batch: &[usize], matrix: usize) -> Option<usize> {
    let mut found = None;
    // Elements of the operand, and matrices of the batch, from one index of an axis to the next.
    let (mut own, mut below) = (matrix, 1);
    for (i, &extent) in batch.iter().rev().enumerate() {
        let here = shape.len().checked_sub(i + 1).map_or(1, |at| shape[at]);
        if extent > 1 {
            let stride = if here == 1 { 0 } else { own };
            match found {
                None => found = Some(stride),
                Some(first) if stride == first * below => {}
                Some(_) => return None,
            }
        }
        own *= here;
        below *= extent;
    }
    Some(found.unwrap_or(0))
}

fn gemm(
    x: &[&TensorType],
    y: &TensorType,
    [alpha, beta]: [f32; 2],
    trans: [bool; 2],
    math: Math,
) -> Result<LibraryCall, NoCall> {
    let e = Extents::of_gemm(x[0], x[1], trans[0], trans[1]);
    let added = match x.get(2).filter(|_| beta != 0.0) {
        None => Added::Nothing,
        Some(c) if c.elements() == y.elements() => Added::Matrix(beta),
        Some(c) if c.elements() == e.n && c.shape.last() == Some(&e.n) && beta == 1.0 => {
            Added::Bias
        }
        Some(_) => return Err(NoCall::Added),
    };
    product(y.dtype, math, 1, e, trans, [0, 0], alpha, added)
}

/// The product with a function of its sums, where the libraries have that: of `f32` and `bf16`, and
/// beside matrices whose columns are so many elements apart.
fn with_epilogue(call: LibraryCall, epilogue: Epilogue) -> Result<LibraryCall, NoCall> {
    let LibraryCall::Product(product) = call else { return Err(NoCall::Operator) };
    let is_alone = epilogue == Epilogue::Gelu { keeps_z: false };
    let fits = is_alone || product.d.leading.is_multiple_of(BESIDE_MULTIPLE);
    let is_known = matches!(product.dtype, DType::F32 | DType::Bf16);
    let call = LibraryCall::Product(Product { epilogue, ..product });
    if fits && is_known { Ok(call) } else { Err(NoCall::Gelu) }
}

/// The product by its transpose, since matrices here are stored row by row.
#[allow(clippy::too_many_arguments)] // all that a product is
fn product(
    dtype: DType,
    math: Math,
    batches: usize,
    e: Extents,
    [trans_a, trans_b]: [bool; 2],
    [stride_a, stride_b]: [usize; 2],
    alpha: f32,
    added: Added,
) -> Result<LibraryCall, NoCall> {
    let math = match dtype {
        DType::F32 => math,
        // There is but one way.
        DType::F64 | DType::Bf16 => Math::default(),
        _ => return Err(NoCall::Elements),
    };
    let matrix = |rows, columns, transposed: bool, stride| {
        let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
        Matrix { transposed, rows, columns, leading: rows, stride }
    };
    let (m, n, k) = (e.n, e.m, e.k);
    Ok(LibraryCall::Product(Product {
        dtype,
        math,
        m,
        n,
        k,
        batches,
        a: matrix(m, k, trans_b, stride_b),
        b: matrix(k, n, trans_a, stride_a),
        d: matrix(m, n, false, if batches > 1 { m * n } else { 0 }),
        alpha,
        added,
        epilogue: Epilogue::Plain,
    }))
}

/// Input, filter and output of a convolution over two axes, or over one beside one of extent 1.
fn convolved(
    input: &TensorType,
    filter: &TensorType,
    output: &TensorType,
    window: &Window,
) -> Result<[[usize; 4]; 3], NoCall> {
    if !matches!(input.dtype, DType::F32 | DType::Bf16) {
        return Err(NoCall::Elements);
    }
    if window.slide(&input.shape[2..], false).ok().as_deref() != Some(&output.shape[2..]) {
        return Err(NoCall::Window);
    }
    let planar = |t: &TensorType| match t.shape[..] {
        [images, channels, columns] => Some([images, channels, 1, columns]),
        [images, channels, rows, columns] => Some([images, channels, rows, columns]),
        _ => None,
    };
    match [planar(input), planar(filter), planar(output)] {
        [Some(input), Some(filter), Some(output)] => Ok([input, filter, output]),
        _ => Err(NoCall::Window),
    }
}

fn convolution(
    direction: Direction,
    dtype: DType,
    [input, filter, output]: [[usize; 4]; 3],
    window: &Window,
    group: usize,
    bias: bool,
    math: Math,
) -> Result<LibraryCall, NoCall> {
    // The libraries know one padding for both sides.
    if window.pads_begin != window.pads_end {
        return Err(NoCall::Padding);
    }
    let planar = |of: &[usize], missing: usize| match *of {
        [columns] => [missing, columns],
        _ => [of[0], of[1]],
    };
    let (pads, strides) = (planar(&window.pads_begin, 0), planar(&window.strides, 1));
    let dilations = planar(&window.dilations, 1);
    if [pads, strides, dilations].concat().into_iter().any(|n| n > MOST) {
        return Err(NoCall::Window);
    }
    // `tf32` is a way to multiply `f32`.
    let math = if dtype == DType::F32 { math } else { Math::default() };
    Ok(LibraryCall::Convolution(Convolution {
        direction,
        dtype,
        math,
        input,
        filter,
        output,
        pads,
        strides,
        dilations,
        group,
        bias,
        channels_last: false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(op: &Op, shapes: &[&[usize]]) -> Option<LibraryCall> {
        let x: Vec<TensorType> = shapes.iter().map(|&s| TensorType::new(DType::F32, s)).collect();
        let x: Vec<&TensorType> = x.iter().collect();
        let y = op.infer(&x).unwrap_or_else(|e| panic!("{e}"));
        describe(op, Math::F32, &x, &y.iter().collect::<Vec<_>>()).ok()
    }

    fn product_of(op: &Op, shapes: &[&[usize]]) -> Option<Product> {
        match described(op, shapes)? {
            LibraryCall::Product(product) => Some(product),
            LibraryCall::Convolution(c) => panic!("{c:?}"),
        }
    }

    const MAT_MUL: Op = Op::MatMul { trans_a: false, trans_b: false };

    #[test]
    fn a_product_is_computed_as_its_transpose() {
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let op = Op::Gemm { alpha: 0.5, beta: 1.0, trans_a, trans_b };
            let a: &[usize] = if trans_a { &[3, 2] } else { &[2, 3] };
            let b: &[usize] = if trans_b { &[5, 3] } else { &[3, 5] };
            let p = product_of(&op, &[a, b]).unwrap();
            assert_eq!((p.m, p.n, p.k, p.batches, p.alpha), (5, 2, 3, 1, 0.5));
            // Columns as stored are rows of the operands, and their extents follow.
            assert_eq!((p.a.rows, p.a.columns, p.a.leading), (b[1], b[0], b[1]));
            assert_eq!((p.b.rows, p.b.columns, p.b.leading), (a[1], a[0], a[1]));
            assert_eq!((p.a.transposed, p.b.transposed), (trans_b, trans_a));
            assert_eq!((p.d.rows, p.d.columns, p.d.leading), (5, 2, 5));
        }
    }

    #[test]
    fn only_f32_is_rounded_where_the_target_says_so() {
        for (dtype, expected) in [(DType::F32, Math::Tf32), (DType::F64, Math::F32)] {
            let x = TensorType::new(dtype, [64, 64]);
            let call = call(&MAT_MUL, Math::Tf32, &[&x, &x], &[&x]).unwrap();
            let LibraryCall::Product(product) = call else { panic!("{call:?}") };
            assert_eq!((product.dtype, product.math), (dtype, expected));
        }
    }

    #[test]
    fn batches_have_one_stride_or_go_without_a_library() {
        let strides = |a: &[usize], b: &[usize]| {
            let p = product_of(&MAT_MUL, &[a, b])?;
            // The operator's order.
            Some((p.batches, [p.b.stride, p.a.stride, p.d.stride]))
        };
        assert_eq!(strides(&[4, 6, 2, 3], &[4, 6, 3, 5]), Some((24, [6, 15, 10])));
        assert_eq!(strides(&[2, 3], &[4, 6, 3, 5]), Some((24, [0, 15, 10])));
        assert_eq!(strides(&[4, 1, 2, 3], &[4, 1, 3, 5]), Some((4, [6, 15, 10])));
        assert_eq!(strides(&[1, 6, 2, 3], &[6, 3, 5]), Some((6, [6, 15, 10])));
        // One product of all rows.
        assert_eq!(strides(&[4, 6, 2, 3], &[3, 5]), Some((1, [0, 0, 0])));
        // Neither one stride for both axes nor none.
        assert_eq!(strides(&[4, 1, 2, 3], &[4, 6, 3, 5]), None);
        assert_eq!(strides(&[4, 6, 2, 3], &[1, 6, 3, 5]), None);
    }

    #[test]
    fn what_a_gemm_adds_is_a_matrix_a_bias_or_too_much_for_a_library() {
        let added = |beta: f32, c: &[usize]| {
            let op = Op::Gemm { alpha: 1.0, beta, trans_a: false, trans_b: false };
            Some(product_of(&op, &[&[2, 3], &[3, 5], c])?.added)
        };
        assert_eq!(added(0.5, &[2, 5]), Some(Added::Matrix(0.5)));
        assert_eq!(added(1.0, &[5]), Some(Added::Bias));
        assert_eq!(added(1.0, &[1, 5]), Some(Added::Bias));
        assert_eq!(added(0.0, &[2, 1]), Some(Added::Nothing));
        assert_eq!(added(0.5, &[5]), None);
        assert_eq!(added(1.0, &[2, 1]), None);
        assert_eq!(added(1.0, &[]), None);
    }

    #[test]
    fn a_gelu_is_an_epilogue_beside_aligned_columns() {
        let (m, k) = (2, 3);
        let described = |op: &Op, dtype: DType, n: usize, bias: bool, results: usize| {
            let shapes = [vec![m, k], vec![k, n], if bias { vec![n] } else { vec![m, n] }];
            let x = shapes.map(|shape| TensorType::new(dtype, shape));
            let is_gradient = matches!(op, Op::GemmGeluGrad { .. });
            let count = if bias || is_gradient { 3 } else { 2 };
            let x = &x.iter().collect::<Vec<_>>()[..count];
            let y = op.infer(x).unwrap();
            let y = y.iter().take(results).collect::<Vec<_>>();
            let call = describe(op, Math::F32, x, &y).ok()?;
            let (operands, results) = (call.operands(), call.results());
            let LibraryCall::Product(p) = call else { panic!("{call:?}") };
            Some((p.added, p.epilogue, operands, results))
        };
        let forward = Op::GemmGelu { trans_a: false, trans_b: false };
        let backward = Op::GemmGeluGrad { trans_a: false, trans_b: false };
        let gelu = |keeps_z| Epilogue::Gelu { keeps_z };
        for d in [DType::F32, DType::Bf16] {
            let with_bias = Some((Added::Bias, gelu(true), &[1, 0, 2][..], 2));
            assert_eq!(described(&forward, d, 16, true, 2), with_bias);
            let without = Some((Added::Nothing, gelu(true), &[1, 0][..], 2));
            assert_eq!(described(&forward, d, 16, false, 2), without);
            let gradient = Some((Added::Nothing, Epilogue::GeluGradient, &[1, 0, 2][..], 1));
            assert_eq!(described(&backward, d, 16, false, 1), gradient);
            // Columns of the matrix beside it would begin anywhere.
            assert_eq!(described(&forward, d, 12, true, 2), None);
            assert_eq!(described(&backward, d, 12, false, 1), None);
            let alone = Some((Added::Bias, gelu(false), &[1, 0, 2][..], 1));
            assert_eq!(described(&forward, d, 12, true, 1), alone);
        }
        assert_eq!(described(&forward, DType::F64, 16, true, 2), None);
        assert_eq!(described(&backward, DType::F64, 16, false, 1), None);
    }

    fn window(kernel: &[usize], stride: usize, pads: [usize; 2]) -> Window {
        let each = |n: usize| vec![n; kernel.len()];
        Window {
            kernel: kernel.to_vec(),
            strides: each(stride),
            dilations: each(1),
            pads_begin: each(pads[0]),
            pads_end: each(pads[1]),
        }
    }

    fn convolution_of(op: &Op, shapes: &[&[usize]]) -> Option<Convolution> {
        match described(op, shapes)? {
            LibraryCall::Convolution(convolution) => Some(convolution),
            LibraryCall::Product(p) => panic!("{p:?}"),
        }
    }

    #[test]
    fn a_transposed_convolution_is_the_gradient_of_one() {
        let forward = Op::Conv { window: window(&[3, 3], 2, [1, 1]), group: 2 };
        let c = convolution_of(&forward, &[&[2, 4, 8, 8], &[6, 2, 3, 3], &[6]]).unwrap();
        let sides = (c.input, c.filter, c.output);
        assert_eq!(sides, ([2, 4, 8, 8], [6, 2, 3, 3], [2, 6, 4, 4]));
        assert_eq!((c.direction, c.bias, c.group), (Direction::Forward, true, 2));
        for (output_padding, extent) in [(0, 7), (1, 8)] {
            let gradient = Op::ConvTranspose {
                window: window(&[3, 3], 2, [1, 1]),
                group: 2,
                output_padding: vec![output_padding; 2],
            };
            let c = convolution_of(&gradient, &[&[2, 6, 4, 4], &[6, 2, 3, 3]]).unwrap();
            let sides = (c.input, c.filter, c.output);
            assert_eq!(sides, ([2, 4, extent, extent], [6, 2, 3, 3], [2, 6, 4, 4]));
            assert_eq!((c.direction, c.bias), (Direction::InputGradient, false));
        }
    }

    #[test]
    fn a_weight_gradient_has_the_sides_of_its_convolution() {
        let gradient = Op::ConvWeightGrad { window: window(&[3, 3], 2, [1, 1]), group: 2 };
        let c = convolution_of(&gradient, &[&[2, 4, 8, 8], &[2, 6, 4, 4]]).unwrap();
        let sides = (c.input, c.filter, c.output);
        assert_eq!(sides, ([2, 4, 8, 8], [6, 2, 3, 3], [2, 6, 4, 4]));
        assert_eq!((c.direction, c.bias), (Direction::FilterGradient, false));
    }

    #[test]
    fn extents_are_the_same_where_channels_are_last() {
        let of = Op::Conv { window: window(&[3, 3], 2, [1, 1]), group: 2 };
        let c = convolution_of(&of, &[&[2, 4, 8, 6], &[6, 2, 3, 3], &[6]]).unwrap();
        let turned = Op::ChannelsLast { of: Box::new(of) };
        let last = convolution_of(&turned, &[&[2, 8, 6, 4], &[6, 3, 3, 2], &[6]]).unwrap();
        assert_eq!(last, Convolution { channels_last: true, ..c });
    }

    #[test]
    fn one_axis_is_two_and_three_are_too_many() {
        let op = |kernel: &[usize], pads| Op::Conv { window: window(kernel, 1, pads), group: 1 };
        let c = convolution_of(&op(&[3], [1, 1]), &[&[2, 4, 8], &[5, 4, 3]]).unwrap();
        assert_eq!((c.input, c.filter, c.output), ([2, 4, 1, 8], [5, 4, 1, 3], [2, 5, 1, 8]));
        assert_eq!((c.pads, c.strides, c.dilations), ([0, 1], [1, 1], [1, 1]));
        let unequal = convolution_of(&op(&[3], [0, 1]), &[&[2, 4, 8], &[5, 4, 3]]);
        assert_eq!(unequal, None);
        let cube = convolution_of(&op(&[3, 3, 3], [0, 0]), &[&[2, 4, 8, 8, 8], &[5, 4, 3, 3, 3]]);
        assert_eq!(cube, None);
    }
}
