//! An attention, or the gradients of its operands, as a graph of products, reductions and functions of
//! elements. cuDNN's fused engines know such graphs by their form alone: which operations there are, in
//! which order, and which tensors are stored.

use super::super::super::driver::DriverError;
use super::descriptor::{Attribute, Descriptor, Kind};
use super::plan::{Operations, Place};
use super::{FLOAT, stored};
use arenic_backends::cuda::library::Attention;
use cudarc::cudnn::sys;
use sys::cudnnDataType_t as Type;
use sys::cudnnPointwiseMode_t as Function;
use sys::cudnnReduceTensorOp_t as Reduced;

// The numbers of tensors that have addresses.
const QUERIES: i64 = 1;
const KEYS: i64 = 2;
const VALUES: i64 = 3;
const RESULT: i64 = 4;
const RESULT_GRADIENT: i64 = 5;
const STATISTICS: i64 = 6;
const QUERIES_GRADIENT: i64 = 7;
const KEYS_GRADIENT: i64 = 8;
const VALUES_GRADIENT: i64 = 9;
/// Of each query the product of its result and the gradient of that.
const ROW_SUMS: i64 = 10;
/// The gradient of queries, as sums of `f32`.
const QUERIES_SUMS: i64 = 11;
const SCALE: i64 = 12;
const MASKED: i64 = 13;
const ONE: i64 = 14;
/// From here on the numbers are those of virtual tensors.
const VIRTUAL: i64 = 100;

/// How the gradient of queries is summed over blocks of keys. Engines have no note that tells the two
/// apart: it is the graph that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// In one order, so that the bits are always the same: the gradient of scores is stored, and the sum
    /// is a product of its own.
    Ordered,
    /// In the order in which blocks come to add to an `f32` tensor.
    Unordered,
}

/// The ways to sum that there are of an attention.
pub(super) fn sums(a: &Attention) -> &'static [Sums] {
    if a.gradients { &[Sums::Ordered, Sums::Unordered] } else { &[Sums::Ordered] }
}

/// The tensors of an attention, which address of its call each has, and how many bytes behind it each begins.
pub(super) fn tensors(a: &Attention) -> Vec<(i64, usize, u64)> {
    let numbered = order(a).iter().zip(0..).zip(a.begins());
    numbered.map(|((&number, at), first)| (number, at, first)).collect()
}

/// The tensors of an attention in the order of its call: operands, then results.
fn order(a: &Attention) -> &'static [i64] {
    match (a.gradients, a.keeps_statistics) {
        (true, _) => &[
            QUERIES,
            KEYS,
            VALUES,
            RESULT,
            RESULT_GRADIENT,
            STATISTICS,
            QUERIES_GRADIENT,
            KEYS_GRADIENT,
            VALUES_GRADIENT,
        ],
        (false, true) => &[QUERIES, KEYS, VALUES, RESULT, STATISTICS],
        (false, false) => &[QUERIES, KEYS, VALUES, RESULT],
    }
}

/// The scalars that a run names, which are in the host's memory.
pub(super) fn scalars(a: &Attention) -> Vec<(i64, f32)> {
    let mut scalars = vec![(SCALE, a.scale)];
    if a.causal {
        scalars.push((MASKED, f32::NEG_INFINITY));
    }
    if a.gradients {
        scalars.push((ONE, 1.0));
    }
    scalars
}

/// The tensors that a run names and that are between two of its operations, with their bytes.
pub(super) fn between(a: &Attention, sums: Sums) -> Vec<(i64, u64)> {
    if !a.gradients {
        return Vec::new();
    }
    let factors = [a.batch, a.heads, a.queries, size_of::<f32>()];
    let rows = factors.into_iter().fold(1, |bytes: u64, n| bytes.saturating_mul(n as u64));
    let mut between = vec![(ROW_SUMS, rows)];
    if sums == Sums::Unordered {
        between.push((QUERIES_SUMS, rows.saturating_mul(a.depth as u64)));
    }
    between
}

/// The operations.
pub(super) fn operations(a: &Attention, sums: Sums) -> Result<Operations, DriverError> {
    let of = |n: usize| n as i64;
    let mut graph = Graph {
        operations: Operations::default(),
        tensors: Vec::new(),
        virtuals: 0,
        rows: [of(a.batch), of(a.heads), of(a.queries), 1],
        scores: [of(a.batch), of(a.heads), of(a.queries), of(a.keys)],
        element: stored(a.dtype),
    };
    match a.gradients {
        true => graph.gradients(a, sums),
        false => graph.result(a),
    }?;
    let Graph { mut operations, tensors, .. } = graph;
    operations.keep(tensors);
    Ok(operations)
}

