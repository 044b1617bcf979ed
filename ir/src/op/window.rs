//! Sliding windows of convolutions and pools.

use super::error::{TypeError, ensure};
use crate::types::TensorType;
use serde::{Deserialize, Serialize};

/// A window that slides over the spatial axes (all but the first two) of a tensor.
///
/// All five lists have one entry per spatial axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Extents of the window, in taps.
    pub kernel: Vec<usize>,
    /// Steps of the window.
    pub strides: Vec<usize>,
    /// Distances between taps.
    pub dilations: Vec<usize>,
    /// Padding before the first element.
    pub pads_begin: Vec<usize>,
    /// Padding after the last element.
    pub pads_end: Vec<usize>,
}

/// Extents above this are refused, so that products of two of them cannot overflow; windows
/// of more taps, too.
const MAX_EXTENT: usize = 1 << 31;

impl Window {
    /// Number of spatial axes.
    pub fn rank(&self) -> usize {
        self.kernel.len()
    }

    /// Taps of the window.
    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Elements that the window spans along spatial axis `i`, dilation included.
    pub fn span(&self, i: usize) -> usize {
        (self.kernel[i] - 1) * self.dilations[i] + 1
    }

    /// True for a 1×1 window with stride 1 and no padding.
    pub fn is_pointwise(&self) -> bool {
        self.taps() == 1
            && self.strides.iter().all(|&s| s == 1)
            && self.pads_begin.iter().chain(&self.pads_end).all(|&p| p == 0)
    }

    /// Refuses lists of different lengths, zero kernels, strides and dilations, and
    /// extents beyond any real use.
    pub fn validate(&self) -> Result<(), TypeError> {
        let n = self.rank();
        let lists =
            [&self.kernel, &self.strides, &self.dilations, &self.pads_begin, &self.pads_end];
        if n == 0 || lists.iter().any(|l| l.len() != n) {
            return Err(TypeError(format!("window lists of lengths {:?}", lists.map(Vec::len))));
        }
        if lists[..3].iter().any(|l| l.contains(&0)) {
            return Err(TypeError("a kernel extent, stride or dilation is zero".into()));
        }
        let large = |l: &&Vec<usize>| l.iter().any(|&x| x > MAX_EXTENT);
        if lists.iter().any(large) || (0..n).any(|i| self.span(i) > MAX_EXTENT) {
            return Err(TypeError("a window extent is above 2^31".into()));
        }
        let taps = self.kernel.iter().try_fold(1usize, |n, &k| n.checked_mul(k));
        if taps.is_none_or(|n| n > MAX_EXTENT) {
            return Err(TypeError("a window has more than 2^31 taps".into()));
        }
        Ok(())
    }

    /// The spatial extents of `x`, of whose rank the window must be.
    pub(super) fn spatial<'a>(&self, x: &'a TensorType) -> Result<&'a [usize], TypeError> {
        self.validate()?;
        ensure!(
            x.rank() == self.rank() + 2,
            "a window over {} spatial axes does not fit {x}",
            self.rank()
        );
        Ok(&x.shape[2..])
    }

    /// Spatial extents after the window slid over `input`.
    ///
    /// With `ceil` a last window may start inside the input or its begin padding and
    /// hang over the end; one that would start in the end padding is dropped.
    pub fn slide(&self, input: &[usize], ceil: bool) -> Result<Vec<usize>, TypeError> {
        (0..self.rank())
            .map(|i| {
                if input[i] > MAX_EXTENT {
                    return Err(TypeError(format!("extent {} is above 2^31", input[i])));
                }
                let padded = input[i] + self.pads_begin[i] + self.pads_end[i];
                let Some(room) = padded.checked_sub(self.span(i)) else {
                    return Err(TypeError(format!(
                        "a window spanning {} does not fit an extent of {} with its padding",
                        self.span(i),
                        input[i]
                    )));
                };
                let s = self.strides[i];
                let mut n = room / s + 1;
                if ceil && room % s != 0 && n * s < input[i] + self.pads_begin[i] {
                    n += 1;
                }
                Ok(n)
            })
            .collect()
    }

    /// Spatial extents of the transposed convolution's result.
    pub fn unslide(
        &self,
        input: &[usize],
        output_padding: &[usize],
    ) -> Result<Vec<usize>, TypeError> {
        (0..self.rank())
            .map(|i| {
                if input[i] > MAX_EXTENT || output_padding[i] > MAX_EXTENT {
                    return Err(TypeError("an extent is above 2^31".into()));
                }
                let full = match input[i] {
                    0 => 0,
                    n => self.strides[i] * (n - 1) + self.span(i) + output_padding[i],
                };
                full.checked_sub(self.pads_begin[i] + self.pads_end[i])
                    .ok_or_else(|| TypeError(format!("padding leaves nothing of spatial axis {i}")))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(kernel: usize, stride: usize, pad: usize) -> Window {
        Window {
            kernel: vec![kernel],
            strides: vec![stride],
            dilations: vec![1],
            pads_begin: vec![pad],
            pads_end: vec![pad],
        }
    }

    #[test]
    fn slide_and_unslide_are_inverse_up_to_stride() {
        assert_eq!(window(3, 2, 1).slide(&[7], false).unwrap(), [4]);
        assert_eq!(window(3, 2, 1).unslide(&[4], &[0]).unwrap(), [7]);
        assert_eq!(window(3, 2, 1).unslide(&[4], &[1]).unwrap(), [8]);
        assert!(window(5, 1, 0).slide(&[3], false).is_err());
    }

    #[test]
    fn ceil_drops_windows_that_start_in_the_padding() {
        assert_eq!(window(2, 2, 0).slide(&[5], true).unwrap(), [3]);
        assert_eq!(window(1, 2, 1).slide(&[2], true).unwrap(), [2]);
    }
}
