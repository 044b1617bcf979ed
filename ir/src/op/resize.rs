//! Attributes of [`Op::Resize`](super::Op::Resize), and where an index of its result lies between
//! the elements of its operand.
//!
//! Coordinates are fractions of integers, so that a coordinate on an element, or half-way between
//! two, is exactly there: which element is the nearest is no matter of rounding. Kernels of all backends go by them.
//! Scales that do not make the result's extents are refused, which bounds the tables that kernels have in scratch.

use super::attributes::is_false;
use super::error::ensure;
use super::families::Resizing;
use super::family::Row;
use super::{Cut, Narrowing, TypeError, Work};
use crate::types::TensorType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Interpolation of [`Op::Resize`](super::Op::Resize).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// The nearest element; ties as [`NearestMode`] says.
    Nearest(NearestMode),
    /// Linear along every axis (multilinear).
    Linear,
    /// Keys' cubic with coefficient `a` along every axis.
    Cubic {
        /// The coefficient, ONNX's `cubic_coeff_a`.
        a: f32,
    },
}

/// Rounding of a source coordinate in nearest interpolation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // ONNX's names
pub enum NearestMode {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

/// ONNX's `coordinate_transformation_mode` of `Resize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // ONNX's names
pub enum Coordinates {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfCropAndResize,
}

/// Scale of an axis, the result's extent over the operand's: in the text a number, or a list of
/// the two extents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Scale {
    /// Exactly this number. The extent is its product with the operand's, rounded.
    Number(f32),
    /// The first extent over the second.
    Ratio(u32, u32),
}

impl Scale {
    /// The scale of an axis that stays as it is.
    pub const ONE: Scale = Scale::Number(1.0);

    /// Numerator and denominator; `None` if either has more than 63 bits or is zero.
    fn fraction(self) -> Option<(u64, u64)> {
        match self {
            Scale::Ratio(0, _) | Scale::Ratio(_, 0) => None,
            Scale::Ratio(to, from) => Some((to.into(), from.into())),
            Scale::Number(x) if x.is_normal() && x > 0.0 => {
                let bits = x.to_bits();
                let mantissa = u64::from(bits & 0x7f_ffff | 0x80_0000);
                let zeros = mantissa.trailing_zeros();
                let exponent = (bits >> 23) as i32 - 150 + zeros as i32;
                let (odd, shift) = (mantissa >> zeros, exponent.unsigned_abs());
                match exponent {
                    0.. => (shift < 40).then(|| (odd << shift, 1)),
                    _ => (shift < 63).then(|| (odd, 1 << shift)),
                }
            }
            Scale::Number(_) => None,
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scale::Number(x) => write!(f, "{x:?}"),
            Scale::Ratio(to, from) => write!(f, "{to}/{from}"),
        }
    }
}

/// Attributes of [`Op::Resize`](super::Op::Resize).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResizeSpec {
    /// Output extents, one per axis.
    pub sizes: Vec<usize>,
    /// Scale of every axis.
    pub scales: Vec<Scale>,
    /// Region of interest, (start, end) of every axis in [0, 1], for `TfCropAndResize`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roi: Vec<(f32, f32)>,
    /// Interpolation.
    pub mode: Interpolation,
    /// From output to source coordinates.
    pub coordinates: Coordinates,
    /// Weights of elements outside the input are dropped and the rest rescaled.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exclude_outside: bool,
    /// Stretch the kernel when an axis shrinks.
    #[serde(default, skip_serializing_if = "is_false")]
    pub antialias: bool,
    /// Value outside the region of interest, for `TfCropAndResize`.
    #[serde(default)]
    pub extrapolation: f32,
}

impl Row for Resizing<'_> {
    fn arity(&self) -> (usize, usize) {
        let Resizing::Resize { .. } = self;
        (1, 1)
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let Resizing::Resize { spec } = self;
        ensure!(x[0].dtype.is_float() || x[0].dtype.is_int(), "resize does not take bool");
        spec.validate(x[0])?;
        Ok(vec![TensorType::new(x[0].dtype, spec.sizes.as_slice())])
    }

    fn in_place(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<(usize, usize)> {
        let Resizing::Resize { .. } = self;
        vec![]
    }

    fn cuts(&self, _: &[&TensorType], _: &[&TensorType]) -> Vec<Cut> {
        // Neighbours of an index may be in another part.
        let Resizing::Resize { .. } = self;
        vec![]
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        let Resizing::Resize { spec } = self;
        let each = match spec.mode {
            Interpolation::Nearest(_) => 1,
            Interpolation::Linear => 8,
            Interpolation::Cubic { .. } => 32,
        };
        let output = y.first().map_or(0, |t| t.elements() as u64);
        Work::new(output.saturating_mul(each), x, y)
    }

    fn moves_elements(&self) -> bool {
        let Resizing::Resize { .. } = self;
        false
    }

    fn narrowing(&self, _: usize) -> Narrowing {
        let Resizing::Resize { .. } = self;
        Narrowing::wide()
    }
}

