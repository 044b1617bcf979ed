//! Random uses of operators with a window, and of `Resize`.

use super::generator::Generator;
use super::operators::done;
use arenic_ir::ValueId;
use arenic_ir::op::{
    Coordinates, Interpolation, NearestMode, Op, PoolIndices, ResizeSpec, Scale, Window,
};

/// Images with one or two spatial axes.
fn images(g: &mut Generator) -> Option<(ValueId, Vec<usize>)> {
    let rank = g.r.usize(3..5);
    let x = g.shaped(rank)?;
    Some((x, g.g.ty(x).shape.to_vec()))
}

fn window(g: &mut Generator, spatial: &[usize]) -> Window {
    let kernel: Vec<usize> = spatial.iter().map(|&e| g.r.usize(1..e.min(3) + 1)).collect();
    let strides = spatial.iter().map(|_| g.r.usize(1..3)).collect();
    let pads = |g: &mut Generator| kernel.iter().map(|&k| g.r.usize(..k)).collect();
    let (pads_begin, pads_end) = (pads(g), pads(g));
    Window { strides, dilations: vec![1; kernel.len()], pads_begin, pads_end, kernel }
}

pub(super) fn convolutions(g: &mut Generator) -> Option<()> {
    let (x, of) = images(g)?;
    let window = window(g, &of[2..]);
    let group = if of[1] > 1 && g.chance(30) { of[1] } else { 1 };
    let filters = group * g.r.usize(1..3);
    let w = g.floats(&[&[filters, of[1] / group][..], &window.kernel].concat());
    let bias = g.chance(50).then(|| g.floats(&[filters]));
    let inputs: Vec<ValueId> = [x, w].into_iter().chain(bias).collect();
    let y = g.one(Op::Conv { window: window.clone(), group }, &inputs)?;
    let like = g.g.ty(y).shape.to_vec();
    let dy = g.floats(&like);
    g.one(Op::ConvWeightGrad { window, group }, &[x, dy]).and_then(done)
}

pub(super) fn transposed_convolutions(g: &mut Generator) -> Option<()> {
    let (x, of) = images(g)?;
    let window = window(g, &of[2..]);
    let group = if of[1] > 1 && g.chance(30) { of[1] } else { 1 };
    let filters = g.r.usize(1..3);
    let w = g.floats(&[&[of[1], filters][..], &window.kernel].concat());
    let output_padding = vec![0; window.rank()];
    g.one(Op::ConvTranspose { window, group, output_padding }, &[x, w]).and_then(done)
}

pub(super) fn max_pools(g: &mut Generator) -> Option<()> {
    let (x, shape) = images(g)?;
    let window = window(g, &shape[2..]);
    let (ceil, indices) = (g.chance(30), PoolIndices::ALL[g.r.usize(..3)]);
    let y = g.node(Op::MaxPool { window: window.clone(), ceil, indices }, &[x])?;
    // Positions are of use to the gradient alone.
    g.pool.pop_if(|v| *v == y[1] && g.r.bool());
    let like = g.g.ty(y[0]).shape.to_vec();
    let dy = g.floats(&like);
    g.one(Op::MaxPoolGrad { window, ceil, indices, shape }, &[dy, y[1]]).and_then(done)
}

pub(super) fn average_pools(g: &mut Generator) -> Option<()> {
    let (x, shape) = images(g)?;
    let window = window(g, &shape[2..]);
    let (ceil, count_include_pad) = (g.chance(30), g.chance(30));
    let y = g.one(Op::AveragePool { window: window.clone(), ceil, count_include_pad }, &[x])?;
    let like = g.g.ty(y).shape.to_vec();
    let dy = g.floats(&like);
    let op = Op::AveragePoolGrad { window, ceil, count_include_pad, shape };
    g.one(op, &[dy]).and_then(done)
}

pub(super) fn resizes(g: &mut Generator) -> Option<()> {
    let (x, of) = images(g)?;
    let axis = g.r.usize(..of.len());
    let (mut sizes, mut scales) = (of.clone(), vec![Scale::ONE; of.len()]);
    sizes[axis] = 2 * of[axis];
    scales[axis] = Scale::Number(2.0);
    let mode = match g.r.u32(..3) {
        0 => Interpolation::Nearest(NearestMode::Floor),
        1 => Interpolation::Linear,
        _ => Interpolation::Cubic { a: -0.75 },
    };
    let coordinates = [Coordinates::HalfPixel, Coordinates::AlignCorners][g.r.usize(..2)];
    let spec = ResizeSpec {
        sizes,
        scales,
        roi: Vec::new(),
        mode,
        coordinates,
        exclude_outside: false,
        antialias: g.chance(30),
        extrapolation: 0.0,
    };
    g.one(Op::Resize { spec }, &[x]).and_then(done)
}

/// The same on images and filters whose second axis stands last.
pub(super) fn channels_last(g: &mut Generator) -> Option<()> {
    let x = g.shaped(4)?;
    let of = g.g.ty(x).shape.to_vec();
    let window = window(g, &of[1..3]);
    let filters = g.r.usize(1..3);
    let w = g.floats(&[&[filters][..], &window.kernel, &of[3..]].concat());
    let on = |of| Op::ChannelsLast { of: Box::new(of) };
    let y = g.one(on(Op::Conv { window: window.clone(), group: 1 }), &[x, w])?;
    let like = g.g.ty(y).shape.to_vec();
    let dy = g.floats(&like);
    g.one(on(Op::ConvWeightGrad { window, group: 1 }), &[x, dy]).and_then(done)
}
