//! Which way products, convolutions and attention go, for whoever asks why a step is slow.

/// The way of the nodes of a step that are alike: products, convolutions or attentions.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// The operator's name in the text form.
    pub op: String,
    /// Types of its operands.
    pub operands: Vec<String>,
    /// How often it runs in a step.
    pub runs: usize,
    /// What computes it: a library's algorithm in the library's words, or `kernels`.
    pub taken: String,
    /// True where a library computes it, perhaps with a pass of ours after it.
    pub by_library: bool,
    /// Seconds that one run takes, where ways were measured.
    pub seconds: Option<f64>,
    /// Other ways.
    pub refused: Vec<Refused>,
}

/// A way that is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The way, or the library that has none.
    pub way: String,
    /// Why.
    pub why: String,
}
