//! Why a graph cannot be differentiated.

use super::loss::NAMED;
use arenic_ir::op::TypeError;
use arenic_ir::types::TensorType;

/// An operator that gradients cannot pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The node's name; may be empty.
    pub node: String,
    /// Its operator.
    pub op: &'static str,
}

/// Why a graph cannot be differentiated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DifferentiateError {
    /// There is no loss.
    #[error("no loss is given: {}, or a scalar output's name", losses())]
    NoLoss,
    /// It cannot be told which output the loss is of.
    #[error("the model has {}; name the one for the loss with --output", listed("output", .0))]
    Outputs(Vec<String>),
    /// There is no output of this name.
    #[error("the model has no output `{name}`; it has {}", listed("output", .known))]
    UnknownOutput {
        /// The name.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// A name that is neither a loss nor an output.
    #[error("`{name}` is no loss: there are {}; and no output: the model has {}", losses(), listed("output", .known))]
    UnknownLoss {
        /// The name.
        name: String,
        /// The outputs that there are.
        known: Vec<String>,
    },
    /// The loss is of logarithms, the output is a softmax.
    #[error(
        "the loss {0} takes log probabilities, but the output comes from a softmax, which gives \
         probabilities: use --loss cross_entropy, which takes the softmax's operand"
    )]
    Probabilities(String),
    /// An option of another loss, or a value that it cannot have.
    #[error("{0}")]
    Option(String),
    /// The output's type does not fit the loss.
    #[error("the loss {loss} takes {wanted}, the output is {ty}")]
    Output {
        /// The loss.
        loss: String,
        /// The output's type.
        ty: TensorType,
        /// What it should have.
        wanted: String,
    },
    /// Nothing that can be trained leads to the loss.
    #[error(
        "the loss depends on no parameter{}",
        if *inference { "; weights that are constants are those of a model that was not imported for training" } else { "" }
    )]
    Unreached {
        /// There are no weights at all.
        inference: bool,
    },
    /// Operators that gradients cannot pass.
    #[error("no gradient passes {}; freeze what lies before, or stop gradients there", missing(.0))]
    NoRule(Vec<Missing>),
    /// A pattern that fits nothing.
    #[error("no weight matches `{0}`")]
    Pattern(String),
    /// What is to be trained holds no floats.
    #[error("`{name}` is {ty}: integers are not trained")]
    Integers {
        /// The weight.
        name: String,
        /// Its type.
        ty: TensorType,
    },
    /// A name that the step needs is taken.
    #[error("the model has a `{0}` already, which the training step would add")]
    Name(String),
    /// A schedule lacks a number.
    #[error("the learning rate's schedule needs {what}")]
    Schedule {
        /// The number.
        what: &'static str,
    },
    /// Views are made too early.
    #[error("`views` comes before `differentiate`; move it behind")]
    Views,
    /// Micro-batches.
    #[error("accumulate is 0; it counts the micro-batches of a step")]
    NoBatches,
    /// Operands do not fit: a batch too large, or a defect.
    #[error(transparent)]
    Type(#[from] TypeError),
}

fn losses() -> String {
    NAMED.map(|(name, _)| name).join(", ")
}

fn listed(what: &str, names: &[String]) -> String {
    match names {
        [] => format!("no {what}"),
        [one] => format!("one {what}, `{one}`"),
        many => format!("{} {what}s: `{}`", many.len(), many.join("`, `")),
    }
}

fn missing(all: &[Missing]) -> String {
    let each = all.iter().map(|m| match m.node.as_str() {
        "" => m.op.to_owned(),
        node => format!("{} (node `{node}`)", m.op),
    });
    each.collect::<Vec<_>>().join(", ")
}