type Extents = [i64; 4];

/// Strides of tensors whose elements lie one after another.
fn dense([_, h, t, d]: Extents) -> Extents {
    [h * t * d, t * d, d, 1]
}

/// Exchanges rows and columns of matrices, by extents or by strides.
fn transposed([b, h, t, d]: Extents) -> Extents {
    [b, h, d, t]
}

/// The extents and strides of queries, keys, values and the result.
fn lies(a: &Attention) -> [[Extents; 2]; 4] {
    let queries = [a.heads, a.queries, a.depth];
    let keys = [a.key_heads, a.keys, a.depth];
    let values = [a.key_heads, a.keys, a.width];
    let result = [a.heads, a.queries, a.width];
    let mut lies = [queries, keys, values, result].map(|[heads, rows, elements]| {
        [[a.batch, heads, rows, elements].map(|n| n as i64), [1; 4]]
    });
    for (lie, strides) in lies.iter_mut().zip(a.strides) {
        let outer = strides.map(|n| n as i64);
        lie[1][..3].copy_from_slice(&outer);
    }
    lies
}

/// A tensor of the graph.
#[derive(Clone, Copy)]
struct Tensor {
    at: usize,
    extents: Extents,
    strides: Extents,
}

/// The graph as it is put together.
struct Graph {
    operations: Operations,
    tensors: Vec<Descriptor>,
    virtuals: i64,
    /// Extents of what is one element for each query.
    rows: Extents,
    /// Extents of what is one element for each query and key.
    scores: Extents,
    /// The type of operands and results.
    element: Type,
}

impl Graph {
    fn tensor(
        &mut self,
        number: i64,
        place: Place,
        dtype: Type,
        [extents, strides]: [Extents; 2],
    ) -> Result<Tensor, DriverError> {
        let made = Operations::tensor(number, place, dtype, [&extents, &strides])?;
        self.tensors.push(made);
        Ok(Tensor { at: self.tensors.len() - 1, extents, strides })
    }

    /// A tensor of `f32` on the device.
    fn floats(&mut self, number: i64, extents: Extents) -> Result<Tensor, DriverError> {
        self.tensor(number, Place::Device, FLOAT, [extents, dense(extents)])
    }

    fn scalar(&mut self, number: i64) -> Result<Tensor, DriverError> {
        self.tensor(number, Place::Host, FLOAT, [[1; 4]; 2])
    }

    /// A tensor between two operations.
    fn between(&mut self, dtype: Type, extents: Extents) -> Result<Tensor, DriverError> {
        self.between_as(dtype, [extents, dense(extents)])
    }

    fn between_as(&mut self, dtype: Type, lie: [Extents; 2]) -> Result<Tensor, DriverError> {
        self.virtuals += 1;
        self.tensor(VIRTUAL + self.virtuals, Place::Virtual, dtype, lie)
    }

    /// A tensor of the call's elements.
    fn matrices(&mut self, number: i64, lie: [Extents; 2]) -> Result<Tensor, DriverError> {
        self.tensor(number, Place::Device, self.element, lie)
    }

    /// Adds an operation on tensors that was made of one more descriptor, if any.
    fn add(
        &mut self,
        operation: Descriptor,
        tensors: &[(Attribute, Tensor)],
        of: Option<(Attribute, Descriptor)>,
    ) -> Result<(), DriverError> {
        for &(which, tensor) in tensors {
            operation.set_to(which, &[&self.tensors[tensor.at]])?;
        }
        if let Some((which, of)) = &of {
            operation.set_to(*which, &[of])?;
        }
        self.operations.add(operation.finalized()?, of.map(|(_, of)| of));
        Ok(())
    }

