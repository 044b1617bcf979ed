//! What a model computes that nobody asks for.

use super::flatten::{FlatNode, Names, Tensor};
use super::ops::is_supported;
use super::proto::ValueInfoProto;
use super::{ImportOptions, Mode};

/// Of a model with operators that are not supported, leaves out nodes on which no output depends and,
/// of a forward model, outputs that do where there are others: the loss may need only these. Says which
/// outputs are left out.
pub(super) fn prune<'m>(
    nodes: Vec<FlatNode<'m>>,
    outputs: &mut Vec<(Tensor, &ValueInfoProto)>,
    exits: &[Tensor],
    options: &ImportOptions,
    names: &Names,
) -> (Vec<FlatNode<'m>>, Vec<String>) {
    if nodes.iter().all(is_supported) {
        return (nodes, Vec::new());
    }
    let mut producer = vec![None; names.len()];
    for (n, node) in nodes.iter().enumerate() {
        node.outputs.iter().flatten().for_each(|&t| producer[t] = Some(n));
    }
    let reached = |from: &mut dyn Iterator<Item = Tensor>| {
        let mut reached = vec![false; nodes.len()];
        let mut open: Vec<Tensor> = from.collect();
        while let Some(t) = open.pop() {
            if let Some(n) = producer[t]
                && !std::mem::replace(&mut reached[n], true)
            {
                open.extend(nodes[n].reads());
            }
        }
        reached
    };
    let fits = |t: Tensor| {
        let reached = reached(&mut std::iter::once(t));
        nodes.iter().zip(reached).all(|(node, reached)| !reached || is_supported(node))
    };
    let mut notes = Vec::new();
    let fitting: Vec<bool> = outputs.iter().map(|&(t, _)| fits(t)).collect();
    if options.mode != Mode::AsWritten && fitting.contains(&true) && fitting.contains(&false) {
        let mut each = fitting.iter();
        outputs.retain(|(_, info)| {
            let fits = each.next() == Some(&true);
            if !fits {
                let name = info.name.as_deref().unwrap_or("");
                notes.push(format!(
                    "output `{name}` is left out: it needs operators that are not supported"
                ));
            }
            fits
        });
    }
    let mut roots = outputs.iter().map(|&(t, _)| t).chain(exits.iter().copied());
    let live = reached(&mut roots);
    let kept = nodes.into_iter().zip(live).filter(|(_, live)| *live);
    (kept.map(|(node, _)| node).collect(), notes)
}
