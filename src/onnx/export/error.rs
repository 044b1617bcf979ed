//! Why a graph could not be exported.

use crate::data::DataError;

/// Why a graph could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// An operator of which only sizes are known.
    #[error(
        "node `{0}` is `opaque`: only its sizes are known, so that ONNX has no operator for it"
    )]
    Opaque(String),
    /// The step exchanges tensors between ranks.
    #[error(
        "the step is for {0} ranks, which ONNX knows nothing of; export one compiled without --ranks"
    )]
    Ranks(usize),
    /// A random operator's seed.
    #[error("node `{node}` has the seed {seed}, which ONNX's attribute, a float, cannot hold")]
    Seed {
        /// The node.
        node: String,
        /// The seed.
        seed: u64,
    },
    /// A gradient that draws again what nothing drew.
    #[error("node `{0}` drops what its attention dropped, but no attention before it did")]
    Attention(String),
    /// Scales that are neither floats nor quotients of extents.
    #[error("node `{0}` scales its axes by ratios that ONNX's scales and sizes cannot say")]
    Scales(String),
    /// Contents that are not there.
    #[error("the data of `{0}` is not at hand (a plan without data?); --no-data does without it")]
    Data(String),
    /// A state that starts from nothing.
    #[error(
        "state `{0}` has no initial value, which training info must have; the step gets it when it runs"
    )]
    Initial(String),
    /// Two inputs, states or outputs of one name.
    #[error("two tensors would be called `{0}`; rename one of them in the model")]
    Name(String),
    /// More than protobuf holds.
    #[error(
        "the file would have {0} bytes, but protobuf holds less than 2 GiB; --no-data leaves out \
         initial values and constants"
    )]
    TooLarge(u64),
    /// The operands of a node, which a verified graph rules out.
    #[error(transparent)]
    Type(#[from] arenic_ir::op::TypeError),
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] DataError),
}
