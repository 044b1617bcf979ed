//! Calls of cuBLASLt and cuDNN that compute an operator, as their interfaces take them: matrices
//! column by column, tensors as images, channels, rows, columns.
//!
//! Plans depend on them: an operator that a library may compute has a workspace, and the order of
//! its sums is unknown. The executor issues the calls that are described here.

mod attention;

use arenic_ir::backend::Math;
use arenic_ir::op::{Extents, Family, Op, Window, channels_last};
use arenic_ir::types::{DType, TensorType};
use std::fmt;

pub use attention::Attention;

/// Extents and strides, in elements, that libraries take: their integers are signed.
const MOST: usize = i32::MAX as usize;

/// A call of a library that computes an operator. Extents and strides are in elements.
#[derive(Clone, Debug, PartialEq)]
pub enum LibraryCall {
    /// A matrix product.
    Product(Product),
    /// A convolution, or its gradient.
    Convolution(Convolution),
    /// An attention, or its gradients.
    Attention(Attention),
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
            // The statistics, which are last, are made of two operands.
            LibraryCall::Attention(a) if a.gradients => &[0, 1, 2, 6, 5],
            LibraryCall::Attention(_) => &[0, 1, 2],
        }
    }

    /// Bytes of an operand that is made before the call, behind its workspace.
    pub fn made_bytes(&self) -> u64 {
        match self {
            LibraryCall::Attention(a) if a.gradients => a.statistics_bytes(),
            _ => 0,
        }
    }

    /// The operator's results in the order in which the call gives them; several may be parts of one.
    pub fn results(&self) -> &'static [usize] {
        match self {
            LibraryCall::Product(p) if p.epilogue == Epilogue::Gelu { keeps_z: true } => &[0, 1],
            LibraryCall::Attention(a) if a.gradients && a.packed => &[0, 0, 0],
            LibraryCall::Attention(a) if a.gradients => &[0, 1, 2],
            LibraryCall::Attention(a) if a.keeps_statistics => &[0, 1],
            _ => &[0],
        }
    }

    /// True where operands and results, in the call's order, may have addresses that are multiples
    /// of so many bytes. Convolutions and attentions read 16 at once, and so do products what is
    /// beside their sums.
    pub fn takes(&self, alignments: &[u64]) -> bool {
        let wide = match self {
            LibraryCall::Convolution(_) | LibraryCall::Attention(_) => alignments,
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
            LibraryCall::Attention(a) => a.factors(),
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
    /// The attention has a mask, drops probabilities, or bounds scores.
    Scores,
    /// Results are not those that the call has.
    Results,
    /// Rows of an attention have other lengths than cuDNN takes.
    Rows,
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
            NoCall::Scores => "scores have a mask or a bound, or probabilities are dropped",
            NoCall::Results => "the call has other results, or needs that of the attention",
            NoCall::Rows => "rows are no multiples of 8 elements, or longer than 256",
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
    let (all, keeps_z) = (y, y.len() > 1);
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
        Op::Attention { .. } | Op::AttentionGrad { .. } => match op.family() {
            Family::Attention(op) => attention::describe(op, x, all),
            _ => Err(NoCall::Operator),
        },
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
#[allow(clippy::too_many_arguments, reason = "a product has so many properties")]
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
mod tests;
