//! Operators whose tensors have their channels last.
//!
//! Tensor cores multiply along channels, so that libraries compute convolutions from tensors whose
//! channels lie together, and turn others before and after ("Convolutional Layers User's Guide",
//! NVIDIA, §Tensor Layouts). [`Op::ChannelsLast`] is an operator with a window on such tensors: of
//! each operand and result of rank three or more the second axis stands last. A filter
//! `w[M,C,…]` is `w[M,…,C]`, too. What [`Op`] says of the operator inside holds of the tensors with
//! their channels in the second place again; the positions that a `MaxPool` gives are those there.

use super::error::ensure;
use super::{Assembly, Cut, Family, Op, TypeError, Work};
use crate::types::TensorType;

/// A list with an entry for each axis, the channels' last.
pub fn to_last<T: Clone>(axes: &[T]) -> Vec<T> {
    match axes.len() {
        0 | 1 => axes.to_vec(),
        _ => [&axes[..1], &axes[2..], &axes[1..2]].concat(),
    }
}

/// A list with an entry for each axis, the channels' second again.
pub fn to_first<T: Clone>(axes: &[T]) -> Vec<T> {
    match axes.len() {
        0 | 1 => axes.to_vec(),
        n => [&axes[..1], &axes[n - 1..], &axes[1..n - 1]].concat(),
    }
}

/// Where an axis of a tensor of this rank stands when the channels are last.
pub fn last_axis(rank: usize, axis: usize) -> usize {
    match axis {
        0 => 0,
        1 => rank - 1,
        _ => axis - 1,
    }
}

/// Which axis of a tensor of this rank is here when the channels are last.
fn first_axis(rank: usize, axis: usize) -> usize {
    match axis {
        0 => 0,
        _ if axis + 1 == rank => 1,
        _ => axis + 1,
    }
}

/// True for tensors that have channels to be moved.
pub fn is_turned(ty: &TensorType) -> bool {
    ty.rank() > 2
}

/// The type with its channels last.
pub fn last(ty: &TensorType) -> TensorType {
    match is_turned(ty) {
        true => TensorType::new(ty.dtype, to_last(&ty.shape)),
        false => ty.clone(),
    }
}

/// The type with its channels second.
pub fn first(ty: &TensorType) -> TensorType {
    match is_turned(ty) {
        true => TensorType::new(ty.dtype, to_first(&ty.shape)),
        false => ty.clone(),
    }
}

/// Calls `said` with these types of operands and results, their channels second.
pub fn as_first<T>(
    x: &[&TensorType],
    y: &[&TensorType],
    said: impl FnOnce(&[&TensorType], &[&TensorType]) -> T,
) -> T {
    let all = |types: &[&TensorType]| types.iter().map(|ty| first(ty)).collect::<Vec<_>>();
    let (x, y) = (all(x), all(y));
    said(&x.iter().collect::<Vec<_>>(), &y.iter().collect::<Vec<_>>())
}

impl Op {
    /// True for operators that [`Op::ChannelsLast`] may hold: those with a window.
    pub fn may_have_channels_last(&self) -> bool {
        match self.family() {
            Family::Convolution(_) | Family::Pool(_) => true,
            Family::Movement(_)
            | Family::Indexing(_)
            | Family::Elementwise(_)
            | Family::Random(_)
            | Family::Reducing(_)
            | Family::Softmax(_)
            | Family::Norm(_)
            | Family::Product(_)
            | Family::Resizing(_)
            | Family::Attention(_)
            | Family::Recurrent(_)
            | Family::Update(_)
            | Family::Collective(_)
            | Family::Wrapping(_)
            | Family::Opaque(_) => false,
        }
    }
}

/// The results of an operator on tensors with their channels last.
pub(super) fn infer(of: &Op, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
    ensure!(of.may_have_channels_last(), "{} has no channels to be last", of.name());
    let y = as_first(x, &[], |x, _| of.infer(x))?;
    Ok(y.iter().map(last).collect())
}

/// Nothing is transposed where channels are last already.
pub(super) fn work(of: &Op, x: &[&TensorType], y: &[&TensorType]) -> Work {
    Work { turned_bytes: 0, ..as_first(x, y, |x, y| of.work(x, y)) }
}

