//! Rows of convolutions and their gradients.

use super::channels_last::is_turned;
use super::error::ensure;
use super::families::Convolution;
use super::family::Row;
use super::{Assembly, Cut, Narrowing, TypeError, Window, Work};
use crate::types::TensorType;

impl Row for Convolution<'_> {
    fn arity(&self) -> (usize, usize) {
        match self {
            Convolution::Conv { .. } | Convolution::ConvTranspose { .. } => (2, 3),
            Convolution::ConvWeightGrad { .. } => (2, 2),
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let one = |shape: Vec<usize>| Ok(vec![TensorType::new(x[0].dtype, shape)]);
        match *self {
            Convolution::Conv { window, group } => {
                let spatial = window.spatial(x[0])?;
                let c = channels(x, window, *group)?;
                ensure!(
                    x[1].shape[1].checked_mul(*group) == Some(c)
                        && x[1].shape[0].is_multiple_of(*group),
                    "weights {} do not fit {c} channels in {group} groups",
                    x[1]
                );
                bias_fits(x, x[1].shape[0])?;
                let y = window.slide(spatial, false)?;
                one([&[x[0].shape[0], x[1].shape[0]], &y[..]].concat())
            }
            Convolution::ConvTranspose { window, group, output_padding } => {
                let spatial = window.spatial(x[0])?;
                let c = channels(x, window, *group)?;
                ensure!(
                    output_padding.len() == window.rank(),
                    "output padding of {} entries",
                    output_padding.len()
                );
                ensure!(
                    x[1].shape[0] == c && c % group == 0,
                    "weights {} do not fit {c} channels in {group} groups",
                    x[1]
                );
                let Some(m) = x[1].shape[1].checked_mul(*group) else {
                    return Err(TypeError("too many output channels".into()));
                };
                bias_fits(x, m)?;
                let y = window.unslide(spatial, output_padding)?;
                one([&[x[0].shape[0], m], &y[..]].concat())
            }
            Convolution::ConvWeightGrad { window, group } => {
                let spatial = window.spatial(x[0])?;
                let y = window.slide(spatial, false)?;
                let [images, m, ref dy @ ..] = x[1].shape[..] else {
                    return Err(TypeError(format!("the gradient {} has no channels", x[1])));
                };
                let c = x[0].shape[1];
                ensure!(
                    x[0].dtype.is_float()
                        && x[1].dtype == x[0].dtype
                        && images == x[0].shape[0]
                        && *dy == y[..]
                        && *group > 0
                        && [m, c].iter().all(|n| n.is_multiple_of(*group)),
                    "the gradient {} does not fit {} in {group} groups",
                    x[1],
                    x[0]
                );
                one([&[m, c / group], &window.kernel[..]].concat())
            }
        }
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        match self {
            Convolution::Conv { .. }
            | Convolution::ConvTranspose { .. }
            | Convolution::ConvWeightGrad { .. } => vec![],
        }
    }

    fn cuts(&self, x: &[&TensorType], _: &[&TensorType]) -> Vec<Cut> {
        match *self {
            Convolution::Conv { group, .. } => cuts(x, *group, 0),
            Convolution::ConvTranspose { group, .. } => cuts(x, *group, 1),
            Convolution::ConvWeightGrad { group, .. } => weight_cuts(x, *group),
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let input = |i: usize| x[i].elements() as u64;
        let output = y.first().map_or(0, |t| t.elements() as u64);
        // Every result sums over one filter of the weight; every operand of the transpose is
        // spread over one.
        let filter = |elements: u64, count: usize| elements / count.max(1) as u64;
        let (each, filter, group) = match *self {
            Convolution::Conv { group, .. } => (output, filter(input(1), x[1].shape[0]), group),
            Convolution::ConvTranspose { group, .. } => {
                (input(0), filter(input(1), x[1].shape[0]), group)
            }
            Convolution::ConvWeightGrad { group, .. } => {
                (input(1), filter(output, x[1].shape[1]), group)
            }
        };
        let work = Work::of_matrices(each.saturating_mul(2).saturating_mul(filter), x, y);
        // Where a group has one channel there is nothing for tensor cores.
        if x[0].shape[1] == *group {
            return work;
        }
        let turned = x.iter().chain(y).filter(|t| is_turned(t));
        let turned_bytes = turned.fold(0, |sum: u64, t| sum.saturating_add(t.bytes()));
        let weight = match self {
            Convolution::Conv { .. } | Convolution::ConvTranspose { .. } => Some(x[1]),
            Convolution::ConvWeightGrad { .. } => y.first().copied(),
        };
        // The first axis of a weight has the channels of all groups, the second those of one.
        let channels = weight.map_or(u64::MAX, |weight| {
            (weight.shape[0] / (*group).max(1)).min(weight.shape[1]) as u64
        });
        Work { turned_bytes, channels, ..work }
    }

    fn moves_elements(&self) -> bool {
        match self {
            Convolution::Conv { .. }
            | Convolution::ConvTranspose { .. }
            | Convolution::ConvWeightGrad { .. } => false,
        }
    }

    fn narrowing(&self, operands: usize) -> Narrowing {
        match self {
            Convolution::Conv { .. }
            | Convolution::ConvTranspose { .. }
            | Convolution::ConvWeightGrad { .. } => Narrowing::product(0..operands),
        }
    }
}

fn channels(x: &[&TensorType], window: &Window, group: usize) -> Result<usize, TypeError> {
    ensure!(
        x[0].dtype.is_float() && x.iter().all(|t| t.dtype == x[0].dtype),
        "a convolution takes floats of one type"
    );
    ensure!(group > 0, "zero groups");
    ensure!(
        x[1].rank() == x[0].rank() && x[1].shape[2..] == window.kernel[..],
        "weights {} do not fit a kernel of {:?}",
        x[1],
        window.kernel
    );
    Ok(x[0].shape[1])
}

fn bias_fits(x: &[&TensorType], channels: usize) -> Result<(), TypeError> {
    if let Some(b) = x.get(2) {
        ensure!(b.shape == [channels], "bias {b} does not fit {channels} channels");
    }
    Ok(())
}

/// Images, result channels, and channels that are summed over; `out` is the weights' axis of
/// result channels.
fn cuts(x: &[&TensorType], group: usize, out: usize) -> Vec<Cut> {
    let bias = x.len() - 2;
    let images = [vec![Some(0), None], vec![None; bias]].concat();
    let mut cuts = vec![Cut::along(x[0].shape[0], images, vec![Assembly::Concat(0)])];
    if group == 1 {
        let channels = [vec![None, Some(out)], vec![Some(0); bias]].concat();
        cuts.push(Cut::along(x[1].shape[out], channels, vec![Assembly::Concat(1)]));
        if bias == 0 {
            let summed = vec![Some(1), Some(1 - out)];
            cuts.push(Cut::along(x[0].shape[1], summed, vec![Assembly::Sum]));
        }
    }
    cuts
}

/// Channels of either operand, and images, which are summed over.
fn weight_cuts(x: &[&TensorType], group: usize) -> Vec<Cut> {
    let images = Cut::along(x[0].shape[0], vec![Some(0), Some(0)], vec![Assembly::Sum]);
    if group > 1 {
        return vec![images];
    }
    let rows = Cut::along(x[1].shape[1], vec![None, Some(1)], vec![Assembly::Concat(0)]);
    let columns = Cut::along(x[0].shape[1], vec![Some(1), None], vec![Assembly::Concat(1)]);
    vec![rows, columns, images]
}
