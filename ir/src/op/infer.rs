//! Output types from operand types: inference and, compared with what a graph says,
//! verification.

mod attention;
mod normalisation;
mod windows;

use super::{MAX_OPERANDS, Op, fused, pointwise, recurrence};
use crate::types::{DType, TensorType, broadcast_shapes};

/// Why operands do not fit an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TypeError(pub String);

macro_rules! ensure {
    ($cond:expr, $($arg:tt)*) => {
        if !$cond {
            return Err(TypeError(format!($($arg)*)));
        }
    };
}
pub(super) use ensure;

/// The rank beyond which shapes are refused; kernels keep indices in fixed arrays.
pub const MAX_RANK: usize = 16;

impl Op {
    /// How many operands the operator takes: (least, most).
    pub fn arity(&self) -> (usize, usize) {
        match self {
            Op::RandomUniform { .. } => (0, 0),
            Op::Reshape { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Transpose { .. }
            | Op::Expand { .. }
            | Op::Copy
            | Op::Cast { .. }
            | Op::Unary { .. }
            | Op::Reduce { .. }
            | Op::TopK { .. }
            | Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::MaxPool { .. }
            | Op::AveragePool { .. }
            | Op::AveragePoolGrad { .. }
            | Op::Resize { .. }
            | Op::LogSoftmaxStats => (1, 1),
            Op::SoftmaxOfStats => (3, 3),
            Op::Concat { .. } => (1, usize::MAX),
            Op::Opaque { .. } => (0, usize::MAX),
            Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::Binary { .. }
            | Op::Dropout { .. }
            | Op::MatMul { .. }
            | Op::ConvWeightGrad { .. }
            | Op::SoftmaxGrad { .. }
            | Op::LogSoftmaxGrad { .. }
            | Op::MaxPoolGrad { .. } => (2, 2),
            Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::Where
            | Op::BatchNorm { .. }
            | Op::Rnn { .. }
            | Op::RnnGrad { .. }
            | Op::GemmGeluGrad { .. } => (3, 3),
            Op::Lstm { .. } => (4, 5),
            Op::LstmGrad { dcells, .. } => (5 + usize::from(*dcells), 6 + usize::from(*dcells)),
            Op::Gru { linear_before_reset, .. } => {
                let n = 3 + usize::from(*linear_before_reset);
                (n, n)
            }
            Op::GruGrad { linear_before_reset, .. } => {
                let n = 5 + usize::from(*linear_before_reset);
                (n, n)
            }
            Op::LayerNormParamGrad { .. } | Op::BatchNormParamGrad => (4, 4),
            Op::Clip { min, max } => {
                let n = 1 + usize::from(*min) + usize::from(*max);
                (n, n)
            }
            Op::LayerNorm { .. }
            | Op::Gemm { .. }
            | Op::GemmGelu { .. }
            | Op::Conv { .. }
            | Op::ConvTranspose { .. } => (2, 3),
            Op::Adam { .. } => (6, 6),
            Op::Adagrad { .. }
            | Op::Momentum { .. }
            | Op::CrossEntropyGrad
            | Op::LayerNormInputGrad { .. } => (5, 5),
            Op::BatchNormInputGrad => (7, 7),
            Op::Attention { .. } => (3, 4),
            Op::AttentionGrad { .. } => (6, 7),
            Op::Pointwise { .. } | Op::PointwiseReduce { .. } => (1, MAX_OPERANDS),
            Op::ChannelsLast { of } => of.arity(),
            Op::ProductUpdate { update, .. } => {
                // One product instead of one gradient.
                let (least, most) = update.arity();
                (least + 1, most.saturating_add(1))
            }
        }
    }

    /// The types of all results, in order.
    ///
    /// # Errors
    /// Says which operand does not fit and why; every attribute is checked too, so that
    /// a kernel can run what `infer` accepts without checks of its own.
    pub fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let (least, most) = self.arity();
        ensure!(
            (least..=most).contains(&x.len()),
            "{} takes {} operands, not {}",
            self.name(),
            if least == most { least.to_string() } else { format!("{least} or more") },
            x.len()
        );
        let outputs = self.infer_outputs(x)?;
        for t in &outputs {
            ensure!(t.rank() <= MAX_RANK, "rank {} is above {MAX_RANK}", t.rank());
            ensure!(t.checked_bytes().is_some(), "a result of type {t} is too large");
        }
        Ok(outputs)
    }

