//! A convolution, or the gradient of one of its operands, as a graph of one operation.

use super::super::super::driver::DriverError;
use super::descriptor::{Attribute, Descriptor, Kind};
use super::plan::{Operations, Place};
use super::{FLOAT, stored};
use arenic_backends::cuda::library::{Convolution, Direction};
use cudarc::cudnn::sys;

/// The numbers of the three tensors.
const INPUT: i64 = 1;
const FILTER: i64 = 2;
const OUTPUT: i64 = 3;

/// The tensors of a convolution in the order of its call: two operands, then the result.
pub(super) fn order(direction: Direction) -> [i64; 3] {
    match direction {
        Direction::Forward => [INPUT, FILTER, OUTPUT],
        Direction::InputGradient => [OUTPUT, FILTER, INPUT],
        Direction::FilterGradient => [INPUT, OUTPUT, FILTER],
    }
}

/// From one element to the next along each axis of images, channels, rows and columns.
fn strides([_, c, h, w]: [i64; 4], channels_last: bool) -> [i64; 4] {
    if channels_last { [c * h * w, 1, c * w, c] } else { [c * h * w, h * w, w, 1] }
}

/// The operation, without a bias.
pub(super) fn operations(c: &Convolution) -> Result<Operations, DriverError> {
    let window = Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
    let of = |pair: [usize; 2]| pair.map(|n| n as i64);
    let [pads, steps, dilations] = [c.pads, c.strides, c.dilations].map(of);
    // The window is not turned around.
    let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
    window.set(Attribute::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &[FLOAT])?;
    window.set(Attribute::CUDNN_ATTR_CONVOLUTION_CONV_MODE, &[mode])?;
    window.set(Attribute::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[2i64])?;
    window.set(Attribute::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &pads)?;
    window.set(Attribute::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &pads)?;
    window.set(Attribute::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &steps)?;
    window.set(Attribute::CUDNN_ATTR_CONVOLUTION_DILATIONS, &dilations)?;
    let window = window.finalized()?;

    let tensor = |number, extents: [usize; 4]| {
        let extents = extents.map(|n| n as i64);
        let strides = strides(extents, c.channels_last);
        Operations::tensor(number, Place::Device, stored(c.dtype), [&extents, &strides])
    };
    let tensors = [tensor(INPUT, c.input)?, tensor(FILTER, c.filter)?, tensor(OUTPUT, c.output)?];
    use Attribute as A;
    let (kind, attributes, scalars) = match c.direction {
        Direction::Forward => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            ],
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            ],
        ),
        Direction::InputGradient => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            ],
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            ],
        ),
        Direction::FilterGradient => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
            ],
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            ],
        ),
    };
    let operation = Descriptor::new(kind)?;
    for (which, of) in attributes.into_iter().zip(tensors.iter().chain([&window])) {
        operation.set_to(which, &[of])?;
    }
    for (which, scalar) in scalars.into_iter().zip([1.0f32, 0.0]) {
        operation.set(which, &[scalar])?;
    }
    let mut made = Operations::default();
    made.add(operation.finalized()?, tensors.into_iter().chain([window]));
    Ok(made)
}
