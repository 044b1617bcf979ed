//! Operators whose window slides over spatial axes.

use super::{TypeError, ensure};
use crate::op::{Op, Window};
use crate::types::{DType, TensorType};

/// The types of an operator's results.
pub(super) fn infer(op: &Op, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
    let one = |dtype: DType, shape: &[usize]| Ok(vec![TensorType::new(dtype, shape)]);
    match op {
        Op::Conv { window, group } => {
            let spatial = windowed(x[0], window)?;
            let c = conv_channels(x, window, *group)?;
            ensure!(
                x[1].shape[1].checked_mul(*group) == Some(c)
                    && x[1].shape[0].is_multiple_of(*group),
                "weights {} do not fit {c} channels in {group} groups",
                x[1]
            );
            bias_fits(x, x[1].shape[0])?;
            let y = window.slide(spatial, false)?;
            one(x[0].dtype, &[&[x[0].shape[0], x[1].shape[0]], &y[..]].concat())
        }
        Op::ConvTranspose { window, group, output_padding } => {
            let spatial = windowed(x[0], window)?;
            let c = conv_channels(x, window, *group)?;
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
            one(x[0].dtype, &[&[x[0].shape[0], m], &y[..]].concat())
        }
        Op::ConvWeightGrad { window, group } => {
            let spatial = windowed(x[0], window)?;
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
            one(x[0].dtype, &[&[m, c / group], &window.kernel[..]].concat())
        }
        Op::MaxPool { window, ceil, .. } => {
            ensure!(x[0].dtype != DType::Bool, "max_pool does not take bool");
            let y = window.slide(windowed(x[0], window)?, *ceil)?;
            pads_below_span(window)?;
            let shape = [&x[0].shape[..2], &y[..]].concat();
            Ok(vec![
                TensorType::new(x[0].dtype, shape.as_slice()),
                TensorType::new(DType::I64, shape),
            ])
        }
        Op::AveragePool { window, ceil, .. } => {
            ensure!(x[0].dtype.is_float(), "average_pool does not take {}", x[0].dtype);
            let y = window.slide(windowed(x[0], window)?, *ceil)?;
            pads_below_span(window)?;
            one(x[0].dtype, &[&x[0].shape[..2], &y[..]].concat())
        }
        Op::MaxPoolGrad { window, ceil, shape, .. } => {
            let dx = pooled(x[0], window, *ceil, shape)?;
            ensure!(
                x[1].dtype == DType::I64 && x[1].shape == x[0].shape,
                "indices {} do not fit {}",
                x[1],
                x[0]
            );
            Ok(vec![dx])
        }
        Op::AveragePoolGrad { window, ceil, shape, .. } => {
            Ok(vec![pooled(x[0], window, *ceil, shape)?])
        }
        _ => unreachable!("no window"),
    }
}

/// The spatial extents of `x`, whose rank the window must fit.
fn windowed<'a>(x: &'a TensorType, window: &Window) -> Result<&'a [usize], TypeError> {
    window.validate()?;
    ensure!(
        x.rank() == window.rank() + 2,
        "a window over {} spatial axes does not fit {x}",
        window.rank()
    );
    Ok(&x.shape[2..])
}

/// The operand of this shape, of a pool whose result has a gradient of type `dy`.
fn pooled(
    dy: &TensorType,
    window: &Window,
    ceil: bool,
    shape: &[usize],
) -> Result<TensorType, TypeError> {
    ensure!(dy.dtype.is_float(), "the gradient of a pool does not take {}", dy.dtype);
    let x = TensorType::new(dy.dtype, shape);
    let y = window.slide(windowed(&x, window)?, ceil)?;
    pads_below_span(window)?;
    ensure!(
        dy.shape == [&shape[..2], &y[..]].concat(),
        "{dy} is no gradient of a pool of {shape:?}"
    );
    Ok(x)
}

fn conv_channels(x: &[&TensorType], window: &Window, group: usize) -> Result<usize, TypeError> {
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

/// A window that lies in padding alone has no maximum and no mean.
fn pads_below_span(w: &Window) -> Result<(), TypeError> {
    let inside = (0..w.rank()).all(|i| w.pads_begin[i] < w.span(i) && w.pads_end[i] < w.span(i));
    ensure!(inside, "padding as wide as the window");
    Ok(())
}
