//! Where windows of a pool, and their taps, lie in a tensor, as text of kernels.

use super::index::{constant, offset};
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