    fn infer_outputs(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let one = |dtype: DType, shape: &[usize]| Ok(vec![TensorType::new(dtype, shape)]);
        match self {
            Op::Reshape { shape } => {
                let y = TensorType::new(x[0].dtype, shape.as_slice());
                ensure!(
                    y.checked_bytes() == x[0].checked_bytes(),
                    "{} does not reshape to {shape:?}",
                    x[0]
                );
                Ok(vec![y])
            }
            Op::Slice { starts, steps, shape } => {
                let r = x[0].rank();
                ensure!(
                    [starts.len(), steps.len(), shape.len()] == [r; 3],
                    "slice attributes for another rank than {r}"
                );
                for i in 0..r {
                    let Some(last) = shape[i].checked_sub(1) else { continue };
                    let end = starts[i] as i128 + last as i128 * i128::from(steps[i]);
                    let range = 0..x[0].shape[i] as i128;
                    ensure!(
                        steps[i] != 0
                            && range.contains(&(starts[i] as i128))
                            && range.contains(&end),
                        "slice of axis {i} leaves its extent {}",
                        x[0].shape[i]
                    );
                }
                one(x[0].dtype, shape)
            }
            Op::Pad { starts, steps, shape, .. } => {
                let r = x[0].rank();
                ensure!(
                    [starts.len(), steps.len(), shape.len()] == [r; 3],
                    "pad attributes for another rank than {r}"
                );
                for i in 0..r {
                    ensure!(steps[i] > 0, "the step of axis {i} is zero");
                    let Some(last) = x[0].shape[i].checked_sub(1) else { continue };
                    let end = starts[i] as u128 + last as u128 * steps[i] as u128;
                    ensure!(
                        end < shape[i] as u128,
                        "padding axis {i} of {} leaves its extent {}",
                        x[0],
                        shape[i]
                    );
                }
                one(x[0].dtype, shape)
            }
            Op::Transpose { perm } => {
                let mut seen = vec![false; x[0].rank()];
                let valid = perm.len() == seen.len()
                    && perm
                        .iter()
                        .all(|&p| seen.get_mut(p).is_some_and(|s| !std::mem::replace(s, true)));
                ensure!(valid, "{perm:?} is no permutation of {} axes", x[0].rank());
                one(x[0].dtype, &perm.iter().map(|&p| x[0].shape[p]).collect::<Vec<_>>())
            }
            Op::Expand { shape } => {
                ensure!(
                    broadcast_shapes(&x[0].shape, shape).as_ref() == Some(shape),
                    "{} does not broadcast to {shape:?}",
                    x[0]
                );
                one(x[0].dtype, shape)
            }
            Op::Concat { axis } => {
                axis_in(*axis, x[0])?;
                let mut shape = x[0].shape.clone();
                for t in &x[1..] {
                    let mut like = t.shape.clone();
                    ensure!(
                        t.dtype == x[0].dtype && t.rank() == x[0].rank(),
                        "{t} does not concatenate with {}",
                        x[0]
                    );
                    like[*axis] = x[0].shape[*axis];
                    ensure!(like == x[0].shape, "{t} does not concatenate with {}", x[0]);
                    shape[*axis] = shape[*axis].saturating_add(t.shape[*axis]);
                }
                one(x[0].dtype, &shape)
            }
            Op::Copy => one(x[0].dtype, &x[0].shape),
            Op::Gather { axis } => {
                axis_in(*axis, x[0])?;
                is_index(x[1])?;
                let s = &x[0].shape;
                one(x[0].dtype, &[&s[..*axis], &x[1].shape, &s[axis + 1..]].concat())
            }
            Op::GatherElements { axis } => {
                axis_in(*axis, x[0])?;
                is_index(x[1])?;
                elements_fit(*axis, x[0], x[1])?;
                one(x[0].dtype, &x[1].shape)
            }
            Op::GatherNd { batch_dims } => {
                is_index(x[1])?;
                let (b, depth) = nd_depth(*batch_dims, x[0], x[1])?;
                let indices = &x[1].shape[..x[1].rank() - 1];
                one(x[0].dtype, &[indices, &x[0].shape[b + depth..]].concat())
            }
            Op::TopK { axis, k, .. } => {
                axis_in(*axis, x[0])?;
                ensure!(x[0].dtype != DType::Bool, "{} has no order", x[0]);
                let mut shape = x[0].shape.clone();
                ensure!(*k <= shape[*axis], "the {k} first of {}", shape[*axis]);
                shape[*axis] = *k;
                let indices = TensorType::new(DType::I64, shape.clone());
                Ok(vec![TensorType::new(x[0].dtype, shape), indices])
            }
            Op::ScatterElements { axis, .. } => {
                axis_in(*axis, x[0])?;
                is_index(x[1])?;
                elements_fit(*axis, x[0], x[1])?;
                ensure!(
                    x[2].shape == x[1].shape && x[2].dtype == x[0].dtype,
                    "updates {} do not fit indices {} into {}",
                    x[2],
                    x[1],
                    x[0]
                );
                one(x[0].dtype, &x[0].shape)
            }
            Op::ScatterNd { .. } => {
                is_index(x[1])?;
                let (_, depth) = nd_depth(0, x[0], x[1])?;
                let updates = [&x[1].shape[..x[1].rank() - 1], &x[0].shape[depth..]].concat();
                ensure!(
                    x[2].shape == updates && x[2].dtype == x[0].dtype,
                    "updates {} do not fit indices {} into {}",
                    x[2],
                    x[1],
                    x[0]
                );
                one(x[0].dtype, &x[0].shape)
            }
            Op::Cast { to } => one(*to, &x[0].shape),
            Op::Unary { f } => {
                ensure!(f.takes(x[0].dtype), "{f:?} does not take {}", x[0].dtype);
                one(x[0].dtype, &x[0].shape)
            }
            Op::Binary { f } => {
                ensure!(
                    x[0].dtype == x[1].dtype,
                    "operands of different element types, {} and {}",
                    x[0].dtype,
                    x[1].dtype
                );
                ensure!(f.takes(x[0].dtype), "{f:?} does not take {}", x[0].dtype);
                let dtype = if f.is_comparison() { DType::Bool } else { x[0].dtype };
                one(dtype, &broadcast(x)?)
            }
            Op::Where => {
                ensure!(x[0].dtype == DType::Bool, "the condition is {}, not bool", x[0].dtype);
                ensure!(
                    x[1].dtype == x[2].dtype,
                    "branches of different element types, {} and {}",
                    x[1].dtype,
                    x[2].dtype
                );
                one(x[1].dtype, &broadcast(x)?)
            }
            Op::Clip { .. } => {
                ensure!(x[0].dtype != DType::Bool, "clip does not take bool");
                for bound in &x[1..] {
                    ensure!(
                        bound.dtype == x[0].dtype && bound.elements() == 1,
                        "bound {bound} is no scalar of {}",
                        x[0].dtype
                    );
                }
                one(x[0].dtype, &x[0].shape)
            }
            Op::Dropout { .. } => {
                ensure!(x[0].dtype.is_float(), "dropout does not take {}", x[0].dtype);
                ensure!(
                    x[1].dtype.is_float() && x[1].elements() == 1,
                    "ratio {} is no float scalar",
                    x[1]
                );
                Ok(vec![x[0].clone(), TensorType::new(DType::Bool, x[0].shape.as_slice())])
            }
            Op::RandomUniform { dtype, shape, .. } => {
                // Rounded, a number could be the upper end.
                let made = dtype.is_float() && *dtype != DType::Bf16;
                ensure!(made, "random_uniform does not make {dtype}");
                one(*dtype, shape)
            }
            Op::Reduce { axes, keep, .. } => {
                ensure!(x[0].dtype != DType::Bool, "reduce does not take bool");
                ensure!(
                    axes.windows(2).all(|w| w[0] < w[1])
                        && axes.last().is_none_or(|&a| a < x[0].rank()),
                    "{axes:?} are no axes of {}",
                    x[0]
                );
                let mut shape = Vec::new();
                for (i, &d) in x[0].shape.iter().enumerate() {
                    match (axes.contains(&i), keep) {
                        (false, _) => shape.push(d),
                        (true, true) => shape.push(1),
                        (true, false) => {}
                    }
                }
                one(x[0].dtype, &shape)
            }
            Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::SoftmaxGrad { .. }
            | Op::LogSoftmaxGrad { .. }
            | Op::LayerNorm { .. }
            | Op::LayerNormParamGrad { .. }
            | Op::LayerNormInputGrad { .. }
            | Op::BatchNorm { .. }
            | Op::BatchNormParamGrad
            | Op::BatchNormInputGrad => normalisation::infer(self, x),
            Op::MatMul { trans_a, trans_b } => one(x[0].dtype, &mat_mul(x, *trans_a, *trans_b)?),
            Op::Gemm { trans_a, trans_b, .. } => {
                same_number_type(x)?;
                ensure!(
                    x[0].rank() == 2 && x[1].rank() == 2,
                    "gemm of {} and {}, which are no matrices",
                    x[0],
                    x[1]
                );
                let shape = mat_mul(&x[..2], *trans_a, *trans_b)?;
                if let Some(c) = x.get(2) {
                    ensure!(
                        broadcast_shapes(&c.shape, &shape).as_ref() == Some(&shape),
                        "{c} does not broadcast to {shape:?}"
                    );
                }
                one(x[0].dtype, &shape)
            }
            Op::Conv { .. }
            | Op::ConvTranspose { .. }
            | Op::ConvWeightGrad { .. }
            | Op::MaxPool { .. }
            | Op::AveragePool { .. }
            | Op::MaxPoolGrad { .. }
            | Op::AveragePoolGrad { .. } => windows::infer(self, x),
            Op::ChannelsLast { of } => super::channels_last::infer(of, x),
            Op::Lstm { .. }
            | Op::LstmGrad { .. }
            | Op::Gru { .. }
            | Op::GruGrad { .. }
            | Op::Rnn { .. }
            | Op::RnnGrad { .. } => recurrence::infer(self, x),
            Op::Resize { spec } => {
                ensure!(x[0].dtype.is_float() || x[0].dtype.is_int(), "resize does not take bool");
                spec.validate(x[0])?;
                one(x[0].dtype, &spec.sizes)
            }
            Op::Adam { .. } => update(x, 3),
            Op::Adagrad { .. } | Op::Momentum { .. } => update(x, 2),
            Op::Pointwise { steps, results } => pointwise::infer(steps, results, x),
            Op::PointwiseReduce { steps, f, axes, keep } => {
                let terms = pointwise::infer_terms(steps, x)?;
                Op::Reduce { f: *f, axes: axes.clone(), keep: *keep }.infer(&[&terms])
            }
            Op::ProductUpdate { trans_a, trans_b, gradient, update, .. } => {
                fused::product_update(update, *gradient, (*trans_a, *trans_b), x)
            }
            Op::GemmGelu { trans_a, trans_b } => {
                let z = fused::gelu_operand(x, *trans_a, *trans_b)?;
                ensure!(
                    x.get(2).is_none_or(|bias| bias.shape == z.shape[1..]),
                    "gemm_gelu with a bias of another shape than [{}]",
                    z.shape[1]
                );
                Ok(vec![z.clone(), z])
            }
            Op::GemmGeluGrad { trans_a, trans_b } => {
                let dz = fused::gelu_operand(x, *trans_a, *trans_b)?;
                ensure!(*x[2] == dz, "gemm_gelu_grad at {}, which is not of type {dz}", x[2]);
                Ok(vec![dz])
            }
            Op::Attention { spec } => attention::forward(*spec, x),
            Op::AttentionGrad { spec } => attention::gradients(*spec, x),
            Op::LogSoftmaxStats => {
                let rows = fused::row_stats(x[0])?;
                Ok(vec![rows.clone(), rows])
            }
            Op::SoftmaxOfStats | Op::CrossEntropyGrad => fused::of_rows(x),
            Op::Opaque { results } => {
                Ok(results.iter().map(|&n| TensorType::new(DType::U8, [n])).collect())
            }
        }
    }
}

