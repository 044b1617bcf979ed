//! Rows of operators that move elements and compute none.

use super::error::{axis_in, ensure};
use super::families::Movement;
use super::family::Row;
use super::{Assembly, Cut, Narrowing, TypeError, Work};
use crate::types::{TensorType, broadcast_shapes};

impl Row for Movement<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Movement::Reshape { .. }
            | Movement::Slice { .. }
            | Movement::Pad { .. }
            | Movement::Transpose { .. }
            | Movement::Expand { .. }
            | Movement::Copy => (1, 1),
            Movement::Concat { .. } => (1, usize::MAX),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let one = |shape: &[usize]| Ok(vec![TensorType::new(x[0].dtype, shape)]);
        match *self {
            Movement::Reshape { shape } => {
                let y = TensorType::new(x[0].dtype, shape.as_slice());
                ensure!(
                    y.checked_bytes() == Some(x[0].bytes()),
                    "{} does not reshape to {shape:?}",
                    x[0]
                );
                Ok(vec![y])
            }
            Movement::Slice { starts, steps, shape } => {
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
                one(shape)
            }
            Movement::Pad { starts, steps, shape, .. } => {
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
                one(shape)
            }
            Movement::Transpose { perm } => {
                let mut seen = vec![false; x[0].rank()];
                let valid = perm.len() == seen.len()
                    && perm
                        .iter()
                        .all(|&p| seen.get_mut(p).is_some_and(|s| !std::mem::replace(s, true)));
                ensure!(valid, "{perm:?} is no permutation of {} axes", x[0].rank());
                one(&perm.iter().map(|&p| x[0].shape[p]).collect::<Vec<_>>())
            }
            Movement::Expand { shape } => {
                ensure!(
                    broadcast_shapes(&x[0].shape, shape).as_ref() == Some(shape),
                    "{} does not broadcast to {shape:?}",
                    x[0]
                );
                one(shape)
            }
            Movement::Concat { axis } => {
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
                one(&shape)
            }
            Movement::Copy => one(&x[0].shape),
        }
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Movement::Reshape { .. } | Movement::Copy => vec![(0, 0)],
            Movement::Slice { .. }
            | Movement::Pad { .. }
            | Movement::Transpose { .. }
            | Movement::Expand { .. }
            | Movement::Concat { .. } => vec![],
        }
    }

    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        let result = y[0];
        match *self {
            Movement::Copy | Movement::Expand { .. } => {
                (0..result.rank()).map(|d| Cut::broadcast(x, y, d)).collect()
            }
            Movement::Transpose { perm } => {
                let cut = |(d, &p): (usize, &usize)| {
                    Cut::along(x[0].shape[p], vec![Some(p)], vec![Assembly::Concat(d)])
                };
                perm.iter().enumerate().map(cut).collect()
            }
            Movement::Reshape { .. } => kept_axes(x[0], result),
            Movement::Concat { axis } => {
                let cut =
                    |d| Cut::along(result.shape[d], vec![Some(d); x.len()], Assembly::concat(y, d));
                (0..result.rank()).filter(|d| d != axis).map(cut).collect()
            }
            Movement::Pad { .. } => {
                let kept = |&d: &usize| x[0].shape[d] == result.shape[d];
                let cut =
                    |d: usize| Cut::along(x[0].shape[d], vec![Some(d)], Assembly::concat(y, d));
                (0..result.rank()).filter(kept).map(cut).collect()
            }
            // A part would begin where its share of the operand does not.
            Movement::Slice { .. } => vec![],
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        match self {
            Movement::Slice { .. } => Work::new(0, x, y).reading(y, y),
            Movement::Reshape { .. }
            | Movement::Pad { .. }
            | Movement::Transpose { .. }
            | Movement::Expand { .. }
            | Movement::Concat { .. }
            | Movement::Copy => Work::new(0, x, y),
        }
    }

    fn moves_elements(&self) -> bool {
        match self {
            Movement::Reshape { .. }
            | Movement::Slice { .. }
            | Movement::Transpose { .. }
            | Movement::Expand { .. }
            | Movement::Concat { .. }
            | Movement::Copy => true,
            // The value is cast to the elements' type.
            Movement::Pad { .. } => false,
        }
    }

    fn narrowing(&self, operands: usize) -> Narrowing {
        match self {
            Movement::Reshape { .. }
            | Movement::Slice { .. }
            | Movement::Pad { .. }
            | Movement::Transpose { .. }
            | Movement::Expand { .. }
            | Movement::Concat { .. }
            | Movement::Copy => Narrowing::follows(0..operands),
        }
    }
}

/// Axes that a reshape leaves as they are: as many elements come before them.
fn kept_axes(x: &TensorType, y: &TensorType) -> Vec<Cut> {
    let before = |t: &TensorType, axis: usize| t.shape[..axis].iter().product::<usize>();
    let mut cuts = Vec::new();
    for from in 0..x.rank() {
        let same = |&to: &usize| y.shape[to] == x.shape[from] && before(y, to) == before(x, from);
        if let Some(to) = (0..y.rank()).find(same).filter(|_| x.elements() > 0) {
            cuts.push(Cut::along(x.shape[from], vec![Some(from)], vec![Assembly::Concat(to)]));
        }
    }
    cuts
}
