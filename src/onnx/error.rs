//! Why a model could not be imported.

use super::parameters::lost::Lost;
use std::fmt::Write as _;
use std::path::PathBuf;

/// An operator of a model that arenic does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedOp {
    /// Operator domain; `ai.onnx` for the default one.
    pub domain: String,
    /// Operator type.
    pub name: String,
    /// ONNX's own domain has an operator of this type.
    pub is_of_onnx: bool,
    /// The version of its domain that the model imports, where it imports it.
    pub version: Option<i64>,
    /// How many nodes use it.
    pub count: usize,
    /// The first of these: its name or, where it has none, its first result's.
    pub first: String,
}

/// Why a model could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The model file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The bytes are no protobuf message of the right kind.
    #[error("this is no ONNX model, or it is damaged: {0}")]
    Decode(#[from] prost::DecodeError),
    /// The model as a whole is not usable.
    #[error("{0}")]
    Model(String),
    /// Operators that arenic does not know, all of them.
    #[error("{}", report(.0))]
    Unsupported(Vec<UnsupportedOp>),
    /// Symbolic dimensions without a size.
    #[error("no size is given for: {}; give each one with --dim NAME=SIZE", .0.join(", "))]
    UnboundDims(Vec<String>),
    /// Sizes for dimensions that the model does not have.
    #[error("the model's inputs have no symbolic dimension named {}{}", .names.join(", "), there_are(.known))]
    UnknownDims {
        /// The names.
        names: Vec<String>,
        /// The symbolic dimensions that there are.
        known: Vec<String>,
    },
    /// A size without a name, of a model that has several symbolic dimensions, or none.
    #[error("a size of {size} needs the name of its dimension, --dim NAME={size}{}", there_are(.known))]
    UnnamedDim {
        /// The size.
        size: u64,
        /// The symbolic dimensions that there are.
        known: Vec<String>,
    },
    /// The batch cannot be that of several ranks.
    #[error(
        "ranks share the rows of the batch, which is the first axis of the inputs, and here no input leaves \
         that axis open; export the model with a symbolic batch dimension, and give its size for one \
         rank by --dim"
    )]
    RanksWithoutBatch,
    /// A graph input, an output or something that is bound to one.
    #[error("{kind} `{name}`: {reason}")]
    Interface {
        /// `input`, `output` or `--bind`.
        kind: &'static str,
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A stored tensor.
    #[error("tensor `{name}`: {reason}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A node.
    #[error("node `{node}` ({op}): {reason}")]
    Node {
        /// The node's name or, where it has none, its first result's.
        node: String,
        /// Its operator.
        op: String,
        /// What is wrong.
        reason: String,
    },
    /// Nodes that read each other's results in a circle.
    #[error("the graph has a cycle: {}", .0.join(" → "))]
    Cycle(Vec<String>),
    /// A tensor with two definitions.
    #[error("tensor `{name}` has two definitions: {first} and {second}")]
    Duplicate {
        /// The tensor.
        name: String,
        /// One definition.
        first: String,
        /// The other.
        second: String,
    },
    /// Parameters that a file lacks, or has as something else.
    #[error("{}", lost(.0))]
    Parameters(Vec<Lost>),
    /// A pair of a state.
    #[error("state `{enter}` with next value `{exit}`: {reason}")]
    State {
        /// The tensor with the present value.
        enter: String,
        /// The tensor with the next value.
        exit: String,
        /// What is wrong.
        reason: String,
    },
}

fn report(ops: &[UnsupportedOp]) -> String {
    let nodes: usize = ops.iter().map(|op| op.count).sum();
    let mut text = format!(
        "the model uses {} operator{} that arenic does not support ({nodes} node{}):",
        ops.len(),
        if ops.len() == 1 { "" } else { "s" },
        if nodes == 1 { "" } else { "s" },
    );
    for op in ops {
        let version = op.version.map_or("no version".into(), |v| format!("version {v}"));
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n  {} {} ({version}): {} node{}, first `{}`{}",
            op.domain,
            op.name,
            op.count,
            if op.count == 1 { "" } else { "s" },
            op.first,
            match op.domain == "ai.onnx" && !op.is_of_onnx {
                true => "; ONNX has no such operator: the exporter left it untranslated",
                false => "",
            }
        );
    }
    text + "\n`arenic ops` lists what is supported"
}

fn lost(all: &[Lost]) -> String {
    let (one, few) = (all.len() == 1, all.iter().filter(|l| l.can_be_repaired()).count());
    let mut text = match one {
        true => "the file does not have one of the model's parameters as it was:".to_owned(),
        false => {
            format!("the file does not have {} of the model's parameters as they were:", all.len())
        }
    };
    for l in all {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {} is {}", l.name, l.fate);
    }
    text += "\nExport the model again without the exporter's optimizer: \
             torch.onnx.export(model, inputs, \"model.onnx\", dynamo=True, optimize=False).";
    if few > 0 {
        let _ = write!(text, " --repair restores {few} of {}.", all.len());
    }
    text + " --accept-missing trains the file as it is"
}

fn there_are(names: &[String]) -> String {
    match names {
        [] => "; they have none".into(),
        names => format!("; they have {}", names.join(", ")),
    }
}

/// What is wrong with a node; the importer adds which node it is.
#[derive(Debug)]
pub(super) struct Fault(pub(super) String);

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Fault(reason)
    }
}

impl From<&str> for Fault {
    fn from(reason: &str) -> Self {
        Fault(reason.into())
    }
}

impl From<arenic_ir::op::TypeError> for Fault {
    fn from(error: arenic_ir::op::TypeError) -> Self {
        Fault(error.0)
    }
}
