//! Expressions of indices, in C.

/// The type of an index below `bound`.
pub(super) fn index_type(bound: usize) -> &'static str {
    // What a whole grid may reach must fit, too.
    if bound < 1 << 31 { "u32" } else { "u64" }
}

/// A constant of an index type.
pub(super) fn constant(x: usize) -> String {
    if x < 1 << 32 { format!("{x}u") } else { format!("{x}ull") }
}

/// An axis that is walked: its extent, and the stride in elements of what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    extent: usize,
    stride: i64,
}

/// The offset, from its first element, of what element `i` (row-major) of `shape` reads where
/// the axes have these strides in elements.
///
/// Sums wrap: terms of negative strides are subtracted, and the caller adds the first element's
/// place where that is not zero.
pub(super) fn offset(shape: &[usize], strides: &[i64], i: &str) -> String {
    let mut axes: Vec<Axis> = Vec::new();
    for (&extent, &stride) in shape.iter().zip(strides).filter(|&(&d, _)| d != 1) {
        match axes.last_mut() {
            // Two axes that are walked as one.
            Some(outer) if outer.stride == stride * extent as i64 => {
                *outer = Axis { extent: outer.extent * extent, stride };
            }
            _ => axes.push(Axis { extent, stride }),
        }
    }
    let mut text = String::new();
    let mut inner = 1;
    for (k, axis) in axes.iter().enumerate().rev() {
        let (extent, below) = (axis.extent, inner);
        inner *= extent;
        if axis.stride == 0 {
            continue;
        }
        let mut index = i.to_owned();
        if below > 1 {
            index = format!("{index} / {}", constant(below));
        }
        if k > 0 {
            index = format!("{index} % {}", constant(extent));
        }
        let factor = axis.stride.unsigned_abs() as usize;
        if factor > 1 {
            let part = if below > 1 || k > 0 { format!("({index})") } else { index };
            index = format!("{part} * {}", constant(factor));
        }
        let sign = match (text.is_empty(), axis.stride < 0) {
            (true, false) => "",
            (true, true) => "0u - ",
            (false, false) => " + ",
            (false, true) => " - ",
        };
        text = format!("{text}{sign}{index}");
    }
    if text.is_empty() { "0u".into() } else { text }
}

/// The strides, in elements, of a dense operand that is broadcast to a result of rank `rank`.
pub(super) fn broadcast_strides(shape: &[usize], rank: usize) -> Vec<i64> {
    let dense = arenic_ir::types::dense_strides(shape);
    let own = shape.iter().zip(dense).map(|(&d, s)| if d == 1 { 0 } else { s as i64 });
    std::iter::repeat_n(0, rank - shape.len()).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_are_walked_as_one_are_one() {
        assert_eq!(offset(&[2, 3, 4], &[12, 4, 1], "i"), "i");
        assert_eq!(offset(&[2, 3, 4], &[0, 0, 0], "i"), "0u");
        assert_eq!(offset(&[2, 3, 4], &[0, 4, 1], "i"), "i % 12u");
        assert_eq!(offset(&[2, 3, 4], &[4, 0, 1], "i"), "i % 4u + (i / 12u) * 4u");
        assert_eq!(offset(&[5], &[-2], "i"), "0u - i * 2u");
    }

    #[test]
    fn broadcast_axes_have_no_stride() {
        assert_eq!(broadcast_strides(&[3, 1], 3), [0, 1, 0]);
    }
}
