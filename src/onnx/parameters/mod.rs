//! What a model's file says of its weights: which are parameters, which of these are one, and what
//! became of those that are not there.
//!
//! Two exporters say it. PyTorch's writes the signature of the exported program into the graph's
//! metadata (`signature`), and into each node's, of which of its operators the node is; where its
//! optimizer passes ran, that tells what they did to parameters (`lost`), some of which can be
//! restored (`repair`). An exporter that knows more writes the model's property `arenic.parameters`
//! (`declared`), which is stronger. What trains otherwise than a file reads leaves traces in it (`aside`, `detach`).
//! Files of others say nothing: what reads a weight tells what it is (`literals`; `roles` of the pass `differentiate`),
//! and `removed` knows what exporters leave out. `Weights::decided` (`src/compile.rs`) puts all of it together before
//! any pass.

mod aside;
mod declared;
pub(super) mod detach;
pub(super) mod literals;
pub(super) mod lost;
pub(super) mod removed;
mod repair;
mod signature;

pub use lost::{Fate, Lost};

use super::Variance;
use super::error::ImportError;
use super::proto::{GraphProto, ModelProto, NodeProto, TensorProto, tensor_proto::DataType};
use super::read::Reader;
use arenic_passes::differentiate::Standing;
use signature::Signature;
use std::collections::{BTreeMap, BTreeSet};

/// What a file says of its weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// Of every initializer of floats, by name; nothing where the file says nothing.
    pub standing: BTreeMap<String, Standing>,
    /// Names of initializers that are one parameter with another, which comes second.
    pub tied: BTreeMap<String, String>,
    /// Parameters that the file does not have, or not as parameters.
    pub lost: Vec<Lost>,
    /// Parameters that were restored.
    pub restored: Vec<Lost>,
    /// Sentences about what could not be restored, and what may train otherwise.
    pub notes: Vec<String>,
    /// Parameters whose gradients may be others in the module than the file says.
    pub doubtful: BTreeSet<String>,
    /// Names of parameters that no operator is said to read: they are one with another, or unused.
    pub unread: Vec<String>,
    /// Tensors that gradients do not pass, where the file lists them.
    pub stops: Option<Vec<String>>,
    /// What running variances are made of, where the file says it.
    pub variance: Option<Variance>,
}

impl Said {
    /// Reads what a file says. With `repair`, what certainly can be restored is, in the model.
    ///
    /// # Errors
    /// What the file says contradicts itself.
    pub(super) fn of(
        model: &mut ModelProto,
        reader: &mut Reader,
        repair: bool,
    ) -> Result<Said, ImportError> {
        let declared = declared::read(&model.metadata_props)?;
        let Some(graph) = &mut model.graph else { return Ok(Said::default()) };
        if let Some(declared) = declared {
            return declared.applied(graph);
        }
        let mut notes = detach::restore(graph);
        let Some(signature) = Signature::of(graph) else {
            return Ok(Said { notes, ..Said::default() });
        };
        let lost::LostParameters { lost, unread } = lost::find(graph, &signature);
        let restores = |l: &Lost| repair && repair::apply(graph, reader, l);
        let (restored, lost) = lost.into_iter().partition(restores);
        let standing = floats(graph)
            .map(|t| {
                let name = name(t);
                (name.to_owned(), signature.standing(name).unwrap_or(Standing::Constant))
            })
            .collect();
        let doubts = aside::find(graph, &signature);
        notes.extend(doubts.notes);
        let doubtful = doubts.parameters;
        Ok(Said { standing, lost, restored, notes, doubtful, unread, ..Said::default() })
    }
}

fn name(t: &TensorProto) -> &str {
    t.name.as_deref().unwrap_or("")
}

/// The initializers of floats.
fn floats(graph: &GraphProto) -> impl Iterator<Item = &TensorProto> {
    let kinds = [DataType::Float, DataType::Double, DataType::Bfloat16, DataType::Float16];
    graph.initializer.iter().filter(move |t| kinds.iter().any(|&k| t.data_type == Some(k as i32)))
}

/// How many elements a stored tensor has; `None` if that is no number.
fn elements(t: &TensorProto) -> Option<u64> {
    t.dims.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?))
}

/// What to call a node in messages.
fn label(node: &NodeProto) -> &str {
    let named = node.name.as_deref().filter(|n| !n.is_empty());
    named.or(node.output.first().map(String::as_str)).unwrap_or("")
}

/// A property of a node.
fn property<'m>(node: &'m NodeProto, key: &str) -> Option<&'m str> {
    let entry = node.metadata_props.iter().find(|e| e.key.as_deref() == Some(key))?;
    entry.value.as_deref()
}