fn axis_in(axis: usize, x: &TensorType) -> Result<(), TypeError> {
    ensure!(axis < x.rank(), "axis {axis} of {x}");
    Ok(())
}

fn is_index(x: &TensorType) -> Result<(), TypeError> {
    ensure!(matches!(x.dtype, DType::I32 | DType::I64), "indices are {}, not i32 or i64", x.dtype);
    Ok(())
}

fn elements_fit(axis: usize, x: &TensorType, indices: &TensorType) -> Result<(), TypeError> {
    let fits = indices.rank() == x.rank()
        && (0..x.rank()).all(|i| i == axis || indices.shape[i] <= x.shape[i]);
    ensure!(fits, "indices {indices} do not fit {x} along axis {axis}");
    Ok(())
}

/// (batch axes, depth of an index tuple) of a gather or scatter by tuples.
fn nd_depth(b: usize, x: &TensorType, indices: &TensorType) -> Result<(usize, usize), TypeError> {
    let Some(&depth) = indices.shape.last() else {
        return Err(TypeError("indices are a scalar".into()));
    };
    let fits = b < indices.rank()
        && b <= x.rank()
        && x.shape[..b] == indices.shape[..b]
        && depth <= x.rank() - b;
    ensure!(fits, "indices {indices} with {b} batch axes do not fit {x}");
    Ok((b, depth))
}