/// The cuts of an operator on tensors with their channels last.
pub(super) fn cuts(of: &Op, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
    let moved = |axis: usize, ty: &TensorType| match is_turned(ty) {
        true => last_axis(ty.rank(), axis),
        false => axis,
    };
    let cuts = as_first(x, y, |x, y| of.cuts(x, y));
    let turned = |cut: Cut| Cut {
        operands: cut.operands.iter().zip(x).map(|(axis, ty)| Some(moved((*axis)?, ty))).collect(),
        results: cut
            .results
            .iter()
            .zip(y)
            .map(|(&assembly, ty)| match assembly {
                Assembly::Concat(axis) => Assembly::Concat(moved(axis, ty)),
                // Positions are cut along the first axis, which stays.
                other => other,
            })
            .collect(),
        ..cut
    };
    cuts.into_iter().map(turned).collect()
}

/// The operator of a part: see [`Op::part`].
pub(super) fn part(of: &Op, cut: &Cut, extent: usize) -> Op {
    let own = |assembly: &Assembly| match (assembly, of) {
        (
            Assembly::Concat(axis),
            Op::MaxPoolGrad { shape, .. } | Op::AveragePoolGrad { shape, .. },
        ) => Assembly::Concat(first_axis(shape.len(), *axis)),
        // Of others no attribute depends on the part.
        (assembly, _) => *assembly,
    };
    let results = cut.results.iter().map(own).collect();
    let part = of.part(&Cut { results, ..cut.clone() }, extent);
    Op::ChannelsLast { of: Box::new(part) }
}

#[cfg(test)]
mod tests {
    use super::super::{Binary, PoolIndices, Window};
    use super::*;
    use crate::types::DType;

    fn window() -> Window {
        Window {
            kernel: vec![3, 3],
            strides: vec![2, 2],
            dilations: vec![1, 1],
            pads_begin: vec![1, 1],
            pads_end: vec![1, 1],
        }
    }

    fn last_of(of: Op) -> Op {
        Op::ChannelsLast { of: Box::new(of) }
    }

    fn f32s(shape: &[usize]) -> TensorType {
        TensorType::new(DType::F32, shape)
    }

    #[test]
    fn axes_go_there_and_back() {
        assert_eq!(to_last(&["n", "c", "h", "w"]), ["n", "h", "w", "c"]);
        assert_eq!(to_first(&to_last(&[2, 3, 5, 7])), [2, 3, 5, 7]);
        for (axis, name) in ["n", "c", "h", "w"].iter().enumerate() {
            let at = last_axis(4, axis);
            assert_eq!(&to_last(&["n", "c", "h", "w"])[at], name);
            assert_eq!(first_axis(4, at), axis);
        }
    }

    #[test]
    fn filters_and_results_are_turned_and_biases_are_not() {
        let conv = last_of(Op::Conv { window: window(), group: 1 });
        let y = conv.infer(&[&f32s(&[2, 8, 6, 4]), &f32s(&[5, 3, 3, 4]), &f32s(&[5])]).unwrap();
        assert_eq!(y, [f32s(&[2, 4, 3, 5])]);
        assert!(conv.infer(&[&f32s(&[2, 4, 8, 6]), &f32s(&[5, 4, 3, 3])]).is_err());
        let pool =
            last_of(Op::MaxPool { window: window(), ceil: false, indices: PoolIndices::Positions });
        let y = pool.infer(&[&f32s(&[2, 8, 6, 4])]).unwrap();
        assert_eq!([&y[0].shape, &y[1].shape], [&[2, 4, 3, 4], &[2, 4, 3, 4]]);
        let add = last_of(Op::Binary { f: Binary::Add });
        assert!(add.infer(&[&f32s(&[2, 3, 4]), &f32s(&[2, 3, 4])]).is_err());
        assert!(last_of(pool).infer(&[&f32s(&[2, 8, 6, 4])]).is_err());
    }

    #[test]
    fn cuts_are_along_the_axes_where_they_stand() {
        let grad = Op::AveragePoolGrad {
            window: window(),
            ceil: false,
            count_include_pad: false,
            shape: vec![2, 4, 8, 6],
        };
        let (dy, dx) = (f32s(&[2, 4, 3, 4]), f32s(&[2, 8, 6, 4]));
        let op = last_of(grad);
        let cuts = op.cuts(&[&dy], &[&dx]);
        assert_eq!(cuts.iter().map(|c| c.operands[0]).collect::<Vec<_>>(), [Some(0), Some(3)]);
        for cut in cuts {
            let axis = cut.operands[0].unwrap();
            let y = op.part(&cut, 1).infer(&[&dy.with_extent(axis, 1)]).unwrap();
            assert_eq!(y, [dx.with_extent(axis, 1)]);
        }
    }
}
