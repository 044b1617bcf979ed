//! Parts of a program that train otherwise than their operators say.
//!
//! A part under `torch.no_grad()` is a program of its own to `torch.export`, and so is one under `torch.autocast()`. PyTorch's
//! exporter puts its operators back among the others and does not say which of the two it was, but the stack traces of
//! these operators begin in generated code, which those of no others do. Buffers that the module changes as it
//! trains are among the outputs of a signature that was made in training mode; of spectral normalisation the names tell
//! them in evaluation mode, too.

use super::signature::Signature;
use super::{label, property};
use crate::onnx::proto::{GraphProto, NodeProto};
use arenic_passes::differentiate::Standing;
use std::collections::{BTreeSet, HashMap};

/// Where a node comes from, in the module's source.
const TRACE: &str = "pkg.torch.onnx.stack_trace";

/// How a trace begins that is of generated code.
const GENERATED: &str = "File \"<eval_with_key>";

/// Buffers that batch normalisation changes, which ONNX's operator changes, too.
const OF_BATCH_NORM: [&str; 3] = ["running_mean", "running_var", "num_batches_tracked"];

/// What may train otherwise than the file says.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// A sentence about each kind of it.
    pub(super) notes: Vec<String>,
    /// The parameters whose gradients may be others.
    pub(super) parameters: BTreeSet<String>,
}

/// Finds what the signature and the nodes of a graph give away.
pub(super) fn find(graph: &GraphProto, signature: &Signature) -> Doubts {
    let mut doubts = Doubts::default();
    doubts.of_parts(graph, signature);
    doubts.of_buffers(signature);
    doubts
}

impl Doubts {
    /// Nodes that were traced in a program of their own, and what they depend on.
    fn of_parts(&mut self, graph: &GraphProto, signature: &Signature) {
        let aside: Vec<&NodeProto> = graph.node.iter().filter(|n| is_aside(n)).collect();
        let parameters = behind(graph, &aside, signature);
        let (Some(first), Some(last)) = (aside.first(), aside.last()) else { return };
        let Some(one) = parameters.first() else { return };
        let more = match parameters.len() - 1 {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        self.notes.push(format!(
            "{} operators, from node `{}` to node `{}`, are of a part that the module runs under torch.no_grad() or \
             torch.autocast(); the file does not say which, and gradients pass it, to `{one}`{more}. `arenic.torch.export` \
             writes down where they stop; here --stop-gradient NAME says it",
            aside.len(),
            label(first),
            label(last),
        ));
        self.parameters.extend(parameters);
    }

    /// Buffers that are other ones in each step of the module.
    fn of_buffers(&mut self, signature: &Signature) {
        let mut changed: BTreeSet<&str> = signature
            .changed()
            .filter(|name| !name.rsplit('.').next().is_some_and(|n| OF_BATCH_NORM.contains(&n)))
            .collect();
        for (weight, vector) in signature.buffers().filter_map(|b| Some((normalised(b)?, b))) {
            if signature.standing(&weight) == Some(Standing::Parameter) {
                changed.insert(vector);
                self.parameters.insert(weight);
            }
        }
        let Some(first) = changed.first() else { return };
        let what = match changed.len() {
            1 => format!("the buffer `{first}`"),
            n => format!("{n} buffers, such as `{first}`"),
        };
        self.notes.push(format!(
            "the module changes {what} as it trains (spectral normalisation and running averages do), and here they stay as \
             they are; `arenic.torch.training_step` carries them from step to step"
        ));
    }
}

/// The weight that a spectral normalisation divides, if this is the name of one of its two vectors.
fn normalised(buffer: &str) -> Option<String> {
    if let Some(weight) = buffer.strip_suffix("_u").or_else(|| buffer.strip_suffix("_v")) {
        if let Some((list, at)) = weight.strip_suffix('.').and_then(|path| path.rsplit_once('.')) {
            let is_place = !at.is_empty() && at.chars().all(|c| c.is_ascii_digit());
            return is_place.then(|| format!("{list}.original"));
        }
        return Some(format!("{weight}_orig"));
    }
    None
}

/// True for a node that was traced from generated code.
fn is_aside(node: &NodeProto) -> bool {
    property(node, TRACE).is_some_and(|trace| trace.trim_start().starts_with(GENERATED))
}

/// The parameters that these nodes depend on.
fn behind(graph: &GraphProto, nodes: &[&NodeProto], signature: &Signature) -> BTreeSet<String> {
    let makers: HashMap<&str, &NodeProto> =
        graph.node.iter().flat_map(|n| n.output.iter().map(move |o| (o.as_str(), n))).collect();
    let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
    let mut stack: Vec<&str> = nodes.iter().flat_map(|n| &n.input).map(String::as_str).collect();
    while let Some(name) = stack.pop() {
        if !seen.insert(name) {
            continue;
        }
        if signature.standing(name) == Some(Standing::Parameter) {
            found.insert(name.to_owned());
        }
        if let Some(maker) = makers.get(name) {
            stack.extend(maker.input.iter().map(String::as_str));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::normalised;

    #[test]
    fn vectors_of_a_spectral_normalisation_name_its_weight() {
        let list = "0.parametrizations.weight";
        assert_eq!(normalised(&format!("{list}.0._u")), Some(format!("{list}.original")));
        assert_eq!(normalised(&format!("{list}.10._v")), Some(format!("{list}.original")));
        assert_eq!(normalised("conv.weight_u").as_deref(), Some("conv.weight_orig"));
        assert_eq!(normalised("list.x._u"), None);
        assert_eq!(normalised("running_mean"), None);
    }
}