/// The most elements of an axis that is resized: products of two such extents have 62 bits.
const MOST: usize = 1 << 31;

impl ResizeSpec {
    /// True where every index of an axis reads itself, whatever the interpolation.
    pub fn keeps(&self, axis: usize, extent: usize) -> bool {
        self.scales[axis].fraction().is_some_and(|(to, from)| to == from)
            && self.sizes[axis] == extent
            && self.coordinates != Coordinates::TfCropAndResize
    }

    /// Most source elements that one index of an axis reads.
    pub fn taps(&self, axis: usize) -> usize {
        let reach = match self.mode {
            Interpolation::Nearest(_) => return 1,
            Interpolation::Linear => 1u64,
            Interpolation::Cubic { .. } => 2,
        };
        let stretched = match self.scales[axis].fraction() {
            Some((to, from)) if self.antialias && to < from => {
                (u128::from(reach) * u128::from(from)).div_ceil(to.into())
            }
            _ => reach.into(),
        };
        usize::try_from(2 * stretched).unwrap_or(usize::MAX)
    }

    /// What distances from an element are multiplied by before they are weighed: less than 1
    /// where an axis shrinks and the kernel is stretched for it.
    pub fn stretch(&self, axis: usize) -> f64 {
        if self.antialias { self.ratio(axis).min(1.0) } else { 1.0 }
    }

    /// Bytes of the tables of these axes: for every index and tap a source and a weight of 8 bytes.
    pub fn table_bytes(&self, axes: impl Iterator<Item = usize>) -> u64 {
        if self.sizes.contains(&0) {
            return 0;
        }
        let entries = axes.map(|a| self.taps(a).saturating_mul(self.sizes[a]) as u64);
        entries.fold(0, u64::saturating_add).saturating_mul(16)
    }

    /// Where the indices of an axis lie between the elements of one of this extent. Every spec
    /// that [`Op::infer`](super::Op::infer) takes has an answer for each of its axes.
    pub fn places(&self, axis: usize, extent: usize) -> Option<Places> {
        let (to, from) = self.scales[axis].fraction()?;
        if self.coordinates == Coordinates::TfCropAndResize {
            let (start, end) =
                self.roi.get(axis).map_or((0.0, 1.0), |r| (f64::from(r.0), f64::from(r.1)));
            let (last, length) = (extent as f64 - 1.0, end - start);
            let span = self.ratio(axis) * extent as f64 - 1.0;
            let centred = self.sizes[axis] == 1;
            return Some(Places::Crop(Crop { start, length, last, span, centred }));
        }
        let (to, from) = (i128::from(to), i128::from(from));
        let (x, y) = (extent as i128, self.sizes[axis] as i128);
        // (index · step + start) / divisor
        let (step, start, divisor) = match self.coordinates {
            Coordinates::PytorchHalfPixel | Coordinates::AlignCorners if y == 1 => (0, 0, 1),
            Coordinates::HalfPixel | Coordinates::PytorchHalfPixel => (2 * from, from - to, 2 * to),
            Coordinates::HalfPixelSymmetric => (2 * from, to * x - from * y + from - to, 2 * to),
            // What the extent is before it is rounded counts, as ONNX has it.
            Coordinates::AlignCorners => ((x - 1) * from, 0, to * x - from),
            Coordinates::Asymmetric | Coordinates::TfCropAndResize => (from, 0, to),
        };
        Positions::new(step, start, divisor).map(Places::Exact)
    }

    /// The scale of an axis; NaN where there is none.
    fn ratio(&self, axis: usize) -> f64 {
        self.scales[axis].fraction().map_or(f64::NAN, |(to, from)| to as f64 / from as f64)
    }