    /// `c = a b`, matrix by matrix.
    fn product(&mut self, [a, b, c]: [Tensor; 3]) -> Result<(), DriverError> {
        use Attribute as A;
        let sums = Descriptor::new(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
        sums.set(A::CUDNN_ATTR_MATMUL_COMP_TYPE, &[FLOAT])?;
        let tensors = [
            (A::CUDNN_ATTR_OPERATION_MATMUL_ADESC, a),
            (A::CUDNN_ATTR_OPERATION_MATMUL_BDESC, b),
            (A::CUDNN_ATTR_OPERATION_MATMUL_CDESC, c),
        ];
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?;
        let of = (A::CUDNN_ATTR_OPERATION_MATMUL_DESC, sums.finalized()?);
        self.add(operation, &tensors, Some(of))
    }

    /// Reduces axes along which the result has but one element.
    fn reduce(&mut self, by: Reduced, x: Tensor, y: Tensor) -> Result<(), DriverError> {
        use Attribute as A;
        let reduction = Descriptor::new(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?;
        reduction.set(A::CUDNN_ATTR_REDUCTION_COMP_TYPE, &[FLOAT])?;
        reduction.set(A::CUDNN_ATTR_REDUCTION_OPERATOR, &[by])?;
        let tensors = [
            (A::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x),
            (A::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y),
        ];
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?;
        let of = (A::CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction.finalized()?);
        self.add(operation, &tensors, Some(of))
    }

    /// Its matrices transposed, as the call's elements.
    fn turned(&mut self, x: Tensor) -> Result<Tensor, DriverError> {
        use Attribute as A;
        let y = self.between_as(self.element, [x.extents, x.strides].map(transposed))?;
        let tensors = [
            (A::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x),
            (A::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y),
        ];
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?;
        self.add(operation, &tensors, None)?;
        Ok(y)
    }

    /// A function of the elements of up to three tensors, which are spread as the result needs; `axis`
    /// is that of `GEN_INDEX`.
    fn function(
        &mut self,
        function: Function,
        axis: Option<i64>,
        of: &[Tensor],
        y: Tensor,
    ) -> Result<(), DriverError> {
        use Attribute as A;
        let computed = match function {
            Function::CUDNN_POINTWISE_CMP_GE => Type::CUDNN_DATA_BOOLEAN,
            _ => FLOAT,
        };
        let pointwise = Descriptor::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        pointwise.set(A::CUDNN_ATTR_POINTWISE_MODE, &[function])?;
        pointwise.set(A::CUDNN_ATTR_POINTWISE_MATH_PREC, &[computed])?;
        if let Some(axis) = axis {
            pointwise.set(A::CUDNN_ATTR_POINTWISE_AXIS, &[axis])?;
        }
        let operands = [
            A::CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            A::CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            A::CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        let mut tensors: Vec<_> = operands.into_iter().zip(of.iter().copied()).collect();
        tensors.push((A::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        let of = (A::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise.finalized()?);
        self.add(operation, &tensors, Some(of))
    }

    /// As [`Graph::function`], into a tensor of `f32` between two operations.
    fn apply(&mut self, function: Function, of: &[Tensor]) -> Result<Tensor, DriverError> {
        let y = self.between(FLOAT, of[0].extents)?;
        self.function(function, None, of, y)?;
        Ok(y)
    }

    /// `0, 1, …` along one axis of scores.
    fn index(&mut self, axis: i64, scores: Tensor) -> Result<Tensor, DriverError> {
        let index = self.between(Type::CUDNN_DATA_INT32, self.scores)?;
        self.function(Function::CUDNN_POINTWISE_GEN_INDEX, Some(axis), &[scores], index)?;
        Ok(index)
    }

    /// The scores where the row is not before the column; elsewhere what has no exponential.
    fn masked(&mut self, scores: Tensor) -> Result<Tensor, DriverError> {
        let (row, column) = (self.index(2, scores)?, self.index(3, scores)?);
        let reads = self.between(Type::CUDNN_DATA_BOOLEAN, self.scores)?;
        self.function(Function::CUDNN_POINTWISE_CMP_GE, None, &[row, column], reads)?;
        let masked = self.scalar(MASKED)?;
        self.apply(Function::CUDNN_POINTWISE_BINARY_SELECT, &[scores, masked, reads])
    }

    /// `softmax(scale · q kᵀ) v`, and the statistics.
    fn result(&mut self, a: &Attention) -> Result<(), DriverError> {
        let [q, k, v, y] = lies(a);
        let queries = self.matrices(QUERIES, q)?;
        let keys = self.matrices(KEYS, k.map(transposed))?;
        let scores = self.between(FLOAT, self.scores)?;
        self.product([queries, keys, scores])?;
        let scale = self.scalar(SCALE)?;
        let mut scores = self.apply(Function::CUDNN_POINTWISE_MUL, &[scores, scale])?;
        if a.causal {
            scores = self.masked(scores)?;
        }
        let most = self.between(FLOAT, self.rows)?;
        self.reduce(Reduced::CUDNN_REDUCE_TENSOR_MAX, scores, most)?;
        let less = self.apply(Function::CUDNN_POINTWISE_SUB, &[scores, most])?;
        let powers = self.apply(Function::CUDNN_POINTWISE_EXP, &[less])?;
        let sums = self.between(FLOAT, self.rows)?;
        self.reduce(Reduced::CUDNN_REDUCE_TENSOR_ADD, powers, sums)?;
        // Engines find these operations whether or not their result is stored.
        let logarithm = self.apply(Function::CUDNN_POINTWISE_LOG, &[sums])?;
        let statistics = match a.keeps_statistics {
            true => self.floats(STATISTICS, self.rows)?,
            false => self.between(FLOAT, self.rows)?,
        };
        self.function(Function::CUDNN_POINTWISE_ADD, None, &[most, logarithm], statistics)?;
        let weights = self.between(self.element, self.scores)?;
        self.function(Function::CUDNN_POINTWISE_DIV, None, &[powers, sums], weights)?;
        let values = self.matrices(VALUES, v)?;
        let result = self.matrices(RESULT, y)?;
        self.product([weights, values, result])
    }

    /// With weights `p = exp(scale · q kᵀ − statistics)` these are `dv = pᵀ dy`, and `dq = ds k`,
    /// `dk = dsᵀ q` of `ds = scale · p · (dy vᵀ − Σ y · dy)`, the sum over each row.
    fn gradients(&mut self, a: &Attention, sums: Sums) -> Result<(), DriverError> {
        use Function as F;
        let [q, k, v, y] = lies(a);
        let queries = self.matrices(QUERIES, q)?;
        let keys = self.matrices(KEYS, k.map(transposed))?;
        let values = self.matrices(VALUES, v.map(transposed))?;
        let result = self.matrices(RESULT, y)?;
        let gradient = self.matrices(RESULT_GRADIENT, y)?;
        let statistics = self.floats(STATISTICS, self.rows)?;
        let (scale, one) = (self.scalar(SCALE)?, self.scalar(ONE)?);

        let products = self.apply(F::CUDNN_POINTWISE_MUL, &[gradient, result])?;
        let summed = self.between(FLOAT, self.rows)?;
        self.reduce(Reduced::CUDNN_REDUCE_TENSOR_ADD, products, summed)?;
        // Where elements are dropped, engines find their factor here.
        let row_sums = self.floats(ROW_SUMS, self.rows)?;
        self.function(F::CUDNN_POINTWISE_MUL, None, &[summed, one], row_sums)?;

        let scores = self.between(FLOAT, self.scores)?;
        self.product([queries, keys, scores])?;
        let scores = self.apply(F::CUDNN_POINTWISE_MUL, &[scores, scale])?;
        let mut logarithms = self.apply(F::CUDNN_POINTWISE_SUB, &[scores, statistics])?;
        if a.causal {
            logarithms = self.masked(logarithms)?;
        }
        let weights = self.apply(F::CUDNN_POINTWISE_EXP, &[logarithms])?;
        let turned = self.turned(weights)?;
        self.summed(a, [turned, gradient], (VALUES_GRADIENT, v))?;

        let slopes = self.between(FLOAT, self.scores)?;
        self.product([gradient, values, slopes])?;
        let slopes = self.apply(F::CUDNN_POINTWISE_SUB, &[slopes, row_sums])?;
        let slopes = self.apply(F::CUDNN_POINTWISE_MUL, &[slopes, weights])?;
        let slopes = self.apply(F::CUDNN_POINTWISE_MUL, &[slopes, scale])?;
        let turned = self.turned(slopes)?;
        self.summed(a, [turned, queries], (KEYS_GRADIENT, k))?;

        let keys = self.turned(keys)?;
        let to = self.matrices(QUERIES_GRADIENT, q)?;
        match sums {
            Sums::Ordered => self.product([slopes, keys, to]),
            Sums::Unordered => {
                let summed = self.floats(QUERIES_SUMS, q[0])?;
                self.product([slopes, keys, summed])?;
                self.function(F::CUDNN_POINTWISE_IDENTITY, None, &[summed], to)
            }
        }
    }

    /// A product that is the gradient of keys or of values; where they are read by several matrices of
    /// queries, the sum over those.
    fn summed(
        &mut self,
        a: &Attention,
        [x, y]: [Tensor; 2],
        (number, lie): (i64, [Extents; 2]),
    ) -> Result<(), DriverError> {
        let to = self.matrices(number, lie)?;
        if a.heads == a.key_heads {
            return self.product([x, y, to]);
        }
        let [[batch, _, rows, elements], _] = lie;
        let each = self.between(self.element, [batch, a.heads as i64, rows, elements])?;
        self.product([x, y, each])?;
        self.reduce(Reduced::CUDNN_REDUCE_TENSOR_ADD, each, to)
    }
}
