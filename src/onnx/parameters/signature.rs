//! The signature of an exported program, as PyTorch's exporter writes it into a graph's metadata.
//!
//! Lines such as `p_fc_weight: PARAMETER target='fc.weight'` name what the program is given, and
//! an initializer has its target's name. A node's property `pkg.torch.onnx.fx_node` is the text of the
//! program's operator that it is of, such as
//! `%linear : … = call_function[target=torch.ops.aten.linear.default](args = (%x, %p_fc_weight), …)`.

use super::property;
use crate::onnx::proto::{GraphProto, NodeProto};
use arenic_passes::differentiate::Standing;
use std::collections::HashMap;

const PROPERTY: &str = "pkg.torch.export.ExportedProgram.graph_signature";
const OPERATOR: &str = "pkg.torch.onnx.fx_node";

/// What an exported program is given.
pub(super) struct Signature {
    /// What it is and the name that it has in the module, by its name in the program.
    inputs: HashMap<String, (Standing, String)>,
    /// What targets are.
    targets: HashMap<String, Standing>,
    /// Buffers that the program changes.
    changed: Vec<String>,
}

/// One operator of the program, of which nodes are.
pub(super) struct Operator<'m> {
    /// `aten.linear.default`.
    pub(super) target: &'m str,
    /// What is read of what the program is given: the names in the module, in the order of operands,
    /// each once.
    pub(super) reads: Vec<(Standing, &'m str)>,
}

impl Signature {
    /// The signature of a graph, where it has one.
    pub(super) fn of(graph: &GraphProto) -> Option<Signature> {
        let entry = graph.metadata_props.iter().find(|e| e.key.as_deref() == Some(PROPERTY))?;
        let text = entry.value.as_deref()?;
        let (mut inputs, mut targets) = (HashMap::new(), HashMap::new());
        let mut lines = text.lines().map(str::trim);
        for line in lines.by_ref().take_while(|line| *line != "# outputs") {
            let Some((name, kind, target)) = targeted(line) else { continue };
            let Some(standing) = standing(kind) else { continue };
            targets.insert(target.to_owned(), standing);
            inputs.insert(name.to_owned(), (standing, target.to_owned()));
        }
        let outputs = lines.filter_map(targeted).filter(|(_, kind, _)| *kind == "BUFFER_MUTATION");
        let changed = outputs.map(|(_, _, target)| target.to_owned()).collect();
        Some(Signature { inputs, targets, changed })
    }

    /// What a name in the module is.
    pub(super) fn standing(&self, target: &str) -> Option<Standing> {
        self.targets.get(target).copied()
    }

    /// Names in the module of all parameters.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &str> {
        self.all(Standing::Parameter)
    }

    /// Names in the module of all buffers.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &str> {
        self.all(Standing::Buffer)
    }

    /// Names in the module of the buffers that the program changes.
    pub(super) fn changed(&self) -> impl Iterator<Item = &str> {
        self.changed.iter().map(String::as_str)
    }

    fn all(&self, standing: Standing) -> impl Iterator<Item = &str> {
        let of = self.targets.iter().filter(move |(_, s)| **s == standing);
        of.map(|(target, _)| target.as_str())
    }

    /// The text of the operator that a node is of.
    pub(super) fn text(node: &NodeProto) -> Option<&str> {
        property(node, OPERATOR)
    }

    /// What the text of an operator says.
    pub(super) fn operator<'m>(&'m self, text: &'m str) -> Operator<'m> {
        let target = text.split_once("target=torch.ops.").map_or("", |(_, rest)| rest);
        let target = target.split([']', ' ']).next().unwrap_or("");
        let arguments = text.split_once("](").map_or("", |(_, rest)| rest);
        let mut reads: Vec<(Standing, &str)> = Vec::new();
        for word in arguments.split('%').skip(1) {
            let end = word.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(word.len());
            if let Some((standing, target)) = self.inputs.get(&word[..end])
                && !reads.iter().any(|(_, t)| t == target)
            {
                reads.push((*standing, target));
            }
        }
        Operator { target, reads }
    }
}

/// A line of a signature: the name in the program, the kind, and the name in the module.
fn targeted(line: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = line.split_once(": ")?;
    let (kind, rest) = rest.split_once(" target=")?;
    let quote = rest.chars().next().filter(|c| ['\'', '"'].contains(c))?;
    Some((name, kind, rest[1..].split(quote).next()?))
}

/// What an input of this kind is.
fn standing(kind: &str) -> Option<Standing> {
    match kind {
        "PARAMETER" => Some(Standing::Parameter),
        "BUFFER" => Some(Standing::Buffer),
        "CONSTANT_TENSOR" => Some(Standing::Constant),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::StringStringEntryProto;

    #[test]
    fn lines_of_a_signature_and_operands_of_an_operator_are_read() {
        let text = "\n# inputs\np_a_weight: PARAMETER target='a.weight'\n\
                    b_freq: BUFFER target='freq' persistent=True\nx: USER_INPUT\n\n# outputs\n\
                    y: BUFFER_MUTATION target='freq'\n";
        let property =
            StringStringEntryProto { key: Some(PROPERTY.to_owned()), value: Some(text.to_owned()) };
        let graph = GraphProto { metadata_props: vec![property], ..GraphProto::default() };
        let signature = Signature::of(&graph).unwrap();
        assert_eq!(signature.standing("freq"), Some(Standing::Buffer));
        assert_eq!(signature.parameters().collect::<Vec<_>>(), ["a.weight"]);
        assert_eq!(signature.buffers().collect::<Vec<_>>(), ["freq"]);
        assert_eq!(signature.changed().collect::<Vec<_>>(), ["freq"]);
        let operator = signature.operator(
            "%y : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = \
             (%x, %p_a_weight, %p_a_weight_2, %b_freq, %p_a_weight), kwargs = {})",
        );
        assert_eq!(operator.target, "aten.linear.default");
        let reads = [(Standing::Parameter, "a.weight"), (Standing::Buffer, "freq")];
        assert_eq!(operator.reads, reads);
        assert!(signature.operator("").reads.is_empty());
        assert!(Signature::of(&GraphProto::default()).is_none());
    }
}