    /// Refuses attributes that do not fit the operand.
    pub(super) fn validate(&self, x: &TensorType) -> Result<(), TypeError> {
        let rank = x.rank();
        ensure!(
            self.sizes.len() == rank
                && self.scales.len() == rank
                && (self.roi.is_empty() || self.roi.len() == rank),
            "resize attributes for another rank than {rank}"
        );
        let empty = self.sizes.contains(&0);
        ensure!(
            empty || !x.shape.contains(&0),
            "an empty tensor does not resize to {:?}",
            self.sizes
        );
        for axis in (0..rank).filter(|&a| !empty && !self.keeps(a, x.shape[a])) {
            let (from, to, scale) = (x.shape[axis], self.sizes[axis], self.scales[axis]);
            let parts = match scale {
                Scale::Ratio(a, b) => a.max(b) as usize,
                Scale::Number(_) => 0,
            };
            ensure!(
                from <= MOST && to <= MOST && parts <= MOST,
                "a resize of {from} elements to {to} by {scale}; an axis may have {MOST}"
            );
            // Rounded to any side, by ONNX in single precision.
            let (exact, to_f) = (self.ratio(axis) * from as f64, to as f64);
            let slack = exact / f64::from(1 << 20);
            ensure!(
                to_f <= exact + 0.5 + slack && to_f >= exact - 1.0 - slack,
                "a scale of {scale} does not make {to} of {from} elements"
            );
            ensure!(
                self.places(axis, from).is_some() && self.taps(axis) <= MOST,
                "a scale of {scale} is out of range"
            );
        }
        Ok(())
    }
}

/// Where the indices of an axis lie between the elements of the operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Places {
    /// At fractions.
    Exact(Positions),
    /// In a part of the axis that is given by floats.
    Crop(Crop),
}

impl Places {
    /// Where an index lies; `None` outside of the region of interest.
    pub fn at(&self, index: usize) -> Option<Position> {
        match self {
            Places::Exact(positions) => Some(positions.at(index)),
            Places::Crop(crop) => crop.at(index),
        }
    }
}

/// Index `i` lies at `(i · step + start) / divisor`, where step and start are wholes of the
/// divisor and what is left of them, below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the formula's
pub struct Positions {
    pub step: (i64, u64),
    pub start: (i64, u64),
    pub divisor: u64,
}

impl Positions {
    /// `None` if wholes have more than 64 bits or the divisor has more than 62.
    fn new(step: i128, start: i128, divisor: i128) -> Option<Positions> {
        if !(1..1 << 63).contains(&divisor) {
            return None;
        }
        let split = |x: i128| {
            let whole = i64::try_from(x.div_euclid(divisor)).ok()?;
            Some((whole, u64::try_from(x.rem_euclid(divisor)).ok()?))
        };
        Some(Positions { step: split(step)?, start: split(start)?, divisor: divisor as u64 })
    }

    /// Where an index lies.
    pub fn at(&self, index: usize) -> Position {
        let sum = u128::from(self.step.1) * index as u128 + u128::from(self.start.1);
        let divisor = u128::from(self.divisor);
        let whole = self.step.0 * index as i64 + self.start.0 + (sum / divisor) as i64;
        Position { whole, part: (sum % divisor) as u64, divisor: self.divisor }
    }
}

/// Index `i` lies at `start · last + i · length · last / span`, or in the middle where it is the
/// only one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crop {
    /// Where the region of interest begins, in [0, 1].
    pub start: f64,
    /// How long it is, in [0, 1].
    pub length: f64,
    /// The last index of the operand's axis.
    pub last: f64,
    /// What the last index of the result would be, were the extent not rounded.
    pub span: f64,
    /// There is one index.
    pub centred: bool,
}

impl Crop {
    /// The divisor of positions.
    pub const DIVISOR: u64 = 1 << 53;

    fn at(&self, index: usize) -> Option<Position> {
        let &Crop { start, length, last, span, centred } = self;
        let way = if centred { length * last / 2.0 } else { index as f64 * length * last / span };
        let at = start * last + way;
        (0.0..=last).contains(&at).then(|| {
            let part = ((at - at.floor()) * Crop::DIVISOR as f64).ceil() as u64;
            Position { whole: at.floor() as i64, part, divisor: Crop::DIVISOR }
        })
    }
}

/// A place between elements: `whole + part / divisor`, the part below the divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the formula's
pub struct Position {
    pub whole: i64,
    pub part: u64,
    pub divisor: u64,
}

impl Position {
    /// The place above, which may be this one.
    pub fn ceil(self) -> i64 {
        self.whole + i64::from(self.part > 0)
    }

    /// How far it is from an element.
    pub fn distance(self, element: i64) -> f64 {
        ((element - self.whole) as f64 - self.part as f64 / self.divisor as f64).abs()
    }

    /// The element that is read alone, which may lie outside.
    pub fn nearest(self, mode: NearestMode) -> i64 {
        let rest = self.divisor - self.part;
        match mode {
            NearestMode::RoundPreferFloor => self.whole + i64::from(self.part > rest),
            NearestMode::RoundPreferCeil => self.whole + i64::from(self.part >= rest),
            NearestMode::Floor => self.whole,
            NearestMode::Ceil => self.ceil(),
        }
    }
}