/// The shape that all operands broadcast to.
pub(super) fn broadcast(x: &[&TensorType]) -> Result<Vec<usize>, TypeError> {
    let mut shape = x[0].shape.clone();
    for t in &x[1..] {
        shape = broadcast_shapes(&shape, &t.shape)
            .ok_or_else(|| TypeError(format!("{t} does not broadcast with {shape:?}")))?;
    }
    Ok(shape)
}

fn same_number_type(x: &[&TensorType]) -> Result<(), TypeError> {
    let d = x[0].dtype;
    ensure!(
        d.is_float() || matches!(d, DType::I32 | DType::I64 | DType::U32 | DType::U64),
        "products do not take {d}"
    );
    ensure!(
        x.iter().all(|t| t.dtype == d),
        "operands of different element types, {:?}",
        x.iter().map(|t| t.dtype.name()).collect::<Vec<_>>()
    );
    Ok(())
}

fn mat_mul(x: &[&TensorType], trans_a: bool, trans_b: bool) -> Result<Vec<usize>, TypeError> {
    same_number_type(x)?;
    let matrix = |t: &TensorType, trans: bool, vector: [usize; 2]| match t.shape[..] {
        [] => None,
        [_] if trans => None,
        [_] => Some((vec![], vector)),
        [ref batch @ .., r, c] => Some((batch.to_vec(), if trans { [c, r] } else { [r, c] })),
    };
    let first = |t: &TensorType| t.shape.first().copied().unwrap_or(0);
    let (a, b) = (x[0], x[1]);
    let (Some((batch_a, [m, k])), Some((batch_b, [k2, n]))) =
        (matrix(a, trans_a, [1, first(a)]), matrix(b, trans_b, [first(b), 1]))
    else {
        return Err(TypeError(format!("no product of {a} and {b}")));
    };
    ensure!(k == k2, "no product of {a} and {b}: inner extents {k} and {k2}");
    let mut shape = broadcast_shapes(&batch_a, &batch_b)
        .ok_or_else(|| TypeError(format!("batch axes of {a} and {b} do not broadcast")))?;
    if a.rank() > 1 {
        shape.push(m);
    }
    if b.rank() > 1 {
        shape.push(n);
    }
    Ok(shape)
}

/// `lr, t, x, g, slots…`: the last `results` − 1 operands are the optimizer's slots.
fn update(x: &[&TensorType], results: usize) -> Result<Vec<TensorType>, TypeError> {
    let param = x[2];
    ensure!(param.dtype.is_float(), "an update does not take {}", param.dtype);
    ensure!(
        x[0].dtype == param.dtype && x[0].elements() == 1,
        "learning rate {} is no scalar of {}",
        x[0],
        param.dtype
    );
    ensure!(x[1].dtype == DType::I64 && x[1].elements() == 1, "count {} is no i64 scalar", x[1]);
    ensure!(
        x[3..].iter().all(|t| *t == param),
        "gradient or slots differ in type from the parameter {param}"
    );
    Ok(vec![param.clone(); results])
}
