//! Attributes of operators: modes, and the keys of generators.

use crate::types::DType;
use serde::{Deserialize, Deserializer, Serialize};

/// How random operators are keyed: (seed, step, `stream`, element).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rng {
    /// The node's stable id: equal after any rewrite, equal in every recomputation.
    pub stream: u64,
    /// The `seed` attribute of the ONNX node; replaces the run's seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the functions
pub enum Reduction {
    Sum,
    Mean,
    Min,
    Max,
    Prod,
}

/// How a scatter combines an update with what is there; later updates come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the functions
pub enum Scatter {
    Replace,
    Add,
    Mul,
    Min,
    Max,
}

/// What the indices of a max pool say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolIndices {
    /// Flat positions in the operand, as `i64`.
    #[default]
    Positions,
    /// The same, with spatial axes in column-major order (ONNX `storage_order` 1).
    ColumnMajorPositions,
    /// Taps of the window, counted in row-major order, in the smallest unsigned type that has them
    /// all. A window with every tap in padding, by dilation, has tap 0.
    Taps,
}

impl PoolIndices {
    /// Every kind, in declaration order.
    pub const ALL: [PoolIndices; 3] =
        [PoolIndices::Positions, PoolIndices::ColumnMajorPositions, PoolIndices::Taps];

    /// The type of the indices of windows of so many taps.
    pub fn dtype(self, taps: usize) -> DType {
        match self {
            PoolIndices::Positions | PoolIndices::ColumnMajorPositions => DType::I64,
            PoolIndices::Taps if taps <= 1 << 8 => DType::U8,
            PoolIndices::Taps if taps <= 1 << 16 => DType::U16,
            PoolIndices::Taps => DType::U32,
        }
    }
}

/// Reads [`PoolIndices`]. Files of versions up to 0.2 say `column_major: true` instead.
pub(super) fn pool_indices<'de, D: Deserializer<'de>>(from: D) -> Result<PoolIndices, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        ColumnMajor(bool),
        Indices(PoolIndices),
    }
    Ok(match Written::deserialize(from)? {
        Written::ColumnMajor(true) => PoolIndices::ColumnMajorPositions,
        Written::ColumnMajor(false) => PoolIndices::Positions,
        Written::Indices(indices) => indices,
    })
}

/// Attributes of [`Op::Attention`](super::Op::Attention) and of its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Factor of the products of queries and keys.
    pub scale: f64,
    /// Query `t` has the keys up to `t` alone.
    ///
    /// A mask that is 0 up to the diagonal and `m` beyond it gives the same probabilities where
    /// `m` is −∞, and where `exp` of a score beyond the diagonal less the maximum of its row
    /// underflows to 0: in `f32` below −104, in `f64` below −746. For `m = −1e4` or less that
    /// needs scores that differ by less than 9000, which those of no sound model do.
    #[serde(default, skip_serializing_if = "is_false")]
    pub causal: bool,
    /// A row of which every score is −∞ gives 0 and passes no gradient; else it gives NaN, as a
    /// softmax does.
    #[serde(default, skip_serializing_if = "is_false")]
    pub zero_rows: bool,
    /// What is dropped of the probabilities, after their sums were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<AttentionDropout>,
    /// Bound `c > 0` of scores before the mask: `c · tanh(s / c)` takes the place of `s` (Gemma Team,
    /// "Gemma 2", 2024). `None` leaves them as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f64>,
    /// How many neighbouring matrices of queries share one of keys and one of values: the last axis
    /// of the batch of queries has so many times the extent of theirs (Ainslie et al., "GQA", 2023).
    #[serde(default = "one_group", skip_serializing_if = "is_one_group")]
    pub group: usize,
    /// Queries, keys, values and the result, and their gradients, are `[…,T,H,D]` and not `[…,H,T,D]`: the
    /// rows of a position lie side by side, as a product gives them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub positions_first: bool,
    /// Queries, keys and values are one tensor `[…,T,H+2K,D]`, as one product gives them: of each position the rows
    /// of the `H` heads of queries, of the `K` of keys and of the `K` of values. It is each of the three
    /// operands, and their gradients are one tensor like it. Positions are before heads.
    #[serde(default, skip_serializing_if = "is_false")]
    pub packed: bool,
}

impl AttentionSpec {
    /// Attention with this factor and nothing else.
    pub const fn scaled(scale: f64) -> AttentionSpec {
        AttentionSpec {
            scale,
            causal: false,
            zero_rows: false,
            dropout: None,
            softcap: None,
            group: 1,
            positions_first: false,
            packed: false,
        }
    }
}

fn one_group() -> usize {
    1
}

fn is_one_group(group: &usize) -> bool {
    *group == 1
}

/// Dropout of an attention's probabilities: of those of shape `[…,T,S]` the elements that
/// [`Op::Dropout`](super::Op::Dropout) drops of a tensor of that shape. The gradient draws again
/// what its attention drew.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionDropout {
    /// Probability that one is dropped, at least 0 and below 1; the others are divided by
    /// `1 − ratio`.
    pub ratio: f64,
    /// The generator's key.
    pub rng: Rng,
}

impl AttentionDropout {
    /// True for a ratio that drops some and not all.
    pub fn is_sound(&self) -> bool {
        (0.0..1.0).contains(&self.ratio)
    }

    /// A word of the generator below this drops: exactly the words below `ratio · 2³²`.
    pub fn threshold(&self) -> u64 {
        (self.ratio * 4_294_967_296.0).ceil() as u64
    }
}

/// Attributes that are false are left out of the text.
pub(super) fn is_false(b: &bool) -> bool {
    !*b
}

pub(super) fn is_default<T: Default + PartialEq>(x: &T) -> bool {
    *x == T::default()
}

pub(super) fn is_one(x: &f32) -> bool {
    *x == 1.0
}

pub(super) fn one() -> f32 {
    1.0
}

/// Numbers in the text: JSON has none that are infinite or NaN, so these are words.
pub(super) mod any_number {
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Text {
        Number(f64),
        Word(String),
    }

    pub(in crate::op) fn serialize<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
        if x.is_finite() { to.serialize_f64(*x) } else { to.serialize_str(&x.to_string()) }
    }

    pub(in crate::op) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        match Text::deserialize(from)? {
            Text::Number(x) => Ok(x),
            Text::Word(word) => match &word[..] {
                "inf" => Ok(f64::INFINITY),
                "-inf" => Ok(f64::NEG_INFINITY),
                "NaN" => Ok(f64::NAN),
                _ => Err(de::Error::custom(format!("`{word}` is no number"))),
            },
        }
    }
}
