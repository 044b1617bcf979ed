//! Where windows of a pool, and their taps, lie in a tensor, as text of kernels.

use super::index::{constant, offset};
use super::packs::{LOAD, MANY, MOST_LANES};
use super::site::LaunchSite;
use arenic_ir::op::Window;

/// Index `d` of element `i` of a shape.
pub(super) fn coordinate(shape: &[usize], d: usize, i: &str) -> String {
    let mut strides = vec![0; shape.len()];
    strides[d] = 1;
    offset(shape, &strides, i)
}

/// Index `d` of the element of a tensor of this shape that is stored as the `i`-th.
pub(super) fn stored_coordinate(site: &LaunchSite, shape: &[usize], d: usize, i: &str) -> String {
    let mut strides = vec![0; shape.len()];
    strides[d] = 1;
    offset(&site.stored(shape), &site.stored(&strides), i)
}

/// The plane, of all channels of all images, of the element of a tensor of this shape that is
/// stored as the `i`-th.
pub(super) fn plane(site: &LaunchSite, shape: &[usize], i: &str) -> String {
    let mut strides = vec![0; shape.len()];
    (strides[0], strides[1]) = (shape[1] as i64, 1);
    offset(&site.stored(shape), &site.stored(&strides), i)
}

/// The element at a place of a plane, of so many places and channels, as it is stored.
pub(super) fn in_plane(
    site: &LaunchSite,
    channels: usize,
    plane: &str,
    place: [&str; 2],
) -> String {
    let channels = constant(channels);
    match site.channels_last {
        true => site.element(
            &format!("{plane} / {channels}"),
            [&format!("{plane} % {channels}"), &channels],
            place,
        ),
        false => format!("{plane} * {} + {}", place[1], place[0]),
    }
}

/// The type of a place along an axis that may lie outside.
pub(super) fn place_type(input: &[usize], window: &Window) -> &'static str {
    let reach = |d: usize| {
        input[d] + window.pads_begin[d] + window.pads_end[d] + window.strides[d] + window.span(d)
    };
    let near = (0..window.rank()).all(|d| reach(d) < 1 << 31);
    if near { "int" } else { "i64" }
}

/// How many taps of axis `d` count in an average, where the window begins at `at`. Beyond the
/// end padding, where a window hangs over because extents were rounded up, nothing counts.
pub(super) fn taps_counted(
    window: &Window,
    input: &[usize],
    count_include_pad: bool,
    d: usize,
    place: &str,
    at: &str,
) -> String {
    let pad = window.pads_begin[d];
    let (origin, room) = match count_include_pad {
        true => (format!("{at} + {pad}"), input[d] + pad + window.pads_end[d]),
        false => (at.into(), input[d]),
    };
    let (dilation, taps) = (window.dilations[d], window.kernel[d]);
    format!("i64(taps_inside<{place}>({origin}, {dilation}, {taps}, {room}))")
}

/// Neighbouring channels of one thread, a power of two: as many as are loaded at once, where channels are last and
/// there are threads enough.
pub(super) fn lanes(site: &LaunchSite, channels: usize) -> usize {
    let all = || site.inputs.iter().copied().chain(site.outputs.iter().copied().flatten());
    if !site.channels_last || all().all(|ty| ty.elements() < MANY) {
        return 1;
    }
    let widest = all().map(|ty| ty.dtype.size() as usize).max().unwrap_or(LOAD);
    let is_aligned = |lanes: usize| {
        let mut operands = site.inputs.iter().zip(site.alignments);
        operands.all(|(ty, at)| at.is_multiple_of(lanes as u64 * ty.dtype.size()))
    };
    let fits = |&lanes: &usize| {
        lanes * widest <= LOAD && channels.is_multiple_of(lanes) && is_aligned(lanes)
    };
    [MOST_LANES, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// A statement for each `lane` of a thread.
pub(super) fn each_lane(lanes: usize, statement: &str) -> String {
    format!("#pragma unroll\n    for (u32 lane = 0; lane < {lanes}u; lane++) {statement}\n")
}
